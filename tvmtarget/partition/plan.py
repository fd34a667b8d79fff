"""`decompose`, and the `Plan` that it returns: what was decided, and methods that print, question and change it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from tvmtarget.errors import ArgumentError, InfeasibleError, ModelError, TargetError, UnknownNameError, did_you_mean
from tvmtarget.garbage_collection import without_garbage_collection
from tvmtarget.ir.function import Function
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.costs.cost_file import load_costs
from tvmtarget.partition.costs.costs import Costs, OpCost, SubgraphCost
from tvmtarget.partition.decomposition import Decomposition, Request
from tvmtarget.partition.machines.programs import programs_of
from tvmtarget.partition.options import OptionValues, PartitionOptions
from tvmtarget.partition.pipeline import plan_request
from tvmtarget.partition.placement.constraint_paths import leaves_at
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.hypotheses import unsupported_assumptions
from tvmtarget.partition.plan_cache import PlanCache
from tvmtarget.partition.plan_file import read_plan, write_plan
from tvmtarget.partition.preparation import keep_for_edits, prepare
from tvmtarget.partition.verify import verify_dataflow, verify_plan
from tvmtarget.target.argument_types import check_methods
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.problems import shown
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import Target, TargetLike, as_target

# Most plans are built, and not printed: each report is imported by the method that returns it.
if TYPE_CHECKING:
    import networkx
    import onnx
    import tvm

    from tvmtarget.partition.reports import what_if as questions
    from tvmtarget.partition.reports.blockers import Blocker
    from tvmtarget.partition.reports.difference import PlanDifference
    from tvmtarget.partition.reports.explain import Explanation
    from tvmtarget.partition.reports.rules import RuleReport
    from tvmtarget.partition.reports.tasks import Task

__all__ = ["Plan", "decompose"]


def decompose(
    module: IRModule | onnx.ModelProto | tvm.IRModule | str | Path | bytes,
    target: TargetLike | None = None,
    costs: Costs | Mapping[str, object] | str | Path | None = None,
    *,
    entry: str | None = None,
    since: Plan | None = None,
    **options: Unpack[OptionValues],
) -> Plan:
    """Split the entry function of a module over the nodes of a target, down to single leaves.

    Args:
        module: a program, an ONNX file, its bytes or model, or a module of Apache TVM; constraints that its functions
            and calls already have are kept.
        target: the tree, in any form that `Target.parse` reads; the module's own unless given.
        costs: times of operations and copies, as in `PartitionOptions.costs`.
        entry: the function to decompose, which is called `main` then (`IRModule.with_entry`); others stay as they are.
        since: the plan before an edit. Its results are reused where their inputs are equal, which saves time and
            changes nothing; `plan.reused` counts them. To keep the sites that operations had, see `Plan.replay`.
        **options: the fields of `PartitionOptions`: where, objective, same_site, apart, atomic, boundary_before,
            boundary_after, max_subgraphs, fold_constants, constants.

    Returns:
        The plan: `plan.module` with every decision as a constraint that names one node, and its reports. Where a target
        that is a single leaf has no support for control flow of the program, `plan.topology.root` is a system of that
        leaf, whose host runs it.

    Raises:
        InfeasibleError: for operations that fit no site, with the reason of each.
        UnknownNameError: for names that are not in the model or the tree.
        ModelError: for an invalid module.
        TargetError: for a target or an option that is not valid.
    """
    chosen = None if target is None else as_target(target)
    program = IRModule.of(module, chosen, entry)
    chosen = chosen or program.target
    if chosen is None:
        raise TargetError("no target is given and the module has none; pass one, such as 'llvm'")
    main = program.by_name.get("main")
    if main is not None and main.code is not None:
        raise ModelError(
            "function 'main' is TIR code, which has no operations to place; split_host_device divides it into host and "
            "device code, and build builds it as it is"
        )
    request = Request(program, chosen, PartitionOptions.of(costs=costs, **options))
    if since is not None and not isinstance(since, Plan):
        raise TargetError(f"since is an earlier plan, not {shown(since)}")
    cache = PlanCache(None if since is None else since.feasibility.cache)
    with without_garbage_collection():
        try:
            feasibility = prepare(request, cache=cache)
        except InfeasibleError:
            if chosen.is_composite or main is None or not any(call.regions for call in main.body):
                raise
            # What a leaf does not run whole, the driver of a system may run.
            request = replace(request, target=_system_of(chosen))
            feasibility = prepare(request, cache=cache)
        plan = Plan.of(plan_request(request, feasibility))
        keep_for_edits(cache)
    return plan if since is None else replace(plan, reused=cache.reused())


def _system_of(leaf: Target) -> Target:
    """Return a system with one leaf, whose host runs control flow."""
    host = leaf.host or (f"@{leaf.slot}" if leaf.can_host else "llvm")
    child = leaf.replace(executor=None, runtime=None, host=None)
    return Target("composite", targets=(child,), host=host, executor=leaf.executor, runtime=leaf.runtime)


@check_methods("__init__")
class Plan(Decomposition):
    """The result of `decompose`: the decomposition, and questions to it.

    A plan is equal to itself only; `plan.module` and `plan.sites()` of two plans can be compared.
    """

    @classmethod
    def of(cls, decomposition: Decomposition) -> Self:
        """Return a decomposition as a plan.

        Args:
            decomposition: the result of the pipeline.

        Returns:
            The plan.
        """
        return cls(**{field.name: getattr(decomposition, field.name) for field in fields(decomposition)})

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: object) -> Self:
        return self

    def __getstate__(self) -> object:
        raise ArgumentError("a plan is not pickled; write it with plan.save(path), and read it with Plan.load(path)")

    # --- What was decided

    def tasks(self) -> tuple[Task, ...]:
        """Return the leaf functions to tune, one task for each structure and `codegen_key`."""
        from tvmtarget.partition.reports.tasks import tasks_of

        return tasks_of(self.module, self.topology, self.subgraphs)

    def functions(self, target: str = "") -> tuple[Function, ...]:
        """Return the leaf functions at and below a node.

        Args:
            target: a path, or a kind or key such as `gpu`.

        Returns:
            The functions, in the order of their first call.

        Raises:
            UnknownNameError: if no site of the target matches.
        """
        leaves = self.leaves_of(target)
        names = dict.fromkeys(subgraph.function for subgraph in self.subgraphs if subgraph.site in leaves)
        return tuple(map(self.module.__getitem__, names))

    def to_tvm(self) -> tvm.IRModule:
        """Return the decomposed module as a module of Apache TVM, for `relax.transform.RunCodegen`.

        Operations that a strategy's pattern matches together are inner functions, as MergeCompositeFunctions leaves
        them: `Composite` is `<kind>.<pattern>`.
        """
        from tvmtarget.ir.relax.lowering import tvm_module
        from tvmtarget.partition.outline.composites import with_composites

        # Calls do not name the operations that define and call inner functions, as `verify` would want.
        module = with_composites(self.module, self.topology)
        written: tvm.IRModule = tvm_module(module.functions, module.attrs, module.target)
        return written

    def codegen_options(self) -> dict[str, dict[str, Any]]:
        """Return the options of `RunCodegen`: the attributes of each external code generator."""
        from tvmtarget.ir.relax.lowering import codegen_options

        return codegen_options(self.module.functions, self.topology.root)

    def programs(self) -> dict[str, IRModule]:
        """Return the program of each machine by path, with verified sends and receives."""
        return programs_of(self.module, self.topology)

    def verify(self) -> Self:
        """Prove the invariants of a plan on its module, and that its functions compute the program.

        Returns:
            The plan.

        Raises:
            ModelError: with every invariant that does not hold.
        """
        verify_plan(self.program, self.feasibility, self.module, self.outlined)
        verify_dataflow(self.program, self.module, self.outlined.subgraphs)
        return self

    # --- Reports

    def summary(self) -> str:
        """Return coverage, subgraphs, copies and unmet preferences as lines of text."""
        from tvmtarget.partition.reports.summary import summary_of

        return "\n".join(summary_of(self))

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        from tvmtarget.partition.reports.summary import summary_of

        return f"<Plan: {next(summary_of(self))}>"

    def to_json(self) -> dict[str, Any]:
        """Return subgraphs, copies and driven control flow as data; `plan_json` defines the numbers."""
        from tvmtarget.partition.reports.plan_json import plan_json

        return plan_json(self)

    def explain(self, op: str) -> Explanation:
        """Say why an operation runs where it does, and why its neighbours are elsewhere.

        Args:
            op: the name of an operation.

        Returns:
            The explanation, which prints as lines.

        Raises:
            UnknownNameError: if there is no such operation.
        """
        from tvmtarget.partition.reports.explain import explain_op
        from tvmtarget.partition.reports.rules import RuleEffects

        return replace(explain_op(self, op), rules=tuple(RuleEffects.of(self).lines(self.program.find(op))))

    def rules(self) -> tuple[RuleReport, ...]:
        """Return what each `where` rule matches, and for how many operations it has an effect."""
        from tvmtarget.partition.reports.rules import RuleEffects

        return tuple(RuleEffects.of(self).reports()) if self.program.rules else ()

    def blockers(self, limit: int = 5) -> tuple[Blocker, ...]:
        """Return the operators whose support by one more site would gain most; each is tried.

        Args:
            limit: how many to return at most.

        Returns:
            The operators, the largest gain first.
        """
        from tvmtarget.partition.reports.blockers import blockers

        return blockers(self, limit)

    def graph(self) -> networkx.MultiDiGraph:
        """Return the subgraphs as a graph; `subgraph_graph` defines its attributes."""
        from tvmtarget.partition.reports.diagram import subgraph_graph

        return subgraph_graph(self)

    def dot(self) -> str:
        """Return the subgraphs as text for Graphviz, a cluster for each site."""
        from tvmtarget.partition.reports.diagram import to_dot

        return to_dot(self)

    def mermaid(self) -> str:
        """Return the subgraphs as text for Mermaid, a subgraph for each site."""
        from tvmtarget.partition.reports.diagram import to_mermaid

        return to_mermaid(self)

    def marked(self) -> onnx.ModelProto:
        """Return the original model with site and function in the metadata of its nodes."""
        from tvmtarget.partition.reports.annotate_onnx import annotated_model

        return annotated_model(self)

    def diff(self, other: Plan) -> PlanDifference:
        """Return how another plan differs: operations that moved, subgraphs, copies and time.

        Args:
            other: the plan to compare with.

        Returns:
            The difference, from this plan to the other.
        """
        from tvmtarget.partition.reports.difference import difference

        return difference(self, other)

    # --- Questions: plans that would be

    def what_if(
        self, op: str | Mapping[str, Constraint | Target | str], site: Constraint | Target | str | None = None
    ) -> Plan:
        """Return the plan there would be if operations were required to be elsewhere.

        `plan.diff` shows the change. Where no site that meets a requirement supports an operation, support is
        supposed, and `plan.diff(...).hypothetical` says so.

        Args:
            op: operations by name, glob or `op:KIND`, as in `where`, or a mapping from these to sites.
            site: a child's name, a path, a kind, or any constraint, as in `where`.

        Returns:
            The other plan.

        Raises:
            InfeasibleError: if other requirements forbid it; the message lists a set of requirements that conflict.
            UnknownNameError: for names of no operation or site.
        """
        from tvmtarget.partition.reports import what_if as questions

        return Plan.of(questions.with_moves(self, op if isinstance(op, Mapping) else {op: site}))

    def with_support(self, op: str, site: str) -> Plan:
        """Return the plan there would be if a site supported operations that it does not.

        Args:
            op: operations, as in `what_if`.
            site: a path or a constraint.

        Returns:
            The other plan, for questions, not to build.
        """
        from tvmtarget.partition.reports import what_if as questions

        return Plan.of(questions.with_support(self, op, site))

    def hypotheses(self) -> tuple[str, ...]:
        """Return the operations whose support `what_if` assumed, with the reason against it."""
        return tuple(unsupported_assumptions(self.feasibility, self.sites())) if self.feasibility.assumed else ()

    def alternatives(self) -> tuple[questions.Alternative, ...]:
        """Return this plan, the one by order of preference, and those of single leaves, in numbers."""
        from tvmtarget.partition.reports import what_if as questions

        return questions.alternatives(self)

    def sensitivity(self, op: str) -> questions.Sensitivity:
        """Return how long an operation may take before it is better elsewhere, by the costs.

        Args:
            op: the name of an operation.

        Returns:
            The interval, and how much longer the whole takes with the operation on each other site.

        Raises:
            TargetError: if sites were not chosen by costs, or the operation's own time is unknown.
        """
        from tvmtarget.partition.reports import what_if as questions

        return questions.sensitivity(self, op)

    # --- Changes: the same program planned again

    def replanned(
        self,
        request: Request | None = None,
        feasibility: Feasibility | None = None,
        sites: Mapping[str, str] | None = None,
    ) -> Plan:
        """Return the plan of another request, of other feasibility, or with other sites.

        Args:
            request: this plan's own unless given.
            feasibility: this plan's own, before groups and limits, unless given; it has to belong to the request.
            sites: paths by operation name that stay as they are wherever they are allowed.

        Returns:
            The plan.
        """
        return Plan.of(plan_request(request or self.request, feasibility or self.unpinned, sites))

    def replay(self, module: IRModule) -> Plan:
        """Decompose an edited module with the operations where they were, by name.

        Operations move only where they no longer may stay. New operations are placed as `decompose` would, given the
        rest; requirements on removed ones no longer count.

        Args:
            module: the edited module.

        Returns:
            The plan of the edited module; `plan.diff(...)` shows what changed.
        """
        request = self.request.on(module, self.program.replaced)
        return self.replanned(request, prepare(request, cache=PlanCache(self.feasibility.cache)), self.sites())

    def with_costs(self, costs: Costs | Mapping[str, object] | str | Path | Iterable[OpCost | SubgraphCost]) -> Plan:
        """Return the plan of the same program by other costs, or by more measurements.

        Args:
            costs: costs as `decompose` takes them, or measurements to add to this plan's own.

        Returns:
            The plan; with measurements of whole functions this plan's own sites are kept if they are better.
        """
        if isinstance(costs, Costs | Mapping | str | Path):
            costs = load_costs(costs)
        else:
            costs = (self.options.costs or Costs()).with_records(costs)
        request = self.request.with_options(costs=costs)
        anew = self.replanned(request)
        pinned = self.replanned(request, sites=self.sites()) if costs.subgraphs else anew
        return pinned if pinned.is_no_worse_than(anew) and pinned.rank < anew.rank else anew

    def with_sites(self, sites: Sequence[str]) -> Plan:
        """Return the plan of the same program with every operation on a given site.

        Args:
            sites: a path for each operation of the flat program, in order.

        Returns:
            The plan.

        Raises:
            InfeasibleError: for an operation that may not go to its site.
            UnknownNameError: for a path of no site.
        """
        if len(sites) != len(self.program.body):
            raise InfeasibleError(f"{len(sites)} sites are given for {len(self.program.body)} ops")
        _check_sites(self.topology, sites)
        by_op = {call.source: site for call, site in zip(self.program.body, sites, strict=True)}
        plan = self.replanned(sites=by_op)
        placed = plan.sites()
        elsewhere = next((op for op, site in by_op.items() if placed[op] != site), None)
        if elsewhere is not None:
            raise InfeasibleError(f"op {elsewhere!r} may not go to @{by_op[elsewhere] or '.'}")
        return plan

    # --- Files

    def save(self, path: str | Path) -> None:
        """Write the original module, the options and the decided sites into one file.

        Args:
            path: the file to write.

        Raises:
            TargetError: for the plan of a what-if question.
        """
        if self.request.moves or self.feasibility.assumed:
            raise TargetError("the plan of a what-if question is not saved; use 'where' for the same requirements")
        write_plan(path, self.request, self.sites())

    @classmethod
    def load(cls, path: str | Path, *, trust: bool = False, trust_target: bool = False) -> Plan:
        """Read a plan file, and verify the plan again.

        Args:
            path: the file.
            trust: as in `IRModule.load`.
            trust_target: whether the target may have attributes that only the user may state, as with `trust`.

        Returns:
            The plan.

        Raises:
            ArtifactError: if the file holds no plan.
            UnknownNameError: if the target has no site of a path in the file.
        """
        request, sites = read_plan(path, trust=trust, trust_target=trust_target)
        feasibility = prepare(request)
        _check_sites(feasibility.program.topology, sites.values())
        # Only a plan made anew has the records of why operations moved. Given sites are the result of these moves.
        with suppress(InfeasibleError):
            plan = plan_request(request, feasibility)
            if plan.sites() == sites:
                return cls.of(plan)
        return cls.of(plan_request(request, feasibility, sites))


def _check_sites(topology: Topology, paths: Iterable[str]) -> None:
    """Raise `UnknownNameError` for the first path of no site."""
    unknown = next((path for path in paths if path not in topology), None)
    if unknown is not None:
        raise UnknownNameError(f"no site {unknown!r} in the target{did_you_mean(unknown, leaves_at('', topology))}")
