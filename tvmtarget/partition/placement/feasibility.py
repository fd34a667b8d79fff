"""Stage B: which leaf can take which operation, and why not the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tvmtarget.errors import InfeasibleError
from tvmtarget.ir.function import Constant
from tvmtarget.partition.control.control_flow_ops import why_not_driven
from tvmtarget.partition.flat_program import FlatProgram, atomic_call
from tvmtarget.partition.host_device.classify import host_can_compute
from tvmtarget.partition.machines.machine import Machines, is_distributed
from tvmtarget.partition.placement.indivisible_groups import atoms_of, call_groups, untyped
from tvmtarget.partition.placement.minimal_conflict import conflict_text
from tvmtarget.partition.placement.pattern_groups import PatternGroups, check_caps, groups_of
from tvmtarget.partition.placement.where_rules import Requirement
from tvmtarget.partition.plan_cache import PlanCache
from tvmtarget.support.registry import is_generator, strategy_at
from tvmtarget.support.strategy import Op, Reject, Strategy
from tvmtarget.target.topology import Site

__all__ = ["Feasibility", "has_preference"]

MAX_SHOWN = 5


class Feasibility:
    """Answers, once per question, whether operations fit a site; `check_all` refuses what fits nowhere.

    `assumed` are pairs of an operation and the path of a leaf that is supposed to take it, whatever its strategy says.
    `splits` has functions of host and device code split where the code generator takes them whole, too. `cache` is what
    is known from earlier. Of patterns that overlap, those of the leaves of kind `first` count.
    """

    def __init__(
        self,
        program: FlatProgram,
        assumed: frozenset[tuple[int, str]] = frozenset(),
        *,
        splits: bool = False,
        cache: PlanCache | None = None,
        first: str = "",
    ) -> None:
        self.program = program
        self.first = first
        self.cache = cache or PlanCache()
        self.splits = splits
        self.assumed = assumed
        self.leaves = tuple(program.topology.leaves())
        self._verdicts: dict[tuple[int, str], Reject | None] = {}
        self._asked: dict[tuple[tuple[Requirement, ...], str], Reject | None] = {}
        self._below: dict[str, tuple[Site, ...]] = {}
        self._driven: dict[tuple[int, str], Reject | None] = {}
        self._places = {leaf.path: place for place, leaf in enumerate(self.leaves)}
        self._strategies = {leaf.path: strategy_at(leaf.target) for leaf in self.leaves}
        self._generators = {leaf.path: tuple(self._around(leaf)) for leaf in self.leaves}

    def replace(
        self, *, program: FlatProgram | None = None, assumed: frozenset[tuple[int, str]] | None = None
    ) -> Feasibility:
        """Return the same questions about another program, or with other leaves supposed to take operations."""
        return Feasibility(
            program or self.program,
            self.assumed if assumed is None else assumed,
            splits=self.splits,
            cache=self.cache,
            first=self.first,
        )

    @cached_property
    def supported(self) -> npt.NDArray[np.bool_]:
        """Which operation (row) which leaf (column, as in `leaves`) can take; those that are alike are asked once."""
        asked: dict[tuple[Requirement, ...], int] = {}
        alike = np.array([asked.setdefault(items, len(asked)) for items in self.program.requirements], dtype=np.int64)
        alike = alike * len(self.program.representatives) + np.array(self.program.signatures, dtype=np.int64)
        for number, members in enumerate(self._peculiar().values(), 1):
            alike[members] += number * len(asked) * len(self.program.representatives)
        _, firsts, numbers = np.unique(alike, return_index=True, return_inverse=True)
        rows = [self._row(first) for first in firsts.tolist()]
        found = np.array([row for row, _ in rows], dtype=np.bool_).reshape(len(rows), len(self.leaves))[numbers]
        has_read = np.array([has_read for _, has_read in rows], dtype=np.bool_)[numbers]
        for index in np.setdiff1d(np.flatnonzero(has_read), firsts).tolist():
            found[index] = self._row(index)[0]
        return found

    def _peculiar(self) -> dict[object, list[int]]:
        """Return operations that a leaf is supposed to take, or that patterns speak of, by what that says of them."""
        supposed: dict[int, tuple[str, ...]] = {}
        for index, leaf in sorted(self.assumed):
            supposed[index] = (*supposed.get(index, ()), leaf)
        refused = {index for index, _ in self.groups.refused}
        patterns = {index: group.patterns for index, group in self.groups.of.items()}
        found: dict[object, list[int]] = {}
        for index in sorted({*supposed, *refused, *patterns}):
            found.setdefault((supposed.get(index), patterns.get(index), index in refused), []).append(index)
        return found

    @cached_property
    def groups(self) -> PatternGroups:
        """What strategies take together by their patterns, those of external generators with children before theirs."""
        sites = dict.fromkeys(site.path for leaf in self.leaves for site in (*self._generators[leaf.path], leaf))
        return groups_of(self.program, map(self.program.topology.__getitem__, sites), self._allows, self.first)

    @cached_property
    def others(self) -> tuple[Feasibility, ...]:
        """What fits where if other patterns count among those that overlap, as far as all fits somewhere then."""
        options = (
            Feasibility(self.program, self.assumed, splits=self.splits, cache=self.cache, first=kind)
            for kind in self.groups.overlapped
        )
        return tuple(option for option in options if option.is_complete)

    @property
    def is_complete(self) -> bool:
        """Whether every operation fits a site."""
        return not list(self._lost_of_all())

    def _allows(self, index: int, site: Site) -> bool:
        asked = self.program.requirements[index]
        return any(self._constraints(asked, leaf) is None for leaf in self.below(site))

    def strategy(self, site: Site) -> Strategy | None:
        """Return what says what a leaf or an external generator with children takes, None if nothing does."""
        if site.path not in self._strategies:
            self._strategies[site.path] = strategy_at(site.target) if is_generator(site.target) else None
        return self._strategies[site.path]

    def _around(self, site: Site) -> Iterator[Site]:
        """Yield the external generators that a site is a part of, the outermost first."""
        topology, segments = self.program.topology, site.path.split("/")
        for count in range(len(segments) if site.path else 0):
            around = topology["/".join(segments[:count])]
            if around.is_system and is_generator(around.target):
                yield around

    def columns(self, site: Site) -> list[int]:
        """List the columns of the leaves at and below a site."""
        return [self._places[leaf.path] for leaf in self.below(site)]

    def _row(self, index: int) -> tuple[list[bool], bool]:
        """Return which leaves take an operation, and whether a strategy read the elements of a constant for that."""
        constants = _Watched(self.program.constants)
        op = replace(self.program.op(index), constants=constants)
        row = [self._judge(index, leaf, op) is None for leaf in self.leaves]
        return row, constants.has_read

    def unsupported_reason(self, index: int, leaf: Site) -> Reject | None:
        """Return None if a leaf can take an operation, else the reason why not."""
        key = (index, leaf.path)
        if key not in self._verdicts:
            self._verdicts[key] = self._judge(index, leaf, self.program.op(index))
        return self._verdicts[key]

    def check_all(self) -> None:
        """Raise `InfeasibleError` for operations that no leaf can take: each with the reasons, five at most."""
        lost = list(self._lost_of_all())
        problems = [self._explain_lost(index) for index in lost[:MAX_SHOWN]]
        if len(lost) > MAX_SHOWN:
            problems.append(f"... and {len(lost) - MAX_SHOWN} more ops that fit no site")
        if problems:
            raise InfeasibleError(*problems)

    def fits(self, calls: tuple[int, ...], site: Site) -> bool:
        """Whether a site can take operations that must stay together: a leaf all, a system group by group."""
        strategy = self.strategy(site)
        if strategy is not None and len(calls) > 1 and check_caps(self.program, strategy, calls) is not None:
            return False
        if self.supports_whole(calls, site):
            return True
        if not site.is_system or (len(calls) == 1 and calls[0] not in self.program.bodies):
            return False
        options = self.program.topology.options(site.path)
        is_joined = len(calls) > 1 and (self.program.atomic or self.groups.all)
        groups = (
            atoms_of(self.program, self.groups.of, calls, site.path)
            if is_joined
            else call_groups(calls, self.program.frames, site.path)
        )
        return all(
            any(self.fits(members, option) for option in options) or self.drives(members, site) for members in groups
        )

    def supports_whole(self, calls: tuple[int, ...], site: Site) -> bool:
        """Whether a leaf can take all operations, or of a system one can take the only one, nested bodies included."""
        if not site.is_system:
            strategy = self.strategy(site)
            is_within = strategy is None or len(calls) == 1 or check_caps(self.program, strategy, calls) is None
            return is_within and bool(self.supported[list(calls), self._places[site.path]].all())
        return len(calls) == 1 and bool(self.supported[calls[0], self.columns(site)].any())

    def drives(self, calls: tuple[int, ...], site: Site) -> bool:
        """Whether the driver of a system can run the only operation, whose nested bodies the system divides."""
        return len(calls) == 1 and self.why_not_driven(calls[0], site) is None

    def why_not_driven(self, index: int, site: Site) -> Reject | None:
        """Return None if the driver of a system can run an operation with nested bodies, else why not."""
        key = (index, site.path)
        if key not in self._driven:
            self._driven[key] = self._judge_driven(index, site)
        return self._driven[key]

    def _judge_driven(self, index: int, site: Site) -> Reject | None:
        program = self.program
        if index not in program.bodies:
            return Reject("CONTROL_FLOW", "it has no nested bodies")
        if not site.is_system and site.host == site.path:
            return Reject("CONTROL_FLOW", "a leaf that nothing drives has no driver")
        if atomic_call(program.frames[index], site.path) is not None:
            return Reject("CONSTRAINT", "it is in a function that stays whole")
        refusal = why_not_driven(program.op(index))
        if refusal is not None:
            return refusal
        for system in (*self._around(site), *((site,) if site.is_system and is_generator(site.target) else ())):
            refusal = self._judge_by_generator(index, system, program.op(index))
            if refusal is not None:
                return refusal
        options = self.options_of_bodies(site)
        if not site.path and is_distributed(site.target):
            apart = program.topology.options(site.path)
            whole = next((option for option in apart if self.fits((index,), option)), None)
            if whole is not None:
                return Reject("CONTROL_FLOW", f"one machine has to run all of it, and @{whole.path} can")
        for scope in program.bodies[index]:
            unknown = next(untyped(program, scope), None)
            if unknown is not None:
                hint = "give the value a type"
                return Reject("NON_TENSOR", f"{unknown!r} in {scope.label!r} has no known type", hint)
            for atom in atoms_of(program, self.groups.of, tuple(scope.calls), site.path):
                if not self._can_divide(atom, options, site):
                    names = ", ".join(repr(program.body[inner].source) for inner in atom[:4])
                    is_untyped = any(not output.type for inner in atom for output in program.body[inner].outputs)
                    hint = "they stay together, as a value between them is a tuple or has no known type"
                    message = f"{self._takers(site)} can take {names} of {scope.label!r}"
                    return Reject("CONTROL_FLOW", message, hint if len(atom) > 1 and is_untyped else "")
        return None

    def options_of_bodies(self, site: Site) -> tuple[Site, ...]:
        """Return the sites over which a driver divides nested bodies: where machines run apart, those of its own."""
        options = self.program.topology.options(site.path) if site.is_system else ()
        if site.path or not is_distributed(site.target):
            return options
        machines = Machines(self.program.topology)
        return tuple(option for option in options if machines.of_site(option.path) == machines.home)

    def _takers(self, site: Site) -> str:
        if site.path or not is_distributed(site.target):
            return "no site"
        return f"one machine has to run all of it, and nothing on @{Machines(self.program.topology).home}"

    def _can_divide(self, atom: tuple[int, ...], options: tuple[Site, ...], site: Site) -> bool:
        """Whether a part of a nested body fits a child of a system, or a device and its host, or their driver."""
        if not site.is_system:
            return all(self.unsupported_reason(inner, site) is None for inner in atom)
        return any(self.fits(atom, option) for option in options) or self.drives(atom, site)

    def rank(self, calls: tuple[int, ...], site: Site) -> int:
        """Add up how much the operations prefer a site, by its best leaf for each."""
        return sum(self._rank(index, site) for index in self._deciding(calls) if self._has_taste(index))

    def _deciding(self, calls: Iterable[int]) -> Iterator[int]:
        """Yield operations, in the place of one with nested bodies those that it has in them."""
        for index in calls:
            inner = tuple(self.program.nested(index)) if index in self.program.bodies else ()
            yield from (one for one in inner if one not in self.program.bodies) if inner else (index,)

    def _has_taste(self, index: int) -> bool:
        return any(has_preference(asked) for asked in self.program.requirements[index])

    def _rank(self, index: int, site: Site) -> int:
        asked = self.program.requirements[index]
        feasible = (leaf for leaf in self.below(site) if self.supported[index, self._places[leaf.path]])
        return max((sum(a.constraint.rank(leaf.target, leaf.path) for a in asked) for leaf in feasible), default=0)

    def below(self, site: Site) -> tuple[Site, ...]:
        """List the leaves at and below a site."""
        if site.path not in self._below:
            self._below[site.path] = tuple(self.program.topology.leaves(site.path))
        return self._below[site.path]

    def _judge(self, index: int, leaf: Site, op: Op) -> Reject | None:
        refusal = self._constraints(self.program.requirements[index], leaf) or self._nested_constraints(index, leaf)
        if refusal is not None or (index, leaf.path) in self.assumed:
            return refusal
        for system in self._generators[leaf.path]:
            refusal = self._judge_by_generator(index, system, op)
            if refusal is not None:
                return refusal
        refusal, strategy = self._judge_by_strategy(index, leaf, op), self.strategy(leaf)
        if strategy is None or refusal is None or leaf.host == leaf.path:
            return refusal
        if not self.splits and strategy.takes != "device":
            return refusal
        is_for_host = host_can_compute(self.program, op, leaf) or self.why_not_driven(index, leaf) is None
        return None if is_for_host else refusal

    def _judge_by_generator(self, index: int, system: Site, op: Op) -> Reject | None:
        """Return why an external generator with children does not take an operation, so that they do not get it."""
        refusal = self._judge_by_strategy(index, system, op)
        return None if refusal is None else replace(refusal, message=f"of @{system.path or '.'}, {refusal.message}")

    def _judge_by_strategy(self, index: int, site: Site, op: Op) -> Reject | None:
        """Return why the code generator of a site does not take an operation, None if it does."""
        kind, strategy = site.target.kind, self.strategy(site)
        group = self.groups.of.get(index) if self.program.imported_matches else None
        if group is not None and group.pattern_of(kind) is not None:
            return None
        if strategy is None and self.program.imported_generators.get(index) == kind:
            return None  # TVM's patterns gave it to a code generator of which nothing else is known here
        if strategy is None:
            return Reject("NO_RULE", f"no installed package says what {kind!r} takes", "install its plugin")
        refusal = (
            self._judge_by_patterns(index, site, strategy, op)
            if strategy.is_matching
            else self._ask(index, site, strategy, op)
        )
        return refusal or self._check_caps(index, site, strategy)

    def _ask(self, index: int, _leaf: Site, strategy: Strategy, op: Op) -> Reject | None:
        """Ask a strategy about an operation, unless it took one of the same structure: reasons speak of names."""
        if index in self.program.bodies or any(name in self.program.constants for name in op.call.inputs):
            return strategy.check(op)
        told = self.program.fingerprint(index)
        same = tuple(map(op.call.inputs.index, op.call.inputs))  # which operands are one value
        key = id(strategy), told.text, told.dims, same, self.program.function.opsets
        taken, _ = self.cache.find("operations that sites take", key, lambda: (strategy.check(op) is None, strategy))
        return None if taken else strategy.check(op)

    def _check_caps(self, index: int, leaf: Site, strategy: Strategy) -> Reject | None:
        """Return why an operation is more than a function may be by itself; matches were asked when they were made."""
        group = self.groups.of.get(index)
        is_matched = group is not None and group.pattern_of(leaf.target.kind) is not None
        return None if is_matched else check_caps(self.program, strategy, (index,))

    def _judge_by_patterns(self, index: int, leaf: Site, strategy: Strategy, op: Op) -> Reject | None:
        """Return None if a group of the leaf's kind has an operation, or the strategy takes it alone; else why not."""
        group = self.groups.of.get(index)
        if group is not None and group.pattern_of(leaf.target.kind) is not None:
            return None
        alone = self._ask(index, leaf, strategy, op)
        return None if alone is None else self.groups.check(index, leaf.target.kind) or alone

    def _constraints(self, asked: tuple[Requirement, ...], leaf: Site) -> Reject | None:
        key = (asked, leaf.path)
        if key not in self._asked:
            broken = (
                (item, reason)
                for item in asked
                if item.constraint.is_required
                and not (reason := item.constraint.check(leaf.target, leaf.path, self.program.topology.root))
            )
            first = next(broken, None)
            text = "" if first is None else f"it does not meet {first[0]}: {', '.join(_leaves_of(first[1]))}"
            self._asked[key] = None if first is None else Reject("CONSTRAINT", text)
        return self._asked[key]

    def _nested_constraints(self, index: int, leaf: Site) -> Reject | None:
        """Return why a leaf cannot be given all that is in nested bodies, by what is asked of that."""
        for inner in self.program.nested(index):
            refusal = self._constraints(self.program.requirements[inner], leaf)
            if refusal is not None:
                return Reject(refusal.code, f"of {self.program.body[inner].source!r} in it, {refusal.message}")
        return None

    def _lost_of_all(self) -> Iterator[int]:
        able = self.supported[: len(self.program.top)].any(axis=1)
        return self._lost(np.flatnonzero(~able).tolist())

    def _lost(self, calls: Iterable[int]) -> Iterator[int]:
        """Yield operations that fit nowhere; in the place of one with nested bodies those of them, if there are any."""
        for index in calls:
            if not self.fits((index,), self.program.topology[""]):
                inner = [lost for scope in self.program.bodies.get(index, ()) for lost in self._lost(scope.calls)]
                yield from inner or [index]

    def _explain_lost(self, index: int) -> str:
        call = self.program.body[index]
        reasons = [f"@{leaf.path or '.'}: {self.unsupported_reason(index, leaf)}" for leaf in self.leaves]
        if index in self.program.bodies:
            root = self.program.topology[""]
            reasons.append(f"driven by @{root.host or '.'}: {self.why_not_driven(index, root)}")
        listed = "; ".join(reasons) if reasons else "the target has no leaves"
        about = tuple(self.program.with_nested((index,)))
        guilty = conflict_text(
            self.program, about, lambda program: self.replace(program=program).fits((index,), program.topology[""])
        )
        name = call.source or next((output.name for output in call.outputs if output.name), "")
        return f"op {name!r} ({call.kind}) fits no site of the target: {listed}{guilty}"


class _Watched(Mapping[str, Constant]):
    """Constants by name that remember whether one was read; asking whether a name is one of them does not count."""

    def __init__(self, constants: Mapping[str, Constant]) -> None:
        self.constants = constants
        self.has_read = False

    def __getitem__(self, name: str) -> Constant:
        constant = self.constants[name]
        self.has_read = True
        return constant

    def __contains__(self, name: object) -> bool:
        return name in self.constants

    def __iter__(self) -> Iterator[str]:
        return iter(self.constants)

    def __len__(self) -> int:
        return len(self.constants)


def has_preference(asked: Requirement) -> bool:
    """Whether a constraint prefers some of the sites that meet it."""
    return asked.constraint.weight is not None or bool(asked.constraint.any_of)


def _leaves_of(reason: object) -> Iterable[str]:
    lines = str(reason).splitlines()
    return [line.strip().removeprefix("NO ").removeprefix("UNKNOWN ") for line in lines if "YES" not in line][-1:]
