"""Ascent on the dual of a labeling problem, by min-sum diffusion: lower bounds, and good labelings to start from.

Costs move between atoms and the values that they share until the minima of all of them, taken independently, add up to
as much as possible (Werner, "A Linear Programming Approach to Max-sum Problem: A Review", 2007). All atoms move their
costs at once, each by a part, so that a step over a large program is a few vector operations. Steps have momentum
(Polyak, "Some methods of speeding up the convergence of iteration methods", 1964), so that changes travel along chains;
it grows from step to step, as Nesterov's does ("A method of solving a convex programming problem with convergence rate
O(1/k^2)", 1983), because the first steps are far from where they lead to.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain, combinations

import numpy as np
import numpy.typing as npt

from tvmtarget.partition.dataflow import Ints, renumbered
from tvmtarget.partition.placement.copy_edges import AdditiveCosts, costs_at_home
from tvmtarget.partition.placement.detours import Detours
from tvmtarget.partition.placement.dual_edges import Edges, PairEdges, SetEdges, tails_first
from tvmtarget.partition.placement.energy import Bools, Energy, LabelingProblem, energy_of
from tvmtarget.partition.subgraphs.typed_fusion import AtomGraph

__all__ = ["DualAscent"]

# Steps, and the table entries that all steps may visit together: larger problems get fewer steps, but no fewer than
# `LEAST_STEPS`, which lead to weak bounds. With more than `MAX_ENTRIES` entries there is no dual: it would take much
# memory.
MAX_STEPS, LEAST_STEPS, WORK, MAX_ENTRIES = 250, 20, 100_000_000, 60_000_000

# The ascent ends this close below the known labeling, or if this many steps gain less than a part of it.
NEAR, PATIENCE, SLOW = 2e-4, 10, 1e-3

# Momentum is step / (step + DELAY), at most MOMENTUM.
MOMENTUM, DELAY = 0.8, 3

# Groups of labels, above which tables of all their sets would be too large, and copies cost a sum over groups; more for
# nested trees, as what values save by detours depends on the set.
MAX_GROUPS, MAX_NESTED_GROUPS = 5, 7

# Readers of one edge with a table of sets: of many, each may only take a small part of a step, so that the ascent is
# slow. Costs of copies of values with more readers are a sum over groups, too. With 16, bounds are up to 0.6 % higher,
# but plans that have to keep capacities take 7 % longer where a value has many readers.
MAX_READERS = 512

# Edges of one value share its copies anew after so many steps.
SHARING = 2

# Costs of copies that share links, by type, group and set of groups, above which each pays for its last link only.
MAX_SHARED = 200_000

# Costs of copies, by type and two groups, above which there is no dual: tables of them would take much memory.
MAX_COSTS = 4_000_000

# Prices of the calls on a path that are tried, and the steps for each.
TRIALS, TRIAL_STEPS = 8, 15

_Floats = npt.NDArray[np.float64]


class DualAscent:
    """The dual of a labeling problem, at the point that the ascent has reached.

    Args:
        problem: a labeling problem.
        detours: what values may save, with which the bound holds for the plans of nested trees.

    Attributes:
        bound: a cost that no labeling goes below; 0 where the problem is too large.
        steps: how many steps are left.
        is_relaxed: whether labels are in many groups, for which costs of all copies are relaxed (`copy_edges.py`).
        call_prices: what a call of each label is priced at beside its launch.
    """

    def __init__(self, problem: LabelingProblem, detours: Detours | None = None) -> None:
        width, is_nested = problem.pair_costs.shape[-1], detours is not None and bool(detours.systems)
        self.is_relaxed = width > (MAX_NESTED_GROUPS if is_nested else MAX_GROUPS)
        if not self.is_relaxed and len(problem.pair_costs) * width << width > MAX_SHARED:
            problem = problem.relaxed()
        self.problem = problem
        self.bound = 0
        self.steps = 0
        self.call_prices: _Floats = np.zeros(len(problem.launches))
        if problem.pair_costs.size > MAX_COSTS:
            return
        energy = energy_of(problem, 0.0)
        is_additive = np.diff(problem.start) > (-1 if self.is_relaxed else MAX_READERS)
        additive, others = np.flatnonzero(is_additive), np.flatnonzero(~is_additive)
        copies = AdditiveCosts.of(problem) if len(additive) else None
        entries = _entries_of_sets(energy, others) if len(others) else 0
        self.steps = _steps(entries + (copies.entries(problem, additive) if copies else 0))
        if not self.steps:
            return
        self._saved = 0 if detours is None else detours.most(problem, additive)
        self._unary: _Floats = problem.allowed_costs.T.astype(np.float64)
        self._most = energy.total(self._unary.argmin(axis=0)) + int(problem.launches.sum())
        self._parts: list[Edges] = []
        if len(others):
            self._parts += [SetEdges(problem, energy, *part, detours) for part in _edges_by_sets(energy, others)]
        if copies:
            self._unary += costs_at_home(problem, additive)
            self._parts += copies.edges(problem, additive)
        for part in self._parts:
            part.exclude(self._unary, self._most)
        self._shares = _Shares(self._unary.shape[1], self._parts)
        self._paid = 0.0  # for all calls that limits allow

    def charge_calls(self, labels: Ints, graph: AtomGraph) -> None:
        """Add costs of calls, which the bound then includes.

        A call of a label is at least needed each time that a path enters the label. For each label one path is charged:
        the one that enters it most often under a known labeling.

        Args:
            labels: the known labeling, the better the tighter is the bound.
            graph: dependences between the atoms.
        """
        launches = self.problem.launches
        if not self.steps or not launches.any():
            return
        paths = {label: _path(labels.tolist(), graph, {label}) for label in np.flatnonzero(launches).tolist()}
        for label, path in paths.items():
            self._unary[label, path[0]] += launches[label]
        first, second, is_entered = _pairs_on_paths(paths, self._unary.shape)
        for part in self._parts:
            if isinstance(part, SetEdges):
                is_entered = part.charge_entries(first, second, is_entered, launches)
        rest = is_entered.any(axis=1)
        self._add(first[rest], second[rest], 0, (is_entered[rest] * launches).T)

    def _add(self, first: Ints, second: Ints, equal: int, unequal: Ints) -> PairEdges:
        """Add edges between two atoms each, with the costs of equal and of unequal labels."""
        part = PairEdges(first, second, float(equal), unequal.astype(np.float64), self._unary.shape[1])
        if len(first):
            self._parts.append(part)
            part.exclude(self._unary, self._most)
            self._shares = _Shares(self._unary.shape[1], self._parts)
        return part

    def limit_calls(self, limited: Bools, most: int, graph: AtomGraph, total: int | None) -> bool:
        """Price the calls of labels whose number is limited.

        No path may enter these labels more often (Lagrangian relaxation). One path is priced: the one that enters them
        most often where each atom has the label of the least reduced cost.

        Args:
            limited: a mask of labels.
            most: the most calls of these labels.
            graph: dependences between the atoms.
            total: the cost of a known labeling, near which the ascent ends.

        Returns:
            False if that path is within the limit already.
        """
        if not self.steps:
            return False
        members = set(np.flatnonzero(limited).tolist())
        labels = self.least_labels().tolist()
        path = _path(labels, graph, members)
        if _entered(labels, path, members) <= most:
            return False
        ends = np.array(path, dtype=np.int64)
        part = self._add(ends[:-1], ends[1:], 0, np.zeros((len(limited), 1), dtype=np.int64))

        def charge(more: float) -> None:
            part.unequal[limited] += more
            self._unary[limited, path[0]] += more
            self.call_prices[limited] += more
            self._paid += most * more

        known, price, best = self.bound, 0.0, 0.0
        least, highest, step = 0.0, np.inf, known / len(self.problem.costs)
        for _ in range(TRIALS):
            new = min(2 * price + step, (least + highest) / 2)
            charge(new - price)
            price, self.bound = new, 0
            self.climb(TRIAL_STEPS, total)
            if self.bound > known:
                known, best = self.bound, price
            if _entered(self.least_labels().tolist(), path, members) > most:
                least = price
            else:
                highest = price
        charge(best - price)
        self.bound = known
        return True

    def least_labels(self) -> Ints:
        """Return the labels of the least reduced costs."""
        labels: Ints = self.reduced_costs().argmin(axis=1)
        return labels

    def keep_apart(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Add costs, as large as the whole, where two atoms have one label.

        Args:
            pairs: atoms that must have different labels.
        """
        self._require(pairs, is_equal=False)

    def keep_together(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Add costs, as large as the whole, where two atoms have different labels.

        Args:
            pairs: atoms that must have the same label.
        """
        self._require(pairs, is_equal=True)

    def _require(self, pairs: Sequence[tuple[int, int]], *, is_equal: bool) -> None:
        if self.steps and pairs:
            first, second = np.array(pairs, dtype=np.int64).T
            equal, unequal = (0, self._most) if is_equal else (self._most, 0)
            self._add(first, second, equal, np.full((len(self.problem.domains), 1), unequal))

    def climb(self, steps: int, total: int | None = None) -> None:
        """Raise the bound.

        Args:
            steps: the most steps to take.
            total: the cost of a known labeling, near which the ascent ends.
        """
        steps = min(steps, self.steps)
        if not steps:
            return
        enough = np.inf if total is None else (1 - NEAR) * total + self._paid
        slow = SLOW * (self._most if total is None else total)
        best, earlier = 0.0, 0.0
        for part in self._parts:
            part.stop()
        for step in range(steps + 1):
            found = [part.minima() for part in self._parts]
            if total is not None or step == steps or step % PATIENCE == 0:
                atoms = self._atoms()
                best = max(best, float(atoms.min(axis=0).sum()) + sum(float(least.sum()) for least, _, _ in found))
            is_slow = step % PATIENCE == 0 and best - earlier < slow
            if step == steps or best >= enough or (step and is_slow):
                self.steps -= step
                break
            earlier = best if step % PATIENCE == 0 else earlier
            minima = [(by_tail, by_reader) for _, by_tail, by_reader in found]
            equal = self._with_minima(minima)
            equal /= self._shares.degree + 1
            momentum = min(MOMENTUM, step / (step + DELAY))
            for part, pair in zip(self._parts, minima, strict=True):
                part.move(equal, pair, self._shares.part, momentum)
                if step % SHARING == 0:
                    part.share()
        # Sums of floating point numbers may be too large by a little.
        self.bound = max(self.bound, int((best - self._paid) * (1 - 1e-9)) - 1 - self._saved)

    def reduced_costs(self) -> _Floats:
        """Return how much more each label costs than the best one of its atom.

        Costs are those of the atom itself and the least costs of all values at it.

        Returns:
            Atoms as rows, labels as columns; practically endless where a label is not allowed.
        """
        minima = [part.minima()[1:] for part in self._parts]
        found = self._with_minima(minima)
        reduced: _Floats = (found - found.min(axis=0)).T
        return reduced

    def _atoms(self) -> _Floats:
        """Return the costs of atoms (columns) by label (row), with those that were moved to them."""
        return sum((part.by_label(part.to_tail, part.to_reader) for part in self._parts), self._unary)

    def _with_minima(self, minima: list[tuple[_Floats, _Floats]]) -> _Floats:
        """Return the costs of atoms by label, with the least costs of all edges at them."""
        return sum((part.by_label(*pair) for part, pair in zip(self._parts, minima, strict=True)), self._unary)


def _edges_by_sets(energy: Energy, edges: Ints) -> list[tuple[Ints, Bools]]:
    """Return the edges of one reader at most, then the others, with the sets of groups that readers may be in."""
    width = energy.pair_costs.shape[-1]
    count = np.bincount(energy.owner, minlength=len(energy.producer))[edges]
    parts = ((edges[count < 2], _sets(width, 1)), (edges[count >= 2], _sets(width, width)))
    return [(tails_first(energy.producer, own), sets) for own, sets in parts if len(own)]


def _steps(entries: int) -> int:
    """Return the number of steps of the ascent, of which each visits some table entries; 0 where these are too many."""
    if not 0 < entries <= MAX_ENTRIES:
        return 0
    return min(MAX_STEPS, max(LEAST_STEPS, WORK // entries))


def _entries_of_sets(energy: Energy, edges: Ints) -> int:
    width, counts = energy.pair_costs.shape[-1], np.bincount(energy.owner, minlength=len(energy.producer))
    parts = _edges_by_sets(energy, edges)
    return sum(len(sets) * (width * len(own) + int(counts[own].sum())) for own, sets in parts)


def _pairs_on_paths(paths: Mapping[int, Sequence[int]], shape: tuple[int, ...]) -> tuple[Ints, Ints, Bools]:
    """Return the pairs of atoms that follow each other on paths of labels, and of which labels, by pair (row).

    `shape` are the numbers of labels and atoms.
    """
    labels, atoms = shape
    taken = {label: np.array(path, dtype=np.int64) for label, path in paths.items()}
    steps = [path[:-1] * atoms + path[1:] for path in taken.values()]
    charged, numbers = renumbered(np.concatenate(steps))
    is_entered = np.zeros((len(charged), labels), dtype=np.bool_)
    is_entered[numbers, np.repeat(np.array([*taken], dtype=np.int64), [len(own) for own in steps])] = True
    first, second = np.divmod(charged, atoms)
    return first, second, is_entered


def _path(labels: list[int], graph: AtomGraph, members: Collection[int]) -> list[int]:
    """Return a path that enters some labels as often as any does."""
    is_member = [own in members for own in labels]
    entered = [int(own) for own in is_member]  # the most that a path from here enters, this atom as the first
    then = [-1] * len(labels)
    for atom in reversed(graph.topological_order):
        most, following, own = entered[atom], -1, is_member[atom]
        for target in graph.successors[atom]:
            # Where both atoms have the label, entering the second is not another time.
            more = entered[target] + 1 if own and labels[target] != labels[atom] else entered[target]
            if more > most or (more == most and following < 0):
                most, following = more, target
        entered[atom], then[atom] = most, following
    path = [entered.index(max(entered))]
    while then[path[-1]] >= 0:
        path.append(then[path[-1]])
    return path


def _entered(labels: list[int], path: Sequence[int], members: Collection[int]) -> int:
    """Return how often a path enters some labels."""
    before = (-1, *(labels[atom] for atom in path[:-1]))
    return sum(labels[atom] in members and labels[atom] != label for label, atom in zip(before, path, strict=True))


def _sets(width: int, most: int) -> Bools:
    """Return masks of all sets of up to `most` groups."""
    sets = list(chain.from_iterable(combinations(range(width), size) for size in range(1, most + 1)))
    masks = np.zeros((len(sets), width), dtype=np.bool_)
    for number, members in enumerate(sets):
        masks[number, list(members)] = True
    return masks


class _Shares:
    """Of each atom the number of edges at it, and the part of a step that it takes."""

    def __init__(self, count: int, parts: Sequence[Edges]) -> None:
        self.degree, widest = np.zeros(count), np.ones(count)
        for part in parts:
            arities = part.arity[: len(part.tails)], part.arity[part.owner]
            for atoms, arity in zip((part.tails, part.readers), arities, strict=True):
                np.add.at(self.degree, atoms, 1.0)
                np.maximum.at(widest, atoms, arity.astype(np.float64))
        self.part: _Floats = 2 / (widest + 1)
