"""Offsets of buffers with lifetimes in memory pools: the static memory plan of generated programs.

A program that allocates nothing at run time keeps its intermediate values at fixed offsets of a few arrays (pools).
Buffers whose lifetimes overlap must not share bytes. The smallest pool is the problem of dynamic storage allocation,
which is NP-hard (Garey and Johnson 1979, problem SR2); the largest sum of buffers that are live at one step is a lower
bound, which is reached for most networks.

- **Greedy.** *First fit*: the buffers are placed one after another, each into the first of its pools with enough
  space, at the lowest offset that is free during its lifetime. The best of several orders counts: by size, by
  conflicts, by first use, by steps, by area (bytes times steps), and by the live bytes that a buffer meets. The first
  two are those of TVM's unified static memory planner (apache/tvm v0.18, src/tir/usmp/algo/greedy.cc); by size is
  also "greedy by size for offset calculation" of TensorFlow Lite (Pisarchyk and Lee 2020, arXiv:2001.03288).
- **Pools.** Depth-first branch and bound over the pools of buffers, for the fewest bytes outside of preferred pools.
- **Offsets.** Branch and bound in each pool, at a lower and lower capacity (`tvmtarget/backends/c/memory_search.py`).

Both searches end after `effort`; if they end before it, the plan is optimal, and an error about memory that is too
small is proven.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import accumulate
from math import inf
from typing import Self

import numpy as np

from tvmtarget.backends.c.memory_search import Packing
from tvmtarget.errors import MemoryTooSmallError, ModelError, UnknownNameError, did_you_mean, raise_all
from tvmtarget.human_units import counted

__all__ = ["Buffer", "MemoryPlan", "Place", "Pool", "plan_memory"]

# Buffers that a message names.
MAX_NAMED = 4

# Limits of the searches: buffers whose pools are searched, buffers of a pool whose offsets are searched, buffers of a
# window of a large plan, and placements to try at least for one choice of pools.
MAX_CHOICES = 300
MAX_SEARCHED = 1500
MAX_WINDOW = 500
MIN_SHARE = 1000
# The part of the effort that improves a plan which fits: to leave fewer bytes outside of preferred pools, and to shrink
# the pools.
IMPROVEMENT = 3
# Pairs of buffers that are live at one step: up to this number first fit is tried, with fewer orders if there are many.
MAX_CONFLICTS = 5_000_000
# How far around the lifetime of a buffer others may move with it: those within it, those within the lifetimes of all
# that meet it, and those within the lifetimes of all that meet these.
WINDOWS = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that a program needs from one step to another.

    Attributes:
        name: unique among the buffers of a plan.
        nbytes: its size; a buffer of no bytes overlaps nothing.
        first: the first step at which it is live.
        last: the last step at which it is live.
        alignment: its offset is a multiple of this power of two.
        pools: names of the pools that may hold it, most preferred first; if empty, all pools in their order.
    """

    name: str
    nbytes: int
    first: int
    last: int
    alignment: int = 16
    pools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pool:
    """A memory that holds buffers; `nbytes` is its capacity, None if there is no limit."""

    name: str
    nbytes: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a buffer lies: a pool, and an offset in bytes from its begin."""

    pool: str
    offset: int


@dataclass(frozen=True)
class MemoryPlan:
    """Places of buffers.

    Attributes:
        places: the place of each buffer, by its name, in the order in which the buffers were given.
        sizes: bytes used of each pool: the highest end of a buffer in it.
        live_bytes: the largest sum of buffers in each pool that are live at one step, a lower bound of `sizes` for
            the buffers that the pool holds.
    """

    places: Mapping[str, Place]
    sizes: Mapping[str, int]
    live_bytes: Mapping[str, int]


def plan_memory(buffers: Sequence[Buffer], pools: Sequence[Pool], *, effort: int = 60) -> MemoryPlan:
    """Place buffers in memory pools so that those which are live at one step do not overlap.

    A buffer lies in the first of its pools with enough space; plans that move fewer bytes to less preferred pools come
    first, then those with smaller pools. The result depends neither on the order of `buffers` nor on the machine.

    Args:
        buffers: what to place, with unique names.
        pools: the memories, with unique names, most preferred first.
        effort: how long to search for better plans after the greedy ones, in thousands of placements of a buffer (40 to
            140 us each, those among many buffers count as several); 0 takes the best greedy plan. If the greedy plan
            fits, a third of it. It bounds the time: about ten seconds for the worst programs of 100 to 1,500 buffers.

    Returns:
        The places of all buffers, and the size of each pool.

    Raises:
        ModelError: a buffer contradicts itself, or two buffers or pools have one name.
        UnknownNameError: a buffer names a pool that is not there.
        MemoryTooSmallError: no plan was found that fits into the pools.
    """
    _check(buffers, pools)
    program = _Program.of(buffers, pools)
    best = min(_greedy(program), key=program.cost)
    left = effort * 1000
    if left and any(program.rank(number, place) for number, place in enumerate(best.places)):
        is_plan = None not in best.places
        search = _PoolSearch(program, best, left // IMPROVEMENT if is_plan else left)
        search.run()
        best, left = search.best, search.left
    best = _shrink_pools(program, best, min(left, effort * 1000 // IMPROVEMENT))
    if any(place is None for place in best.places):
        raise _too_small(program, effort * 1000 // IMPROVEMENT)
    return _plan(buffers, pools, program, best)


def _check(buffers: Sequence[Buffer], pools: Sequence[Pool]) -> None:
    """Raise an error if buffers or pools contradict themselves or each other."""
    names = {pool.name for pool in pools}
    problems = [f"{kind} {name!r} is there twice" for kind, name in _repeated(buffers, pools)]
    for pool in pools:
        if pool.nbytes is not None and pool.nbytes < 0:
            problems.append(f"pool {pool.name!r} has {pool.nbytes} bytes, not 0 or more")
    for buffer in buffers:
        if buffer.nbytes < 0:
            problems.append(f"buffer {buffer.name!r} has {buffer.nbytes} bytes, not 0 or more")
        if buffer.first > buffer.last:
            problems.append(
                f"buffer {buffer.name!r} is live from step {buffer.first} to step {buffer.last}, which is before it"
            )
        if buffer.alignment < 1 or buffer.alignment & (buffer.alignment - 1):
            problems.append(f"buffer {buffer.name!r} has alignment {buffer.alignment}, not a power of two")
        if not buffer.pools and not pools:
            problems.append(f"there is no pool for buffer {buffer.name!r}")
    raise_all(ModelError, problems)
    raise_all(
        UnknownNameError,
        [
            f"unknown pool {name!r} of buffer {buffer.name!r}{did_you_mean(name, sorted(names))}"
            for buffer in buffers
            for name in buffer.pools
            if name not in names
        ],
    )


def _repeated(buffers: Sequence[Buffer], pools: Sequence[Pool]) -> list[tuple[str, str]]:
    """Return the names that several buffers or several pools have, each with what has it."""
    found = []
    for kind, things in (("buffer", buffers), ("pool", pools)):
        counts = Counter(thing.name for thing in things)
        found += [(kind, name) for name, count in counts.items() if count > 1]
    return found


@dataclass(frozen=True)
class _Program:
    """Buffers of at least one byte in a canonical order, by number.

    Attributes:
        buffers: the buffers, by first step, last step, size and so on.
        pools: numbers of the pools that each buffer may use, most preferred first.
        names: names of the pools.
        limits: bytes that each pool holds.
        conflicts: for each buffer, those that are live at one of its steps; empty if these are too many.
    """

    buffers: tuple[Buffer, ...]
    pools: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    limits: tuple[float, ...]
    conflicts: tuple[list[int], ...]

    @classmethod
    def of(cls, buffers: Sequence[Buffer], pools: Sequence[Pool]) -> Self:
        numbers = {pool.name: number for number, pool in enumerate(pools)}
        everywhere = tuple(range(len(pools)))

        def choices(buffer: Buffer) -> tuple[int, ...]:
            return tuple(dict.fromkeys(numbers[name] for name in buffer.pools)) or everywhere

        ordered = sorted(
            (buffer for buffer in buffers if buffer.nbytes),
            key=lambda one: (one.first, one.last, one.nbytes, one.alignment, choices(one), one.name),
        )
        return cls(
            tuple(ordered),
            tuple(choices(buffer) for buffer in ordered),
            tuple(pool.name for pool in pools),
            tuple(inf if pool.nbytes is None else pool.nbytes for pool in pools),
            _conflicts(ordered) if _count_conflicts(ordered) <= MAX_CONFLICTS else (),
        )

    def rank(self, number: int, place: tuple[int, int] | None) -> int:
        """Return how many pools a buffer prefers to that of a place; no place is worse than any."""
        return self.pools[number].index(place[0]) if place else len(self.limits)

    def cost(self, placed: _Placed) -> tuple[int, ...]:
        """Return what is minimised: bytes without a place, bytes by the rank of their pool, sizes of the pools."""
        pairs = list(zip(self.buffers, placed.places, strict=True))
        homeless = sum(buffer.nbytes for buffer, place in pairs if place is None)
        spilled = sum(buffer.nbytes * self.rank(number, place) for number, (buffer, place) in enumerate(pairs) if place)
        return (homeless, spilled, sum(placed.sizes))


@dataclass(frozen=True)
class _Placed:
    """A pool and an offset for each buffer of a program, None where no space was found, and sizes of the pools."""

    places: Sequence[tuple[int, int] | None]
    sizes: Sequence[int]

    @classmethod
    def of(cls, program: _Program, places: Sequence[tuple[int, int] | None]) -> Self:
        """Return places with the sizes of pools that they need."""
        sizes = [0] * len(program.limits)
        for buffer, place in zip(program.buffers, places, strict=True):
            if place is not None:
                sizes[place[0]] = max(sizes[place[0]], place[1] + buffer.nbytes)
        return cls(places, sizes)


def _conflicts(buffers: Sequence[Buffer]) -> tuple[list[int], ...]:
    """Return for each buffer the numbers of those that are live at one of its steps; buffers are sorted by `first`."""
    conflicts: tuple[list[int], ...] = tuple([] for _ in buffers)
    live: list[int] = []
    for number, buffer in enumerate(buffers):
        live = [other for other in live if buffers[other].last >= buffer.first]
        for other in live:
            conflicts[other].append(number)
        conflicts[number].extend(live)
        live.append(number)
    return conflicts


def _count_conflicts(buffers: Sequence[Buffer]) -> int:
    """Return how many pairs of buffers are live at one step; buffers are sorted by `first`."""
    firsts = np.array([buffer.first for buffer in buffers])
    lasts = np.array([buffer.last for buffer in buffers])
    return int((np.searchsorted(firsts, lasts, "right") - np.arange(1, len(buffers) + 1)).sum())


def _live_bytes(buffers: Iterable[Buffer]) -> tuple[int, int]:
    """Return the largest sum of buffers that are live at one step, and the first such step."""
    changes: dict[int, int] = defaultdict(int)
    for buffer in buffers:
        changes[buffer.first] += buffer.nbytes
        changes[buffer.last + 1] -= buffer.nbytes
    steps = sorted(changes)
    sums = list(accumulate(changes[step] for step in steps))
    most = max(sums, default=0)
    return most, steps[sums.index(most)] if sums else 0


def _greedy(program: _Program) -> Iterator[_Placed]:
    """Yield plans without search: the sweep, and first fit by several orders, fewer of them for large programs."""
    swept = _sweep(program)
    yield swept
    if program.cost(swept)[:2] == (0, 0) and all(
        size
        == _live_bytes(
            buffer for buffer, choices in zip(program.buffers, program.pools, strict=True) if choices[0] == pool
        )[0]
        for pool, size in enumerate(swept.sizes)
    ):
        return
    buffers, conflicts = program.buffers, program.conflicts
    if len(conflicts) < len(buffers):
        return
    met = [
        buffer.nbytes + sum(buffers[other].nbytes for other in others)
        for buffer, others in zip(buffers, conflicts, strict=True)
    ]
    keys: list[Callable[[int], tuple[int, ...]]] = [
        lambda one: (-buffers[one].nbytes, one),
        lambda one: (-met[one], -buffers[one].nbytes, one),
        lambda one: (-buffers[one].nbytes * (buffers[one].last - buffers[one].first + 1), one),
        lambda one: (-len(conflicts[one]), -buffers[one].nbytes, one),
        lambda one: (buffers[one].first - buffers[one].last, -buffers[one].nbytes, one),
        lambda one: (buffers[one].first, -buffers[one].last, -buffers[one].nbytes, one),
    ]
    pairs = sum(len(others) for others in conflicts)
    for key in keys[: max(1, MAX_CONFLICTS // (pairs + 1))]:
        yield _first_fit(program, sorted(range(len(buffers)), key=key))


class _Gaps:
    """Free bytes of a pool, as ascending gaps that do not touch each other."""

    def __init__(self, begins: Sequence[int], ends: Sequence[float]) -> None:
        self.begins, self.ends = list(begins), list(ends)

    def take(self, buffer: Buffer) -> int | None:
        """Take the bytes of a buffer from the first gap with enough of them; return its offset."""
        for index, (begin, end) in enumerate(zip(self.begins, self.ends, strict=True)):
            offset = -(-begin // buffer.alignment) * buffer.alignment
            if offset + buffer.nbytes <= end:
                rest = [(begin, offset), (offset + buffer.nbytes, end)]
                rest = [(one, other) for one, other in rest if one < other]
                self.begins[index : index + 1] = [one for one, _ in rest]
                self.ends[index : index + 1] = [other for _, other in rest]
                return offset
        return None

    def give(self, begin: int, end: int) -> None:
        """Give bytes back."""
        index = bisect_left(self.begins, begin)
        before = index > 0 and self.ends[index - 1] == begin
        after = index < len(self.begins) and self.begins[index] == end
        self.begins[index - before : index + after] = [self.begins[index - 1] if before else begin]
        self.ends[index - before : index + after] = [self.ends[index] if after else end]


def _sweep(program: _Program) -> _Placed:
    """Place buffers step by step, from the step with the most live bytes to the last one, and to the first one.

    Buffers that are live there do not lose a byte between each other, those with the longest lifetimes are lowest.
    Takes n log n steps and a search in the gaps between live buffers for each buffer.
    """
    buffers = program.buffers
    places: list[tuple[int, int] | None] = [None] * len(buffers)
    peak = _live_bytes(buffers)[1]
    spaces = [_Gaps([0], [limit]) for limit in program.limits]

    def place(number: int) -> bool:
        for pool in program.pools[number]:
            offset = spaces[pool].take(buffers[number])
            if offset is not None:
                places[number] = (pool, offset)
                return True
        return False

    def give(number: int) -> None:
        pool, offset = places[number] or (0, 0)
        spaces[pool].give(offset, offset + buffers[number].nbytes)

    at_peak = [number for number, buffer in enumerate(buffers) if buffer.first <= peak <= buffer.last]
    at_peak.sort(key=lambda one: (buffers[one].first - buffers[one].last, -buffers[one].nbytes, one))
    at_peak = [number for number in at_peak if place(number)]
    full = [_Gaps(space.begins, space.ends) for space in spaces]
    later = [(buffer.first, buffer.last, number) for number, buffer in enumerate(buffers) if buffer.first > peak]
    earlier = [(-buffer.last, -buffer.first, number) for number, buffer in enumerate(buffers) if buffer.last < peak]
    for side, ends in (
        (later, [(buffers[number].last, number) for number in at_peak]),
        (earlier, [(-buffers[number].first, number) for number in at_peak]),
    ):
        spaces = [_Gaps(space.begins, space.ends) for space in full]
        heapify(ends)
        for begin, end, number in sorted(side, key=lambda one: (one[0], -buffers[one[2]].nbytes, one[1:])):
            while ends and ends[0][0] < begin:
                give(heappop(ends)[1])
            if place(number):
                heappush(ends, (end, number))
    return _Placed.of(program, places)


def _first_fit(program: _Program, order: Iterable[int]) -> _Placed:
    """Place buffers in an order, each at the lowest free offset of the first of its pools that has one."""
    places: list[tuple[int, int] | None] = [None] * len(program.buffers)
    for number in order:
        buffer = program.buffers[number]
        taken = [(place, other) for other in program.conflicts[number] if (place := places[other]) is not None]
        for pool in program.pools[number]:
            offset = 0
            for begin, end in sorted(
                (place[1], place[1] + program.buffers[other].nbytes) for place, other in taken if place[0] == pool
            ):
                if begin - offset >= buffer.nbytes:
                    break
                if end > offset:
                    offset = -(-end // buffer.alignment) * buffer.alignment
            if offset + buffer.nbytes <= program.limits[pool]:
                places[number] = (pool, offset)
                break
    return _Placed.of(program, places)


def _search_of(program: _Program, members: Sequence[int]) -> Packing:
    """Return the search for offsets of some buffers in one pool."""
    buffers = [program.buffers[number] for number in members]
    return Packing(
        [buffer.nbytes for buffer in buffers],
        [buffer.first for buffer in buffers],
        [buffer.last for buffer in buffers],
        [buffer.alignment for buffer in buffers],
    )


class _PoolSearch:
    """A search for a plan with fewer bytes outside of preferred pools, by branch and bound.

    Large buffers get their pools first. Where all have one, the buffers of each limited pool must fit into it.
    `left` are the placements that may still be tried.
    """

    def __init__(self, program: _Program, best: _Placed, placements: int) -> None:
        buffers = program.buffers
        self.program = program
        self.best = best
        self.left = placements
        homeless, spilled, _ = program.cost(best)
        self.least: float = inf if homeless else spilled
        self.order = [number for number, choices in enumerate(program.pools) if len(choices) > 1]
        self.order.sort(key=lambda one: (-buffers[one].nbytes, one))
        self.pools = [choices[0] for choices in program.pools]
        steps = sorted({buffer.first for buffer in buffers})
        self.spans = [slice(bisect_left(steps, one.first), bisect_right(steps, one.last)) for one in buffers]
        self.live = [np.zeros(len(steps), np.int64) for _ in program.limits]
        for number in set(range(len(buffers))) - set(self.order):
            self.live[self.pools[number]][self.spans[number]] += buffers[number].nbytes
        self.tried: dict[tuple[int, ...], list[int] | None] = {}

    def run(self) -> None:
        """Improve the best plan, unless choices are too many, or buffers of one choice alone do not fit."""
        is_full = any((sums > limit).any() for sums, limit in zip(self.live, self.program.limits, strict=True))
        if len(self.order) <= MAX_CHOICES and not is_full:
            self._choose(0, 0)
            self.left = max(0, self.left)

    def _choose(self, position: int, spilled: int) -> None:
        """Choose pools from one position of the order on; so many bytes are outside of preferred pools already."""
        if position == len(self.order):
            placed = self._placed()
            if placed is not None:
                self.best, self.least = placed, spilled
            return
        number = self.order[position]
        buffer, span = self.program.buffers[number], self.spans[number]
        for rank, pool in enumerate(self.program.pools[number]):
            more = spilled + rank * buffer.nbytes
            if more >= self.least or self.left <= 0:
                return
            if self.live[pool][span].max() + buffer.nbytes <= self.program.limits[pool]:
                self.left -= 1
                self.live[pool][span] += buffer.nbytes
                self.pools[number] = pool
                self._choose(position + 1, more)
                self.live[pool][span] -= buffer.nbytes

    def _placed(self) -> _Placed | None:
        """Return offsets of all buffers in the chosen pools; None if none were found."""
        program, pools = self.program, self.pools
        self.left -= 2 * len(program.buffers)
        chosen = replace(program, pools=tuple((pool,) for pool in pools))
        placed = min(_greedy(chosen), key=chosen.cost) if self.order else self.best
        places = list(placed.places)
        for pool, limit in enumerate(program.limits):
            members = tuple(number for number, other in enumerate(pools) if other == pool)
            if all(places[number] for number in members):
                continue
            if len(members) > MAX_SEARCHED:
                return None
            if members not in self.tried:
                share = max(MIN_SHARE, self.left // 4) if self.order else self.left
                search = _search_of(program, members)
                found = search.search(int(limit), share)
                self.left -= found.placements + search.preparation
                self.tried[members] = found.offsets
            offsets = self.tried[members]
            if offsets is None:
                return None
            for number, offset in zip(members, offsets, strict=True):
                places[number] = (pool, offset)
        return _Placed.of(program, places)


def _shrink_pools(program: _Program, placed: _Placed, placements: int) -> _Placed:
    """Search lower offsets within the pools of a plan."""
    places = list(placed.places)
    for pool in range(len(program.limits)):
        members = [number for number, place in enumerate(places) if place is not None and place[0] == pool]
        if not members or not placements:
            continue
        size, bound = placed.sizes[pool], _live_bytes(program.buffers[number] for number in members)[0]
        search = None
        if size > bound and len(members) <= MAX_SEARCHED:
            search = _search_of(program, members)
            placements -= search.preparation
            bound = search.lower_bound()
        aim = bound
        while placements > 0 and size - bound > bound // 200:
            now = [place[1] for number in members if (place := places[number]) is not None]
            offsets, spent = _repair(program, members, now, aim, placements // 4)
            placements -= max(1, spent)
            if offsets is None and search:
                tried = search.search(aim, placements // 2)
                offsets = tried.offsets
                placements -= tried.placements
            if offsets is None:
                bound = aim + 1
            else:
                for number, offset in zip(members, offsets, strict=True):
                    places[number] = (pool, offset)
                size = _Placed.of(program, places).sizes[pool]
            aim = (bound + size) // 2
    return _Placed.of(program, places)


def _repair(
    program: _Program, members: Sequence[int], offsets: Sequence[int], aim: int, placements: int
) -> tuple[list[int] | None, int]:
    """Move the buffers of a pool that end above a size below it, each with the buffers that live around its lifetime.

    Returns:
        The offsets, None if a buffer stays above, and how many placements were tried.
    """
    buffers = [program.buffers[number] for number in members]
    firsts = np.array([buffer.first for buffer in buffers])
    lasts = np.array([buffer.last for buffer in buffers])
    nbytes = np.array([buffer.nbytes for buffer in buffers])
    found = np.array(offsets)
    spent = 0
    for number in np.argsort(-nbytes, kind="stable").tolist():
        if found[number] + nbytes[number] <= aim:
            continue
        for around in WINDOWS:
            if spent >= placements:
                return None, spent
            first, last = firsts[number], lasts[number]
            if around:
                near = (firsts <= last) & (lasts >= first)
                for _ in range(around - 1):
                    near = (firsts <= lasts[near].max()) & (lasts >= firsts[near].min())
                first, last = firsts[near].min(), lasts[near].max()
            seen = np.flatnonzero((firsts <= last) & (lasts >= first))
            if len(seen) > MAX_WINDOW:
                break
            above = found[seen] + nbytes[seen] > aim
            free = (firsts[seen] >= first) & (lasts[seen] <= last)
            seen, above, free = seen[free | ~above], above[free | ~above], free[free | ~above]
            window = Packing(
                nbytes[seen].tolist(),
                firsts[seen].tolist(),
                lasts[seen].tolist(),
                [buffers[one].alignment for one in seen.tolist()],
                np.where(free, -1, found[seen]).tolist(),
            )
            tried = window.search(aim, min(placements - spent, MIN_SHARE + 4 * len(seen)))
            spent += tried.placements + window.preparation
            if tried.offsets is not None:
                found[seen] = tried.offsets
                break
        else:
            return None, spent
        if found[number] + nbytes[number] > aim:
            return None, spent
    return found.tolist(), spent


def _too_small(program: _Program, placements: int) -> MemoryTooSmallError:
    """Return the error about the pools that lack bytes, by a plan in which the last pools of buffers have no limit."""
    last = {choices[-1] for choices in program.pools}
    lifted = replace(program, limits=tuple(inf if pool in last else size for pool, size in enumerate(program.limits)))

    def excess(placed: _Placed) -> list[float]:
        return [max(0, size - limit) for size, limit in zip(placed.sizes, program.limits, strict=True)]

    placed = _shrink_pools(lifted, min(_greedy(lifted), key=lambda plan: sum(excess(plan))), placements)
    lacking = [pool for pool, missing in enumerate(excess(placed)) if missing]
    missing = int(sum(excess(placed)))
    held = [
        buffer
        for buffer, place in zip(program.buffers, placed.places, strict=True)
        if place is not None and place[0] in lacking
    ]
    step = _live_bytes(held)[1]
    largest = sorted(
        (buffer for buffer in held if buffer.first <= step <= buffer.last), key=lambda one: (-one.nbytes, one.name)
    )
    names = tuple(program.names[pool] for pool in lacking)
    pools = " and ".join(f"{program.names[pool]!r} of {int(program.limits[pool])} bytes" for pool in lacking)
    named = ", ".join(f"{buffer.name!r} of {buffer.nbytes} bytes" for buffer in largest[:MAX_NAMED])
    more = f" and {counted(len(largest) - MAX_NAMED, 'smaller buffer')}" if len(largest) > MAX_NAMED else ""
    return MemoryTooSmallError(
        f"the memory of {counted(len(lacking), 'pool').partition(' ')[2]} {pools} is {counted(missing, 'byte')} too "
        f"small; live at step {step}: {named}{more}; use a larger pool, smaller tensors, or more pools",
        pools=names,
        missing=missing,
        step=step,
        largest=tuple(buffer.name for buffer in largest[:MAX_NAMED]),
    )


def _plan(buffers: Sequence[Buffer], pools: Sequence[Pool], program: _Program, placed: _Placed) -> MemoryPlan:
    """Return the plan of all buffers, including those of no bytes, by names."""
    numbers = {pool.name: number for number, pool in enumerate(pools)}
    found = {buffer.name: place for buffer, place in zip(program.buffers, placed.places, strict=True)}
    places = {}
    held: dict[str, list[Buffer]] = {pool.name: [] for pool in pools}
    for buffer in buffers:
        place = found.get(buffer.name) or (numbers[buffer.pools[0]] if buffer.pools else 0, 0)
        places[buffer.name] = Place(pools[place[0]].name, place[1])
        held[pools[place[0]].name].append(buffer)
    return MemoryPlan(
        places,
        {pool.name: size for pool, size in zip(pools, placed.sizes, strict=True)},
        {name: _live_bytes(those)[0] for name, those in held.items()},
    )
