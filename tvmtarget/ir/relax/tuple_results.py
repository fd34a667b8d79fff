"""Tuples that functions of Relax return, as several results."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tvmtarget.ir.function import Call, Function, Value, all_names, callees_of
from tvmtarget.ir.names import Names
from tvmtarget.ir.relax.blocks import BLOCKS, RESULT
from tvmtarget.ir.relax.syntax import tuple_fields, type_of
from tvmtarget.ir.types import OpaqueType, TensorType, Type

__all__ = ["untuple_results"]


def untuple_results(functions: Sequence[Function]) -> tuple[Function, ...]:
    """Return functions that have several results in place of one tuple of tensors, where others call them."""
    known = {function.name: function for function in functions}
    mentioned = {
        name for one in functions for call in _everywhere(one) if call.callee is None for name in _mentions(call, known)
    }
    called = frozenset[str]().union(*map(callees_of, functions))
    for name in _callees_first(known):
        function = known[name]
        if name not in called or name in mentioned or function.code is not None or function.attr("role") is not None:
            continue
        made = _with_results(function)
        if made is None:
            continue
        known[name] = made
        types = [made.types[result] for result in made.results]
        for other in list(known.values()):
            if name in callees_of(other):
                known[other.name] = _taking_apart(other, name, types)
    return tuple(known.values())


def _everywhere(function: Function) -> list[Call]:
    return [
        one
        for call in function.body
        for one in (call, *(inner for _, region in call.regions for inner in _everywhere(region)))
    ]


def _mentions(call: Call, names: Mapping[str, Function]) -> list[str]:
    text = call.attr("tvm.args")
    return [name for name in names if isinstance(text, str) and f"Global({name!r})" in text]


def _callees_first(functions: Mapping[str, Function]) -> list[str]:
    order: dict[str, None] = {}

    def visit(name: str, above: frozenset[str]) -> None:
        if name in order or name in above:
            return
        for callee in sorted(callees_of(functions[name]) & functions.keys()):
            visit(callee, above | {name})
        order[name] = None

    for name in functions:
        visit(name, frozenset())
    return list(order)


def _with_results(function: Function) -> Function | None:
    """Return a function with the fields of the tuple that it returns as results; None where it returns none."""
    if len(function.results) != 1:
        return None
    whole = function.results[0]
    type_ = function.types.get(whole)
    place = next((at for at, call in enumerate(function.body) if [out.name for out in call.outputs] == [whole]), None)
    fields = _tensor_fields(type_)
    if fields is None or place is None:
        return None
    call = function.body[place]
    attrs = tuple(item for item in function.attrs if item[0] not in (RESULT, BLOCKS, "tvm.returns"))
    body = list(function.body)
    is_read = any(whole in other.uses() for other in function.body)
    results = _made_of(call, function)
    if results is None:
        if is_read or call.op in ("relax.match_cast", "relax.If", "relax.TupleGetItem", "relax.value"):
            return None
        names = Names(all_names(function))
        outputs = tuple(replace(field, name=names.fresh(f"{whole}_{at}")) for at, field in enumerate(fields))
        body[place] = replace(call, outputs=outputs)
        results = tuple(output.name for output in outputs)
    elif not is_read:
        del body[place]
    return function.replace(body=tuple(body), results=results, attrs=attrs)


def _tensor_fields(type_: Type) -> list[Value] | None:
    """Return values of the types in that of a tuple of tensors, None for other types."""
    if not isinstance(type_, OpaqueType) or not type_.name.startswith("Tuple("):
        return None
    texts = tuple_fields(type_.name)
    if not all(text.startswith("Tensor(") for text in texts):
        return None
    return [Value("", *type_of(text)) for text in texts]


def _made_of(call: Call, function: Function) -> tuple[str, ...] | None:
    """Return the values that a tuple is made of, None where it is not made here of different values."""
    text = call.attr("tvm.args")
    if call.op == "relax.Tuple":
        names = call.inputs
    elif call.op == "relax.value" and isinstance(text, str) and text.startswith("("):
        items = getattr(ast.parse(text, mode="eval").body, "elts", [])
        if not all(isinstance(item, ast.Name) and item.id[1:].isdecimal() for item in items):
            return None
        names = tuple(call.inputs[int(item.id[1:])] for item in items)
    else:
        return None
    if len(set(names)) != len(names) or not set(names) <= function.types.keys():
        return None
    return names


def _taking_apart(function: Function, callee: str, types: Sequence[Type]) -> Function:
    """Return a function that calls another with several results in the place of one tuple."""
    names = Names(all_names(function))

    def change(body: Function) -> Function:
        new: list[Call] = []
        renamed: dict[str, str] = {}
        dropped: set[int] = set()
        for index, call in enumerate(body.body):
            if index in dropped:
                continue
            regions = tuple((label, change(region)) for label, region in call.regions)
            call = replace(call, regions=regions) if regions else call
            if call.callee != callee or len(call.outputs) != 1 or isinstance(call.outputs[0].type, TensorType):
                new.append(call)
                continue
            whole = call.outputs[0]
            taken: dict[int, str] = {}
            others = whole.name in body.results
            for at, other in enumerate(body.body):
                if whole.name not in other.uses():
                    continue
                field = other.attr("index")
                if other.op != "relax.TupleGetItem" or not isinstance(field, int) or other.attr("tvm.value_type"):
                    others = True
                    continue
                dropped.add(at)
                name = taken.setdefault(field, other.outputs[0].name)
                if name != other.outputs[0].name:
                    renamed[other.outputs[0].name] = name
            if others:
                taken = {at: taken.get(at) or names.fresh(f"{whole.name}_{at}") for at in range(len(types))}
            fields = _tensor_fields(whole.type) or [Value("", type_) for type_ in types]
            outputs = tuple(replace(field, name=taken.get(at, "")) for at, field in enumerate(fields))
            new.append(replace(call, outputs=outputs))
            if others:
                new.append(Call("relax.Tuple", tuple(taken[at] for at in range(len(types))), (whole,), (), source=""))
        attrs = tuple(item for item in body.attrs if item[0] != BLOCKS)
        return _with_values(body.replace(body=tuple(new), attrs=attrs), renamed)

    return change(function)


def _with_values(function: Function, names: Mapping[str, str]) -> Function:
    """Let what reads some values read others."""
    if not names:
        return function
    body = tuple(
        replace(
            call,
            inputs=tuple(names.get(name, name) for name in call.inputs),
            regions=tuple((label, _with_values(region, names)) for label, region in call.regions),
        )
        for call in function.body
    )
    return function.replace(body=body, results=tuple(names.get(name, name) for name in function.results))
