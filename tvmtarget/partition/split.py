"""The recursive rule: at a system, give every atom a site, form regions, and split each region further down."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tvmtarget.errors import InfeasibleError
from tvmtarget.partition.atoms import atoms_of
from tvmtarget.partition.conflict import blame
from tvmtarget.partition.feasibility import Feasibility
from tvmtarget.partition.program import Program, open_frame
from tvmtarget.partition.strategies.strategy import strategy_for
from tvmtarget.partition.waves import lower_bound, topological_order, waves
from tvmtarget.target.layout import Site

__all__ = ["Choice", "Chooser", "Level", "Region", "by_preference", "grouped", "split"]


@dataclass(frozen=True, slots=True)
class Region:
    """Operations that one site runs in one call, in the order it runs them; `parts` are the regions in a system.

    Where the driver of a system runs an operation with nested bodies, that is the only call of a region which has the
    system's site, and `bodies` are how the system divides them.
    `least_parts` is a number of parts that no division can go below, given the sites of the operations;
    `least_time` are picoseconds that no choice of sites can go below, None where nothing says so.
    """

    site: Site
    calls: tuple[int, ...]
    parts: tuple[Region, ...] = ()
    least_parts: int = 0
    least_time: int | None = None
    bodies: tuple[Region, ...] = ()

    def walk(self) -> Iterator[Region]:
        """Yield this and all regions in it, in the order in which they run."""
        yield self
        for inner in (*self.parts, *self.bodies):
            yield from inner.walk()


@dataclass(frozen=True, slots=True)
class Level:
    """What is to be decided at one system: which of its sites each atom goes to.

    `allowed` are the sites, by their place in `options`, that can take an atom and are preferred by no less than
    any other that can; those that take it whole come first. `is_divided` says that a division which was made before
    is kept, atom by atom. If operations with nested bodies can be run by the driver, the site itself is the last of
    the options.
    """

    site: Site
    options: tuple[Site, ...]
    atoms: tuple[tuple[int, ...], ...]
    successors: list[list[int]]
    allowed: tuple[tuple[int, ...], ...]
    is_divided: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """A place in the options for every atom, and picoseconds that no choice can go below."""

    chosen: list[int]
    least_time: int | None = None


Chooser: TypeAlias = Callable[[Level], Choice]


def by_preference(level: Level) -> Choice:
    """Choose for every atom the first site that is allowed, as children stand in order of preference."""
    return Choice([allowed[0] for allowed in level.allowed])


def split(
    program: Program, feasibility: Feasibility, site: Site, calls: tuple[int, ...], choose: Chooser = by_preference
) -> Region:
    """Split operations over the sites below one site, recursively down to leaves."""
    if not site.is_system:
        return Region(site, calls)
    level = _level(program, feasibility, site, calls)
    choice = choose(level)
    parts = tuple(
        _region(program, feasibility, level.options[choice.chosen[group[0]]], _calls(level, group), level, choose)
        for group in grouped(level, choice.chosen)
    )
    in_order = tuple(index for part in parts for index in part.calls)
    return Region(site, in_order, parts, lower_bound(level.successors, choice.chosen), choice.least_time)


def _level(program: Program, feasibility: Feasibility, site: Site, calls: tuple[int, ...]) -> Level:
    atoms = atoms_of(program, calls, site.path)
    successors = _successors(program, atoms)
    _refuse_circles(program, atoms, successors)
    options = program.layout.options(site.path)
    driven = [feasibility.drives(atom, site) for atom in atoms]
    options = (*options, site) if any(driven) else options
    allowed = tuple(_allowed(program, feasibility, atom, options, site) for atom in atoms)
    return Level(site, options, tuple(atoms), successors, allowed, _is_divided(program, atoms, site.path))


def _region(
    program: Program, feasibility: Feasibility, site: Site, calls: tuple[int, ...], level: Level, choose: Chooser
) -> Region:
    """Split what one option of a level was given; if that is the level's own site, its driver runs the operation."""
    if site is not level.site:
        return split(program, feasibility, site, calls, choose)
    bodies = tuple(split(program, feasibility, site, tuple(scope.calls), choose) for scope in program.bodies[calls[0]])
    return Region(site, calls, bodies=bodies)


def grouped(level: Level, chosen: Sequence[int]) -> list[list[int]]:
    """Group atoms into regions, in an order in which they can run."""
    if level.is_divided:
        return [[atom] for atom in range(len(level.atoms))]
    return _policed(waves(level.successors, chosen), [level.options[choice] for choice in chosen], level.site)


def _calls(level: Level, group: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(index for atom in group for index in level.atoms[atom]))


def _is_divided(program: Program, atoms: Sequence[tuple[int, ...]], path: str) -> bool:
    """Whether every operation is in a call of a constrained function: a division that was made before is kept."""
    return all(_was_divided(program, atom[0], path) for atom in atoms)


def _was_divided(program: Program, index: int, path: str) -> bool:
    if open_frame(program.frames[index], path) is not None:
        return True
    inner = (inner for scope in program.bodies.get(index, ()) for inner in scope.calls)
    return index in program.driven and all(_was_divided(program, one, path) for one in inner)


def _successors(program: Program, atoms: Sequence[tuple[int, ...]]) -> list[list[int]]:
    owner = {index: atom for atom, members in enumerate(atoms) for index in members}
    successors: list[dict[int, None]] = [{} for _ in atoms]
    for atom, members in enumerate(atoms):
        for index in members:
            for before in program.predecessors(index):
                if before in owner and owner[before] != atom:
                    successors[owner[before]][atom] = None
    return [list(targets) for targets in successors]


def _refuse_circles(program: Program, atoms: Sequence[tuple[int, ...]], successors: list[list[int]]) -> None:
    stuck = set(range(len(atoms))) - set(topological_order(successors))
    wide = next((atom for atom in sorted(stuck) if len(atoms[atom]) > 1), None)
    if wide is not None:
        first, last = (program.body[index].source for index in (atoms[wide][0], atoms[wide][-1]))
        raise InfeasibleError(
            f"ops {first!r} and {last!r} must stay together, because a value between them has no known type, "
            "but other ops lie between; give the value a type"
        )


def _allowed(
    program: Program, feasibility: Feasibility, atom: tuple[int, ...], options: tuple[Site, ...], site: Site
) -> tuple[int, ...]:
    """Return the sites that can take an atom, less those that it prefers less than another of them."""
    feasible = [choice for choice, option in enumerate(options) if _can(feasibility, atom, option, site)]
    if not feasible:
        names = ", ".join(repr(program.body[index].source) for index in atom[:4])
        guilty = blame(program, tuple(program.with_nested(atom)), lambda asking: Feasibility(asking).fits(atom, site))
        raise InfeasibleError(
            f"ops {names} must stay together, and no child of @{site.path or '.'} can take them all{guilty}"
        )
    if options[feasible[-1]] is site and atom[0] in program.driven:
        return (feasible[-1],)
    ranks = [feasibility.rank(atom, options[choice]) for choice in feasible]
    best = [choice for choice, rank in zip(feasible, ranks, strict=True) if rank == max(ranks)]
    if len(atom) == 1 and atom[0] in program.bodies:
        best.sort(key=lambda choice: not feasibility.takes_whole(atom, options[choice]) or options[choice] is site)
    return tuple(best)


def _can(feasibility: Feasibility, atom: tuple[int, ...], option: Site, site: Site) -> bool:
    return feasibility.drives(atom, site) if option is site else feasibility.fits(atom, option)


def _policed(regions: list[list[int]], sites: list[Site], driver: Site) -> list[list[int]]:
    """Divide regions further where the strategy wants one operation per function, or the driver runs them."""
    result: list[list[int]] = []
    for members in regions:
        strategy = strategy_for(sites[members[0]].target.kind)
        is_single = (strategy is not None and strategy.regions == "single") or sites[members[0]] is driver
        result += [[member] for member in members] if is_single else [members]
    return result
