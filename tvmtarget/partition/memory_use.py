"""Bytes that a plan needs in each memory: weights, and values that are live at the same time.

The driver runs subgraphs one after the other. A value is in the memory of the site that computes it from then on until
the last operation there has read it, or until it was copied to where it is read; values that pass between functions
stay until the call that reads them ends. A copy is there while functions of that memory need it. The driver's memory
has the inputs of the program from the beginning, and its results until the end. Values inside a function count too, in
the order of its operations: a code generator that fuses operations needs less, one with scratch memory of its own more.

Memories are judged while their own operations run. Copies that only pass through a memory, on a route or into a system,
are not counted, and a driver's memory may hold more while other leaves run.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tvmtarget.human_units import bytes_text, counted
from tvmtarget.ir.types import TensorType, Type
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.decomposition import Decomposition
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.partition_node import PartitionNode
from tvmtarget.partition.placement.memory_capacity import capacities

__all__ = ["MemoryUse", "bytes_around", "fits_memories", "memory_uses", "too_large_ops"]

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
        during: the most bytes of values that are there during each call of a function there, by the path of the call.
    """

    memory: str
    limit: int
    weights: int
    values: int
    op: str
    live: tuple[tuple[str, int], ...] = ()
    crowded: tuple[int, ...] = ()
    unknown: tuple[str, ...] = ()
    during: tuple[tuple[str, int], ...] = ()

    @property
    def missing(self) -> int:
        """Bytes by which the memory is too small; 0 if it is not."""
        return max(0, self.weights + self.values - self.limit)

    def __str__(self) -> str:
        unknown = f"{counted(len(self.unknown), 'value')} of unknown size"
        values = f"at most {bytes_text(self.values)} of values at a time"
        # With all of unknown size, a peak of 0 bytes would look like one that is known.
        used = unknown if self.unknown and not self.values else f"{values}, and {unknown}" if self.unknown else values
        return f"memory {self.memory!r} of {bytes_text(self.limit)}: {bytes_text(self.weights)} of weights, {used}"

    def to_json(self) -> dict[str, object]:
        """Return bytes and the operation as data."""
        facts: dict[str, object] = {"memory": self.memory, "limit": self.limit, "weights": self.weights}
        return facts | {"values": self.values, "op": self.op, "unknown": len(self.unknown)}

    def problem(self) -> str:
        """Return a message that the memory is too small, with the operation and its values."""
        listed = ", ".join(f"{name!r} ({bytes_text(size)})" for name, size in self.live)
        return (
            f"memory {self.memory!r} holds {bytes_text(self.limit)}, but in the best plan found its ops need "
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
    limited = {domain: limits[domain] for domain in used if domain in limits}
    if not limited:
        return ()
    schedule = _Schedule(plan)
    spans = schedule.spans_by_domain(limited)
    return tuple(schedule.use(domain, limit, spans[domain]) for domain, limit in limited.items())


def fits_memories(plan: Decomposition) -> bool:
    """Return whether the memories hold what a plan needs of them.

    Args:
        plan: the plan.

    Returns:
        False if one is too small.
    """
    return not any(use.missing for use in memory_uses(plan))


def bytes_around(program: FlatProgram, estimates: Estimates | None, index: int) -> int:
    """Return the bytes of the values that an operation reads and makes.

    Args:
        program: the flat program.
        estimates: the costs, which may state sizes of symbolic dimensions.
        index: the operation, by number.

    Returns:
        Their sum, without constants and values of unknown size.
    """
    call = program.body[index]
    names = {*call.inputs, *(value.name for value in call.outputs)} - program.constants.keys() - {""}
    return sum(_nbytes(program.types.get(name), estimates) or 0 for name in names)


def too_large_ops(program: FlatProgram, estimates: Estimates | None) -> dict[tuple[int, str], str]:
    """Return the operations that are too large for memories even if they run alone.

    Operands and results are there at the same time, beside the weights.

    Args:
        program: the flat program.
        estimates: the costs, which may state capacities, and sizes of symbolic dimensions.

    Returns:
        Reasons by operation number and path of the leaf.
    """
    limits = capacities(program.topology, {} if estimates is None else estimates.capacities())
    leaves = [(leaf.path, leaf.domain) for leaf in program.topology.leaves() if leaf.domain in limits]
    if not leaves:
        return {}
    typed = program.wiring.type_numbers
    of_type = [_nbytes(type_, estimates) or 0 for type_ in typed.types]
    sizes = {name: of_type[number] for name, number in typed.numbers.items()}
    whole = sum(sizes.values()) + sum(constant.data.nbytes for constant in program.constants.values())
    # Every plan checks this, also those that answer questions; mostly each memory holds the whole program.
    if whole <= min(limits[domain] for _, domain in leaves):
        return {}
    found = {}
    for index, call in enumerate(program.body):
        if call.regions:
            continue
        values = weights = 0
        for name in {*call.inputs, *(value.name for value in call.outputs)} - {""}:
            if name in program.constants:
                weights += program.constants[name].data.nbytes
                continue
            values += sizes.get(name, 0)
        for path, domain in leaves:
            limit = limits[domain]
            # Weights that alone are too large have messages of their own (`memory_capacity.py`).
            if values > limit or (values and weights <= limit < values + weights):
                beside = f", beside {bytes_text(weights)} of weights" if values <= limit else ""
                found[index, path] = (
                    f"memory {domain!r} of {bytes_text(limit)} is too small for its operands and results of "
                    f"{bytes_text(values)}{beside}"
                )
    return found


def _nbytes(type_: Type | None, estimates: Estimates | None) -> int | None:
    """Return the bytes of a value; 0 of one that is no tensor, None if unknown."""
    if not isinstance(type_, TensorType):
        return None if type_ is None else 0
    return type_.nbytes if estimates is None else estimates.nbytes(type_)


@dataclass(frozen=True, slots=True)
class _Span:
    """A value that is in a memory, from one operation to another, by their positions; `size` is None if unknown."""

    name: str
    begin: int
    end: int
    size: int | None


@dataclass(frozen=True, slots=True)
class _Access:
    """An operation that makes or reads a value: its position, its memory, and the first and last position of its call.

    Without a memory, it needs the value wherever it is.
    """

    position: int
    domain: str | None
    border: tuple[int, int]


class _Schedule:
    """The operations of a plan in the order in which they run, with the call and the memory of each.

    Operations of nested bodies stand before their owner, whether the function of a leaf or a driver runs the bodies.
    """

    def __init__(self, plan: Decomposition) -> None:
        self.plan = plan
        self.calls: list[int] = []
        self.domains: list[str] = []
        self.names: list[str] = []  # by position, the path of its call; empty for what a driver runs
        # By position, the first and the last position of its call, or of the bodies that a driver runs.
        self.borders: list[tuple[int, int]] = []
        self.positions: dict[str, list[int]] = {}
        self._records = {index: record for record in plan.subgraphs for index in record.calls}
        self._add(plan.root)

    def _add(self, node: PartitionNode) -> None:
        if node.is_leaf and node.calls:
            record = self._records[node.calls[0]]
            self._extend(list(self._in_order(record.calls)), record.site, record.call, len(self.calls))
            return
        begin = len(self.calls)
        for inner in (*node.parts, *node.bodies):
            self._add(inner)
        if node.bodies:
            self._extend(node.calls, node.site.path, "", begin)

    def _extend(self, calls: Sequence[int], site: str, name: str, begin: int) -> None:
        domain, first = self.plan.topology[site].domain, len(self.calls)
        self.calls += calls
        self.domains += [domain] * len(calls)
        self.names += [name] * len(calls)
        self.borders += [(begin, len(self.calls) - 1)] * len(calls)
        self.positions.setdefault(domain, []).extend(range(first, len(self.calls)))

    def _in_order(self, calls: Iterable[int]) -> Iterator[int]:
        bodies = self.plan.program.bodies
        for index in calls:
            for scope in bodies.get(index, ()):
                yield from self._in_order(scope.calls)
            yield index

    def spans_by_domain(self, limited: Container[str]) -> dict[str, list[_Span]]:
        """Return the values that are in some memories, by memory."""
        program, home, last = self.plan.program, self.plan.topology.home(""), len(self.calls) - 1
        made, read, results = *self._accesses(), frozenset(program.function.results)
        found: dict[str, list[_Span]] = {domain: [] for domain in self.positions if domain in limited}
        for name in dict.fromkeys((*made, *read)):
            size = 0 if name in program.constants else _nbytes(program.types.get(name), self.plan.estimates)
            if size == 0:
                continue
            begin, reading, is_result = made.get(name), read.get(name, []), name in results
            source = None if begin is None else begin.domain
            copies: dict[str, tuple[int, int]] = {}
            for one in reading:
                if one.domain is not None and one.domain != source:
                    first, end = copies.get(one.domain, one.border)
                    copies[one.domain] = (min(first, one.border[0]), max(end, one.border[1]))
            if source != home and (begin is None or is_result):  # an input, or a result that is copied there
                copies[home] = (0 if begin is None else begin.border[1], last)
            if begin is not None and source in found:
                until = max((_end(begin, one) for one in reading), default=begin.position)
                found[source].append(_Span(name, begin.position, last if is_result else until, size))
            for domain, (first, end) in copies.items():
                if domain in found:
                    found[domain].append(_Span(name, first, end, size))
        return found

    def _accesses(self) -> tuple[dict[str, _Access], dict[str, list[_Access]]]:
        """Return where values are made, and where they are read, in order; inputs of the program are made nowhere."""
        program = self.plan.program
        places = {index: position for position, index in enumerate(self.calls)}
        accesses = [_Access(*one) for one in zip(range(len(places)), self.domains, self.borders, strict=True)]
        made = {name: accesses[places[index]] for name, index in program.producer.items()}
        read: dict[str, list[_Access]] = {}
        for index, access in zip(self.calls, accesses, strict=True):
            call = program.body[index]
            for name in filter(None, call.inputs):
                read.setdefault(name, []).append(access)
            if call.regions:
                # What bodies read from around them is there until the last run of a body ends; a driver leaves it where
                # it is.
                until = replace(access, domain=None) if self._is_driven(access) else access
                for name in call.uses():
                    read.setdefault(name, []).append(until)
        for scope in program.scopes[1:]:
            owner = accesses[places[scope.owner]]  # type: ignore[index]
            inner = [places[index] for index in program.with_nested(scope.calls)] or [owner.position]
            begin, end = (
                replace(owner, position=place, border=(place, place) if self._is_driven(owner) else owner.border)
                for place in (min(inner), max(inner))
            )
            made |= {param.name: begin for param in scope.function.params}
            for name in scope.function.results:
                read.setdefault(name, []).append(end)
        return made, read

    def _is_driven(self, access: _Access) -> bool:
        return not self.names[access.position]

    def use(self, domain: str, limit: int, spans: Sequence[_Span]) -> MemoryUse:
        """Return what is needed of one memory, from the values that are there."""
        program, here = self.plan.program, self.positions[domain]
        read = {name for position in here for name in program.body[self.calls[position]].inputs}
        weights = sum(program.constants[name].data.nbytes for name in read if name in program.constants)
        known = [span for span in spans if span.size is not None]
        loads = _sums(known, np.array(here))
        at = here[int(loads.argmax())]
        live = sorted(
            (one for one in known if one.begin <= at <= one.end), key=lambda one: (-(one.size or 0), one.begin)
        )
        most: dict[str, int] = {}
        for position, load in zip(here, loads.tolist(), strict=True):
            if call := self.names[position]:
                most[call] = max(load, most.get(call, 0))
        full = [here[one] for one in np.flatnonzero(weights + loads > limit).tolist()]
        return MemoryUse(
            memory=domain,
            limit=limit,
            weights=weights,
            values=int(loads.max()),
            op=program.body[self.calls[at]].source,
            live=tuple((one.name, one.size or 0) for one in live[:_MOST_NAMED]),
            crowded=tuple(self.calls[position] for position in full if self.names[position]),
            unknown=tuple(span.name for span in spans if span.size is None),
            during=tuple(most.items()),
        )


def _end(made: _Access, reading: _Access) -> int:
    """Return until when a value is in the memory that it was made in, for the sake of one operation."""
    if reading.border == made.border:
        return reading.position
    # Functions return values when they end. One in the same memory reads the value itself, another one a copy.
    is_near = reading.domain in (made.domain, None)
    return max(made.border[1], reading.border[1 if is_near else 0])


def _sums(spans: Sequence[_Span], positions: Ints) -> Ints:
    """Return the bytes of the values that are live at some positions."""

    def sums(ends: Sequence[int], side: Literal["left", "right"]) -> Ints:
        """Return the bytes of the values whose end is before a position, or at it."""
        order = np.argsort(np.array(ends, dtype=np.int64))
        total = np.concatenate([[0], np.cumsum(np.array([span.size for span in spans], dtype=np.int64)[order])])
        return np.asarray(total[np.searchsorted(np.array(ends, dtype=np.int64)[order], positions, side)])

    return sums([span.begin for span in spans], "right") - sums([span.end for span in spans], "left")
