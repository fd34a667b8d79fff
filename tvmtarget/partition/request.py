"""What a decomposition is asked for, and what of it goes into a file beside the sites that were decided."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from tvmtarget.errors import ArtifactError, TargetError, TvmTargetError, UnknownNameError, did_you_mean, raise_all
from tvmtarget.ir.function import DRIVEN_DEVICE, FUNCTION, Call, calls_in
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.costs.cost_file import load_costs, write_costs
from tvmtarget.partition.costs.costs import Costs
from tvmtarget.partition.flat_program import FlatProgram, normalise
from tvmtarget.partition.outline.constant_binding import CONSTANTS, Constants
from tvmtarget.partition.placement.colocation import OpNames, with_atomic_groups
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.hypotheses import Moves, assume_support, with_moves
from tvmtarget.partition.placement.where_rules import names_of
from tvmtarget.partition.plan_cache import PlanCache
from tvmtarget.support.registry import is_generator, strategy_at
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.scheduler_addresses import reject_addresses
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import Target
from tvmtarget.untrusted import parse_json

__all__ = ["OBJECTIVES", "Objective", "Request", "read_plan", "write_plan"]

Objective: TypeAlias = Literal["latency", "throughput"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)

# The attribute of a saved module that makes it a plan, and the version of what it holds.
_PLAN = "tvmtarget.plan"
_SCHEMA = "tvmtarget.plan/1"


@dataclass(frozen=True)
class Request:
    """The module to divide, the tree to divide it over, the `where` rules, and costs if sites are chosen by them.

    `objective` is what costs make small: the time of one input, or of the busiest machine. `same_site`, `apart` and
    `atomic` are groups of operations by name, glob or `op:KIND`; `boundary_before` and `boundary_after` are such names.
    `max_subgraphs` are numbers by path, kind or key. `constants` says which weights are parameters of functions, None
    leaves that to the strategies. `moves` are requirements of a question (`Plan.what_if`).
    """

    module: IRModule
    target: Target
    where: Mapping[str, Constraint]
    costs: Costs | None = None
    objective: Objective = "latency"
    same_site: OpNames = ()
    apart: OpNames = ()
    atomic: OpNames = ()
    boundary_before: tuple[str, ...] = ()
    boundary_after: tuple[str, ...] = ()
    max_subgraphs: Mapping[str, int] = field(default_factory=dict)
    constants: Constants | None = None
    moves: Moves = ()

    def feasibility(self, *, splits: bool = False, cache: PlanCache | None = None) -> Feasibility:
        """Return what fits where, with the flat program; `InfeasibleError` if an operation fits nowhere.

        `splits` has mixed functions of host and device code split, whatever their code generator takes, as does a
        module that was split before; `cache` is what is known from earlier.
        """
        splits = splits or any(function.attr(DRIVEN_DEVICE) is not None for function in self.module)
        program = normalise(self.module.verify(), self.target, self.where)
        raise_all(TargetError, list(_unsupported_systems(program.topology)))
        self._check_names(program)
        program = with_atomic_groups(program, self.atomic, self.boundary_before, self.boundary_after)
        program = with_moves(program, self.moves) if self.moves else program
        feasibility = Feasibility(program, splits=splits, cache=cache)
        feasibility = assume_support(feasibility, self.moves) if self.moves else feasibility
        if not feasibility.is_complete:
            feasibility = next(iter(feasibility.others), feasibility)
        feasibility.check_all()
        return feasibility

    def _check_names(self, program: FlatProgram) -> None:
        """Raise `UnknownNameError` with all names of no operation that are beside `where`, and what they are in."""
        groups = {"same_site": self.same_site, "apart": self.apart, "atomic": self.atomic}
        groups |= {"boundary_before": (self.boundary_before,), "boundary_after": (self.boundary_after,)}
        if not any(chain(*groups.values())):
            return
        known = _Names(program.body)
        unknown = ((name, asks) for asks, named in groups.items() for name in chain(*named) if not known.has(name))
        sources = [call.source for call in program.body]
        raise_all(
            UnknownNameError,
            [f"no op {name!r} in the model{did_you_mean(name, sources)} (in {asks})" for name, asks in unknown],
        )

    def on(self, module: IRModule) -> Request:
        """Return the request for an edited module, without what it asks of operations that are gone."""
        flat = normalise(module.verify(), self.target, {})
        speaks = _Names((*flat.body, *chain(*map(calls_in, module)))).has

        def kept(groups: OpNames) -> OpNames:
            return tuple(tuple(filter(speaks, names)) for names in groups)

        return replace(
            self,
            module=module,
            where={
                name: rule
                for name, rule in self.where.items()
                if speaks(name) or name.removeprefix(FUNCTION) in (*module.by_name, "main")
            },
            same_site=kept(self.same_site),
            apart=kept(self.apart),
            atomic=kept(self.atomic),
            boundary_before=tuple(filter(speaks, self.boundary_before)),
            boundary_after=tuple(filter(speaks, self.boundary_after)),
            moves=tuple((name, site) for name, site in self.moves if speaks(name)),
        )


def _unsupported_systems(topology: Topology) -> Iterator[str]:
    """Yield which external generators with children declare what only holds for generators without any."""
    for path, node in topology.root.walk():
        strategy = strategy_at(node) if node.is_composite and is_generator(node) else None
        if strategy is not None:
            kind = f"@{path or '.'} is of kind {node.kind!r}, whose strategy has"
            hint = "which is for generators without children; leave them out, or make it a 'composite'"
            if strategy.subgraphs == "program":
                yield f"{kind} subgraphs='program', {hint}"
            if strategy.takes == "device":
                yield f"{kind} takes='device', {hint}"
            if strategy.constants != "bind":
                yield f"{kind} constants={strategy.constants!r}, {hint}"


class _Names:
    """The names by which operations are spoken of."""

    def __init__(self, calls: Iterable[Call]) -> None:
        self._known = {name for call in calls for name in names_of(call)}

    def has(self, name: str) -> bool:
        """Whether a name, glob or `op:KIND` speaks of any of them."""
        return name in self._known or any(fnmatchcase(own, name) for own in self._known)


def write_plan(path: str | Path, request: Request, sites: Mapping[str, str]) -> None:
    """Write a saved module with the plan as an attribute: what was asked for, and the leaf of every operation."""
    held = {
        "schema": _SCHEMA,
        "where": {key: rule.to_json() for key, rule in request.where.items()},
        "costs": None if request.costs is None else write_costs(request.costs),
        "objective": request.objective,
        "same_site": [list(names) for names in request.same_site],
        "apart": [list(names) for names in request.apart],
        "atomic": [list(names) for names in request.atomic],
        "boundary_before": list(request.boundary_before),
        "boundary_after": list(request.boundary_after),
        "max_regions": dict(request.max_subgraphs),
        "constants": request.constants,
        "sites": dict(sites),
    }
    request.module.with_target(request.target).with_attrs(**{_PLAN: json.dumps(held)}).save(path)


def read_plan(path: str | Path, *, trust: bool = False) -> tuple[Request, dict[str, str]]:
    """Return what `write_plan` wrote; `ArtifactError` if it is damaged or no plan."""
    module = IRModule.load(path, trust=trust)
    attrs = dict(module.attrs)
    held = attrs.pop(_PLAN, None)
    if held is None or module.target is None:
        raise ArtifactError(f"{str(path)!r} is a saved module without a plan; write one with Plan.save")
    if not trust:
        reject_addresses(module.target, f"the plan in {str(path)!r}")
    try:
        data = parse_json(held, "it")
        where, costs, objective, sites = _read(data)
        constants = data.get("constants")
        if constants is not None and constants not in CONSTANTS:
            raise ValueError(f"its constants are {constants!r}, which is none of {', '.join(CONSTANTS)}")
        request = replace(
            Request(replace(module, attrs=attrs), module.target, where, costs, objective),
            same_site=_groups(data, "same_site"),
            apart=_groups(data, "apart"),
            atomic=_groups(data, "atomic"),
            boundary_before=_names(data.get("boundary_before", [])),
            boundary_after=_names(data.get("boundary_after", [])),
            max_subgraphs={str(site): int(number) for site, number in data.get("max_regions", {}).items()},
            constants=constants,
        )
    except (TvmTargetError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{str(path)!r} holds no plan that can be read: {error}") from error
    return request, sites


def _groups(held: Mapping[str, Any], name: str) -> OpNames:
    return tuple(_names(names) for names in held.get(name, []))


def _names(listed: list[str]) -> tuple[str, ...]:
    return tuple(str(name) for name in listed)


def _read(held: dict[str, Any]) -> tuple[dict[str, Constraint], Costs | None, Objective, dict[str, str]]:
    if held["schema"] != _SCHEMA:
        raise ValueError(f"it is {held['schema']!r}; this version reads {_SCHEMA!r}")
    where = {key: Constraint.from_json(rule) for key, rule in held["where"].items()}
    costs = None if held["costs"] is None else load_costs(held["costs"])
    objective = held.get("objective", "latency")
    if objective not in OBJECTIVES:
        raise ValueError(f"its objective is {objective!r}, which is none of {', '.join(OBJECTIVES)}")
    return where, costs, objective, {str(op): str(site) for op, site in held["sites"].items()}
