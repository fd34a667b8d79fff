"""Stages E and G: a function for each region, a driver for each system, and copies where memories differ."""

from __future__ import annotations

from dataclasses import dataclass

from tvmtarget.ir.flow import boundary
from tvmtarget.ir.function import COPY, Call, Function, Value
from tvmtarget.ir.names import Names
from tvmtarget.ir.types import TensorType, Type
from tvmtarget.partition.host_device.attributes import as_device, as_host
from tvmtarget.partition.program import Program
from tvmtarget.partition.split import Region
from tvmtarget.target.constraints.constraint import Constraint

__all__ = ["CopyRecord", "Outlined", "RegionRecord", "outline"]


@dataclass(frozen=True, slots=True)
class RegionRecord:
    """A region as a report tells it: its function, site, operations by source name, inputs and outputs.

    `calls` are the operations by their position in the undivided function. `device` is the path of the device that
    the function is for, if it is device code or what the host does for it.
    """

    function: str
    site: str
    calls: tuple[int, ...]
    ops: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    device: str | None = None


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """A copy that a driver makes: which value, from and to which memory domain, and its type."""

    driver: str
    value: str
    src: str
    dst: str
    type: Type

    @property
    def nbytes(self) -> int | None:
        """What is moved, in bytes, or None where the shape is open."""
        return self.type.nbytes if isinstance(self.type, TensorType) else None


@dataclass(frozen=True, slots=True)
class Outlined:
    """All functions of the decomposed program, the entry first, and what they do."""

    functions: tuple[Function, ...]
    regions: tuple[RegionRecord, ...]
    copies: tuple[CopyRecord, ...]


def outline(program: Program, root: Region) -> Outlined:
    """Make the functions of a tree of regions; the entry keeps the signature of the original function."""
    outliner = _Outliner(program)
    function = program.function
    outliner.add(root, function.name, tuple(param.name for param in function.params), function.results)
    return Outlined(tuple(outliner.functions), tuple(outliner.regions), tuple(outliner.copies))


class _Outliner:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.functions: list[Function] = []
        self.regions: list[RegionRecord] = []
        self.copies: list[CopyRecord] = []
        self.constants = {constant.name: constant for constant in program.function.constants}
        self.order = {name: position for position, name in enumerate(self.constants)}
        self.names = Names(function.name for function in program.others)
        self.values = Names(program.function.types)

    def add(self, region: Region, name: str, params: tuple[str, ...], results: tuple[str, ...]) -> str:
        """Add the function of a region, and those of its parts behind it; returns the name it got."""
        name = self.names.fresh(name)
        add = self._leaf if region.is_leaf else self._driver
        add(region, name, params, results)
        return name

    def _leaf(self, region: Region, name: str, params: tuple[str, ...], results: tuple[str, ...]) -> None:
        body = tuple(self.program.body[index] for index in region.calls)
        used = [used for call in body for used in call.uses()]
        self.functions.append(self._function(region, name, params, results, body, [*used, *results], "leaf"))
        self.regions.append(
            RegionRecord(
                name, region.site.path, region.calls, tuple(c.source for c in body), params, results, region.device
            )
        )

    def _driver(self, region: Region, name: str, params: tuple[str, ...], results: tuple[str, ...]) -> None:
        place = len(self.functions)
        writer = _DriverWriter(self, name, self.program.layout.home(region.site.path), params)
        for position, part in enumerate(region.parts):
            inputs, outputs = boundary(self.program.function, part.calls, self.program.consumers)
            callee = self.add(part, f"{name}_{position}", inputs, outputs)
            has_effect = any(self.program.body[index].has_effect for index in part.calls)
            writer.call(callee, inputs, outputs, self.program.layout.home(part.site.path), has_effect=has_effect)
        final = tuple(writer.at_home(result) for result in results)
        self.functions.insert(
            place, self._function(region, name, params, final, tuple(writer.body), list(results), "driver")
        )

    def _function(
        self,
        region: Region,
        name: str,
        params: tuple[str, ...],
        results: tuple[str, ...],
        body: tuple[Call, ...],
        used: list[str],
        role: str,
    ) -> Function:
        domain = self.program.layout.home(region.site.path)
        constants = sorted({used for used in used if used in self.constants}, key=self.order.__getitem__)
        function = Function(
            name=name,
            params=tuple(Value(param, self.type_of(param), domain) for param in params),
            body=body,
            results=results,
            constants=tuple(self.constants[constant] for constant in constants),
            constraint=Constraint.at(region.site.path),
            opsets=self.program.function.opsets,
            attrs=(("role", role),),
        )
        return function if region.device is None else self._sided(function, region, region.device)

    def _sided(self, function: Function, region: Region, device: str) -> Function:
        if region.is_leaf and region.site.path == device:
            return as_device(function)
        return as_host(function, self.program.layout[device].host, device)

    def type_of(self, value: str) -> Type:
        """Return the type of a value of the original function."""
        return self.program.function.types[value]


class _DriverWriter:
    """Writes the body of a driver; knows in which memory domains each value already is."""

    def __init__(self, outliner: _Outliner, name: str, home: str, params: tuple[str, ...]) -> None:
        self.outliner = outliner
        self.name = name
        self.home = home
        self.body: list[Call] = []
        self.where: dict[str, dict[str, str]] = {param: {home: param} for param in params}

    def call(
        self, callee: str, inputs: tuple[str, ...], outputs: tuple[str, ...], domain: str, *, has_effect: bool
    ) -> None:
        """Call a function whose values are in a domain; what it reads is copied there first, once."""
        arguments = tuple(self._at(value, domain) for value in inputs)
        values = tuple(Value(value, self.outliner.type_of(value), domain) for value in outputs)
        self.body.append(Call(f"@{callee}", arguments, values, source=callee, has_effect=has_effect))
        for value in outputs:
            self.where[value] = {domain: value}

    def at_home(self, value: str) -> str:
        """Return the name of a result in the driver's own memory."""
        return value if value in self.outliner.constants else self._at(value, self.home)

    def _at(self, value: str, domain: str) -> str:
        copies = self.where[value]
        if domain not in copies:
            src = next(iter(copies))
            name = self.outliner.values.fresh(f"{value}.copy")
            type_ = self.outliner.type_of(value)
            ends = (("src", src), ("dst", domain))
            self.body.append(Call(COPY, (copies[src],), (Value(name, type_, domain),), ends, source=f"copy {value}"))
            self.outliner.copies.append(CopyRecord(self.name, value, src, domain, type_))
            copies[domain] = name
        return copies[domain]
