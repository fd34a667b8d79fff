"""Local search: moves that improve a labeling, of single atoms, groups of neighbours, and whole subgraphs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise, permutations, product

import numpy as np

from tvmtarget.partition.dataflow import Ints, distinct
from tvmtarget.partition.placement.energy import Bools, LabelingProblem
from tvmtarget.partition.subgraphs.typed_fusion import AtomGraph

__all__ = ["SubgraphMoves", "mixtures", "neighboring_labelings", "paired", "with_fewer_subgraphs"]

# Up to this many atoms at a value move together.
MAX_TOGETHER = 16


def neighboring_labelings(problem: LabelingProblem, labels: Ints) -> Iterator[Ints]:
    """Yield the neighbourhood of a labeling.

    Args:
        problem: the labeling problem.
        labels: an allowed label for each atom.

    Yields:
        Labelings in which one atom, both ends of an edge, or all atoms that touch a value have another label, then
        those in which all atoms of one label that may have another one in use get it.
    """
    for atoms in sorted(_neighbour_groups(problem)):
        members = list(atoms)
        for label in np.flatnonzero(problem.allowed[members].all(axis=0)).tolist():
            if (labels[members] != label).any():
                moved = labels.copy()
                moved[members] = label
                yield moved
    for old in distinct(labels).tolist():
        for new in distinct(labels).tolist():
            leaving = (labels == old) & problem.allowed[:, new]
            if old != new and leaving.any():
                yield np.where(leaving, new, labels)


def paired(problem: LabelingProblem, labels: Ints, *, every: bool) -> Iterator[Ints]:
    """Yield labelings in which two atoms have other labels, past those that requests rule out.

    Args:
        problem: the labeling problem.
        labels: an allowed label for each atom.
        every: give both atoms any other labels; else they only exchange theirs.

    Yields:
        Labelings.
    """
    options = [np.flatnonzero(row).tolist() for row in problem.allowed]
    for first, second in combinations(range(len(labels)), 2):
        a, b = int(labels[first]), int(labels[second])
        pairs = product(options[first], options[second]) if every else ((b, a),)
        for one, other in pairs:
            if one != a and other != b and problem.allowed[first, one] and problem.allowed[second, other]:
                moved = labels.copy()
                moved[first], moved[second] = one, other
                yield moved


def _neighbour_groups(problem: LabelingProblem) -> set[tuple[int, ...]]:
    """Return single atoms, ends of edges, and all atoms that touch one value."""
    groups: set[tuple[int, ...]] = {(atom,) for atom in range(len(problem.costs))}
    readers = problem.readers.tolist()
    for producer, (begin, end) in zip(problem.producer.tolist(), pairwise(problem.start.tolist()), strict=True):
        touching = readers[begin:end] if producer < 0 else [producer, *readers[begin:end]]
        groups.add(tuple(sorted(set(touching))))
        if producer >= 0:
            groups |= {(min(producer, reader), max(producer, reader)) for reader in touching[1:]}
    return groups - {()}


class SubgraphMoves:
    """Moves of whole subgraphs, greedy: each subgraph in turn goes where it costs least.

    A subgraph that pays for a launch and two copies may be cheaper on the site of a neighbour, although none of its
    atoms is. The change of the cost is exact, except that subgraphs around it may merge.

    Args:
        problem: the labeling problem.
    """

    def __init__(self, problem: LabelingProblem) -> None:
        # Lists instead of arrays: moves read single elements, which is several times slower on NumPy arrays.
        self.problem = problem
        self.producer = problem.producer.tolist()
        readers = problem.readers.tolist()
        self.readers = [readers[begin:end] for begin, end in pairwise(problem.start.tolist())]
        self.is_live_out = problem.is_live_out.tolist()
        self.cost_index = problem.cost_index.tolist()
        self.pair_costs = problem.pair_costs.tolist()
        self.domains = problem.domains.tolist()
        self.launches = problem.launches.tolist()
        self.values_of: list[list[int]] = [[] for _ in problem.costs]
        for value, found in enumerate(self.readers):
            for atom in found if self.producer[value] < 0 else (self.producer[value], *found):
                self.values_of[atom].append(value)

    def moved(self, labels: Ints, subgraphs: Sequence[Sequence[int]]) -> Ints:
        """Move each subgraph once.

        Args:
            labels: an allowed label for each atom.
            subgraphs: the atoms of each subgraph, which have one label.

        Returns:
            The labeling after all moves.
        """
        now: list[int] = labels.tolist()
        for subgraph in subgraphs:
            saved = self.launches[now[subgraph[0]]]
            # Without a launch, moving single atoms already finds the improvement.
            if not saved:
                continue
            change, label = min(self._changes(now, subgraph), default=(saved, -1))
            if change < saved:
                self._set(now, subgraph, label)
        return np.array(now, dtype=np.int64)

    def of_groups_at(
        self, labels: Sequence[int], atom: int, apart: Mapping[int, Collection[int]]
    ) -> Iterator[tuple[int, list[int], int]]:
        """Yield moves of an atom, alone or with its neighbours at a value.

        At most MAX_TOGETHER atoms of one label move together.

        Args:
            labels: an allowed label for each atom.
            atom: the atom.
            apart: for some atoms those that must have another label.

        Yields:
            The change of the cost, the atoms that move, and their new label, which none of `apart` has.
        """
        now, old = [*labels], labels[atom]
        groups = {(atom,)}
        for value in self.values_of[atom]:
            touching = (self.producer[value], *self.readers[value])
            groups.add(tuple(sorted({one for one in touching if one >= 0 and labels[one] == old})))
        for group in sorted(group for group in groups if len(group) <= MAX_TOGETHER):
            others = {other for one in group for other in apart.get(one, ())}
            if others.intersection(group):
                continue
            taken = {labels[other] for other in others}
            members = [*group]
            for change, new in self._changes(now, members, taken):
                yield change, members, new

    def _changes(
        self, labels: list[int], atoms: Sequence[int], taken: Collection[int] = ()
    ) -> Iterator[tuple[int, int]]:
        """Yield the change of the cost for each other label of some atoms of one label, and that label.

        A call of the new label counts unless atoms near have it. A call of the old one that is saved does not.
        """
        old = labels[atoms[0]]
        values = sorted({value for atom in atoms for value in self.values_of[atom]})
        own = self.problem.costs[atoms].sum(axis=0).tolist()
        before = own[old] + sum(self._copy_cost(value, labels) for value in values)
        for new in np.flatnonzero(self.problem.allowed[atoms].all(axis=0)).tolist():
            if new == old or new in taken:
                continue
            self._set(labels, atoms, new)
            launch = 0 if self._has_neighbour(atoms, values, labels, new) else self.launches[new]
            after = own[new] + launch + sum(self._copy_cost(value, labels) for value in values)
            self._set(labels, atoms, old)
            yield after - before, new

    def _copy_cost(self, value: int, labels: Sequence[int]) -> int:
        home, domains = self.problem.home, self.domains
        source = home if self.producer[value] < 0 else domains[labels[self.producer[value]]]
        row = self.pair_costs[self.cost_index[value]][source]
        reached = {domains[labels[reader]] for reader in self.readers[value]}
        if self.is_live_out[value]:
            reached.add(home)
        return sum(row[domain] for domain in reached)

    def _has_neighbour(self, subgraph: Sequence[int], values: Sequence[int], labels: Sequence[int], label: int) -> bool:
        """Check whether a subgraph could join one of a label, which then needs no launch of its own."""
        inside = set(subgraph)
        touching = (atom for value in values for atom in (self.producer[value], *self.readers[value]))
        return any(atom >= 0 and atom not in inside and labels[atom] == label for atom in touching)

    @staticmethod
    def _set(labels: list[int], subgraph: Sequence[int], label: int) -> None:
        for atom in subgraph:
            labels[atom] = label


def mixtures(labels: Ints, other: Ints, order: Ints, most: int) -> Ints:
    """Return labelings that are one labeling on a section, and another one around it.

    Args:
        labels: a labeling.
        other: another one.
        order: the atoms in topological order.
        most: the most results.

    Returns:
        The mixtures, one per row. Sections begin and end where the labelings differ, at even distances.
    """
    differing = np.flatnonzero(labels[order] != other[order])
    if not len(differing):
        return labels[None][:0]
    # Two mixtures for each two of the cuts.
    places = np.unique(np.linspace(0, len(differing) - 1, max(1, math.isqrt(most) - 1)).astype(np.int64))
    sections = list(combinations(dict.fromkeys([0, *differing[places].tolist(), len(order)]), 2))
    rows = np.concatenate([np.tile(labels, (len(sections), 1)), np.tile(other, (len(sections), 1))])
    for number, (begin, end) in enumerate(sections):
        section = order[begin:end]
        rows[number, section] = other[section]
        rows[len(sections) + number, section] = labels[section]
    return rows


def with_fewer_subgraphs(
    problem: LabelingProblem,
    graph: AtomGraph,
    owner: Ints,
    labels: Ints,
    subgraphs: Sequence[Sequence[int]],
    is_limited: Bools,
) -> Iterator[Ints]:
    """Yield labelings that may have fewer subgraphs of limited labels.

    One subgraph moves to another label; or all that is between two subgraphs of a label moves there; or, of one
    subgraph, what comes before another one, or after it, moves to the label of that one.

    Args:
        problem: the labeling problem.
        graph: dependences between single atoms.
        owner: the atom of the problem that each single atom is part of.
        labels: an allowed label for each atom of the problem.
        subgraphs: the single atoms of each subgraph, which have one label.
        is_limited: a mask of labels.

    Yields:
        Labelings.
    """

    def moved(atoms: Iterable[int], label: int) -> Iterator[Ints]:
        variables = owner[sorted(atoms)]
        if problem.allowed[variables, label].all() and (labels[variables] != label).any():
            row = labels.copy()
            row[variables] = label
            yield row

    names = labels[owner[[subgraph[0] for subgraph in subgraphs]]].tolist()
    behind = [graph.reachable(subgraph) for subgraph in subgraphs]
    ahead = [graph.transposed.reachable(subgraph) for subgraph in subgraphs]
    for subgraph in subgraphs:
        for label in range(len(is_limited)):
            yield from moved(subgraph, label)
    for one, other in permutations(range(len(subgraphs)), 2):
        if is_limited[names[one]] and names[one] == names[other] and behind[one] & ahead[other]:
            yield from moved({*subgraphs[one], *(behind[one] & ahead[other]), *subgraphs[other]}, names[one])
        elif is_limited[names[one]]:
            for part in (behind[other], ahead[other]):
                if part.intersection(subgraphs[one]):
                    yield from moved(part.intersection(subgraphs[one]), names[other])
