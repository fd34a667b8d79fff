"""Which regions are alike: of one structure on one site, so that one function does for all of them.

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

from tvmtarget.ir.function import Attribute, Constant
from tvmtarget.ir.tensors import bytes_of
from tvmtarget.ir.types import MapType, OptionalType, SequenceType, SparseType, TensorType, Type
from tvmtarget.partition.arranging import arranged
from tvmtarget.partition.matching import Group
from tvmtarget.partition.program import Program
from tvmtarget.partition.split import Region

__all__ = ["Shape", "Shapes", "same_data"]

# Elements of a constant that are compared, and named by, before all of them are read.
_SAMPLE = 16

# Hexadecimal digits of a function's name: of ten thousand functions two get one name in one program of eighty.
_DIGITS = 8

Held = Callable[[Region], Collection[str]]


@dataclass(frozen=True)
class Shape:
    """What a region is apart from names and the data of constants (`key`), and what stands where in it.

    `ops` are its operations in an order that their structure gives, each before those in its bodies; `values` what
    they read and compute, `constants` what they hold, and `dims` their symbolic dimensions, by first mention. Of
    regions with one key, those in one place belong to each other. `run` are the operations in the order in which they
    run. The key is the same for every program, order of operations and process.
    """

    key: tuple[Hashable, ...]
    ops: tuple[int, ...]
    values: tuple[str, ...]
    constants: tuple[str, ...]
    dims: tuple[str, ...]
    run: tuple[int, ...]

    def matched(self, other: Shape) -> Matched:
        """Return what in another region of the same key belongs to what in this one."""
        values = zip((*self.values, *self.constants), (*other.values, *other.constants), strict=True)
        dims = zip(self.dims, other.dims, strict=True)
        ops = dict(zip(self.ops, other.ops, strict=True))
        return Matched({index: ops[index] for index in self.run}, dict(values), dict(dims))


@dataclass(frozen=True, slots=True)
class Matched:
    """For the operations, values and symbolic dimensions of one region those of another that is alike.

    The operations are in the order in which the one region runs them.
    """

    ops: Mapping[int, int]
    values: Mapping[str, str]
    dims: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Told:
    """An operation without names, as text, and its symbolic dimensions in the order of that text."""

    text: str
    dims: tuple[str, ...] = ()


class Shapes:
    """Takes the shapes of regions of one program; `groups` are what patterns take together."""

    def __init__(self, program: Program, groups: Iterable[Group] = ()) -> None:
        self.program = program
        self.groups = {group.calls[-1]: group for group in groups}
        self._matched = frozenset(index for group in self.groups.values() for index in group.calls)
        self._told: dict[int, _Told] = {}
        self._orders: dict[tuple[Hashable, ...], tuple[tuple[int, ...], ...]] = {}

    def is_matched(self, index: int) -> bool:
        """Whether a pattern takes an operation together with others."""
        return index in self._matched

    def of(self, region: Region, results: Sequence[str], held: Held) -> Shape:
        """Return the shape of a region that returns these values; `held` are the constants that a leaf's function has.

        Constants that a function does not hold are given to it like other values.
        """
        plain = _Walk(self, held, results)
        plain.region(region)
        key = plain.finished()
        if key not in self._orders:
            leaves = (one for one in region.walk() if one.is_leaf)
            self._orders[key] = tuple(self._order(leaf.calls) for leaf in leaves)
        orders = self._orders[key]
        if all(order == tuple(range(len(order))) for order in orders):
            return plain.shape(key, plain.ops)
        walk = _Walk(self, held, results, iter(orders))
        walk.region(region)
        return walk.shape(walk.finished(), plain.ops)

    def _order(self, calls: tuple[int, ...]) -> tuple[int, ...]:
        """Return the places of a leaf's operations in an order that does not depend on the one they are given in."""
        program = self.program
        if len(calls) == 1 or any(index in program.bodies for index in calls):
            return tuple(range(len(calls)))
        return arranged([program.body[index] for index in calls], [self.told(index).text for index in calls])

    def told(self, index: int) -> _Told:
        """Return what an operation is apart from names; those of one signature are looked at once."""
        call, number = self.program.body[index], self.program.signatures[index]
        if number not in self._told:
            types, dims = self.program.types, list[str]()
            told = [
                call.op,
                call.has_effect,
                tuple(_plain(call.attrs)),
                tuple(_written(types.get(name), dims) for name in call.inputs),
                tuple((_written(types.get(out.name), dims), self.program.is_read(out.name)) for out in call.outputs),
            ]
            self._told[number] = _Told(sha256(repr(told).encode()).hexdigest()[:16], tuple(dims))
        return self._told[number]

    def name(self, region: Region, shape: Shape) -> str:
        """Return a name: the site, of a leaf the first operator, and digits for structure and some of the weights."""
        held = (self.program.constants[name] for name in shape.constants)
        known = [(str(constant.type), bytes(bytes_of(_sample(constant))).hex()) for constant in held]
        digits = sha256(repr((shape.key, known)).encode()).hexdigest()[:_DIGITS]
        place = region.site.path.rpartition("/")[2] or region.site.target.kind
        kind = self.program.body[shape.ops[0]].kind.rpartition(".")[2] if region.is_leaf and shape.ops else ""
        return re.sub(r"\W+", "_", f"{place}_{kind}".lower()).strip("_") + f"_{digits}"


@dataclass
class _Walk:
    """A walk over a region that notes what it is; `orders` are those of its leaves' operations, if not their own."""

    shapes: Shapes
    held: Held
    results: Sequence[str]
    orders: Iterator[tuple[int, ...]] | None = None
    key: list[Hashable] = field(default_factory=list)
    ops: list[int] = field(default_factory=list)
    values: dict[str, int] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    own: Collection[str] = ()
    is_named: bool = False  # whether symbolic dimensions may be spoken of by name

    @cached_property
    def program(self) -> Program:
        return self.shapes.program

    def shape(self, key: tuple[Hashable, ...], run: Sequence[int]) -> Shape:
        return Shape(key, tuple(self.ops), tuple(self.values), tuple(self.constants), tuple(self.dims), tuple(run))

    def finished(self) -> tuple[Hashable, ...]:
        """Return what was noted, with what is returned; attributes of dialects other than ONNX may name dimensions."""
        self.key.append(tuple(sorted(map(self.refer, self.results))))
        self.key += self.dims if self.is_named else ()
        return tuple(self.key)

    def region(self, region: Region) -> None:
        self.key += ("region", region.site.path, region.device)
        if region.is_leaf:
            self.own = self.held(region)
            order = None if self.orders is None else next(self.orders)
            calls = region.calls if order is None else tuple(region.calls[place] for place in order)
            for index in calls:
                self.op(index)
            self.key += self.matches(calls, region.site.target.kind)
            return
        self.own = self.program.constants
        for part in region.parts:
            self.region(part)
        for index in region.calls if region.bodies else ():
            self.op(index, region.bodies)
        self.key.append("end")

    def op(self, index: int, divided: Sequence[Region] = ()) -> None:
        """Add an operation; where a driver runs it, `divided` are the regions of its bodies."""
        call = self.program.body[index]
        self.ops.append(index)
        self.is_named = self.is_named or not call.op.startswith("onnx.")
        told = self.shapes.told(index)
        self.key.append(told.text)
        self.key += map(self.dim, told.dims)
        self.key += [self.refer(name) for name in call.inputs]
        self.key += [self.refer(output.name) for output in call.outputs]
        scopes = self.program.bodies.get(index, ())
        for place, scope in enumerate(scopes):
            dims: list[str] = []
            types = [_written(param.type, dims) for param in scope.function.params]
            self.key.append((scope.label, *types, *map(self.dim, dims)))
            self.key += [self.refer(param.name) for param in scope.function.params]
            if divided:
                self.region(divided[place])
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
            if group is not None and group.kind == kind:
                yield group.pattern, tuple(place[one] for one in group.calls)


def _plain(attrs: Sequence[tuple[str, Attribute]]) -> Iterator[Hashable]:
    """Yield attributes, tensors by what they hold."""
    for name, value in attrs:
        items = value if isinstance(value, tuple) else (value,)
        plain = tuple((str(item.type), item.digest) if isinstance(item, Constant) else item for item in items)
        yield name, type(value).__name__, plain


def _written(type_: Type, dims: list[str]) -> str:
    """Return a type as text in which symbolic dimensions are left out; they are added to `dims`."""
    match type_:
        case TensorType(dtype, shape) if shape is not None:
            dims += (dim for dim in shape if isinstance(dim, str))
            return f"{dtype}[{','.join('$' if isinstance(dim, str) else str(dim) for dim in shape)}]"
        case SequenceType(element):
            return f"sequence({_written(element, dims)})"
        case OptionalType(element):
            return f"optional({_written(element, dims)})"
        case MapType(key, value):
            return f"map({key},{_written(value, dims)})"
        case SparseType(tensor):
            return f"sparse({_written(tensor, dims)})"
        case _:
            return str(type_)


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
