"""Which leaf of the target supports which operation, and the reason where it does not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tvmtarget.errors import InfeasibleError
from tvmtarget.ir.dim_expressions import symbols_of
from tvmtarget.ir.function import Call, Constant, domain_of_op
from tvmtarget.ir.types import Dim, TensorType, Type
from tvmtarget.partition.control.control_flow_ops import why_not_driven
from tvmtarget.partition.flat_program import FlatProgram, atomic_call
from tvmtarget.partition.host_device.classify import host_can_compute
from tvmtarget.partition.machines.machine import Machines, is_distributed
from tvmtarget.partition.placement.indivisible_groups import atoms_of, call_groups, untyped
from tvmtarget.partition.placement.minimal_conflict import conflict_text
from tvmtarget.partition.placement.pattern_groups import PatternGroups, counted_values, exceeded_limit, match_patterns
from tvmtarget.partition.placement.where_rules import Requirement
from tvmtarget.partition.plan_cache import PlanCache
from tvmtarget.support.op import STATIC_INPUTS
from tvmtarget.support.registry import is_generator, strategy_at
from tvmtarget.support.strategy import Op, Reject, Strategy
from tvmtarget.target.constraints.constraint import Constraint, covers
from tvmtarget.target.constraints.node_context import NodeContext
from tvmtarget.target.topology import Site
from tvmtarget.union_find import UnionFind

__all__ = ["Feasibility", "has_preference"]

# Operations that an error lists; one unsupported operator can occur hundreds of times.
MAX_SHOWN = 5


class Feasibility:
    """Operator support of all sites for one program; every result is computed once.

    Args:
        program: the program.
        assumed: pairs of an operation and the path of a leaf that is assumed to support it, even against its strategy.
        splits: split functions of mixed host and device code even where the code generator supports them as a whole.
        cache: results of an earlier plan.
        first_kind: the kind of leaves whose patterns win where patterns overlap; empty for the order of the leaves.
        refused: why a code generator failed to compile an operation, by its number and the path of the leaf.
    """

    def __init__(
        self,
        program: FlatProgram,
        assumed: frozenset[tuple[int, str]] = frozenset(),
        *,
        splits: bool = False,
        cache: PlanCache | None = None,
        first_kind: str = "",
        refused: Mapping[tuple[int, str], str] | None = None,
    ) -> None:
        self.program = program
        self.refused = refused or {}
        self.first_kind = first_kind
        self.cache = cache or PlanCache()
        self.splits = splits
        self.assumed = assumed
        self.leaves = tuple(program.topology.leaves())
        self._reasons: dict[tuple[int, str], Reject | None] = {}
        self._supporting: set[tuple[int, str]] = set()  # leaves that support all operations of a class
        self._shared_reasons: dict[tuple[int, str], Reject] = {}  # why leaves support no operation of a class
        self._constraint_reasons: dict[tuple[tuple[Requirement, ...], str], Reject] = {}
        self._met: dict[tuple[Requirement, ...], npt.NDArray[np.bool_]] = {}
        self._met_by: dict[Constraint, npt.NDArray[np.bool_]] = {}
        self._below: dict[str, tuple[Site, ...]] = {}
        self._requirements_below: dict[int, Mapping[int, tuple[Requirement, ...]]] = {}
        self._driven: dict[tuple[int, str], Reject | None] = {}
        # Answers about operations of nested bodies, which are part of the answers about each operation around them.
        self._known_nested: dict[tuple[int, int], tuple[object, Call, Reject | None]] = {}
        self._columns = {leaf.path: place for place, leaf in enumerate(self.leaves)}
        self._strategies = {leaf.path: self._strategy_at(leaf) for leaf in self.leaves}
        self._generators = {leaf.path: tuple(self._around(leaf)) for leaf in self.leaves}
        # Rows of `supported` that are known from before an edit, and the operations whose rows are not.
        self._known: tuple[npt.NDArray[np.bool_], frozenset[int]] | None = None

    def after_edit(self, program: FlatProgram, changed: frozenset[int], cache: PlanCache) -> Feasibility:
        """Return the same for an edited program.

        Args:
            program: a program with as many operations, all but a few of them the same ones.
            changed: those operations that differ, or read other constants.
            cache: results of an earlier plan.

        Returns:
            New results.
        """
        found = Feasibility(program, splits=self.splits, cache=cache)
        # Patterns may match other operations too, now that these have changed.
        if not (self.groups.all or self.groups.rejected or found.groups.all or found.groups.rejected):
            found._known = self.supported, changed
        return found

    def without_cache(self) -> Feasibility:
        """Return the same answers, with a cache that is empty.

        Returns:
            What a cache can keep without a reference cycle.
        """
        found = copy(self)
        found.cache = PlanCache()
        return found

    @property
    def assumptions(self) -> tuple[object, ...]:
        """What the answers depend on besides program and target."""
        return self.assumed, self.refused, self.splits, self.first_kind

    def replace(
        self,
        *,
        program: FlatProgram | None = None,
        assumed: frozenset[tuple[int, str]] | None = None,
        refused: Mapping[tuple[int, str], str] | None = None,
        first_kind: str | None = None,
    ) -> Feasibility:
        """Return the same for another program or other assumptions.

        Args:
            program: a program; None keeps this one.
            assumed: assumptions; None keeps these.
            refused: why code generators failed to compile operations; None keeps these.
            first_kind: the kind of leaves whose patterns win; None keeps this one.

        Returns:
            New results that share the cache.
        """
        return Feasibility(
            program or self.program,
            self.assumed if assumed is None else assumed,
            splits=self.splits,
            cache=self.cache,
            first_kind=self.first_kind if first_kind is None else first_kind,
            refused=self.refused if refused is None else refused,
        )

    @cached_property
    def supported(self) -> npt.NDArray[np.bool_]:
        """Whether a leaf (column, as in `leaves`) supports an operation (row)."""
        if self._known is not None:
            found, changed = self._known[0].copy(), self._known[1]
            self.cache.count("operations", len(found) - len(changed), len(found))
            for index in changed:
                found[index] = self._row(index)[0]
            return found
        _, firsts, class_of = np.unique(self._classes, return_index=True, return_inverse=True)
        rows = [self._row(first) for first in firsts.tolist()]
        found = np.array([row for row, _ in rows], dtype=np.bool_).reshape(len(rows), len(self.leaves))[class_of]
        # Signatures leave out the values of constants: a strategy that read one must see every operation itself.
        has_read = np.array([has_read for _, has_read in rows], dtype=np.bool_)[class_of]
        has_read[firsts] = False
        for index in np.flatnonzero(has_read).tolist():
            found[index] = self._row(index)[0]
        return found

    @cached_property
    def _classes(self) -> npt.NDArray[np.int64]:
        """The class of each operation: those of one class agree in signature, requirements and patterns.

        A leaf supports all operations of a class or none, unless its strategy reads constants.
        """
        rows = self.program.requirement_rows
        signatures = len(self.program.representatives)
        classes = rows * signatures + self.program.signature_array
        for number, members in enumerate(self._distinguished().values(), 1):
            classes[members] += number * (1 + int(rows.max(initial=0))) * signatures
        return classes

    def _distinguished(self) -> dict[object, list[int]]:
        """Return operations that assumptions, failures, patterns or limits set apart from others of their signature."""
        assumed_leaves: dict[int, tuple[str, ...]] = {}
        for index, leaf in sorted(self.assumed):
            assumed_leaves[index] = (*assumed_leaves.get(index, ()), leaf)
        refused_leaves: dict[int, tuple[str, ...]] = {}
        for index, leaf in sorted(self.refused):
            refused_leaves[index] = (*refused_leaves.get(index, ()), leaf)
        rejected = {index for index, _ in self.groups.rejected}
        patterns = {index: group.patterns for index, group in self.groups.of.items()}
        # A signature does not say which operands are one value, nor which results are read.
        counts: dict[int, tuple[int, int]] = {}
        strategies = (self.strategy(site) for leaf in self.leaves for site in (leaf, *self._generators[leaf.path]))
        if any(one is not None and (one.max_inputs, one.max_outputs) != (None, None) for one in strategies):
            counts = {index: counted_values(self.program, (index,)) for index in range(len(self.program.body))}
        found: dict[object, list[int]] = {}
        for index in sorted({*assumed_leaves, *refused_leaves, *rejected, *patterns, *counts}):
            leaves = assumed_leaves.get(index), refused_leaves.get(index)
            key = (*leaves, patterns.get(index), index in rejected, counts.get(index))
            found.setdefault(key, []).append(index)
        return found

    @cached_property
    def groups(self) -> PatternGroups:
        """Matched groups of operations; an external generator's patterns come before those of its children."""
        sites = dict.fromkeys(site.path for leaf in self.leaves for site in (*self._generators[leaf.path], leaf))
        return match_patterns(
            self.program, map(self.program.topology.__getitem__, sites), self._allows, self.first_kind
        )

    @cached_property
    def alternatives(self) -> tuple[Feasibility, ...]:
        """Results where another kind of leaf wins overlapping patterns, if every operation still fits somewhere."""
        options = (self.replace(first_kind=kind) for kind in self.groups.overlapped)
        return tuple(option for option in options if option.is_complete)

    @property
    def is_complete(self) -> bool:
        """Whether every operation fits a site."""
        return next(self.unsupported(), None) is None

    def _allows(self, index: int, site: Site) -> bool:
        requirements = self.program.requirements[index]
        return any(self._constraint_reason(requirements, leaf) is None for leaf in self.leaves_below(site))

    def strategy(self, site: Site) -> Strategy | None:
        """Return the operator support of a site.

        Args:
            site: a leaf, or an external generator with children.

        Returns:
            The strategy; None if no package defines one, and for a plain system.
        """
        if site.path not in self._strategies:
            self._strategies[site.path] = self._strategy_at(site) if is_generator(site.target) else None
        return self._strategies[site.path]

    def _strategy_at(self, site: Site) -> Strategy | None:
        node = NodeContext(self.program.topology.root).below(site.path)
        executor = None if node is None else node.executor()
        return strategy_at(site.target, "graph" if executor is None else executor.kind)

    def _around(self, site: Site) -> Iterator[Site]:
        """Yield the external generators around a site, outermost first."""
        topology, segments = self.program.topology, site.path.split("/")
        for count in range(len(segments) if site.path else 0):
            around = topology["/".join(segments[:count])]
            if around.is_system and is_generator(around.target):
                yield around

    def columns(self, site: Site) -> list[int]:
        """Return the columns of the leaves at and below a site.

        Args:
            site: any site.

        Returns:
            Columns of `supported`.
        """
        return [self._columns[leaf.path] for leaf in self.leaves_below(site)]

    def _row(self, index: int) -> tuple[npt.NDArray[np.bool_], bool]:
        """Return which leaves support an operation, and whether a strategy read a constant to decide."""
        constants = _ReadTracker(self.program.constants)
        op = replace(self.program.op(index), constants=constants, known=self._known_nested)
        row = np.zeros(len(self.leaves), dtype=np.bool_)
        is_shared = not self.assumed and not self.refused and index not in self.program.bodies
        meeting = self._meeting(self.program.requirements[index])
        for columns in self._equal_columns if is_shared else np.arange(len(row))[:, None]:
            able = columns[meeting[columns]]
            for place, column in enumerate(able.tolist()):
                if self._compute_reason(index, self.leaves[column], op) is None:
                    row[able[place:]] = True
                    break
        return row, constants.has_read

    @cached_property
    def _equal_columns(self) -> list[npt.NDArray[np.int64]]:
        """Columns of leaves that support the same operations: they have one strategy, and one host or none."""
        found: dict[object, list[int]] = {}
        for column, leaf in enumerate(self.leaves):
            strategy, host = self._strategies[leaf.path], None if leaf.host == leaf.path else leaf.host
            is_alone = strategy is None or self._generators[leaf.path]
            found.setdefault(column if is_alone else (id(strategy), host), []).append(column)
        return [np.array(columns, dtype=np.int64) for columns in found.values()]

    def unsupported_reason(self, index: int, leaf: Site) -> Reject | None:
        """Return why a leaf cannot run an operation.

        Args:
            index: number of the operation.
            leaf: the leaf.

        Returns:
            The reason; None if it can.
        """
        key = (index, leaf.path)
        if key not in self._reasons:
            shared = (int(self._classes[index]), leaf.path)
            if shared in self._supporting:
                return None
            if shared in self._shared_reasons:
                return self._shared_reasons[shared]
            constants = _ReadTracker(self.program.constants)
            op = replace(self.program.op(index), constants=constants, known=self._known_nested)
            reason = self._reasons[key] = self._with_true_hint(self._compute_reason(index, leaf, op), op)
            if reason is None and not constants.has_read:
                self._supporting.add(shared)
            elif reason is not None and not constants.has_read and self._is_of_class(reason, index):
                self._shared_reasons[shared] = reason
        return self._reasons[key]

    def _is_of_class(self, reason: Reject, index: int) -> bool:
        """Return whether a reason holds for all operations of a class: it names nothing of one of them."""
        call = self.program.body[index]
        names = (call.source, *call.inputs, *(output.name for output in call.outputs))
        is_general = index not in self.program.bodies and STATIC_INPUTS not in reason.hint
        return is_general and not any(name in str(reason) for name in names if name)

    def _with_true_hint(self, reason: Reject | None, op: Op) -> Reject | None:
        """Leave out the advice to make inputs static where sizes depend on data, or it is an input that is needed."""
        if reason is None or STATIC_INPUTS not in reason.hint:
            return reason
        params = {param.name: param.type for param in self.program.function.params}
        given = {dim for type_ in params.values() for dim in _dims(type_) if isinstance(dim, str)}
        names = [name for name in (*op.call.inputs, *(one.name for one in op.call.outputs)) if name]
        dims = [dim for name in names for dim in _dims(self.program.types.get(name)) if not isinstance(dim, int)]
        # An operand that is computed is the first that the message quotes.
        needed = reason.code == "NEED_CONST" and any(f"{name!r}, is computed" in reason.message for name in params)
        if all(dim is not None and symbols_of(dim) <= given for dim in dims):
            is_true = bool(dims)
        else:
            is_true = bool(given) and self.program.values_of_open_size.isdisjoint(names)
        if is_true and not needed:
            return reason
        return replace(reason, hint=reason.hint.partition(STATIC_INPUTS)[0].removesuffix(", or "))

    def supports_each(self, calls: Sequence[int], leaf: Site) -> bool:
        """Check by one operation of each class whether a leaf supports all of some operations.

        Args:
            calls: numbers of operations.
            leaf: the leaf.

        Returns:
            False if `unsupported_reason` has a reason for any of them.
        """
        classes, firsts = np.unique(self._classes[np.array(calls, dtype=np.int64)], return_index=True)
        if any(self.unsupported_reason(calls[first], leaf) is not None for first in firsts.tolist()):
            return False
        if all((number, leaf.path) in self._supporting for number in classes.tolist()):
            return True
        return all(self.unsupported_reason(index, leaf) is None for index in calls)

    def check_all(self, hints: Mapping[int, str] | None = None) -> None:
        """Check that every operation fits a site.

        Args:
            hints: what to add to the reasons of an operation, by its number.

        Raises:
            InfeasibleError: with the first `MAX_SHOWN` operations that fit none, and the reason of each leaf.
        """
        unsupported = list(self.unsupported())
        hints = hints or {}
        problems = [self._explain_unsupported(index) + hints.get(index, "") for index in unsupported[:MAX_SHOWN]]
        if len(unsupported) > MAX_SHOWN:
            problems.append(f"... and {len(unsupported) - MAX_SHOWN} more ops that fit no site")
        if problems:
            raise InfeasibleError(*problems)

    def fits(self, calls: tuple[int, ...], site: Site) -> bool:
        """Check whether a site can run operations that must stay together.

        Args:
            calls: operations of one body.
            site: a leaf, which has to support all of them, or a system, which may divide them group by group.

        Returns:
            True if it can.
        """
        if not self.can_be_one_function(calls, site):
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
        """Check whether a site can run operations without dividing them.

        Args:
            calls: operations of one body.
            site: a leaf; or a system, for a single operation that one of its leaves supports, nested bodies included.

        Returns:
            True if it can.
        """
        if not site.is_system:
            is_supported = bool(self.supported[list(calls), self._columns[site.path]].all())
            return is_supported and self.can_be_one_function(calls, site)
        return len(calls) == 1 and bool(self.supported[calls[0], self.columns(site)].any())

    def can_be_one_function(self, calls: tuple[int, ...], site: Site) -> bool:
        """Check whether one function of operations keeps the limits of a site's code generator.

        Args:
            calls: operations of one body, each of which the site supports.
            site: any site.

        Returns:
            True if the function is within `subgraphs`, `max_ops`, `max_inputs` and `max_outputs` of the strategy.
        """
        strategy = self.strategy(site)
        if strategy is None or len(calls) == 1:
            return True
        if exceeded_limit(self.program, strategy, calls) is not None:
            return False
        if strategy.subgraphs == "single":
            group = self.groups.of.get(calls[0])
            return group is not None and {*calls} == {*group.calls} and group.pattern_of(site.target.kind) is not None
        if strategy.subgraphs != "connected":
            return True
        sets = UnionFind(calls)
        for index in calls:
            for name in self.program.body[index].uses():
                producer = self.program.producer.get(name)
                if producer is not None and producer in sets:
                    sets.union(producer, index)
        return len(sets.groups()) == 1

    def drives(self, calls: tuple[int, ...], site: Site) -> bool:
        """Check whether the driver of a system can run an operation with nested bodies.

        The system divides the bodies over its children.

        Args:
            calls: operations; only a single one can be driven.
            site: the system.

        Returns:
            True if it can.
        """
        return len(calls) == 1 and self.reason_not_driven(calls[0], site) is None

    def reason_not_driven(self, index: int, site: Site) -> Reject | None:
        """Return why the driver of a site cannot run an operation with nested bodies.

        Args:
            index: number of the operation.
            site: a system, or a device with a host.

        Returns:
            The reason; None if it can.
        """
        key = (index, site.path)
        if key not in self._driven:
            self._driven[key] = self._compute_not_driven(index, site)
        return self._driven[key]

    def _compute_not_driven(self, index: int, site: Site) -> Reject | None:
        program = self.program
        if index not in program.bodies:
            return Reject("CONTROL_FLOW", "it has no nested bodies")
        if not site.is_system and site.host == site.path:
            return Reject("CONTROL_FLOW", "a leaf that nothing drives has no driver")
        if atomic_call(program.frames[index], site.path) is not None:
            return Reject("CONSTRAINT", "it is in a function that stays whole")
        reason = why_not_driven(program.op(index))
        if reason is not None:
            return reason
        for system in (*self._around(site), *((site,) if site.is_system and is_generator(site.target) else ())):
            reason = self._generator_reason(index, system, program.op(index))
            if reason is not None:
                return reason
        options = self.options_of_bodies(site)
        if not site.path and is_distributed(site.target):
            machines = program.topology.options(site.path)
            single = next((option for option in machines if self.fits((index,), option)), None)
            if single is not None:
                return Reject("CONTROL_FLOW", f"one machine has to run all of it, and @{single.path} can")
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
                    message = f"{self._no_site(site)} can take {names} of {scope.label!r}"
                    return Reject("CONTROL_FLOW", message, hint if len(atom) > 1 and is_untyped else "")
        return None

    def options_of_bodies(self, site: Site) -> tuple[Site, ...]:
        """Return the sites over which a driver divides nested bodies.

        Args:
            site: the site of the driver.

        Returns:
            The children of a system; of a cluster only those on the driver's own machine.
        """
        options = self.program.topology.options(site.path) if site.is_system else ()
        if site.path or not is_distributed(site.target):
            return options
        machines = Machines(self.program.topology)
        return tuple(option for option in options if machines.of_site(option.path) == machines.home)

    def _no_site(self, site: Site) -> str:
        if site.path or not is_distributed(site.target):
            return "no site"
        return f"one machine has to run all of it, and nothing on @{Machines(self.program.topology).home}"

    def _can_divide(self, atom: tuple[int, ...], options: tuple[Site, ...], site: Site) -> bool:
        """Check whether a group of a nested body fits a child of a system, a device and its host, or their driver."""
        if not site.is_system:
            return all(self.unsupported_reason(inner, site) is None for inner in atom)
        return any(self.fits(atom, option) for option in options) or self.drives(atom, site)

    def preference_rank(self, calls: tuple[int, ...], site: Site) -> int:
        """Return how strongly operations prefer a site.

        Args:
            calls: operations.
            site: any site.

        Returns:
            The sum of the weights of the preferences that the best supporting leaf meets, over all operations; the best
            leaf for all operations of an atomic group.
        """
        together = [group for group in self.program.atomic if len(calls) > 1 and {*calls}.issuperset(group)]
        grouped = {index for group in together for index in group}
        alone = (
            self._op_rank((index,), site)
            for index in self._deciding(index for index in calls if index not in grouped)
            if self._has_preference(index)
        )
        return sum(alone) + sum(self._op_rank(tuple(self._deciding(group)), site) for group in together)

    def _deciding(self, calls: Iterable[int]) -> Iterator[int]:
        """Yield operations; in place of one with nested bodies, the operations in them."""
        for index in calls:
            inner = tuple(self.program.nested(index)) if index in self.program.bodies else ()
            yield from (one for one in inner if one not in self.program.bodies) if inner else (index,)

    def _has_preference(self, index: int) -> bool:
        return any(has_preference(requirement) for requirement in self.program.requirements[index])

    def _op_rank(self, calls: tuple[int, ...], site: Site) -> int:
        requirements = [one for index in calls for one in self.program.requirements[index]]
        rows = list(calls)
        feasible = (leaf for leaf in self.leaves_below(site) if self.supported[rows, self._columns[leaf.path]].all())
        return max(
            (sum(one.constraint.rank(leaf.target, leaf.path) for one in requirements) for leaf in feasible), default=0
        )

    def leaves_below(self, site: Site) -> tuple[Site, ...]:
        """Return the leaves at and below a site.

        Args:
            site: any site.

        Returns:
            Leaves in order of preference.
        """
        if site.path not in self._below:
            self._below[site.path] = tuple(self.program.topology.leaves(site.path))
        return self._below[site.path]

    def _compute_reason(self, index: int, leaf: Site, op: Op) -> Reject | None:
        reason = self._constraint_reason(self.program.requirements[index], leaf) or self._nested_constraint_reason(
            index, leaf
        )
        # An assumption replaces the answer of a strategy, but never a constraint of the user.
        if reason is not None or (index, leaf.path) in self.assumed:
            return reason
        refusal = self._refusal(index, leaf)
        if refusal is not None:
            return refusal
        # Children of an external generator only get what the generator itself supports.
        for system in self._generators[leaf.path]:
            reason = self._generator_reason(index, system, op)
            if reason is not None:
                return reason
        reason, strategy = self._strategy_reason(index, leaf, op), self.strategy(leaf)
        if strategy is None or reason is None or leaf.host == leaf.path:
            return reason
        if not self.splits and strategy.accepts != "device":
            return reason
        # A device with a host may leave the host's part of an operation, or its control flow, to the host.
        is_for_host = host_can_compute(self.program, op, leaf) or self.reason_not_driven(index, leaf) is None
        return None if is_for_host else reason

    def _refusal(self, index: int, leaf: Site) -> Reject | None:
        """Return why the code generator of a leaf failed to compile an operation, or one in its nested bodies."""
        if not self.refused:
            return None
        for inner in self.program.with_nested((index,)):
            if (inner, leaf.path) in self.refused:
                where = "" if inner == index else f"of {self.program.body[inner].source!r} in it, "
                return Reject("RULE", f"{where}{self.refused[inner, leaf.path]}")
        return None

    def _generator_reason(self, index: int, system: Site, op: Op) -> Reject | None:
        """Return why an external generator does not support an operation, which its children then do not get."""
        reason = self._strategy_reason(index, system, op)
        return None if reason is None else replace(reason, message=f"of @{system.path or '.'}, {reason.message}")

    def _strategy_reason(self, index: int, site: Site, op: Op) -> Reject | None:
        """Return why the code generator of a site does not support an operation, None if it does."""
        kind, strategy = site.target.kind, self.strategy(site)
        group = self.groups.of.get(index) if self.program.imported_matches else None
        if group is not None and group.pattern_of(kind) is not None:
            return None
        if strategy is None and self.program.imported_generators.get(index) == kind:
            # TVM's own patterns assigned the operation to this code generator; nothing else is known of it.
            return None
        if strategy is None:
            return Reject("NO_RULE", f"no installed package describes what {kind!r} supports", "install its plugin")
        reason = (
            self._pattern_reason(index, site, strategy, op)
            if strategy.is_matching
            else self._op_reason(index, strategy, op)
        )
        return reason or self._limit_reason(index, site, strategy)

    def _op_reason(self, index: int, strategy: Strategy, op: Op) -> Reject | None:
        """Return a strategy's reason; support, but no reason, is reused for a fingerprint, as reasons contain names."""
        # A strategy may read the data of constants and nested bodies, so its answer need not hold for other operations.
        if index in self.program.bodies or any(name in self.program.constants for name in op.call.inputs):
            return strategy.check(op)
        fingerprint = self.program.fingerprint(index)
        places: dict[str, int] = {}
        same = tuple(places.setdefault(name, place) for place, name in enumerate(op.call.inputs))  # equal operands
        key = id(strategy), fingerprint.text, fingerprint.dims, same, self.program.function.opsets
        # The result holds the strategy, because the id of an object that was freed can be reused.
        supports, _ = self.cache.find("operations that sites take", key, lambda: (strategy.check(op) is None, strategy))
        return None if supports else strategy.check(op)

    def _limit_reason(self, index: int, leaf: Site, strategy: Strategy) -> Reject | None:
        """Return which limit of a strategy a single operation exceeds; matches were checked when they were made."""
        group = self.groups.of.get(index)
        is_matched = group is not None and group.pattern_of(leaf.target.kind) is not None
        return None if is_matched else exceeded_limit(self.program, strategy, (index,))

    def _pattern_reason(self, index: int, leaf: Site, strategy: Strategy, op: Op) -> Reject | None:
        """Return None if a matched group has the operation, or the strategy supports it alone; else the reason."""
        group = self.groups.of.get(index)
        if group is not None and group.pattern_of(leaf.target.kind) is not None:
            return None
        alone = self._op_reason(index, strategy, op)
        return None if alone is None else self.groups.check(index, leaf.target.kind) or alone

    def _constraint_reason(self, requirements: tuple[Requirement, ...], leaf: Site) -> Reject | None:
        if self._meeting(requirements)[self._columns[leaf.path]]:
            return None
        key = (requirements, leaf.path)
        if key not in self._constraint_reasons:
            broken = (
                (item, reason)
                for item in requirements
                if item.constraint.is_required
                and not (reason := item.constraint.check(leaf.target, leaf.path, self.program.topology.root))
            )
            requirement, reason = next(broken)
            # Of a path there is no more to say than that the leaf is another one.
            why = "" if requirement.constraint.path is not None else f": {', '.join(_leaves_of(reason))}"
            self._constraint_reasons[key] = Reject("CONSTRAINT", f"it does not meet {requirement}{why}")
        return self._constraint_reasons[key]

    def _meeting(self, requirements: tuple[Requirement, ...]) -> npt.NDArray[np.bool_]:
        """Return whether a leaf (as in `leaves`) meets all of some requirements."""
        # Many operations share one tuple of requirements, and many requirements have one constraint.
        if requirements not in self._met:
            met = np.ones(len(self.leaves), dtype=np.bool_)
            for constraint in (one.constraint for one in requirements if one.constraint.is_required):
                if constraint not in self._met_by:
                    checked = [self._meets(constraint, leaf) for leaf in self.leaves]
                    self._met_by[constraint] = np.array(checked, dtype=np.bool_)
                met &= self._met_by[constraint]
            self._met[requirements] = met
        return self._met[requirements]

    def _meets(self, constraint: Constraint, leaf: Site) -> bool:
        # A path only has to be compared, which is far faster than checking a node with reasons.
        if constraint.path is not None:
            return covers(constraint.path, leaf.path) != constraint.is_negated
        return bool(constraint.check(leaf.target, leaf.path, self.program.topology.root))

    def _nested_constraint_reason(self, index: int, leaf: Site) -> Reject | None:
        """Return the first requirement in nested bodies that a leaf does not meet."""
        column = self._columns[leaf.path]
        if all(self._meeting(requirements)[column] for requirements in self._nested_requirements(index).values()):
            return None
        for inner in self.program.nested(index):
            reason = self._constraint_reason(self.program.requirements[inner], leaf)
            if reason is not None:
                return Reject(reason.code, f"of {self.program.body[inner].source!r} in it, {reason.message}")
        return None

    def _nested_requirements(self, index: int) -> Mapping[int, tuple[Requirement, ...]]:
        """Return the requirements of the operations in nested bodies of one by their identity, each tuple once."""
        if index not in self.program.bodies:
            return {}
        if index not in self._requirements_below:
            inner = [one for scope in self.program.bodies[index] for one in scope.calls]
            found = {id(one): one for one in map(self.program.requirements.__getitem__, inner)}
            for one in inner:
                found.update(self._nested_requirements(one))
            self._requirements_below[index] = found
        return self._requirements_below[index]

    def unsupported(self) -> Iterator[int]:
        """Yield the operations that fit no site.

        Yields:
            Numbers of operations; in place of one with nested bodies, of those in them that fit none.
        """
        able = self.supported[: len(self.program.top)].any(axis=1)
        return self._unsupported(np.flatnonzero(~able).tolist())

    def _unsupported(self, calls: Iterable[int]) -> Iterator[int]:
        """Yield operations that fit nowhere; in place of one with nested bodies those in them, if any."""
        for index in calls:
            if not self.fits((index,), self.program.topology[""]):
                inner = [
                    unsupported
                    for scope in self.program.bodies.get(index, ())
                    for unsupported in self._unsupported(scope.calls)
                ]
                yield from inner or [index]

    def _explain_unsupported(self, index: int) -> str:
        call = self.program.body[index]
        found = [self.unsupported_reason(index, leaf) for leaf in self.leaves]
        reasons = [f"@{leaf.path or '.'}: {reason}" for leaf, reason in zip(self.leaves, found, strict=True)]
        if index in self.program.bodies:
            root = self.program.topology[""]
            reasons.append(f"driven by @{root.host or '.'}: {self.reason_not_driven(index, root)}")
        listed = "; ".join(reasons) if reasons else "the target has no leaves"
        affected = tuple(self.program.with_nested((index,)))
        conflict = conflict_text(
            self.program, affected, lambda program: self.replace(program=program).fits((index,), program.topology[""])
        )
        name = call.source or next((output.name for output in call.outputs if output.name), "")
        has_fix = conflict or any(
            one is None or one.hint or ";" in one.message or one.code == "CONSTRAINT" for one in found
        )
        fix = "" if has_fix or not found else self._other_leaf(call)
        return f"op {name!r} ({call.kind}) fits no site of the target: {listed}{conflict}{fix}"

    def _other_leaf(self, call: Call) -> str:
        """Suggest a leaf for an operation that the leaves of the target have no code for."""
        is_known = call.op.startswith("onnx.") and domain_of_op(call.op) in ("", "ai.onnx.ml", "com.microsoft")
        if is_known and all(leaf.target.kind != "onnxruntime" for leaf in self.leaves):
            return "; give the target a leaf that supports it, such as onnxruntime"
        return "; write it as other operators, or give the target a leaf that supports it"


class _ReadTracker(Mapping[str, Constant]):
    """Constants by name; `has_read` becomes true once one is read, not by checking whether a name is one of them."""

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


def has_preference(requirement: Requirement) -> bool:
    """Check whether a constraint prefers some of the sites that meet it.

    Args:
        requirement: the constraint.

    Returns:
        True for a weight and for a choice of several.
    """
    return requirement.constraint.weight is not None or bool(requirement.constraint.any_of)


def _leaves_of(reason: object) -> Iterable[str]:
    lines = str(reason).splitlines()
    return [line.strip().removeprefix("NO ").removeprefix("UNKNOWN ") for line in lines if "YES" not in line][-1:]


def _dims(type_: Type) -> tuple[Dim, ...]:
    """Return the dimensions of a tensor, one of None if it is of unknown rank, or nothing is known of it."""
    if type_ is not None and not isinstance(type_, TensorType):
        return ()
    return (None,) if type_ is None or type_.shape is None else type_.shape
