"""Colocation: operations that must share a leaf (`same_site`), or must not (`apart`), and groups that are one function.

A plan is made without `same_site` and `apart` first. Where it violates them, operations are pinned to leaves that
satisfy them, as a user would do, and the plan is made again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NoReturn, TypeAlias

from tvmtarget.errors import InfeasibleError, raise_all
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.graph_coloring import list_coloring
from tvmtarget.partition.placement.minimal_conflict import conflict_text, minimal_subset
from tvmtarget.partition.placement.where_rules import Requirement
from tvmtarget.partition.subgraphs.typed_fusion import AtomGraph
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.union_find import UnionFind

__all__ = [
    "Colocation",
    "ExcludedSites",
    "OpNames",
    "alternative_pins",
    "colocation_of",
    "colocation_pins",
    "foreseen_pins",
    "lowered_preferences",
    "pins_of_rounds",
    "with_atomic_groups",
    "with_pins",
]

# Operations by name, glob or `op:KIND`, as in `where`.
OpNames: TypeAlias = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Colocation:
    """Operations that share a leaf, in groups, and pairs of operations that do not."""

    same_site: tuple[tuple[int, ...], ...] = ()
    apart: tuple[tuple[int, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.same_site or self.apart)

    def group_of(self, index: int) -> tuple[int, ...]:
        """Return the operations that must be on the leaf of one.

        Args:
            index: number of the operation.

        Returns:
            A group of `same_site`, or the operation alone.
        """
        return self._groups.get(index, (index,))

    def is_kept(self, sites: Mapping[int, str]) -> bool:
        """Return whether an assignment keeps all groups and pairs.

        Args:
            sites: the leaf of every operation.

        Returns:
            True if it does.
        """
        is_together = all(len({sites[index] for index in group}) == 1 for group in self.same_site)
        return is_together and all(sites[a] != sites[b] for a, b in self.apart)

    @cached_property
    def _groups(self) -> Mapping[int, tuple[int, ...]]:
        return {index: group for group in self.same_site for index in group}


def colocation_of(program: FlatProgram, same_site: OpNames, apart: OpNames) -> Colocation:
    """Resolve the names in colocation options.

    Args:
        program: the program.
        same_site: groups of names; groups with a common operation are merged, also with atomic groups.
        apart: groups of names; every two operations of a group must be apart.

    Returns:
        The groups and pairs, by operation.

    Raises:
        InfeasibleError: for operations that must both share a site and be apart.
        UnknownNameError: for names of no operation.
    """
    together = [{*_select(program, names)} for names in same_site]
    sets = [_in_canonical_order(program, _select(program, names)) for names in apart]
    # One function is on one leaf, so that what moves an operation of an atomic group moves all of it.
    named = {index for group in (*together, *sets) for index in group}
    atomic = (set(_without_bodies(program, group)) for group in program.atomic)
    merged = (
        _in_canonical_order(program, group)
        for group in _merged((*together, *(group for group in atomic if not named.isdisjoint(group))))
    )
    firsts = {group[0]: group for group in merged}
    groups = tuple(firsts[first] for first in _in_canonical_order(program, firsts))
    pairs = dict.fromkeys((a, b) for found in sets for place, b in enumerate(found) for a in found[:place])
    colocation = Colocation(groups, tuple(pairs))
    for a, b in pairs:
        if a in colocation.group_of(b):
            first, second = (repr(program.body[index].source) for index in sorted((a, b)))
            is_atomic = not any({a, b} <= set(group) for group in _merged(together))
            why = ", as 'atomic' keeps them in one function," if is_atomic else ""
            raise InfeasibleError(f"ops {first} and {second} are required to share a site{why} and to be apart")
    return colocation


def _in_canonical_order(program: FlatProgram, calls: Iterable[int]) -> tuple[int, ...]:
    """Return operations body by body, in an order that does not depend on how operations are listed."""
    bodies: dict[range, list[tuple[int, ...]]] = {}
    for index in sorted(set(calls)):
        bodies.setdefault(program.scope_of(index).calls, []).append((index,))
    return tuple(index for atoms in bodies.values() for (index,) in program.in_canonical_order(atoms))


def _merged(sets: Iterable[set[int]]) -> tuple[tuple[int, ...], ...]:
    """Merge sets that share operations; groups and their operations are in ascending order."""
    lists = [sorted(members) for members in sets if members]
    merged = UnionFind(sorted(index for members in lists for index in members))
    for first, *others in lists:
        for index in others:
            merged.union(first, index)
    return tuple(merged.groups())


def with_atomic_groups(
    program: FlatProgram, atomic: OpNames, before: Sequence[str], after: Sequence[str]
) -> FlatProgram:
    """Require groups of operations to be one function each, and boundaries between functions.

    Args:
        program: the program.
        atomic: groups of names; groups with a common operation are merged.
        before: operations that must not be in one function with what they read.
        after: operations that must not be in one function with what reads them.

    Returns:
        The new program.

    Raises:
        InfeasibleError: for a group that cannot be one function: its operations are in different bodies, others or a
            boundary lie between them, or groups depend on each other in a cycle.
        UnknownNameError: for names of no operation.
    """
    groups = tuple(group for group in _merged({*_calls(program, names)} for names in atomic) if len(group) > 1)
    marked = replace(
        program,
        atomic=groups,
        boundaries=(frozenset(_calls(program, before)), frozenset(_calls(program, after))),
    )
    raise_all(InfeasibleError, [problem for group in groups for problem in _atomic_problems(marked, group)])
    if groups:
        _check_cycles(program, groups)
    return marked


def _calls(program: FlatProgram, names: Iterable[str]) -> Iterator[int]:
    """Yield the operations of names, globs or `op:KIND`."""
    for name in names:
        yield from program.ops_named(name)


def _atomic_problems(program: FlatProgram, group: tuple[int, ...]) -> Iterator[str]:
    """Yield why operations cannot be in one function."""
    text = f"ops {', '.join(repr(program.body[index].source) for index in group[:4])} are required to be atomic"
    scopes = {program.scope_of(index).calls for index in group}
    if len(scopes) > 1:
        yield f"{text}, but they are in different bodies of control flow"
        return
    between = _between(program, group)
    if between:
        names = ", ".join(repr(program.body[index].source) for index in between[:4])
        rest = f" and {len(between) - 4} more" if len(between) > 4 else ""
        yield f"{text}, but {names}{rest} {'lies between; add it' if len(between) == 1 else 'lie between; add them'}"
    inside = set(group)
    for then in group:
        for first in inside.intersection(program.predecessors(then)):
            if program.is_boundary(first, then):
                ends = " and ".join(repr(program.body[index].source) for index in (first, then))
                yield f"{text}, but a boundary is required between {ends}"


def _between(program: FlatProgram, group: tuple[int, ...]) -> list[int]:
    """Return the operations outside of a group, in one body, on a path between two of the group."""
    inside = set(group)
    # Operations are in topological order: what lies between two of a group is numbered between its first and last. One
    # pass up finds what precedes the group, one down which of that also follows it.
    above: set[int] = set()
    for index in range(max(group), min(group), -1):
        if index in inside or index in above:
            above.update(program.predecessors(index))
    below = set(inside)
    for index in range(min(group), max(group)):
        if index in above and not below.isdisjoint(program.predecessors(index)):
            below.add(index)
    return sorted(below - inside)


def _check_cycles(program: FlatProgram, groups: tuple[tuple[int, ...], ...]) -> None:
    """Raise `InfeasibleError` if groups, each of which could be one function, depend on each other in a cycle."""
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
    cyclic = set(owner) - set(AtomGraph([sorted(targets) for targets in successors]).topological_order)
    circular = [group for group in groups if group[0] in cyclic]
    if circular:
        named = " and ".join(str([program.body[index].source for index in group]) for group in circular[:2])
        raise InfeasibleError(f"the atomic groups {named} wait for each other; make one of them")


def _select(program: FlatProgram, names: Iterable[str]) -> Iterator[int]:
    """Yield the operations of names, globs or `op:KIND`; in place of one with nested bodies, the operations in them."""
    for name in names:
        yield from _without_bodies(program, program.ops_named(name))


def _without_bodies(program: FlatProgram, calls: Iterable[int]) -> Iterator[int]:
    """Yield operations; in place of one with nested bodies, the operations in them."""
    return (one for one in program.with_nested(calls) if one not in program.bodies)


def colocation_pins(
    plain: Feasibility, colocation: Colocation, sites: Mapping[str, str], pins: Mapping[int, str]
) -> dict[int, str]:
    """Return the pins with which a plan should be made again to satisfy the colocation.

    Of a pair that is too close, one operation moves if a leaf is left for it; otherwise all operations that are
    connected to it by `apart` pairs are assigned anew, as a list colouring.

    Args:
        plain: operator support without any pins.
        colocation: the groups and pairs.
        sites: the leaves of the plan by operation name.
        pins: the pins with which the plan was made.

    Returns:
        A leaf by operation; equal to `pins` if the plan satisfies the colocation.

    Raises:
        InfeasibleError: if it cannot be satisfied; the message names operations and constraints.
    """
    pinner = _PinChoice(plain, colocation, sites)
    result = dict(pins)
    for group in colocation.same_site:
        if group[0] not in result:
            result |= dict.fromkeys(group, pinner.common_leaf(group))
    if result != pins:
        return result
    violated = next((pair for pair in colocation.apart if pinner.site(pair[0]) == pinner.site(pair[1])), None)
    if violated is None:
        return result
    separated = pinner.separated(violated, pins)
    if separated is None:
        return result | pinner.recoloured(violated)
    group, leaf = separated
    result |= dict.fromkeys(group, leaf)
    # Pin the other one where it is: by cost it might follow.
    for index in (one for end in violated for one in colocation.group_of(end)):
        result.setdefault(index, pinner.site(index))
    return result


def foreseen_pins(
    plain: Feasibility, colocation: Colocation, sites: Mapping[str, str], rounds: int
) -> tuple[dict[int, str], dict[str, str]] | None:
    """Return the pins of all rounds at once, if a round moves only what it pins.

    Args:
        plain: operator support without any pins.
        colocation: the groups and pairs.
        sites: the leaves of a plan without pins, by operation name.
        rounds: the number of rounds to foresee.

    Returns:
        The pins, and the leaves of a plan with them by operation name; None if no pins satisfy the colocation so, or
        the program has operations that move with others.
    """
    program = plain.program
    if program.atomic or program.bodies or program.has_binding_values or any(program.frames) or plain.groups.all:
        return None
    return pins_of_rounds(plain, colocation, sites, {}, rounds)


def pins_of_rounds(
    plain: Feasibility, colocation: Colocation, sites: Mapping[str, str], pins: Mapping[int, str], rounds: int
) -> tuple[dict[int, str], dict[str, str]] | None:
    """Return the pins after several rounds, as if a round moved only what it pins.

    Args:
        plain: operator support without any pins.
        colocation: the groups and pairs.
        sites: the leaves of the plan by operation name.
        pins: the pins with which the plan was made.
        rounds: the most rounds.

    Returns:
        The pins, and the leaves of a plan with them by operation name; None if no pins satisfy the colocation so.
    """
    expected, pins = dict(sites), dict(pins)
    for _ in range(rounds):
        try:
            wanted = colocation_pins(plain, colocation, expected, pins)
        except InfeasibleError:
            return None
        if wanted == pins:
            return pins, expected
        pins = wanted
        expected |= {plain.program.body[index].source: leaf for index, leaf in pins.items()}
    return None


def alternative_pins(
    plain: Feasibility, colocation: Colocation, sites: Mapping[str, str], pins: Mapping[int, str]
) -> Iterator[dict[int, str]]:
    """Yield pins that also satisfy the colocation and might give a better plan.

    Args:
        plain: operator support without any pins.
        colocation: the groups and pairs.
        sites: the leaves of the plan by operation name.
        pins: the pins with which the plan was made.

    Yields:
        Pins with one group on another leaf, then pins with the two ends of an `apart` pair swapped; none that keep less
        of the preferences.
    """
    pinner = _PinChoice(plain, colocation, sites)
    groups = dict.fromkeys(colocation.group_of(index) for index in pins)
    for group in groups:
        here = pins[group[0]]
        for leaf in pinner.supporting(group):
            if leaf != here and pinner.rank(group, leaf) >= pinner.rank(group, here):
                yield {**pins, **dict.fromkeys(group, leaf)}
    for pair in colocation.apart:
        first, second = map(colocation.group_of, pair)
        if first in groups and second in groups:
            here, there = pins[first[0]], pins[second[0]]
            if here not in pinner.supporting(second) or there not in pinner.supporting(first):
                continue
            ranks = pinner.rank(first, here) + pinner.rank(second, there)
            if pinner.rank(first, there) + pinner.rank(second, here) >= ranks:
                yield {**pins, **dict.fromkeys(first, there), **dict.fromkeys(second, here)}


def lowered_preferences(plain: Feasibility, sites: Mapping[str, str], pins: Mapping[int, str]) -> ExcludedSites:
    """Return the leaves that pinned operations prefer to those where they are.

    Args:
        plain: operator support without any pins.
        sites: the leaves of a plan that satisfies the colocation, by operation name.
        pins: the pins with which it was made.

    Returns:
        Leaves by operation. Without them, plans that lower no more preferences than this one can be compared by cost.
    """
    pinner = _PinChoice(plain, Colocation(), sites)
    found: dict[int, frozenset[str]] = {}
    for index in pins:
        rank = pinner.rank((index,), pinner.site(index))
        better = frozenset(leaf for leaf in pinner.supporting((index,)) if pinner.rank((index,), leaf) > rank)
        if better:
            found[index] = better
    return ExcludedSites("same_site or apart", found)


_Pair: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class _PinChoice:
    """Choice of leaves for operations of a plan that violates the colocation."""

    feasibility: Feasibility
    colocation: Colocation
    sites: Mapping[str, str]

    def site(self, index: int) -> str:
        """Return the leaf of an operation in the plan."""
        return self.sites[self.feasibility.program.body[index].source]

    def supporting(self, group: tuple[int, ...]) -> list[str]:
        """Return the leaves that support all of some operations, in order of preference."""
        leaves = [
            leaf.path
            for leaf in self.feasibility.leaves
            if all(self.feasibility.unsupported_reason(index, leaf) is None for index in group)
        ]
        return sorted(leaves, key=lambda leaf: -self.rank(group, leaf))

    def rank(self, group: tuple[int, ...], leaf: str) -> int:
        """Return how strongly operations prefer a leaf."""
        return self.feasibility.preference_rank(group, self.feasibility.program.topology[leaf])

    def common_leaf(self, group: tuple[int, ...]) -> str:
        """Return the leaf for a group: of those that it prefers and support all, the one that most is already on."""
        supporting = self.supporting(group)
        if not supporting:
            conflict = conflict_text(
                self.feasibility.program, group, lambda program: bool(self._over(program).supporting(group))
            )
            text = f"ops {self._names(group)} must share a site, and no leaf supports all of them"
            raise InfeasibleError(text + conflict)
        # Moving as few operations as possible keeps most of the plan, which was good without the requirement.
        counts = Counter(self.site(index) for index in group)
        return max(supporting, key=lambda leaf: (self.rank(group, leaf), counts[leaf], -supporting.index(leaf)))

    def separated(self, pair: _Pair, pins: Mapping[int, str]) -> tuple[tuple[int, ...], str] | None:
        """Return the group of one end of a pair and another leaf for it; None if neither end can move alone.

        Of two ends that can, the one that loses less of its preferences moves.
        """
        found: list[tuple[int, tuple[int, ...], str]] = []
        for index in reversed(pair):
            group = self.colocation.group_of(index)
            others = (
                other for one in self.colocation.apart if set(one) & set(group) for other in one if other not in group
            )
            # Move the group to a leaf that no operation which must be apart from it is on.
            occupied = {self.site(other) for other in others}
            available = [leaf for leaf in self.supporting(group) if leaf not in occupied]
            if available and index not in pins:
                lost = self.rank(group, self.site(index)) - self.rank(group, available[0])
                found.append((lost, group, available[0]))
        return min(found, key=lambda one: one[0])[1:] if found else None

    def recoloured(self, pair: _Pair) -> dict[int, str]:
        """Return leaves for all operations that are connected to a pair by `apart` pairs."""
        pairs = self._connected_pairs(pair)
        found = self._colouring(pairs)
        if found is None:
            self._raise_uncolourable(pairs)
        return found

    def _connected_pairs(self, pair: _Pair) -> list[_Pair]:
        """Return the `apart` pairs connected to one, as the first operations of their groups."""
        heads = [(self.colocation.group_of(a)[0], self.colocation.group_of(b)[0]) for a, b in self.colocation.apart]
        pairs = dict.fromkeys(heads)
        sets = UnionFind(head for ends in pairs for head in ends)
        for a, b in pairs:
            sets.union(a, b)
        component = sets.find(self.colocation.group_of(pair[0])[0])
        return [ends for ends in pairs if sets.find(ends[0]) == component]

    def _colouring(self, pairs: Sequence[_Pair]) -> dict[int, str] | None:
        # Vertices are numbered by their first pair, as numbers of operations depend on how these are listed.
        heads = {head: vertex for vertex, head in enumerate(dict.fromkeys(head for pair in pairs for head in pair))}
        groups = [self.colocation.group_of(head) for head in heads]
        lists = {}
        for vertex, group in enumerate(groups):
            counts, supporting = Counter(self.site(index) for index in group), self.supporting(group)
            ranks = {leaf: (-self.rank(group, leaf), -counts[leaf]) for leaf in supporting}
            lists[vertex] = sorted(supporting, key=ranks.__getitem__)
        found = list_coloring(lists, [(heads[a], heads[b]) for a, b in pairs])
        return None if found is None else {index: leaf for vertex, leaf in found.items() for index in groups[vertex]}

    def _raise_uncolourable(self, pairs: Sequence[_Pair]) -> NoReturn:
        """Raise `InfeasibleError` with a minimal set of pairs in conflict, and the constraints that cause it."""
        conflict = minimal_subset(pairs, lambda kept: self._colouring(kept) is None)
        calls = tuple(
            dict.fromkeys(index for pair in conflict for head in pair for index in self.colocation.group_of(head))
        )

        def is_feasible(program: FlatProgram) -> bool:
            return self._over(program)._colouring(conflict) is not None

        advice = conflict_text(self.feasibility.program, calls, is_feasible)
        heads = tuple(sorted({head for pair in conflict for head in pair}))
        text = f"{self._names(heads[:-1])} and {self._names(heads[-1:])}"
        raise InfeasibleError(f"ops {text} must be apart, and no choice of leaves keeps them so{advice}")

    def _over(self, program: FlatProgram) -> _PinChoice:
        """Return the same choice for a program with fewer requirements."""
        return replace(self, feasibility=self.feasibility.replace(program=program))

    def _names(self, calls: tuple[int, ...]) -> str:
        return ", ".join(repr(self.feasibility.program.body[index].source) for index in sorted(calls)[:4])


@dataclass(frozen=True, slots=True)
class ExcludedSites:
    """Leaves that operations must not be on, by operation, and the origin of that."""

    origin: str
    leaves: Mapping[int, Collection[str]]


def with_pins(feasibility: Feasibility, pins: Mapping[int, str], excluded: Iterable[ExcludedSites] = ()) -> Feasibility:
    """Return operator support with operations pinned to leaves, and excluded from others.

    Args:
        feasibility: operator support.
        pins: a leaf by operation.
        excluded: leaves that operations must not be on.

    Returns:
        Operator support with more requirements.
    """
    program = feasibility.program
    requirements = list(program.requirements)
    for index, leaf in pins.items():
        requirements[index] = (*requirements[index], Requirement(Constraint.at(leaf), "same_site or apart"))
    for one in excluded:
        for index, leaves in one.leaves.items():
            off = (Constraint.at(leaf).replace(is_negated=True) for leaf in sorted(leaves))
            requirements[index] = (*requirements[index], *(Requirement(constraint, one.origin) for constraint in off))
    return feasibility.replace(program=replace(program, requirements=tuple(requirements)))
