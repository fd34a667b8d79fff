"""The decision at one system: which child each atom may go to, and everything that the choice depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tvmtarget.errors import InfeasibleError
from tvmtarget.partition.control.control_scalars import control_scalars_of
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.dataflow import Dataflow, Ints
from tvmtarget.partition.flat_program import FlatProgram, atomic_call
from tvmtarget.partition.placement.feasibility import Feasibility, has_preference
from tvmtarget.partition.placement.indivisible_groups import atoms_of
from tvmtarget.partition.placement.memory_capacity import MemoryCapacity, capacity_of
from tvmtarget.partition.placement.minimal_conflict import conflict_text
from tvmtarget.partition.placement.quantized_units import followed_ops, has_quantized_units, joined_units
from tvmtarget.partition.subgraphs.forced_cuts import forced_cuts_of, graph_with_cuts
from tvmtarget.partition.subgraphs.limits import Limiter, Limits, limits_of
from tvmtarget.partition.subgraphs.typed_fusion import AtomGraph, graph_from_edges
from tvmtarget.partition.values import Values, owner_array, values_of
from tvmtarget.target.topology import Site, Topology

__all__ = [
    "Assignment",
    "Chooser",
    "Level",
    "atom_graph",
    "by_preference",
    "decision_inputs",
    "first_option",
    "level_of",
    "only_option",
    "preferred",
    "with_capacities",
]


@dataclass(frozen=True, slots=True)
class Level:
    """What is to be decided at one system: which of its sites each atom goes to.

    `allowed[atom, option]` is true if the option supports the atom and no other such option has a higher preference
    rank. `favoured[atom, option]` marks the options to try before the others: those that run nested bodies whole, and
    for scalars that only steer control flow, those in the driver's memory. `is_divided` says that the subgraphs of an
    earlier partition are kept, one for each atom. Options in `drivers` are systems whose driver can run operations with
    nested bodies: the site itself, and where options are leaves further down, the systems around these. `values` pass
    between atoms; `limits` restrict the subgraphs of each option; `capacity` is the memory capacity for weights, None
    where memories are unlimited. `cuts` are pairs of atoms that follow each other and are required to be in different
    subgraphs, and `cut_graph` is the graph with one more vertex between the two of each pair; `control_scalars` are
    operations whose results the driver reads to run control flow. `followed` says which operation each part of a
    quantized unit follows (`quantized_units.py`).
    """

    site: Site
    options: tuple[Site, ...]
    atoms: tuple[tuple[int, ...], ...]
    graph: AtomGraph
    allowed: npt.NDArray[np.bool_]
    favoured: npt.NDArray[np.bool_]
    is_divided: bool
    drivers: frozenset[int]
    values: Values
    limits: tuple[Limits, ...]
    limiter: Limiter
    capacity: MemoryCapacity | None
    cut_graph: AtomGraph
    cuts: frozenset[tuple[int, int]] = frozenset()
    control_scalars: frozenset[int] = frozenset()
    followed: Mapping[int, int] = field(default_factory=dict)

    @property
    def has_driver_option(self) -> bool:
        """Whether a driver may run operations with nested bodies."""
        return bool(self.drivers)

    @property
    def decides_leaves(self) -> bool:
        """Whether no option is a system whose children are chosen later."""
        return not any(option.is_system for number, option in enumerate(self.options) if number not in self.drivers)

    def calls(self, group: Sequence[int]) -> tuple[int, ...]:
        """Return the operations of some atoms.

        Args:
            group: atoms, by number.

        Returns:
            Operations by number, in ascending order.
        """
        atoms = self.atoms
        return tuple(sorted([index for atom in group for index in atoms[atom]]))


@dataclass(frozen=True, slots=True)
class Assignment:
    """The option of every atom.

    Attributes:
        chosen: number of the option, by atom.
        least_time: a lower bound of the time of any assignment, in picoseconds; None where nothing is proven.
        launches: cost of a call by option, in picoseconds; empty without costs.
        capacity: the memory limits that were kept, with those that the costs state; None where there are none.
        subgraphs: subgraphs of leaves, as lists of atoms in execution order, that no subgraph of the level divides;
            empty where subgraphs are formed anew.
        kept: options of which each of them is a subgraph of the level; of the others, one may be several of them.
    """

    chosen: list[int]
    least_time: int | None = None
    launches: Sequence[int] = ()
    capacity: MemoryCapacity | None = None
    subgraphs: Sequence[Sequence[int]] = ()
    kept: frozenset[int] = frozenset()


Chooser: TypeAlias = Callable[[Level], Assignment]


def by_preference(level: Level) -> Assignment:
    """Assign every atom to the first site that supports it, in order of preference.

    Args:
        level: the atoms and options of one system.

    Returns:
        The assignment, repaired where weights exceed a memory.
    """
    labels = preferred(level)
    if level.capacity is not None and not level.capacity.fits(labels):
        # All costs are zero, because by preference alone no move is more expensive than another.
        labels = level.capacity.repaired(labels, level.allowed, np.zeros(level.allowed.shape, dtype=np.int64))
    return Assignment(labels.tolist(), capacity=level.capacity)


def preferred(level: Level) -> Ints:
    """Return the first option that supports each atom, without regard to memory capacity.

    Args:
        level: the atoms and options of one system.

    Returns:
        An option for each atom.
    """
    return first_option(level.allowed, level.favoured)


def first_option(allowed: npt.NDArray[np.bool_], favoured: npt.NDArray[np.bool_]) -> Ints:
    """Return the first favoured option of each atom, else the first that is allowed.

    Args:
        allowed: whether an atom (row) may have an option (column).
        favoured: the options to try before others.

    Returns:
        An option for each atom.
    """
    # `argmax` returns the first True of a row; options are in order of preference.
    best = allowed & favoured
    first: Ints = np.where(best.any(axis=1), best.argmax(axis=1), allowed.argmax(axis=1))
    return first


def level_of(
    program: FlatProgram,
    feasibility: Feasibility,
    site: Site,
    calls: tuple[int, ...],
    options: tuple[Site, ...] | None = None,
) -> Level:
    """Return what is to be decided at a system.

    Args:
        program: the flat program.
        feasibility: what fits where.
        site: the system.
        calls: the operations that it got, by number.
        options: the sites to choose from; None for the children of the system.

    Returns:
        The atoms of these operations, and which child, or other option, may take each.

    Raises:
        InfeasibleError: if operations that stay together fit no child, or others lie between them.
    """
    atoms = atoms_of(program, feasibility.groups.of, calls, site.path)
    is_divided = _is_divided(program, atoms, site.path)
    # All operations of a level are of one body, so the first one decides.
    is_body = bool(calls) and calls[0] not in program.scopes[0].calls
    if options is None:
        options = feasibility.options_of_bodies(site) if is_body else program.topology.options(site.path)
    driving = [
        system
        for system in (*_systems_around(program.topology, site, options), site)
        if any(atom[0] in program.bodies and feasibility.drives(atom, system) for atom in atoms)
    ]
    drivers = frozenset(range(len(options), len(options) + len(driving)))
    options = (*options, *driving)
    followed = {} if is_divided or len(options) == 1 else followed_ops(program, calls)
    if followed:
        atoms = _with_units(program, feasibility, atoms, followed, site, options, drivers)
    # An earlier division is kept as it is listed, so that decomposing a decomposed module changes nothing.
    if not is_divided:
        atoms = program.in_canonical_order(atoms)
    flow = program.dataflow(atoms[0] if atoms else ())
    wired = program.wiring.derived(
        f"atoms of @{site.path}", (atoms, program.boundaries, flow), lambda: _wired_atoms(program, atoms, flow)
    )
    _check_cycles(program, atoms, wired.graph)
    allowed = _allowed(program, feasibility, atoms, site, options, drivers)
    favoured = np.ones_like(allowed)
    control_scalars: frozenset[int] = frozenset()
    if program.bodies:
        for number, atom in enumerate(atoms):
            if atom[0] in program.bodies:
                # A division adds calls, and copies between the parts, to every run of the body.
                favoured[number] = [
                    option not in drivers and feasibility.supports_whole(atom, site)
                    for option, site in enumerate(options)
                ]
        chosen = zip(atoms, first_option(allowed, favoured).tolist(), strict=True)
        driven = {atom[0] for atom, choice in chosen if choice in drivers}
        control_scalars = frozenset(control_scalars_of(program, calls, driven))
        # A driver reads the scalars that steer its control flow: keep them in its memory where nothing else decides.
        at_home = [option.path != site.path and option.domain == site.domain for option in options]
        favoured[[number for number, atom in enumerate(atoms) if control_scalars.issuperset(atom)]] = at_home
    return Level(
        site=site,
        options=options,
        atoms=tuple(atoms),
        graph=wired.graph,
        allowed=allowed,
        favoured=favoured,
        is_divided=is_divided,
        drivers=drivers,
        values=wired.values,
        limits=tuple(limits_of(option, is_driver=number in drivers) for number, option in enumerate(options)),
        limiter=wired.limiter,
        capacity=capacity_of(program, options, atoms, {}),
        cut_graph=wired.cut_graph,
        cuts=wired.cuts,
        control_scalars=control_scalars,
        followed=followed,
    )


def with_capacities(level: Level, estimates: Estimates) -> Level:
    """Return a level with the memory capacities that the costs state.

    Args:
        level: the atoms and options of one system.
        estimates: the costs.

    Returns:
        The level; with the capacities of the target where the costs state none.
    """
    stated = estimates.capacities()
    if not stated:
        return level
    capacity = capacity_of(estimates.program, level.options, level.atoms, stated)
    return replace(level, capacity=capacity)


def _systems_around(topology: Topology, site: Site, options: Sequence[Site]) -> list[Site]:
    """Return the systems below a site that are around some of its options, each before those around it."""
    found: dict[str, None] = {}
    for option in options:
        path = option.path
        while (path := path.rpartition("/")[0]) not in ("", site.path):
            found[path] = None
    return [topology[path] for path in sorted(found, key=lambda path: (-path.count("/"), path))]


@dataclass(frozen=True, slots=True)
class _WiredAtoms:
    """The fields of a level that follow from its atoms and the wiring of the program, as in `Level`."""

    graph: AtomGraph
    values: Values
    limiter: Limiter
    cut_graph: AtomGraph
    cuts: frozenset[tuple[int, int]]


def _wired_atoms(program: FlatProgram, atoms: Sequence[tuple[int, ...]], flow: Dataflow) -> _WiredAtoms:
    graph, cuts = atom_graph(program, atoms), forced_cuts_of(program, atoms)
    values = values_of(flow, owner_array(len(program.body), atoms), len(atoms))
    return _WiredAtoms(graph, values, Limiter(graph.successors, atoms, values), graph_with_cuts(graph, cuts), cuts)


def only_option(program: FlatProgram, feasibility: Feasibility, site: Site, calls: tuple[int, ...]) -> Site | None:
    """Return the child of a system that must get all of some operations, as one subgraph.

    Deep trees have many such levels, where nothing is to be decided.

    Args:
        program: the flat program.
        feasibility: what fits where.
        site: the system.
        calls: the operations that it got, by number.

    Returns:
        The child; None if there is none, or if anything but what sites support may have a say.
    """
    is_plain = not (program.bodies or program.atomic or feasibility.groups.all or program.has_binding_values)
    if not calls or not is_plain or any(program.boundaries) or has_quantized_units(program):
        return None
    if any(program.frames[index] for index in calls):
        return None
    rows = feasibility.supported[list(calls)]
    able = [
        (option, found.all())
        for option in program.topology.options(site.path)
        if (found := rows[:, feasibility.columns(option)].any(axis=1)).any()
    ]
    if len(able) != 1 or not able[0][1]:
        return None
    option, strategy = able[0][0], feasibility.strategy(able[0][0])
    # A code generator may limit subgraphs or reject them; what is one operation has no limit to keep.
    is_free = strategy is None or (len(calls) == 1 and not strategy.checks_subgraphs)
    return option if is_free and (option.is_system or len(calls) == 1) else None


def _with_units(
    program: FlatProgram,
    feasibility: Feasibility,
    atoms: list[tuple[int, ...]],
    followed: Mapping[int, int],
    site: Site,
    options: tuple[Site, ...],
    drivers: frozenset[int],
) -> list[tuple[int, ...]]:
    """Merge quantized units where all of a unit can go to the first option of the operation that it follows.

    Elsewhere the operation keeps the site that it prefers, and floats pass.
    """
    parts = {*followed, *followed.values()}
    concerned = [atom for atom in atoms if not parts.isdisjoint(atom)]
    rows = _allowed(program, feasibility, concerned, site, options, drivers)
    row_of = {index: row for atom, row in zip(concerned, rows, strict=True) for index in atom}

    def may_join(unit: tuple[int, ...], center: int) -> bool:
        first = int(row_of[center].argmax())
        can = _can(feasibility, unit, options[first], is_driver=first in drivers)
        return can and all(row_of[index][first] for index in unit)

    return joined_units(atoms, followed, may_join)


# Fields of a level that only name its sites and operations, or that the others determine.
_DERIVED = frozenset(
    {"site", "options", "atoms", "values", "graph", "limiter", "capacity", "cut_graph", "control_scalars", "followed"}
)


def decision_inputs(level: Level) -> Iterator[object]:
    """Yield what assignment and subgraphs depend on, apart from costs and memory capacities.

    Args:
        level: the atoms and options of one system.

    Yields:
        Parts of a cache key, see `plan_cache.digest`.
    """
    yield [len(atom) for atom in level.atoms]
    yield from (getattr(level.values, field.name) for field in fields(level.values) if field.name != "numbers")
    yield from (level.graph.starts, level.graph.ends)
    # Cuts are between functions of leaves (`forming.py`).
    yield [option.is_system for option in level.options if level.cuts]
    yield from (getattr(level, field.name) for field in fields(level) if field.name not in _DERIVED)


def _allowed(
    program: FlatProgram,
    feasibility: Feasibility,
    atoms: Sequence[tuple[int, ...]],
    site: Site,
    options: tuple[Site, ...],
    drivers: frozenset[int],
) -> npt.NDArray[np.bool_]:
    """Return which options support each atom, without those of a lower preference rank than another one."""
    supported = feasibility.supported[np.array([atom[0] for atom in atoms], dtype=np.int64)]
    # Vectorised for atoms of one operation, which are most of them; the loop below corrects the others.
    columns = [
        np.zeros(len(atoms), dtype=np.bool_)
        if number in drivers
        else supported[:, feasibility.columns(option)].any(axis=1)
        for number, option in enumerate(options)
    ]
    allowed = np.stack(columns, axis=1) if atoms else np.zeros((0, len(options)), dtype=np.bool_)
    is_driver = np.isin(np.arange(len(options)), list(drivers))
    requirements, bodies = program.requirements, program.bodies
    others = [
        (number, atom)
        for number, atom in enumerate(atoms)
        if len(atom) > 1 or requirements[atom[0]] or atom[0] in bodies
    ]
    for number, atom in others:
        if len(atom) > 1 or atom[0] in program.bodies:
            allowed[number] = [
                _can(feasibility, atom, option, is_driver=column in drivers) for column, option in enumerate(options)
            ]
            if not allowed[number].any():
                raise InfeasibleError(_no_child(feasibility, atom, site))
        # What a driver ran in an earlier decomposition stays with the driver.
        if atom[0] in program.driven and (allowed[number] & is_driver).any():
            allowed[number] &= is_driver
        elif any(has_preference(one) for index in program.with_nested(atom) for one in requirements[index]):
            able = np.flatnonzero(allowed[number])
            ranks = np.array([feasibility.preference_rank(atom, options[option]) for option in able.tolist()])
            # Preferences come before costs: sites of a lower rank are removed, not only made more expensive.
            allowed[number, able[ranks < ranks.max()]] = False
    return allowed


def _no_child(feasibility: Feasibility, atom: tuple[int, ...], site: Site) -> str:
    program = feasibility.program
    names = ", ".join(repr(program.body[index].source) for index in atom[:4])
    calls = tuple(program.with_nested(atom))
    advice = conflict_text(program, calls, lambda relaxed: feasibility.replace(program=relaxed).fits(atom, site))
    return f"ops {names} must stay together, and no child of @{site.path or '.'} can take them all{advice}"


def _can(feasibility: Feasibility, atom: tuple[int, ...], option: Site, *, is_driver: bool) -> bool:
    return feasibility.drives(atom, option) if is_driver else feasibility.fits(atom, option)


def _is_divided(program: FlatProgram, atoms: Sequence[tuple[int, ...]], path: str) -> bool:
    """Check whether an earlier decomposition divided the operations: each is in a call of a constrained function."""
    return all(_was_divided(program, atom[0], path) for atom in atoms)


def _was_divided(program: FlatProgram, index: int, path: str) -> bool:
    if atomic_call(program.frames[index], path) is not None:
        return True
    inner = (inner for scope in program.bodies.get(index, ()) for inner in scope.calls)
    return index in program.driven and all(_was_divided(program, one, path) for one in inner)


def atom_graph(program: FlatProgram, atoms: Sequence[tuple[int, ...]]) -> AtomGraph:
    """Return the graph of dependences between atoms.

    Args:
        program: the program.
        atoms: disjoint groups of operations of one body.

    Returns:
        Edges from each atom to those that read its results, and to the next one with an effect.
    """
    flow, count = program.dataflow(atoms[0] if atoms else ()), len(atoms)
    owner = owner_array(len(program.body), atoms)
    # `start` indexes a compressed row format (CSR): the readers of value v are at start[v] up to start[v + 1].
    producer = np.repeat(flow.producer, np.diff(flow.start))
    effects = program.effect_before
    first, then = (np.fromiter(ends, dtype=np.int64, count=len(effects)) for ends in (effects.values(), effects.keys()))
    # A producer of -1 is no operation; as an index it would silently select the last one, hence the `where`.
    before = np.concatenate([np.where(producer >= 0, owner[producer], -1), owner[first]])
    after = np.concatenate([owner[flow.readers], owner[then]])
    is_inside = (before >= 0) & (after >= 0)
    return graph_from_edges(count, before[is_inside], after[is_inside])


def _check_cycles(program: FlatProgram, atoms: Sequence[tuple[int, ...]], graph: AtomGraph) -> None:
    # Operations alone form no cycle, but several that are merged into one atom can.
    if len(graph.topological_order) == len(atoms):
        return
    cyclic = set(range(len(atoms))).difference(graph.topological_order)
    wide = next((atom for atom in sorted(cyclic) if len(atoms[atom]) > 1), None)
    if wide is not None:
        first, last = (program.body[index].source for index in (atoms[wide][0], atoms[wide][-1]))
        raise InfeasibleError(
            f"ops {first!r} and {last!r} must stay together, because a value between them is a tuple or has no known "
            "type, but other ops lie between; take the tuple apart, or give the value a type"
        )
