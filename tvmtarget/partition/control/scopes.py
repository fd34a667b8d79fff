"""Number all operations of a function and its regions, and make their names unique."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import is_

from tvmtarget.errors import ModelError
from tvmtarget.ir.control_flow import control_flow_form
from tvmtarget.ir.def_use import readers_of
from tvmtarget.ir.function import COPY, Call, Constant, Function, Value
from tvmtarget.ir.inference import infer_types
from tvmtarget.ir.inline import Frame, Inlined
from tvmtarget.ir.names import Names
from tvmtarget.ir.types import TensorType, Type

__all__ = ["Scope", "Scopes", "scopes_of"]

# Types of the parameters of a loop body that every loop has.
_TRIP_COUNT = TensorType("int64", ())
_CONDITION = TensorType("bool", ())


@dataclass(frozen=True, slots=True)
class Scope:
    """The operations of a function itself, or of one region.

    Attributes:
        function: the function, or the body of the region.
        calls: numbers of its operations.
        owner: number of the operation that has the region; None for the function itself.
        label: label of the region, such as `then_branch`.
    """

    function: Function
    calls: range
    owner: int | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Scopes:
    """All operations of a function and its regions.

    Attributes:
        body: operations by number, with unique names.
        sources: names of the operations before they were made unique.
        frames: inlined calls around each operation, the outermost first.
        scopes: the function itself, then all regions.
        bodies: regions of each operation that has some, by its number.
    """

    body: tuple[Call, ...]
    sources: tuple[str, ...]
    frames: tuple[tuple[Frame, ...], ...]
    scopes: tuple[Scope, ...]
    bodies: Mapping[int, tuple[Scope, ...]]

    def types(self) -> Mapping[str, Type]:
        """Collect the types of all values by name."""
        if len(self.scopes) == 1:
            return self.scopes[0].function.types
        return {name: type_ for scope in self.scopes for name, type_ in scope.function.types.items()}

    def constants(self) -> dict[str, Constant]:
        """Collect all constants by name."""
        return {constant.name: constant for scope in self.scopes for constant in scope.function.constants}

    def producers(self) -> Mapping[str, int]:
        """Map each value to the number of the operation that computes it."""
        if len(self.scopes) == 1:
            return self.scopes[0].function.producers
        return {output.name: index for index, call in enumerate(self.body) for output in call.outputs if output.name}

    def readers(self) -> dict[str, tuple[int, ...]]:
        """Map each value to its readers in the scope that defines it.

        Returns:
            Numbers of operations by value; an operation whose region reads a value is a reader.
        """
        if len(self.scopes) == 1:
            return readers_of(self.scopes[0].function)
        found: dict[str, tuple[int, ...]] = {}
        for scope in self.scopes:
            own = scope.function.types
            for name, readers in readers_of(scope.function).items():
                # The readers in a region of a captured value are left out: in the scope that defines the value, the
                # operation with the region is its reader.
                if scope.owner is None or name in own:
                    found[name] = tuple(scope.calls.start + reader for reader in readers)
        return found

    def results(self) -> frozenset[str]:
        """Collect the names of all values that the function or a region returns."""
        return frozenset(name for scope in self.scopes for name in scope.function.results)


def scopes_of(inlined: Inlined) -> Scopes:
    """Number the operations of a function and its regions.

    Copies between memories are removed: their readers read the original value. Values and operations of regions whose
    names occur twice are renamed; such an operation is named `<operation around it>/<label>/<name>`. Values at the
    boundary of a region that have no type get the type that the operation implies.

    Args:
        inlined: function whose calls of functions are inlined.

    Returns:
        All operations, the function's own first.
    """
    numbering = _Numbering(inlined.function)
    numbering.scope(inlined, {}, None)
    return Scopes(
        tuple(numbering.body),
        tuple(numbering.sources),
        tuple(numbering.frames),
        tuple(numbering.scopes),
        numbering.bodies,
    )


@dataclass(frozen=True, slots=True)
class _RegionOwner:
    """The operation that has a region, its label, and the types that the operation implies at its boundary."""

    index: int
    label: str
    types: _BoundaryTypes


@dataclass
class _Numbering:
    root: Function
    body: list[Call] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    frames: list[tuple[Frame, ...]] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)
    bodies: dict[int, tuple[Scope, ...]] = field(default_factory=dict)

    @cached_property
    def values(self) -> Names:
        """Names of values in use."""
        return Names(self.root.types)

    @cached_property
    def names(self) -> Names:
        """Names of operations in use."""
        return Names(call.source for call in self.root.body)

    @cached_property
    def types(self) -> dict[str, Type]:
        """Types of all values numbered so far."""
        return dict(self.root.types)

    def scope(self, inlined: Inlined, names: Mapping[str, str], owner: _RegionOwner | None) -> Scope:
        """Add the operations of a function or region; `names` are the new names of renamed values around it."""
        number = len(self.scopes)
        function = inlined.function
        self.scopes.append(Scope(function, range(0)))  # reserves the position: inner scopes come behind it
        kept = [index for index, call in enumerate(function.body) if call.op != COPY]
        if owner is not None:
            function = self._inferred(owner.types.fill(function), names)
            names = {**names, **self._fresh(function)}
            self.types |= {names.get(name, name): type_ for name, type_ in function.types.items()}
        names = {**names, **_origins(function, names)}
        first = len(self.body)
        calls = range(first, first + len(kept))
        body = [function.body[index] for index in kept]
        renamed = [_renamed(call, names) for call in body] if names else body
        self.sources += (call.source for call in renamed)
        self.frames += (inlined.frames[index] for index in kept)
        self.body += renamed if owner is None else map(self._with_unique_name, renamed, [owner] * len(kept))
        for index, number_of_call in zip(kept, calls, strict=True):
            if function.body[index].regions:
                self._add_regions(number_of_call, inlined.bodies[index], names)
        function = _with(function, names, tuple(self.body[calls.start : calls.stop]))
        scope = Scope(function, calls) if owner is None else Scope(function, calls, owner.index, owner.label)
        self.scopes[number] = scope
        return scope

    def _add_regions(self, index: int, bodies: Sequence[Inlined], names: Mapping[str, str]) -> None:
        """Add the regions of an operation, and replace it by one that has them with their new names."""
        call = self.body[index]
        found: list[Scope] = []
        for (label, _), body in zip(call.regions, bodies, strict=True):
            types = _boundary_types(call, label, self.types)
            found.append(self.scope(body, names, _RegionOwner(index, label, types)))
        self.bodies[index] = tuple(found)
        regions = tuple((scope.label, scope.function) for scope in found)
        self.body[index] = replace(call, regions=regions)

    def _inferred(self, function: Function, names: Mapping[str, str]) -> Function:
        """Return a region with types inferred from those around it, where the inference of the model gave up."""
        if all(output.type is not None for call in function.body for output in call.outputs if output.name):
            return function
        around = (Value(name, self.types.get(names.get(name, name))) for name in function.captures())
        closed = function.replace(params=(*function.params, *around), opsets=self.root.opsets)
        try:
            # Inferred types are a gain, not a requirement: a body that the inference rejects keeps its types.
            return function.replace(body=infer_types(closed).body)
        except ModelError:
            return function

    def _fresh(self, function: Function) -> dict[str, str]:
        """Reserve names for the values of a region, and return the new names of those that were in use."""
        # Copies are removed, so their results need no names.
        copies = {call.outputs[0].name for call in function.body if call.op == COPY}
        reserved = {name: self.values.fresh(name) for name in function.types if name not in copies}
        return {name: new for name, new in reserved.items() if name != new}

    def _with_unique_name(self, call: Call, owner: _RegionOwner) -> Call:
        """Return an operation of a region under a unique name."""
        is_free = call.source and call.source not in self.names
        path = f"{self.body[owner.index].source}/{owner.label}/{call.source or call.kind}"
        source = self.names.fresh(call.source if is_free else path)
        return call if source == call.source else replace(call, source=source)


def _origins(function: Function, names: Mapping[str, str]) -> dict[str, str]:
    """Map the result of each copy in a function to the value that was copied first."""
    origins: dict[str, str] = {}
    for call in function.body:
        if call.op == COPY:
            source = names.get(call.inputs[0], call.inputs[0])
            origins[call.outputs[0].name] = origins.get(source, source)
    return origins


def _renamed(call: Call, names: Mapping[str, str]) -> Call:
    """Return an operation with renamed operands and results; its regions stay."""
    inputs = tuple(names.get(name, name) for name in call.inputs)
    outputs = tuple(_value(output, names) for output in call.outputs)
    return call if (inputs, outputs) == (call.inputs, call.outputs) else replace(call, inputs=inputs, outputs=outputs)


def _value(value: Value, names: Mapping[str, str]) -> Value:
    return replace(value, name=names[value.name]) if value.name in names else value


def _with(function: Function, names: Mapping[str, str], body: tuple[Call, ...]) -> Function:
    """Return a function with another body, and with renamed parameters, constants and results."""
    if not names:
        is_same = len(body) == len(function.body) and all(map(is_, body, function.body))
        return function if is_same else function.replace(body=body)
    return function.replace(
        params=tuple(_value(param, names) for param in function.params),
        body=body,
        constants=tuple(
            replace(constant, name=names[constant.name]) if constant.name in names else constant
            for constant in function.constants
        ),
        results=tuple(names.get(name, name) for name in function.results),
    )


@dataclass(frozen=True, slots=True)
class _BoundaryTypes:
    """Types that an operation implies for the parameters and results of a region; None where it implies none."""

    params: tuple[Type, ...] = ()
    results: tuple[Type, ...] = ()

    def fill(self, function: Function) -> Function:
        """Return a region with these types where it has none, or only an element type that agrees."""
        implied = dict(zip((param.name for param in function.params), self.params, strict=False))
        # A region may return one of its parameters, which then has the type implied for the parameter.
        implied |= {
            name: type_ for name, type_ in zip(function.results, self.results, strict=False) if name not in implied
        }
        incomplete = {name for name, type_ in function.types.items() if _is_more_specific(implied.get(name), type_)}
        if not incomplete:
            return function

        def filled(value: Value) -> Value:
            return replace(value, type=implied[value.name]) if value.name in incomplete else value

        body = tuple(
            replace(call, outputs=tuple(map(filled, call.outputs)))
            if any(output.name in incomplete for output in call.outputs)
            else call
            for call in function.body
        )
        return function.replace(params=tuple(map(filled, function.params)), body=body)


def _boundary_types(call: Call, label: str, types: Mapping[str, Type]) -> _BoundaryTypes:
    """Return the types that an operation implies for one of its regions; `types` are those of the values around it.

    Loop-carried values may change their shape between iterations, so that only element types are implied.
    """
    form = control_flow_form(call)
    outputs = tuple(_without_shape(output.type) for output in call.outputs)
    inputs = tuple(_without_shape(types.get(name)) for name in call.inputs)
    if form is None or label not in form.bodies:
        return _BoundaryTypes()
    if form.kind == "branch":
        return _BoundaryTypes((), outputs)
    if form.kind == "loop":
        # The first operands of Loop are trip count and condition; the carried values begin at 2.
        return _BoundaryTypes((_TRIP_COUNT, _CONDITION, *inputs[2:]), (_CONDITION, *outputs))
    return _BoundaryTypes(inputs, outputs)


def _is_more_specific(one: Type, other: Type) -> bool:
    """Whether one type is known where the other is not, or has a shape where the other has only an element type."""
    if other is None:
        return one is not None
    if not isinstance(one, TensorType) or not isinstance(other, TensorType) or one.dtype != other.dtype:
        return False
    return other.shape is None and one.shape is not None


def _without_shape(type_: Type) -> Type:
    """Return a type without its shape."""
    return TensorType(type_.dtype, None) if isinstance(type_, TensorType) else type_
