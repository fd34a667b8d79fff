"""Stages E and G: a function for each subgraph, a driver for each system, and copies where memories differ."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from tvmtarget.ir.function import DIMS, OPS, Attribute, Call, Function, Value
from tvmtarget.ir.names import Names
from tvmtarget.ir.types import TensorType, Type
from tvmtarget.partition.control.control_flow_ops import control_flow_form, expected_body_runs
from tvmtarget.partition.control.drivers import DriverBlock, DriverStep, write_driver
from tvmtarget.partition.costs.memory_graph import MemoryGraph
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.host_device.attributes import SIDE_ATTRS, as_device, as_host
from tvmtarget.partition.options import Constants
from tvmtarget.partition.outline.constant_binding import lifted_constants
from tvmtarget.partition.outline.deduplicate import Correspondence, SubgraphStructure, SubgraphStructures, same_data
from tvmtarget.partition.partition_node import PartitionNode
from tvmtarget.partition.placement.pattern_groups import PatternGroup
from tvmtarget.target.constraints.constraint import Constraint

__all__ = ["CopyRecord", "DrivenRecord", "Outlined", "SubgraphRecord", "outline"]


@dataclass(frozen=True, slots=True)
class SubgraphRecord:
    """A subgraph as a report tells it: its function, site, operations by source name, inputs and outputs.

    `calls` are the operations by their number in the undivided function, `inner` names what is in their nested
    bodies. `runs` is how often this call is made in one run of the program, as far as is known. `device` is the
    path of the device that the function is for, if it is device code or what the host does for it. Subgraphs that are
    alike have one function; `call` tells their calls apart: names of calls, those of drivers first, joined by `/`.
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
    """An operation with nested bodies that a driver runs: its number and name, the driver, and the system it is of."""

    driver: str
    system: str
    call: int
    op: str


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """A copy that a driver makes: which value, from and to which memory domain, its type, and how often.

    `call` is which call of the driver makes it, as in `SubgraphRecord`; '' for the entry.
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
        """What is moved at a time, in bytes, or None where the shape is open."""
        return self.type.nbytes if isinstance(self.type, TensorType) else None


@dataclass(frozen=True, slots=True)
class Outlined:
    """All functions of the decomposed program, the entry first, and what they do."""

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
) -> Outlined:
    """Make the functions of a tree of subgraphs; the entry keeps the signature of the original function.

    Subgraphs that are alike become calls of one function; calls after the first say in their attribute `ops` what the
    operations are called there, and in `dims` what symbolic dimensions are. Functions are named by site, structure and
    constants, so that an edit elsewhere leaves their names: `npu_conv_1c9f2b3d` begins with a convolution. Calls in the
    entry are named by one of their operations, those in other drivers by what they call.

    `constants` says which weights are parameters of functions (`weights.py`), `memory_graph` over which memories values
    are copied: unless given, that of the target alone.

    A leaf function says in its attribute `matches` which of its operations patterns of the strategy take together:
    for each match the pattern, then the names of the operations.
    """
    outliner = _Outliner(program, groups, memory_graph or MemoryGraph(program.topology))
    outliner.given = lifted_constants(program, outliner.shapes, root, lambda leaf: outliner.border(leaf)[1], constants)
    function = program.function
    params = tuple(param.name for param in function.params)
    around = _Around("", Fraction(1))
    outliner.add(root, _Border(outliner.names.fresh(function.name), params, function.results), around)
    functions, subgraphs, copies = tuple(outliner.functions), tuple(outliner.subgraphs), tuple(outliner.copies)
    return Outlined(functions, subgraphs, copies, tuple(outliner.driven), outliner.memory_graph)


@dataclass(frozen=True, slots=True)
class _Around:
    """The call of a function that is made: its name behind those around it, and how often it is made in one run."""

    call: str
    runs: Fraction

    def inner(self, name: str) -> _Around:
        return _Around(f"{self.call}/{name}" if self.call else name, self.runs)


@dataclass(frozen=True, slots=True)
class _Caller:
    """The driver that is written, the names of its calls, and the call of it that is made."""

    driver: str
    is_entry: bool
    calls: Names
    around: _Around

    def name(self, callee: str, op: str) -> str:
        """Return the name of a call that begins with an operation; in a driver that is shared, no operation's own."""
        return self.calls.fresh(op if self.is_entry and op else callee)


@dataclass(frozen=True, slots=True)
class _Border:
    """What a function is called, what it is given and what it returns."""

    name: str
    params: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Made:
    """A function that was made for a subgraph of some shape, for which call, and the records that came of it.

    `ran` are the operations of the subgraph as the function runs them, each before those in its bodies; where a
    function
    in it was made for another subgraph, that one's order counts.
    """

    border: _Border
    shape: SubgraphStructure
    around: _Around
    ran: tuple[int, ...]
    subgraphs: tuple[SubgraphRecord, ...]
    copies: tuple[CopyRecord, ...]
    driven: tuple[DrivenRecord, ...]


class _Outliner:
    def __init__(self, program: FlatProgram, groups: Iterable[PatternGroup], memory_graph: MemoryGraph) -> None:
        self.program = program
        self.memory_graph = memory_graph
        self.groups = {group.calls[-1]: group for group in groups}
        self.shapes = SubgraphStructures(program, self.groups.values())
        self.given: Mapping[int, frozenset[str]] = {}  # constants that are parameters of leaf functions
        self.made: dict[Hashable, list[_Made]] = {}
        self.functions: list[Function] = []
        self.subgraphs: list[SubgraphRecord] = []
        self.copies: list[CopyRecord] = []
        self.driven: list[DrivenRecord] = []
        self.ran: list[int] = []
        self.constants = program.constants
        self.names = Names(function.name for function in program.others)
        self.values = Names(program.types)
        made = ("role", "matches", *SIDE_ATTRS)
        self.kept = tuple(item for item in program.function.attrs if item[0] not in made)  # of the entry

    def add(self, subgraph: PartitionNode, border: _Border, around: _Around) -> None:
        """Add the function of a subgraph, and those of its parts behind it."""
        add = self._leaf if subgraph.is_leaf else self._driver
        add(subgraph, border, around)

    def shared(
        self, subgraph: PartitionNode, params: tuple[str, ...], results: tuple[str, ...], caller: _Caller
    ) -> Call:
        """Return the call of a subgraph: of a function that was made for one like it, else of a new one."""
        shape = self.shapes.of(subgraph, results, self._held)
        alike = self.made.setdefault(shape.key, [])
        is_same = self._is_same if subgraph.is_leaf else self._is_same_driver
        made = next((one for one in alike if one.around.runs and is_same(one.shape, shape)), None)
        if made is not None:
            matched, name = made.shape.matched(shape, made.ran), caller.name(made.border.name, self._source(shape))
            self._repeat(made, matched, caller.around.inner(name))
            return self._called(made.border, name, shape, matched)
        border = _Border(self.names.fresh(self.shapes.name(subgraph, shape)), params, results)
        name = caller.name(border.name, self._source(shape))
        around = caller.around.inner(name)
        places = len(self.subgraphs), len(self.copies), len(self.driven), len(self.ran)
        self.add(subgraph, border, around)
        subgraphs, copies, driven = self.subgraphs[places[0] :], self.copies[places[1] :], self.driven[places[2] :]
        ran = tuple(self.ran[places[3] :])
        alike.append(_Made(border, shape, around, ran, tuple(subgraphs), tuple(copies), tuple(driven)))
        return self._called(border, name, shape)

    def _source(self, shape: SubgraphStructure) -> str:
        return self.program.body[shape.ops[0]].source if shape.ops else ""

    def _called(
        self, border: _Border, name: str, shape: SubgraphStructure, matched: Correspondence | None = None
    ) -> Call:
        """Return a call of a function; if that was made for another subgraph, it tells what things are called here."""
        inputs, outputs = border.params, border.results
        attrs: tuple[tuple[str, Attribute], ...] = ()
        if matched is not None:
            inputs, outputs = (tuple(map(matched.values.__getitem__, names)) for names in (inputs, outputs))
            attrs = ((OPS, tuple(self.program.body[index].source for index in matched.ops.values())), *_dims(matched))
        has_effect = any(self.program.body[index].has_effect for index in shape.ops)
        values = tuple(Value(value, self.program.types[value]) for value in outputs)
        return Call(f"@{border.name}", inputs, values, attrs, source=name, has_effect=has_effect)

    def _held(self, leaf: PartitionNode) -> Collection[str]:
        """Return the constants that a leaf function has, if it reads them: all but those that it is given."""
        given = self.given.get(leaf.calls[0]) if leaf.calls else None
        return self.constants.keys() - given if given else self.constants

    def _is_same(self, one: SubgraphStructure, other: SubgraphStructure) -> bool:
        pairs = zip(one.constants, other.constants, strict=True)
        return all(same_data(self.constants[first], self.constants[second]) for first, second in pairs)

    def _is_same_driver(self, one: SubgraphStructure, other: SubgraphStructure) -> bool:
        """Whether what a driver copies has the same sizes in another subgraph, and so takes the same routes."""
        sizes = self.memory_graph.costs.symbolic_hints
        return [*map(sizes.get, one.dims)] == [*map(sizes.get, other.dims)] and self._is_same(one, other)

    def _repeat(self, made: _Made, matched: Correspondence, around: _Around) -> None:
        """Add the records of a function for another call of it."""
        ops, names, body, types = matched.ops, matched.values, self.program.body, self.program.types
        sources = {body[one].source: body[other].source for one, other in ops.items()}
        more = around.runs / made.around.runs
        begin = len(made.around.call)

        def renamed(values: tuple[str, ...], new: Mapping[str, str]) -> tuple[str, ...]:
            return tuple(new[value] for value in values)

        self.subgraphs += (
            replace(
                one,
                calls=tuple(ops[index] for index in one.calls),
                ops=renamed(one.ops, sources),
                inner=renamed(one.inner, sources),
                inputs=renamed(one.inputs, names),
                outputs=renamed(one.outputs, names),
                runs=one.runs * more,
                call=around.call + one.call[begin:],
            )
            for one in made.subgraphs
        )
        self.copies += (
            replace(
                one,
                value=names[one.value],
                type=types[names[one.value]],
                runs=one.runs * more,
                call=around.call + one.call[begin:],
            )
            for one in made.copies
        )
        self.driven += (replace(one, call=ops[one.call], op=sources[one.op]) for one in made.driven)
        self.ran += ops.values()

    def _leaf(self, subgraph: PartitionNode, border: _Border, around: _Around) -> None:
        body = tuple(self.program.body[index] for index in subgraph.calls)
        inner = tuple(self.program.body[i].source for index in subgraph.calls for i in self.program.nested(index))
        used = [used for call in body for used in call.uses()]
        function = self._function(subgraph, border, body, [*used, *border.results], "leaf")
        matches = self._matches(subgraph)
        self.functions.append(function.replace(attrs=(*function.attrs, ("matches", matches))) if matches else function)
        self.ran += self.program.with_nested(subgraph.calls)
        ops = tuple(call.source for call in body)
        self.subgraphs.append(
            SubgraphRecord(
                border.name,
                subgraph.site.path,
                subgraph.calls,
                ops,
                border.params,
                border.results,
                inner,
                around.runs,
                subgraph.device,
                around.call or border.name,
            )
        )

    def _matches(self, subgraph: PartitionNode) -> tuple[tuple[str, ...], ...]:
        kind, body = subgraph.site.target.kind, self.program.body
        found = (self.groups[index] for index in subgraph.calls if index in self.groups)
        patterns = ((one.pattern_of(kind), one.calls) for one in found)
        return tuple((name, *(body[index].source for index in calls)) for name, calls in patterns if name is not None)

    def _driver(self, subgraph: PartitionNode, border: _Border, around: _Around) -> None:
        place, name = len(self.functions), border.name
        steps = self._steps(subgraph, _Caller(name, name == self.program.function.name, Names(), around))
        block = DriverBlock("", border.params, border.results, steps, runs=around.runs)
        home = self.program.topology.home(subgraph.site.path)
        types = self.program.types.__getitem__
        domains = self.program.topology.domains()
        written = write_driver(block, home, self.constants, types, self.values, self.memory_graph, domains)
        self.copies += (
            CopyRecord(name, copy.value, copy.src, copy.dst, self.program.types[copy.value], copy.runs, around.call)
            for copy in written.copies
        )
        border = replace(border, results=written.results)
        function = self._function(subgraph, border, written.body, block.used(), "driver")
        self.functions.insert(place, function)

    def _steps(self, subgraph: PartitionNode, caller: _Caller) -> tuple[DriverStep, ...]:
        """Return what a driver does for the parts of a system."""
        return tuple(self._run(part, caller) if part.bodies else self._call(part, caller) for part in subgraph.parts)

    def _call(self, part: PartitionNode, caller: _Caller) -> DriverStep:
        return DriverStep(self.shared(part, *self.border(part), caller), self.program.topology.home(part.site.path))

    def border(self, part: PartitionNode) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return what a part reads from outside, by first use, and what is read of it outside, as it is computed.

        Constants are no inputs of drivers: whoever reads one holds it.
        """
        program, inside = self.program, set(part.calls)
        defined = [output.name for index in part.calls for output in program.body[index].outputs if output.name]
        own = set(defined)
        held = self._held(part) if part.is_leaf else self.constants
        inputs = dict.fromkeys(name for name in self._uses(part) if name not in own and name not in held)
        outputs = (
            name
            for name in defined
            if name in program.results or not inside.issuperset(program.consumers.get(name, ()))
        )
        return tuple(inputs), tuple(outputs)

    def _uses(self, subgraph: PartitionNode) -> Iterator[str]:
        """Yield what the operations of a subgraph read, as they run; of nested bodies only what they capture."""
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

    def _run(self, part: PartitionNode, caller: _Caller) -> DriverStep:
        """Return the step of an operation whose nested bodies the driver runs."""
        (index,) = part.calls
        call = self.program.body[index]
        self.ran.append(index)
        self.driven.append(DrivenRecord(caller.driver, part.site.path, index, call.source))
        form = control_flow_form(call)
        repeats = form is not None and form.repeats
        runs = caller.around.runs * expected_body_runs(self.program.op(index))
        inside = replace(caller, around=replace(caller.around, runs=runs))
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
        border: _Border,
        body: tuple[Call, ...],
        used: Iterable[str],
        role: str,
    ) -> Function:
        domain = self.program.topology.home(subgraph.site.path)
        constants = dict.fromkeys(used for used in used if used in self.constants and used not in border.params)
        function = Function(
            name=border.name,
            params=tuple(Value(param, self.program.types[param], domain) for param in border.params),
            body=body,
            results=border.results,
            constants=tuple(self.constants[constant] for constant in constants),
            constraint=Constraint.at(subgraph.site.path),
            opsets=self.program.function.opsets,
            attrs=(*(self.kept if border.name == self.program.function.name else ()), ("role", role)),
        )
        return function if subgraph.device is None else self._sided(function, subgraph, subgraph.device)

    def _sided(self, function: Function, subgraph: PartitionNode, device: str) -> Function:
        if subgraph.is_leaf and subgraph.site.path == device:
            return as_device(function)
        return as_host(function, self.program.topology[device].host, device)


def _dims(matched: Correspondence) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield what a call tells of the symbolic dimensions of its function, unless they are called alike here."""
    changed = tuple(name for pair in matched.dims.items() if pair[0] != pair[1] for name in pair)
    if changed:
        yield DIMS, changed
