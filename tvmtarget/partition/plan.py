"""What a decomposition decided: the module that bears it, its report, its reasons, and the proof that it is valid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtarget.errors import InfeasibleError, TargetError, UnknownNameError, did_you_mean
from tvmtarget.ir.function import Function
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.control.boundary_memory import check_boundary_memory
from tvmtarget.partition.costs.cost_file import load_costs
from tvmtarget.partition.costs.costs import Costs, OpCost, SubgraphCost
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.costs.memory_graph import MemoryGraph
from tvmtarget.partition.costs.predict import Prediction, predict
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.machines.programs import programs_of
from tvmtarget.partition.machines.throughput import Throughput, throughput_of
from tvmtarget.partition.outline.outlining import CopyRecord, Outlined, SubgraphRecord, outline
from tvmtarget.partition.placement.choosers import choosers_for
from tvmtarget.partition.placement.colocation import (
    Colocation,
    ExcludedSites,
    alternative_pins,
    colocation_of,
    colocation_pins,
    with_pins,
)
from tvmtarget.partition.placement.constraint_paths import leaves_at
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.hypotheses import read_moves, unsupported_assumptions
from tvmtarget.partition.plan_cache import NOTHING, CacheUse, PlanCache
from tvmtarget.partition.reports.alternatives import Alternative
from tvmtarget.partition.reports.annotate_onnx import annotated_model
from tvmtarget.partition.reports.blockers import Blocker, blockers
from tvmtarget.partition.reports.diagram import subgraph_graph, to_dot, to_mermaid
from tvmtarget.partition.reports.difference import PlanDifference, difference, totals
from tvmtarget.partition.reports.explain import Explanation, explain_op
from tvmtarget.partition.reports.plan_json import plan_json
from tvmtarget.partition.reports.rules import RuleEffects, RuleReport
from tvmtarget.partition.reports.sensitivity import Sensitivity
from tvmtarget.partition.reports.summary import summary_of
from tvmtarget.partition.reports.tasks import Task, tasks_of
from tvmtarget.partition.request import Request, read_plan, write_plan
from tvmtarget.partition.split import Chooser, PartitionNode, split
from tvmtarget.partition.subgraphs.single_subgraph import leaving_ops
from tvmtarget.partition.subgraphs.subgraph_budget import over_budget
from tvmtarget.partition.verify import verify_plan
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import Target

if TYPE_CHECKING:
    import networkx
    import onnx
    import tvm

__all__ = ["Plan", "planned"]


@dataclass(frozen=True)
class Plan:
    """The result of `decompose`; `module` alone is enough to build from.

    `estimates` and `prediction` are there if sites were chosen by cost, and `pace` if there are several machines then.
    `reused` tells what was known from an earlier plan.
    """

    module: IRModule
    request: Request
    program: FlatProgram
    feasibility: Feasibility
    root: PartitionNode
    outlined: Outlined
    estimates: Estimates | None = None
    prediction: Prediction | None = None
    pace: Throughput | None = None
    reused: CacheUse = NOTHING

    @property
    def topology(self) -> Topology:
        """The sites of the resolved target."""
        return self.program.topology

    @property
    def subgraphs(self) -> tuple[SubgraphRecord, ...]:
        """The leaf functions in the order in which they are called."""
        return self.outlined.subgraphs

    @property
    def copies(self) -> tuple[CopyRecord, ...]:
        """The copies between memories, in order."""
        return self.outlined.copies

    def tasks(self) -> tuple[Task, ...]:
        """Return the leaf functions to tune: those of one structure, for one code generator, count as one."""
        return tasks_of(self.module, self.topology, self.subgraphs)

    def functions(self, target: str = "") -> tuple[Function, ...]:
        """Return the leaf functions at and below a node: a path, or a kind or key such as `gpu`.

        `UnknownNameError` if no site of the target is or bears that.
        """
        leaves = self.leaves_of(target)
        names = dict.fromkeys(subgraph.function for subgraph in self.subgraphs if subgraph.site in leaves)
        return tuple(map(self.module.__getitem__, names))

    def to_tvm(self) -> tvm.IRModule:
        """Return the divided program as a module of Apache TVM, from which `relax.transform.RunCodegen` goes on.

        Operations that a strategy takes together by one of its patterns are inner functions, as MergeCompositeFunctions
        leaves them: `Composite` is `<kind>.<pattern>`.
        """
        from tvmtarget.partition.outline.composites import with_composites

        return with_composites(self.module, self.topology).to_tvm()

    def codegen_options(self) -> dict[str, dict[str, Any]]:
        """Return the options of `RunCodegen`: for each external generator the attributes of its node."""
        from tvmtarget.ir.relax.deployed import codegen_options

        return codegen_options(self.module.functions, self.topology.root)

    def leaves_of(self, name: str) -> frozenset[str]:
        """Return the leaves at and below a path, or that meet a constraint; `UnknownNameError` if there are none."""
        return leaves_at(name, self.topology)

    def sites(self) -> dict[str, str]:
        """Return the path of the leaf that runs it for every operation, by name; of control flow, of the driver."""
        held = {op: subgraph.site for subgraph in self.subgraphs for op in (*subgraph.ops, *subgraph.inner)}
        return held | {one.op: one.system for one in self.outlined.driven}

    def site_of(self, op: str) -> str:
        """Return the path of the leaf that runs an operation; for control flow that a driver runs, of its host."""
        index = self.program.find(op)
        driven = next((one for one in self.outlined.driven if one.call == index), None)
        if driven is not None:
            return self.topology[driven.system].host
        return next(subgraph.site for subgraph in self.subgraphs if op in subgraph.ops or op in subgraph.inner)

    def diff(self, other: Plan) -> PlanDifference:
        """Say which operations are elsewhere in another plan, and what subgraphs, copies and time are there."""
        return difference(self, other)

    def what_if(
        self, op: str | Mapping[str, Constraint | Target | str], site: Constraint | Target | str | None = None
    ) -> Plan:
        """Return the plan there would be if operations were required to be elsewhere; `plan.diff` says what changes.

        The program is divided again with these requirements beside all others. Where no site that meets one takes an
        operation, such a site is supposed to take it, and `plan.diff(...).hypothetical` says so.

        Args:
            op: operations by name, glob or `op:KIND`, as in `where`, or a mapping from these to sites.
            site: a child's name, a path, a kind, or any constraint, as in `where`.

        Raises:
            InfeasibleError: if other requirements forbid it, with those of which one would have to go.
            UnknownNameError: for names of no operation or site.
        """
        moves = read_moves(op if isinstance(op, Mapping) else {op: site}, self.topology)
        request = replace(self.request, moves=(*self.request.moves, *moves))
        cache = PlanCache(self.feasibility.cache)
        return planned(request, request.feasibility(splits=self.feasibility.splits, cache=cache))

    def with_support(self, op: str, site: str) -> Plan:
        """Return the plan there would be if a site took what its code generator refuses; for questions, not to build.

        `op` and `site` are as in `what_if`. Operations may go to the site then, and need not.
        """
        chosen, leaves = self.program.named(op), self.leaves_of(site)
        assumed = self.feasibility.assumed.union((index, leaf) for index in chosen for leaf in leaves)
        return planned(self.request, self.feasibility.replace(assumed=assumed))

    def hypotheses(self) -> tuple[str, ...]:
        """Return which operations are on sites that do not take them, as `what_if` supposed that they do."""
        return tuple(unsupported_assumptions(self.feasibility, self.sites())) if self.feasibility.assumed else ()

    def blockers(self, limit: int = 5) -> tuple[Blocker, ...]:
        """Return the operators whose support by a site that refuses them would gain most; each is tried."""
        return blockers(self, limit)

    def alternatives(self) -> tuple[Alternative, ...]:
        """Return this plan, the one of every operation on the first site that takes it, and those of single leaves."""
        names = [call.source for call in self.program.body]
        by_order = planned(replace(self.request, costs=None, objective="latency"), self.feasibility).sites()
        wanted = {"as planned": self.sites(), "in order of preference": by_order}
        wanted |= {f"all on @{leaf.path or '.'}": dict.fromkeys(names, leaf.path) for leaf in self.feasibility.leaves}
        found = []
        for name, sites in wanted.items():
            plan = self if name == "as planned" else planned(self.request, self.feasibility, sites)
            had = plan.sites()
            share = sum(had[op] == site for op, site in sites.items()) / max(1, len(sites))
            found.append(Alternative(name, share, totals(plan)))
        return tuple(found)

    def sensitivity(self, op: str) -> Sensitivity:
        """Say how long an operation may take before it is better elsewhere, by the costs; each other site is tried.

        The rest of the program follows: it is decided again with the operation there.

        `TargetError` if sites were not chosen by costs, or if its own time is unknown. Sites where something about
        the operation is unknown are left out.
        """
        index, here = self.program.find(op), self.site_of(op)
        time = None if self.estimates is None else self.estimates.time(index, self.topology[here]).time
        if time is None or self.prediction is None:
            unknown = f"what it takes on @{here or '.'} is unknown"
            why = "sites were not chosen by costs" if self.estimates is None else unknown
            raise TargetError(f"nothing can be said of {op!r}: {why}; pass costs that speak of it")
        longer: dict[str, int] = {}
        for leaf in self.feasibility.leaves:
            refusal = self.feasibility.unsupported_reason(index, leaf)
            if leaf.path == here or (refusal is not None and refusal.code != "OVERLAP"):
                continue
            moved = planned(self.request, self.feasibility, {op: leaf.path})
            is_known = moved.prediction is not None and moved.prediction.knows_all_of(self.prediction)
            if moved.prediction and is_known and moved.site_of(op) == leaf.path:
                longer[leaf.path] = moved.prediction.total - self.prediction.total
        return Sensitivity(op, here, time, longer)

    def replay(self, module: IRModule) -> Plan:
        """Divide an edited module alike: operations of the same name stay where they are, as far as they still may.

        What is new is placed as `decompose` would, given the rest; what was asked of operations that are gone no longer
        counts. `plan.diff(plan.replay(module))` tells what changed.
        """
        request = self.request.on(module)
        return planned(request, request.feasibility(cache=PlanCache(self.feasibility.cache)), self.sites())

    def save(self, path: str | Path) -> None:
        """Write the undivided module, what was asked for and what was decided into one file, a saved module.

        `TargetError` for the plan of a `what_if` question; ask for the same by `where`.
        """
        if self.request.moves or self.feasibility.assumed:
            raise TargetError("the plan of a what-if question is not saved; ask for the same by 'where'")
        write_plan(path, self.request, self.sites())

    @classmethod
    def load(cls, path: str | Path, *, trust: bool = False) -> Plan:
        """Read a saved plan, and prove it again; `ArtifactError` where it is none. `trust` is as in `IRModule.load`."""
        request, sites = read_plan(path, trust=trust)
        return planned(request, request.feasibility(), sites)

    def graph(self) -> networkx.MultiDiGraph:
        """Return the subgraphs as a graph; `subgraph_graph` says what its nodes and edges bear."""
        return subgraph_graph(self)

    def dot(self) -> str:
        """Write the subgraphs for Graphviz, a cluster for each site."""
        return to_dot(self)

    def mermaid(self) -> str:
        """Write the subgraphs for Mermaid, a subgraph for each site."""
        return to_mermaid(self)

    def marked(self) -> onnx.ModelProto:
        """Return the undivided model with site and function of each operation in the metadata of its node."""
        return annotated_model(self)

    def explain(self, op: str) -> Explanation:
        """Say why an operation is where it is, why nowhere else, and why its neighbours are in other subgraphs."""
        objective = self.request.objective
        explained = explain_op(
            self.program, self.feasibility, self.root, self.outlined, op, self.estimates, objective=objective
        )
        return replace(explained, rules=tuple(self._effects().lines(self.program.find(op))))

    def rules(self) -> tuple[RuleReport, ...]:
        """Return for each `where` rule how many operations it matches, and for how many it changes anything."""
        if not self.program.rules:
            return ()
        return tuple(self._effects().reports())

    def _effects(self) -> RuleEffects:
        sites = {
            index: subgraph.site for subgraph in self.subgraphs for index in self.program.with_nested(subgraph.calls)
        }
        sites |= {one.call: self.topology[one.system].host for one in self.outlined.driven}
        return RuleEffects(self.feasibility, sites)

    def with_costs(self, costs: Costs | Mapping[str, object] | str | Path | Iterable[OpCost | SubgraphCost]) -> Plan:
        """Return the plan of the same program by other costs, as `decompose` takes them, or by more measurements.

        With measurements of whole functions this plan's own sites are kept, if they are better so.
        """
        if isinstance(costs, Costs | Mapping | str | Path):
            costs = load_costs(costs)
        else:
            costs = (self.request.costs or Costs()).with_records(costs)
        request = replace(self.request, costs=costs)
        anew = planned(request, self.feasibility)
        kept = planned(request, self.feasibility, self.sites()) if costs.subgraphs else anew
        return kept if _is_no_worse(kept, anew) and _rank(kept) < _rank(anew) else anew

    def with_sites(self, sites: Sequence[str]) -> Plan:
        """Return the plan of the same program with the operations, in their order, on these sites.

        Raises `InfeasibleError` for an operation that may not go to its site, `UnknownNameError` for a site of none.
        """
        if len(sites) != len(self.program.body):
            raise InfeasibleError(f"{len(sites)} sites are given for {len(self.program.body)} ops")
        unknown = next((site for site in sites if site not in self.topology), None)
        if unknown is not None:
            raise UnknownNameError(f"no site {unknown!r} in the target{did_you_mean(unknown, self.leaves_of(''))}")
        wanted = {call.source: site for call, site in zip(self.program.body, sites, strict=True)}
        plan = planned(self.request, self.feasibility, wanted)
        had = plan.sites()
        lost = [op for op, site in wanted.items() if had[op] != site]
        if lost:
            raise InfeasibleError(f"op {lost[0]!r} may not go to @{wanted[lost[0]] or '.'}")
        return plan

    def verify(self) -> Plan:
        """Prove the invariants of a decomposition on the module itself; `ModelError` lists what is broken."""
        verify_plan(self.program, self.feasibility, self.module, self.outlined)
        return self

    def programs(self) -> dict[str, IRModule]:
        """Return the program of each machine by path, with its sends and receives, proven to fit together."""
        return programs_of(self.module, self.topology)

    def summary(self) -> str:
        """Return coverage, subgraphs and their lower bound, copies, and unmet preferences, a line each."""
        return "\n".join(summary_of(self))

    def to_json(self) -> dict[str, Any]:
        """Return subgraphs, copies and driven control flow as data; `plan_json` defines the numbers."""
        return plan_json(self)

    def __str__(self) -> str:
        return self.summary()


# How many plans are tried beside the first one that keeps colocation, in programs of up to so many operations.
MAX_MOVES, MOVABLE = 16, 1000

# How often subgraphs are given up because a site may get or take no more; each time it is asked for fewer.
MAX_ROUNDS = 16


def planned(request: Request, feasibility: Feasibility, sites: Mapping[str, str] | None = None) -> Plan:
    """Make the best plan that keeps what is asked of several operations at once; `sites` by operation are kept."""
    plan = free = _bound(request, feasibility, sites)
    banned: list[ExcludedSites] = []
    for _ in range(MAX_ROUNDS):
        limits = [(name, plan.leaves_of(name), most) for name, most in request.max_subgraphs.items()]
        asked = ExcludedSites("max_subgraphs", over_budget(plan.feasibility, plan.estimates, plan.subgraphs, limits))
        whole = ExcludedSites(
            "a site that takes one program", leaving_ops(plan.feasibility, plan.estimates, plan.subgraphs)
        )
        if not asked.leaves and not whole.leaves:
            return _with_least(plan, free)
        banned += [asked, whole]
        plan = _bound(request, feasibility, sites, banned)
    raise InfeasibleError(
        f"no plan was found in {MAX_ROUNDS} rounds that keeps 'max_subgraphs', and gives one program to sites that "
        "take one; allow more subgraphs, or place operations by 'where'"
    )


def _bound(
    request: Request, feasibility: Feasibility, sites: Mapping[str, str] | None, banned: Sequence[ExcludedSites] = ()
) -> Plan:
    """Make the best plan that keeps colocation, with operations kept off some leaves."""
    colocation = colocation_of(feasibility.program, request.same_site, request.apart)
    plain = with_pins(feasibility, {}, banned) if banned else feasibility
    plan = free = _best(request, plain, sites)
    pins: dict[int, str] = {}
    for _ in range(1 + 3 * len(colocation.apart) + len(colocation.same_site)):
        wanted = colocation_pins(plain, colocation, plan.sites(), pins)
        if wanted == pins:
            if sites is None and plan.prediction is not None:
                plan = _bettered(plan, plain, colocation, pins)
            return _with_least(plan, free)
        pins = wanted
        plan = _best(request, with_pins(feasibility, pins, banned), sites)
    raise InfeasibleError("no choice of sites was found that keeps all of 'apart'; ask less of it")


def _bettered(plan: Plan, plain: Feasibility, colocation: Colocation, pins: Mapping[int, str]) -> Plan:
    """Return the best plan by costs of a few whose groups are elsewhere; from each that is better the rest goes on."""
    tried = alternative_pins(plain, colocation, plan.sites(), pins)
    for _ in range(MAX_MOVES if len(plain.program.body) <= MOVABLE else 0):
        found = next(tried, None)
        if found is None:
            return plan
        better = _kept(plan, plain, colocation, found)
        if better is not None:
            plan, tried = better, alternative_pins(plain, colocation, better.sites(), found)
    return plan


def _kept(plan: Plan, plain: Feasibility, colocation: Colocation, pins: Mapping[int, str]) -> Plan | None:
    """Return the plan with other pins if it keeps colocation and is better than one that is there."""
    try:
        made = _best(plan.request, with_pins(plain, pins), None)
        keeps = colocation_pins(plain, colocation, made.sites(), pins) == pins
    except InfeasibleError:
        return None
    return made if keeps and _is_no_worse(made, plan) and _rank(made) < _rank(plan) else None


def _with_least(plan: Plan, free: Plan) -> Plan:
    """Return a plan with the bound of one of which less is asked: what keeps a request is one of many ways to."""
    if plan is free or plan.prediction is None or free.prediction is None:
        return plan
    return replace(plan, prediction=replace(plan.prediction, lower_bound=free.prediction.lower_bound))


def _best(request: Request, feasibility: Feasibility, sites: Mapping[str, str] | None) -> Plan:
    """Choose sites by preference, or by costs, and make the plan of that choice; `sites` by operation are kept.

    Below the root and in nested bodies the choice by cost sees only what is best for each operation. There both are
    made, and the choice by cost is kept if known numbers say that it is no slower; so it is with patterns that overlap.
    """
    estimates = None if request.costs is None else Estimates(feasibility.program, request.costs)
    ways = [feasibility] if estimates is None else [feasibility, *feasibility.others]
    plans = [
        _made(request, way, estimates, choose)
        for way in ways
        for choose in choosers_for(way, estimates, request.objective, sites)
    ]
    moved = [_moved(plan, sites) for plan in plans]
    first, *others = [plan for plan, number in zip(plans, moved, strict=True) if number == min(moved)]
    return min([*(plan for plan in others if _is_no_worse(plan, first)), first], key=_rank).verify()


def _moved(plan: Plan, sites: Mapping[str, str] | None) -> int:
    """Return how many operations are not where they were to be kept, as of patterns that overlap one counts."""
    return sum(site != sites.get(op, site) for op, site in plan.sites().items()) if sites else 0


def _is_no_worse(plan: Plan, other: Plan) -> bool:
    """Whether known numbers say that a plan is no slower than another one."""
    here, there = plan.prediction, other.prediction
    return here is None or there is None or (here.knows_all_of(there) and _rank(plan) <= _rank(other))


def _rank(plan: Plan) -> tuple[int, ...]:
    if plan.request.objective == "throughput" and plan.pace is not None:
        return plan.pace.rank
    return (plan.prediction.total if plan.prediction is not None else 0,)


def _made(request: Request, feasibility: Feasibility, estimates: Estimates | None, choose: Chooser) -> Plan:
    program = feasibility.program
    root = split(program, feasibility, program.topology[""], program.top, choose)
    check_boundary_memory(program, root)
    graph = MemoryGraph(program.topology) if estimates is None else estimates.memory_graph
    outlined = outline(program, root, feasibility.groups.all, constants=request.constants, memory_graph=graph)
    functions = (*outlined.functions, *program.others)
    module = request.module.replace(functions=functions, target=program.topology.root)
    prediction = None if estimates is None else predict(estimates, outlined, module, root.least_time)
    pace = None if estimates is None else throughput_of(estimates, outlined, module)
    return Plan(module, request, program, feasibility, root, outlined, estimates, prediction, pace)
