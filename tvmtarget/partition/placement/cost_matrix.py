"""The labeling problem of one level of the target: costs of atoms, launches and copies in integers.

An unknown cost is neither high nor low. An atom leaves the site that it prefers only if its time is known on both
sites, and if both memories exchange values with the others in known time; anything else gets a penalty above the cost
of every labeling without unknown numbers. Copies of unknown time are then the same in all labelings, and cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, log2
from typing import TypeAlias

import numpy as np

from tvmtarget.ir.control_flow import body_arguments, control_flow_form
from tvmtarget.ir.types import Type
from tvmtarget.partition.control.control_flow_ops import expected_body_runs
from tvmtarget.partition.costs.estimate import Estimates, SignatureTimes
from tvmtarget.partition.costs.routes_by_size import MAX_TIME, RouteGroup, Times, routes_by_size
from tvmtarget.partition.dataflow import Ints, spans
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.placement.energy import ENDLESS, Bools, LabelingProblem
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.level import Level, preferred
from tvmtarget.partition.values import Values
from tvmtarget.target.topology import Site

__all__ = ["CostMatrix", "cost_matrix_of"]

# Sums stay below this power of two, to fit 64 bits; costs are divided by a power of two where they would not.
BITS = 60


@dataclass(frozen=True)
class CostMatrix:
    """A labeling problem in picoseconds.

    Attributes:
        problem: the labeling problem; all costs are divided by 2 ** `shift`.
        penalty: cost of leaving a preferred site for one that is not known to be faster.
        shift: binary digits that were dropped so that sums fit 64 bits.
        is_known: whether there is no penalty, so that labelings are compared by known numbers.
    """

    problem: LabelingProblem
    penalty: int
    shift: int
    is_known: bool


def cost_matrix_of(
    feasibility: Feasibility,
    estimates: Estimates,
    level: Level,
    trusted: Site | None = None,
    body_costs: Mapping[tuple[int, int], int] | None = None,
    owner: Ints | None = None,
) -> CostMatrix:
    """Return the labeling problem of a level.

    Args:
        feasibility: which site can run which operation.
        estimates: times of operations, calls and copies.
        level: the atoms and options of one system.
        trusted: the option whose estimates are exact; all others count with their error added. None adds no errors.
        body_costs: what the bodies take that a driver may run, in picoseconds, by atom and option, where that is known
            better than by the least time of each operation in them.
        owner: a number for each atom; those of one number get the same option, so that they copy nothing between them.

    Returns:
        The problem; its labels are the options.
    """
    topology = feasibility.program.topology
    launches = [
        0 if number in level.drivers else min(estimates.launch(leaf) for leaf in feasibility.leaves_below(option))
        for number, option in enumerate(level.options)
    ]
    max_launch = max(launches, default=0)
    # If every atom becomes a function of its own, the launch is part of its cost; else subgraphs share launches.
    launch_costs = [
        0 if level.is_divided or limits.shape == "single" else launch
        for limits, launch in zip(level.limits, launches, strict=True)
    ]
    home = _Location((topology.home(level.site.path),))
    option_locations = [
        _location(estimates, option, level.site, is_driver=number in level.drivers)
        for number, option in enumerate(level.options)
    ]
    domains = tuple(dict.fromkeys([*option_locations, home]))
    values = level.values
    flow = feasibility.program.dataflow(level.atoms[0] if level.atoms else ())
    copies = _copies(estimates, flow.types, domains)
    times = {
        leaf.path: estimates.times(leaf, at_worst=trusted is not None and option is not trusted)
        for option in level.options
        for leaf in feasibility.leaves_below(option)
    }
    shift = _shift(level, times.values(), copies, values, max_launch)
    # Calling a driver takes no time.
    min_launch = min((launch for number, launch in enumerate(launches) if number not in level.drivers), default=0)
    known, unknown = _atom_times(feasibility, level, times, min_launch, shift)
    for place, cost in (body_costs or {}).items():
        known[place] = max(known[place], cost >> shift)
    known += np.array(
        [launch - part >> shift for launch, part in zip(launches, launch_costs, strict=True)], dtype=np.int64
    )
    # Unknown copy times count as 0 here; `_leaves_for_unknown` penalizes the assignments that rely on them.
    routes = (copies.times >> shift).astype(np.int64, copy=False)
    max_copy = routes.max(axis=(1, 2), initial=0)[values.type_ids].sum() * len(domains)
    max_known = np.where(level.allowed, known, 0).max(axis=1, initial=0).sum()
    penalty = int(max_known + max_copy) + (max_launch >> shift) * len(level.atoms) + 2
    locations = np.array([domains.index(domain) for domain in option_locations], dtype=np.int64)
    owner = np.arange(len(level.atoms)) if owner is None else owner
    leaving = _leaves_for_unknown(level, unknown > 0, copies.is_unknown, locations, owner)
    leaving &= level.allowed
    # A copy to a memory serves all leaves behind boundaries in it, and the driver where it also returns the value.
    option_domains = {*option_locations}
    is_shared = len({location.homes for location in option_domains}) < len(option_domains)
    is_shared |= home not in option_domains and bool((values.is_live_out & (np.diff(values.start) > 0)).any())
    problem = LabelingProblem(
        costs=np.where(level.allowed, known + leaving * penalty, 0),
        allowed=level.allowed,
        producer=values.producer,
        start=values.start,
        readers=values.readers,
        is_live_out=values.is_live_out,
        cost_index=values.type_ids,
        pair_costs=routes,
        domains=locations,
        home=domains.index(home),
        launches=np.array([part >> shift for part in launch_costs], dtype=np.int64),
        **_shared_routes(copies, domains, shift, is_shared=is_shared),
    )
    return CostMatrix(_in_loop(feasibility.program, level, problem), penalty, shift, not leaving.any())


def _in_loop(program: FlatProgram, level: Level, problem: LabelingProblem) -> LabelingProblem:
    """Return the problem of a level with the copies of one run of its operations, where these are the body of a loop.

    A driver copies what does not change once for all runs, and leaves carried values where the body computes them.
    """
    scope = program.scope_of(level.atoms[0][0]) if level.atoms else program.scopes[0]
    form = None if scope.owner is None else control_flow_form(program.body[scope.owner])
    if scope.owner is None or form is None or not form.repeats:
        return problem
    runs = float(expected_body_runs(program.op(scope.owner)))
    flow, values = program.dataflow(level.atoms[0]), level.values
    names = [flow.names[number] for number in values.numbers.tolist()]
    params = [param.name for param in scope.function.params]
    carried = {
        params[one.param]: scope.function.results[one.result] for one in body_arguments(program.body[scope.owner])
    }
    once = np.array([name in carried or name not in params for name in names], dtype=np.bool_) & (values.producer < 0)
    readers, is_live_out = [*values.readers_of], problem.is_live_out.copy()
    number_of = {name: number for number, name in enumerate(names)}
    if len(scope.calls) == sum(map(len, level.atoms)):
        for param, result in carried.items():
            number = number_of.get(result, -1)
            if number >= 0 and problem.producer[number] >= 0 and scope.function.results.count(result) == 1:
                more = readers[number_of[param]] if param in number_of else []
                readers[number] = sorted({*readers[number], *more} - {values.producers[number]})
                is_live_out[number] = False
    kinds = len(problem.pair_costs)
    runs = max(1.0, runs)

    def with_shares(times: Ints) -> Ints:
        return np.concatenate([times, np.rint(times / runs).astype(np.int64)])

    return replace(
        problem,
        start=spans(map(len, readers)),
        readers=np.array([reader for row in readers for reader in row], dtype=np.int64),
        is_live_out=is_live_out,
        cost_index=problem.cost_index + once * kinds,
        pair_costs=with_shares(problem.pair_costs),
        route_times=with_shares(problem.route_times),
        route_before=np.concatenate([problem.route_before, problem.route_before]),
    )


def _leaves_for_unknown(level: Level, unknown: Bools, is_unknown_copy: Bools, locations: Ints, owner: Ints) -> Bools:
    """Return whether an atom (row) under an option (column) would leave its preferred site without known numbers.

    `unknown` marks atoms and options without a time, `is_unknown_copy` kinds of values and locations without a copy
    time, `locations` are those of the options, and atoms of one `owner` copy nothing between them.
    """
    atoms, first = np.arange(len(level.atoms)), preferred(level)
    found = unknown | unknown[atoms, first][:, None]
    values = level.values
    if is_unknown_copy[values.type_ids].any():
        read, _ = values.reads
        producer = np.where(values.producer >= 0, owner[values.producer], -1)
        is_copied = values.is_live_out | (values.producer < 0)
        np.logical_or.at(is_copied, read, owner[values.readers] != producer[read])
        produced = np.flatnonzero(values.producer >= 0)
        value, atom = np.concatenate([read, produced]), np.concatenate([values.readers, values.producer[produced]])
        value, atom = value[is_copied[value]], atom[is_copied[value]]
        type_ids = values.type_ids[value]
        np.logical_or.at(found, atom, is_unknown_copy[type_ids, locations[first[atom]]][:, locations])
    found[atoms, first] = False
    return found


# A copy: the system whose driver makes it ('' for the driver of the level), and the memories at both ends.
_Hop: TypeAlias = tuple[str, str, str]

# A memory in which the driver of a system has a copy of a value.
_Place: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Location:
    """Where a value can be: in a memory, or behind the boundary of a leaf in it, at some picoseconds per byte.

    `homes` are the memory, then those of the drivers up to the level, through which a value passes on its way to
    another system; `systems` are the paths of these drivers' systems.
    """

    homes: tuple[str, ...]
    systems: tuple[str, ...] = ()
    leaf: str = ""
    boundary_rate: float = 0.0

    def hops_to(self, other: _Location) -> tuple[_Hop, ...]:
        """Return the copies that drivers make of a value on its way to another location."""
        shared = 0  # systems around both, the outermost last
        while shared < min(len(self.systems), len(other.systems)) and (
            self.systems[-1 - shared] == other.systems[-1 - shared]
        ):
            shared += 1
        up, down = len(self.systems) - shared, len(other.systems) - shared
        across = (*self.systems, "")[up], self.homes[up], other.homes[down]
        hops = [
            *zip(self.systems[:up], self.homes[:up], self.homes[1:], strict=False),
            across,
            *reversed([*zip(other.systems[:down], other.homes[1:], other.homes[:down], strict=False)]),
        ]
        return tuple((system, src, dst) for system, src, dst in hops if src != dst)


def _location(estimates: Estimates, option: Site, level: Site, *, is_driver: bool) -> _Location:
    topology, boundary_rate = estimates.program.topology, estimates.boundary_rate(option)
    path = option.path
    # A driver further down than the level is around its own memory.
    systems = [path] if is_driver and path != level.path else []
    while (path := path.rpartition("/")[0]) not in ("", level.path):
        systems.append(path)
    homes = tuple(map(topology.home, (option.path, *systems)))
    if boundary_rate and not is_driver:
        return _Location(homes, tuple(systems), option.path, boundary_rate)
    return _Location(homes, tuple(systems))


@dataclass(frozen=True, slots=True)
class _Copies:
    """The copies between locations, by type of a value, source and destination.

    `times` are 0 where they are unknown, and `hops` the copies that drivers make. `routes` are those of all distinct
    sizes, and `sizes` the position of that of each type among these.
    """

    times: Times
    is_unknown: Bools
    hops: list[list[tuple[_Hop, ...]]]
    routes: list[RouteGroup]
    sizes: Ints


def _copies(estimates: Estimates, types: Sequence[Type], locations: Sequence[_Location]) -> _Copies:
    """Return the copies between locations, with the times for all sizes."""
    position: dict[int | None, int] = {}
    sizes = np.array(
        [position.setdefault(size, len(position)) for size in map(estimates.nbytes, types)], dtype=np.int64
    )
    hops = [[a.hops_to(b) for b in locations] for a in locations]
    number: dict[tuple[str, str], int] = {}
    paths = [[number.setdefault((src, dst), len(number)) for _, src, dst in path] for row in hops for path in row]
    longest = max(map(len, paths), default=0)
    routes = routes_by_size(estimates.memory_graph, (src for src, _ in number), [*position])
    tables = [group.times(number) for group in routes]
    rates = np.array([location.boundary_rate for location in locations])
    between = (rates[:, None] + rates) * ~np.eye(len(locations), dtype=np.bool_)
    crossing = between.ravel()[:, None] * np.array([size or 0 for size in position], dtype=np.float64)
    most = crossing.max(initial=0.0) + float(longest * max((times.max(initial=0) for times, _ in tables), default=0))
    # Sums that do not fit 64 bits are Python integers until they lose digits.
    dtype = np.dtype(np.int64 if most < MAX_TIME else object)
    of_hops = np.zeros((len(number), len(position)), dtype=dtype)
    is_unknown_hop = np.zeros(of_hops.shape, dtype=np.bool_)
    for group, (times, is_unknown) in zip(routes, tables, strict=True):
        of_hops[:, group.places], is_unknown_hop[:, group.places] = times, is_unknown[:, None]
    times = _sums(of_hops, paths)
    if crossing.any():
        times += (np.rint(crossing) if most < MAX_TIME else np.frompyfunc(round, 1, 1)(crossing)).astype(dtype)
    is_unknown = _sums(is_unknown_hop, paths)
    times[is_unknown] = 0
    shape = len(types), len(locations), len(locations)
    return _Copies(times.T[sizes].reshape(shape), is_unknown.T[sizes].reshape(shape), hops, routes, sizes)


def _sums(rows: Times, paths: Sequence[Sequence[int]]) -> Times:
    """Return the sum of some rows for each path."""
    total = np.zeros((len(paths), rows.shape[1]), dtype=rows.dtype)
    for place in range(max(map(len, paths), default=0)):
        longer = [number for number, path in enumerate(paths) if len(path) > place]
        total[longer] += rows[[paths[number][place] for number in longer]]
    return total


def _shared_routes(copies: _Copies, locations: Sequence[_Location], shift: int, *, is_shared: bool) -> dict[str, Ints]:
    """Return the memories on the routes between locations; nothing if no two copies can share a link.

    Drivers that copy a value through one memory have a copy of their own in it each, so that memories are distinct by
    driver; where a system hands a value on, its memory is that of the driver around it. `is_shared` says whether a
    value may go to two locations in one memory.
    """
    outer = {
        system: (around, home)
        for one in locations
        for system, around, home in zip(one.systems, (*one.systems[1:], ""), one.homes[1:], strict=False)
    }

    @cache
    def place(system: str, memory: str) -> _Place:
        while system and outer[system][1] == memory:
            system = outer[system][0]
        return system, memory

    hops = {hop: None for row in copies.hops for path in row for hop in path}
    domains = [place((*location.systems, "")[0], location.homes[0]) for location in locations]
    ends = [place(system, memory) for system, *both in hops for memory in both]
    stops = [place(hop[0], stop) for group in copies.routes for hop in hops for stop in group.stops(*hop[1:])]
    places = list(dict.fromkeys([*domains, *ends, *stops]))
    is_through = any(len(path) > 1 for row in copies.hops for path in row)
    if not stops and not is_through and not (is_shared and 1 < len(places) < len(domains)):
        return {}
    number = {place: location for location, place in enumerate(places)}
    shape = len(copies.sizes), len(places), len(places)
    times, before = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for group in copies.routes:
        steps = _steps(group, copies.hops, domains, place)
        links = np.array([[number[start], number[reached]] for start, reached in steps], dtype=np.int64)
        rows, columns = links.reshape(-1, 2).T
        last = np.repeat(np.arange(len(places))[:, None], len(places), axis=1)
        last[rows, columns] = [number[one] for one, _ in steps.values()]
        pairs: dict[tuple[str, str], int] = {}
        parts = [[pairs.setdefault(pair, len(pairs)) for pair in passed] for _, passed in steps.values()]
        sums = _sums(group.times(pairs)[0].astype(copies.times.dtype, copy=False), parts) >> shift
        position = np.full(len(copies.sizes), -1, dtype=np.int64)
        position[group.places] = np.arange(len(group.places))
        position = position[copies.sizes]
        of_types = np.flatnonzero(position >= 0)
        times[of_types[:, None], rows, columns] = sums[:, position[of_types]].T
        if len(copies.routes) == 1:
            before = np.broadcast_to(last, shape)
        else:
            before[of_types] = last
    return {
        "domain_memory": np.array([number[domain] for domain in domains], dtype=np.int64),
        "route_times": times,
        "route_before": before,
    }


def _steps(
    group: RouteGroup,
    hops: Sequence[Sequence[Sequence[_Hop]]],
    domains: Sequence[_Place],
    place: Callable[[str, str], _Place],
) -> dict[tuple[_Place, _Place], tuple[_Place, tuple[tuple[str, str], ...]]]:
    """Return the routes between places: the place before the last one, and the copies of which they consist."""
    pairs = list(dict.fromkeys((src, dst) for row in hops for path in row for _, src, dst in path))
    is_unknown = dict(zip(pairs, group.times(pairs)[1].tolist(), strict=True))
    found: dict[tuple[_Place, _Place], tuple[_Place, tuple[tuple[str, str], ...]]] = {}
    for start, row in zip(domains, hops, strict=True):
        for path in row:
            last = start
            passed: tuple[tuple[str, str], ...] = ()
            for system, src, dst in path:
                # A route of unknown time takes none here, also up to its stops.
                for stop in (dst,) if is_unknown[src, dst] else (*group.stops(src, dst), dst):
                    reached = place(system, stop)
                    if reached != start and (start, reached) not in found:
                        found[start, reached] = last, (*passed, (src, stop))
                    last = reached
                passed = (*passed, (src, dst))
    return found


def _shift(
    level: Level,
    times: Collection[SignatureTimes],
    copies: _Copies,
    values: Values,
    launch: int,
) -> int:
    """Return how many binary digits to drop so that every sum fits `BITS`."""
    longest = max((found.longest for found in times), default=0)
    max_copy = copies.times.max(initial=0)
    atoms = sum(len(atom) for atom in level.atoms)
    width = copies.times.shape[-1]
    known = float(longest + launch) * atoms + float(max_copy) * width * len(values.type_ids) + 1
    has_unknown = bool(copies.is_unknown.any()) or any(found.has_unknown for found in times)
    return max(0, ceil(log2(known) + log2(1 + atoms * has_unknown)) - BITS)


def _atom_times(
    feasibility: Feasibility, level: Level, times: dict[str, SignatureTimes], launch: int, shift: int
) -> tuple[Ints, Ints]:
    """Return the known time of each atom under each option, and the number of its operations without one.

    In a system, an operation counts as unknown if its time on the first leaf that supports it is: it would stay there.
    """
    members = np.array([index for atom in level.atoms for index in atom], dtype=np.int64)
    # A level may have few of the signatures of a program.
    signatures, places = np.unique(feasibility.program.signature_array[members], return_inverse=True)
    numbers: list[int] = signatures.tolist()
    owner = np.repeat(np.arange(len(level.atoms)), [len(atom) for atom in level.atoms])
    known = np.zeros((len(level.atoms), len(level.options)), dtype=np.int64)
    unknown = np.zeros_like(known)
    for option, site in enumerate(level.options):
        if option in level.drivers:
            _add_driven(feasibility, level, times, launch, shift, option, known, unknown)
            continue
        least, is_first_unknown = np.full(len(members), ENDLESS), np.zeros(len(members), dtype=np.bool_)
        is_unsupported = np.ones(len(members), dtype=np.bool_)
        for leaf, column in zip(feasibility.leaves_below(site), feasibility.columns(site), strict=True):
            of_leaf = map(times[leaf.path].by_signature.__getitem__, numbers)
            flat = [ENDLESS if time is None else time >> shift for time in of_leaf]
            found = np.array(flat, dtype=np.int64)[places]
            supported = feasibility.supported[members, column]
            is_first_unknown |= is_unsupported & supported & (found == ENDLESS)
            is_unsupported &= ~supported
            least = np.where(supported, np.minimum(least, found), least)
        np.add.at(known[:, option], owner, np.where(least == ENDLESS, 0, least))
        np.add.at(unknown[:, option], owner, is_first_unknown | (least == ENDLESS))
    return known, unknown


def _add_driven(
    feasibility: Feasibility,
    level: Level,
    times: dict[str, SignatureTimes],
    launch: int,
    shift: int,
    option: int,
    known: Ints,
    unknown: Ints,
) -> None:
    """Add the time of nested bodies that the driver of a level runs, each operation where it is fastest.

    Every body with operations makes at least one call.
    """
    program, system = feasibility.program, level.options[option]
    leaves = list(zip(feasibility.leaves_below(system), feasibility.columns(system), strict=True))

    def whole(index: int) -> list[int]:
        able = [leaf for leaf, column in leaves if feasibility.supported[index, column]]
        if index in program.bodies:
            able = [leaf for leaf in able if feasibility.supports_whole((index,), leaf)]
        found = [times[leaf.path].by_signature[program.signatures[index]] for leaf in able]
        return [time >> shift for time in found if time is not None]

    def driven(index: int) -> tuple[float, int]:
        """Return the time of the bodies of an operation, and the number of operations without one."""
        total, missing = 0.0, 0
        for scope in program.bodies[index]:
            total += (launch >> shift) * any(inner not in program.bodies for inner in scope.calls)
            for inner in scope.calls:
                found = whole(inner)
                if inner not in program.bodies:
                    total, missing = total + min(found, default=0), missing + (not found)
                else:
                    # A leaf or a driver runs it, whichever takes less.
                    time, unknown = driven(inner)
                    if found and (unknown or min(found) < time):
                        time, unknown = min(found), 0
                    total, missing = total + time, missing + unknown
        return total * float(expected_body_runs(program.op(index))), missing

    for atom in np.flatnonzero(level.allowed[:, option]).tolist():
        time, missing = driven(level.atoms[atom][0])
        known[atom, option] += round(time)
        unknown[atom, option] += missing
