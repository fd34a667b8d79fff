"""What a driver does, step by step, and where it copies values between memories.

A value is copied once for each memory in which it is needed: in the innermost body that all who need it there are
in, before the first of them, but outside of every loop in which the value does not change. Where no link leads there,
it is copied from memory to memory along the links of the tree (`routes.py`). Constants that a driver gives to
functions are copied once for all runs.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

from tvmtarget.ir.function import COPY, Call, Function, Value
from tvmtarget.ir.names import Names
from tvmtarget.ir.types import Type
from tvmtarget.partition.routes import Routes

__all__ = ["Block", "Copied", "Step", "Written", "write_driver"]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A call whose operands and results are in one memory domain, and the nested bodies that the driver runs."""

    call: Call
    domain: str
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The steps of a driver, or of a nested body that it runs; parameters and results are in the driver's memory.

    `repeats` says that it may run more than once where it stands, `runs` how often it does, as far as is known,
    for one run of the program.
    """

    label: str
    params: tuple[str, ...]
    results: tuple[str, ...]
    steps: tuple[Step, ...]
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
class Copied:
    """A copy: of which value, between which memory domains, and how often."""

    value: str
    src: str
    dst: str
    runs: Fraction


@dataclass(frozen=True, slots=True)
class Written:
    """The body of a driver, its results in its own memory, and the copies that it makes in order."""

    body: tuple[Call, ...]
    results: tuple[str, ...]
    copies: tuple[Copied, ...]


def write_driver(
    block: Block, home: str, constants: Container[str], types: Callable[[str], Type], names: Names, routes: Routes
) -> Written:
    """Write the steps of a driver with all copies that they need; names of copies are taken from `names`."""
    writer = _Writer(home, constants, types, names, routes)
    writer.define(block, 0)
    writer.look(block, ())
    writer.place()
    body, results = writer.write(block)
    return Written(body, results, tuple(writer.copies))


@dataclass
class _Writer:
    home: str
    constants: Container[str]
    types: Callable[[str], Type]
    names: Names
    routes: Routes
    where: dict[str, tuple[int, str]] = field(default_factory=dict)  # of a value: depth of its block, and domain
    uses: dict[tuple[str, str], list[tuple[tuple[Block, int], ...]]] = field(default_factory=dict)
    placed: dict[tuple[Block, int], list[tuple[str, str]]] = field(default_factory=dict)
    copied: dict[tuple[str, str], str] = field(default_factory=dict)
    copies: list[Copied] = field(default_factory=list)

    def define(self, block: Block, depth: int) -> None:
        """Note where each value is defined."""
        self.where |= dict.fromkeys(block.params, (depth, self.home))
        for step in block.steps:
            self.where |= {output.name: (depth, step.domain) for output in step.call.outputs}
            for inner in step.blocks:
                self.define(inner, depth + 1)

    def look(self, block: Block, path: tuple[tuple[Block, int], ...]) -> None:
        """Note who needs which value in which memory; a path are the steps that lead there, each in its block."""
        for position, step in enumerate(block.steps):
            for name in step.call.inputs:
                self._use(name, step.domain, (*path, (block, position)))
            for inner in step.blocks:
                self.look(inner, (*path, (block, position)))
        for name in block.results:
            self._use(name, self.home, (*path, (block, len(block.steps))))

    def _use(self, name: str, domain: str, path: tuple[tuple[Block, int], ...]) -> None:
        src = self.place_of(name)[1] if name else domain
        for stop in (*self.routes.between(src, domain), domain) if src != domain else ():
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

    def write(self, block: Block) -> tuple[tuple[Call, ...], tuple[str, ...]]:
        """Return the calls of a block, with copies, and its results."""
        body: list[Call] = []
        for position, step in enumerate(block.steps):
            body += self._copies(block, position)
            inputs = tuple(self._at(name, step.domain) for name in step.call.inputs)
            outputs = tuple(replace(output, scope=step.domain) for output in step.call.outputs)
            regions = tuple(
                self._nested(inner, region) for inner, (_, region) in zip(step.blocks, step.call.regions, strict=True)
            )
            body.append(replace(step.call, inputs=inputs, outputs=outputs, regions=regions))
        body += self._copies(block, len(block.steps))
        return tuple(body), tuple(self._at(name, self.home) for name in block.results)

    def _nested(self, block: Block, region: Function) -> tuple[str, Function]:
        body, results = self.write(block)
        params = tuple(Value(param.name, param.type, self.home) for param in region.params)
        return block.label, region.replace(params=params, body=body, results=results, constants=())

    def _copies(self, block: Block, position: int) -> Iterator[Call]:
        for name, domain in self.placed.get((block, position), ()):
            copy = self.names.fresh(f"{name}.copy")
            made = self.place_of(name)[1]
            src = (made, *self.routes.between(made, domain))[-1]
            source = self._at(name, src)
            self.copied[name, domain] = copy
            self.copies.append(Copied(name, src, domain, Fraction(0) if name in self.constants else block.runs))
            value = Value(copy, self.types(name), domain)
            yield Call(COPY, (source,), (value,), (("src", src), ("dst", domain)), source=f"copy {name}")

    def _at(self, name: str, domain: str) -> str:
        if not name or self.place_of(name)[1] == domain:
            return name
        return self.copied[name, domain]

    def place_of(self, name: str) -> tuple[int, str]:
        """Return the depth of the block that defines a value, and its memory: constants are the driver's own."""
        return (0, self.home) if name in self.constants else self.where[name]
