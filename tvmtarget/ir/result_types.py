"""Stated result types that contradict what ONNX infers from element types of operands, and from attributes.

The operations of a program share few signatures, of which each is inferred once. To look up those of all operations
takes as long as all other rules of the IR together (0.1 s for 100,000 operations). So modules are checked where they
are read or enter the library, and not between passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TypeAlias
from weakref import WeakValueDictionary

from tvmtarget.ir.function import COPY, Attribute, Call, Constant, Function, Value, domain_and_kind
from tvmtarget.ir.types import SequenceType, TensorType, Type

__all__ = ["contradicted_results"]

_Attributes: TypeAlias = "tuple[tuple[str, Attribute], ...]"
_Opsets: TypeAlias = "tuple[tuple[str, int], ...]"
_Contradiction: TypeAlias = "tuple[Call, Value, Type]"
_Element: TypeAlias = "str | Type"  # the element type of a tensor, or the type of another value

_RUNTIME = "onnx.com.microsoft::"

# Functions without contradictions, by identity: functions are frozen.
_CONSISTENT: WeakValueDictionary[int, Function] = WeakValueDictionary()


def contradicted_results(function: Function) -> Iterator[_Contradiction]:
    """Yield results of operations that are stated to be of other element types than inferred.

    Operations of ONNX and copies are checked, those in nested bodies too.

    Args:
        function: a function that keeps the rules of the IR.

    Yields:
        The operation, its result, and the inferred type, whose shape may be left open.
    """
    if _CONSISTENT.get(id(function)) is function:
        return
    found = list(_contradicted(function, {}, function.opsets))
    yield from found
    if not found:
        _CONSISTENT[id(function)] = function


def _contradicted(function: Function, captured: Mapping[str, _Element], opsets: _Opsets) -> Iterator[_Contradiction]:
    defined: tuple[Value | Constant, ...] = (*function.params, *function.constants)
    elements = {**captured}
    for one in defined:
        elements[one.name] = one.type.dtype if isinstance(one.type, TensorType) else one.type
    signatures: dict[object, Call] = {}
    with_attributes: dict[str, bool] = {}
    element_of = elements.get
    for call in function.body:
        signature = [*map(element_of, call.inputs)]
        for output in call.outputs:
            type_ = output.type
            signature.append(element := type_.dtype if type(type_) is TensorType else type_)
            if output.name:
                elements[output.name] = element
        if call.regions:
            for _, region in call.regions:
                captured = {name: element_of(name) for name in region.captures()}
                yield from _contradicted(region, captured, opsets)
            continue
        op = call.op
        if op not in with_attributes:
            with_attributes[op] = _has_typing_attributes(op, opsets)
        attrs = _hashable(call.attrs) if with_attributes[op] else ()
        signatures.setdefault((op, attrs, len(call.inputs), *signature), call)
    for call in signatures.values():
        # The rules on operators of ONNX Runtime need ranks.
        known = function.types if call.op.startswith(_RUNTIME) else elements
        operands = tuple(map(known.get, call.inputs))
        inferred = _inferred(call.op, operands, _hashable(call.attrs), len(call.outputs), opsets)
        for output, type_ in zip(call.outputs, inferred, strict=True):
            if output.name and _contradict(output.type, type_):
                yield call, output, type_


def _has_typing_attributes(op: str, opsets: _Opsets) -> bool:
    """Return whether operands alone may leave the element types of the results of an operator open."""
    if not op.startswith("onnx."):
        return False
    import onnx.defs  # takes long

    domain, kind = domain_and_kind(op)
    try:
        schema = onnx.defs.get_schema(kind, dict(opsets).get(domain, 0), domain)
    # Numbers and names of a file may be such that onnx does not take them.
    except (onnx.defs.SchemaError, TypeError, ValueError):
        return True
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    given = {one.type_str for one in schema.inputs if one.option != optional}
    return any(one.type_str not in given and "(" not in one.type_str for one in schema.outputs)


def _hashable(attrs: _Attributes) -> _Attributes:
    """Return attributes as part of a key; ONNX has no mappings, so that none are left out of its operations."""
    try:
        hash(attrs)
    except TypeError:
        return ()
    return attrs


@lru_cache(maxsize=1 << 14)
def _inferred(
    op: str, operands: tuple[_Element, ...], attrs: _Attributes, count: int, opsets: _Opsets
) -> tuple[Type, ...]:
    """Infer the types of the results of an operation on tensors of any shape; None for those that are not known."""
    types = [TensorType(one, None) if isinstance(one, str) else one for one in operands]
    if op == COPY:
        return (*types[:count], *[None] * (count - len(types)))
    if not op.startswith("onnx."):
        return (None,) * count
    from tvmtarget.ir.inference import infer_call  # onnx takes long to import

    names = [f"operand{at}" if type_ is not None else "" for at, type_ in enumerate(types)]
    results = tuple(Value(f"result{at}", None) for at in range(count))
    found = infer_call(Call(op, tuple(names), results, attrs), dict(zip(names, types, strict=True)), {}, opsets)
    return tuple(found.get(one.name) for one in results)


def _contradict(stated: Type, inferred: Type) -> bool:
    if isinstance(stated, TensorType) and isinstance(inferred, TensorType):
        return stated.dtype != inferred.dtype
    if isinstance(stated, SequenceType) and isinstance(inferred, SequenceType):
        return _contradict(stated.element, inferred.element)
    return {type(stated), type(inferred)} == {TensorType, SequenceType}
