"""The recursive rule: at a system, give every atom a site, form regions, and split each region further down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tvmtarget.errors import InfeasibleError, raise_all
from tvmtarget.partition.conflict import blame
from tvmtarget.partition.feasibility import Feasibility, has_taste, together
from tvmtarget.partition.program import Program, open_frame
from tvmtarget.partition.regions.limits import Limiter, Limits
from tvmtarget.partition.regions.portfolio import formed
from tvmtarget.partition.regions.veto import vetted
from tvmtarget.partition.regions.waves import lower_bound, topological_order, waves
from tvmtarget.partition.strategies.strategy import Reject, Strategy, strategy_for
from tvmtarget.partition.values import Values, owners, values_of
from tvmtarget.target.layout import Site

__all__ = ["Choice", "Chooser", "Level", "Region", "by_preference", "grouped", "split"]


@dataclass(frozen=True, slots=True)
class Region:
    """Operations that one site runs in one call, in the order it runs them; `parts` are the regions in a system.

    `least_parts` is a number of parts that no division can go below, given the sites of the operations;
    `least_time` are picoseconds that no choice of sites can go below, None where nothing says so.
    """

    site: Site
    calls: tuple[int, ...]
    parts: tuple[Region, ...] = ()
    least_parts: int = 0
    least_time: int | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """What is to be decided at one system: which of its sites each atom goes to.

    `allowed` says which of `options` (column) can take an atom (row) and are preferred by no less than any other
    that can. `values` pass between atoms, and `limits` are what regions of each option may be. `is_divided` says that
    a division which was made before is kept, atom by atom.
    """

    site: Site
    options: tuple[Site, ...]
    atoms: tuple[tuple[int, ...], ...]
    successors: list[list[int]]
    allowed: npt.NDArray[np.bool_]
    is_divided: bool
    values: Values
    limits: tuple[Limits, ...]
    limiter: Limiter


@dataclass(frozen=True, slots=True)
class Choice:
    """A place in the options for every atom, picoseconds that no choice can go below, and what calls cost by option."""

    chosen: list[int]
    least_time: int | None = None
    launches: Sequence[int] = ()


# Rounds in which sites are chosen anew because a strategy refuses regions.
MAX_VETOES = 16

Chooser: TypeAlias = Callable[[Level], Choice]


def by_preference(level: Level) -> Choice:
    """Choose for every atom the first site that is allowed, as children stand in order of preference."""
    return Choice(level.allowed.argmax(axis=1).tolist())


def split(
    program: Program, feasibility: Feasibility, site: Site, calls: tuple[int, ...], choose: Chooser = by_preference
) -> Region:
    """Split operations over the sites below one site, recursively down to leaves."""
    if not site.is_system:
        return Region(site, calls)
    atoms = _atoms(program, calls, site.path)
    successors = _successors(program, atoms)
    _refuse_circles(program, atoms, successors)
    options = program.layout.options(site.path)
    allowed = _allowed(program, feasibility, atoms, options, site)
    is_divided = _is_divided(program, atoms, site.path)
    values = values_of(program.dataflow, owners(len(program.body), atoms), len(atoms))
    limiter = Limiter(successors, atoms, values)
    limits = tuple(_limits(option) for option in options)
    level = Level(site, options, tuple(atoms), successors, allowed, is_divided, values, limits, limiter)
    choice, groups = _decided(program, level, choose)
    parts = tuple(
        split(program, feasibility, options[choice.chosen[group[0]]], _calls(level, group), choose) for group in groups
    )
    in_order = tuple(index for part in parts for index in part.calls)
    return Region(site, in_order, parts, lower_bound(successors, choice.chosen), choice.least_time)


def _decided(program: Program, level: Level, choose: Chooser) -> tuple[Choice, list[list[int]]]:
    """Choose sites and form regions; what a code generator refuses even alone goes elsewhere, and all is done again."""
    for _ in range(MAX_VETOES):
        choice = choose(level)
        chosen = choice.chosen
        groups, refused = vetted(_formed(level, choice), partial(_refusal, program, level, chosen), level.limiter)
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
    raise InfeasibleError(f"strategies still refuse regions in {MAX_VETOES} rounds; take less in `check_op`")


def _refusal(program: Program, level: Level, chosen: Sequence[int], group: Sequence[int]) -> Reject | None:
    site = level.options[chosen[group[0]]]
    strategy = None if site.is_system else strategy_for(site.target.kind)
    if strategy is None or type(strategy).check_region is Strategy.check_region:
        return None
    return strategy.check_region([program.op(index) for index in _calls(level, group)])


def grouped(level: Level, chosen: Sequence[int]) -> list[list[int]]:
    """Group atoms into regions by waves alone, in an order in which they can run."""
    if level.is_divided:
        return [[atom] for atom in range(len(level.atoms))]
    regions = waves(level.successors, chosen)
    return [part for region in regions for part in level.limiter.limited(region, level.limits[chosen[region[0]]])]


def _formed(level: Level, choice: Choice) -> list[list[int]]:
    """Group atoms into the best regions."""
    if level.is_divided:
        return [[atom] for atom in range(len(level.atoms))]
    launches = choice.launches or [1] * len(level.options)
    return formed(level.successors, choice.chosen, level.limits, launches, level.limiter, level.values)


def _limits(site: Site) -> Limits:
    strategy = strategy_for(site.target.kind)
    if strategy is None or site.is_system:
        return Limits()
    return Limits(strategy.regions, strategy.max_ops, strategy.max_inputs, strategy.max_outputs)


def _calls(level: Level, group: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(index for atom in group for index in level.atoms[atom]))


def _is_divided(program: Program, atoms: Sequence[tuple[int, ...]], path: str) -> bool:
    """Whether every operation is in a call of a constrained function: a division that was made before is kept."""
    return all(open_frame(program.frames[atom[0]], path) is not None for atom in atoms)


def _atoms(program: Program, calls: tuple[int, ...], path: str) -> list[tuple[int, ...]]:
    """Group operations that cannot be parted: one call of a constrained function, or ends of a value without a type."""
    flow = program.dataflow
    is_untyped = np.array([type_ is None for type_ in flow.types], dtype=np.bool_)[flow.kinds] & (flow.producer >= 0)
    if not any(program.frames[index] for index in calls) and not is_untyped.any():
        return [(index,) for index in calls]
    groups = together(calls, program.frames, path)
    leader = {index: members[0] for members in groups for index in members}
    joined = {first: first for first in leader.values()}

    def find(first: int) -> int:
        while joined[first] != first:
            first = joined[first]
        return first

    for index in calls:
        for output in program.body[index].outputs:
            readers = program.consumers.get(output.name, ()) if output.type is None else ()
            for reader in readers:
                if reader in leader:
                    a, b = sorted((find(leader[index]), find(leader[reader])))
                    joined[b] = a
    atoms: dict[int, list[int]] = {}
    for index in calls:
        atoms.setdefault(find(leader[index]), []).append(index)
    return [tuple(members) for members in atoms.values()]


def _successors(program: Program, atoms: Sequence[tuple[int, ...]]) -> list[list[int]]:
    flow, count = program.dataflow, len(atoms)
    owner = owners(len(program.body), atoms)
    producer = np.repeat(flow.producer, np.diff(flow.start))
    before = np.where(producer >= 0, owner[producer], -1)
    after = owner[flow.readers]
    which = (before >= 0) & (after >= 0) & (before != after)
    pairs = np.unique(before[which] * count + after[which])
    bounds = np.searchsorted(pairs, np.arange(count + 1) * count).tolist()
    targets = (pairs % max(1, count)).tolist()
    return [targets[begin:end] for begin, end in pairwise(bounds)]


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
    program: Program,
    feasibility: Feasibility,
    atoms: Sequence[tuple[int, ...]],
    options: tuple[Site, ...],
    site: Site,
) -> npt.NDArray[np.bool_]:
    """Return the sites that can take each atom, less those that it prefers less than another of them."""
    firsts = [atom[0] for atom in atoms]
    columns = [feasibility.takes[firsts][:, feasibility.columns(option)].any(axis=1) for option in options]
    allowed = np.stack(columns, axis=1) if atoms else np.zeros((0, len(options)), dtype=np.bool_)
    for number, atom in enumerate(atoms):
        if len(atom) > 1:
            allowed[number] = [feasibility.fits(atom, option) for option in options]
            if not allowed[number].any():
                names = ", ".join(repr(program.body[index].source) for index in atom[:4])

                def fits(asking: Program, atom: tuple[int, ...] = atom) -> bool:
                    return Feasibility(asking).fits(atom, site)

                guilty = blame(program, atom, fits)
                raise InfeasibleError(
                    f"ops {names} must stay together, and no child of @{site.path or '.'} can take them all{guilty}"
                )
        if any(has_taste(asked) for index in atom for asked in program.asked[index]):
            able = np.flatnonzero(allowed[number])
            ranks = np.array([feasibility.rank(atom, options[option]) for option in able.tolist()])
            allowed[number, able[ranks < ranks.max()]] = False
    return allowed
