"""What the symbolic dimensions of a function that does for several parts of a program are in each of them.

The function has the dimensions of one part; calls of it for others have the attribute `dims`, in which each of its
dimensions is followed by what it is there, as far as that is called otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tvmtarget.ir.function import DIMS, Attribute, Call, Function, Value
from tvmtarget.ir.types import MapType, OptionalType, SequenceType, SparseType, TensorType, Type

__all__ = ["compose_dims", "dim_aliases", "is_dim_aliases", "rename_dims", "with_dim_aliases"]


def is_dim_aliases(value: Attribute) -> bool:
    """Whether an attribute is dimensions in pairs, the first of each only once."""
    if not isinstance(value, tuple) or len(value) % 2 or not all(isinstance(name, str) for name in value):
        return False
    return len(set(value[::2])) * 2 == len(value)


def dim_aliases(call: Call) -> dict[str, str]:
    """Return what a call says of the dimensions of its function."""
    given = None if call.callee is None else call.attr(DIMS)
    names = map(str, given) if isinstance(given, tuple) else ()
    return dict(zip(names, names, strict=True))


def compose_dims(dims: Mapping[str, str], around: Mapping[str, str]) -> dict[str, str]:
    """Return what dimensions are where the function that they are given in is called with others."""
    return {**around, **{name: around.get(known, known) for name, known in dims.items()}}


def with_dim_aliases(call: Call, dims: Mapping[str, str]) -> Call:
    """Return a call that says what the dimensions of its function are."""
    pairs = tuple(name for pair in dims.items() if pair[0] != pair[1] for name in pair)
    attrs = tuple((name, value) for name, value in call.attrs if name != DIMS)
    return replace(call, attrs=(*attrs, (DIMS, pairs)) if pairs else attrs)


def rename_dims(call: Call, dims: Mapping[str, str]) -> Call:
    """Return a call with its dimensions called otherwise, in its nested bodies too."""
    outputs = tuple(_value(output, dims) for output in call.outputs)
    regions = tuple((label, _body(region, dims)) for label, region in call.regions)
    renamed = replace(call, outputs=outputs, regions=regions)
    return renamed if call.callee is None else with_dim_aliases(renamed, compose_dims(dim_aliases(call), dims))


def _body(function: Function, dims: Mapping[str, str]) -> Function:
    params = tuple(_value(param, dims) for param in function.params)
    return function.replace(params=params, body=tuple(rename_dims(call, dims) for call in function.body))


def _value(value: Value, dims: Mapping[str, str]) -> Value:
    return replace(value, type=_type(value.type, dims))


def _type(type_: Type, dims: Mapping[str, str]) -> Type:
    match type_:
        case TensorType():
            return _tensor(type_, dims)
        case SequenceType(element):
            return SequenceType(_type(element, dims))
        case OptionalType(element):
            return OptionalType(_type(element, dims))
        case MapType(key, value):
            return MapType(key, _type(value, dims))
        case SparseType(tensor):
            return SparseType(_tensor(tensor, dims))
        case _:
            return type_


def _tensor(type_: TensorType, dims: Mapping[str, str]) -> TensorType:
    if type_.shape is None:
        return type_
    return TensorType(type_.dtype, tuple(dims.get(dim, dim) if isinstance(dim, str) else dim for dim in type_.shape))
