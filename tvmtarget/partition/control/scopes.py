"""All operations of a function and of its nested bodies, numbered, with names that are unique over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import is_

from tvmtarget.errors import ModelError
from tvmtarget.ir.def_use import readers_of
from tvmtarget.ir.function import COPY, Call, Constant, Function, Value
from tvmtarget.ir.inference import infer_types
from tvmtarget.ir.inline import Frame, Inlined
from tvmtarget.ir.names import Names
from tvmtarget.ir.types import Type
from tvmtarget.partition.control.types import Border, border_of

__all__ = ["Scope", "Scopes", "scopes_of"]


@dataclass(frozen=True, slots=True)
class Scope:
    """A flat list of operations: the function's own, or those of a nested body.

    `calls` are their numbers, `owner` is that of the operation that has the body (None for the function itself) and
    `label` is what it calls it.
    """

    function: Function
    calls: range
    owner: int | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Scopes:
    """The operations of all scopes, the function's own first; `bodies[i]` are the nested bodies of operation `i`.

    `sources[i]` is the name that operation `i` had before it was made unique, `frames[i]` are the inlined calls
    around it.
    """

    body: tuple[Call, ...]
    sources: tuple[str, ...]
    frames: tuple[tuple[Frame, ...], ...]
    scopes: tuple[Scope, ...]
    bodies: Mapping[int, tuple[Scope, ...]]

    def types(self) -> Mapping[str, Type]:
        """Return the types of all values by name."""
        if len(self.scopes) == 1:
            return self.scopes[0].function.types
        return {name: type_ for scope in self.scopes for name, type_ in scope.function.types.items()}

    def constants(self) -> dict[str, Constant]:
        """Return all constants by name."""
        return {constant.name: constant for scope in self.scopes for constant in scope.function.constants}

    def producers(self) -> dict[str, int]:
        """Return the operation that computes each value."""
        return {output.name: index for index, call in enumerate(self.body) for output in call.outputs if output.name}

    def readers(self) -> dict[str, tuple[int, ...]]:
        """Return who reads each value in the scope that defines it, be it by nested bodies."""
        if len(self.scopes) == 1:
            return readers_of(self.scopes[0].function)
        found: dict[str, tuple[int, ...]] = {}
        for scope in self.scopes:
            own = scope.function.types
            for name, readers in readers_of(scope.function).items():
                if scope.owner is None or name in own:
                    found[name] = tuple(scope.calls.start + reader for reader in readers)
        return found

    def results(self) -> frozenset[str]:
        """Return the names of all values that the function or a nested body returns."""
        return frozenset(name for scope in self.scopes for name in scope.function.results)


def scopes_of(inlined: Inlined) -> Scopes:
    """Number the operations of a function; copies between memories are left out, who reads one reads its origin.

    Values and operations of nested bodies whose names occur twice get others: an operation is then called by the
    one around it, the label of the body, and its own name. Values at the border of a nested body that have no
    type get what follows from the operation.
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
class _Place:
    """Where a nested body stands: the operation that has it, what it calls it, and which types cross its border."""

    owner: int
    label: str
    border: Border


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
        """Names of values that are taken; only nested bodies ask for others."""
        return Names(self.root.types)

    @cached_property
    def names(self) -> Names:
        """Names of operations that are taken."""
        return Names(call.source for call in self.root.body)

    @cached_property
    def types(self) -> dict[str, Type]:
        """Types of all values so far."""
        return dict(self.root.types)

    def scope(self, inlined: Inlined, names: Mapping[str, str], place: _Place | None) -> Scope:
        """Add the operations of a body; `names` are the new ones of values around it that got others."""
        number = len(self.scopes)
        function = inlined.function
        self.scopes.append(Scope(function, range(0)))
        kept = [index for index, call in enumerate(function.body) if call.op != COPY]
        if place is not None:
            function = self._inferred(place.border.fill(function), names)
            names = {**names, **self._fresh(function)}
            self.types |= {names.get(name, name): type_ for name, type_ in function.types.items()}
        names = {**names, **_origins(function, names)}
        first = len(self.body)
        calls = range(first, first + len(kept))
        renamed = [_renamed(function.body[index], names) for index in kept]
        self.sources += (call.source for call in renamed)
        self.frames += (inlined.frames[index] for index in kept)
        self.body += renamed if place is None else map(self._named, renamed, [place] * len(kept))
        for index, number_of_call in zip(kept, calls, strict=True):
            if function.body[index].regions:
                self._nested(number_of_call, inlined.bodies[index], names)
        function = _with(function, names, tuple(self.body[calls.start : calls.stop]))
        scope = Scope(function, calls) if place is None else Scope(function, calls, place.owner, place.label)
        self.scopes[number] = scope
        return scope

    def _nested(self, index: int, bodies: Sequence[Inlined], names: Mapping[str, str]) -> None:
        """Add the nested bodies of an operation, which then has them with their new names."""
        call = self.body[index]
        found: list[Scope] = []
        for (label, _), body in zip(call.regions, bodies, strict=True):
            border = border_of(call, label, self.types)
            found.append(self.scope(body, names, _Place(index, label, border)))
        self.bodies[index] = tuple(found)
        regions = tuple((scope.label, scope.function) for scope in found)
        self.body[index] = replace(call, regions=regions)

    def _inferred(self, function: Function, names: Mapping[str, str]) -> Function:
        """Return a body with types that follow from those around it, where the model's own inference gave up."""
        if all(output.type is not None for call in function.body for output in call.outputs if output.name):
            return function
        around = (Value(name, self.types.get(names.get(name, name))) for name in function.captures())
        closed = function.replace(params=(*function.params, *around), opsets=self.root.opsets)
        try:
            return function.replace(body=infer_types(closed).body)
        except ModelError:
            return function

    def _fresh(self, function: Function) -> dict[str, str]:
        """Take the names of what a body defines; returns those that had to change."""
        copies = {call.outputs[0].name for call in function.body if call.op == COPY}
        taken = {name: self.values.fresh(name) for name in function.types if name not in copies}
        return {name: new for name, new in taken.items() if name != new}

    def _named(self, call: Call, place: _Place) -> Call:
        """Return an operation of a nested body under a name that no other one has."""
        is_free = call.source and call.source not in self.names
        address = f"{self.body[place.owner].source}/{place.label}/{call.source or call.kind}"
        source = self.names.fresh(call.source if is_free else address)
        return call if source == call.source else replace(call, source=source)


def _origins(function: Function, names: Mapping[str, str]) -> dict[str, str]:
    """Return for each copy that a function makes what it is a copy of."""
    origins: dict[str, str] = {}
    for call in function.body:
        if call.op == COPY:
            source = names.get(call.inputs[0], call.inputs[0])
            origins[call.outputs[0].name] = origins.get(source, source)
    return origins


def _renamed(call: Call, names: Mapping[str, str]) -> Call:
    """Return an operation in new names, its nested bodies as they are."""
    if not names:
        return call
    inputs = tuple(names.get(name, name) for name in call.inputs)
    outputs = tuple(_value(output, names) for output in call.outputs)
    return call if (inputs, outputs) == (call.inputs, call.outputs) else replace(call, inputs=inputs, outputs=outputs)


def _value(value: Value, names: Mapping[str, str]) -> Value:
    return replace(value, name=names[value.name]) if value.name in names else value


def _with(function: Function, names: Mapping[str, str], body: tuple[Call, ...]) -> Function:
    """Return a function with another body and its parameters, constants and results in new names."""
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
