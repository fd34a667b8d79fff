"""What is asked of several operations at once: that they share a leaf, or that no two of them do.

A plan is made without it first. Where that breaks a bond, the operations are asked to go to one leaf that suits them,
as if a user had pinned them there, and the plan is made again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, TypeAlias

from tvmtarget.errors import InfeasibleError, raise_all
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.graph_coloring import list_coloring
from tvmtarget.partition.placement.minimal_conflict import conflict_text, minimal_subset
from tvmtarget.partition.placement.where_rules import Requirement
from tvmtarget.partition.subgraphs.typed_fusion import AtomGraph
from tvmtarget.target.constraints.constraint import Constraint

__all__ = [
    "Colocation",
    "ExcludedSites",
    "OpNames",
    "alternative_pins",
    "colocation_of",
    "colocation_pins",
    "with_atomic_groups",
    "with_pins",
]

# Operations by name, glob or `op:KIND`, as in `where`.
OpNames: TypeAlias = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Colocation:
    """Operations by number: groups that share a leaf, and pairs that do not."""

    same_site: tuple[tuple[int, ...], ...] = ()
    apart: tuple[tuple[int, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.same_site or self.apart)

    def unit(self, index: int) -> tuple[int, ...]:
        """Return the operations that go wherever one goes, itself among them."""
        return next((group for group in self.same_site if index in group), (index,))


def colocation_of(program: FlatProgram, same_site: OpNames, apart: OpNames) -> Colocation:
    """Return which operations are meant; `UnknownNameError` for names of none, `InfeasibleError` for what
    is to be together and apart.

    Groups that have an operation in common are one group. Of a group that is to be apart, every two operations are.
    """
    groups = _joined(set(_select(program, names)) for names in same_site)
    sets = [sorted(set(_select(program, names))) for names in apart]
    pairs = dict.fromkeys((a, b) for found in sets for place, b in enumerate(found) for a in found[:place])
    for a, b in pairs:
        if any(a in group and b in group for group in groups):
            first, second = (repr(program.body[index].source) for index in (a, b))
            raise InfeasibleError(f"ops {first} and {second} are asked to share a site and to be apart")
    return Colocation(groups, tuple(pairs))


def _joined(sets: Iterable[set[int]]) -> tuple[tuple[int, ...], ...]:
    """Return sets as groups, those that have something in common as one."""
    joined: list[set[int]] = []
    for found in sets:
        for other in [other for other in joined if other & found]:
            joined.remove(other)
            found |= other
        if found:
            joined.append(found)
    return tuple(tuple(sorted(found)) for found in joined)


def with_atomic_groups(
    program: FlatProgram, atomic: OpNames, before: Sequence[str], after: Sequence[str]
) -> FlatProgram:
    """Return the program with groups that are in one function each, and boundaries between functions.

    `UnknownNameError` for names of no operations; `InfeasibleError` for groups that cannot be in one function: in
    different bodies, with another operation or a boundary in between, or waiting for each other.
    """
    groups = tuple(group for group in _joined({*_calls(program, names)} for names in atomic) if len(group) > 1)
    marked = replace(
        program,
        atomic=groups,
        boundaries=(frozenset(_calls(program, before)), frozenset(_calls(program, after))),
    )
    raise_all(InfeasibleError, [problem for group in groups for problem in _refusals(marked, group)])
    if groups:
        _refuse_circles(program, groups)
    return marked


def _calls(program: FlatProgram, names: Iterable[str]) -> Iterator[int]:
    """Yield the operations that names, globs or `op:KIND` speak of, those with nested bodies themselves."""
    for name in names:
        yield from program.ops_named(name)


def _refusals(program: FlatProgram, group: tuple[int, ...]) -> Iterator[str]:
    """Yield why operations cannot be in one function."""
    told = f"ops {', '.join(repr(program.body[index].source) for index in group[:4])} are asked to be atomic"
    scopes = {program.scope_of(index).calls for index in group}
    if len(scopes) > 1:
        yield f"{told}, but they are in different bodies of control flow"
        return
    between = _between(program, group)
    if between:
        yield f"{told}, but {', '.join(repr(program.body[index].source) for index in between[:4])} lies between; add it"
    inside = set(group)
    for then in group:
        for first in inside.intersection(program.predecessors(then)):
            if program.is_boundary(first, then):
                ends = " and ".join(repr(program.body[index].source) for index in (first, then))
                yield f"{told}, but a boundary is asked for between {ends}"


def _between(program: FlatProgram, group: tuple[int, ...]) -> list[int]:
    """Return the operations outside of a group, in one body, that follow one of it and that one of it follows."""
    inside, calls = set(group), program.scope_of(group[0]).calls
    below: set[int] = set()
    above: set[int] = set()
    for index in calls:
        if inside.union(below).intersection(program.predecessors(index)):
            below.add(index)
    for index in reversed(calls):
        if index in inside or index in above:
            above.update(program.predecessors(index))
    return sorted((below & above) - inside)


def _refuse_circles(program: FlatProgram, groups: tuple[tuple[int, ...], ...]) -> None:
    """Raise `InfeasibleError` if groups, each of which could be one function, wait for each other."""
    owner = list(range(len(program.body)))
    for group in groups:
        for index in group:
            owner[index] = group[0]
    successors: list[set[int]] = [set() for _ in program.body]
    for index in range(len(program.body)):
        for first in program.predecessors(index):
            successors[owner[first]].add(owner[index])
    for number, targets in enumerate(successors):
        targets.discard(number)
    stuck = set(owner) - set(AtomGraph([sorted(targets) for targets in successors]).topological_order)
    circular = [group for group in groups if group[0] in stuck]
    if circular:
        named = " and ".join(str([program.body[index].source for index in group]) for group in circular[:2])
        raise InfeasibleError(f"the atomic groups {named} wait for each other; make one of them")


def _select(program: FlatProgram, names: Iterable[str]) -> Iterator[int]:
    """Yield the operations that names, globs or `op:KIND` speak of; those with nested bodies by what is in them."""
    for name in names:
        yield from (one for one in program.with_nested(program.ops_named(name)) if one not in program.bodies)


def colocation_pins(
    plain: Feasibility, colocation: Colocation, sites: Mapping[str, str], pins: Mapping[int, str]
) -> dict[int, str]:
    """Return the leaf for each operation that a plan with these sites should require; the same again if it keeps them.

    `plain` is what fits where without any demand. What is too near to another goes elsewhere by itself; where no leaf
    is left for that, all that have to be apart from each other are placed anew. `InfeasibleError` if they cannot be.
    """
    asking = _Asking(plain, colocation, sites)
    found = dict(pins)
    for group in colocation.same_site:
        if group[0] not in found:
            found |= dict.fromkeys(group, asking.shared(group))
    if found != pins:
        return found
    close = next((pair for pair in colocation.apart if asking.site(pair[0]) == asking.site(pair[1])), None)
    if close is None:
        return found
    parted = asking.parted(close, pins)
    if parted is None:
        return found | asking.placed(close)
    unit, leaf = parted
    found |= dict.fromkeys(unit, leaf)
    for index in (one for side in close for one in colocation.unit(side)):
        found.setdefault(index, asking.site(index))  # else it might follow
    return found


def alternative_pins(
    plain: Feasibility, colocation: Colocation, sites: Mapping[str, str], pins: Mapping[int, str]
) -> Iterator[dict[int, str]]:
    """Yield pins that differ in where one of the groups is, or in which of two that are apart is where."""
    asking = _Asking(plain, colocation, sites)
    units = dict.fromkeys(colocation.unit(index) for index in sorted(pins))
    for unit in units:
        for leaf in asking.able(unit):
            if leaf != pins[unit[0]]:
                yield {**pins, **dict.fromkeys(unit, leaf)}
    for pair in colocation.apart:
        first, second = map(colocation.unit, pair)
        if first in units and second in units:
            here, there = pins[first[0]], pins[second[0]]
            if here in asking.able(second) and there in asking.able(first):
                yield {**pins, **dict.fromkeys(first, there), **dict.fromkeys(second, here)}


_Pair: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class _Asking:
    feasibility: Feasibility
    colocation: Colocation
    sites: Mapping[str, str]

    def site(self, index: int) -> str:
        """Return the leaf of an operation in the plan."""
        return self.sites[self.feasibility.program.body[index].source]

    def able(self, unit: Iterable[int]) -> list[str]:
        """Return the leaves that can take all of some operations, in order of preference."""
        leaves = self.feasibility.leaves
        return [
            leaf.path
            for leaf in leaves
            if all(self.feasibility.unsupported_reason(index, leaf) is None for index in unit)
        ]

    def shared(self, group: tuple[int, ...]) -> str:
        """Return the leaf that most of a group has already, of those that can take all of it."""
        able = self.able(group)
        if not able:
            guilty = conflict_text(self.feasibility.program, group, lambda asking: bool(self._over(asking).able(group)))
            told = f"ops {self._names(group, ', ')} must share a site, and no leaf takes all of them"
            raise InfeasibleError(told + guilty)
        counts = Counter(self.site(index) for index in group)
        return max(able, key=lambda leaf: (counts[leaf], -able.index(leaf)))

    def parted(self, pair: _Pair, pins: Mapping[int, str]) -> tuple[tuple[int, ...], str] | None:
        """Return which of two operations goes elsewhere, with those bound to it, and where; None if neither can."""
        for index in reversed(pair):
            unit = self.colocation.unit(index)
            others = (
                other for one in self.colocation.apart if set(one) & set(unit) for other in one if other not in unit
            )
            taken = {self.site(other) for other in others}
            free = [leaf for leaf in self.able(unit) if leaf not in taken]
            if free and index not in pins:
                return unit, free[0]
        return None

    def placed(self, pair: _Pair) -> dict[int, str]:
        """Return a leaf for each operation that has to be apart from one of a pair, or from those, and so on."""
        pairs = self._around(pair)
        found = self._coloured(pairs)
        if found is None:
            self._refuse(pairs)
        return found

    def _around(self, pair: _Pair) -> list[_Pair]:
        """Return the pairs of heads of units that are connected with a pair."""
        heads = [tuple(sorted(self.colocation.unit(index)[0] for index in one)) for one in self.colocation.apart]
        near, pairs = {self.colocation.unit(index)[0] for index in pair}, dict.fromkeys((a, b) for a, b in heads)
        while True:
            more = {index for one in pairs if near.intersection(one) for index in one} - near
            if not more:
                return [one for one in pairs if near.intersection(one)]
            near |= more

    def _coloured(self, pairs: Sequence[_Pair]) -> dict[int, str] | None:
        units = {head: self.colocation.unit(head) for pair in pairs for head in pair}
        lists = {}
        for head, unit in sorted(units.items()):
            counts, able = Counter(self.site(index) for index in unit), self.able(unit)
            lists[head] = sorted(able, key=lambda leaf: (-counts[leaf], able.index(leaf)))
        found = list_coloring(lists, pairs)
        return None if found is None else {index: leaf for head, leaf in found.items() for index in units[head]}

    def _refuse(self, pairs: Sequence[_Pair]) -> NoReturn:
        """Raise `InfeasibleError` that names who is to conflict_text, and what constraints."""
        guilty = minimal_subset(pairs, lambda kept: self._coloured(kept) is None)
        calls = tuple(dict.fromkeys(index for pair in guilty for head in pair for index in self.colocation.unit(head)))

        def is_feasible(asking: FlatProgram) -> bool:
            return self._over(asking)._coloured(guilty) is not None

        blamed = conflict_text(self.feasibility.program, calls, is_feasible)
        heads = tuple(dict.fromkeys(head for pair in guilty for head in pair))
        told = f"{self._names(heads[:-1], ', ')} and {self._names(heads[-1:])}"
        raise InfeasibleError(f"ops {told} must be apart, and no choice of leaves keeps them so{blamed}")

    def _over(self, program: FlatProgram) -> _Asking:
        """Return the same questions about a program of which less is asked."""
        return replace(self, feasibility=Feasibility(program, splits=self.feasibility.splits))

    def _names(self, calls: tuple[int, ...], separator: str = "") -> str:
        return separator.join(repr(self.feasibility.program.body[index].source) for index in calls[:4])


@dataclass(frozen=True, slots=True)
class ExcludedSites:
    """Leaves that operations are kept off, by number, and who asks for that."""

    origin: str
    leaves: Mapping[int, Collection[str]]


def with_pins(feasibility: Feasibility, pins: Mapping[int, str], banned: Iterable[ExcludedSites] = ()) -> Feasibility:
    """Return what fits where if operations are pinned to leaves as well, and kept off others."""
    program = feasibility.program
    requirements = list(program.requirements)
    for index, leaf in pins.items():
        requirements[index] = (*requirements[index], Requirement(Constraint.at(leaf), "same_site or apart"))
    for one in banned:
        for index, leaves in one.leaves.items():
            off = (Constraint.at(leaf).replace(is_negated=True) for leaf in sorted(leaves))
            requirements[index] = (*requirements[index], *(Requirement(constraint, one.origin) for constraint in off))
    return feasibility.replace(program=replace(program, requirements=tuple(requirements)))
