"""Hill climbing: move atoms and subgraphs of the best labeling to other labels while that lowers the cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle

import numpy as np

from tvmtarget.errors import InfeasibleError
from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.placement.incumbent import MAX_FORMED, MAX_TRIED, Incumbent
from tvmtarget.partition.placement.local_search import mixtures, neighboring_labelings, paired, with_fewer_subgraphs

__all__ = ["MAX_MIXED", "HillClimbing"]

# The most rounds, each of which moves from the best labeling to a better one.
MAX_ROUNDS = 4

# Up to this many atoms, single ones are moved where programs are not small. A move must pay for what it adds to
# operations and copies by the calls that it saves, which are seldom more than two.
MAX_MOVED_ATOMS, MAX_SAVED = 256, 2

# Up to this many atoms, what is between subgraphs is moved, if all such moves have no more labels than this.
MAX_MERGED_ATOMS, MAX_MERGE_ENTRIES = 2_000, 4_000_000

# Up to this many atoms whose choices depend on each other, any two of them are moved together; of more, exchanged.
MAX_PAIRED = 16

# Up to this many atoms and readers, whole subgraphs are moved.
MAX_MOVED_SIZE = 60_000

# Of labelings by prices, sections are taken from the last MAX_MIXED, in at most MAX_MIXED_ROUNDS rounds. A round tries
# up to MAX_MIXTURES mixtures, as long as all of them have no more than MAX_MIXTURE_ENTRIES labels.
MAX_MIXED, MAX_MIXED_ROUNDS, MAX_MIXTURES, MAX_MIXTURE_ENTRIES = 6, 100, 400, 400_000


class HillClimbing:
    """Moves of the best labeling, each kind repeated until it gains nothing.

    Args:
        best: the best labeling, which changes.
    """

    def __init__(self, best: Incumbent) -> None:
        self.best = best
        self._climbed: set[bytes] = set()  # labelings whose neighbours were considered

    def move_subgraphs(self) -> None:
        """Move whole subgraphs to other labels, in programs that are not too large."""
        best, owner = self.best, self.best.coupled.owner
        if not best.is_found or len(best.problem.costs) + len(best.problem.readers) > MAX_MOVED_SIZE:
            return

        def variables() -> list[list[int]]:
            if not best.coupled.is_merged:
                return best.subgraphs()
            return [sorted(set(owner[subgraph].tolist())) for subgraph in best.subgraphs()]

        self._improve(lambda: [best.moves.moved(best.labels, variables())])

    def merge_subgraphs(self) -> None:
        """Move all that is between two subgraphs of a label, or parts of subgraphs."""
        best, problem = self.best, self.best.problem
        if not best.is_found or not problem.launches.any() or len(problem.costs) > MAX_MERGED_ATOMS:
            return

        def merged() -> Sequence[Ints]:
            subgraphs = best.subgraphs()
            if len(subgraphs) ** 2 * problem.allowed.size > MAX_MERGE_ENTRIES:
                return []
            graph, owner, has_calls = best.level.graph, best.coupled.owner, problem.launches > 0
            rows = [*with_fewer_subgraphs(problem, graph, owner, best.labels, subgraphs, has_calls)]
            return self._promising(np.array(rows)) if rows else []

        self._improve(merged)

    def move_single_atoms(self) -> None:
        """Move single atoms, the most promising ones, in programs of middle size.

        Where the choices of atoms depend on each other, all atoms at a value move together, too.
        """
        best = self.best
        if best.is_small or not best.is_found or len(best.labels) > MAX_MOVED_ATOMS:
            return

        def moved() -> Sequence[Ints]:
            if best.is_coupled:
                rows = np.array([*neighboring_labelings(best.problem, best.labels)], dtype=np.int64)
            else:
                others = best.problem.allowed.copy()
                others[np.arange(len(others)), best.labels] = False
                atoms, labels = np.nonzero(others)
                rows = np.repeat(best.labels[None], len(atoms), axis=0)
                rows[np.arange(len(atoms)), atoms] = labels
            return self._promising(rows) if len(rows) else []

        self._improve(moved, combines=True)

    def _promising(self, rows: Ints) -> list[Ints]:
        """Return the labelings that add least to the costs of atoms and copies, if few calls less would pay for it."""
        problem = self.best.problem
        added = self.best.costs(rows) - problem.total(self.best.labels)
        order = np.argsort(added, kind="stable")[:MAX_TRIED]
        return [*rows[order[added[order] < MAX_SAVED * problem.launches.max()]]]

    def move_atoms(self) -> None:
        """Move single atoms, all atoms at a value, and all atoms of a label.

        Where the choices of atoms depend on each other, two atoms also change their labels together.
        """
        best = self.best

        def neighbours() -> Sequence[Ints]:
            if (key := best.labels.tobytes()) in self._climbed:
                return []
            self._climbed.add(key)
            found = [*neighboring_labelings(best.problem, best.labels)]
            if best.is_coupled:
                found += [*paired(best.problem, best.labels, every=len(best.labels) <= MAX_PAIRED)]
            return found

        if best.is_found:
            self._improve(neighbours)

    def _improve(self, neighbours: Callable[[], Sequence[Ints]], *, combines: bool = False) -> None:
        """Consider neighbours of the best labeling until none is better.

        With `combines`, those that are better are made one after the other; else only the best one.
        """
        best = self.best
        for _ in range(MAX_ROUNDS):
            before, labels, found = best.total, best.labels, neighbours()
            if combines:
                for row in found:
                    best.consider([np.where(row != labels, row, best.labels)])
            else:
                best.consider(found)
            if best.total == before:
                break

    def restart(self, starts: Sequence[Ints], most: int | None = None) -> None:
        """Improve other labelings too: the best one may be at the border of what is required.

        Args:
            starts: the other labelings.
            most: how many of them, the cheapest if each label that they use is called once; None for all.
        """
        best, problem, capacity = self.best, self.best.problem, self.best.capacity
        if most is not None:
            others = {labels.tobytes(): labels for labels in starts}
            others.pop(best.labels.tobytes(), None)
            rows = np.array([*others.values()], dtype=np.int64).reshape(-1, len(best.labels))
            starts = [*rows[np.argsort(best.costs_and_bounds(rows)[1], kind="stable")[:most]]]
        known = best.labels, best.total
        for start in starts:
            best.cutoff = known[1]
            best.labels, best.total = known[0][:0], 2**63
            if capacity is not None and not capacity.fits(start):
                try:
                    start = capacity.repaired(start, problem.allowed, problem.costs)
                except InfeasibleError:
                    continue
            best.consider([start])
            if best.is_found:
                self.merge_subgraphs()
                self.move_atoms()
            if best.total < known[1]:
                known = best.labels, best.total
        best.labels, best.total = known

    def mix_with(self, others: Sequence[Ints]) -> None:
        """Take sections of the program from other labelings.

        Args:
            others: labelings, which need not keep what is required.
        """
        best, problem = self.best, self.best.problem
        if not best.is_found:
            return
        owner, topological = best.coupled.owner, list(best.level.graph.topological_order)
        order = np.array(list(dict.fromkeys(owner[topological].tolist())), dtype=np.int64)
        uniform = [np.where(problem.allowed[:, label], label, -1) for label in range(len(problem.launches))]
        last, most = 0, min(MAX_MIXTURES, MAX_MIXTURE_ENTRIES // len(order))
        sources = cycle([*others, *uniform])
        for number in range(min(MAX_MIXED_ROUNDS, MAX_MIXTURE_ENTRIES // len(order))):
            source, before = next(sources), best.total
            rows = mixtures(best.labels, np.where(source < 0, best.labels, source), order, most)
            rows = rows[best.keeps(rows)]
            if len(rows):
                cheapest = np.argsort(best.costs_and_bounds(rows)[1], kind="stable")[:MAX_FORMED]
                best.consider(list(rows[cheapest]))
            last = number if best.total < before else last
            if number - last > len(others) + len(uniform):
                break
