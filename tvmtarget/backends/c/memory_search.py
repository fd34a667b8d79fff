"""Branch and bound for the offsets of buffers in one memory pool of a given capacity.

The search follows MiniMalloc (Moffitt 2023, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated
Machine Learning", doi:10.1145/3623278.3624752): plans are searched in which every buffer lies at offset 0 or directly
on another one (any plan can be pushed down to such a plan), buffers are placed by ascending offset, and the parts of a
program that no unplaced buffer connects are solved on their own. What differs:

- A node has two branches: the buffer with the lowest possible offset is placed there, or it is not. In the second case
  it lies on a buffer that is not yet placed, which raises the lowest offset that is possible for it. A buffer is
  refused at an offset at most once on a path, and most of these nodes fail at once, by the bound below.
- It goes back to the last decision that a failure follows from (conflict-directed backjumping; Prosser 1993): for each
  buffer the search knows the placed buffers that its lowest offset follows from. Decisions about other times, which
  lie between as buffers are placed by offset, are not tried again.
- The order among buffers of one lowest offset is learned: steps at which the search failed often come first at the next
  restart (as weighted degree of constraints does; Boussemart et al. 2004), up to a pseudo-random factor without which
  restarts repeat each other. Restarts take longer and longer, until everything learned is forgotten.

A node fails if at some step the lowest possible offset of an unplaced buffer and the bytes of all unplaced buffers
together exceed the capacity, or if a buffer cannot end below it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Found", "Packing"]

Ints = npt.NDArray[np.int64]

# What restarts sort by, after the failures at the steps of a buffer: (steps, area), (area, steps), (live bytes, steps)
# and (bytes, steps). Each restart may place 2 times as many buffers as there are; each round of them, 1.4 times more.
RULES = (("steps", "area"), ("area", "steps"), ("live", "steps"), ("bytes", "steps"))
FIRST_LIMIT = 2
LIMIT_GROWTH = 1.4
# How many placements in relation to buffers until the search begins anew, with another order of equal buffers, and how
# much longer each such run is. What is learned first decides whether a run ends soon or hardly ever (heavy tails;
# Gomes, Selman and Kautz 1998): of MiniMalloc's instance E, a fifth of the runs end within 10,000 placements.
FIRST_RUN = 20
RUN_GROWTH = 1.1

# A placement counts as one and one more for so many pairs of a buffer and a section in which it is live; the
# preparation of a search as one placement for so many pairs. Then a placement counted takes 40 to 140 us.
PAIRS = 10_000
PREPARED_PAIRS = 20

NEVER = np.int64(1) << 60

Search = Generator["Search", int | None, int | None]


class _LimitReached(Exception):  # noqa: N818
    """A restart placed as many buffers as it may."""


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        offsets: the offset of each buffer, None if no plan was found.
        is_final: whether there is no plan if none was found.
        placements: how many placements were tried; those among many buffers count as several.
    """

    offsets: list[int] | None
    is_final: bool
    placements: int


@dataclass(frozen=True)
class _Part:
    """Buffers that are connected by the steps that they share.

    Attributes:
        begin: its first section.
        end: the section after its last one.
        members: for each section with a buffer, its buffers, one section after another.
        starts: where each of these sections begins in `members`.
        sections: their numbers.
    """

    begin: int
    end: int
    members: Ints
    starts: Ints
    sections: Ints


@dataclass(frozen=True)
class _State:
    """What a node of the search knows.

    Attributes:
        lowest: the lowest possible offset of each buffer, NEVER for those that have a place.
        reasons: for each unplaced buffer the placed ones, as bits, that its lowest offset follows from.
        placed: the buffers that have a place, as bits.
        live: bytes of the unplaced buffers in each section.
        crossing: unplaced buffers that continue after each section.
    """

    lowest: Ints
    reasons: list[int]
    placed: int
    live: Ints
    crossing: Ints


class Packing:
    """Buffers of one pool, prepared for searches at several capacities.

    Attributes:
        preparation: how many placements take as long as the preparation did.
    """

    preparation: int

    def __init__(
        self,
        nbytes: Sequence[int],
        firsts: Sequence[int],
        lasts: Sequence[int],
        alignments: Sequence[int],
        fixed: Sequence[int] = (),
    ) -> None:
        """Prepare the search.

        Args:
            nbytes: bytes of each buffer, at least 1.
            firsts: first step of each buffer.
            lasts: last step of each buffer.
            alignments: powers of two.
            fixed: offset of each buffer that has a place already, -1 for the others; by default all others.
        """
        # All offsets are multiples of the smallest alignment, so that no buffer gains by ending between two of them.
        self._unit = min(alignments)
        self._raw = np.array(nbytes, np.int64)
        self._sizes = -(-self._raw // self._unit) * self._unit
        self._alignments = np.array(alignments, np.int64)
        self._aligned = bool((self._alignments == self._unit).all())
        self._fixed = np.array(fixed, np.int64) if fixed else np.full(len(nbytes), -1)

        # A section begins where a buffer begins or ends.
        begins, ends = np.array(firsts, np.int64), np.array(lasts, np.int64) + 1
        bounds = np.unique(np.concatenate([begins, ends]))
        self._firsts = np.searchsorted(bounds, begins)
        self._ends = np.searchsorted(bounds, ends)
        count = len(bounds) - 1
        spans = self._ends - self._firsts
        members = np.repeat(np.arange(len(nbytes)), spans)
        sections = np.arange(len(members)) - np.repeat(np.cumsum(spans) - spans, spans) + np.repeat(self._firsts, spans)
        order = np.argsort(sections, kind="stable")
        self._members, self._sections = members[order], sections[order]
        self._starts = np.searchsorted(self._sections, np.arange(count + 1))
        self._live = np.bincount(sections, self._sizes[members], count).astype(np.int64)
        self._crossing = np.zeros(count, np.int64)  # buffers that are live in a section and in the next one
        np.add.at(self._crossing, self._firsts, 1)
        np.add.at(self._crossing, self._ends - 1, -1)
        self._crossing = np.cumsum(self._crossing)
        self._conflicts = [self._conflicts_of(number) for number in range(len(nbytes))]
        self._masks = [sum(1 << other for other in found.tolist()) for found in self._conflicts]

        steps = ends - begins
        highest = np.array([self._live[f:e].max() for f, e in zip(self._firsts, self._ends, strict=True)], np.int64)
        self._keys = {"steps": -steps, "area": -steps * self._sizes, "live": -highest, "bytes": -self._sizes}
        self.preparation = len(members) // PREPARED_PAIRS
        self._random = np.random.default_rng(0)
        self._failures = np.zeros(count)
        self._ties = np.arange(len(nbytes))
        self._offsets = np.zeros(len(nbytes), np.int64)
        self._latest = self._offsets
        self._capacity = 0
        self._left = 0

    def lower_bound(self) -> int:
        """Return bytes that every plan takes: most live bytes, all but one buffer padded."""
        padding = np.maximum.reduceat((self._sizes - self._raw)[self._members], self._starts[:-1])
        return int((self._live - padding).max())

    def search(self, capacity: int, placements: int) -> Found:
        """Search a plan in which all buffers end within a capacity.

        Args:
            capacity: bytes of the pool.
            placements: how many placements to try at most, over all restarts.

        Returns:
            The offsets, or whether there is no such plan.
        """
        self._capacity = -(-capacity // self._unit) * self._unit
        self._latest = np.where(self._fixed < 0, capacity - self._raw, self._fixed)
        spent, limit = 0, FIRST_LIMIT * len(self._raw)
        ends = length = float(FIRST_RUN * len(self._raw))
        if (self._live > self._capacity).any() or (self._latest < np.maximum(self._fixed, 0)).any():
            return Found(None, True, 0)
        while True:
            for rule in RULES:
                if spent >= placements:
                    return Found(None, False, spent)
                self._left = allowed = min(limit, placements - spent)
                try:
                    done = _run(self._start(rule)) is None
                except _LimitReached:
                    spent += allowed
                    continue
                spent += allowed - self._left
                return Found(self._offsets.tolist() if done else None, True, spent)
            limit = int(limit * LIMIT_GROWTH)
            if spent >= ends:
                self._failures[:] = 0
                self._ties = self._random.permutation(len(self._ties))
                limit = FIRST_LIMIT * len(self._raw)
                length *= RUN_GROWTH
                ends = spent + length

    def _conflicts_of(self, number: int) -> Ints:
        """Return the buffers that share a section with a buffer."""
        first, end = self._firsts[number], self._ends[number]
        found = np.unique(self._members[self._starts[first] : self._starts[end]])
        others: Ints = found[found != number]
        return others

    def _start(self, rule: tuple[str, ...]) -> Search:
        """Search from the begin, in the order of a rule and the failures up to now."""
        noisy = self._failures * self._random.uniform(0.5, 1.0, len(self._failures))
        failures = np.array([-noisy[f:e].max() for f, e in zip(self._firsts, self._ends, strict=True)])
        order = np.lexsort([self._ties, *(self._keys[key] for key in reversed(rule)), failures])
        state = _State(np.maximum(self._fixed, 0), [0] * len(order), 0, self._live.copy(), self._crossing.copy())
        return self._solve_parts(order, 0, len(self._live), state)

    def _solve_parts(self, buffers: Ints, begin: int, end: int, state: _State) -> Search:
        """Solve the parts of some sections one after another, those with few buffers first."""
        bounds = [begin, *(np.flatnonzero(state.crossing[begin : end - 1] == 0) + begin + 1).tolist(), end]
        firsts = self._firsts[buffers]
        parts = [
            (len(inside), one, other, inside)
            for one, other in pairwise(bounds)
            if len(inside := buffers[(firsts >= one) & (firsts < other)])
        ]
        for _, one, other, inside in sorted(parts, key=lambda part: part[:2]):
            chosen = np.zeros(len(self._raw), bool)
            chosen[inside] = True
            window = slice(self._starts[one], self._starts[other])
            kept = chosen[self._members[window]]
            sections, starts = np.unique(self._sections[window][kept], return_index=True)
            part = _Part(one, other, self._members[window][kept], starts, sections)
            own = replace(state, lowest=state.lowest.copy(), reasons=state.reasons.copy())
            conflict = yield self._solve(part, inside, own)
            if conflict is not None:
                return conflict
        return None

    def _solve(self, part: _Part, buffers: Ints, state: _State) -> Search:
        """Place the buffers of a part."""
        lowest, reasons = state.lowest, state.reasons
        while True:
            if self._left <= 0:
                raise _LimitReached
            self._left -= 1 + len(part.members) // PAIRS
            lowest_here = lowest[buffers]
            position = int(lowest_here.argmin())
            offset, number = int(lowest_here[position]), int(buffers[position])
            end = offset + int(self._sizes[number])
            sections = slice(self._firsts[number], self._ends[number])
            conflicts = self._conflicts[number]
            conflicts = conflicts[lowest[conflicts] < NEVER]
            rest = np.delete(buffers, position)
            chosen = 1 << number

            # Others come above it: they are no lower, by their reasons, unless they are too large to end below it.
            before, ends = lowest[conflicts], self._align(end, conflicts)
            above = conflicts[before < ends]
            raised, why = lowest.copy(), reasons.copy()
            raised[conflicts] = np.maximum(before, ends)
            raised[number] = NEVER
            for other, is_small in zip(above.tolist(), (self._sizes[above] <= offset).tolist(), strict=True):
                why[other] = chosen | why[other] if is_small else chosen
            remaining = state.live.copy()
            remaining[sections] -= self._sizes[number]
            conflict = self._conflict(part, rest, raised, why, remaining)
            if conflict is None:
                self._offsets[number] = offset
                if not len(rest):
                    return None
                fewer = state.crossing.copy()
                fewer[sections.start : sections.stop - 1] -= 1
                below = _State(raised, why, state.placed | chosen, remaining, fewer)
                if fewer[sections.start : sections.stop - 1].all():
                    conflict = yield self._solve(part, rest, below)
                else:
                    conflict = yield self._solve_parts(rest, part.begin, part.end, below)
                if conflict is None:
                    return None
            if not conflict & chosen:
                return conflict

            # It lies higher than here, on a buffer that is not yet placed, if one of these comes between.
            refused: int = (conflict ^ chosen) | reasons[number]
            if self._fixed[number] >= 0:
                return refused
            refused |= state.placed & self._masks[number]
            is_free = not len(conflicts) or lowest[conflicts].min() >= end
            supports = self._align(lowest[conflicts] + self._sizes[conflicts], number)
            least = int(NEVER if is_free else supports.min())
            for other in conflicts[self._sizes[conflicts] < least].tolist():
                refused |= reasons[other]
            if is_free:
                return refused
            lowest[number], reasons[number] = least, refused
            conflict = self._conflict(part, buffers, lowest, reasons, state.live)
            if conflict is not None:
                return conflict

    def _align(self, offsets: Any, buffers: Any) -> Any:  # noqa: ANN401
        """Return the lowest aligned offsets of buffers from given ones, which are multiples of the least alignment."""
        if self._aligned:
            return offsets
        alignments = self._alignments[buffers]
        return -(-offsets // alignments) * alignments

    def _conflict(self, part: _Part, buffers: Ints, lowest: Ints, reasons: list[int], live: Ints) -> int | None:
        """Return why the unplaced buffers do not fit, and count where, or None if nothing rules out that they do."""
        live = live[part.sections]
        least = np.minimum.reduceat(lowest[part.members], part.starts)
        least += live
        least[live == 0] = 0
        worst = int(least.argmax())
        if least[worst] > self._capacity:
            self._failures[part.sections[worst]] += 1
            stop = part.starts[worst + 1] if worst + 1 < len(part.starts) else None
            members = part.members[part.starts[worst] : stop]
            members = members[lowest[members] < NEVER]
            return self._least_reasons(members.tolist(), reasons, int(least[worst]) - self._capacity)
        late = buffers[lowest[buffers] > self._latest[buffers]]
        if len(late):
            number = int(late[0])
            steps = self._ends[number] - self._firsts[number]
            self._failures[self._firsts[number] : self._ends[number]] += 1 / steps
            return reasons[number]
        return None

    def _least_reasons(self, members: list[int], reasons: list[int], excess: int) -> int:
        """Return why buffers exceed the capacity at a step, without those whose bytes are less than the excess."""
        *others, last = sorted(members, key=lambda one: (-reasons[one].bit_count(), one))
        found = reasons[last]
        for number in others:
            size = int(self._sizes[number])
            if size < excess and reasons[number] & ~found:
                excess -= size
            else:
                found |= reasons[number]
        return found


def _run(search: Search) -> int | None:
    """Run a search and those that it yields to their ends, without recursion, and return its result."""
    stack = [search]
    result = None
    started = False
    while stack:
        try:
            child = stack[-1].send(result) if started else next(stack[-1])
        except StopIteration as end:
            stack.pop()
            result, started = end.value, True
        else:
            stack.append(child)
            started = False
    return result
