"""Memory plans beside their lower bound: `python -m benchmarks memory_plan [SIZE ...] [--csv FOLDER] [--effort N]`.

Families of buffers, each by a seed:

- `network`: tensors of a network that live until their last reader, most of them the next step, and workspaces.
- `random`: random sizes up to 64 KiB and random lifetimes, 40 buffers live at a step on average.
- `tiles`: a rectangle of 1 MiB and as many steps as half the buffers, cut at random until there are enough parts, so
  that a plan without a gap exists. It resembles the challenging set of MiniMalloc (google/minimalloc,
  benchmarks/challenging: 154 to 454 buffers, 10 to 80 of them live at a step, multiples of 1 KiB, live bytes of up
  to the whole capacity), which `--csv` reads from a folder, with a capacity of 1 MiB.

Rows are the size of each plan over the largest sum of live bytes, and seconds: `greedy` (`effort=0`), `full` (the
default), both without a limit of the pool, and `hill climbing`, written here as TVM describes its own
(apache/tvm v0.18, src/tir/usmp/algo/hill_climb.cc): first fit in an order by size, in which two random neighbours of a
buffer at the top change places; a worse plan is kept with a probability that sinks; 500 attempts, or half a minute.
`fits` is the time for a pool of a capacity for which a plan is known, `-` if none was found.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks._arguments import at_least
from tvmtarget.backends.c.memory_plan import Buffer, Pool, plan_memory
from tvmtarget.errors import MemoryTooSmallError

SIZES = (100, 1_000, 10_000, 100_000)
ATTEMPTS = 500
CAP = 30.0  # seconds of hill climbing
MOST_CLIMBED = 10_000  # buffers
MOST_TILES = 1_000  # buffers
CAPACITY = 1 << 20


def network(count: int) -> list[Buffer]:
    """Return the buffers of a network: about three tensors for each workspace."""
    rng = random.Random(count)
    buffers: list[Buffer] = []
    step = 0
    while len(buffers) < count:
        far = rng.choices((1, rng.randrange(2, 6), rng.randrange(6, 60)), (6, 3, 1))[0]
        size = rng.choice((1, 2, 4, 8, 16)) * rng.choice((768, 1024, 3136))
        buffers.append(Buffer(f"t{step}", size, step, step + far))
        if rng.random() < 0.3:
            buffers.append(Buffer(f"w{step}", rng.randrange(64, 40_000), step, step))
        step += 1
    return buffers[:count]


def scattered(count: int) -> list[Buffer]:
    """Return buffers of random sizes and lifetimes."""
    rng = random.Random(count)
    firsts = [rng.randrange(count) for _ in range(count)]
    return [
        Buffer(f"b{n}", rng.randrange(1, 65_536), first, min(count - 1, first + int(rng.expovariate(1 / 40))))
        for n, first in enumerate(firsts)
    ]


def tiles(count: int) -> list[Buffer]:
    """Return buffers for which a plan of `CAPACITY` without a gap exists: parts of a rectangle, in multiples of 1 KiB.

    The part with the largest area among a few random ones is cut, in time if it is long, else in bytes.
    """
    rng = random.Random(count)
    steps = count // 2
    parts = [(0, steps, CAPACITY)]
    while len(parts) < count:
        few = rng.choices(range(len(parts)), k=4)
        first, end, nbytes = parts.pop(max(few, key=lambda one: (parts[one][1] - parts[one][0]) * parts[one][2]))
        if end - first > 1 and rng.random() < 0.5:
            middle = rng.randrange(first + 1, end)
            parts += [(first, middle, nbytes), (middle, end, nbytes)]
        elif nbytes > 1024:
            cut = 1024 * rng.randrange(1, nbytes // 1024)
            parts += [(first, end, cut), (first, end, nbytes - cut)]
        else:
            parts.append((first, end, nbytes))
    return [Buffer(f"b{n}", nbytes, first, end - 1) for n, (first, end, nbytes) in enumerate(parts)]


def from_csv(path: Path) -> list[Buffer]:
    """Read buffers of MiniMalloc's format, whose lifetimes end before `upper`."""
    with path.open(newline="") as lines:
        return [
            Buffer(row["id"], int(row["size"]), int(row["lower"]), int(row["upper"]) - 1)
            for row in csv.DictReader(lines)
        ]


def conflicts_of(buffers: Sequence[Buffer]) -> list[list[int]]:
    """Return for each buffer those that are live at one of its steps."""
    conflicts: list[list[int]] = [[] for _ in buffers]
    live: list[int] = []
    for number in sorted(range(len(buffers)), key=lambda one: buffers[one].first):
        live = [other for other in live if buffers[other].last >= buffers[number].first]
        for other in live:
            conflicts[other].append(number)
            conflicts[number].append(other)
        live.append(number)
    return conflicts


def first_fit(buffers: Sequence[Buffer], conflicts: list[list[int]], order: Sequence[int]) -> list[int]:
    """Return offsets, each the lowest that is free when its buffer comes in an order."""
    offsets = [-1] * len(buffers)
    for number in order:
        offset = 0
        for begin, other in sorted((offsets[other], other) for other in conflicts[number] if offsets[other] >= 0):
            if begin - offset >= buffers[number].nbytes:
                break
            offset = max(offset, -(-(begin + buffers[other].nbytes) // 16) * 16)
        offsets[number] = offset
    return offsets


def hill_climbing(buffers: Sequence[Buffer]) -> int:
    """Return the size of the smallest plan of hill climbing, in bytes."""
    rng = random.Random(0)
    conflicts = conflicts_of(buffers)
    order = sorted(range(len(buffers)), key=lambda one: -buffers[one].nbytes)
    began = time.perf_counter()
    smallest = current = math.inf
    kept = order
    for attempt in range(ATTEMPTS):
        offsets = first_fit(buffers, conflicts, order)
        size = max(offset + buffer.nbytes for offset, buffer in zip(offsets, buffers, strict=True))
        smallest = min(smallest, size)
        if size <= current or rng.random() < math.exp((current - size) / current * 100) * (1 - attempt / ATTEMPTS):
            kept, current = order, size
            top = [n for n, (at, one) in enumerate(zip(offsets, buffers, strict=True)) if at + one.nbytes == size]
        near = sorted({*top, *(other for number in top for other in conflicts[number])})
        if len(near) < 2 or time.perf_counter() - began > CAP:
            break
        one, other = rng.sample(near, 2)
        order = list(kept)
        at, to = order.index(one), order.index(other)
        order[at], order[to] = order[to], order[at]
    return int(smallest)


def timed(work: Callable[[], int | None], live: int) -> str:
    """Return a size over the live bytes and the seconds that its plan took, as text; `-` for no plan."""
    began = time.perf_counter()
    size = work()
    text = f"{size / live:.4f}" if size is not None else "-"
    return f"{text} {time.perf_counter() - began:7.2f} s"


def planned(buffers: Sequence[Buffer], limit: int | None, **options: int) -> int | None:
    """Return the size of our plan in one pool, None if it is too small."""
    try:
        return plan_memory(buffers, [Pool("pool", limit)], **options).sizes["pool"]
    except MemoryTooSmallError:
        return None


def row(name: str, buffers: Sequence[Buffer], capacity: int | None, options: dict[str, int]) -> None:
    """Print the row of one set of buffers."""
    live = plan_memory(buffers, [Pool("pool")], effort=0).live_bytes["pool"]
    columns = [
        timed(lambda: planned(buffers, None, effort=0), live),
        timed(lambda: planned(buffers, None, **options), live),
        timed(lambda: hill_climbing(buffers), live) if len(buffers) <= MOST_CLIMBED else "-",
        timed(lambda: planned(buffers, capacity, **options), live) if capacity else "-",
    ]
    print(f"{name:<10}{len(buffers):>8}{live:>12}", *(f"{column:>18}" for column in columns), flush=True)


def main() -> None:
    """Print a row for each family and size, and for each file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks memory_plan")
    parser.add_argument("sizes", nargs="*", type=at_least(2), default=SIZES)
    parser.add_argument("--csv", type=Path, help="folder of MiniMalloc's files")
    parser.add_argument("--effort", type=at_least(0), help="effort of full and fits; by default that of plan_memory")
    given = parser.parse_args()
    if given.csv and not any(given.csv.glob("*.csv")):
        parser.error(f"argument --csv: {str(given.csv)!r} is no folder with files *.csv")
    options = {} if given.effort is None else {"effort": given.effort}
    titles = ("greedy", "full", "hill climbing", "fits")
    print(f"{'':<10}{'buffers':>8}{'live bytes':>12}", *(f"{title:>18}" for title in titles))
    for size in given.sizes:
        row("network", network(size), None, options)
        row("random", scattered(size), None, options)
        if size <= MOST_TILES:
            row("tiles", tiles(size), CAPACITY, options)
    for path in sorted(given.csv.glob("*.csv")) if given.csv else ():
        row(path.name[:9], from_csv(path), CAPACITY, options)


if __name__ == "__main__":
    main()
