"""Lower leaf functions of TVM to kernels in C, or in object files of LLVM, that take plain pointers.

TVM's calling convention needs its runtime (`MakePackedAPI`), so that parameters are turned into pointers here. Buffers
that a kernel allocates become parameters too: the caller plans all memory. TVM is imported late and ships no types: its
objects are Any, under names that say what they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
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
from tvmtarget.backends.tvm.wide_indices import lower_functions
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
_LEAST_SHARED = 256  # bytes that buffers of parts of a kernel can share, below which it stays whole
_LONG_ROW = 32  # iterations; shorter loops that store by a condition take longer in parts
_OUT_OF_BOUNDS = -6  # TVMTARGET_ERROR_INDEX of tvmtarget_crt.h
_INCLUDES = "#include <math.h>\n#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <string.h>\n"
_INCLUDES += '#include "tvmtarget_crt.h"\n'


def lower_to_kernels(
    module: Module,
    target: Any,  # noqa: ANN401
    name: str,
    prefix: str,
    form: CodeForm,
    pointer_bits: int,
) -> StaticFunction:
    """Lower the function `main` of a Relax module whose tensor functions are scheduled.

    Args:
        module: TVM's module after operator fusion.
        target: TVM's target, of kind c or llvm.
        name: name of the leaf function, for messages.
        prefix: what the names of kernels begin with: a C identifier.
        form: whether to generate C, or an object file of LLVM.
        pointer_bits: width of a pointer, by which it is decided which indices compilers vectorize rightly.

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
        generated = _Generated(walk.symbols, walk.operands(), pointer_bits)
        # LLVM generates only functions that return 0.
        checks = {one: function for one, function in used.items() if form == "object" and _can_fail(function)}
        generated.add({one: used[one] for one in used if one not in checks}, target, form, f"{prefix}_kernels")
        generated.add(checks, tvm.target.Target("c"), "c", f"{prefix}_checks")
        steps = walk.in_parts(generated.parts)
    return StaticFunction(
        inputs=tuple(walk.inputs),
        outputs=tuple(walk.outputs),
        tensors=walk.tensors,
        constants=walk.constants,
        steps=tuple(steps),
        kernels=generated.kernels,
        code=generated.code,
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

    def operands(self) -> dict[str, list[bool]]:
        """Return for each kernel whether the operands that it reads are constants in all calls."""
        found: dict[str, list[bool]] = {}
        for call in self.calls:
            if isinstance(call, KernelCall):
                constant = [name in self.constants for name in call.reads]
                known = found.get(call.kernel, constant)
                found[call.kernel] = [one and other for one, other in zip(known, constant, strict=True)]
        return found

    def in_parts(self, parts: Mapping[str, Sequence[_Part]]) -> Iterator[StaticStep]:
        """Yield the steps, with calls of the parts of kernels; what these hand on are values of their own."""
        for call in self.calls:
            if not isinstance(call, KernelCall):
                yield call
                continue
            own = parts[call.kernel]
            values = dict(zip(own[0].function.params, (*call.reads, *call.writes), strict=True))
            for part in own:
                for buffer in part.params:
                    if buffer not in values:
                        values[buffer] = self.names.fresh(buffer.name)
                        self.tensors[values[buffer]] = _tensor_of(buffer)
                names = [values[buffer] for buffer in part.params]
                yield KernelCall(part.symbol, tuple(names[: part.count]), tuple(names[part.count :]))

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


def _can_fail(function: PrimFunc) -> bool:
    """Return whether a function contains an assertion."""
    from tvm_ffi import structural_walk

    found: list[Stmt] = []
    structural_walk(function.body, (import_tvm().tirx.AssertStmt, found.append))
    return bool(found)


@dataclass
class _Generated:
    """Code of tensor functions.

    Attributes:
        symbols: names of the functions, by their global variables.
        operands: for each function whether the operands that it reads are constants in all calls.
        pointer_bits: width of a pointer.
        kernels: the kernels by symbol.
        parts: the parts of which each function is made, by its symbol.
        code: files in C and object files, by name.
    """

    symbols: Mapping[Any, str]
    operands: Mapping[str, Sequence[bool]]
    pointer_bits: int
    kernels: dict[str, Kernel] = field(default_factory=dict)
    parts: dict[str, list[_Part]] = field(default_factory=dict)
    code: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = Names(self.symbols.values())

    def add(self, functions: Mapping[Any, PrimFunc], target: Any, form: CodeForm, file: str) -> None:  # noqa: ANN401
        """Generate a file of some functions, whose name is given without its extension."""
        tvm = import_tvm()
        if not functions:
            return
        module = tvm.tirx.transform.BindTarget(target)(tvm.IRModule(dict(functions)))
        passes = tvm.transform.Sequential(list(_passes(form)))
        # Clang compiles C by LLVM. Indices as wide as a pointer are not extended, and 64 bits are slow on small boards.
        is_narrow = form == "c" and self.pointer_bits < 64
        module = passes(module) if is_narrow else lower_functions(module, passes)
        lowered: dict[Any, PrimFunc] = {}
        kernels: dict[str, Kernel] = {}
        by_name = {variable.name_hint: symbol for variable, symbol in self.symbols.items()}
        for variable, function in module.functions.items():
            symbol = by_name[variable.name_hint]
            self.parts[symbol] = _parts(function, symbol, self.operands[symbol], self.names)
            for part in self.parts[symbol]:
                pair = _with_pointers(part, target, form)
                lowered[tvm.ir.GlobalVar(part.symbol)], kernels[part.symbol] = pair
        self.kernels |= kernels
        built = tvm.get_global_func(f"target.build.{target.kind.name}")(
            tvm.tirx.transform.LowerIntrin()(tvm.IRModule(lowered)), target
        )
        if form == "c":
            self.code[f"{file}.c"] = _c_source(built.inspect_source(), kernels).encode()
            return
        with object_folder() as folder:
            built.write_to_file(str(folder / "kernels.o"), "o")
            self.code[f"{file}.o"] = (folder / "kernels.o").read_bytes()


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


@dataclass(frozen=True)
class _Part:
    """Statements of a function after all passes, which become one kernel.

    Attributes:
        function: the function.
        symbol: name of the kernel.
        params: the buffers of the function that it reads, then those that it writes.
        count: how many it reads.
        body: the statements.
    """

    function: PrimFunc
    symbol: str
    params: tuple[Any, ...]
    count: int
    body: Stmt


def _parts(function: PrimFunc, symbol: str, is_constant: Sequence[bool], names: Names) -> list[_Part]:
    """Divide a function where buffers end before others begin, so that these can lie in the same memory.

    The input of a convolution, for example, ends when it is copied with padding around it.

    Args:
        function: the function after all passes.
        symbol: its name.
        is_constant: whether each parameter that it reads is a constant.
        names: names of kernels, to which those of parts are added.

    Returns:
        One part or more.
    """
    tirx = import_tvm().tirx
    params, count = list(function.params), len(is_constant)
    whole = _Part(function, symbol, tuple(params), count, function.body)
    statements = list(function.body.seq) if isinstance(function.body, tirx.SeqStmt) else []
    begins = {one.buffer: one for one in statements if isinstance(one, tirx.AllocBuffer)}
    views = [one for one in statements if isinstance(one, tirx.DeclBuffer)]
    loops = [one for one in statements if not isinstance(one, tirx.AllocBuffer | tirx.DeclBuffer)]
    if len(loops) < 2 or not all(isinstance(one, tirx.For) for one in loops):
        return [whole]
    owners = {buffer: buffer for buffer in (*params, *begins)}
    for view in views:
        source = [one for one in _variables(view.data) if one in owners]
        if len(source) != 1:
            return [whole]
        owners[view.buffer] = owners[source[0]]
    stores = [_written(loop) for loop in loops]
    if None in stores:
        return [whole]
    used = [{owners[one] for one in _variables(loop) if one in owners} for loop in loops]
    written = [{owners[one] for one in found or () if one in owners} for found in stores]
    constants = {param for param, known in zip(params, is_constant, strict=False) if known}

    def is_border(at: int) -> bool:
        before, after = set().union(*used[:at]), set().union(*used[at:])
        if not before.isdisjoint(set().union(*written[at:])) or any(one.scope() == "local" for one in before & after):
            return False
        ended, begun = (
            sum(_tensor_of(one).nbytes for one in buffers) for buffers in (before - after - constants, after - before)
        )
        return min(ended, begun) >= _LEAST_SHARED

    borders = [0, *filter(is_border, range(1, len(loops))), len(loops)]
    if len(borders) == 2:
        return [whole]
    parts: list[_Part] = []
    for number, (first, last) in enumerate(pairwise(borders)):
        inside = set().union(*used[first:last])
        outside = {*params}.union(*used[:first], *used[last:])
        shared = [one for one in owners if owners[one] is one and one in inside & outside]
        stored = set().union(*written[first:last])
        reads = [one for one in shared if one not in stored]
        own = [begins[one] for one in begins if one in inside - outside]
        seen = [view for view in views if owners[view.buffer] in inside]
        inner = [*own, *seen, *loops[first:last]]
        body = tirx.SeqStmt(inner) if len(inner) > 1 else inner[0]
        ordered = (*reads, *(one for one in shared if one in stored))
        parts.append(_Part(function, names.fresh(f"{symbol}_{number}"), ordered, len(reads), body))
    return parts


def _variables(node: Any) -> list[Any]:  # noqa: ANN401
    """Return the variables of a statement or expression; buffers are variables, too."""
    from tvm_ffi import structural_walk

    found: list[Any] = []
    structural_walk(node, (import_tvm().ir.Var, found.append))
    return found


def _written(statement: Stmt) -> list[Any] | None:
    """Return the buffers that a statement stores to; None if it takes the address of one."""
    from tvm_ffi import structural_walk

    tvm = import_tvm()
    found: list[Any] = []
    addresses: list[Expr] = []

    def called(call: Expr) -> None:
        is_buffer = any(isinstance(one, tvm.ir.Var) and hasattr(one, "scope") for one in call.args)
        if is_buffer or getattr(call.op, "name", "") == "tirx.address_of":
            addresses.append(call)

    structural_walk(
        statement, [(tvm.tirx.BufferStore, lambda store: found.append(store.buffer)), (tvm.ir.Call, called)]
    )
    return None if addresses else found


def _with_pointers(
    part: _Part,
    target: Any,  # noqa: ANN401
    form: CodeForm,
) -> tuple[PrimFunc, Kernel]:
    """Return a function that takes pointers to its buffers and to those that it allocates, and returns a status.

    Args:
        part: what becomes the function.
        target: TVM's target.
        form: the kind of code.
    """
    from tvm_ffi import structural_map

    tvm = import_tvm()
    ir, tirx = tvm.ir, tvm.tirx
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

    params, count, symbol = list(part.params), part.count, part.symbol
    declared = [tirx.DeclBuffer(buffer, data=pointer(buffer)) for buffer in params]
    changes = [(tirx.AllocBuffer, allocated), *_without_runtime(form, pointers)]
    body = part.body
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


def _without_runtime(form: CodeForm, pointers: Mapping[Any, Any]) -> list[tuple[type, Callable[[Any], Any]]]:
    """Return changes of a body, after which it takes pointers and calls no runtime of TVM.

    Args:
        form: the kind of code.
        pointers: the pointer of each buffer that has one; those of buffers that the body allocates are added meanwhile.
    """
    tvm = import_tvm()
    ir, tirx = tvm.ir, tvm.tirx
    data = ir.Op.get("tirx.buffer_data")

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

    def asserted(stmt: Stmt) -> Stmt:  # the message would need TVM's runtime
        code = tirx.Return(tirx.IntImm("int32", _OUT_OF_BOUNDS))
        return tirx.IfThenElse(stmt.condition, tirx.Evaluate(tirx.const(0, "int32")), code)

    def serial(stmt: Stmt) -> Stmt:  # parallel loops would start threads of TVM's runtime
        if form == "object" and stmt.kind != tirx.ForKind.PARALLEL:
            return stmt
        return tirx.For(stmt.loop_var, stmt.min, stmt.extent, tirx.ForKind.SERIAL, stmt.body, step=stmt.step)

    return [(ir.Call, called), (tirx.For, serial), (tirx.AssertStmt, asserted)]


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
