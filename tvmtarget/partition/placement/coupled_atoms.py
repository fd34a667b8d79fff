"""Requests that couple the choices of several atoms: `same_site`, `apart`, and the most subgraphs of a site.

Atoms that share a site become one variable of the labeling problem. The other requests are conditions that a labeling
meets or not: labelings that do not are left out where all are compared, and repaired or left out in a search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.dataflow import Ints, distinct
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.options import PartitionOptions
from tvmtarget.partition.placement.colocation import Colocation, colocation_of
from tvmtarget.partition.placement.constraint_paths import leaves_at
from tvmtarget.partition.placement.energy import Bools, LabelingProblem
from tvmtarget.partition.placement.level import Level
from tvmtarget.partition.placement.memory_capacity import MemoryCapacity
from tvmtarget.union_find import UnionFind

__all__ = ["CoupledAtoms", "CoupledOps", "coupled_atoms", "coupled_ops", "with_scarce_calls", "with_unsized_values"]

# So many calls of other labels, at most, cost as much as one of a label whose subgraphs are limited.
MAX_SAVING = 64


@dataclass(frozen=True)
class CoupledOps:
    """Requests that couple operations.

    Attributes:
        colocation: operations that share a leaf, and pairs that do not.
        max_subgraphs: paths of leaves, and the most subgraphs that they may have together.
    """

    colocation: Colocation = field(default_factory=Colocation)
    max_subgraphs: tuple[tuple[frozenset[str], int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.colocation or self.max_subgraphs)


def coupled_ops(program: FlatProgram, options: PartitionOptions, *, has_colocation: bool = True) -> CoupledOps:
    """Return the requests of options that couple operations.

    Args:
        program: the flat program.
        options: the options.
        has_colocation: False leaves `same_site` and `apart` out, for plans with pins that keep them.

    Returns:
        The requests, with operations by number and leaves by path.
    """
    limits = tuple((leaves_at(name, program.topology), most) for name, most in options.max_subgraphs.items())
    colocation = colocation_of(program, options.same_site, options.apart) if has_colocation else Colocation()
    return CoupledOps(colocation, limits)


@dataclass(frozen=True)
class CoupledAtoms:
    """The same for the atoms of a level: groups of atoms with one label are the variables of its labeling problem.

    Attributes:
        owner: the variable of each atom.
        apart: pairs of variables with different labels.
        most: masks of labels, and the most subgraphs that these may have together.
    """

    owner: Ints
    apart: tuple[tuple[int, int], ...] = ()
    most: tuple[tuple[Bools, int], ...] = ()

    @cached_property
    def is_merged(self) -> bool:
        """Whether some variable stands for several atoms."""
        return len(self.owner) > int(self.owner.max(initial=-1)) + 1

    @cached_property
    def conflicts(self) -> Mapping[int, Sequence[int]]:
        """For variables of `apart`, those that must have another label."""
        found: dict[int, list[int]] = {}
        for one, other in self.apart:
            found.setdefault(one, []).append(other)
            found.setdefault(other, []).append(one)
        return found

    def contracted(self, problem: LabelingProblem) -> LabelingProblem:
        """Return the labeling problem of the variables.

        Args:
            problem: the problem of the atoms.

        Returns:
            A problem in which equal labels cost what they cost in `problem`.
        """
        return self.without_unused(self._merged(problem))

    def _merged(self, problem: LabelingProblem) -> LabelingProblem:
        if not self.is_merged:
            return problem
        count = int(self.owner.max()) + 1
        costs = np.zeros((count, problem.costs.shape[1]), dtype=np.int64)
        np.add.at(costs, self.owner, problem.costs)
        allowed = self.all_of(problem.allowed)
        producer = np.where(problem.producer >= 0, self.owner[problem.producer], problem.producer)
        return replace(
            problem,
            costs=np.where(allowed, costs, 0),
            allowed=allowed,
            producer=producer,
            readers=self.owner[problem.readers],
        )

    def without_unused(self, problem: LabelingProblem) -> LabelingProblem:
        """Return a problem without the labels that may have no subgraph.

        Args:
            problem: a labeling problem.

        Returns:
            The problem, in which atoms that may have no other label keep theirs.
        """
        unused = [mask for mask, most in self.most if not most]
        if not unused:
            return problem
        allowed = problem.allowed & ~np.any(unused, axis=0)
        allowed = np.where(allowed.any(axis=1, keepdims=True), allowed, problem.allowed)
        return replace(problem, allowed=allowed, costs=np.where(allowed, problem.costs, 0))

    def all_of(self, flags: Bools) -> Bools:
        """Return which flags all atoms of each variable have.

        Args:
            flags: flags by atom (row).

        Returns:
            Flags by variable.
        """
        if not self.is_merged:
            return flags
        found = np.ones((int(self.owner.max(initial=-1)) + 1, flags.shape[1]), dtype=np.bool_)
        np.logical_and.at(found, self.owner, flags)
        return found

    def capacity(self, capacity: MemoryCapacity | None) -> MemoryCapacity | None:
        """Return memory capacities for the labels of variables.

        Args:
            capacity: those for the labels of atoms; None where memories are unlimited.

        Returns:
            The same limits.
        """
        if capacity is None or not self.is_merged:
            return capacity
        count = len(capacity.sizes)
        pairs = distinct(self.owner[capacity.atoms] * count + capacity.owned)
        ops: list[tuple[int, ...]] = [()] * (int(self.owner.max()) + 1)
        for variable, calls in zip(self.owner.tolist(), capacity.ops, strict=True):
            ops[variable] += calls
        return replace(capacity, atoms=pairs // count, owned=pairs % count, ops=tuple(ops))

    def keeps(self, rows: Ints) -> Bools:
        """Return which labelings keep variables apart, and use no more limited labels than they may.

        Args:
            rows: labelings, one per row; of the first variables at least.

        Returns:
            A flag for each row.
        """
        kept = self.keeps_apart(rows)
        for mask, most in self.most:
            # Each label in use has a subgraph.
            used = sum((rows == label).any(axis=1).astype(np.int64) for label in np.flatnonzero(mask).tolist())
            kept &= used <= most
        return kept

    def keeps_apart(self, rows: Ints) -> Bools:
        """Return which labelings keep variables apart.

        Args:
            rows: labelings, one per row; of the first variables at least.

        Returns:
            A flag for each row.
        """
        kept = np.ones(len(rows), dtype=np.bool_)
        for first, second in (pair for pair in self.apart if pair[1] < rows.shape[1]):
            kept &= rows[:, first] != rows[:, second]
        return kept

    def scarce(self, launches: Ints) -> Ints:
        """Return costs of calls that are much higher where the number of subgraphs is limited.

        Args:
            launches: cost of a call under each label.

        Returns:
            Costs by label, with which subgraphs of limited labels are as few as they can be.
        """
        limited = np.any([mask for mask, _ in self.most], axis=0)
        return with_scarce_calls(launches, limited, len(self.owner))

    def has_too_many(self, labels: Sequence[int]) -> bool:
        """Return whether some labels have more subgraphs than they may.

        Args:
            labels: the label of each subgraph.

        Returns:
            True if a limit is exceeded.
        """
        if not self.most:
            return False
        return self.exceeds(Counter(labels))

    def exceeds(self, counts: Mapping[int, int]) -> bool:
        """Return whether some labels have more subgraphs than they may.

        Args:
            counts: the number of subgraphs by label.

        Returns:
            True if a limit is exceeded.
        """
        return self.excess(counts) > 0

    def excess(self, counts: Mapping[int, int]) -> int:
        """Return how many subgraphs are too many.

        Args:
            counts: the number of subgraphs by label.

        Returns:
            The sum over all limits.
        """
        totals = (sum(counts.get(label, 0) for label in np.flatnonzero(mask).tolist()) for mask, _ in self.most)
        return sum(max(0, total - most) for total, (_, most) in zip(totals, self.most, strict=True))


def with_scarce_calls(launches: Ints, limited: Bools, atoms: int) -> Ints:
    """Return costs of calls that are much higher where calls are to be few.

    Args:
        launches: cost of a call under each label.
        limited: labels whose calls are to be few.
        atoms: the number of atoms.

    Returns:
        Costs by label.
    """
    more: Ints = limited * (int(launches.max(initial=0)) + 1) * min(atoms, MAX_SAVING)
    return launches + more


def with_unsized_values(ops: CoupledOps, program: FlatProgram, estimates: Estimates) -> CoupledOps | None:
    """Add groups of operations between which values of unknown size pass.

    No cost says what a copy of such a value takes, as of those that loops collect. Operations that share it are only
    compared on one site together.

    Args:
        ops: the requests.
        program: the program.
        estimates: the sizes of values.

    Returns:
        The requests with these groups; None if there are none.
    """
    groups = []
    for scope in program.scopes:
        flow = program.dataflow(scope.calls[:1])
        is_unsized = np.array([estimates.nbytes(type_) is None for type_ in flow.types], dtype=np.bool_)
        for value in np.flatnonzero(is_unsized[flow.type_ids] & (flow.producer >= 0)).tolist():
            readers = flow.readers[flow.start[value] : flow.start[value + 1]].tolist()
            groups.append((int(flow.producer[value]), *readers))
    groups = [group for group in groups if len(group) > 1]
    if not groups:
        return None
    colocation = replace(ops.colocation, same_site=(*ops.colocation.same_site, *groups))
    return replace(ops, colocation=colocation)


def coupled_atoms(level: Level, ops: CoupledOps) -> CoupledAtoms:
    """Return what the atoms of a level have to keep.

    Args:
        level: a level.
        ops: the requests.

    Returns:
        Those requests that labels of this level decide: none if an option is a system, and no group or pair with
        operations that are not atoms of the level, or that has no label in common.
    """
    count = len(level.atoms)
    if not ops or not level.decides_leaves:
        return CoupledAtoms(np.arange(count))
    atom_of = {index: number for number, atom in enumerate(level.atoms) for index in atom}
    sets = UnionFind(range(count))
    for group in ops.colocation.same_site:
        atoms = sorted({atom_of.get(index, -1) for index in group})
        if atoms[0] >= 0 and level.allowed[atoms].all(axis=0).any():
            for other in atoms[1:]:
                sets.union(atoms[0], other)
    owner = np.zeros(count, dtype=np.int64)
    merged = sets.groups()
    for number, members in enumerate(merged):
        owner[list(members)] = number
    if not all(level.allowed[list(members)].all(axis=0).any() for members in merged):
        owner = np.arange(count)
    ends = ([int(owner[atom_of[index]]) for index in pair if index in atom_of] for pair in ops.colocation.apart)
    apart = {(min(pair), max(pair)) for pair in ends if len(set(pair)) == 2}
    paths = [option.path for option in level.options]
    most = tuple((np.array([path in leaves for path in paths]), limit) for leaves, limit in ops.max_subgraphs)
    return CoupledAtoms(owner, tuple(sorted(apart)), most)
