"""What the pipeline works on: the request, and the decomposition that its stages complete step by step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import chain
from typing import Self

from tvmtarget.errors import UnknownNameError, did_you_mean, raise_all
from tvmtarget.ir.collected_sequences import stack_collected_sequences
from tvmtarget.ir.constant_folding import fold_constants
from tvmtarget.ir.function import FUNCTION, Call, calls_in
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.rewrite import with_op_names
from tvmtarget.ir.types import Type
from tvmtarget.partition.control.carried_dimensions import changed_carried_types, with_open_carried_dimensions
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.costs.predict import Prediction
from tvmtarget.partition.decisions import Decision
from tvmtarget.partition.flat_program import FlatProgram, normalise
from tvmtarget.partition.machines.throughput import Throughput, throughput_of
from tvmtarget.partition.options import OpGroups, PartitionOptions, is_group
from tvmtarget.partition.outline.outlining import CopyRecord, Outlined, SubgraphRecord
from tvmtarget.partition.partition_node import PartitionNode
from tvmtarget.partition.placement.constraint_paths import leaves_at
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.placement.hypotheses import Moves
from tvmtarget.partition.placement.where_rules import names_of
from tvmtarget.partition.plan_cache import NOTHING, CacheUse
from tvmtarget.support.registry import is_generator, strategy_at
from tvmtarget.target.argument_types import check_arguments
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import Target

__all__ = ["Decomposition", "Refusal", "Request", "folded_module"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """An operation that the code generator of a leaf failed to compile.

    Attributes:
        op: the name of the operation.
        leaf: the path of the leaf.
        reason: why it failed, as an unsupported reason.
    """

    op: str
    leaf: str
    reason: str


@dataclass(frozen=True)
class Request:
    """What to decompose: the module, the target, the options, and the moves of a what-if question.

    `refusals` are operations with leaves that failed to compile them, and must not get them.
    """

    module: IRModule
    target: Target
    options: PartitionOptions = field(default_factory=PartitionOptions)
    moves: Moves = ()
    refusals: tuple[Refusal, ...] = ()

    def with_options(self, **changes: object) -> Self:
        """Return the request with some options changed.

        Args:
            **changes: fields of `PartitionOptions`.

        Returns:
            The new request.
        """
        return replace(self, options=self.options.replace(**changes))

    @property
    def named_ops(self) -> frozenset[str]:
        """Names, globs and `op:KIND` of operations in the options and moves."""
        return frozenset(chain(self.options.where, self.options.named_ops, (name for name, _ in self.moves)))

    def names_whole(self, call: Call) -> bool:
        """Return whether options or moves name an operation, but not parts of its definition.

        Args:
            call: the operation.

        Returns:
            True for `att` and `op:Attention`; False for a glob such as `att*`, which matches `att/Softmax_6` too.
        """
        names = _OpNames((call,))
        return any(key in names and not fnmatchcase(f"{call.source}/", key) for key in self.named_ops)

    def without_costs(self) -> Self:
        """Return the request for a plan in order of preference."""
        return self.with_options(costs=None, objective="latency", max_replicas=1)

    def is_like(self, other: Request) -> bool:
        """Return whether another request has the same target, and the same options but for costs.

        Args:
            other: a request, maybe for another module.

        Returns:
            False also where one of them is a question, or has refusals.
        """
        if (self.moves, self.refusals) != (other.moves, other.refusals) or self.target != other.target:
            return False
        fields = type(self.options).model_fields.keys() - {"costs"}
        return all(getattr(self.options, name) == getattr(other.options, name) for name in fields)

    def check_names(self, program: FlatProgram) -> None:
        """Check the operation names of all options but `where`, which is checked when it matches.

        Args:
            program: the flat program of the request's module.

        Raises:
            UnknownNameError: with every name of no operation and the option it is in.
        """
        options = self.options
        groups = {"same_site": options.same_site, "apart": options.apart, "atomic": options.atomic}
        groups |= {"boundary_before": (options.boundary_before,), "boundary_after": (options.boundary_after,)}
        if not any(chain(*groups.values())):
            return
        known = _OpNames(program.body)
        unknown = ((name, option) for option, named in groups.items() for name in chain(*named) if name not in known)
        sources = [call.source for call in program.body]
        raise_all(
            UnknownNameError,
            [f"no op {name!r} in the model{did_you_mean(name, sources)} (in {option})" for name, option in unknown],
        )

    def on(self, module: IRModule, replaced: Collection[str] = ()) -> Request:
        """Return the request for an edited module.

        Args:
            module: the edited module.
            replaced: operations that those of their definitions stand for.

        Returns:
            The request without what it requires of operations that the edit removed.
        """
        flat = normalise(module.verify(), self.target, {})
        known, options = _OpNames((*flat.body, *chain(*map(calls_in, module))), replaced), self.options

        def remaining(names: Iterable[str]) -> tuple[str, ...]:
            return tuple(name for name in names if name in known)

        def groups(listed: OpGroups) -> OpGroups:
            return tuple(filter(is_group, map(remaining, listed)))

        functions = (*module.by_name, "main")
        edited = options.replace(
            where={
                name: rule
                for name, rule in options.where.items()
                if name in known or name.removeprefix(FUNCTION) in functions
            },
            same_site=groups(options.same_site),
            apart=groups(options.apart),
            atomic=groups(options.atomic),
            boundary_before=remaining(options.boundary_before),
            boundary_after=remaining(options.boundary_after),
        )
        moves = tuple((name, site) for name, site in self.moves if name in known)
        return replace(self, module=module, options=edited, moves=moves)


def folded_module(module: IRModule, request: Request, defined: Collection[str] = ()) -> tuple[IRModule, frozenset[str]]:
    """Fold constants, except operations that the options or moves of a request name.

    Rules by glob or operator may match folded operations, as long as they match another one too. A request that names
    operations of a definition in ONNX, such as `att/*`, has the operation `att` replaced by them.

    Args:
        module: the module of the request.
        request: the options and moves.
        defined: names of operations to replace by those of their definitions.

    Returns:
        The folded module, where one that was decomposed before stays as it is; and `defined` with the operations whose
        parts the request names.
    """
    if any(function.attr("role") is not None for function in module):
        return module, frozenset()
    named = module.map(lambda function: function if function.code is not None else with_op_names(function))
    keys = request.named_ops
    defined = frozenset(defined) | _with_named_parts(request, named)
    folded = _folded(named, lambda call: call.source in keys, defined, request.target)
    if folded is named:
        return module, frozenset()
    before, after = (_OpNames(chain(*map(calls_in, one))) for one in (named, folded))
    lost = [key for key in keys if key in before and key not in after]
    if lost:
        folded = _folded(
            named,
            lambda call: call.source in keys or any(key in _OpNames((call,)) for key in lost),
            defined,
            request.target,
        )
    return folded, defined


def _with_named_parts(request: Request, module: IRModule) -> frozenset[str]:
    """Return names that operations of definitions would begin with, if a request names such operations."""
    keys = {key for key in (*request.named_ops, *(one.op for one in request.refusals)) if "/" in key}
    if not keys:
        return frozenset()
    sources = {call.source for call in chain(*map(calls_in, module))}
    parts = [key for key in keys - sources if not any(fnmatchcase(source, key) for source in sources)]
    return frozenset(key[:at] for key in parts for at, character in enumerate(key) if character == "/")


def _folded(module: IRModule, keep: Callable[[Call], bool], defined: Collection[str], target: Target) -> IRModule:
    """Fold constants, after dimensions that loops change were opened: their sizes are no constants.

    More of them may show while types are inferred; all is folded again then.
    """
    strategies = (strategy_at(one) for _, one in target.walk() if is_generator(one))
    runs_scans = any(one is not None and one.supports_control_flow for one in strategies)
    if not runs_scans:  # and no sequences
        stacked = tuple(stack_collected_sequences(function, keep) for function in module)
        is_same = all(new is old for new, old in zip(stacked, module, strict=True))
        module = module if is_same else module.replace(functions=stacked)
    carried: dict[str, Type] = {}
    while True:
        opened = [with_open_carried_dimensions(function, carried) for function in module]
        is_same = all(new is old for new, old in zip(opened, module, strict=True))
        folded = fold_constants(
            module if is_same else module.replace(functions=tuple(opened)),
            keep,
            defined=defined,
            slices_scans=not runs_scans,
        )
        found = {name: type_ for function in folded for name, type_ in changed_carried_types(function).items()}
        if found.keys() <= carried.keys():
            return folded
        carried |= found


class _OpNames:
    """The names, globs and `op:KIND` that match an operation, or one of the definitions of replaced ones."""

    def __init__(self, calls: Iterable[Call], replaced: Collection[str] = ()) -> None:
        self._known = {name for call in calls for name in names_of(call)}
        self._parts = tuple(f"{name}/" for name in replaced if name in self._known)

    def __contains__(self, name: str) -> bool:
        is_known = name in self._known or any(fnmatchcase(own, name) for own in self._known)
        return is_known or name.startswith(self._parts)


@dataclass(frozen=True, eq=False)
class Decomposition:
    """A decomposed module with everything that was decided on the way; `module` alone is enough to build from.

    `root` is the tree of subgraphs and `outlined` the functions made of it. `estimates` and `prediction` are there if
    sites were chosen by cost. `reused` counts what an earlier plan contributed. `decisions` are the records of all
    stages. `prepared` is `feasibility` before operations were pinned to keep groups and limits, if it is another one.
    """

    module: IRModule
    request: Request
    program: FlatProgram
    feasibility: Feasibility
    root: PartitionNode
    outlined: Outlined
    estimates: Estimates | None = None
    prediction: Prediction | None = None
    reused: CacheUse = NOTHING
    decisions: tuple[Decision, ...] = ()
    prepared: Feasibility | None = None

    @cached_property
    def throughput(self) -> Throughput | None:
        """The predicted throughput; None without costs of time, or where one machine runs everything."""
        # The simulation of a stream takes longer than the prediction, and few of the plans compared need it.
        if self.estimates is None or self.estimates.costs.is_energy:
            return None
        return throughput_of(self.estimates, self.outlined, self.module)

    @property
    def unpinned(self) -> Feasibility:
        """What fits where by the request alone, from which other plans are made."""
        return self.prepared or self.feasibility

    @property
    def options(self) -> PartitionOptions:
        """The options that were decomposed by."""
        return self.request.options

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

    @check_arguments
    def leaves_of(self, name: str) -> frozenset[str]:
        """Return the leaves of a part of the target.

        Args:
            name: a path, or a constraint such as a kind or key.

        Returns:
            The paths of the leaves at and below that node, or that meet the constraint.

        Raises:
            UnknownNameError: if there are none.
        """
        return leaves_at(name, self.topology)

    def sites(self) -> dict[str, str]:
        """Return where every operation runs.

        Returns:
            Paths by operation name: of the leaf that runs it; for control flow that a driver runs, of the system.
        """
        by_op = {op: subgraph.site for subgraph in self.subgraphs for op in (*subgraph.ops, *subgraph.inner)}
        return by_op | {one.op: one.system for one in self.outlined.driven}

    @check_arguments
    def site_of(self, op: str) -> str:
        """Return where an operation runs.

        Args:
            op: its name.

        Returns:
            The path of the leaf that runs it; for control flow that a driver runs, of the driver's host.

        Raises:
            UnknownNameError: if there is no such operation.
        """
        index = self.program.find(op)
        driven = next((one for one in self.outlined.driven if one.call == index), None)
        if driven is not None:
            return self.topology[driven.system].host
        return next(subgraph.site for subgraph in self.subgraphs if op in subgraph.ops or op in subgraph.inner)

    @property
    def rank(self) -> tuple[int, ...]:
        """What the objective compares, less is better: predicted times in picoseconds; (0,) without costs."""
        if self.options.objective == "throughput" and self.throughput is not None:
            return self.throughput.rank
        return (self.prediction.total if self.prediction is not None else 0,)

    def is_no_worse_than(self, other: Decomposition) -> bool:
        """Return whether known numbers show this to be no slower than another decomposition.

        Args:
            other: a decomposition of the same module.

        Returns:
            True also where one of them has no predicted time.
        """
        here, there = self.prediction, other.prediction
        return here is None or there is None or (here.knows_all_of(there) and self.rank <= other.rank)

    def moved_from(self, sites: Mapping[str, str]) -> int:
        """Return how many operations are not where `sites` has them.

        Args:
            sites: paths by operation name; operations that it lacks do not count.

        Returns:
            The number of operations.
        """
        return sum(site != sites.get(op, site) for op, site in self.sites().items()) if sites else 0
