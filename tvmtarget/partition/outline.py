"""Stages E and G: a function for each region, a driver for each system, and copies where memories differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from tvmtarget.ir.function import Call, Function, Value
from tvmtarget.ir.names import Names
from tvmtarget.ir.types import TensorType, Type
from tvmtarget.partition.control.drivers import Block, Step, write_driver
from tvmtarget.partition.control.forms import form_of, runs_of_bodies
from tvmtarget.partition.host_device.attributes import SIDED, as_device, as_host
from tvmtarget.partition.matching import Group
from tvmtarget.partition.program import Program
from tvmtarget.partition.split import Region
from tvmtarget.target.constraints.constraint import Constraint

__all__ = ["CopyRecord", "DrivenRecord", "Outlined", "RegionRecord", "outline"]


@dataclass(frozen=True, slots=True)
class RegionRecord:
    """A region as a report tells it: its function, site, operations by source name, inputs and outputs.

    `calls` are the operations by their number in the undivided function, `inner` names what is in their nested
    bodies. `runs` is how often the function is called in one run of the program, as far as is known. `device` is the
    path of the device that the function is for, if it is device code or what the host does for it.
    """

    function: str
    site: str
    calls: tuple[int, ...]
    ops: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    inner: tuple[str, ...] = ()
    runs: Fraction = Fraction(1)
    device: str | None = None


@dataclass(frozen=True, slots=True)
class DrivenRecord:
    """An operation with nested bodies that a driver runs: its number and name, the driver, and the system it is of."""

    driver: str
    system: str
    call: int
    op: str


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """A copy that a driver makes: which value, from and to which memory domain, its type, and how often."""

    driver: str
    value: str
    src: str
    dst: str
    type: Type
    runs: Fraction = Fraction(1)

    @property
    def nbytes(self) -> int | None:
        """What is moved at a time, in bytes, or None where the shape is open."""
        return self.type.nbytes if isinstance(self.type, TensorType) else None


@dataclass(frozen=True, slots=True)
class Outlined:
    """All functions of the decomposed program, the entry first, and what they do."""

    functions: tuple[Function, ...]
    regions: tuple[RegionRecord, ...]
    copies: tuple[CopyRecord, ...]
    driven: tuple[DrivenRecord, ...] = ()


def outline(program: Program, root: Region, groups: Iterable[Group] = ()) -> Outlined:
    """Make the functions of a tree of regions; the entry keeps the signature of the original function.

    A leaf function says in its attribute `matches` which of its operations patterns of the strategy take together:
    for each match the pattern, then the names of the operations.
    """
    outliner = _Outliner(program, groups)
    function = program.function
    params = tuple(param.name for param in function.params)
    outliner.add(root, function.name, params, function.results, Fraction(1))
    return Outlined(tuple(outliner.functions), tuple(outliner.regions), tuple(outliner.copies), tuple(outliner.driven))


class _Outliner:
    def __init__(self, program: Program, groups: Iterable[Group]) -> None:
        self.program = program
        self.groups = {group.calls[-1]: group for group in groups}
        self.functions: list[Function] = []
        self.regions: list[RegionRecord] = []
        self.copies: list[CopyRecord] = []
        self.driven: list[DrivenRecord] = []
        self.constants = program.constants
        self.names = Names(function.name for function in program.others)
        self.values = Names(program.types)
        self.kept = tuple(item for item in program.function.attrs if item[0] not in ("role", *SIDED))  # of the entry

    def add(self, region: Region, name: str, params: tuple[str, ...], results: tuple[str, ...], runs: Fraction) -> str:
        """Add the function of a region, and those of its parts behind it; returns the name it got."""
        name = self.names.fresh(name)
        add = self._leaf if region.is_leaf else self._driver
        add(region, name, params, results, runs)
        return name

    def _leaf(
        self, region: Region, name: str, params: tuple[str, ...], results: tuple[str, ...], runs: Fraction
    ) -> None:
        body = tuple(self.program.body[index] for index in region.calls)
        inner = tuple(self.program.body[i].source for index in region.calls for i in self.program.nested(index))
        used = [used for call in body for used in call.uses()]
        function = self._function(region, name, params, results, body, [*used, *results], "leaf")
        matches = self._matches(region)
        self.functions.append(function.replace(attrs=(*function.attrs, ("matches", matches))) if matches else function)
        ops = tuple(call.source for call in body)
        self.regions.append(
            RegionRecord(name, region.site.path, region.calls, ops, params, results, inner, runs, region.device)
        )

    def _matches(self, region: Region) -> tuple[tuple[str, ...], ...]:
        kind, body = region.site.target.kind, self.program.body
        found = (self.groups[index] for index in region.calls if index in self.groups)
        return tuple((one.pattern, *(body[index].source for index in one.calls)) for one in found if one.kind == kind)

    def _driver(
        self, region: Region, name: str, params: tuple[str, ...], results: tuple[str, ...], runs: Fraction
    ) -> None:
        place = len(self.functions)
        steps = self._steps(region, name, name, runs)
        block = Block("", params, results, steps, runs=runs)
        home = self.program.layout.home(region.site.path)
        written = write_driver(block, home, self.constants, self.program.types.__getitem__, self.values)
        self.copies += (
            CopyRecord(name, copy.value, copy.src, copy.dst, self.program.types[copy.value], copy.runs)
            for copy in written.copies
        )
        function = self._function(region, name, params, written.results, written.body, block.used(), "driver")
        self.functions.insert(place, function)

    def _steps(self, region: Region, driver: str, name: str, runs: Fraction) -> tuple[Step, ...]:
        """Return what a driver does for the parts of a system; functions are called by `name` and their place."""
        return tuple(
            self._run(part, driver, f"{name}_{position}", runs)
            if part.bodies
            else self._call(part, f"{name}_{position}", runs)
            for position, part in enumerate(region.parts)
        )

    def _call(self, part: Region, name: str, runs: Fraction) -> Step:
        inputs, outputs = self._border(part)
        callee = self.add(part, name, inputs, outputs, runs)
        has_effect = any(self.program.body[index].has_effect for index in part.calls)
        values = tuple(Value(value, self.program.types[value]) for value in outputs)
        call = Call(f"@{callee}", inputs, values, source=callee, has_effect=has_effect)
        return Step(call, self.program.layout.home(part.site.path))

    def _border(self, part: Region) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return what a part reads from outside, by first use, and what is read of it outside, as it is computed.

        Constants are no inputs: whoever reads one holds it.
        """
        program, inside = self.program, set(part.calls)
        defined = [output.name for index in part.calls for output in program.body[index].outputs if output.name]
        own = set(defined)
        inputs = dict.fromkeys(name for name in self._uses(part) if name not in own and name not in self.constants)
        outputs = (
            name
            for name in defined
            if name in program.results or not inside.issuperset(program.consumers.get(name, ()))
        )
        return tuple(inputs), tuple(outputs)

    def _uses(self, region: Region) -> Iterator[str]:
        """Yield what the operations of a region read, as they run; of nested bodies only what they capture."""
        for part in region.parts:
            yield from self._uses(part)
        if not region.is_leaf and not region.bodies:
            return
        for index in region.calls:
            call = self.program.body[index]
            yield from filter(None, call.inputs) if region.bodies else call.uses()
        scopes = self.program.bodies[region.calls[0]] if region.bodies else ()
        for scope, body in zip(scopes, region.bodies, strict=True):
            own = scope.function.types
            yield from (name for name in (*self._uses(body), *scope.function.results) if name not in own)

    def _run(self, part: Region, driver: str, name: str, runs: Fraction) -> Step:
        """Return the step of an operation whose nested bodies the driver runs."""
        (index,) = part.calls
        call = self.program.body[index]
        self.driven.append(DrivenRecord(driver, part.site.path, index, call.source))
        form = form_of(call)
        repeats = form is not None and form.repeats
        inside = runs * runs_of_bodies(self.program.op(index))
        blocks = tuple(
            Block(
                scope.label,
                tuple(param.name for param in scope.function.params),
                scope.function.results,
                self._steps(body, driver, f"{name}_{scope.label}", inside),
                repeats,
                inside,
            )
            for scope, body in zip(self.program.bodies[index], part.bodies, strict=True)
        )
        return Step(call, self.program.layout.home(part.site.path), blocks)

    def _function(
        self,
        region: Region,
        name: str,
        params: tuple[str, ...],
        results: tuple[str, ...],
        body: tuple[Call, ...],
        used: Iterable[str],
        role: str,
    ) -> Function:
        domain = self.program.layout.home(region.site.path)
        constants = dict.fromkeys(used for used in used if used in self.constants)
        function = Function(
            name=name,
            params=tuple(Value(param, self.program.types[param], domain) for param in params),
            body=body,
            results=results,
            constants=tuple(self.constants[constant] for constant in constants),
            constraint=Constraint.at(region.site.path),
            opsets=self.program.function.opsets,
            attrs=(*(self.kept if name == self.program.function.name else ()), ("role", role)),
        )
        return function if region.device is None else self._sided(function, region, region.device)

    def _sided(self, function: Function, region: Region, device: str) -> Function:
        if region.is_leaf and region.site.path == device:
            return as_device(function)
        return as_host(function, self.program.layout[device].host, device)
