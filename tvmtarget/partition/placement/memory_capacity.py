"""Capacities of memories for weights: what the constants read by the operations of each site add up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import numpy.typing as npt

from tvmtarget.errors import CapacityError
from tvmtarget.human_units import bytes_text
from tvmtarget.partition.dataflow import Ints, distinct
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.target.topology import Site, Topology

__all__ = ["MemoryCapacity", "capacities", "capacity_of"]

# Operations, and origins of their requirements, that a message names.
MAX_NAMED = 4


@dataclass(frozen=True)
class MemoryCapacity:
    """Capacities of the memories of a level, and the constants that its atoms read.

    A constant is in a memory once, however many atoms there read it.

    Attributes:
        names: the domains of the memories.
        limits: bytes that each memory holds, None if there is no limit.
        memories: the memory of each option.
        atoms: `atoms[j]` reads constant `owned[j]`.
        owned: constants.
        sizes: bytes of each constant.
        ops: the operations of each atom, by number.
        describe: names operations and the origins of their requirements, for messages.
        reserved: bytes of each memory that are left to values, and not in `limits`.
    """

    names: tuple[str, ...]
    limits: tuple[int | None, ...]
    memories: Ints
    atoms: Ints
    owned: Ints
    sizes: Ints
    ops: tuple[tuple[int, ...], ...]
    describe: Callable[[Sequence[int]], str] = field(repr=False, compare=False)
    reserved: tuple[int, ...] = ()

    @property
    def without_reserve(self) -> MemoryCapacity | None:
        """The capacities with nothing reserved for values; None if nothing is."""
        if not any(self.reserved):
            return None
        limits = (
            None if limit is None else limit + nbytes for limit, nbytes in zip(self.limits, self.reserved, strict=True)
        )
        return replace(self, limits=tuple(limits), reserved=())

    @property
    def is_ample(self) -> bool:
        """Whether each memory holds all constants that atoms read."""
        needed = int(self.sizes[distinct(self.owned)].sum())
        return all(limit is None or needed <= limit for limit in self.limits)

    def loads(self, labels: Ints) -> list[int]:
        """Return the bytes of constants in every memory.

        Args:
            labels: the option of each atom.

        Returns:
            Bytes by memory.
        """
        # Pairs of memory and constant, encoded as one number: a constant counts once per memory.
        pairs = distinct(self.memories[labels[self.atoms]] * len(self.sizes) + self.owned)
        loads = np.zeros(len(self.limits), dtype=np.int64)
        np.add.at(loads, pairs // max(1, len(self.sizes)), self.sizes[pairs % max(1, len(self.sizes))])
        return [int(load) for load in loads]

    def fits(self, labels: Ints) -> bool:
        """Check that no memory is too full.

        Args:
            labels: the option of each atom.

        Returns:
            True if all limits are kept.
        """
        return all(limit is None or load <= limit for load, limit in zip(self.loads(labels), self.limits, strict=True))

    def fitting(self, rows: Ints) -> npt.NDArray[np.bool_]:
        """Check many assignments at once.

        Args:
            rows: the option of each atom (column) in each assignment (row); of the first atoms at least.

        Returns:
            For each row True if these atoms keep all limits.
        """
        is_known = self.atoms < rows.shape[1]
        atoms, owned = self.atoms[is_known], self.owned[is_known]
        is_shared = np.bincount(owned, minlength=len(self.sizes))[owned] > 1
        readers: dict[int, list[int]] = {}
        for atom, constant in zip(atoms[is_shared].tolist(), owned[is_shared].tolist(), strict=True):
            readers.setdefault(constant, []).append(atom)
        memories = self.memories[rows]
        alone, sizes = memories[:, atoms[~is_shared]], self.sizes[owned[~is_shared]]
        kept = np.ones(len(rows), dtype=np.bool_)
        for memory, limit in enumerate(self.limits):
            if limit is None:
                continue
            loads = (alone == memory) @ sizes
            for constant, several in readers.items():
                loads += self.sizes[constant] * (memories[:, several] == memory).any(axis=1)
            kept &= loads <= limit
        return kept

    def shares(self, *, rounds_up: bool = True) -> Ints:
        """Return the bytes of constants that each atom reads.

        Args:
            rounds_up: round shares up, so that every reader has one; else down, so that they add up to no more than
                the constant.

        Returns:
            Bytes by atom, up to the last atom that reads a constant; of a constant with several readers, equal shares.
        """
        users = np.bincount(self.owned, minlength=len(self.sizes))
        shares = np.zeros(int(self.atoms.max(initial=-1)) + 1, dtype=np.int64)
        sizes, counts = self.sizes[self.owned], users[self.owned]
        np.add.at(shares, self.atoms, -(-sizes // counts) if rounds_up else sizes // counts)
        return shares

    def released(self, allowed: npt.NDArray[np.bool_], pinned: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which pinned atoms to release because their weights do not fit their memories.

        Memories hold the weights of atoms without another choice, then those of pinned atoms, in order.

        Args:
            allowed: whether an atom (row) may have an option (column).
            pinned: the same, with fewer options for pinned atoms.

        Returns:
            True for atoms to release.
        """
        constants: dict[int, set[int]] = {}
        for atom, constant in zip(self.atoms.tolist(), self.owned.tolist(), strict=True):
            constants.setdefault(atom, set()).add(constant)
        held: list[set[int]] = [set() for _ in self.limits]
        loads = [0] * len(self.limits)
        found = np.zeros(len(allowed), dtype=np.bool_)
        for options, is_pin in ((allowed, False), (pinned, True)):
            for atom, owned in constants.items():
                memories = {int(memory) for memory in self.memories[options[atom]]}
                if len(memories) != 1:
                    continue
                (memory,) = memories
                more = owned - held[memory]
                load, limit = loads[memory] + int(self.sizes[list(more)].sum()), self.limits[memory]
                if is_pin and limit is not None and load > limit:
                    found[atom] = True
                else:
                    held[memory] |= more
                    loads[memory] = load
        return found

    def repaired(self, labels: Ints, allowed: npt.NDArray[np.bool_], costs: Ints) -> Ints:
        """Move atoms out of memories that are too full, greedily by extra cost per byte.

        Args:
            labels: the option of each atom.
            allowed: whether an atom (row) may have an option (column).
            costs: cost of each atom under each option.

        Returns:
            Options that keep all limits.

        Raises:
            CapacityError: if a memory remains too full; the message names the operations.
        """
        relocation = _Relocation(self, labels)
        shares = self.shares()
        for memory, limit in enumerate(self.limits):
            if limit is None or relocation.loads[memory] <= limit:
                continue
            movers = []
            for atom in np.flatnonzero((self.memories[labels[: len(shares)]] == memory) & (shares > 0)).tolist():
                price = costs[atom] - costs[atom, labels[atom]]
                others = np.flatnonzero(allowed[atom] & (self.memories != memory)).tolist()
                movers += [(int(price[other]) / int(shares[atom]), -atom, other) for other in others]
            for _, negative, other in sorted(movers):
                if relocation.loads[memory] <= limit:
                    break
                relocation.move(-negative, memory, other)
        for memory, (load, limit) in enumerate(zip(relocation.loads, self.limits, strict=True)):
            if limit is not None and load > limit:
                left = np.flatnonzero((self.memories[relocation.labels[: len(shares)]] == memory) & (shares > 0))
                raise CapacityError(
                    self._problem(memory, limit, load, left, allowed),
                    memory=self.names[memory],
                    missing=load - limit,
                    groups=tuple(
                        (
                            self.ops[atom],
                            int(shares[atom]),
                            frozenset(self.names[number] for number in self.memories[allowed[atom]].tolist()),
                        )
                        for atom in left.tolist()
                    ),
                )
        return relocation.labels

    def _problem(self, memory: int, limit: int, load: int, left: Ints, allowed: npt.NDArray[np.bool_]) -> str:
        """Return why the weights of the atoms that are left in a memory do not fit, as far as it is known."""
        name, shares = self.names[memory], self.shares()

        def named(atoms: Ints) -> str:
            largest = sorted(atoms.tolist(), key=lambda atom: (-shares[atom], atom))
            calls = [index for atom in largest for index in self.ops[atom]]
            return f"{self.describe(calls)}; allow more ops elsewhere, or state a larger memory"

        bound = left[~(allowed[left] & (self.memories != memory)).any(axis=1)]
        needed = int(self.sizes[distinct(self.owned[np.isin(self.atoms, bound)])].sum())
        if needed > limit:
            return (
                f"memory {name!r} holds {bytes_text(limit)}, but the weights of ops that must be there take "
                f"{bytes_text(needed)}, {bytes_text(needed - limit)} too many: {named(bound)}"
            )
        limits = [one for one in self.limits if one is not None]
        total = int(self.sizes[distinct(self.owned)].sum())
        if len(limits) == len(self.limits) and total > sum(limits):
            return (
                f"memories {', '.join(map(repr, self.names))} hold {bytes_text(sum(limits))}, but the weights of all "
                f"ops take {bytes_text(total)}, {bytes_text(total - sum(limits))} too many; state larger ones"
            )
        return (
            f"no placement was found whose weights fit: memory {name!r} holds {bytes_text(limit)}, and the weights of "
            f"the ops that remain there take {bytes_text(load)}, {bytes_text(load - limit)} too many: {named(left)}"
        )


class _Relocation:
    """Labels that change atom by atom, with the loads of all memories kept up to date."""

    def __init__(self, capacity: MemoryCapacity, labels: Ints) -> None:
        self.capacity = capacity
        self.labels = labels.copy()
        self.loads = capacity.loads(labels)
        self.constants: dict[int, list[int]] = {}
        self.readers: Counter[tuple[int, int]] = Counter()
        for atom, constant in zip(capacity.atoms.tolist(), capacity.owned.tolist(), strict=True):
            self.constants.setdefault(atom, []).append(constant)
            self.readers[int(capacity.memories[labels[atom]]), constant] += 1

    def move(self, atom: int, memory: int, label: int) -> None:
        """Move an atom out of a memory, if it is still there and its constants fit the other memory.

        Args:
            atom: the atom.
            memory: the memory to leave.
            label: the option to go to.
        """
        target, constants = int(self.capacity.memories[label]), self.constants[atom]
        sizes = {constant: int(self.capacity.sizes[constant]) for constant in constants}
        more = sum(sizes[constant] for constant in constants if not self.readers[target, constant])
        limit = self.capacity.limits[target]
        if self.capacity.memories[self.labels[atom]] != memory or (
            limit is not None and self.loads[target] + more > limit
        ):
            return
        self.labels[atom] = label
        self.loads[target] += more
        for constant in constants:
            self.readers[target, constant] += 1
            self.readers[memory, constant] -= 1
            self.loads[memory] -= 0 if self.readers[memory, constant] else sizes[constant]


def capacity_of(
    program: FlatProgram,
    options: Sequence[Site],
    atoms: Sequence[tuple[int, ...]],
    stated: Mapping[str, int],
) -> MemoryCapacity | None:
    """Return the capacities of a level.

    Args:
        program: the program.
        options: the options of the level.
        atoms: the atoms of the level.
        stated: bytes by memory domain that override the target's.

    Returns:
        The capacities; None if no memory of a leaf is limited, or limits do not count.
    """
    if not program.is_limited:
        return None
    known = capacities(program.topology, stated)
    domains = [option.domain for option in options]
    names = tuple(dict.fromkeys(domains))
    leaves = {option.domain for option in options if not option.is_system}
    limits = tuple(
        max(0, known[name] - program.reserved.get(name, 0)) if name in leaves and name in known else None
        for name in names
    )
    if not any(limit is not None for limit in limits):
        return None
    numbers = {name: number for number, name in enumerate(program.constants)}
    pairs = [
        (number, numbers[name])
        for number, atom in enumerate(atoms)
        for name in {name for index in atom for name in program.body[index].uses() if name in numbers}
    ]
    return MemoryCapacity(
        names=names,
        limits=limits,
        memories=np.array([names.index(home) for home in domains], dtype=np.int64),
        atoms=np.array([atom for atom, _ in pairs], dtype=np.int64),
        owned=np.array([constant for _, constant in pairs], dtype=np.int64),
        sizes=np.array([constant.data.nbytes for constant in program.constants.values()], dtype=np.int64),
        ops=tuple(atoms),
        reserved=tuple(min(known.get(name, 0), program.reserved.get(name, 0)) for name in names),
        describe=lambda calls: _ops_text(program, calls),
    )


def _ops_text(program: FlatProgram, calls: Sequence[int]) -> str:
    """Name the first few operations, and the origins of their requirements."""
    names = ", ".join(repr(program.body[index].source) for index in calls[:MAX_NAMED])
    more = f" and {len(calls) - MAX_NAMED} more" if len(calls) > MAX_NAMED else ""
    origins = dict.fromkeys(str(requirement.origin) for index in calls for requirement in program.requirements[index])
    return names + more + (f" (required by {', '.join(islice(origins, MAX_NAMED))})" if origins else "")


def capacities(topology: Topology, stated: Mapping[str, int]) -> dict[str, int]:
    """Return the capacities of memory domains.

    Args:
        topology: the sites, with the memories that the target declares.
        stated: bytes by memory domain that override those.

    Returns:
        Bytes by memory domain. The SRAM of a driver is not among the target's, nor its memory with the AOT executor:
        that executor counts what the compiled program needs, with weights in another memory, such as flash.
    """
    executor, home = topology.root.executor, topology.home("")
    is_aot = executor is not None and executor.kind == "aot"
    return {
        domain: memory.bytes
        for domain, memory in topology.memories.items()
        if memory.bytes is not None and not (domain == home and (is_aot or memory.kind == "sram"))
    } | dict(stated)
