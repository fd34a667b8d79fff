"""Leaves whose memory is not this process's: runs that find their inputs there, and what it takes to cross over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from tvmtarget.autotune.search.timing import Inputs
from tvmtarget.backends.protocol import Backend
from tvmtarget.building.executable import Executable
from tvmtarget.partition.costs.costs import LinkCost
from tvmtarget.target.topology import Site, Topology
from tvmtarget.target.tree import Target

__all__ = ["links_of", "run_in_place"]

SMALL, LARGE = 4096, 1 << 24  # bytes that are moved
MOVES = 20


def run_in_place(program: Executable, inputs: Inputs) -> Callable[[], object]:
    """Return what runs a program of one leaf on inputs that are in the leaf's memory already."""
    leaves = list(program.code.values())
    leaf = leaves[0] if len(leaves) == 1 else None
    run_on, place = getattr(leaf and leaf.compiled, "run_on", None), getattr(leaf and leaf.backend, "place", None)
    if leaf is None or run_on is None or place is None:
        return lambda: program.run(inputs)
    values = [place(inputs[name], leaf.part.target, 0) for name in program.inputs]
    return lambda: run_on(0, values)


def links_of(topology: Topology, leaf: Site, alone: Target, backend: Backend) -> Iterator[LinkCost]:
    """Yield what copies take from the memory of a leaf's host into its own and back; nothing where that is one."""
    home, place = topology[leaf.host].domain, getattr(backend, "place", None)
    if place is None or leaf.domain == home or leaf.target.device == "cpu":
        return
    here = {size: np.zeros(size, "uint8") for size in (SMALL, LARGE)}
    there = {size: place(array, alone, 0) for size, array in here.items()}
    to = [_least(partial(place, array, alone, 0)) for array in here.values()]
    back = [_least(value.numpy) for value in there.values()]
    origin = f"measured, {backend.version()}"
    for src, dst, (small, large) in ((home, leaf.path, to), (leaf.path, home, back)):
        bandwidth = (LARGE - SMALL) / max(large - small, 1) * 1e9
        yield LinkCost(src, dst, max(0.0, small / 1000 - SMALL / bandwidth * 1e6), bandwidth, origin)


def _least(work: Callable[[], object]) -> int:
    """Return the nanoseconds of the fastest of some calls."""
    times = []
    for _ in range(MOVES):
        begin = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - begin)
    return min(times)
