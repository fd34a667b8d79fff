"""Bytes that a plan needs in each memory: weights, and values that are live at the same time.

The driver runs subgraphs one after the other. A value is in the memory of the site that computes it from then on until
the last operation there has read it, or until it was copied to where it is read; values that pass between functions
stay until the call that reads them ends. A copy is there while functions of that memory need it. The driver's memory
has the inputs of the program from the beginning, and its results until the end. Values inside a function count too, in
the order of its operations: a code generator that fuses operations needs less, one with scratch memory of its own more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tvmtarget.human_units import bytes_text
from tvmtarget.ir.types import TensorType
from tvmtarget.partition.decomposition import Decomposition
from tvmtarget.partition.placement.memory_capacity import capacities

__all__ = ["MemoryUse", "memory_uses"]

_MOST_NAMED = 4


@dataclass(frozen=True)
class MemoryUse:
    """What a plan needs of one memory that has a limit.

    Attributes:
        memory: the memory domain.
        limit: bytes that it holds.
        weights: bytes of the constants that operations there read, each once.
        values: the most bytes of values that are there at the same time.
        op: the operation that runs then.
        live: the largest of these values, with their bytes.
        crowded: operations, by number, that run while more is there than the memory holds.
        unknown: values of unknown size, which are not counted.
    """

    memory: str
    limit: int
    weights: int
    values: int
    op: str
    live: tuple[tuple[str, int], ...] = ()
    crowded: tuple[int, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def missing(self) -> int:
        """Bytes by which the memory is too small; 0 if it is not."""
        return max(0, self.weights + self.values - self.limit)

    def __str__(self) -> str:
        unknown = f", and {len(self.unknown)} of unknown size" if self.unknown else ""
        return (
            f"memory {self.memory!r} of {bytes_text(self.limit)}: {bytes_text(self.weights)} of weights, at most "
            f"{bytes_text(self.values)} of values at a time{unknown}"
        )

    def to_json(self) -> dict[str, object]:
        """Return bytes and the operation as data."""
        facts: dict[str, object] = {"memory": self.memory, "limit": self.limit, "weights": self.weights}
        return facts | {"values": self.values, "op": self.op, "unknown": len(self.unknown)}

    def problem(self) -> str:
        """Return a message that the memory is too small, with the operation and its values."""
        listed = ", ".join(f"{name!r} ({bytes_text(size)})" for name, size in self.live)
        return (
            f"memory {self.memory!r} holds {bytes_text(self.limit)}, but ops that must be there need "
            f"{bytes_text(self.weights + self.values)}, {bytes_text(self.missing)} too many: "
            f"{bytes_text(self.weights)} of weights, and {bytes_text(self.values)} of values when {self.op!r} runs: "
            f"{listed}; allow more ops elsewhere, or state a larger memory"
        )


def memory_uses(plan: Decomposition) -> tuple[MemoryUse, ...]:
    """Return what a plan needs of the memories that have a limit.

    Args:
        plan: the plan; with costs, their `symbolic_hints` give sizes to symbolic dimensions.

    Returns:
        An entry for each memory with a limit that operations use, in the order of the first use.
    """
    stated = {} if plan.estimates is None else plan.estimates.capacities()
    limits = capacities(plan.topology, stated)
    used = dict.fromkeys(plan.topology[record.site].domain for record in plan.subgraphs)
    limited = [domain for domain in used if domain in limits]
    if not limited:
        return ()
    schedule = _Schedule(plan)
    return tuple(schedule.use(domain, limits[domain]) for domain in limited)


class _Schedule:
    """The operations of a plan in the order in which they run, with the call and the memory of each."""

    def __init__(self, plan: Decomposition) -> None:
        self.plan = plan
        self.calls: list[int] = []
        self.domains: list[str] = []
        self.spans: list[tuple[int, int]] = []  # by position, the first and the last position of its call
        for record in plan.subgraphs:
            span = len(self.calls), len(self.calls) + len(record.calls) - 1
            self.calls += record.calls
            self.domains += [plan.topology[record.site].domain] * len(record.calls)
            self.spans += [span] * len(record.calls)
        body = plan.program.body
        self.made: dict[str, int] = {}
        self.read: dict[str, list[int]] = {}
        for position, index in enumerate(self.calls):
            self.made |= dict.fromkeys((output.name for output in body[index].outputs if output.name), position)
            for name in dict.fromkeys(body[index].uses()):
                self.read.setdefault(name, []).append(position)

    def use(self, domain: str, limit: int) -> MemoryUse:
        """Return what is needed of one memory."""
        program = self.plan.program
        here = [position for position, name in enumerate(self.domains) if name == domain]
        read = {name for position in here for name in program.body[self.calls[position]].uses()}
        weights = sum(program.constants[name].data.nbytes for name in read if name in program.constants)
        spans, unknown = list[tuple[int, int, int, str]](), list[str]()
        for name, begin, end in self._spans(domain):
            size = self._size(name)
            if size is None:
                unknown.append(name)
            elif size:
                spans.append((begin, end, size, name))
        changes = [0] * (len(self.calls) + 1)
        for begin, end, size, _ in spans:
            changes[begin] += size
            changes[end + 1] -= size
        loads, load = list[int](), 0
        for change in changes:
            load += change
            loads.append(load)
        at = max(here, key=lambda position: (loads[position], -position))
        live = sorted(((name, size) for begin, end, size, name in spans if begin <= at <= end), key=lambda one: -one[1])
        crowded = tuple(self.calls[position] for position in here if weights + loads[position] > limit)
        op = program.body[self.calls[at]].source
        return MemoryUse(domain, limit, weights, loads[at], op, tuple(live[:_MOST_NAMED]), crowded, tuple(unknown))

    def _spans(self, domain: str) -> Iterator[tuple[str, int, int]]:
        """Yield the values that are in a memory, with the first and the last position of an operation meanwhile."""
        program, is_home, last = self.plan.program, domain == self.plan.topology.home(""), len(self.calls) - 1
        for name in dict.fromkeys((*self.made, *self.read)):
            if name in program.constants:
                continue
            reading = self.read.get(name, [])
            local = [position for position in reading if self.domains[position] == domain]
            made, is_result = self.made.get(name), name in program.results
            if made is not None and self.domains[made] == domain:
                ends = [self._end(made, position) for position in reading]
                yield name, made, last if is_result else max(ends, default=made)
            elif is_home and (made is None or is_result):  # an input, or a result that is copied there
                yield name, 0 if made is None else self.spans[made][1], last
            elif local:
                yield name, self.spans[local[0]][0], self.spans[local[-1]][1]

    def _end(self, made: int, reading: int) -> int:
        """Return until when a value is in the memory that it was made in, for the sake of one operation."""
        if self.spans[reading] == self.spans[made]:
            return reading
        # Functions return values when they end. One in the same memory reads the value itself, another one a copy.
        is_near = self.domains[reading] == self.domains[made]
        return max(self.spans[made][1], self.spans[reading][1 if is_near else 0])

    def _size(self, name: str) -> int | None:
        """Return the bytes of a value; 0 of one that is no tensor, None if unknown."""
        type_, estimates = self.plan.program.types.get(name), self.plan.estimates
        if not isinstance(type_, TensorType):
            return None if type_ is None else 0
        return type_.nbytes if estimates is None else estimates.nbytes(type_)
