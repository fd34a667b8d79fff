"""The recursive rule: at a system, give every atom a site, form regions, and split each region further down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tvmtarget.errors import InfeasibleError
from tvmtarget.partition.conflict import blame
from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.feasibility import Feasibility, has_taste, together
from tvmtarget.partition.host_device.sides import host_work
from tvmtarget.partition.program import Program, open_frame
from tvmtarget.partition.regions.waves import lower_bound, topological_order, waves
from tvmtarget.partition.strategies.strategy import strategy_for
from tvmtarget.target.layout import Site

__all__ = ["Choice", "Chooser", "Level", "Region", "by_preference", "grouped", "owners", "split"]


@dataclass(frozen=True, slots=True)
class Region:
    """Operations that one site runs in one call, in the order it runs them; `parts` are the regions in a system.

    `least_parts` is a number of parts that no division can go below, given the sites of the operations;
    `least_time` are picoseconds that no choice of sites can go below, None where nothing says so. `device` is the
    path of the device, for device code and for what its host does for it; with parts it is the host that drives.
    """

    site: Site
    calls: tuple[int, ...]
    parts: tuple[Region, ...] = ()
    least_parts: int = 0
    least_time: int | None = None
    device: str | None = None

    @property
    def is_leaf(self) -> bool:
        """Whether this is one function of operations, not one that drives others."""
        return not self.site.is_system and not self.parts


@dataclass(frozen=True, slots=True)
class Level:
    """What is to be decided at one system: which of its sites each atom goes to.

    `allowed` says which of `options` (column) can take an atom (row) and are preferred by no less than any other
    that can. `is_divided` says that a division which was made before is kept, atom by atom.
    """

    site: Site
    options: tuple[Site, ...]
    atoms: tuple[tuple[int, ...], ...]
    successors: list[list[int]]
    allowed: npt.NDArray[np.bool_]
    is_divided: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """A place in the options for every atom, and picoseconds that no choice can go below."""

    chosen: list[int]
    least_time: int | None = None


Chooser: TypeAlias = Callable[[Level], Choice]


def by_preference(level: Level) -> Choice:
    """Choose for every atom the first site that is allowed, as children stand in order of preference."""
    return Choice(level.allowed.argmax(axis=1).tolist())


def split(
    program: Program, feasibility: Feasibility, site: Site, calls: tuple[int, ...], choose: Chooser = by_preference
) -> Region:
    """Split operations over the sites below one site, recursively down to leaves."""
    if not site.is_system:
        return _sides(program, feasibility, site, calls)
    atoms = _atoms(program, calls, site.path)
    successors = _successors(program, atoms)
    _refuse_circles(program, atoms, successors)
    options = program.layout.options(site.path)
    allowed = _allowed(program, feasibility, atoms, options, site)
    is_divided = _is_divided(program, atoms, site.path)
    level = Level(site, options, tuple(atoms), successors, allowed, is_divided)
    choice = choose(level)
    parts = tuple(
        split(program, feasibility, options[choice.chosen[group[0]]], _calls(level, group), choose)
        for group in grouped(level, choice.chosen)
    )
    in_order = tuple(index for part in parts for index in part.calls)
    return Region(site, in_order, parts, lower_bound(successors, choice.chosen), choice.least_time)


def _sides(program: Program, feasibility: Feasibility, site: Site, calls: tuple[int, ...]) -> Region:
    """Split a mixed function into a host function that drives it, device functions, and what the host computes."""
    on_host = host_work(program, site, calls, is_asked=feasibility.splits)
    if on_host is None:
        return Region(site, calls)
    if not on_host and site.path and not feasibility.splits:  # whoever calls it drives it
        return Region(site, calls, device=site.path)
    options, chosen = (site, program.layout[site.host]), [int(index in on_host) for index in calls]
    successors = _successors(program, [(index,) for index in calls])
    groups = _policed(waves(successors, chosen), [options[side] for side in chosen])
    parts = tuple(
        Region(options[chosen[group[0]]], tuple(sorted(calls[atom] for atom in group)), device=site.path)
        for group in groups
    )
    in_order = tuple(index for part in parts for index in part.calls)
    return Region(site, in_order, parts, lower_bound(successors, chosen), device=site.path)


def grouped(level: Level, chosen: Sequence[int]) -> list[list[int]]:
    """Group atoms into regions, in an order in which they can run."""
    if level.is_divided:
        return [[atom] for atom in range(len(level.atoms))]
    return _policed(waves(level.successors, chosen), [level.options[choice] for choice in chosen])


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
    owner = owners(program, atoms)
    producer = np.repeat(flow.producer, np.diff(flow.start))
    before = np.where(producer >= 0, owner[producer], -1)
    after = owner[flow.readers]
    which = (before >= 0) & (after >= 0) & (before != after)
    pairs = np.unique(before[which] * count + after[which])
    bounds = np.searchsorted(pairs, np.arange(count + 1) * count).tolist()
    targets = (pairs % max(1, count)).tolist()
    return [targets[begin:end] for begin, end in pairwise(bounds)]


def owners(program: Program, atoms: Sequence[tuple[int, ...]]) -> Ints:
    """Return the atom of every operation, -1 for one in none."""
    owner = np.full(len(program.body), -1, dtype=np.int64)
    members = [index for atom in atoms for index in atom]
    owner[members] = np.repeat(np.arange(len(atoms)), [len(atom) for atom in atoms])
    return owner


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
                guilty = _blamed(program, atom, site)
                raise InfeasibleError(
                    f"ops {names} must stay together, and no child of @{site.path or '.'} can take them all{guilty}"
                )
        if any(has_taste(asked) for index in atom for asked in program.asked[index]):
            ranks = [
                feasibility.rank(atom, option) if can else None
                for can, option in zip(allowed[number], options, strict=True)
            ]
            best = max(rank for rank in ranks if rank is not None)
            allowed[number] = [rank == best for rank in ranks]
    return allowed


def _blamed(program: Program, atom: tuple[int, ...], site: Site) -> str:
    return blame(program, atom, lambda asking: Feasibility(asking).can(atom, site))


def _policed(regions: list[list[int]], sites: list[Site]) -> list[list[int]]:
    """Divide regions further where the strategy wants one operation per function."""
    result: list[list[int]] = []
    for members in regions:
        strategy = strategy_for(sites[members[0]].target.kind)
        is_single = strategy is not None and strategy.regions == "single"
        result += [[member] for member in members] if is_single else [members]
    return result
