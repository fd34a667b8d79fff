"""The recursive rule: at a system, give every atom a site, form subgraphs, and split each subgraph further down."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tvmtarget.errors import InfeasibleError, raise_all
from tvmtarget.partition.control.control_scalars import control_scalars_of
from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.flat_program import FlatProgram, open_frame
from tvmtarget.partition.host_device.classify import ops_for_host
from tvmtarget.partition.placement.feasibility import Feasibility, has_preference
from tvmtarget.partition.placement.indivisible_groups import atoms_of
from tvmtarget.partition.placement.memory_capacity import MemoryCapacity, capacity_of
from tvmtarget.partition.placement.minimal_conflict import conflict_text
from tvmtarget.partition.plan_cache import PlanCache, digest
from tvmtarget.partition.subgraphs.forced_cuts import forced_cuts_of, split_at_cuts
from tvmtarget.partition.subgraphs.limits import Limiter, Limits
from tvmtarget.partition.subgraphs.lower_bound import lower_bound
from tvmtarget.partition.subgraphs.portfolio import form_subgraphs
from tvmtarget.partition.subgraphs.subgraph_check import checked_subgraphs
from tvmtarget.partition.subgraphs.typed_fusion import AtomGraph, graph_from_edges
from tvmtarget.partition.values import Values, owners, values_of
from tvmtarget.support.registry import is_generator, strategy_at
from tvmtarget.support.strategy import Reject
from tvmtarget.target.topology import Site, is_below

__all__ = [
    "Assignment",
    "Chooser",
    "Level",
    "PartitionNode",
    "by_preference",
    "grouped",
    "parts_of",
    "preferred",
    "split",
]

# Above this many atoms subgraphs are formed in one way while choices are compared.
MANY = 10_000


@dataclass(frozen=True, slots=True)
class PartitionNode:
    """Operations that one site runs in one call, in the order it runs them; `parts` are the subgraphs in a system.

    Where the driver of a system runs an operation with nested bodies, that is the only call of a subgraph which has the
    system's site, and `bodies` are how the system divides them.
    `least_parts` is a number of parts that no division can go below, given the sites of the operations;
    `least_time` are picoseconds that no choice of sites can go below, None where nothing says so. `device` is the
    path of the device, for device code and for what its host does for it; with parts it is the host that drives.
    """

    site: Site
    calls: tuple[int, ...]
    parts: tuple[PartitionNode, ...] = ()
    least_parts: int = 0
    least_time: int | None = None
    bodies: tuple[PartitionNode, ...] = ()
    device: str | None = None

    @property
    def is_leaf(self) -> bool:
        """Whether this is one function of operations, not one that drives others, nor a part of its driver."""
        return not self.site.is_system and not self.parts and not self.bodies

    def walk(self) -> Iterator[PartitionNode]:
        """Yield this and all subgraphs in it, in the order in which they run."""
        yield self
        for inner in (*self.parts, *self.bodies):
            yield from inner.walk()


@dataclass(frozen=True, slots=True)
class Level:
    """What is to be decided at one system: which of its sites each atom goes to.

    `allowed` says which of `options` (column) can take an atom (row) and are preferred by no less than any other
    that can; `favoured`, which of them come before the others in order of preference: those that do not divide its
    nested bodies, and for what only steers control flow those in the memory where that is read. `is_divided` says that
    a division which was made before is kept, atom by atom. If operations with nested bodies can be run by the driver,
    the site itself is the last of the options. `values` pass between atoms, and `limits` are what subgraphs of each
    option may be; `capacity` is what memories hold of weights, None where they hold anything. `cuts` are pairs of atoms
    that follow each other and are asked to be in different subgraphs.
    """

    site: Site
    options: tuple[Site, ...]
    atoms: tuple[tuple[int, ...], ...]
    graph: AtomGraph
    allowed: npt.NDArray[np.bool_]
    favoured: npt.NDArray[np.bool_]
    is_divided: bool
    values: Values
    limits: tuple[Limits, ...]
    limiter: Limiter
    capacity: MemoryCapacity | None
    cuts: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Assignment:
    """A place in the options for every atom, picoseconds that no choice can go below, and what calls cost by option."""

    chosen: list[int]
    least_time: int | None = None
    launches: Sequence[int] = ()


# Rounds in which sites are chosen anew because a strategy refuses subgraphs.
MAX_VETOES = 16

Chooser: TypeAlias = Callable[[Level], Assignment]


def by_preference(level: Level) -> Assignment:
    """Choose for every atom the first site that may take it, as children stand in order of preference."""
    labels = preferred(level)
    if level.capacity is not None and not level.capacity.is_kept(labels):
        labels = level.capacity.repaired(labels, level.allowed, np.zeros(level.allowed.shape, dtype=np.int64))
    return Assignment(labels.tolist())


def preferred(level: Level) -> Ints:
    """Return for every atom the first option that may take it, whatever memories hold."""
    return _first(level.allowed, level.favoured)


def _first(allowed: npt.NDArray[np.bool_], favoured: npt.NDArray[np.bool_]) -> Ints:
    """Return the first column that is favoured among those allowed, else the first that is allowed, for each row."""
    best = allowed & favoured
    first: Ints = np.where(best.any(axis=1), best.argmax(axis=1), allowed.argmax(axis=1))
    return first


def split(
    program: FlatProgram, feasibility: Feasibility, site: Site, calls: tuple[int, ...], choose: Chooser = by_preference
) -> PartitionNode:
    """Split operations over the sites below one site, recursively down to leaves."""
    if not site.is_system:
        return _sides(program, feasibility, site, calls)
    level = _level(program, feasibility, site, calls)
    choice, groups = _decided(program, feasibility, level, choose)
    parts = tuple(
        _subgraph(program, feasibility, level.options[choice.chosen[group[0]]], _calls(level, group), level, choose)
        for group in groups
    )
    in_order = tuple(index for part in parts for index in part.calls)
    # What is read by a nested body that a driver runs is copied only as that needs, which no level above can see.
    least_time = None if level.options and level.options[-1] is site else choice.least_time
    return PartitionNode(
        site, in_order, parts, lower_bound(level.graph.labeled(choice.chosen), len(groups)), least_time
    )


def _level(program: FlatProgram, feasibility: Feasibility, site: Site, calls: tuple[int, ...]) -> Level:
    atoms = atoms_of(program, feasibility.groups.of, calls, site.path)
    is_divided = _is_divided(program, atoms, site.path)
    if not is_divided:
        atoms = program.in_canonical_order(atoms)
    graph = _graph(program, atoms)
    _refuse_circles(program, atoms, graph)
    is_body = bool(calls) and calls[0] not in program.scopes[0].calls
    options = feasibility.options_of_bodies(site) if is_body else program.topology.options(site.path)
    if any(atom[0] in program.bodies and feasibility.drives(atom, site) for atom in atoms):
        options = (*options, site)
    allowed = _allowed(program, feasibility, atoms, options, site)
    favoured = np.ones_like(allowed)
    if program.bodies:
        for number, atom in enumerate(atoms):
            if atom[0] in program.bodies:
                favoured[number] = [
                    option is not site and feasibility.supports_whole(atom, option) for option in options
                ]
        chosen = zip(atoms, _first(allowed, favoured).tolist(), strict=True)
        steering = control_scalars_of(program, calls, {atom[0] for atom, choice in chosen if options[choice] is site})
        at_home = [option is not site and option.domain == site.domain for option in options]
        favoured[[number for number, atom in enumerate(atoms) if steering.issuperset(atom)]] = at_home
    values = values_of(program.dataflow(atoms[0] if atoms else ()), owners(len(program.body), atoms), len(atoms))
    return Level(
        site=site,
        options=options,
        atoms=tuple(atoms),
        graph=graph,
        allowed=allowed,
        favoured=favoured,
        is_divided=is_divided,
        values=values,
        limits=tuple(_limits(option, site) for option in options),
        limiter=Limiter(graph.successors, atoms, values),
        capacity=capacity_of(program, site.domain, options, atoms, {}),
        cuts=forced_cuts_of(program, atoms),
    )


def _subgraph(
    program: FlatProgram, feasibility: Feasibility, site: Site, calls: tuple[int, ...], level: Level, choose: Chooser
) -> PartitionNode:
    """Split what one option of a level was given; if that is the level's own site, its driver runs the operation."""
    if site is not level.site:
        return split(program, feasibility, site, calls, choose)
    bodies = tuple(split(program, feasibility, site, tuple(scope.calls), choose) for scope in program.bodies[calls[0]])
    return PartitionNode(site, calls, bodies=bodies)


def _decided(
    program: FlatProgram, feasibility: Feasibility, level: Level, choose: Chooser
) -> tuple[Assignment, list[list[int]]]:
    """Choose sites and form subgraphs; move what a code generator rejects even alone, and start again."""
    for _ in range(MAX_VETOES):
        choice = choose(level)
        chosen = choice.chosen
        groups, refused = checked_subgraphs(
            _recalled(feasibility.cache, level, choice),
            partial(_refusal, program, feasibility, level, chosen),
            level.limiter,
        )
        if not refused:
            return choice, groups
        allowed = level.allowed.copy()
        for atom in refused:
            allowed[atom, chosen[atom]] = False
        problems = [
            f"op {program.body[level.atoms[atom][0]].source!r} is refused by @{level.options[chosen[atom]].path}, "
            f"where it would be alone ({refusal}), and no other site can take it"
            for atom, refusal in refused.items()
            if not allowed[atom].any()
        ]
        raise_all(InfeasibleError, problems)
        level = replace(level, allowed=allowed)
    raise InfeasibleError(f"strategies still refuse subgraphs in {MAX_VETOES} rounds; take less in `check_op`")


def _refusal(
    program: FlatProgram, feasibility: Feasibility, level: Level, chosen: Sequence[int], group: Sequence[int]
) -> Reject | None:
    site = level.options[chosen[group[0]]]
    strategy = feasibility.strategy(site)
    if strategy is None or not strategy.is_vetoing:
        return None
    return strategy.check_together([program.op(index) for index in _calls(level, group)])


def _sides(
    program: FlatProgram, feasibility: Feasibility, site: Site, calls: tuple[int, ...], *, is_body: bool = False
) -> PartitionNode:
    """Split a mixed function into a host function that drives it, device functions, and what the host computes."""
    on_host = ops_for_host(program, site, calls, feasibility.strategy(site), is_asked=feasibility.splits)
    if on_host is None:
        return PartitionNode(site, calls)
    driven = frozenset(
        index for index in calls if index not in on_host and _is_driven(program, feasibility, index, site)
    )
    if not on_host and not driven and site.path and not feasibility.splits and not is_body:
        return PartitionNode(site, calls, device=site.path)  # whoever calls it drives it
    options = (site, program.topology[site.host], driver := replace(site))
    chosen = [2 if index in driven else int(index in on_host) for index in calls]
    limits, atoms = [_limits(option, driver) for option in options], [(index,) for index in calls]
    labeled = _graph(program, atoms).labeled(chosen)
    limiter = Limiter(
        labeled.graph.successors,
        atoms,
        values_of(program.dataflow(calls), owners(len(program.body), atoms), len(atoms)),
    )
    groups = limiter.split_all(labeled.fused(), chosen, limits)
    parts = tuple(
        _side(
            program, feasibility, options[chosen[group[0]]], tuple(sorted(calls[atom] for atom in group)), site, driver
        )
        for group in groups
    )
    in_order = tuple(index for part in parts for index in part.calls)
    return PartitionNode(site, in_order, parts, lower_bound(labeled, len(groups)), device=site.path)


def _side(
    program: FlatProgram, feasibility: Feasibility, side: Site, calls: tuple[int, ...], site: Site, driver: Site
) -> PartitionNode:
    """Return what one side runs; an operation of the driver has nested bodies, which are split as well."""
    if side is not driver:
        return PartitionNode(side, calls, device=site.path)
    scopes = program.bodies[calls[0]]
    bodies = tuple(_sides(program, feasibility, site, tuple(scope.calls), is_body=True) for scope in scopes)
    return PartitionNode(site, calls, bodies=bodies, device=site.path)


def _is_driven(program: FlatProgram, feasibility: Feasibility, index: int, site: Site) -> bool:
    """Whether the driver of a device runs an operation with nested bodies, as the device does not or should not."""
    if index not in program.bodies or feasibility.why_not_driven(index, site) is not None:
        return False
    strategy = feasibility.strategy(site)
    return feasibility.splits or (strategy is not None and strategy.check(program.op(index)) is not None)


def grouped(level: Level, chosen: Sequence[int], launches: Sequence[int]) -> list[list[int]]:
    """Group atoms into subgraphs by waves alone, in an order in which they can run; `launches` are by option.

    With two options it is best to run what costs nothing to launch as soon as it can; with more either way may be, of
    which large levels try one.
    """
    if level.is_divided:
        return [[atom] for atom in range(len(level.atoms))]
    labeled = level.graph.labeled(chosen)
    free = frozenset(option for option, launch in enumerate(launches) if not launch)
    first = (free, frozenset[int]()) if free and len(launches) > 2 else (free,)
    ways = (
        level.limiter.split_all(labeled.fused(early), chosen, level.limits)
        for early in (first if len(chosen) <= MANY else first[-1:])
    )
    return min((_cut(level, way, chosen) for way in ways), key=lambda way: sum(launches[chosen[one[0]]] for one in way))


def parts_of(level: Level) -> Iterator[object]:
    """Yield all that choosing sites and forming subgraphs goes by, but for costs and the capacity in memories."""
    yield [len(atom) for atom in level.atoms]
    yield from (getattr(level.values, field.name) for field in fields(level.values))
    yield from (level.graph.starts, level.graph.ends)
    yield from (getattr(level, field.name) for field in fields(level) if field.name not in _NO_NUMBERS)


# What of a level only says whose numbers these are, or follows from the others.
_NO_NUMBERS = frozenset({"site", "options", "atoms", "values", "graph", "limiter", "capacity"})


def _recalled(cache: PlanCache, level: Level, choice: Assignment) -> list[list[int]]:
    """Return the best subgraphs, if an earlier plan had the same atoms on the same options, as it found them."""
    launches = list(choice.launches) or _uncosted(level)
    key = digest(*parts_of(level), choice.chosen, launches)
    return [
        [*subgraph]
        for subgraph in cache.find("divisions into subgraphs", key, lambda: _formed(level, choice, launches))
    ]


def _formed(level: Level, choice: Assignment, launches: Sequence[int]) -> list[list[int]]:
    """Group atoms into the best subgraphs."""
    if level.is_divided:
        return [[atom] for atom in range(len(level.atoms))]
    found = form_subgraphs(level.graph.labeled(choice.chosen), level.limits, launches, level.limiter, level.values)
    return _cut(level, found, choice.chosen)


def _uncosted(level: Level) -> list[int]:
    """Return what calls count where no costs are known: fewest are best, and of as many those of the host."""
    most = len(level.atoms)
    return [most + (not is_below(level.site.host, option.path)) for option in level.options]


def _cut(level: Level, subgraphs: list[list[int]], chosen: Sequence[int]) -> list[list[int]]:
    """Divide subgraphs where that is asked; the parts are as each site takes them."""
    if not level.cuts:
        return subgraphs
    parts = (part for subgraph in subgraphs for part in split_at_cuts(subgraph, level.graph.successors, level.cuts))
    return [one for part in parts for one in level.limiter.split(part, level.limits[chosen[part[0]]])]


def _limits(site: Site, driver: Site) -> Limits:
    """Return what subgraphs of an option may be; what the driver runs itself stands alone."""
    if site is driver:
        return Limits("single")
    strategy = strategy_at(site.target) if is_generator(site.target) else None
    if strategy is None:
        return Limits()
    return Limits(strategy.subgraphs, strategy.max_ops, strategy.max_inputs, strategy.max_outputs)


def _calls(level: Level, group: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(index for atom in group for index in level.atoms[atom]))


def _is_divided(program: FlatProgram, atoms: Sequence[tuple[int, ...]], path: str) -> bool:
    """Whether every operation is in a call of a constrained function: a division that was made before is kept."""
    return all(_was_divided(program, atom[0], path) for atom in atoms)


def _was_divided(program: FlatProgram, index: int, path: str) -> bool:
    if open_frame(program.frames[index], path) is not None:
        return True
    inner = (inner for scope in program.bodies.get(index, ()) for inner in scope.calls)
    return index in program.driven and all(_was_divided(program, one, path) for one in inner)


def _graph(program: FlatProgram, atoms: Sequence[tuple[int, ...]]) -> AtomGraph:
    """Return which atoms come after each: what reads its results, and the next one with an effect."""
    flow, count = program.dataflow(atoms[0] if atoms else ()), len(atoms)
    owner = owners(len(program.body), atoms)
    producer = np.repeat(flow.producer, np.diff(flow.start))
    effects = program.effect_before
    first, then = (np.fromiter(ends, dtype=np.int64, count=len(effects)) for ends in (effects.values(), effects.keys()))
    before = np.concatenate([np.where(producer >= 0, owner[producer], -1), owner[first]])
    after = np.concatenate([owner[flow.readers], owner[then]])
    which = (before >= 0) & (after >= 0)
    return graph_from_edges(count, before[which], after[which])


def _refuse_circles(program: FlatProgram, atoms: Sequence[tuple[int, ...]], graph: AtomGraph) -> None:
    if len(graph.topological_order) == len(atoms):
        return
    stuck = set(range(len(atoms))).difference(graph.topological_order)
    wide = next((atom for atom in sorted(stuck) if len(atoms[atom]) > 1), None)
    if wide is not None:
        first, last = (program.body[index].source for index in (atoms[wide][0], atoms[wide][-1]))
        raise InfeasibleError(
            f"ops {first!r} and {last!r} must stay together, because a value between them is a tuple or has no known "
            "type, but other ops lie between; take the tuple apart, or give the value a type"
        )


def _allowed(
    program: FlatProgram,
    feasibility: Feasibility,
    atoms: Sequence[tuple[int, ...]],
    options: tuple[Site, ...],
    site: Site,
) -> npt.NDArray[np.bool_]:
    """Return the sites that can take each atom, less those that it prefers less than another of them."""
    firsts = [atom[0] for atom in atoms]
    columns = [
        np.zeros(len(atoms), dtype=np.bool_)
        if option is site
        else feasibility.takes[firsts][:, feasibility.columns(option)].any(axis=1)
        for option in options
    ]
    allowed = np.stack(columns, axis=1) if atoms else np.zeros((0, len(options)), dtype=np.bool_)
    for number, atom in enumerate(atoms):
        if len(atom) == 1 and not program.requirements[atom[0]] and atom[0] not in program.bodies:
            continue
        if len(atom) > 1 or atom[0] in program.bodies:
            allowed[number] = [_can(feasibility, atom, option, site) for option in options]
            if not allowed[number].any():
                raise InfeasibleError(_no_child(program, atom, site))
        if atom[0] in program.driven and options[-1] is site and allowed[number, -1]:
            allowed[number, :-1] = False
        elif any(has_preference(asked) for index in program.with_nested(atom) for asked in program.requirements[index]):
            able = np.flatnonzero(allowed[number])
            ranks = np.array([feasibility.rank(atom, options[option]) for option in able.tolist()])
            allowed[number, able[ranks < ranks.max()]] = False
    return allowed


def _no_child(program: FlatProgram, atom: tuple[int, ...], site: Site) -> str:
    names = ", ".join(repr(program.body[index].source) for index in atom[:4])
    guilty = conflict_text(
        program, tuple(program.with_nested(atom)), lambda asking: Feasibility(asking).fits(atom, site)
    )
    return f"ops {names} must stay together, and no child of @{site.path or '.'} can take them all{guilty}"


def _can(feasibility: Feasibility, atom: tuple[int, ...], option: Site, site: Site) -> bool:
    return feasibility.drives(atom, site) if option is site else feasibility.fits(atom, option)
