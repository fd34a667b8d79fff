"""Stage A, normalise: one flat function, its operations, and everything that was asked of each of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from tvmtarget.errors import UnknownNameError, did_you_mean
from tvmtarget.ir.def_use import readers_of
from tvmtarget.ir.function import Call, Constant, Function, reachable_functions
from tvmtarget.ir.inline import Frame, inline_calls
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.relax.partitionable import partitionable
from tvmtarget.ir.relax.tuples import with_tuples_apart
from tvmtarget.ir.relax.vdevice_constraints import constrained
from tvmtarget.ir.rewrite import with_op_names
from tvmtarget.ir.structure import OpFingerprint, op_fingerprint
from tvmtarget.ir.types import OpaqueType, Type
from tvmtarget.partition.control.scopes import Scope, Scopes, scopes_of
from tvmtarget.partition.costs.value_memories import check_input_memories, memory_requirements
from tvmtarget.partition.dataflow import Dataflow, Kinds, dataflow_of, kinds_of, signatures_of
from tvmtarget.partition.outline.canonical_order import canonical_ranks
from tvmtarget.partition.placement.given_matches import imported_generators, imported_matches
from tvmtarget.partition.placement.where_rules import ConstraintResolver, Requirement, names_of, rules_matching
from tvmtarget.support.strategy import Op
from tvmtarget.target.constraints.constraint import Constraint, covers
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import Target

__all__ = ["FlatProgram", "binds", "normalise", "open_frame"]

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class FlatProgram:
    """A program as one flat function with numbered operations, and the constraints on each of them.

    Operations of nested bodies are numbered after those of the body that holds their owner.

    Attributes:
        function: the function itself, all calls inlined and all copies removed.
        others: functions that stay as they are: those that `function` does not call, and code that it does call.
        attrs: attributes of the module.
        topology: the sites of the target.
        body: all operations by number.
        requirements: the constraints on each operation, outermost first; a `where` rule comes last.
        frames: the inlined calls around each operation, outermost first.
        scopes: the function itself and all nested bodies.
        bodies: the nested bodies of each operation that has some.
        driven: operations with nested bodies that were part of a driver before.
        producer: the operation that computes each value.
        consumers: the operations that read each value, of the body that defines it; an operation also reads what
            its nested bodies read.
        types: the type of each value.
        constants: constants by name.
        results: the values that the function returns.
        imported_matches: matches that the module brings along: code generator, pattern, operations.
        imported_generators: the code generator that the module assigns to an operation.
        atomic: groups of operations that must be in one function.
        boundaries: operations that must not be in one function with what they read, and with what reads them.
        rules: the rules of `where`, in order.
        matches: the numbers of the rules that match each operation.
    """

    function: Function
    others: tuple[Function, ...]
    attrs: Mapping[str, Any]
    topology: Topology
    body: tuple[Call, ...]
    requirements: tuple[tuple[Requirement, ...], ...]
    frames: tuple[tuple[Frame, ...], ...]
    scopes: tuple[Scope, ...]
    bodies: Mapping[int, tuple[Scope, ...]]
    driven: frozenset[int]
    producer: Mapping[str, int]
    consumers: Mapping[str, tuple[int, ...]]
    types: Mapping[str, Type]
    constants: Mapping[str, Constant]
    results: frozenset[str]
    imported_matches: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    imported_generators: Mapping[int, str] = field(default_factory=dict)
    atomic: tuple[tuple[int, ...], ...] = ()
    boundaries: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    rules: tuple[Requirement, ...] = ()
    matches: tuple[tuple[int, ...], ...] = ()

    @property
    def top(self) -> tuple[int, ...]:
        """The operations of the function itself."""
        return tuple(self.scopes[0].calls)

    def op(self, index: int) -> Op:
        """Return an operation as strategies see it."""
        return Op(self.body[index], self.types, self.constants, self._read, self._opsets)

    def fingerprint(self, index: int) -> OpFingerprint:
        """Return what an operation is apart from names; those of one signature are looked at once."""
        number = self.signatures[index]
        if number not in self._fingerprints:
            self._fingerprints[number] = op_fingerprint(self.body[index], self.types, self.is_read)
        return self._fingerprints[number]

    @cached_property
    def _fingerprints(self) -> dict[int, OpFingerprint]:
        return {}

    def is_read(self, value: str) -> bool:
        """Whether an operation reads a value, or it is returned."""
        return value in self._read

    @cached_property
    def _opsets(self) -> Mapping[str, int]:
        return dict(self.function.opsets)

    @cached_property
    def _read(self) -> frozenset[str]:
        return frozenset(self.consumers) | self.results

    def dataflow(self, calls: Sequence[int]) -> Dataflow:
        """Return the values around the operations of the body that some operations stand in, as whole arrays."""
        scope = self.scope_of(calls[0]) if calls else self.scopes[0]
        if scope.calls not in self._dataflows:
            readers = self.consumers if len(self.scopes) == 1 else readers_of(scope.function)
            ranks = self._ranks(scope)
            first = scope.calls.start
            self._dataflows[scope.calls] = dataflow_of(
                scope.function, first, readers, self.kinds, self.constants, ranks
            )
        return self._dataflows[scope.calls]

    @cached_property
    def _dataflows(self) -> dict[range, Dataflow]:
        return {}

    def in_canonical_order(self, atoms: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Return groups of operations of one body in an order that does not depend on how operations are listed."""
        scope = self.scope_of(atoms[0][0]) if atoms else self.scopes[0]
        ranks, first = self._ranks(scope), scope.calls.start
        return atoms if ranks is None else sorted(atoms, key=lambda atom: min([ranks[one - first] for one in atom]))

    def _ranks(self, scope: Scope) -> list[int] | None:
        if scope.calls not in self._ranked:
            self._ranked[scope.calls] = canonical_ranks(
                scope.function, lambda at: self.fingerprint(scope.calls.start + at).text
            )
        return self._ranked[scope.calls]

    @cached_property
    def _ranked(self) -> dict[range, list[int] | None]:
        return {}

    @cached_property
    def signatures(self) -> list[int]:
        """A number for every operation; those of one number differ in names and values of constants at most."""
        return signatures_of(self.body, self.kinds, self.constants, self._read)

    @cached_property
    def firsts(self) -> list[int]:
        """The first operation of every signature."""
        found: list[int] = np.unique(self.signatures, return_index=True)[1].tolist()
        return found

    @cached_property
    def kinds(self) -> Kinds:
        """The types of all values by number."""
        return kinds_of(self.types)

    def is_boundary(self, first: int, then: int) -> bool:
        """Whether two operations, of which the second reads the first, are asked to be in different functions."""
        before, after = self.boundaries
        return then in before or first in after

    def predecessors(self, index: int) -> Iterator[int]:
        """Yield what must run before an operation, each once: whose results it reads, whose effect it follows."""
        before = dict.fromkeys(self.producer[name] for name in self.body[index].uses() if name in self.producer)
        if index in self.effect_before:
            before[self.effect_before[index]] = None
        yield from before

    @cached_property
    def has_binding_values(self) -> bool:
        """Whether an operation computes a value that binds its readers to it."""
        return any(output.name and binds(output.type) for call in self.body for output in call.outputs)

    @cached_property
    def effect_before(self) -> Mapping[int, int]:
        """The operation with an effect that comes before each other one in its body."""
        found: dict[int, int] = {}
        for scope in self.scopes:
            effects = [index for index in scope.calls if self.body[index].has_effect]
            found |= zip(effects[1:], effects, strict=False)
        return found

    def scope_of(self, index: int) -> Scope:
        """Return the body that an operation stands in."""
        return self._by_call[index]

    @cached_property
    def _by_call(self) -> tuple[Scope, ...]:
        found = [self.scopes[0]] * len(self.body)
        for scope in self.scopes[1:]:
            found[scope.calls.start : scope.calls.stop] = [scope] * len(scope.calls)
        return tuple(found)

    def address(self, index: int) -> list[tuple[str, str]]:
        """Return the nested bodies that an operation stands in, the outermost first: whose, and what that calls it."""
        found: list[tuple[str, str]] = []
        scope = self.scope_of(index)
        while scope.owner is not None:
            found.append((self.body[scope.owner].source, scope.label))
            scope = self.scope_of(scope.owner)
        return found[::-1]

    def nested(self, index: int) -> Iterator[int]:
        """Yield all operations in the bodies of one, at any depth."""
        for scope in self.bodies.get(index, ()):
            for inner in scope.calls:
                yield inner
                yield from self.nested(inner)

    def with_nested(self, calls: Iterable[int]) -> Iterator[int]:
        """Yield operations, each with those in its bodies behind it."""
        for index in calls:
            yield index
            yield from self.nested(index)

    def named(self, name: str) -> list[int]:
        """Return the operations of a name, glob or `op:KIND`, as in `where`; `UnknownNameError` if there are none."""
        matching = re.compile(translate(name))
        found = [
            index
            for index, call in enumerate(self.body)
            if any(name == own or matching.match(own) for own in names_of(call))
        ]
        return found or [self.find(name)]

    def find(self, source: str) -> int:
        """Return the number of the operation of that name; `UnknownNameError` with the nearest ones."""
        for index, call in enumerate(self.body):
            if call.source == source:
                return index
        raise UnknownNameError(
            f"no op {source!r} in the model{did_you_mean(source, (call.source for call in self.body))}"
        )


def binds(type_: Type) -> bool:
    """Whether a value never leaves its function: one of no known type, or a tuple or function of another dialect."""
    return type_ is None or (isinstance(type_, OpaqueType) and type_.name.startswith(("Tuple(", "Func(")))


def normalise(module: IRModule, target: Target, where: Mapping[str, Constraint]) -> FlatProgram:
    """Inline all calls, drop copies that an earlier decomposition made, and collect what is asked of each operation."""
    topology = Topology(target.resolve())
    functions = constrained(partitionable(module.functions), module.attrs, topology)
    module = module.replace(functions=functions)
    kept = _uncalled(module)
    by_name = {one.name: with_op_names(one) for one in module}
    inlined = inline_calls(by_name["main"], by_name)
    if len(tuple(topology.leaves())) > 1:
        inlined = with_tuples_apart(inlined, where)
    found = scopes_of(inlined)
    codes = {one.name: one.constraint for one in kept if one.code is not None}
    check_input_memories(module.main, topology)
    read = ConstraintResolver(topology)
    matches = rules_matching(where, found)
    rules = tuple(read(constraint, f"where {key!r}") for key, constraint in where.items())
    asked = _asked(found, read, codes, rules, matches)
    frames = _mapped(found.frames, lambda frame: _on_tree(frame, read))
    read.check()
    return FlatProgram(
        function=found.scopes[0].function,
        others=kept,
        attrs=module.attrs,
        topology=topology,
        body=found.body,
        requirements=asked,
        frames=frames,
        scopes=found.scopes,
        bodies=found.bodies,
        driven=_driven(found, module),
        producer=found.producers(),
        consumers=found.readers(),
        types=found.types(),
        constants=found.constants(),
        results=found.results(),
        rules=rules,
        matches=tuple(matches),
        imported_matches=imported_matches(found, module.by_name, topology),
        imported_generators=imported_generators(found, module.by_name),
    )


def _driven(found: Scopes, module: IRModule) -> frozenset[int]:
    """Return the operations with nested bodies that a driver of the module holds."""
    holders = {index: found.frames[index][-1].callee if found.frames[index] else "main" for index in found.bodies}
    return frozenset(index for index, holder in holders.items() if module[holder].attr("role") == "driver")


def _on_tree(frame: Frame, read: ConstraintResolver) -> Frame:
    return replace(
        frame, provenance=tuple((read(wanted, origin).constraint, origin) for wanted, origin in frame.provenance)
    )


def _uncalled(module: IRModule) -> tuple[Function, ...]:
    """Return the functions that stay as they are: code, what the entry does not call, and what that calls."""
    divided = set(reachable_functions(["main"], module.by_name))
    beside = set(reachable_functions([one.name for one in module if one.name not in divided], module.by_name))
    return tuple(one for one in module if one.name in beside or one.code is not None)


def _asked(
    found: Scopes,
    read: ConstraintResolver,
    codes: Mapping[str, Constraint | None],
    rules: Sequence[Requirement],
    matches: Sequence[tuple[int, ...]],
) -> tuple[tuple[Requirement, ...], ...]:
    """Return what is asked of each operation; what is asked of one holds for all in its nested bodies.

    One that calls code, a function that is not inlined, is asked what that is. Of the rules, the last that matches an
    operation counts.
    """
    topology, function = read.topology, found.scopes[0].function
    constraint = function.site_constraint
    base = () if constraint is None else (read(constraint, f"function {function.name!r}"),)
    plain: list[tuple[Requirement, ...]] = []
    placed = {index for index, call in enumerate(found.body) for output in call.outputs if output.scope}
    for scope in found.scopes:
        around = base if scope.owner is None else plain[scope.owner]
        alone = _innermost(around, topology)
        depth = 0 if scope.owner is None else len(found.frames[scope.owner])
        for index in scope.calls:
            call = found.body[index]
            frames = found.frames[index][depth:]
            own = [read(wanted, origin) for frame in frames for wanted, origin in frame.provenance] if frames else []
            code = codes.get(call.callee or "") if codes else None
            if code is not None:
                own.append(read(code, f"function {call.callee!r}"))
            if call.constraint is not None:
                own.append(read(call.constraint, f"op {call.source!r}"))
            if index in placed:
                own += [read(wanted, origin) for wanted, origin in memory_requirements(call, topology)]
            plain.append(_innermost((*around, *own), topology) if own else alone)
    return tuple((*ones, rules[ranks[-1]]) if ranks else ones for ones, ranks in zip(plain, matches, strict=True))


def _innermost(asked: tuple[Requirement, ...], topology: Topology) -> tuple[Requirement, ...]:
    """Leave out that a device is asked for where something within asks for its host: a mixed function has both."""
    kept: list[Requirement] = []
    for one in asked:
        host = _pinned(one)
        if host is not None:
            kept = [around for around in kept if not _drives(topology, host, _pinned(around))]
        kept.append(one)
    return tuple(kept)


def _pinned(asked: Requirement) -> str | None:
    constraint = asked.constraint
    return constraint.path if constraint.is_required and not constraint.is_negated else None


def _drives(topology: Topology, host: str, device: str | None) -> bool:
    if device is None or device == host or device not in topology:
        return False
    return not topology[device].is_system and topology[device].host == host


def _mapped(rows: Iterable[tuple[_Item, ...]], change: Callable[[_Item], _Item]) -> tuple[tuple[_Item, ...], ...]:
    """Change the items of all rows; rows that are equal are looked at once."""
    seen: dict[tuple[_Item, ...], tuple[_Item, ...]] = {}
    found = []
    for row in rows:
        if row not in seen:
            seen[row] = tuple(map(change, row))
        found.append(seen[row])
    return tuple(found)


def open_frame(frames: tuple[Frame, ...], path: str) -> int | None:
    """Return the number of the outermost call around an operation that must stay whole at the node at `path`.

    A call of a constrained function is one atom until the decomposition stands in the node that it names.
    """
    for frame in frames:
        required = [wanted for wanted in frame.constraints if wanted.is_required]
        naming = [wanted for wanted in required if not wanted.is_negated or next(_nodes(wanted), None) is not None]
        if required and not (naming and all(_is_inside(wanted, path) for wanted in naming)):
            return frame.ordinal
    return None


def _is_inside(wanted: Constraint, path: str) -> bool:
    """Whether a node is, or is in, one that a constraint names: itself, as a choice, or beside other conditions."""
    return any(covers(node, path) for node in _nodes(wanted))


def _nodes(wanted: Constraint, *, is_negated: bool = False) -> Iterator[str]:
    """Yield the paths in a constraint that are not excluded; what is negated twice is not."""
    excludes = is_negated != wanted.is_negated
    if wanted.path is not None and not excludes:
        yield wanted.path
    for one in (*wanted.any_of, *wanted.all_of):
        yield from _nodes(one, is_negated=excludes)
