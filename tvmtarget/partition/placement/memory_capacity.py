"""MemoryCapacity for weights: what a memory holds of the constants that the operations of its sites read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import numpy.typing as npt

from tvmtarget.errors import InfeasibleError
from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.target.topology import Site, Topology

__all__ = ["MemoryCapacity", "capacities", "capacity_of"]

# Operations, and who asked for them, that a message names.
MOST_NAMED = 4


@dataclass(frozen=True)
class MemoryCapacity:
    """Bytes that memories hold (`limits`, None without a limit), and what the atoms of a level put there.

    `memories` are the memories of the options. Constant `owned[j]` is read by atom `atoms[j]` and has `sizes[owned[j]]`
    bytes; it is there once however many atoms of one memory read it. `describe` says for messages which operations
    atoms
    are, and who asked where they go.
    """

    names: tuple[str, ...]
    limits: tuple[int | None, ...]
    memories: Ints
    atoms: Ints
    owned: Ints
    sizes: Ints
    describe: Callable[[Sequence[int]], str] = field(repr=False, compare=False)

    def loads(self, labels: Ints) -> list[int]:
        """Return the bytes that a choice of options puts into every memory."""
        pairs = np.unique(self.memories[labels[self.atoms]] * len(self.sizes) + self.owned)
        loads = np.zeros(len(self.limits), dtype=np.int64)
        np.add.at(loads, pairs // max(1, len(self.sizes)), self.sizes[pairs % max(1, len(self.sizes))])
        return [int(load) for load in loads]

    def fits(self, labels: Ints) -> bool:
        """Whether every memory holds what a choice puts there."""
        return all(limit is None or load <= limit for load, limit in zip(self.loads(labels), self.limits, strict=True))

    def shares(self) -> Ints:
        """Return the bytes of constants that every atom reads, those of several readers in equal shares."""
        users = np.bincount(self.owned, minlength=len(self.sizes))
        shares = np.zeros(int(self.atoms.max(initial=-1)) + 1, dtype=np.int64)
        np.add.at(shares, self.atoms, -(-self.sizes[self.owned] // users[self.owned]))
        return shares

    def repaired(self, labels: Ints, allowed: npt.NDArray[np.bool_], costs: Ints) -> Ints:
        """Move atoms out of memories that are too full, those first that it costs least for each byte.

        `InfeasibleError` says how many bytes do not fit, and of which operations.
        """
        moving = _Moving(self, labels)
        shares = self.shares()
        for memory, limit in enumerate(self.limits):
            if limit is None or moving.loads[memory] <= limit:
                continue
            movers = []
            for atom in np.flatnonzero((self.memories[labels[: len(shares)]] == memory) & (shares > 0)).tolist():
                price = costs[atom] - costs[atom, labels[atom]]
                others = np.flatnonzero(allowed[atom] & (self.memories != memory)).tolist()
                movers += [(int(price[other]) / int(shares[atom]), -atom, other) for other in others]
            for _, negative, other in sorted(movers):
                if moving.loads[memory] <= limit:
                    break
                moving.move(-negative, memory, other)
        for memory, (load, limit) in enumerate(zip(moving.loads, self.limits, strict=True)):
            if limit is not None and load > limit:
                left = np.flatnonzero((self.memories[moving.labels[: len(shares)]] == memory) & (shares > 0))
                bound = left[~(allowed[left] & (self.memories != memory)).any(axis=1)]
                most = sorted((bound if len(bound) else left).tolist(), key=lambda atom: (-shares[atom], atom))
                raise InfeasibleError(
                    f"memory {self.names[memory]!r} holds {limit} bytes, but the weights of ops that must be there "
                    f"take {load}: {self.describe(most)}; allow more ops elsewhere, or state a larger memory"
                )
        return moving.labels


class _Moving:
    """Labels that change atom by atom, and what that makes of the memories."""

    def __init__(self, room: MemoryCapacity, labels: Ints) -> None:
        self.room = room
        self.labels = labels.copy()
        self.loads = room.loads(labels)
        self.constants: dict[int, list[int]] = {}
        self.readers: Counter[tuple[int, int]] = Counter()
        for atom, constant in zip(room.atoms.tolist(), room.owned.tolist(), strict=True):
            self.constants.setdefault(atom, []).append(constant)
            self.readers[int(room.memories[labels[atom]]), constant] += 1

    def move(self, atom: int, memory: int, label: int) -> None:
        """Move an atom that is in a memory still, if its constants fit where it goes."""
        there, constants = int(self.room.memories[label]), self.constants[atom]
        sizes = {constant: int(self.room.sizes[constant]) for constant in constants}
        more = sum(sizes[constant] for constant in constants if not self.readers[there, constant])
        limit = self.room.limits[there]
        if self.room.memories[self.labels[atom]] != memory or (limit is not None and self.loads[there] + more > limit):
            return
        self.labels[atom] = label
        self.loads[there] += more
        for constant in constants:
            self.readers[there, constant] += 1
            self.readers[memory, constant] -= 1
            self.loads[memory] -= 0 if self.readers[memory, constant] else sizes[constant]


def capacity_of(
    program: FlatProgram,
    home: str,
    options: Sequence[Site],
    atoms: Sequence[tuple[int, ...]],
    stated: Mapping[str, int],
) -> MemoryCapacity | None:
    """Return the room at a level, or None where no memory of its leaves is limited.

    `stated` are bytes by memory that count instead of those of the target. The memory of the driver, `home`, is not
    limited: it has the whole program before anything is placed.
    """
    known = capacities(program.topology, stated)
    homes = [option.domain for option in options]
    names = tuple(dict.fromkeys(homes))
    leaves = {option.domain for option in options if not option.is_system} - {home}
    limits = tuple(known.get(name) if name in leaves else None for name in names)
    if not any(limit is not None for limit in limits):
        return None
    places = {name: place for place, name in enumerate(program.constants)}
    pairs = [
        (number, places[name])
        for number, atom in enumerate(atoms)
        for name in {name for index in atom for name in program.body[index].uses() if name in places}
    ]
    return MemoryCapacity(
        names=names,
        limits=limits,
        memories=np.array([names.index(home) for home in homes], dtype=np.int64),
        atoms=np.array([atom for atom, _ in pairs], dtype=np.int64),
        owned=np.array([constant for _, constant in pairs], dtype=np.int64),
        sizes=np.array([constant.data.nbytes for constant in program.constants.values()], dtype=np.int64),
        describe=lambda numbers: _ops_text(program, [index for number in numbers for index in atoms[number]]),
    )


def _ops_text(program: FlatProgram, calls: Sequence[int]) -> str:
    """Name the first few operations, and all who asked where any of them goes."""
    names = ", ".join(repr(program.body[index].source) for index in calls[:MOST_NAMED])
    more = f" and {len(calls) - MOST_NAMED} more" if len(calls) > MOST_NAMED else ""
    origins = dict.fromkeys(str(asked.origin) for index in calls for asked in program.requirements[index])
    return names + more + (f" (required by {', '.join(islice(origins, MOST_NAMED))})" if origins else "")


def capacities(topology: Topology, stated: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes that memory domains hold: those that a target declares, and those stated, which win."""
    found: dict[str, int] = {}
    for path, node in topology.root.walk():
        for memory in node.memory:
            if memory.bytes is not None:
                found[f"{path}/{memory.name}" if path else memory.name] = memory.bytes
    return found | dict(stated)
