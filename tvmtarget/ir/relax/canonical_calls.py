"""Canonicalization of calls in Relax functions, so that they can be inlined and partitioned.

TVM writes what a pattern matched as a local function with the attribute `Composite`, passes symbolic dimensions as
operands, and lets functions return tuples. Here a local function that is only called becomes a function of the module,
which can be inlined like any other; symbols of a callee become the dimensions that they are in its caller; and a
returned tuple of tensors becomes several results.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from tvmtarget.errors import ModelError
from tvmtarget.ir.function import (
    Attribute,
    Call,
    Constant,
    Function,
    Value,
    callees_of,
    map_calls,
    reachable_functions,
)
from tvmtarget.ir.names import Names
from tvmtarget.ir.relax.blocks import BLOCKS
from tvmtarget.ir.relax.syntax import read_text, rename_symbols, tuple_fields
from tvmtarget.ir.relax.tuples import untuple_results
from tvmtarget.ir.types import OpaqueType, TensorType, Type

__all__ = ["canonicalize_calls", "code_generator"]


def canonicalize_calls(functions: Sequence[Function]) -> tuple[Function, ...]:
    """Replace Relax's forms of calls by plain calls of functions.

    Args:
        functions: all functions of a module; if none has Relax operations, they are returned as they are.

    Returns:
        The functions, with lifted and specialized ones after them.

    Raises:
        ModelError: a function of an external code generator is called with operands that cannot be represented.
    """
    if not any(op.startswith("relax.") for function in functions for op in {call.op for call in function.body}):
        return tuple(functions)
    direct = _ShapeOperandRemover(_lift_composites(functions)).functions()
    called = frozenset[str]().union(*map(callees_of, direct))
    specialized = _SymbolSpecializer(untuple_results(direct)).functions()
    own = {function.name for function in functions}
    roots = [name for name in own if name not in called or name == "main"]
    kept = {
        *reachable_functions(roots, {one.name: one for one in specialized}),
        *(one.name for one in specialized if one.code is not None),
    }
    return tuple(one for one in specialized if one.name in kept)


def code_generator(function: Function) -> str | None:
    """Return the external code generator of a function.

    Args:
        function: the function.

    Returns:
        Its attribute `Codegen`, or the prefix of `Composite` before the dot; None without both.
    """
    codegen, composite = function.attr("Codegen"), function.attr("Composite")
    if isinstance(codegen, str):
        return codegen
    return composite.partition(".")[0] if isinstance(composite, str) and "." in composite else None


def _lift_composites(functions: Sequence[Function]) -> tuple[Function, ...]:
    """Move local functions that are pattern matches and only called to the module."""
    names = Names(function.name for function in functions)
    lifted: list[Function] = []

    def lift(function: Function, around: Mapping[str, Type], constants: Mapping[str, Constant], name: str) -> Function:
        types = {**around, **function.types}
        constants = {**constants, **{one.name: one for one in function.constants}}
        lifted_names: dict[
            str, tuple[str, tuple[str, ...]]
        ] = {}  # by local value: the lifted function and its captures
        body = []
        for call in function.body:
            if call.op == "relax.Function" and _is_composite(function, call):
                (_, region), local = call.regions[0], call.outputs[0].name
                captured = region.captures()
                held = tuple(constants[one] for one in captured if one in constants)
                captures = tuple(one for one in captured if one not in constants)
                new = names.fresh(f"{name}_{local}")
                params = (*region.params, *(Value(one, types[one]) for one in captures))
                attrs = tuple(item for item in region.attrs if item[0] != BLOCKS)
                held = (*held, *region.constants)
                lifted.append(region.replace(name=new, params=params, constants=held, attrs=attrs))
                lifted_names[local] = new, captures
                continue
            if call.op == "relax.Call" and call.inputs and call.inputs[0] in lifted_names:
                new, captures = lifted_names[call.inputs[0]]
                call = replace(call, op=f"@{new}", inputs=(*call.inputs[1:], *captures), attrs=_plain(call.attrs))
            regions = tuple((label, lift(region, types, constants, name)) for label, region in call.regions)
            body.append(replace(call, regions=regions) if regions else call)
        return function.replace(body=tuple(body))

    changed = [lift(function, {}, {}, function.name) for function in functions]
    return (*changed, *lifted)


def _plain(attrs: Sequence[tuple[str, Attribute]]) -> tuple[tuple[str, Attribute], ...]:
    return tuple(item for item in attrs if not item[0].startswith("tvm."))


def _is_composite(function: Function, definition: Call) -> bool:
    """Return whether a local function is a pattern match that is only called, with plain operands."""
    local = definition.outputs[0].name
    if definition.regions[0][1].attr("Composite") is None or local in function.results:
        return False
    readers = [call for call in function.body if local in call.uses()]
    return all(
        call.op == "relax.Call"
        and call.inputs[0] == local
        and local not in call.inputs[1:]
        and call.attr("tvm.args") is None
        for call in readers
    )


class _ShapeOperandRemover:
    """Removes shapes from the operands of calls, and records which dimensions they bind to symbols of the callee."""

    def __init__(self, functions: Sequence[Function]) -> None:
        self._functions = {function.name: function for function in functions}
        self._shapes = {function.name: _shape_params(function) for function in functions}

    def functions(self) -> tuple[Function, ...]:
        """Return all functions with their calls changed."""
        return tuple(self._function(function) for function in self._functions.values())

    def _function(self, function: Function) -> Function:
        indices = self._shapes[function.name]
        params = tuple(param for index, param in enumerate(function.params) if index not in indices)
        types = function.types
        return map_calls(function, lambda call: self._call(call, function.name, types)).replace(params=params)

    def _call(self, call: Call, name: str, types: Mapping[str, Type]) -> Call:
        found = _operands(call)
        if found is None:
            return call
        callee, operands = found
        function = self._functions.get(callee)
        if function is None or function.code is not None or len(operands) != len(function.params):
            return call
        indices = self._shapes[callee]
        symbols: dict[str, str] = {}
        for index in indices:
            symbols |= _shape_symbols(function.params[index], operands[index], types)
        kept = [one for index, one in enumerate(operands) if index not in indices]
        if not all(isinstance(one, str) for one in kept) or not all(symbols.values()):
            generator = code_generator(function)
            if generator is None and not indices:
                return call
            what = f"function {callee!r}" + (f" for code generator {generator!r}" if generator else "")
            raise ModelError(
                f"op {call.source!r} of function {name!r} calls {what} with operands that are not supported; "
                "give it tensors, and shapes of its own symbolic dimensions"
            )
        attrs = (*_plain(call.attrs), *((_SYMBOLS, one) for one in [tuple(_pairs(symbols))] if one))
        return replace(call, op=f"@{callee}", inputs=tuple(map(str, kept)), attrs=attrs)


# Temporary attribute of a call, which `_ShapeOperandRemover` writes and `_SymbolSpecializer` reads: pairs of a symbol
# of the callee and a dimension.
_SYMBOLS = "symbols"


def _pairs(symbols: Mapping[str, str]) -> list[str]:
    return [word for pair in symbols.items() for word in pair]


def _shape_params(function: Function) -> tuple[int, ...]:
    """Return the indices of parameters that only pass symbolic dimensions."""
    if function.code is not None:
        return ()
    read = {name for call in function.body for name in call.uses()} | set(function.results)
    return tuple(
        index
        for index, param in enumerate(function.params)
        if isinstance(param.type, OpaqueType) and param.type.name.startswith("Shape(") and param.name not in read
    )


def _operands(call: Call) -> tuple[str, list[str | list[str]]] | None:
    """Return the callee of a call and its operands: names of values and lists of dimensions; None for other calls."""
    if call.callee is not None and call.attr("tvm.args") is None:
        return call.callee, list(call.inputs)
    text = call.attr("tvm.args")
    if not isinstance(text, str) or (call.callee is None and call.op != "relax.Call"):
        return None
    return read_text(f"({text},)", lambda node: _parsed_operands(call, list(cast("ast.Tuple", node).elts)))


def _parsed_operands(call: Call, items: list[ast.expr]) -> tuple[str, list[str | list[str]]] | None:
    callee = call.callee
    if callee is None:
        first = items.pop(0)
        if not (isinstance(first, ast.Call) and ast.unparse(first.func) == "Global"):
            return None
        callee = str(ast.literal_eval(first.args[0]))
    operands: list[str | list[str]] = []
    for item in items:
        if isinstance(item, ast.Name) and item.id[:1] == "_" and item.id[1:].isdecimal():
            operands.append(call.inputs[int(item.id[1:])])
        elif isinstance(item, ast.Call) and ast.unparse(item.func) == "Shape":
            operands.append([ast.unparse(dim) for dim in item.args])
        else:
            return None
    return callee, operands


def _shape_symbols(param: Value, operand: str | list[str], types: Mapping[str, Type]) -> dict[str, str]:
    """Return the dimensions that a shape operand binds to the symbols of its parameter; "" if unknown."""
    symbols = _dims_of_shape(param.type)
    dims = _dims_of_shape(types.get(operand)) if isinstance(operand, str) else operand
    if len(dims) != len(symbols):
        return dict.fromkeys(symbols, "")
    return {symbol: dim for symbol, dim in zip(symbols, dims, strict=True) if symbol.isidentifier()}


def _dims_of_shape(type_: Type) -> list[str]:
    if not isinstance(type_, OpaqueType) or not type_.name.startswith("Shape("):
        return []
    return list(tuple_fields(type_.name))


class _SymbolSpecializer:
    """Clones callees, so that their symbolic dimensions have the names of the caller."""

    def __init__(self, functions: Sequence[Function]) -> None:
        self._functions = {function.name: function for function in functions}
        self._names = Names(self._functions)
        self._clone_names: dict[tuple[str, tuple[tuple[str, str], ...]], str] = {}
        self._clones: list[Function] = []

    def functions(self) -> tuple[Function, ...]:
        """Return all functions, with those that are called with other symbols behind."""
        own = [self._function(function) for function in self._functions.values()]
        return (*own, *self._clones)

    def _function(self, function: Function, around: Mapping[str, Type] | None = None) -> Function:
        types = {**(around or {}), **function.types}
        body = []
        for call in function.body:
            regions = tuple((label, self._function(region, types)) for label, region in call.regions)
            call = replace(call, regions=regions) if regions else call
            body.append(self._call(call, types))
        return function.replace(body=tuple(body))

    def _call(self, call: Call, types: Mapping[str, Type]) -> Call:
        callee = self._functions.get(call.callee or "")
        stated = call.attr(_SYMBOLS)
        call = replace(call, attrs=tuple(item for item in call.attrs if item[0] != _SYMBOLS)) if stated else call
        if callee is None or callee.code is not None or callee.attr("role") is not None:
            return call
        words = iter(map(str, stated if isinstance(stated, tuple) else ()))
        symbols = dict(zip(words, words, strict=True))
        for param, argument in zip(callee.params, call.inputs, strict=False):
            _unify(param.type, types.get(argument), symbols)
        changed = tuple(sorted((old, new) for old, new in symbols.items() if old != new))
        if not changed:
            return call
        key = callee.name, changed
        if key not in self._clone_names:
            self._clone_names[key] = self._names.fresh(callee.name)
            self._clones.append(self._function(_renamed(callee, dict(changed)).replace(name=self._clone_names[key])))
        return replace(call, op=f"@{self._clone_names[key]}")


def _unify(param: Type, argument: Type, symbols: dict[str, str]) -> None:
    """Bind symbols that are dimensions of a parameter by themselves to the dimensions of the operand."""
    if not isinstance(param, TensorType) or not isinstance(argument, TensorType):
        return
    if param.shape is None or argument.shape is None or len(param.shape) != len(argument.shape):
        return
    for dim, own in zip(param.shape, argument.shape, strict=True):
        if isinstance(dim, str) and dim.isidentifier() and own is not None:
            # Dimensions that a shape operand states are known already and take precedence.
            symbols.setdefault(dim, str(own))


_TEXTS = frozenset({"tvm.args", "tvm.type", "tvm.value_type", "tvm.types", "tvm.returns"})


def _renamed(function: Function, symbols: Mapping[str, str]) -> Function:
    """Substitute dimensions for symbols in the types and expressions of a function."""

    def in_value(value: Value) -> Value:
        match value.type:
            case TensorType(dtype=dtype, shape=shape) if shape is not None:
                return replace(value, type=TensorType(dtype, tuple(map(in_dim, shape))))
            case OpaqueType(name=text):
                return replace(value, type=OpaqueType(rename_symbols(text, symbols)))
        return value

    def in_dim(dim: int | str | None) -> int | str | None:
        new = rename_symbols(dim, symbols) if isinstance(dim, str) else dim
        return int(new) if isinstance(new, str) and new.isdecimal() else new

    def in_attr(name: str, value: Attribute) -> Attribute:
        if name not in _TEXTS and name != _SYMBOLS:
            return value
        if isinstance(value, tuple):
            start = 1 if name == _SYMBOLS else 0  # the first of each pair is a symbol of another function
            return tuple(
                rename_symbols(str(one), symbols) if name != _SYMBOLS or at % 2 == start else str(one)
                for at, one in enumerate(value)
            )
        return rename_symbols(value, symbols) if isinstance(value, str) else value

    def in_call(call: Call) -> Call:
        return replace(
            call,
            outputs=tuple(map(in_value, call.outputs)),
            attrs=tuple((name, in_attr(name, value)) for name, value in call.attrs),
            regions=tuple((label, _renamed(region, symbols)) for label, region in call.regions),
        )

    return function.replace(params=tuple(map(in_value, function.params)), body=tuple(map(in_call, function.body)))
