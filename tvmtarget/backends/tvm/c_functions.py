"""Lower leaf functions of TVM to kernels in C, or in object files of LLVM, that take plain pointers.

TVM's calling convention needs its runtime (`MakePackedAPI`), so that parameters are turned into pointers here. Buffers
that a kernel allocates become parameters too: the caller plans all memory. TVM is imported late and ships no types: its
objects are Any, under names that say what they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, TypeAlias

import numpy as np

from tvmtarget.backends.c.static_function import (
    C_TYPES,
    CopyTensor,
    Kernel,
    KernelCall,
    StaticFunction,
    StaticStep,
    Tensor,
)
from tvmtarget.backends.protocol import Array
from tvmtarget.backends.tvm.compiled_module import import_tvm, object_folder
from tvmtarget.errors import BackendError
from tvmtarget.ir.names import Names

__all__ = ["CodeForm", "lower_to_kernels"]

CodeForm: TypeAlias = Literal["c", "object"]
Module: TypeAlias = Any
PrimFunc: TypeAlias = Any
Expr: TypeAlias = Any
Stmt: TypeAlias = Any

# The parts of TVM's C source before the first definition are its includes and prototypes, in place of which stand ours.
_DEFINITION = re.compile(r"^TVM_DLL int32_t (\w+)\(([^)]*)\) \{$", re.MULTILINE)
# A number that `_exact` wrote as a call without arguments.
_NUMBER = re.compile(r"((?:-?[0-9][0-9.]*(?:e[-+]?[0-9]+)?f?|-?INFINITY|NAN))\(\)")
# A zero that `_compared` wrote as a call without arguments.
_ZERO = re.compile(r"\btvmtarget_zero_(float32|float64)\(\)")
# Functions of math.h for operations that TVM's code generator for C does not lower.
_FUNCTIONS = {"tirx.fabs": "fabs"}
_SMALL = 17  # elements; smaller buffers stay local variables of the C function, which compilers keep in registers
_LONG_ROW = 32  # iterations; shorter loops that store by a condition take longer in parts
_INCLUDES = "#include <math.h>\n#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <string.h>\n"
_INCLUDES += '#include "tvmtarget_crt.h"\n'


def lower_to_kernels(module: Module, target: Any, name: str, prefix: str, form: CodeForm) -> StaticFunction:  # noqa: ANN401
    """Lower the function `main` of a Relax module whose tensor functions are scheduled.

    Args:
        module: TVM's module after operator fusion.
        target: TVM's target, of kind c or llvm.
        name: name of the leaf function, for messages.
        prefix: what the names of kernels begin with: a C identifier.
        form: whether to generate C, or an object file of LLVM.

    Returns:
        The function; its values have names of their own.

    Raises:
        BackendError: it contains what has no static plan: symbolic shapes, branches, calls of TVM's runtime.
    """
    tvm = import_tvm()
    relax = tvm.relax
    passes = [
        relax.transform.RewriteDataflowReshape(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
    ]
    with target, tvm.transform.PassContext(opt_level=3):
        module = tvm.transform.Sequential(passes)(module)
        walk = _Walk(name, prefix)
        walk.function(module["main"])
        used = {variable: module[variable] for variable in walk.symbols}
        counts = {call.kernel: len(call.reads) for call in walk.calls if isinstance(call, KernelCall)}
        kernels, code = _kernels(used, walk.symbols, counts, target, form)
    file = f"{prefix}_kernels.{'c' if form == 'c' else 'o'}"
    return StaticFunction(
        inputs=tuple(walk.inputs),
        outputs=tuple(walk.outputs),
        tensors=walk.tensors,
        constants=walk.constants,
        steps=tuple(walk.calls),
        kernels=kernels,
        code={file: code} if kernels else {},
    )


@dataclass
class _Walk:
    """Reads the bindings of a Relax function in order."""

    name: str
    prefix: str
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    calls: list[StaticStep] = field(default_factory=list)
    symbols: dict[Any, str] = field(default_factory=dict)  # of the kernels, by their global variables
    values: dict[Any, tuple[str, ...]] = field(default_factory=dict)
    names: Names = field(default_factory=Names)

    def function(self, function: Expr) -> None:
        matched = import_tvm().relax.MatchCast
        for param in function.params:
            value = self.new(param.ty, "input")
            self.inputs.append(value)
            self.values[param] = (value,)
        for block in function.body.blocks:
            for binding in block.bindings:
                if isinstance(binding, matched):  # a check, as all shapes are known
                    self.values[binding.var] = self.alias(binding.value, binding.ty)
                    continue
                self.values[binding.var] = self.value(binding.value, binding.var.ty)
        result = function.body.body
        types = result.ty.fields if isinstance(result.ty, import_tvm().ir.TupleType) else [result.ty]
        for name, type_ in zip(self.value(result, result.ty), types, strict=True):
            self.outputs.append(self.of_shape(name, self.tensor(type_)))

    def value(self, expr: Expr, type_: Any) -> tuple[str, ...]:  # noqa: ANN401
        """Return the names of the tensors that an expression yields."""
        tvm = import_tvm()
        if isinstance(expr, tvm.ir.Tuple):
            return tuple(name for one in expr.fields for name in self.value(one, one.ty))
        if isinstance(expr, tvm.ir.TupleGetItem):
            return (self.value(expr.tuple_value, expr.tuple_value.ty)[expr.index],)
        if expr in self.values:
            return self.values[expr]
        if isinstance(expr, tvm.ir.Call):
            operator = expr.op.name if isinstance(expr.op, tvm.ir.Op) else str(expr.op)
            if operator == "relax.call_tir" and len(expr.args) == 2:
                return self.call(expr, type_)
            if operator in ("relax.reshape", "relax.memory.ensure_zero_offset"):
                return self.alias(expr.args[0], type_)
            raise self.refused(f"the operation {operator!r}")
        if isinstance(expr, tvm.ir.expr.GenericConst):
            value = self.new(expr.ty, "constant")
            self.constants[value] = np.ascontiguousarray(expr.value.numpy()).reshape(self.tensors[value].shape)
            self.values[expr] = (value,)
            return (value,)
        raise self.refused(f"a value of {type(expr).__name__}")

    def call(self, expr: Expr, type_: Any) -> tuple[str, ...]:  # noqa: ANN401
        tvm = import_tvm()
        callee, given = expr.args
        reads = tuple(name for one in given.fields for name in self.value(one, one.ty))
        fields = type_.fields if isinstance(type_, tvm.ir.TupleType) else [type_]
        writes = tuple(self.new(one, callee.name_hint) for one in fields)
        if callee not in self.symbols:
            self.symbols[callee] = f"{self.prefix}_{_identifier(callee.name_hint)}"
        self.calls.append(KernelCall(self.symbols[callee], reads, writes))
        return writes

    def alias(self, expr: Expr, type_: Any) -> tuple[str, ...]:  # noqa: ANN401
        """Return the value under its own name: only its shape differs, which C does not state."""
        self.tensor(type_)
        return self.value(expr, expr.ty)

    def of_shape(self, name: str, tensor: Tensor) -> str:
        """Return a result with the shape that callers see: a copy, if the value is another one in another shape."""
        if self.tensors[name].shape == tensor.shape:
            return name
        copy = self.names.fresh(name)
        self.tensors[copy] = tensor
        self.calls.append(CopyTensor(name, copy))
        return copy

    def new(self, type_: Any, stem: str) -> str:  # noqa: ANN401
        name = self.names.fresh(stem)
        self.tensors[name] = self.tensor(type_)
        return name

    def tensor(self, type_: Any) -> Tensor:  # noqa: ANN401
        tvm = import_tvm()
        shape = getattr(type_, "shape", None)
        sizes = None if shape is None else list(getattr(shape, "values", shape))
        if sizes is None or not all(isinstance(size, tvm.tirx.IntImm) for size in sizes):
            raise self.refused("a value of symbolic or unknown shape")
        dtype = str(type_.dtype)
        if dtype not in C_TYPES:
            raise self.refused(f"values of {dtype}, which C99 has not")
        return Tensor(dtype, tuple(int(size) for size in sizes))

    def refused(self, what: str) -> BackendError:
        return BackendError(f"function {self.name!r} has {what}, which no static memory plan covers")


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def _kernels(
    functions: Mapping[Any, PrimFunc],
    symbols: Mapping[Any, str],
    counts: Mapping[str, int],
    target: Any,  # noqa: ANN401
    form: CodeForm,
) -> tuple[dict[str, Kernel], bytes]:
    """Generate code of tensor functions.

    Returns:
        The kernels by symbol, and their C source or object file.
    """
    tvm = import_tvm()
    if not functions:
        return {}, b""
    module = tvm.tirx.transform.BindTarget(target)(tvm.IRModule(dict(functions)))
    module = tvm.transform.Sequential(list(_passes(form)))(module)
    kernels: dict[str, Kernel] = {}
    lowered: dict[Any, PrimFunc] = {}
    by_name = {variable.name_hint: symbol for variable, symbol in symbols.items()}
    for variable, function in module.functions.items():
        symbol = by_name[variable.name_hint]
        pair = _with_pointers(function, symbol, counts[symbol], target, form)
        lowered[tvm.ir.GlobalVar(symbol)], kernels[symbol] = pair
    built = tvm.get_global_func(f"target.build.{target.kind.name}")(
        tvm.tirx.transform.LowerIntrin()(tvm.IRModule(lowered)), target
    )
    if form == "c":
        return kernels, _c_source(built.inspect_source(), kernels).encode()
    with object_folder() as folder:
        built.write_to_file(str(folder / "kernels.o"), "o")
        return kernels, (folder / "kernels.o").read_bytes()


def _passes(form: CodeForm) -> Iterator[Any]:
    """Yield the passes of TVM's pipeline for tensor functions of CPUs, up to its calling convention.

    They are those of `tvm.s_tir.pipeline.default_s_tir_pipeline` without those for threads of GPUs. C99 has no vectors:
    there they become loops, which C compilers vectorise again.
    """
    tvm = import_tvm()
    blocks, plain = tvm.s_tir.transform, tvm.tirx.transform
    yield blocks.CanonicalizeLoop()
    yield blocks.LowerInitBlock()
    yield blocks.PlanAndUpdateBufferAllocationLocation()
    yield blocks.ConvertBlocksToOpaque()
    yield blocks.CompactBufferAllocation()
    yield blocks.LowerMatchBuffer()
    yield blocks.StmtSimplify()
    yield blocks.LowerOpaqueBlock()
    yield plain.FlattenBuffer()
    yield plain.NarrowDataType(32)
    yield blocks.LoopPartition()
    yield plain.VectorizeLoop(form != "c")
    yield plain.StorageRewrite()
    yield blocks.HoistIfThenElse()
    yield plain.UnrollLoop()
    yield blocks.RenormalizeSplitPattern()
    yield plain.StmtSimplify()
    yield plain.RemoveNoOp()
    yield blocks.RewriteUnsafeSelect()
    if form == "c":
        yield tvm.tirx.transform.prim_func_pass(_split_rows, opt_level=0, name="SplitRows")
    yield plain.CommonSubexprElim()
    yield plain.VerifyMemory()


def _split_rows(function: PrimFunc, _module: Module, _context: object) -> PrimFunc:
    """Split long loops that store by a condition, as padding does, where the condition changes.

    C compilers vectorize the parts, but no load that may not be executed.
    """
    from tvm_ffi import structural_map

    tvm = import_tvm()
    ir, tirx = tvm.ir, tvm.tirx

    def split(loop: Stmt) -> Stmt:
        found = _range_of_choice(loop)
        if found is None:
            return loop
        store, length, dtype = loop.body, int(loop.extent), str(loop.loop_var.ty.dtype)
        _, chosen, other = store.value.args
        begin, end, around = found

        def part(first: int, last: int, value: Expr) -> Stmt:
            variable = ir.Var(loop.loop_var.name, loop.loop_var.ty)
            place = variable + tirx.const(first, dtype) if first else variable
            body = structural_map(
                tirx.BufferStore(store.buffer, value, store.indices),
                [(ir.Var, lambda one: place if one.same_as(loop.loop_var) else one)],
            )
            return tirx.For(variable, tirx.const(0, dtype), tirx.const(last - first, dtype), loop.kind, body)

        parts = ((0, begin, other), (begin, end, chosen), (end, length, other))
        made = [part(*one) for one in parts if one[0] < one[1]]
        whole = tirx.SeqStmt(made) if len(made) > 1 else made[0]
        return tirx.IfThenElse(tirx.all(*around), whole, part(0, length, other)) if around else whole

    return function.with_body(structural_map(function.body, [(tirx.For, split)]))


def _range_of_choice(loop: Stmt) -> tuple[int, int, list[Expr]] | None:
    """Return the iterations in which a loop stores the first of two values, if further conditions hold.

    Returns:
        The first iteration, the one after the last, and the conditions that do not depend on it; None if the loop does
        anything else, or for few iterations.
    """
    tirx = import_tvm().tirx
    is_loop = loop.kind == tirx.ForKind.SERIAL and isinstance(loop.body, tirx.BufferStore)
    if not is_loop or not isinstance(loop.extent, tirx.IntImm) or not isinstance(loop.min, tirx.IntImm):
        return None
    choice = loop.body.value
    if int(loop.min) != 0 or getattr(getattr(choice, "op", None), "name", "") != "prim.if_then_else":
        return None
    begin, end, around = 0, int(loop.extent), list[Any]()
    conditions = [choice.args[0]]
    while conditions:
        one = conditions.pop()
        if isinstance(one, tirx.And):
            conditions += [one.b, one.a]
        elif not any(used.same_as(loop.loop_var) for used in tirx.analysis.undefined_vars(one)):
            around.append(one)
        elif isinstance(one, tirx.LE) and one.b.same_as(loop.loop_var) and isinstance(one.a, tirx.IntImm):
            begin = max(begin, int(one.a))
        elif isinstance(one, tirx.LT) and one.a.same_as(loop.loop_var) and isinstance(one.b, tirx.IntImm):
            end = min(end, int(one.b))
        else:
            return None
    return (begin, end, around) if end - begin >= _LONG_ROW else None


def _with_pointers(
    function: PrimFunc,
    symbol: str,
    count: int,
    target: Any,  # noqa: ANN401
    form: CodeForm,
) -> tuple[PrimFunc, Kernel]:
    """Return a function that takes pointers to its buffers and to those that it allocates, and returns 0.

    Args:
        function: the function after all passes.
        symbol: its name.
        count: the number of its parameters that it reads; the others are results.
        target: TVM's target.
        form: the kind of code.
    """
    from tvm_ffi import structural_map

    tvm = import_tvm()
    ir, tirx = tvm.ir, tvm.tirx
    data = ir.Op.get("tirx.buffer_data")
    pointers: dict[Any, Any] = {}
    workspaces: list[Tensor] = []

    def pointer(buffer: Any) -> Any:  # noqa: ANN401
        pointers[buffer] = ir.Var(f"p{len(pointers)}", ir.PointerType(ir.PrimType(str(buffer.dtype))))
        return pointers[buffer]

    registers: dict[Any, Any] = {}

    def allocated(stmt: Stmt) -> Stmt:
        buffer = stmt.buffer
        if buffer.scope() == "local" and form == "c":  # stays a variable of the C function
            registers[buffer] = tirx.decl_buffer(buffer.shape, str(buffer.dtype), buffer.name)
            return tirx.AllocBuffer(registers[buffer])
        if buffer.scope() == "local" or 0 < _elements(buffer) < _SMALL:
            return stmt
        workspaces.append(_tensor_of(stmt.buffer))
        return tirx.DeclBuffer(stmt.buffer, data=pointer(stmt.buffer))

    def called(expr: Expr) -> Expr:
        if expr.op == data:
            return pointers.get(expr.args[0], expr)
        operator = expr.op.name if form == "c" and isinstance(expr.op, ir.Op) else ""
        if operator == "tirx.reinterpret":  # TVM casts pointers, which C99 6.5 leaves undefined
            dtype, given = str(expr.ty.dtype), str(expr.args[-1].ty.dtype)
            return tirx.call_pure_extern(dtype, f"tvmtarget_{dtype}_of_{given}", expr.args[-1])
        function = _FUNCTIONS.get(operator)
        if function is None:
            return expr
        dtype = str(expr.ty.dtype)
        return tirx.call_pure_extern(dtype, function + ("f" if dtype == "float32" else ""), *expr.args)

    def serial(stmt: Stmt) -> Stmt:  # parallel loops would start threads of TVM's runtime
        if form == "object" and stmt.kind != tirx.ForKind.PARALLEL:
            return stmt
        return tirx.For(stmt.loop_var, stmt.min, stmt.extent, tirx.ForKind.SERIAL, stmt.body, step=stmt.step)

    params = list(function.params)
    declared = [tirx.DeclBuffer(buffer, data=pointer(buffer)) for buffer in params]
    changes = [(tirx.AllocBuffer, allocated), (ir.Call, called), (tirx.For, serial)]
    body = function.body
    if form == "c":
        body = structural_map(body, [((tirx.Max, tirx.Min), _compared)])
        changes.append((tirx.FloatImm, _exact))
    body = structural_map(body, changes)
    if registers:
        body = structural_map(body, [(ir.Var, lambda variable: registers.get(variable, variable))])
    # Tensors begin at their pointers; TVM leaves this open for arguments of packed functions.
    offsets = [buffer.elem_offset for buffer in params]
    starts = {offset: tirx.const(0, offset.ty.dtype) for offset in offsets if isinstance(offset, tirx.Var)}
    if starts:
        declared, body = structural_map([declared, body], [(ir.Var, lambda variable: starts.get(variable, variable))])
    body = tirx.SeqStmt([*declared, body, tirx.Return(tirx.IntImm("int32", 0))])
    tensors = [_tensor_of(one) for one in params]
    kernel = Kernel(symbol, tuple(tensors[:count]), tuple(tensors[count:]), tuple(workspaces))
    attributes = {"global_symbol": symbol, "target": target, "calling_conv": 0, "tirx.noalias": True}
    given = list(pointers.values())
    return tirx.PrimFunc(given, body, ir.PrimType("int32"), ir.make_node("ir.DictAttrs", **attributes)), kernel


def _elements(buffer: Any) -> int:  # noqa: ANN401
    return prod(_tensor_of(buffer).shape)


def _tensor_of(buffer: Any) -> Tensor:  # noqa: ANN401
    element, _, lanes = str(buffer.dtype).partition("x")  # a buffer that is only accessed by vectors has these
    return Tensor(element, (*(int(size) for size in buffer.shape), *([int(lanes)] if lanes else [])))


def _compared(expr: Expr) -> Expr:
    """Return a maximum or minimum whose constant zeros are a variable of the C function.

    Where GCC 12 knows the zero, it branches, which takes long for numbers of either sign.
    """
    tirx = import_tvm().tirx

    def operand(one: Expr) -> Expr:
        if not isinstance(one, tirx.FloatImm) or one.value != 0 or math.copysign(1, one.value) < 0:
            return one
        dtype = str(one.ty.dtype)
        return tirx.call_pure_extern(dtype, f"tvmtarget_zero_{dtype}") if dtype in C_TYPES else one

    return type(expr)(operand(expr.a), operand(expr.b))


def _exact(number: Any) -> Expr:  # noqa: ANN401
    """Return a number as a call whose text is the number: TVM prints numbers with seven digits."""
    value, is_single = number.value, str(number.ty.dtype) == "float32"
    if math.isnan(value) or math.isinf(value):
        text = "NAN" if math.isnan(value) else f"{'-' if value < 0 else ''}INFINITY"
    else:  # the shortest decimal that reads back as the same number
        text = np.format_float_scientific(np.float32(value) if is_single else value, trim="0")
        text += "f" if is_single else ""
    return import_tvm().tirx.call_pure_extern(str(number.ty.dtype), text)


def _c_source(text: str, kernels: Mapping[str, Kernel]) -> str:
    """Return TVM's C source in C99 without its headers, and with parameters that are const and restrict."""
    parts = _DEFINITION.split(text)[1:]
    lines = [_INCLUDES]
    for symbol, body in zip(parts[::3], parts[2::3], strict=True):
        kernel = kernels[symbol]
        count = len(kernel.reads) + len(kernel.writes) + len(kernel.workspaces)
        body, end, _ = body.partition("\n}\n")
        zeros = sorted(set(_ZERO.findall(body)))
        body = _NUMBER.sub(r"\1", _ZERO.sub(r"zero_\1", body))
        unused = [f"p{number}" for number in range(count) if not re.search(rf"\bp{number}\b", body)]
        lines += [kernel.prototype + ";", kernel.prototype + " {", *(f"  (void){name};" for name in unused)]
        lines += [f"  TVMTARGET_ZERO({C_TYPES[dtype]}, zero_{dtype});" for dtype in zeros]
        lines += [body.strip("\n") + end]
    return "\n".join(lines)
