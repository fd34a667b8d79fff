"""Predict how moving one operation alone changes the time: its own time, and the copies of its neighbours' values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.placement.feasibility import Feasibility

__all__ = ["move_delta"]


def move_delta(
    feasibility: Feasibility, estimates: Estimates, sites: Mapping[int, str], index: int
) -> Iterator[tuple[str, int]]:
    """Yield how much longer the program takes with one operation alone on another leaf.

    Args:
        feasibility: what fits where.
        estimates: the costs.
        sites: the leaf of every operation.
        index: the operation, by number.

    Yields:
        A path of a leaf and picoseconds, below zero where the program is faster; calls of functions are not counted.
        Nothing in nested bodies, in trees of several levels, and where a cost is unknown.
    """
    program, topology = feasibility.program, feasibility.program.topology
    around = {*program.predecessors(index)}
    for output in program.body[index].outputs:
        around.update(program.consumers.get(output.name, ()))
    # In a deeper tree a value may pass through the memories of several drivers, which this sum does not follow.
    is_flat = not any(option.is_system for option in topology.options(""))
    if not is_flat or index not in program.top or not sites.keys() >= {index, *around}:
        return
    here = _total(estimates, sites, index, sites[index])
    for leaf in feasibility.leaves:
        if leaf.path != sites[index] and feasibility.unsupported_reason(index, leaf) is None:
            there = _total(estimates, sites, index, leaf.path)
            if here is not None and there is not None:
                yield leaf.path, there - here


def _total(estimates: Estimates, sites: Mapping[int, str], index: int, site: str) -> int | None:
    """Add up what an operation on a site takes, and what passing and copying all that it reads and computes takes."""
    program, topology = estimates.program, estimates.program.topology
    home = topology.home("")

    total = estimates.time(index, topology[site]).time
    call = program.body[index]
    for name in dict.fromkeys((*call.uses(), *(output.name for output in call.outputs))):
        # Constants are copied once for all runs, and so do not count in the time of one.
        if not name or name in program.constants:
            continue
        readers = program.consumers.get(name, ())
        if (name in program.producer and program.producer[name] not in sites) or not sites.keys() >= {*readers}:
            return None
        type_ = program.types.get(name)
        ends = [site if call == index else sites[call] for call in readers]
        maker = program.producer.get(name)
        start = None if maker is None else site if maker == index else sites[maker]
        # A value passes once to each other site that reads it, and to the driver, which has no boundary of its own.
        rates = [estimates.boundary_rate(topology[one]) for one in sorted(set(ends)) if one != start]
        if start is not None:
            passes = len(rates) + (name in program.results)
            rates.append(passes * estimates.boundary_rate(topology[start]))
        if total is not None:
            total += round((estimates.nbytes(type_) or 0) * sum(rates))
        source = home if start is None else topology[start].domain
        wanted = {topology[one].domain for one in ends} | ({home} if name in program.results else set())
        hops: set[tuple[str, str]] = set()  # what several destinations share is copied once
        for target in wanted - {source}:
            stops = estimates.memory_graph.route(source, target, estimates.nbytes(type_)).stops
            hops.update(pairwise((source, *stops, target)))
        for src, dst in hops:
            time = estimates.copy(type_, src, dst)
            if time is None or total is None:
                return None
            total += time
    return total
