"""Names of symbolic dimensions where one function serves several calls.

Deduplication lets equal subgraphs share one function, whose symbolic dimensions have the names of the first subgraph. A
call for another one carries the attribute `dims`: pairs of a dimension of the function and its name at the call, for
those that differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tvmtarget.ir.function import DIMS, Attribute, Call, Function, Value
from tvmtarget.ir.types import Dim, MapType, OptionalType, SequenceType, SparseType, TensorType, Type

__all__ = ["compose_dims", "dim_aliases", "is_dim_aliases", "rename_dims", "with_dim_aliases", "with_dims"]


def is_dim_aliases(value: Attribute) -> bool:
    """Return whether an attribute value is a valid `dims`.

    Args:
        value: value of the attribute.

    Returns:
        True for a tuple of names in pairs in which no first name repeats.
    """
    if not isinstance(value, tuple) or len(value) % 2 or not all(isinstance(name, str) for name in value):
        return False
    return len(set(value[::2])) * 2 == len(value)


def dim_aliases(call: Call) -> dict[str, str]:
    """Return the dimensions that a call renames.

    Args:
        call: a call; for other than calls of functions nothing is renamed.

    Returns:
        Name at the call by dimension of the callee.
    """
    pairs = None if call.callee is None else call.attr(DIMS)
    names = map(str, pairs) if isinstance(pairs, tuple) else ()
    return dict(zip(names, names, strict=True))  # one iterator twice: it yields the pairs


def compose_dims(dims: Mapping[str, str], around: Mapping[str, str]) -> dict[str, str]:
    """Compose the renaming of a call with that of the call around it.

    Args:
        dims: renaming of the inner call, in dimensions of the function that holds it.
        around: renaming of the call of that function.

    Returns:
        Renaming from dimensions of either function to those of the outermost caller.
    """
    # Dimensions that the inner call does not rename keep their names in its callee, so that `around` renames them
    # directly.
    return {**around, **{name: around.get(known, known) for name, known in dims.items()}}


def with_dim_aliases(call: Call, dims: Mapping[str, str]) -> Call:
    """Return a call with its `dims` replaced.

    Args:
        call: call of a function.
        dims: name at the call by dimension of the callee; equal pairs are left out.

    Returns:
        The call; without pairs it has no such attribute.
    """
    pairs = tuple(name for pair in dims.items() if pair[0] != pair[1] for name in pair)
    attrs = tuple((name, value) for name, value in call.attrs if name != DIMS)
    return replace(call, attrs=(*attrs, (DIMS, pairs)) if pairs else attrs)


def rename_dims(call: Call, dims: Mapping[str, str]) -> Call:
    """Rename symbolic dimensions in the types of a call and of its nested bodies.

    Args:
        call: the call.
        dims: new name by dimension.

    Returns:
        The call; one of a function has its `dims` composed with the renaming.
    """
    outputs = tuple(_value(output, dims) for output in call.outputs)
    regions = tuple((label, _body(region, dims)) for label, region in call.regions)
    renamed = replace(call, outputs=outputs, regions=regions)
    return renamed if call.callee is None else with_dim_aliases(renamed, compose_dims(dim_aliases(call), dims))


def _body(function: Function, dims: Mapping[str, str]) -> Function:
    params = tuple(_value(param, dims) for param in function.params)
    return function.replace(params=params, body=tuple(rename_dims(call, dims) for call in function.body))


def _value(value: Value, dims: Mapping[str, str]) -> Value:
    return replace(value, type=with_dims(value.type, dims))


def with_dims(type_: Type, dims: Mapping[str, Dim]) -> Type:
    """Replace symbolic dimensions of a type.

    Args:
        type_: the type.
        dims: what takes the place of a dimension, by its name.

    Returns:
        The type.
    """
    match type_:
        case TensorType():
            return _tensor(type_, dims)
        case SequenceType(element):
            return SequenceType(with_dims(element, dims))
        case OptionalType(element):
            return OptionalType(with_dims(element, dims))
        case MapType(key, value):
            return MapType(key, with_dims(value, dims))
        case SparseType(tensor):
            return SparseType(_tensor(tensor, dims))
        case _:
            return type_


def _tensor(type_: TensorType, dims: Mapping[str, Dim]) -> TensorType:
    if type_.shape is None:
        return type_
    return TensorType(type_.dtype, tuple(dims.get(dim, dim) if isinstance(dim, str) else dim for dim in type_.shape))
