"""The numbers of one level as a placement: what atoms, launches and copies cost there.

Unknown costs neither speak against a site nor for one: an atom leaves the site that it prefers only where its time is
known on both, and where both memories exchange values with the others in known time. All else costs more than any
choice whose numbers are known. Copies of unknown time then are the same ones in all choices, and count for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from tvmtarget.ir.types import Type
from tvmtarget.partition.control.control_flow_ops import expected_body_runs
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.placement.energy import Bools, LabelingProblem
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.level import Level, preferred
from tvmtarget.partition.values import Values
from tvmtarget.target.topology import Site

__all__ = ["CostMatrix", "cost_matrix_of"]

# Sums stay below this power of two, so that 64 bits hold them: finer digits are dropped where they would not.
BITS = 60


@dataclass(frozen=True)
class CostMatrix:
    """A placement in picoseconds shifted by `shift` bits.

    `beyond` is the cost of leaving a preferred site where that is not known to be faster; `is_known` says that there
    is no such cost, so that all choices are compared by known numbers.
    """

    placement: LabelingProblem
    beyond: int
    shift: int
    is_known: bool


def cost_matrix_of(
    feasibility: Feasibility, estimates: Estimates, level: Level, trusted: Site | None = None
) -> CostMatrix:
    """Return what is to be decided at a level in numbers: those of all options but a trusted one, if any, at worst."""
    topology = feasibility.program.topology
    launches = [
        0 if option is level.site else min(estimates.launch(leaf) for leaf in feasibility.below(option))
        for option in level.options
    ]
    # Where every atom is a function of its own, it pays for its launch itself; elsewhere, subgraphs do.
    passing = [
        0 if level.is_divided or limits.shape == "single" else launch
        for limits, launch in zip(level.limits, launches, strict=True)
    ]
    home = _Place(topology.home(level.site.path))
    homes = [_place(estimates, option, level.site) for option in level.options]
    domains = tuple(dict.fromkeys([*homes, home]))
    values = level.values
    flow = feasibility.program.dataflow(level.atoms[0] if level.atoms else ())
    links = [_links(estimates, size, domains) for size in map(estimates.nbytes, flow.types)]
    times = {
        leaf.path: estimates.times(leaf, is_doubted=trusted is not None and option is not trusted)
        for option in level.options
        for leaf in feasibility.below(option)
    }
    shift = _shift(level, times.values(), links, values, max(launches, default=0))
    least = min(launches[: len(launches) - (level.options[-1] is level.site)], default=0)
    known, unknown = _times(feasibility, level, times, least, shift)
    known += np.array([launch - part >> shift for launch, part in zip(launches, passing, strict=True)], dtype=np.int64)
    flat = [[[0 if cost is None else cost >> shift for cost in row] for row in rows] for rows in links]
    routes = np.array(flat, dtype=np.int64).reshape(len(links), len(domains), len(domains))
    dearest = routes.max(axis=(1, 2), initial=0)[values.kinds].sum() * len(domains)
    top = np.where(level.allowed, known, 0).max(axis=1, initial=0).sum()
    beyond = int(top + dearest) + (max(launches, default=0) >> shift) * len(level.atoms) + 2
    places = np.array([domains.index(domain) for domain in homes], dtype=np.int64)
    is_blind = np.array([[[cost is None for cost in row] for row in rows] for rows in links], dtype=np.bool_)
    leaving = _is_unknown(level, unknown > 0, is_blind.reshape(routes.shape), places) & level.allowed
    placement = LabelingProblem(
        costs=np.where(level.allowed, known + leaving * beyond, 0),
        allowed=level.allowed,
        producer=values.producer,
        start=values.start,
        readers=values.readers,
        is_live_out=values.is_live_out,
        routing=values.kinds,
        routes=routes,
        domains=places,
        home=domains.index(home),
        launches=np.array([part >> shift for part in passing], dtype=np.int64),
        **_shared(estimates, flow.types, [place.domain for place in domains], shift),
    )
    return CostMatrix(placement, beyond, shift, not leaving.any())


def _is_unknown(level: Level, unknown: Bools, is_blind: Bools, places: Ints) -> Bools:
    """Tell under which options atoms (rows) would leave those that they prefer without known numbers for it.

    `unknown` says of which atoms and options times are not known, `is_blind` of which kinds of values and places
    copies are not, and `places` where the options are.
    """
    atoms, first = np.arange(len(level.atoms)), preferred(level)
    found = unknown | unknown[atoms, first][:, None]
    values = level.values
    if is_blind[values.kinds].any():
        owner, _ = values.reads
        made = np.flatnonzero(values.producer >= 0)
        value, atom = np.concatenate([owner, made]), np.concatenate([values.readers, values.producer[made]])
        kinds = values.kinds[value]
        np.logical_or.at(found, atom, is_blind[kinds, places[first[atom]]][:, places])
    found[atoms, first] = False
    return found


@dataclass(frozen=True, slots=True)
class _Place:
    """Where values are: a memory, or in it what a leaf has for itself, with picoseconds a byte to get there or out."""

    domain: str
    leaf: str = ""
    passing: float = 0.0


def _place(estimates: Estimates, option: Site, level: Site) -> _Place:
    domain, passing = estimates.program.topology.home(option.path), estimates.boundary_rate(option)
    return _Place(domain, option.path, passing) if passing and option is not level else _Place(domain)


def _links(estimates: Estimates, size: int | None, places: Sequence[_Place]) -> list[list[int | None]]:
    return [[_link(estimates, size, a, b) for b in places] for a in places]


def _link(estimates: Estimates, size: int | None, a: _Place, b: _Place) -> int | None:
    if size is None:
        return 0 if a.domain == b.domain else None
    copy = 0 if a.domain == b.domain else estimates.memory_graph.route(a.domain, b.domain, size).time
    return None if copy is None else copy + (0 if a == b else round(size * (a.passing + b.passing)))


def _shared(estimates: Estimates, types: Sequence[Type], domains: Sequence[str], shift: int) -> dict[str, Ints]:
    """Return the memories on the routes between domains; nothing if no two copies share a link."""
    sizes = [estimates.nbytes(type_) for type_ in types]
    graph = estimates.memory_graph
    stops = dict.fromkeys(
        stop
        for size in dict.fromkeys(sizes)
        for a in domains
        for b in domains
        for stop in graph.route(a, b, size).stops
    )
    memories = list(dict.fromkeys([*domains, *stops]))
    if not stops and len(memories) == len(domains):
        return {}
    routes = [[[graph.route(a, b, size) for b in memories] for a in memories] for size in sizes]
    number = {memory: place for place, memory in enumerate(memories)}
    shape = len(sizes), len(memories), len(memories)
    times = [[[(route.time or 0) >> shift for route in row] for row in rows] for rows in routes]
    before = [
        [
            [number[route.stops[-1]] if route.stops and route.time is not None else a for route in row]
            for a, row in enumerate(rows)
        ]
        for rows in routes
    ]
    return {
        "memory": np.array([number[domain] for domain in domains], dtype=np.int64),
        "times": np.array(times, dtype=np.int64).reshape(shape),
        "before": np.array(before, dtype=np.int64).reshape(shape),
    }


def _shift(
    level: Level,
    times: Collection[Sequence[int | None]],
    links: Sequence[Sequence[Sequence[int | None]]],
    values: Values,
    launch: int,
) -> int:
    """Return how many binary digits to drop so that every sum fits."""
    longest = max((time for found in times for time in found if time is not None), default=0)
    copies = [[cost for row in rows for cost in row] for rows in links]
    dearest = max((cost for found in copies for cost in found if cost is not None), default=0)
    atoms = sum(len(atom) for atom in level.atoms)
    width = len(links[0]) if links else 1
    known = float(longest + launch) * atoms + float(dearest) * width * len(values.kinds) + 1
    has_unknown = any(None in found for found in copies) or any(None in found for found in times)
    return max(0, ceil(log2(known) + log2(1 + atoms * has_unknown)) - BITS)


def _times(
    feasibility: Feasibility, level: Level, times: dict[str, list[int | None]], launch: int, shift: int
) -> tuple[Ints, Ints]:
    """Return what is known of the time of each atom under each option, and how many of its operations are unknown.

    In a system an operation is unknown where its time on the first leaf that takes it is, as it will stay there.
    """
    signatures = np.array(feasibility.program.signatures, dtype=np.int64)
    members = np.array([index for atom in level.atoms for index in atom], dtype=np.int64)
    owner = np.repeat(np.arange(len(level.atoms)), [len(atom) for atom in level.atoms])
    known = np.zeros((len(level.atoms), len(level.options)), dtype=np.int64)
    unknown = np.zeros_like(known)
    endless = np.iinfo(np.int64).max
    for option, site in enumerate(level.options):
        if site is level.site:
            _driven(feasibility, level, times, launch, shift, option, known, unknown)
            continue
        least, is_first_unknown = np.full(len(members), endless), np.zeros(len(members), dtype=np.bool_)
        is_open = np.ones(len(members), dtype=np.bool_)
        for leaf, column in zip(feasibility.below(site), feasibility.columns(site), strict=True):
            flat = [endless if time is None else time >> shift for time in times[leaf.path]]
            found = np.array(flat, dtype=np.int64)[signatures[members]]
            takes = feasibility.takes[members, column]
            is_first_unknown |= is_open & takes & (found == endless)
            is_open &= ~takes
            least = np.where(takes, np.minimum(least, found), least)
        np.add.at(known[:, option], owner, np.where(least == endless, 0, least))
        np.add.at(unknown[:, option], owner, is_first_unknown | (least == endless))
    return known, unknown


def _driven(
    feasibility: Feasibility,
    level: Level,
    times: dict[str, list[int | None]],
    launch: int,
    shift: int,
    option: int,
    known: Ints,
    unknown: Ints,
) -> None:
    """Add up what nested bodies take that the driver of a level runs, each operation where it is fastest.

    Every body with operations calls one function at least.
    """
    program = feasibility.program
    leaves = list(zip(feasibility.below(level.site), feasibility.columns(level.site), strict=True))
    for atom in np.flatnonzero(level.allowed[:, option]).tolist():
        for inner, runs, is_first in _runs(program, level.atoms[atom][0], 1.0):
            able = [leaf for leaf, column in leaves if feasibility.takes[inner, column]]
            found = [times[leaf.path][program.signatures[inner]] for leaf in able]
            stated = [time for time in found if time is not None]
            call = launch if is_first else 0
            known[atom, option] += round((min(stated, default=0) + call >> shift) * runs)
            unknown[atom, option] += not stated


def _runs(program: FlatProgram, index: int, runs: float) -> Iterator[tuple[int, float, bool]]:
    """Yield the operations in the bodies of one, how often each runs, and whether it is the first of its body."""
    inside = runs * float(expected_body_runs(program.op(index)))
    for scope in program.bodies[index]:
        plain = (inner for inner in scope.calls if inner not in program.bodies)
        yield from ((inner, inside, number == 0) for number, inner in enumerate(plain))
        for inner in scope.calls:
            if inner in program.bodies:
                yield from _runs(program, inner, inside)
