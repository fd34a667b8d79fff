"""Writer of TVM modules: the inverse of `reader.py`, and the way to TVM for other functions with Relax operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tvmtarget.errors import ModelError, TvmTargetError, did_you_mean, first_line
from tvmtarget.ir.entry_function import OWN_NAME
from tvmtarget.ir.function import Call, Constant, Function, Value, callees_first, callees_of
from tvmtarget.ir.relax.attributes import node_of, read_blob, write_any
from tvmtarget.ir.relax.blocks import RESULT, blocks_of, is_inline
from tvmtarget.ir.relax.calls import CALLEE, TYPED
from tvmtarget.ir.relax.code import read_code
from tvmtarget.ir.relax.reader import GLOBALS
from tvmtarget.ir.relax.syntax import Reader, tvm_dtype
from tvmtarget.ir.relax.tvm_library import the_tvm
from tvmtarget.ir.types import OpaqueType, TensorType, numpy_dtype
from tvmtarget.target.problems import shown

__all__ = ["write_tvm_module"]

_PREFIX = "tvm."  # prefix of attributes that record TVM's form; they are not attributes in TVM
_NOT_WRITTEN = ("role", OWN_NAME)  # attributes of functions that have no meaning in TVM


def write_tvm_module(functions: Sequence[Function], attrs: Mapping[str, Any]) -> Any:
    """Write a TVM module.

    Args:
        functions: functions of the module.
        attrs: attributes of the module.

    Returns:
        A `tvm.IRModule`.

    Raises:
        ModelError: a function or operation has no form in Relax; the message names it.
    """
    return _ModuleWriter(functions, attrs).write()


class _ModuleWriter:
    def __init__(self, functions: Sequence[Function], attrs: Mapping[str, Any]) -> None:
        self.tvm = the_tvm()
        self.functions = {function.name: function for function in functions}
        self.attrs = attrs
        infos = attrs.get(GLOBALS) or {}
        self.infos = {key: [read_blob(info) for info in infos[key]] for key in infos}
        self.vdevices = self.infos.get("vdevice", [])
        self.variables = {name: self.tvm.ir.GlobalVar(name) for name in self.functions}
        self.symbols: dict[str, Any] = {}

    def write(self) -> Any:
        written: dict[Any, Any] = {}
        for function in self.functions.values():
            for callee in sorted(callees_of(function) - self.functions.keys()) if function.code is None else ():
                raise ModelError(f"function {function.name!r} calls {callee!r}{did_you_mean(callee, self.functions)}")
        # Callees first, since the type of a call is that of its callee. The order of functions enters TVM's JSON and
        # the keys of compiled code: it must not change.
        for function in callees_first(self.functions.values(), self.functions, descending=True):
            name = function.name
            made = self._code(function) if function.code is not None else _FunctionWriter(self, function).write()
            written[self.variables[name]] = made
            if not made.ty.is_missing():
                self.tvm.relax.expr._update_type(self.variables[name], made.ty)
        module_attrs = {
            name.removeprefix(_PREFIX): write_any(value)
            for name, value in self.attrs.items()
            if name.startswith(_PREFIX) and name != GLOBALS
        }
        return self.tvm.IRModule(written, attrs=module_attrs, global_infos=self.infos)

    def _code(self, function: Function) -> Any:
        return read_code(function, self.variables)


class _FunctionWriter:
    """Writes a function or a branch; a nested one sees the values of `outer`, the writer of the enclosing function."""

    def __init__(self, module: _ModuleWriter, function: Function, outer: _FunctionWriter | None = None) -> None:
        self.module = module
        self.tvm = module.tvm
        self.function = function
        self.outer = outer
        shared = module.symbols if outer is None else outer.reader.symbols
        # An external function is compiled alone, with symbolic variables of its own.
        symbols = {} if function.attr("tvm.own_symbols") else shared
        self.reader: Reader = Reader(module.vdevices, module.variables, symbols)
        self.values: dict[str, Any] = {} if outer is None else dict(outer.values)
        self.values |= {constant.name: self._constant(constant) for constant in function.constants}

    def write(self) -> Any:
        """Return the function with its parameters and attributes."""
        function = self.function
        params = [self._variable(param, is_hidden=False) for param in function.params]
        body = self.sequence()
        attrs = {name: write_any(value) for name, value in function.attrs if not name.startswith(_PREFIX)}
        attrs = {name: value for name, value in attrs.items() if name not in _NOT_WRITTEN}
        returns = function.attr("tvm.returns")
        result = self.reader.type(returns) if returns is not None else body.body.ty
        is_pure = not function.attr("tvm.impure")
        return self.tvm.relax.Function(params, body, result, is_pure, self.tvm.ir.make_node("ir.DictAttrs", **attrs))

    def sequence(self, *, is_branch: bool = False) -> Any:
        """Return a SeqExpr of the blocks and the result."""
        relax = self.tvm.relax
        layout = blocks_of(self.function, is_branch=is_branch)
        is_output = iter([is_out for block in layout for is_out in block.outputs])
        bindings: list[Any] = []
        result: Any = None
        for call in self.function.body:
            try:
                if is_inline(self.function, call):
                    self.values[call.outputs[0].name] = self._value(call, None)
                else:
                    bindings += self._bindings(call, is_output)
            # The module may come from an untrusted file, where attributes, operands and bodies can be missing.
            except (TvmTargetError, LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
                malformed = f"operands, attributes or bodies are malformed: {first_line(error)}"
                problems = error.problems if isinstance(error, TvmTargetError) else (malformed,)
                where = f"op {call.source or call.op!r} of function {self.function.name!r}"
                raise ModelError(*[f"{where}: {problem}" for problem in problems]) from error
        result = self._result(bindings, is_output)
        blocks, first = [], 0
        for block in layout:
            kind = relax.DataflowBlock if block.is_dataflow else relax.BindingBlock
            blocks.append(kind(bindings[first : first + len(block.outputs)]))
            first += len(block.outputs)
        sequence = relax.SeqExpr(blocks, result)
        if sequence.ty.is_missing():
            relax.expr._update_type(sequence, result.ty)
        return sequence

    def _result(self, bindings: list[Any], is_output: Iterator[bool]) -> Any:
        """Return the expression of the results; a tuple may take a last binding."""
        form = str(self.function.attr(RESULT) or "")
        results = [self.values[name] for name in self.function.results]
        if not form and len(results) == 1:
            return results[0]
        packed = self.tvm.ir.Tuple(results)
        if form == "tuple":
            return packed
        if form and not form.startswith("tuple "):
            where = f"function {self.function.name!r}"
            raise ModelError(f"attribute {RESULT!r} of {where} is 'tuple' or 'tuple NAME', not {shown(form)}")
        is_out = next(is_output)
        var = self._new(form.removeprefix("tuple ") or "gv", packed.ty, is_hidden=not is_out)
        bindings.append(self.tvm.relax.VarBinding(var, packed))
        return var

    def _bindings(self, call: Call, is_output: Iterator[bool]) -> list[Any]:
        """Return the bindings of a call; `is_output` says of each whether its variable is visible outside its block."""
        relax, ir = self.tvm.relax, self.tvm.ir
        is_out = next(is_output)
        if len(call.outputs) != 1:
            types = [self._type(output) for output in call.outputs]
            value = self._value(call, ir.TupleType(types))
            packed = self._new(call.source, value.ty, is_hidden=not is_out)
            bindings = [relax.VarBinding(packed, value)]
            for index, output in enumerate(call.outputs):
                if output.name:
                    is_out = next(is_output)
                    field = self._variable(output, is_hidden=not is_out)
                    bindings.append(relax.VarBinding(field, ir.TupleGetItem(packed, index)))
            return bindings
        output = call.outputs[0]
        type_ = self._type(output)
        if call.op == "relax.match_cast":
            value = self._arguments(call)[0]
            text = call.attr("tvm.type")
            type_ = self.reader.type(str(text)) if text is not None else type_
            return [relax.MatchCast(self._variable(output, is_hidden=not is_out), value, type_)]
        value = self._value(call, type_)
        if call.attr("tvm.cast"):
            return [relax.MatchCast(self._variable(output, is_hidden=not is_out), value, type_)]
        return [relax.VarBinding(self._variable(output, is_hidden=not is_out), value)]

    def _value(self, call: Call, type_: Any) -> Any:
        """Return the expression of a call, with a type if that does not follow from it."""
        relax, ir = self.tvm.relax, self.tvm.ir
        text = call.attr("tvm.value_type")
        type_ = self.reader.type(str(text)) if text is not None else type_
        arguments = self._arguments(call)
        match call.op:
            case "relax.value":
                return arguments[0]
            case "relax.Tuple":
                return ir.Tuple(arguments)
            case "relax.TupleGetItem":
                return ir.TupleGetItem(arguments[0], call.attr("index"))
            case "relax.If":
                inner = {
                    label: _FunctionWriter(self.module, region, self).sequence(is_branch=True)
                    for label, region in call.regions
                }
                value = relax.If(arguments[0], inner["then"], inner["else"])
                relax.expr._update_type(value, type_)
                return value
            case "relax.Function":
                return _FunctionWriter(self.module, call.regions[0][1], self).write()
        return self._call(call, arguments, type_)

    def _call(self, call: Call, arguments: list[Any], type_: Any) -> Any:
        ir = self.tvm.ir
        fields: dict[str, Any] = {name: value for name, value in call.attrs if not name.startswith(_PREFIX)}
        if call.op == "relax.to_vdevice":
            fields["dst_vdevice"] = self._vdevice(str(fields.get("dst_vdevice")))
        key, is_typed = "", False
        if call.callee is not None:
            operator = self.module.variables[call.callee]
            if self.module.functions[call.callee].code is not None:
                arguments, is_typed = [operator, ir.Tuple(arguments)], True
                operator = ir.Op.get("relax.call_tir")
        elif call.op == "relax.ExternFunc":
            operator = self.tvm.relax.ExternFunc(str(call.attr(CALLEE)))
        elif call.op == "relax.Call":
            operator, arguments = arguments[0], arguments[1:]
        else:
            operator = self._operator(call.op)
            key, is_typed = str(operator.attrs_type_key), call.op in TYPED
        stated_key = call.attr("tvm.attrs")
        key = str(stated_key) if stated_key is not None else key
        attrs = node_of(key, fields) if key else None
        types = call.attr("tvm.types")
        ty_args = [type_] if is_typed else []
        if isinstance(types, tuple):
            ty_args = [self.reader.type(str(text)) for text in types]
        return ir.Call(operator, arguments, attrs, ty_args, ret_ty=type_)

    def _operator(self, name: str) -> Any:
        known = self.tvm.ir.Op.list_op_names()
        if name not in known:
            raise ModelError(f"{name!r} is not a Relax operator{did_you_mean(name, map(str, known))}")
        return self.tvm.ir.Op.get(name)

    def _arguments(self, call: Call) -> list[Any]:
        operands = [self.values[name] for name in call.inputs]
        text = call.attr("tvm.args")
        if not isinstance(text, str):
            return operands
        return list(self.reader.expression(f"({text},)", operands).fields) if text else []

    def _type(self, value: Value) -> Any:
        relax = self.tvm.relax
        match value.type:
            case OpaqueType(name=text):
                return self.reader.type(text)
            case TensorType(dtype=dtype, shape=shape):
                vdevice = self._vdevice(value.scope)
                name = tvm_dtype(dtype)
                if shape is None or None in shape:
                    return relax.TensorType(None, name, vdevice, -1 if shape is None else len(shape))
                dims = [self.reader.scalar(str(dim)) for dim in shape]
                return relax.TensorType(relax.ShapeExpr(dims), name, vdevice)
            case None:
                return relax.AnyType()
        raise ModelError(f"value {value.name!r} is {value.type}, which Relax does not have")

    def _vdevice(self, scope: str) -> Any:
        kind, _, index = scope.partition(":")
        if kind != "vdevice" or not index.isdecimal():
            return None
        if int(index) >= len(self.module.vdevices):
            raise ModelError(f"there is no virtual device {index}; the module has {len(self.module.vdevices)}")
        return self.module.vdevices[int(index)]

    def _variable(self, value: Value, *, is_hidden: bool) -> Any:
        self.values[value.name] = self._new(value.name, self._type(value), is_hidden=is_hidden)
        return self.values[value.name]

    def _new(self, name: str, type_: Any, *, is_hidden: bool) -> Any:
        if isinstance(type_, self.tvm.ir.PrimType) and not is_hidden:
            return self.reader.symbol(name, str(type_.dtype))
        kind = self.tvm.relax.DataflowVar if is_hidden else self.tvm.relax.Var
        return kind(name, type_)

    def _constant(self, constant: Constant) -> Any:
        array = np.asarray(constant.data, numpy_dtype(constant.type.dtype), order="C")
        return self.tvm.relax.const(self.tvm.runtime.tensor(array))
