"""Outlining: make a function for each subgraph and a driver for each system, with copies between memories."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import cast

from tvmtarget.ir.control_flow import control_flow_form
from tvmtarget.ir.function import COPY, DIMS, OPS, Attribute, Call, Function, Value
from tvmtarget.ir.names import Names
from tvmtarget.ir.types import TensorType, Type
from tvmtarget.partition.control.control_flow_ops import expected_body_runs
from tvmtarget.partition.control.drivers import DriverBlock, DriverStep, write_driver
from tvmtarget.partition.costs.memory_graph import MemoryGraph
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.host_device.attributes import SIDE_ATTRS, as_device, as_host
from tvmtarget.partition.local_edit import changed_ops
from tvmtarget.partition.options import Constants
from tvmtarget.partition.outline.constant_binding import lifted_constants
from tvmtarget.partition.outline.deduplicate import Correspondence, SubgraphStructure, SubgraphStructures, same_data
from tvmtarget.partition.partition_node import PartitionNode
from tvmtarget.partition.placement.pattern_groups import PatternGroup
from tvmtarget.partition.plan_cache import PlanCache
from tvmtarget.target.constraints.constraint import Constraint

__all__ = ["CopyRecord", "DrivenRecord", "Outlined", "SubgraphRecord", "outline"]


@dataclass(frozen=True, slots=True)
class SubgraphRecord:
    """One call of a leaf function in the partitioned program. Identical subgraphs share one function.

    Attributes:
        function: name of the leaf function.
        site: path of the site that runs it.
        calls: operations, by number in the original function.
        ops: their source names.
        inputs: names of the values that it reads.
        outputs: names of the values that it returns.
        inner: source names of the operations in regions of `calls`.
        runs: expected number of times that this call is made in one run of the program.
        device: path of the device that the function belongs to, if it is device code or runs on the host for it.
        call: path of the call: names of the calls of drivers, then of this one, joined by `/`.
    """

    function: str
    site: str
    calls: tuple[int, ...]
    ops: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    inner: tuple[str, ...] = ()
    runs: Fraction = Fraction(1)
    device: str | None = None
    call: str = ""


@dataclass(frozen=True, slots=True)
class DrivenRecord:
    """An operation with regions that a driver runs.

    Attributes:
        driver: name of the driver function.
        system: path of the system that the driver belongs to.
        call: number of the operation in the original function.
        op: its source name.
    """

    driver: str
    system: str
    call: int
    op: str


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """A copy between memory domains that a driver makes.

    Attributes:
        driver: name of the driver function.
        value: name of the value.
        src: memory domain to copy from.
        dst: memory domain to copy to.
        type: type of the value.
        runs: expected number of times that the copy is made in one run of the program.
        call: path of the call of the driver, as in `SubgraphRecord`; '' for the entry function.
    """

    driver: str
    value: str
    src: str
    dst: str
    type: Type
    runs: Fraction = Fraction(1)
    call: str = ""

    @property
    def nbytes(self) -> int | None:
        """Bytes of one copy; None for a dynamic shape."""
        return self.type.nbytes if isinstance(self.type, TensorType) else None


@dataclass(frozen=True, slots=True)
class Outlined:
    """The functions of a partitioned program, and records of what they run and copy.

    Attributes:
        functions: entry function first, each driver before the functions that it calls.
        subgraphs: calls of leaf functions, in execution order.
        copies: copies of all drivers, in execution order.
        driven: operations with regions that drivers run.
        memory_graph: memories and the links between them.
    """

    functions: tuple[Function, ...]
    subgraphs: tuple[SubgraphRecord, ...]
    copies: tuple[CopyRecord, ...]
    driven: tuple[DrivenRecord, ...] = ()
    memory_graph: MemoryGraph | None = None


def outline(
    program: FlatProgram,
    root: PartitionNode,
    groups: Iterable[PatternGroup] = (),
    *,
    constants: Constants | None = None,
    memory_graph: MemoryGraph | None = None,
    cache: PlanCache | None = None,
) -> Outlined:
    """Make the functions of a partition; the entry keeps the signature of the original function.

    Identical subgraphs become calls of one function. Calls after the first list the names of their operations in the
    attribute `ops` and their symbolic dimensions in `dims`. Function names derive from site, structure and constants
    (`npu_conv_1c9f2b3d` begins with a convolution), so that an edit elsewhere does not change them. Calls in the entry
    are named after one of their operations, those in other drivers after their callee.

    A leaf function lists its pattern matches in the attribute `matches`: for each the name of the pattern, then the
    names of the operations.

    Args:
        program: the program.
        root: the partition of its main function.
        groups: operations that patterns of code generators match together.
        constants: policy for weights, as in `lifted_constants`; None for that of each site's strategy.
        memory_graph: memories that values are copied over; by default those of the target, without measured costs.
        cache: results of an earlier plan.

    Returns:
        All functions, and records of calls and copies.
    """
    graph, groups = memory_graph or MemoryGraph(program.topology), tuple(groups)
    outliner = _Outliner(program, groups, graph, cache)
    if program.constants:
        outliner.structures.list_leaves(root, {})
    outliner.lifted = lifted_constants(
        program, outliner.structures, root, lambda leaf: outliner.boundary(leaf)[1], constants
    )
    known = None if cache is None else cast("_FlatOutline | None", cache.outlined)
    if cache is not None and known is not None:
        # It makes functions of its own, also where it gives up.
        editor = _Outliner(program, groups, graph, cache)
        editor.lifted = outliner.lifted
        flat = editor.after_edit(known, root)
        if flat is not None:
            cache.outlined = flat
            cache.count("outlined subgraphs", len(root.parts) - len(editor.subgraphs), len(root.parts))
            return flat.outlined
    outliner.structures.list_leaves(root, outliner.lifted)
    function = program.function
    params = tuple(param.name for param in function.params)
    context = _CallContext("", Fraction(1))
    # The entry is named before all other functions, so that it keeps its name.
    outliner.add(root, _Signature(outliner.names.fresh(function.name), params, function.results), context)
    functions, subgraphs, copies = tuple(outliner.functions), tuple(outliner.subgraphs), tuple(outliner.copies)
    outlined = Outlined(functions, subgraphs, copies, tuple(outliner.driven), outliner.memory_graph)
    if cache is not None:
        is_flat = not (root.is_leaf or program.bodies or outliner.groups) and all(part.is_leaf for part in root.parts)
        called = tuple(outliner.called)
        cache.outlined = _FlatOutline(program, root, outlined, outliner.lifted, called) if is_flat else None
    return outlined


@dataclass(frozen=True, slots=True)
class _CallContext:
    """The call of the function being made: its path, and the expected number of times that it runs."""

    path: str
    runs: Fraction

    def inner(self, name: str) -> _CallContext:
        return _CallContext(f"{self.path}/{name}" if self.path else name, self.runs)


@dataclass(frozen=True, slots=True)
class _Caller:
    """The driver being written, the names of its calls, and its own call."""

    driver: str
    is_entry: bool
    calls: Names
    context: _CallContext

    def name(self, callee: str, op: str) -> str:
        """Return a fresh name for a call whose first operation is `op`.

        Only the entry names calls after operations: other drivers may be shared by subgraphs with other operations.
        """
        return self.calls.fresh(op if self.is_entry and op else callee)


@dataclass(frozen=True, slots=True)
class _Signature:
    """Name, parameters and results of a function."""

    name: str
    params: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _OutlinedSubgraph:
    """A function that was made for a subgraph, the context of that call, and the records that it added.

    `execution_order` are the operations of the subgraph as the function runs them, each before those in its regions.
    Where a function in it was shared with another subgraph, that function's order counts.
    """

    signature: _Signature
    structure: SubgraphStructure
    context: _CallContext
    execution_order: tuple[int, ...]
    subgraphs: tuple[SubgraphRecord, ...]
    copies: tuple[CopyRecord, ...]
    driven: tuple[DrivenRecord, ...]


@dataclass(frozen=True, slots=True)
class _SharedPlaces:
    """Where a structure has the operations of a leaf function, as it runs them, and its parameters and results."""

    ops: tuple[int, ...]
    params: tuple[int, ...]
    results: tuple[int, ...]

    @classmethod
    def of(cls, shared: _OutlinedSubgraph) -> _SharedPlaces:
        structure, signature = shared.structure, shared.signature
        ops = {index: place for place, index in enumerate(structure.ops)}
        values = {name: place for place, name in enumerate((*structure.values, *structure.constants))}
        params, results = (tuple(map(values.__getitem__, names)) for names in (signature.params, signature.results))
        return cls(tuple(map(ops.__getitem__, shared.execution_order)), params, results)


@dataclass(frozen=True, slots=True)
class _CalledPart:
    """The call of a part of a flat partition, before the driver renames its operands.

    Attributes:
        structure: the structure of the part.
        call: the call.
        outlined: the function that is called, and what it was made for.
        base: the name of the function without the number that makes it unique; '' for that of an earlier part.
    """

    structure: SubgraphStructure
    call: Call
    outlined: _OutlinedSubgraph
    base: str = ""


@dataclass(frozen=True, slots=True)
class _FlatOutline:
    """What was outlined of a system whose children are leaves, kept for the program after an edit.

    Attributes:
        program: the program.
        root: its partition.
        outlined: the result.
        lifted: constants that are parameters.
        called: the calls of the parts, in order.
    """

    program: FlatProgram
    root: PartitionNode
    outlined: Outlined
    lifted: Mapping[int, frozenset[str]]
    called: tuple[_CalledPart, ...]

    def is_of(self, program: FlatProgram, root: PartitionNode, memory_graph: MemoryGraph) -> bool:
        """Whether a program is partitioned in the same way, and values take the same routes."""
        own, parts = self.program, zip(self.root.parts, root.parts, strict=False)
        graph = self.outlined.memory_graph
        return (
            (own.wiring is program.wiring and own.topology is program.topology and own.others == program.others)
            and own.constants.keys() == program.constants.keys()
            and (own.function.opsets, own.function.attrs) == (program.function.opsets, program.function.attrs)
            and (self.root.site, self.root.device, len(self.root.parts)) == (root.site, root.device, len(root.parts))
            and all(a is b or (a.site, a.calls, a.device) == (b.site, b.calls, b.device) for a, b in parts)
            and all(part.is_leaf for part in root.parts)
            and graph is not None
            and graph.costs == memory_graph.costs
        )


class _Outliner:
    def __init__(
        self,
        program: FlatProgram,
        groups: Iterable[PatternGroup],
        memory_graph: MemoryGraph,
        cache: PlanCache | None,
    ) -> None:
        self.program = program
        self.memory_graph = memory_graph
        self.groups = {group.calls[-1]: group for group in groups}
        self.structures = SubgraphStructures(program, self.groups.values(), cache)
        self.lifted: Mapping[int, frozenset[str]] = {}  # constants that are parameters of leaf functions
        self.outlined: dict[Hashable, list[_OutlinedSubgraph]] = {}  # by key of their structure
        self.functions: list[Function] = []
        self.subgraphs: list[SubgraphRecord] = []
        self.copies: list[CopyRecord] = []
        self.driven: list[DrivenRecord] = []
        self.execution_order: list[int] = []
        self.called: list[_CalledPart] = []  # by the entry
        self.places: dict[str, _SharedPlaces] = {}  # by name of the function
        self._constraints: dict[str, Constraint] = {}  # by path of the site
        self.constants = program.constants
        self.names = Names(function.name for function in program.others)
        # Attributes that an earlier decomposition added, and that this one derives anew.
        derived = ("role", "matches", *SIDE_ATTRS)
        self.entry_attrs = tuple(item for item in program.function.attrs if item[0] not in derived)

    def _constraint(self, path: str) -> Constraint:
        """Return the constraint of all functions of one site."""
        found = self._constraints.get(path)
        if found is None:
            found = self._constraints[path] = Constraint.at(path)
        return found

    @cached_property
    def has_effects(self) -> bool:
        """Whether any operation has an effect."""
        return any(map(attrgetter("has_effect"), self.program.body))

    @cached_property
    def values(self) -> Names:
        """The names of values, among which drivers name copies."""
        return Names(self.program.types)

    def add(self, subgraph: PartitionNode, signature: _Signature, context: _CallContext) -> _Signature:
        """Add the function of a subgraph, followed by those of its parts, and return its signature."""
        if not subgraph.is_leaf:
            return self._add_driver(subgraph, signature, context)
        self._add_leaf(subgraph, signature, context)
        return signature

    def call(self, subgraph: PartitionNode, caller: _Caller) -> Call:
        """Return a call of the function of an identical subgraph if there is one, else of a new function."""
        is_leaf = subgraph.is_leaf
        boundary = None if self.structures.is_listed(subgraph) else self.boundary(subgraph)
        structure = self.structures.of(subgraph, boundary[1] if boundary else (), self._held_constants)
        candidates = self.outlined.setdefault(structure.key, [])
        is_same = self._has_same_constants if is_leaf else self._is_same_driver
        # The records of a function that never runs cannot be scaled to another number of runs.
        shared = next((one for one in candidates if one.context.runs and is_same(one.structure, structure)), None)
        first_op = self._first_op(self.program, structure)
        if shared is not None:
            name = caller.name(shared.signature.name, first_op)
            is_plain = is_leaf and not self.program.bodies
            repeat = self._repeat_leaf if is_plain else self._repeat_driver
            call = repeat(shared, structure, name, caller.context.inner(name))
            if caller.is_entry:
                self.called.append(_CalledPart(structure, call, shared))
            return call
        base = self.structures.name(subgraph, structure)
        signature = _Signature(self.names.fresh(base), *(boundary or self.boundary(subgraph)))
        name = caller.name(signature.name, first_op)
        context = caller.context.inner(name)
        starts = len(self.subgraphs), len(self.copies), len(self.driven), len(self.execution_order)
        signature = self.add(subgraph, signature, context)
        outlined = _OutlinedSubgraph(
            signature,
            structure,
            context,
            tuple(self.execution_order[starts[3] :]),
            tuple(self.subgraphs[starts[0] :]),
            tuple(self.copies[starts[1] :]),
            tuple(self.driven[starts[2] :]),
        )
        candidates.append(outlined)
        call = self._call_of(signature, name, structure)
        if caller.is_entry:
            self.called.append(_CalledPart(structure, call, outlined, base))
        return call

    def after_edit(self, known: _FlatOutline, root: PartitionNode) -> _FlatOutline | None:
        """Outline the edited parts of a flat partition; None where functions or copies of others may change."""
        if self.groups or self.lifted != known.lifted or not known.is_of(self.program, root, self.memory_graph):
            return None
        changed = frozenset(changed_ops(known.program, self.program))
        called, records = list(known.called), list(known.outlined.subgraphs)
        driver, *leaves = known.outlined.functions
        functions = {leaf.name: leaf for leaf in leaves}
        replaced: dict[str, Call] = {}  # by the name of the call before
        places = [place for place, part in enumerate(root.parts) if not changed.isdisjoint(part.calls)]
        self.structures.list_leaves(root, self.lifted, [root.parts[place].calls[0] for place in places])
        for place in places:
            old = called[place]
            new = self._called_again(known.program, root.parts[place], place, called, {driver.name, *functions})
            if new is None:
                return None
            if new.base:
                functions[new.outlined.signature.name] = self.functions[-1]
            called[place], records[place] = new, self.subgraphs[-1]
            replaced[old.call.source] = new.call
            heirs = [other for other, one in enumerate(called) if old.base and one.outlined is old.outlined]
            if heirs and self._keeps_function(known.program, old, new.structure):
                if not new.base:
                    return None
                for other in heirs:
                    called[other] = replace(called[other], outlined=new.outlined)
                continue
            # The function is left to the first of the other parts that call it. Numbers that make names unique depend
            # on the order of functions.
            if heirs and (old.outlined.signature.name != old.base or any(one.base == old.base for one in called)):
                return None
            shared: _OutlinedSubgraph | None = None
            for other in heirs:
                one = self._inherited(old, called[other], root.parts[other], shared)
                if one is None:
                    return None
                if shared is None:
                    shared, functions[one.outlined.signature.name] = one.outlined, self.functions[-1]
                called[other], records[other] = one, self.subgraphs[-1]
                replaced[one.call.source] = one.call
        body = tuple(
            [
                _in_place_of(call, replaced[call.source]) if call.op != COPY and call.source in replaced else call
                for call in driver.body
            ]
        )
        constants = tuple(self.constants[constant.name] for constant in driver.constants)
        own = (functions[one.outlined.signature.name] for one in called if one.base)
        outlined = replace(
            known.outlined,
            functions=(driver.replace(body=body, constants=constants), *own),
            subgraphs=tuple(records),
            memory_graph=self.memory_graph,
        )
        return _FlatOutline(self.program, root, outlined, self.lifted, tuple(called))

    def _called_again(
        self,
        before: FlatProgram,
        part: PartitionNode,
        place: int,
        called: Sequence[_CalledPart],
        names: Collection[str],
    ) -> _CalledPart | None:
        """Outline an edited part as `call` does it; None where that may change the call of another part."""
        old, (params, results) = called[place], self.boundary(part)
        structure = self.structures.of(part, results, self._held_constants)
        name, old_name = self._first_op(self.program, structure), old.call.source
        # Names of calls get numbers only where an operation has no name of its own.
        if old_name != self._first_op(before, old.structure) or not name:
            return None
        if name != old_name and any(one.call.source == name for one in called):
            return None
        # Functions of one name are compared in the order in which they are made.
        others = [one.structure for number, one in enumerate(called) if number != place]
        if structure.name_key and any(
            one.name_key == structure.name_key and one.key != structure.key for one in others
        ):
            return None
        equal = [
            (number, one.outlined)
            for number, one in enumerate(called)
            if one.base and number != place and one.structure.key == structure.key
            if self._has_same_constants(one.structure, structure)
        ]
        context = _CallContext(name, Fraction(1))
        if equal and equal[0][0] < place:
            shared = equal[0][1]
            new = _CalledPart(structure, self._repeat_leaf(shared, structure, name, context), shared)
        else:
            base, bases = self.structures.name(part, structure), [one.base for one in called if one is not old]
            own_name = old.outlined.signature.name if old.base else ""
            # The numbers that make names unique depend on all functions before.
            if equal or base in bases or base in self.names or (base in names and base != own_name):
                return None
            if old.base and (own_name != old.base or old.base in bases):
                return None
            signature = _Signature(base, params, results)
            self._add_leaf(part, signature, context)
            outlined = _OutlinedSubgraph(signature, structure, context, part.calls, (self.subgraphs[-1],), (), ())
            new = _CalledPart(structure, self._call_of(signature, name, structure), outlined, base)
        # The driver places copies in the order in which calls read their operands.
        return new if (new.call.inputs, new.call.outputs) == (old.call.inputs, old.call.outputs) else None

    def _first_op(self, program: FlatProgram, structure: SubgraphStructure) -> str:
        """Return the name of the operation that calls of a subgraph are named after; '' if there is none."""
        first = structure.first_op
        return "" if first is None else program.body[first].source

    def _keeps_function(self, before: FlatProgram, old: _CalledPart, structure: SubgraphStructure) -> bool:
        """Return whether a part has the structure and the constants that it had before an edit."""
        has_same_data = all(self.constants[name] is before.constants[name] for name in structure.constants)
        return has_same_data and structure == old.structure

    def _inherited(
        self, owner: _CalledPart, heir: _CalledPart, part: PartitionNode, shared: _OutlinedSubgraph | None
    ) -> _CalledPart | None:
        """Call a function whose owner no longer calls it: that of the first heir, which `shared` is then, if any."""
        structure, name = heir.structure, heir.call.source
        # A leaf of a large program may be listed as the owner was, and not as it lists its own operations.
        is_listed_as_owner = bool(structure.name_key) and structure.ops != part.calls
        if name != self._first_op(self.program, structure) or is_listed_as_owner:
            return None
        context, base = _CallContext(name, Fraction(1)), ""
        if shared is None:
            signature, base = _Signature(owner.outlined.signature.name, *self.boundary(part)), owner.base
            self._add_leaf(part, signature, context)
            self.places.pop(signature.name, None)
            shared = _OutlinedSubgraph(signature, structure, context, part.calls, (self.subgraphs[-1],), (), ())
            call = self._call_of(signature, name, structure)
        else:
            call = self._repeat_leaf(shared, structure, name, context)
        has_same_values = (call.inputs, call.outputs) == (heir.call.inputs, heir.call.outputs)
        return _CalledPart(structure, call, shared, base) if has_same_values else None

    def _call_of(
        self,
        signature: _Signature,
        name: str,
        structure: SubgraphStructure,
        attrs: tuple[tuple[str, Attribute], ...] = (),
    ) -> Call:
        """Return a call of a function; the names in its signature are those of the caller."""
        body, types = self.program.body, self.program.types
        # The call as a whole has an effect if any operation in it has one.
        has_effect = self.has_effects and any(body[index].has_effect for index in structure.ops)
        values = tuple([Value(value, types[value]) for value in signature.results])
        return Call(f"@{signature.name}", signature.params, values, attrs, source=name, has_effect=has_effect)

    def _repeat_leaf(
        self, shared: _OutlinedSubgraph, structure: SubgraphStructure, name: str, context: _CallContext
    ) -> Call:
        """Call the function of another leaf in a program without regions, as `_repeat_driver` calls any function."""
        places = self.places.get(shared.signature.name)
        if places is None:
            places = self.places[shared.signature.name] = _SharedPlaces.of(shared)
        own, body = structure.ops, self.program.body
        names = (*structure.values, *structure.constants) if structure.constants else structure.values
        calls = tuple([own[place] for place in places.ops])
        ops = tuple([body[index].source for index in calls])
        inputs = tuple([names[place] for place in places.params])
        outputs = tuple([names[place] for place in places.results])
        (record,) = shared.subgraphs
        self.subgraphs.append(
            SubgraphRecord(
                record.function,
                record.site,
                calls,
                ops,
                inputs,
                outputs,
                runs=_scaled_runs(record.runs, shared.context, context),
                device=record.device,
                call=context.path + record.call[len(shared.context.path) :],
            )
        )
        self.execution_order += calls
        attrs = ((OPS, ops), *_renamed_dims(shared.structure.dims, structure.dims)) if structure.dims else ((OPS, ops),)
        return self._call_of(_Signature(shared.signature.name, inputs, outputs), name, structure, attrs)

    def _repeat_driver(
        self, shared: _OutlinedSubgraph, structure: SubgraphStructure, name: str, context: _CallContext
    ) -> Call:
        """Call the function of another subgraph with the names that things have in this one, and record the call."""
        correspondence = shared.structure.correspondence(structure, shared.execution_order)
        self._repeat_records(shared, correspondence, context)
        signature, new = shared.signature, correspondence.values.__getitem__
        ops = tuple(self.program.body[index].source for index in correspondence.ops.values())
        attrs = ((OPS, ops), *_renamed_dims(shared.structure.dims, structure.dims))
        renamed = _Signature(signature.name, tuple(map(new, signature.params)), tuple(map(new, signature.results)))
        return self._call_of(renamed, name, structure, attrs)

    def _held_constants(self, leaf: PartitionNode) -> Collection[str]:
        """Return the constants that a leaf function holds if it reads them: all but its parameters."""
        lifted = self.lifted.get(leaf.calls[0]) if leaf.calls else None
        return self.constants.keys() - lifted if lifted else self.constants

    def _has_same_constants(self, one: SubgraphStructure, other: SubgraphStructure) -> bool:
        if not one.constants:
            return True
        pairs = zip(one.constants, other.constants, strict=True)
        return all(same_data(self.constants[first], self.constants[second]) for first, second in pairs)

    def _is_same_driver(self, one: SubgraphStructure, other: SubgraphStructure) -> bool:
        """Whether the copies of two drivers also have equal sizes, and so take the same routes."""
        sizes = self.memory_graph.costs.symbolic_hints
        return [*map(sizes.get, one.dims)] == [*map(sizes.get, other.dims)] and self._has_same_constants(one, other)

    def _repeat_records(self, shared: _OutlinedSubgraph, correspondence: Correspondence, context: _CallContext) -> None:
        """Add the records of a shared function for one more call of it."""
        ops, values, body, types = correspondence.ops, correspondence.values, self.program.body, self.program.types
        sources = {body[one].source: body[other].source for one, other in ops.items()}
        begin = len(shared.context.path)

        def renamed(names: tuple[str, ...], new: Mapping[str, str]) -> tuple[str, ...]:
            return tuple([new[name] for name in names])

        self.subgraphs += (
            replace(
                one,
                calls=tuple(ops[index] for index in one.calls),
                ops=renamed(one.ops, sources),
                inner=renamed(one.inner, sources),
                inputs=renamed(one.inputs, values),
                outputs=renamed(one.outputs, values),
                runs=_scaled_runs(one.runs, shared.context, context),
                call=context.path + one.call[begin:],
            )
            for one in shared.subgraphs
        )
        self.copies += (
            replace(
                one,
                value=values[one.value],
                type=types[values[one.value]],
                runs=_scaled_runs(one.runs, shared.context, context),
                call=context.path + one.call[begin:],
            )
            for one in shared.copies
        )
        self.driven += (replace(one, call=ops[one.call], op=sources[one.op]) for one in shared.driven)
        self.execution_order += ops.values()

    def _add_leaf(self, subgraph: PartitionNode, signature: _Signature, context: _CallContext) -> None:
        body = tuple(map(self.program.body.__getitem__, subgraph.calls))
        nested = (i for index in subgraph.calls for i in self.program.nested(index)) if self.program.bodies else ()
        inner = tuple(self.program.body[index].source for index in nested)
        # The names are only looked through for constants.
        used = (used for call in body for used in (call.uses() if call.regions else call.inputs))
        function = self._function(subgraph, signature, body, chain(used, signature.results), "leaf")
        matches = self._matches(subgraph)
        self.functions.append(function.replace(attrs=(*function.attrs, ("matches", matches))) if matches else function)
        self.execution_order += self.program.with_nested(subgraph.calls) if self.program.bodies else subgraph.calls
        ops = tuple(map(attrgetter("source"), body))
        self.subgraphs.append(
            SubgraphRecord(
                signature.name,
                subgraph.site.path,
                subgraph.calls,
                ops,
                signature.params,
                signature.results,
                inner,
                context.runs,
                subgraph.device,
                context.path or signature.name,
            )
        )

    def _matches(self, subgraph: PartitionNode) -> tuple[tuple[str, ...], ...]:
        if not self.groups:
            return ()
        kind, body = subgraph.site.target.kind, self.program.body
        groups = (self.groups[index] for index in subgraph.calls if index in self.groups)
        patterns = ((group.pattern_of(kind), group.calls) for group in groups)
        return tuple((name, *(body[index].source for index in calls)) for name, calls in patterns if name is not None)

    def _add_driver(self, subgraph: PartitionNode, signature: _Signature, context: _CallContext) -> _Signature:
        position, name = len(self.functions), signature.name
        is_entry = name == self.program.function.name
        steps = self._steps(subgraph, _Caller(name, is_entry, Names(), context))
        signature = signature if is_entry else _in_order_of_steps(signature, steps)
        block = DriverBlock("", signature.params, signature.results, steps, runs=context.runs)
        home = self.program.topology.home(subgraph.site.path)
        types = self.program.types.__getitem__
        domains = self.program.topology.domains()
        written = write_driver(block, home, self.constants, types, self.values, self.memory_graph, domains)
        self.copies += (
            CopyRecord(name, copy.value, copy.src, copy.dst, self.program.types[copy.value], copy.runs, context.path)
            for copy in written.copies
        )
        returning = replace(signature, results=written.results)
        function = self._function(subgraph, returning, written.body, block.used(), "driver")
        self.functions.insert(position, function)  # before the functions that its steps added
        return signature

    def _steps(self, subgraph: PartitionNode, caller: _Caller) -> tuple[DriverStep, ...]:
        """Return the steps of a driver for the parts of a system."""
        return tuple(
            self._control_flow_step(part, caller) if part.bodies else self._call_step(part, caller)
            for part in subgraph.parts
        )

    def _call_step(self, part: PartitionNode, caller: _Caller) -> DriverStep:
        return DriverStep(self.call(part, caller), self.program.topology.home(part.site.path))

    def boundary(self, part: PartitionNode) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the values that a part reads from outside, by first use, and those it computes for others, in order.

        Constants are not inputs of drivers: every function that reads one holds it.
        """
        program = self.program
        if self.structures.is_listed(part):
            return self.structures.boundary(part)
        inside = set(part.calls)
        results, readers = program.results, program.consumers
        defined = [output.name for index in part.calls for output in program.body[index].outputs if output.name]
        own = set(defined)
        held = self._held_constants(part) if part.is_leaf else self.constants
        own.add("")  # an absent operand
        inputs = [name for name in dict.fromkeys(self._uses(part)) if name not in own and name not in held]
        outputs = [name for name in defined if name in results or not inside.issuperset(readers.get(name, ()))]
        return tuple(inputs), tuple(outputs)

    def _uses(self, subgraph: PartitionNode) -> Iterable[str]:
        """Return the values that a subgraph reads, in execution order; of regions only what they capture."""
        if not self.program.bodies:
            # The operations of all parts, in order. A walk over the parts would take quadratic time in deep trees.
            body = self.program.body
            return chain.from_iterable([body[index].inputs for index in subgraph.calls])
        return self._uses_around_regions(subgraph)

    def _uses_around_regions(self, subgraph: PartitionNode) -> Iterator[str]:
        for part in subgraph.parts:
            yield from self._uses(part)
        if not subgraph.is_leaf and not subgraph.bodies:
            return
        for index in subgraph.calls:
            call = self.program.body[index]
            yield from filter(None, call.inputs) if subgraph.bodies else call.uses()
        scopes = self.program.bodies[subgraph.calls[0]] if subgraph.bodies else ()
        for scope, body in zip(scopes, subgraph.bodies, strict=True):
            own = scope.function.types
            yield from (name for name in (*self._uses(body), *scope.function.results) if name not in own)

    def _control_flow_step(self, part: PartitionNode, caller: _Caller) -> DriverStep:
        """Return the step of an operation whose regions the driver runs."""
        (index,) = part.calls
        call = self.program.body[index]
        self.execution_order.append(index)
        self.driven.append(DrivenRecord(caller.driver, part.site.path, index, call.source))
        form = control_flow_form(call)
        repeats = form is not None and form.repeats
        runs = caller.context.runs * expected_body_runs(self.program.op(index))
        inside = replace(caller, context=replace(caller.context, runs=runs))
        blocks = tuple(
            DriverBlock(
                scope.label,
                tuple(param.name for param in scope.function.params),
                scope.function.results,
                self._steps(body, inside),
                repeats,
                runs,
            )
            for scope, body in zip(self.program.bodies[index], part.bodies, strict=True)
        )
        return DriverStep(call, self.program.topology.home(part.site.path), blocks)

    def _function(
        self,
        subgraph: PartitionNode,
        signature: _Signature,
        body: tuple[Call, ...],
        used: Iterable[str],
        role: str,
    ) -> Function:
        domain = self.program.topology.home(subgraph.site.path)
        constants: dict[str, None] = {}
        if self.constants:
            constants = dict.fromkeys(name for name in used if name in self.constants and name not in signature.params)
        is_entry = signature.name == self.program.function.name
        function = Function(
            name=signature.name,
            params=tuple(Value(param, self.program.types[param], domain) for param in signature.params),
            body=body,
            results=signature.results,
            constants=tuple(self.constants[constant] for constant in constants),
            constraint=self._constraint(subgraph.site.path),
            opsets=self.program.function.opsets,
            attrs=(*(self.entry_attrs if is_entry else ()), ("role", role)),
        )
        device = subgraph.device
        if device is None:
            return function
        if subgraph.is_leaf and subgraph.site.path == device:
            return as_device(function)
        return as_host(function, self.program.topology[device].host, device)


def _in_order_of_steps(signature: _Signature, steps: tuple[DriverStep, ...]) -> _Signature:
    """Order parameters by first use, and results as the steps of a driver compute them.

    A shared function may run operations in another order than the program, and its calls list values in that order.
    """
    used = {name: place for place, name in enumerate(dict.fromkeys(DriverBlock("", (), (), steps).used()))}
    made = {output.name: place for place, output in enumerate(value for step in steps for value in step.call.outputs)}
    params = sorted(signature.params, key=lambda name: used.get(name, len(used)))
    results = sorted(signature.results, key=lambda name: made.get(name, len(made)))
    return _Signature(signature.name, tuple(params), tuple(results))


def _in_place_of(call: Call, other: Call) -> Call:
    """Return a call of a driver that calls as another one does, with the operands and results that it has."""
    return replace(call, op=other.op, attrs=other.attrs, source=other.source, has_effect=other.has_effect)


def _scaled_runs(runs: Fraction, shared: _CallContext, context: _CallContext) -> Fraction:
    """Return how often a call is made in a function that runs as often as one context says, and not as another."""
    return runs if context.runs is shared.runs or context.runs == shared.runs else runs * (context.runs / shared.runs)


def _renamed_dims(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the attribute with the symbolic dimensions that have another name here, as pairs of old and new name."""
    changed = tuple(name for pair in zip(old, new, strict=True) if pair[0] != pair[1] for name in pair)
    if changed:
        yield DIMS, changed
