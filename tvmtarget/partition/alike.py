"""Which regions are alike: of one structure on one site, so that one function does for all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tvmtarget.ir.function import Attribute, Constant, Opaque
from tvmtarget.ir.tensors import bytes_of
from tvmtarget.partition.matching import Group
from tvmtarget.partition.program import Program
from tvmtarget.partition.split import Region

__all__ = ["Shape", "Shapes", "same_data"]

# Elements of a constant that are compared before all of them are read.
_SAMPLE = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """What a region is apart from names and the data of constants (`key`), and what stands where in it.

    `ops` are its operations in the order in which they run, each before those in its bodies; `values` what they read
    and compute, by first mention, and `constants` what they hold. Of regions with one key, those in one place belong
    to each other.
    """

    key: tuple[Hashable, ...]
    ops: tuple[int, ...]
    values: tuple[str, ...]
    constants: tuple[str, ...]


class Shapes:
    """Takes the shapes of regions of one program; `groups` are what patterns take together."""

    def __init__(self, program: Program, groups: Iterable[Group] = ()) -> None:
        self.program = program
        self._groups = {group.calls[-1]: group for group in groups}
        self._matched = frozenset(index for group in self._groups.values() for index in group.calls)

    def is_matched(self, index: int) -> bool:
        """Whether a pattern takes an operation together with others."""
        return index in self._matched

    def of(self, region: Region, results: Sequence[str], held: Callable[[Region], Collection[str]]) -> Shape:
        """Return the shape of a region that returns these values; `held` are the constants that a leaf's function has.

        Constants that a function does not hold are given to it like other values.
        """
        walk = _Walk(self.program, self._groups, held)
        walk.region(region)
        walk.key.append(tuple(map(walk.refer, results)))
        return Shape(tuple(walk.key), tuple(walk.ops), tuple(walk.values), tuple(walk.constants))


@dataclass
class _Walk:
    program: Program
    groups: dict[int, Group]
    held: Callable[[Region], Collection[str]]
    key: list[Hashable] = field(default_factory=list)
    ops: list[int] = field(default_factory=list)
    values: dict[str, int] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)
    own: Collection[str] = ()

    def region(self, region: Region) -> None:
        self.key += ("region", region.site.path, region.device)
        if region.is_leaf:
            self.own = self.held(region)
            for index in region.calls:
                self.op(index)
            self.key += self.matches(region)
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
        if call.regions or any(_is_told_by_data(value) for _, value in call.attrs):
            types = self.program.types
            inputs = tuple(types.get(name) for name in call.inputs)
            outputs = tuple(types.get(output.name) for output in call.outputs)
            self.key.append((call.op, call.has_effect, tuple(_plain(call.attrs)), inputs, outputs))
        else:
            self.key.append(self.program.signatures[index])
        self.key += [self.refer(name) for name in call.inputs]
        self.key += [self.refer(output.name) for output in call.outputs]
        scopes = self.program.bodies.get(index, ())
        for place, scope in enumerate(scopes):
            self.key.append((scope.label, tuple(param.type for param in scope.function.params)))
            self.key += [self.refer(param.name) for param in scope.function.params]
            if divided:
                self.region(divided[place])
                self.own = self.program.constants
            for inner in () if divided else scope.calls:
                self.op(inner)
            self.key.append(tuple(map(self.refer, scope.function.results)))

    def refer(self, name: str) -> int:
        """Return a number that stands for a value: from 0 up, for constants that are held from -2 down."""
        if not name:
            return -1
        if name in self.own and name in self.program.constants:
            return -2 - self.constants.setdefault(name, len(self.constants))
        return self.values.setdefault(name, len(self.values))

    def matches(self, region: Region) -> Iterator[Hashable]:
        """Yield what patterns of the site take together, by place."""
        place = {index: number for number, index in enumerate(region.calls)} if self.groups else {}
        for index in place:
            group = self.groups.get(index)
            if group is not None and group.kind == region.site.target.kind:
                yield group.pattern, tuple(place[one] for one in group.calls)


def _plain(attrs: Sequence[tuple[str, Attribute]]) -> Iterator[Hashable]:
    """Yield attributes, tensors by what they hold."""
    for name, value in attrs:
        items = value if isinstance(value, tuple) else (value,)
        plain = tuple((item.type, item.digest) if isinstance(item, Constant) else item for item in items)
        yield name, type(value), plain


def _is_told_by_data(value: Attribute) -> bool:
    return isinstance(value, Constant | Opaque) or (
        isinstance(value, tuple) and any(isinstance(item, Constant) for item in value)
    )


def same_data(one: Constant, other: Constant) -> bool:
    """Whether two constants of one type hold the same; where they differ early, the rest is not read."""
    if one.data is other.data:
        return True
    first, second = (bytes(bytes_of(constant.data.flat[:_SAMPLE])) for constant in (one, other))
    return first == second and one.digest == other.digest
