"""Which subgraphs are alike: of one structure on one site, so that one function does for all of them.

Neither names nor the order in which independent operations are given matter, nor what symbolic dimensions are called.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy.typing as npt

from tvmtarget.ir.function import Constant
from tvmtarget.ir.structure import type_pattern
from tvmtarget.ir.tensors import bytes_of
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.outline.canonical_order import CanonicalOrders
from tvmtarget.partition.partition_node import PartitionNode
from tvmtarget.partition.placement.pattern_groups import PatternGroup

__all__ = ["SubgraphStructure", "SubgraphStructures", "same_data"]

# Elements of a constant that are compared, and named by, before all of them are read.
_SAMPLE = 16

# Hexadecimal digits in a function's name: of programs with ten thousand functions one in eighty has two of one name.
_DIGITS = 8

Held = Callable[[PartitionNode], Collection[str]]


@dataclass(frozen=True)
class SubgraphStructure:
    """What a subgraph is apart from names and the data of constants (`key`), and what stands where in it.

    `ops` are its operations in an order that their structure gives, each before those in its bodies; `values` what
    they read and compute, `constants` what they hold, and `dims` their symbolic dimensions, by first mention. Of
    subgraphs with one key, those in one place belong to each other. The key is the same for every program, order of
    operations and process.
    """

    key: tuple[Hashable, ...]
    ops: tuple[int, ...]
    values: tuple[str, ...]
    constants: tuple[str, ...]
    dims: tuple[str, ...]

    def matched(self, other: SubgraphStructure, ran: Sequence[int]) -> Correspondence:
        """Return what in another subgraph of a key belongs to what in this one, whose operations ran in that order."""
        values = zip((*self.values, *self.constants), (*other.values, *other.constants), strict=True)
        dims = zip(self.dims, other.dims, strict=True)
        ops = dict(zip(self.ops, other.ops, strict=True))
        return Correspondence({index: ops[index] for index in ran}, dict(values), dict(dims))


@dataclass(frozen=True, slots=True)
class Correspondence:
    """For the operations, values and symbolic dimensions of one subgraph those of another that is alike.

    The operations are in the order in which the one subgraph runs them.
    """

    ops: Mapping[int, int]
    values: Mapping[str, str]
    dims: Mapping[str, str]


class SubgraphStructures:
    """Takes the shapes of subgraphs of one program; `groups` are what patterns take together."""

    def __init__(self, program: FlatProgram, groups: Iterable[PatternGroup] = ()) -> None:
        self.program = program
        self.groups = {group.calls[-1]: group for group in groups}
        self._matched = frozenset(index for group in self.groups.values() for index in group.calls)
        self._orders: dict[int, tuple[int, ...]] = {}  # of leaves, by their first operation
        self._arranging = CanonicalOrders()

    def is_matched(self, index: int) -> bool:
        """Whether a pattern takes an operation together with others."""
        return index in self._matched

    def of(self, subgraph: PartitionNode, results: Sequence[str], held: Held) -> SubgraphStructure:
        """Return the shape of a subgraph that returns these values; `held` are the constants that a leaf's function
        has.

        Constants that a function does not hold are given to it like other values.
        """
        walk = _Walk(self, held)
        walk.subgraph(subgraph)
        return walk.shape(results)

    def order(self, calls: tuple[int, ...]) -> tuple[int, ...]:
        """Return a leaf's operations in an order that does not depend on the one they are given in."""
        program = self.program
        if len(calls) == 1 or any(index in program.bodies for index in calls):
            return calls
        if calls[0] not in self._orders:
            told = [program.fingerprint(index).text for index in calls]
            places = self._arranging.order([program.body[index] for index in calls], told)
            self._orders[calls[0]] = tuple(calls[place] for place in places)
        return self._orders[calls[0]]

    def name(self, subgraph: PartitionNode, shape: SubgraphStructure) -> str:
        """Return a name: the site, of a leaf the first operator, and digits for structure and some of the weights."""
        held = (self.program.constants[name] for name in shape.constants)
        known = [(str(constant.type), bytes(bytes_of(_sample(constant))).hex()) for constant in held]
        digits = sha256(repr((shape.key, known)).encode()).hexdigest()[:_DIGITS]
        place = subgraph.site.path.rpartition("/")[2] or subgraph.site.target.kind
        kind = self.program.body[shape.ops[0]].kind.rpartition(".")[2] if subgraph.is_leaf and shape.ops else ""
        return re.sub(r"\W+", "_", f"{place}_{kind}".lower()).strip("_") + f"_{digits}"


@dataclass
class _Walk:
    """A walk over a subgraph that notes what it is."""

    shapes: SubgraphStructures
    held: Held
    key: list[Hashable] = field(default_factory=list)
    ops: list[int] = field(default_factory=list)
    values: dict[str, int] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    own: Collection[str] = ()
    is_named: bool = False  # whether symbolic dimensions may be spoken of by name

    @cached_property
    def program(self) -> FlatProgram:
        return self.shapes.program

    def shape(self, results: Sequence[str]) -> SubgraphStructure:
        """Return what was noted, with what is returned; attributes of dialects other than ONNX may name dimensions."""
        self.key.append(tuple(sorted(map(self.refer, results))))
        self.key += self.dims if self.is_named else ()
        return SubgraphStructure(
            tuple(self.key), tuple(self.ops), tuple(self.values), tuple(self.constants), tuple(self.dims)
        )

    def subgraph(self, subgraph: PartitionNode) -> None:
        self.key += ("region", subgraph.site.path, subgraph.device)
        if subgraph.is_leaf:
            self.own = self.held(subgraph)
            calls = self.shapes.order(subgraph.calls) if subgraph.calls else ()
            for index in calls:
                self.op(index)
            self.key += self.matches(calls, subgraph.site.target.kind)
            return
        self.own = self.program.constants
        for part in subgraph.parts:
            self.subgraph(part)
        for index in subgraph.calls if subgraph.bodies else ():
            self.op(index, subgraph.bodies)
        self.key.append("end")

    def op(self, index: int, divided: Sequence[PartitionNode] = ()) -> None:
        """Add an operation; where a driver runs it, `divided` are the subgraphs of its bodies."""
        call = self.program.body[index]
        self.ops.append(index)
        self.is_named = self.is_named or not call.op.startswith("onnx.")
        told = self.program.fingerprint(index)
        self.key.append(told.text)
        self.key += map(self.dim, told.dims)
        self.key += [self.refer(name) for name in call.inputs]
        self.key += [self.refer(output.name) for output in call.outputs]
        scopes = self.program.bodies.get(index, ())
        for place, scope in enumerate(scopes):
            dims: list[str] = []
            types = [type_pattern(param.type, dims) for param in scope.function.params]
            self.key.append((scope.label, *types, *map(self.dim, dims)))
            self.key += [self.refer(param.name) for param in scope.function.params]
            if divided:
                self.subgraph(divided[place])
                self.own = self.program.constants
            for inner in () if divided else scope.calls:
                self.op(inner)
            self.key.append(tuple(map(self.refer, scope.function.results)))

    def dim(self, name: str) -> int:
        """Return a number that stands for a symbolic dimension."""
        return self.dims.setdefault(name, len(self.dims))

    def refer(self, name: str) -> int:
        """Return a number that stands for a value: from 0 up, for constants that are held from -2 down."""
        if not name:
            return -1
        if name in self.own and name in self.program.constants:
            return -2 - self.constants.setdefault(name, len(self.constants))
        return self.values.setdefault(name, len(self.values))

    def matches(self, calls: Sequence[int], kind: str) -> Iterator[Hashable]:
        """Yield what patterns of the site take together, by place."""
        groups = self.shapes.groups
        place = {index: number for number, index in enumerate(calls)} if groups else {}
        for index in place:
            group = groups.get(index)
            pattern = None if group is None else group.pattern_of(kind)
            if group is not None and pattern is not None:
                yield pattern, tuple(place[one] for one in group.calls)


def _sample(constant: Constant) -> npt.NDArray[Any]:
    """Return some elements of a constant, from all over it."""
    flat = constant.data.reshape(-1)
    return flat[:: max(1, flat.size // _SAMPLE)][:_SAMPLE]


def same_data(one: Constant, other: Constant) -> bool:
    """Whether two constants of one type hold the same; where they differ early, the rest is not read."""
    if one.data is other.data:
        return True
    first, second = (bytes(bytes_of(_sample(constant))) for constant in (one, other))
    return first == second and one.digest == other.digest
