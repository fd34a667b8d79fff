"""What a driver does, step by step, and where it copies values between memories.

A value is copied once for each memory in which it is needed: in the innermost body that all who need it there are
in, before the first of them, but outside of every loop in which the value does not change. It is copied from memory to
memory by the fastest route for its size (`memory_graph.py`). Constants that a driver gives to functions are copied once
for all runs. What a loop carries is in the driver's memory, or stays in that where its body computes it, if fewer
copies are made so.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from tvmtarget.ir.function import COPY, Call, Function, Value
from tvmtarget.ir.names import Names
from tvmtarget.ir.types import Type
from tvmtarget.partition.control.control_flow_ops import DEFAULT_TRIP_COUNT, BodyArgument, body_arguments
from tvmtarget.partition.costs.memory_graph import MemoryGraph

__all__ = ["DriverBlock", "DriverStep", "WrittenCopy", "WrittenDriver", "write_driver"]

# Copies that keeping a carried value in another memory than the driver's may add around a loop.
AROUND = 2


@dataclass(frozen=True, slots=True, eq=False)
class DriverStep:
    """A call whose operands and results are in one memory domain, and the nested bodies that the driver runs.

    What a loop carries may be in another one.
    """

    call: Call
    domain: str
    blocks: tuple[DriverBlock, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class DriverBlock:
    """The steps of a driver, or of a nested body that it runs.

    Parameters and results are in the driver's memory, or where a loop carries them.

    `repeats` says that it may run more than once where it stands, `runs` how often it does, as far as is known,
    for one run of the program.
    """

    label: str
    params: tuple[str, ...]
    results: tuple[str, ...]
    steps: tuple[DriverStep, ...]
    repeats: bool = False
    runs: Fraction = Fraction(1)

    def used(self) -> Iterator[str]:
        """Yield the values that the driver reads, or gives to functions: operands and results."""
        for step in self.steps:
            yield from step.call.inputs
            for block in step.blocks:
                yield from block.used()
        yield from self.results


@dataclass(frozen=True, slots=True)
class WrittenCopy:
    """A copy: of which value, between which memory domains, and how often."""

    value: str
    src: str
    dst: str
    runs: Fraction


@dataclass(frozen=True, slots=True)
class WrittenDriver:
    """The body of a driver, its results in its own memory, and the copies that it makes in order."""

    body: tuple[Call, ...]
    results: tuple[str, ...]
    copies: tuple[WrittenCopy, ...]


def write_driver(
    block: DriverBlock,
    home: str,
    constants: Container[str],
    types: Callable[[str], Type],
    names: Names,
    memory_graph: MemoryGraph,
    domains: Container[str],
) -> WrittenDriver:
    """Write the steps of a driver with all copies that they need; names of copies are taken from `names`.

    What a loop carries may be asked to be in one of the `domains` of the target.
    """
    writer = _Writer(home, constants, types, names, memory_graph, domains)
    writer.carry(block)
    writer.define(block, 0)
    writer.look(block, ())
    writer.deliver(block)
    writer.place()
    body = writer.write(block)
    return WrittenDriver(body, writer.delivered(block), tuple(writer.copies))


@dataclass
class _Writer:
    home: str
    constants: Container[str]
    types: Callable[[str], Type]
    names: Names
    memory_graph: MemoryGraph
    domains: Container[str]
    where: dict[str, tuple[int, str]] = field(default_factory=dict)  # of a value: depth of its block, and domain
    carried: dict[DriverStep, dict[BodyArgument, str]] = field(
        default_factory=dict
    )  # in which domain a loop carries a value
    uses: dict[tuple[str, str], list[tuple[tuple[DriverBlock, int], ...]]] = field(default_factory=dict)
    placed: dict[tuple[DriverBlock, int], list[tuple[str, str]]] = field(default_factory=dict)
    copied: dict[tuple[str, str], str] = field(default_factory=dict)
    copies: list[WrittenCopy] = field(default_factory=list)

    def carry(self, block: DriverBlock) -> None:
        """Choose where loops carry their values, inner loops first, by the copies that this takes."""
        for step in block.steps:
            for body in step.blocks:
                self.carry(body)
                times = body.runs / block.runs if block.runs else Fraction(DEFAULT_TRIP_COUNT)
                found = {
                    slot: self._asked(step.call, slot) or self._kept(body, slot, times)
                    for slot in body_arguments(step.call)
                }
                self.carried[step] = {slot: domain for slot, domain in found.items() if domain != self.home}

    def define(self, block: DriverBlock, depth: int, carried: Mapping[int, str] | None = None) -> None:
        """Note where each value is defined; `carried` are the parameters that are not in the driver's memory."""
        kept = carried or {}
        self.where |= {name: (depth, kept.get(place, self.home)) for place, name in enumerate(block.params)}
        for step in block.steps:
            outputs = zip(step.call.outputs, self._made_in(step), strict=True)
            self.where |= {output.name: (depth, domain) for output, domain in outputs}
            for inner in step.blocks:
                params = {slot.param: domain for slot, domain in self.carried.get(step, {}).items()}
                self.define(inner, depth + 1, params)

    def look(self, block: DriverBlock, path: tuple[tuple[DriverBlock, int], ...]) -> None:
        """Note who needs which value in which memory; a path are the steps that lead there, each in its block."""
        for position, step in enumerate(block.steps):
            for name, domain in zip(step.call.inputs, self._operands(step), strict=True):
                self._use(name, domain, (*path, (block, position)))
            for inner in step.blocks:
                self.look(inner, (*path, (block, position)))
                for name, domain in zip(inner.results, self._results(step, inner), strict=True):
                    self._use(name, domain, (*path, (block, position), (inner, len(inner.steps))))

    def _asked(self, call: Call, slot: BodyArgument) -> str:
        """Return in which memory of the target a loop is asked to carry a value; none where it is not asked for."""
        ((_, body),) = call.regions
        asked = body.params[slot.param].scope or call.outputs[slot.output].scope
        return asked if asked in self.domains else ""

    def _kept(self, body: DriverBlock, slot: BodyArgument, times: Fraction) -> str:
        """Return in which memory a loop carries a value with the fewest copies."""
        made = {
            output.name: domain
            for step in body.steps
            for output, domain in zip(step.call.outputs, self._made_in(step), strict=True)
        }
        result = body.results[slot.result]
        there = made.get(result, self.home)
        needed = set(self._needed_in(body, body.params[slot.param]))
        is_home = body.results.count(result) > 1 or self.home in self._needed_in(body, result)
        fewer = len(needed - {self.home}) + (not is_home) - len(needed - {there})
        return there if there != self.home and fewer * times > AROUND else self.home

    def _needed_in(self, block: DriverBlock, name: str) -> Iterator[str]:
        """Yield the memories in which a block, or one nested in it, needs a value; its own results are not counted."""
        for step in block.steps:
            operands = zip(step.call.inputs, self._operands(step), strict=True)
            yield from (domain for operand, domain in operands if operand == name)
            for inner in step.blocks:
                yield from self._needed_in(inner, name)
                results = zip(inner.results, self._results(step, inner), strict=True)
                yield from (domain for result, domain in results if result == name)

    def _operands(self, step: DriverStep) -> list[str]:
        """Return in which memory each operand of a step is needed."""
        kept = {slot.operand: domain for slot, domain in self.carried.get(step, {}).items()}
        return [kept.get(place, step.domain) for place in range(len(step.call.inputs))]

    def _made_in(self, step: DriverStep) -> list[str]:
        """Return in which memory each result of a step is."""
        kept = {slot.output: domain for slot, domain in self.carried.get(step, {}).items()}
        return [kept.get(place, step.domain) for place in range(len(step.call.outputs))]

    def _results(self, step: DriverStep, body: DriverBlock) -> list[str]:
        """Return in which memory each result of a nested body is needed."""
        kept = {slot.result: domain for slot, domain in self.carried.get(step, {}).items()}
        return [kept.get(place, self.home) for place in range(len(body.results))]

    def deliver(self, block: DriverBlock) -> None:
        """Note that the results of the driver are needed in its memory."""
        for name in block.results:
            self._use(name, self.home, ((block, len(block.steps)),))

    def delivered(self, block: DriverBlock) -> tuple[str, ...]:
        """Return the names of the results of the driver in its memory."""
        return tuple(self._at(name, self.home) for name in block.results)

    def _use(self, name: str, domain: str, path: tuple[tuple[DriverBlock, int], ...]) -> None:
        src = self.place_of(name)[1] if name else domain
        for stop in (*self._stops(name, src, domain), domain) if src != domain else ():
            self.uses.setdefault((name, stop), []).append(path)

    def place(self) -> None:
        """Decide before which step each copy is made."""
        for (name, domain), paths in self.uses.items():
            depth = deepest = self.place_of(name)[0]
            shortest = min(map(len, paths))
            while deepest + 1 < shortest and all(path[deepest + 1][0] is paths[0][deepest + 1][0] for path in paths):
                deepest += 1
            looped = (level - 1 for level in range(depth + 1, deepest + 1) if paths[0][level][0].repeats)
            level = next(looped, deepest)
            position = min(path[level][1] for path in paths)
            self.placed.setdefault((paths[0][level][0], position), []).append((name, domain))

    def write(self, block: DriverBlock) -> tuple[Call, ...]:
        """Return the calls of a block, with copies."""
        body: list[Call] = []
        for position, step in enumerate(block.steps):
            body += self._copies(block, position)
            inputs = tuple(map(self._at, step.call.inputs, self._operands(step)))
            made_in = zip(step.call.outputs, self._made_in(step), strict=True)
            outputs = tuple(replace(output, scope=domain) for output, domain in made_in)
            regions = tuple(
                self._nested(step, inner, region)
                for inner, (_, region) in zip(step.blocks, step.call.regions, strict=True)
            )
            body.append(replace(step.call, inputs=inputs, outputs=outputs, regions=regions))
        body += self._copies(block, len(block.steps))
        return tuple(body)

    def _nested(self, step: DriverStep, block: DriverBlock, region: Function) -> tuple[str, Function]:
        body = self.write(block)
        results = tuple(map(self._at, block.results, self._results(step, block)))
        params = tuple(Value(param.name, param.type, self.where[param.name][1]) for param in region.params)
        return block.label, region.replace(params=params, body=body, results=results, constants=())

    def _copies(self, block: DriverBlock, position: int) -> Iterator[Call]:
        for name, domain in self.placed.get((block, position), ()):
            copy = self.names.fresh(f"{name}.copy")
            made = self.place_of(name)[1]
            src = (made, *self._stops(name, made, domain))[-1]
            source = self._at(name, src)
            self.copied[name, domain] = copy
            self.copies.append(WrittenCopy(name, src, domain, Fraction(0) if name in self.constants else block.runs))
            value = Value(copy, self.types(name), domain)
            yield Call(COPY, (source,), (value,), (("src", src), ("dst", domain)), source=f"copy {name}")

    def _stops(self, name: str, src: str, dst: str) -> tuple[str, ...]:
        """Return the memories over which a value is copied, the ends left out."""
        return self.memory_graph.route(src, dst, self.memory_graph.nbytes(self.types(name))).stops

    def _at(self, name: str, domain: str) -> str:
        if not name or self.place_of(name)[1] == domain:
            return name
        return self.copied[name, domain]

    def place_of(self, name: str) -> tuple[int, str]:
        """Return the depth of the block that defines a value, and its memory: constants are the driver's own."""
        return (0, self.home) if name in self.constants else self.where[name]
