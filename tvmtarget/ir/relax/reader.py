"""Reader of TVM modules: each Relax binding becomes a call, other information an attribute `tvm.*`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvmtarget.errors import ModelError
from tvmtarget.ir.function import Attribute, Call, Constant, Function, Value
from tvmtarget.ir.names import Names
from tvmtarget.ir.relax.attributes import fields_of, write_blob
from tvmtarget.ir.relax.blocks import BLOCKS, INLINE, RESULT, BindingBlock, canonical_blocks
from tvmtarget.ir.relax.calls import CALLEE, TYPED, CallAnalysis, buffer_params, is_pure, is_tensor_constant
from tvmtarget.ir.relax.code import code_function, is_prim, symbols_of
from tvmtarget.ir.relax.syntax import Printer, Symbols, dtype_name, symbols_in
from tvmtarget.ir.relax.tvm_library import are_same, checked_module, the_tvm
from tvmtarget.ir.types import OpaqueType, TensorType, Type, dtype_of

__all__ = ["read_tvm_module"]

GLOBALS = "tvm.global_infos"  # attribute of a module: its global infos, such as virtual devices
_ATTRS_KEY = "tvm.attrs"  # attribute of a call: type key of its attribute node, if that is not the operator's


def read_tvm_module(module: Any) -> tuple[tuple[Function, ...], dict[str, Any]]:
    """Read a TVM module.

    Args:
        module: a `tvm.IRModule`.

    Returns:
        Functions, `main` first and then by name, and attributes of the module.

    Raises:
        ModelError: something cannot be represented; the message names function and binding.
    """
    return _ModuleReader(checked_module(module)).read()


class _ModuleReader:
    def __init__(self, module: Any) -> None:
        self.tvm = the_tvm()
        self.module = module
        self.vdevices = list(module.global_infos.get("vdevice", []))
        self.symbols = Symbols()
        self.calls = CallAnalysis(module)
        self.symbols_called = symbols_of({str(var.name_hint): module[var] for var in module.get_global_vars()})

    def read(self) -> tuple[tuple[Function, ...], dict[str, Any]]:
        named = sorted(((str(var.name_hint), var) for var in self.module.get_global_vars()), key=lambda one: one[0])
        # Sorted by name, since the text form and digests depend on the order; `main` comes first.
        named.sort(key=lambda one: one[0] != "main")
        functions = tuple(self._function(name, var) for name, var in named)
        attrs = {f"tvm.{name}": value for name, value in _located(fields_of, self.module.attrs, "the module")}
        infos = {
            str(key): tuple(_located(write_blob, info, f"global_infos[{str(key)!r}]") for info in infos)
            for key, infos in self.module.global_infos.items()
        }
        return functions, attrs | ({GLOBALS: infos} if infos else {})

    def _function(self, name: str, var: Any) -> Function:
        function = self.module[var]
        if isinstance(function, self.tvm.relax.Function):
            return _FunctionReader(self, name).function(
                function, is_result_unpacked=self.calls.is_result_unpacked(name)
            )
        return self._code(name, function)

    def _code(self, name: str, function: Any) -> Function:
        """Read a function of code; its last buffers are results if all calls of it agree on their number."""
        where = f"function {name!r}"
        buffers = buffer_params(function) if is_prim(function) else []
        printer = Printer(Symbols(), (), lambda _: None)
        names = Names()
        values = [Value(names.fresh(str(buffer.name)), _buffer_type(buffer.ty, printer)) for buffer in buffers]
        first = len(values) - (self.calls.results(name) or 0)
        params, results = tuple(values[:first]), tuple(values[first:])
        made: Function = _located(
            lambda code: code_function(name, code, params, results, self.symbols_called), function, where
        )
        return made


def _located(read: Any, value: Any, where: str) -> Any:
    try:
        return read(value) if value is not None else ()
    except ModelError as error:
        raise ModelError(*[f"{where}: {problem}" for problem in error.problems]) from error


def _buffer_type(buffer: Any, printer: Printer) -> Type:
    dtype = dtype_name(str(buffer.dtype))
    return None if dtype is None else TensorType(dtype, tuple(_dim(dim, printer) for dim in buffer.shape))


def _dim(value: Any, printer: Printer) -> int | str | None:
    if type(value).__name__ == "IntImm" and str(value.ty.dtype) == "int64":
        return int(value.value)
    try:
        text = printer.scalar(value)
    except ModelError:
        return None
    return int(value.value) if text.startswith("Imm") else text


@dataclass(frozen=True)
class _Arguments:
    inputs: tuple[str, ...]
    text: str
    is_plain: bool


class _FunctionReader:
    """Reads a function or a branch; a nested one shares the names of `outer`, the reader of the enclosing function."""

    def __init__(self, module: _ModuleReader, name: str, outer: _FunctionReader | None = None) -> None:
        self.module = module
        self.name = name
        self.tvm = module.tvm
        self.names: Names = Names() if outer is None else outer.names
        self.values: dict[Any, str] = {} if outer is None else outer.values
        self.constants: dict[Any, str] = {} if outer is None else outer.constants
        self.held: dict[str, Constant] = {} if outer is None else outer.held
        self.known: set[str] = set() if outer is None else outer.known  # symbols in the shapes of parameters
        self.cast: dict[str, str] = {} if outer is None else outer.cast  # match_cast value that defines each symbol
        self.is_nested = outer is not None

    def function(self, function: Any, *, is_result_unpacked: bool) -> Function:
        """Read a function with its parameters, types and attributes."""
        params = []
        for param in function.params:
            with self._at(param):
                params.append(self._define(param, param.ty))
        shapes = [param.type.shape or () for param in params if isinstance(param.type, TensorType)]
        self.known = {dim for shape in shapes for dim in shape if isinstance(dim, str)}
        read = self._sequence(function.body, is_result_unpacked=is_result_unpacked)
        attrs = [(str(key), value) for key, value in _located(fields_of, function.attrs, f"function {self.name!r}")]
        attrs += [("tvm.impure", True)] * (not function.is_pure)
        if not are_same(function.ret_ty, function.body.body.ty):
            attrs.append(("tvm.returns", self._printer([]).type(function.ret_ty)))
        return read.replace(params=tuple(params), attrs=(*attrs, *read.attrs))

    def _sequence(self, sequence: Any, *, is_result_unpacked: bool = False, is_branch: bool = False) -> Function:
        """Read the blocks and the result of a function or a branch."""
        calls: list[Call] = []
        blocks: list[BindingBlock] = []
        for block in sequence.blocks:
            calls += self._block(block.bindings)
            is_dataflow = isinstance(block, self.tvm.relax.DataflowBlock)
            hidden = self.tvm.relax.DataflowVar
            blocks.append(BindingBlock(is_dataflow, tuple(not isinstance(one.var, hidden) for one in block.bindings)))
        last = sequence.blocks[-1].bindings[-1] if blocks and blocks[-1].outputs else None
        results, attrs = self._result(sequence.body, last, calls, is_result_unpacked=is_result_unpacked)
        constants = () if self.is_nested else tuple(self.held.values())
        read = Function(self.name, (), tuple(calls), results, constants, attrs=attrs)
        if canonical_blocks(read, is_branch=is_branch) != tuple(blocks):
            attrs = (*attrs, (BLOCKS, tuple(map(str, blocks))))
        return read.replace(attrs=attrs)

    def _result(
        self,
        body: Any,
        last: Any,
        calls: list[Call],
        *,
        is_result_unpacked: bool,
    ) -> tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]:
        """Return the results and the attribute for their form; a tuple built only to be returned is several results."""
        fields = self.module.calls.returned_fields(body, last)
        if is_result_unpacked and fields is not None:
            results = tuple(self._operand(field) for field in fields)
            if last is not None and body.same_as(last.var):
                return results, ((RESULT, f"tuple {calls.pop().outputs[0].name}"),)
            return results, ((RESULT, "tuple"),)
        if isinstance(body, self.tvm.ir.Var) and body in self.values:
            return (self.values[body],), ()
        arguments = self._arguments([body])
        value = self._new_value("result", body.ty)
        attrs: tuple[tuple[str, Attribute], ...] = (("tvm.args", arguments.text), (INLINE, True))
        calls.append(Call("relax.value", arguments.inputs, (value,), attrs, source=value.name))
        return (value.name,), ()

    def _block(self, bindings: Sequence[Any]) -> Iterator[Call]:
        """Yield the calls of a block; a call whose tuple is only unpacked has several results."""
        index = 0
        while index < len(bindings):
            binding = bindings[index]
            unpacking = self.module.calls.unpacking_of(bindings, index)
            with self._at(binding.var):
                call = self._binding(binding) if unpacking is None else self._unpacked(binding, unpacking)
            yield call
            index += 1 if unpacking is None else 1 + len(unpacking)

    def _at(self, var: Any) -> _LocatedErrors:
        return _LocatedErrors(self.name, str(var.name))

    def _unpacked(self, binding: Any, unpacking: Sequence[Any]) -> Call:
        """Read a call with several results, and the bindings that unpack its tuple."""
        source = self.names.fresh(str(binding.var.name))
        call = self._call(binding.value, source, binding.var.ty)
        by_index = {int(one.value.index): one.var for one in unpacking}
        outputs = [
            self._define(by_index[index], field) if index in by_index else self._typed("", field)
            for index, field in enumerate(binding.var.ty.fields)
        ]
        return replace(call, outputs=tuple(outputs))

    def _binding(self, binding: Any) -> Call:
        relax, ir = self.tvm.relax, self.tvm.ir
        value, var = binding.value, binding.var
        if isinstance(binding, relax.MatchCast) and isinstance(value, ir.Call):
            call = self._call(value, "", var.ty)
            output = self._cast(binding)
            return replace(call, outputs=(output,), attrs=(*call.attrs, ("tvm.cast", True)), source=output.name)
        if isinstance(binding, relax.MatchCast):
            arguments = self._arguments([value])
            attrs: list[tuple[str, Any]] = [("tvm.args", arguments.text)] * (not arguments.is_plain)
            if not are_same(binding.ty, var.ty):
                attrs.append(("tvm.type", self._printer([]).type(binding.ty)))
            output = self._cast(binding)
            return Call("relax.match_cast", arguments.inputs, (output,), tuple(attrs), source=output.name)
        match value:
            case relax.If():
                return self._branches(value, var)
            case relax.Function():
                inner = _FunctionReader(self.module, "function", self).function(value, is_result_unpacked=False)
                return self._simple_call("relax.Function", (), [], var, regions=(("function", inner),))
            case ir.TupleGetItem():
                arguments = self._arguments([value.tuple_value])
                if arguments.is_plain:
                    attrs = [("index", int(value.index)), *self._value_type(value, var.ty)]
                    return self._simple_call("relax.TupleGetItem", arguments.inputs, attrs, var)
            case ir.Tuple():
                arguments = self._arguments(value.fields)
                if arguments.is_plain:
                    return self._simple_call("relax.Tuple", arguments.inputs, self._value_type(value, var.ty), var)
            case ir.Call() if not ir.is_prim_expr(value) or isinstance(value.op, ir.GlobalVar):
                call = self._call(value, "", var.ty)
                output = self._define(var, var.ty)
                return replace(call, outputs=(output,), source=output.name)
        arguments = self._arguments([value])
        attrs = [("tvm.args", arguments.text)] * (not arguments.is_plain)
        return self._simple_call("relax.value", arguments.inputs, [*attrs, *self._value_type(value, var.ty)], var)

    def _cast(self, binding: Any) -> Value:
        """Define the variable of a match_cast, and the symbols that are dimensions of its type by themselves."""
        output = self._define(binding.var, binding.var.ty)
        dims = (output.type.shape or ()) if isinstance(output.type, TensorType) else ()
        for dim in dims:
            if isinstance(dim, str) and dim.isidentifier() and dim not in self.known:
                self.cast.setdefault(dim, output.name)
        return output

    def _simple_call(
        self,
        op: str,
        inputs: tuple[str, ...],
        attrs: Sequence[tuple[str, Attribute]],
        var: Any,
        *,
        regions: tuple[tuple[str, Function], ...] = (),
    ) -> Call:
        has_effect = any(call.has_effect for _, region in regions for call in region.body)
        output = self._define(var, var.ty)
        return Call(op, inputs, (output,), tuple(attrs), regions, None, output.name, has_effect)

    def _branches(self, value: Any, var: Any) -> Call:
        arguments = self._arguments([value.cond])
        attrs: list[tuple[str, Any]] = [("tvm.args", arguments.text)] * (not arguments.is_plain)
        regions = tuple(
            (label, _FunctionReader(self.module, label, self)._sequence(branch, is_branch=True))
            for label, branch in (("then", value.true_branch), ("else", value.false_branch))
        )
        attrs += self._value_type(value, var.ty)
        return self._simple_call("relax.If", arguments.inputs, attrs, var, regions=regions)

    def _call(self, call: Any, source: str, type_: Any) -> Call:
        """Read a call without its results."""
        ir, relax = self.tvm.ir, self.tvm.relax
        attrs: list[tuple[str, Any]] = []
        operator, args = call.op, list(call.args)
        match operator:
            case ir.Op():
                op = str(operator.name)
                if op == "relax.call_tir" and self.module.calls.results(str(args[0].name_hint)) is not None:
                    op, args = f"@{args[0].name_hint}", list(args[1].fields)
                attrs += self._fields(call.attrs, str(operator.attrs_type_key))
                if op == "relax.to_vdevice":
                    attrs = [("dst_vdevice", f"vdevice:{self._printer([]).vdevice(call.attrs.dst_vdevice)}")]
            case ir.GlobalVar() if not self.module.calls.is_code(str(operator.name_hint)):
                op = f"@{operator.name_hint}"
                attrs += self._fields(call.attrs, "")
            case relax.ExternFunc():
                op = "relax.ExternFunc"
                attrs += [(CALLEE, str(operator.global_symbol)), *self._fields(call.attrs, "")]
            case _:
                op, args = "relax.Call", [operator, *args]
                attrs += self._fields(call.attrs, "")
        arguments = self._arguments(args)
        is_function = isinstance(operator, ir.GlobalVar) and op.startswith("@")
        if is_function and not arguments.is_plain:  # operands without a name in the IR, such as shapes
            op, arguments = "relax.Call", self._arguments([operator, *args])
        if not arguments.is_plain:
            attrs.append(("tvm.args", arguments.text))
        types = tuple(self._printer([]).type(one) for one in call.ty_args)
        is_typed = operator.name in TYPED if isinstance(operator, ir.Op) else False
        if types != ((self._printer([]).type(call.ty),) if is_typed else ()):
            attrs.append(("tvm.types", types))
        attrs += self._value_type(call, type_)
        return Call(op, arguments.inputs, (), tuple(attrs), source=source, has_effect=not is_pure(call))

    def _fields(self, attrs: Any, expected: str) -> list[tuple[str, Any]]:
        key = "" if attrs is None else str(type(attrs).__tvm_ffi_type_info__.type_key)
        fields = [] if attrs is None else list(fields_of(attrs))
        return fields if key == expected else [(_ATTRS_KEY, key), *fields]

    def _value_type(self, value: Any, expected: Any) -> list[tuple[str, Any]]:
        """Return an attribute with the type of a value if that differs from the type of its variable."""
        if are_same(value.ty, expected):
            return []
        return [("tvm.value_type", self._printer([]).type(value.ty))]

    def _arguments(self, args: Sequence[Any]) -> _Arguments:
        inputs: list[str] = []
        printer = self._printer(inputs)
        texts = [printer.expression(arg) for arg in args]
        is_plain = texts == [f"_{index}" for index in range(len(texts))]
        if not is_plain:  # a use of a symbol is a use of the match_cast that defines it
            words = {word for text in texts for word in symbols_in(text)}
            inputs += [value for name, value in self.cast.items() if name in words and value not in inputs]
        return _Arguments(tuple(inputs), ", ".join(texts), is_plain)

    def _printer(self, inputs: list[str]) -> Printer:
        def number(expr: Any) -> int | None:
            if not self._is_value(expr) and not is_tensor_constant(expr):
                return None
            inputs.append(self._operand(expr))
            return len(inputs) - 1

        return Printer(self.module.symbols, self.module.vdevices, number)

    def _is_value(self, expr: Any) -> bool:
        return isinstance(expr, self.tvm.ir.Var) and expr in self.values

    def _operand(self, expr: Any) -> str:
        return self.values[expr] if self._is_value(expr) else self._constant(expr)

    def _constant(self, expr: Any) -> str:
        if expr not in self.constants:
            name = self.names.fresh("constant")
            tensor = expr.value
            array: np.ndarray[Any, Any] = np.asarray(_elements(tensor))
            type_ = TensorType(dtype_of(array.dtype), array.shape)
            expected = self.tvm.relax.TensorType(list(array.shape), str(tensor.dtype))
            if not are_same(expr.ty, expected) or dtype_name(str(tensor.dtype)) != type_.dtype:
                raise ModelError(f"a constant of type {expr.ty} is not supported; state just shape and element type")
            self.held[name] = Constant(name, type_, array)
            self.constants[expr] = name
        return self.constants[expr]

    def _define(self, var: Any, type_: Any) -> Value:
        ir = self.tvm.ir
        own = self.module.symbols.name(var) if isinstance(type_, ir.PrimType) else str(var.name)
        value = self._new_value(own, type_)
        self.values[var] = value.name
        return value

    def _new_value(self, name: str, type_: Any) -> Value:
        return self._typed(self.names.fresh(name or "v"), type_)

    def _typed(self, name: str, type_: Any) -> Value:
        printer = self._printer([])
        if isinstance(type_, self.tvm.relax.TensorType) and type_.dtype is not None:
            dtype = dtype_name(str(type_.dtype.dtype))
            dims: tuple[int | str | None, ...] | None = None
            if type_.shape is not None and isinstance(type_.shape, self.tvm.relax.ShapeExpr):
                dims = tuple(_exact_dim(dim, printer) for dim in type_.shape.values)
            elif type_.shape is None and type_.ndim >= 0:
                dims = (None,) * int(type_.ndim)
            if dtype is not None and (dims or type_.shape is None or not type_.shape.values):
                scope = "" if type_.vdevice is None else f"vdevice:{printer.vdevice(type_.vdevice)}"
                return Value(name, TensorType(dtype, dims), scope)
        return Value(name, OpaqueType(printer.type(type_)))


def _exact_dim(dim: Any, printer: Printer) -> int | str:
    text = printer.scalar(dim)
    return int(text) if text.isdecimal() else text


def _elements(tensor: Any) -> Any:
    """Return the elements of a tensor on the CPU, without a copy if numpy has their type."""
    try:
        array = np.from_dlpack(tensor)
    except (TypeError, RuntimeError, BufferError, ValueError):
        array = tensor.numpy()
    return array


class _LocatedErrors:
    """Context manager that adds function and binding to the message of a ModelError."""

    def __init__(self, function: str, binding: str) -> None:
        self._text = f"binding {binding!r} of function {function!r}"

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, ModelError) and not any("binding " in problem for problem in error.problems):
            raise ModelError(*[f"{self._text}: {problem}" for problem in error.problems]) from error
