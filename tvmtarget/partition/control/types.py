"""Which types cross the border of a nested body, as follows from the operation that has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tvmtarget.ir.function import Call, Function, Value
from tvmtarget.ir.types import TensorType, Type
from tvmtarget.partition.control.control_flow_ops import control_flow_form

__all__ = ["Border", "border_of"]

_COUNT = TensorType("int64", ())
_FLAG = TensorType("bool", ())


@dataclass(frozen=True, slots=True)
class Border:
    """Types of the parameters and of the results of a nested body; what nothing is said of is None."""

    params: tuple[Type, ...] = ()
    results: tuple[Type, ...] = ()

    def fill(self, function: Function) -> Function:
        """Return a body with these types where it states none, or one of the same elements without a shape."""
        found = dict(zip((param.name for param in function.params), self.params, strict=False))
        found |= {name: type_ for name, type_ in zip(function.results, self.results, strict=False) if name not in found}
        lacking = {name for name, type_ in function.types.items() if _says_more(found.get(name), type_)}
        if not lacking:
            return function

        def filled(value: Value) -> Value:
            return replace(value, type=found[value.name]) if value.name in lacking else value

        body = tuple(
            replace(call, outputs=tuple(map(filled, call.outputs)))
            if any(output.name in lacking for output in call.outputs)
            else call
            for call in function.body
        )
        return function.replace(params=tuple(map(filled, function.params)), body=body)


def border_of(call: Call, label: str, types: Mapping[str, Type]) -> Border:
    """Return what crosses the border of a nested body of an operation; `types` are those of the values around it.

    Carried values may change their shape from one run of a body to the next, so that only element types follow.
    """
    form = control_flow_form(call)
    outputs = tuple(_open(output.type) for output in call.outputs)
    inputs = tuple(_open(types.get(name)) for name in call.inputs)
    if form is None or label not in form.bodies:
        return Border()
    if form.kind == "branch":
        return Border((), outputs)
    if form.kind == "loop":
        return Border((_COUNT, _FLAG, *inputs[2:]), (_FLAG, *outputs))
    return Border(inputs, outputs)


def _says_more(one: Type, other: Type) -> bool:
    """Whether one type is known where the other is not, or has a shape where the other only has elements."""
    if other is None:
        return one is not None
    if not isinstance(one, TensorType) or not isinstance(other, TensorType) or one.dtype != other.dtype:
        return False
    return other.shape is None and one.shape is not None


def _open(type_: Type) -> Type:
    """Return a type without its shape."""
    return TensorType(type_.dtype, None) if isinstance(type_, TensorType) else type_
