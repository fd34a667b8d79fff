"""What a decomposition decided: the module that bears it, its report, its reasons, and the proof that it is valid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tvmtarget.ir.function import Function
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.assignment.choose import ByCost
from tvmtarget.partition.costs.costs import Costs, OpCost
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.costs.predict import Prediction, predict
from tvmtarget.partition.explain import Explanation, explain_op
from tvmtarget.partition.feasibility import Feasibility
from tvmtarget.partition.outline import CopyRecord, Outlined, RegionRecord, outline
from tvmtarget.partition.program import Program
from tvmtarget.partition.split import Chooser, Region, by_preference, split
from tvmtarget.partition.verify import verify_plan
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.layout import Layout

__all__ = ["Plan", "Request", "planned"]


@dataclass(frozen=True)
class Request:
    """What was asked for: the module to divide, the `where` rules, and the costs."""

    module: IRModule
    where: Mapping[str, Constraint]
    costs: Costs | None = None


@dataclass(frozen=True)
class Plan:
    """The result of `decompose`; `module` alone is enough to build from.

    `estimates` and `prediction` are there if sites were chosen by cost.
    """

    module: IRModule
    request: Request
    program: Program
    feasibility: Feasibility
    root: Region
    outlined: Outlined
    estimates: Estimates | None = None
    prediction: Prediction | None = None

    @property
    def layout(self) -> Layout:
        """The sites of the resolved target."""
        return self.program.layout

    @property
    def regions(self) -> tuple[RegionRecord, ...]:
        """The leaf functions in the order in which they are called."""
        return self.outlined.regions

    @property
    def copies(self) -> tuple[CopyRecord, ...]:
        """The copies between memories, in order."""
        return self.outlined.copies

    def functions(self, target: str = "") -> tuple[Function, ...]:
        """Return the leaf functions at and below a node: a path, or a kind or key such as `gpu`."""
        path = self.layout.canonical(target) if _is_path(self.layout, target) else None
        names = [
            region.function
            for region in self.regions
            if (_is_below(region.site, path) if path is not None else _bears(self.layout, region.site, target))
        ]
        return tuple(self.module[name] for name in names)

    def site_of(self, op: str) -> str:
        """Return the path of the leaf that runs an operation; for control flow that a driver runs, of its host."""
        index = self.program.find(op)
        driven = next((one for one in self.outlined.driven if one.call == index), None)
        if driven is not None:
            return self.layout[driven.system].host
        return next(region.site for region in self.regions if op in region.ops or op in region.inner)

    def explain(self, op: str) -> Explanation:
        """Say why an operation is where it is, why nowhere else, and why its neighbours are in other regions."""
        return explain_op(self.program, self.feasibility, self.root, self.outlined, op, self.estimates)

    def with_costs(self, costs: Costs | Iterable[OpCost]) -> Plan:
        """Return the plan of the same program by other costs, or by its own and more measurements."""
        if not isinstance(costs, Costs):
            costs = (self.request.costs or Costs()).with_records(costs)
        return planned(replace(self.request, costs=costs), self.program, self.feasibility)

    def verify(self) -> Plan:
        """Prove the invariants of a decomposition on the module itself; `ModelError` lists what is broken."""
        verify_plan(self.program, self.feasibility, self.module, self.outlined)
        return self

    def summary(self) -> str:
        """Tell coverage, regions against their lower bound, and copies, a line each."""
        return "\n".join(self._summary())

    def _summary(self) -> Iterator[str]:
        total = len(self.program.body)
        counts: Counter[str] = Counter()
        calls: Counter[str] = Counter()
        for region in self.regions:
            counts[region.site] += len(region.ops) + len(region.inner)
            calls[region.site] += 1
        yield f"{total} ops in {len(self.regions)} regions on {len(counts)} sites of {self.layout.root.kind}"
        for site in (leaf.path for leaf in self.layout.leaves()):
            share = 100 * counts[site] / total if total else 0.0
            kind = self.layout[site].target.kind
            yield f"  @{site or '.'} ({kind}): {counts[site]} ops ({share:.0f} %) in {calls[site]} regions"
        for system in _systems(self.root):
            where = f"@{system.site.path or '.'}"
            yield f"  driver of {where}: {len(system.parts)} regions, at least {system.least_parts} for these sites"
        if self.outlined.driven:
            kinds = Counter(self.program.body[one.call].kind for one in self.outlined.driven)
            counted = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
            yield f"  run by drivers: {counted}, whose bodies are divided"
        sizes = [copy.nbytes for copy in self.copies]
        known = sum(size for size in sizes if size is not None)
        open_ended = f", {sizes.count(None)} of them of open size" if None in sizes else ""
        yield f"  copies: {len(sizes)}, {known} bytes{open_ended}"
        if self.prediction is not None:
            yield from self.prediction.lines()

    def to_json(self) -> dict[str, Any]:
        """Return regions, copies, and control flow that drivers run as data.

        Sizes of copies are in bytes, None where the shape is open; `runs` says how often a region or copy in a
        nested body is expected to run, where that is not once.
        """
        return (
            {
                "regions": [
                    {
                        "site": region.site,
                        "function": region.function,
                        "ops": list(region.ops),
                        "inputs": list(region.inputs),
                        "outputs": list(region.outputs),
                    }
                    | ({"inner": list(region.inner)} if region.inner else {})
                    | ({"runs": float(region.runs)} if region.runs != 1 else {})
                    for region in self.regions
                ],
                "copies": [
                    {"value": copy.value, "src": copy.src, "dst": copy.dst, "bytes": copy.nbytes, "driver": copy.driver}
                    for copy in self.copies
                ],
            }
            | self._driven_to_json()
            | ({} if self.prediction is None else {"predicted": self.prediction.to_json()})
        )

    def _driven_to_json(self) -> dict[str, Any]:
        driven = [
            {
                "op": one.op,
                "kind": self.program.body[one.call].kind,
                "driver": one.driver,
                "site": self.layout[one.system].host,
                "bodies": {
                    scope.label: [self.program.body[index].source for index in scope.calls]
                    for scope in self.program.bodies[one.call]
                },
            }
            for one in self.outlined.driven
        ]
        return {"driven": driven} if driven else {}

    def __str__(self) -> str:
        return self.summary()


def planned(request: Request, program: Program, feasibility: Feasibility) -> Plan:
    """Choose sites by preference, or by costs, and make the plan of that choice.

    In a tree of one level the choice by cost is never slower than the one by preference. Deeper down it sees
    of a system only its best leaves, so both are made, and the better one is kept.
    """
    made = _Maker(request, program, feasibility, None if request.costs is None else Estimates(program, request.costs))
    if made.estimates is None:
        return made.plan(by_preference)
    by_cost = made.plan(ByCost(feasibility, made.estimates))
    if not any(option.is_system for option in program.layout.options("")):
        return by_cost
    return min((by_cost, made.plan(by_preference)), key=_rank)


def _rank(plan: Plan) -> tuple[int, int]:
    return plan.prediction.rank if plan.prediction is not None else (0, 0)


@dataclass(frozen=True)
class _Maker:
    request: Request
    program: Program
    feasibility: Feasibility
    estimates: Estimates | None

    def plan(self, choose: Chooser) -> Plan:
        program = self.program
        root = split(program, self.feasibility, program.layout[""], program.top, choose)
        outlined = outline(program, root)
        functions = (*outlined.functions, *program.others)
        module = self.request.module.replace(functions=functions, target=program.layout.root)
        prediction = None if self.estimates is None else predict(self.estimates, outlined, root.least_time)
        return Plan(
            module, self.request, program, self.feasibility, root, outlined, self.estimates, prediction
        ).verify()


def _systems(region: Region) -> Iterator[Region]:
    """Yield the systems that are called outside of nested bodies."""
    if region.site.is_system and not region.bodies:
        yield region
        for part in region.parts:
            yield from _systems(part)


def _is_path(layout: Layout, target: str) -> bool:
    return target == "" or layout.root.child(target.split("/")[0]) is not None


def _is_below(site: str, path: str) -> bool:
    return path in ("", site) or site.startswith((f"{path}/", f"{path}."))


def _bears(layout: Layout, site: str, word: str) -> bool:
    target = layout[site].target
    return word == target.kind or word in target.all_keys
