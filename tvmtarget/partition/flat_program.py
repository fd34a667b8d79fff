"""Flatten a module into one function with numbered operations and resolved constraints (the `normalise` stage)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from tvmtarget.errors import InfeasibleError, ModelError, UnknownNameError, did_you_mean, raise_all
from tvmtarget.ir.def_use import readers_of
from tvmtarget.ir.function import Call, Constant, Function, changed_places, reachable_functions
from tvmtarget.ir.inline import Frame, inline_calls
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.relax.canonical_calls import canonicalize_calls
from tvmtarget.ir.relax.tuples import split_tuples
from tvmtarget.ir.relax.vdevice_constraints import constrain_from_tvm
from tvmtarget.ir.rewrite import with_op_names
from tvmtarget.ir.specialize import values_of_open_size
from tvmtarget.ir.structure import OpFingerprint, op_fingerprint
from tvmtarget.ir.types import OpaqueType, Type
from tvmtarget.ir.verify import unknown_memories
from tvmtarget.partition.control.scopes import Scope, Scopes, scopes_of
from tvmtarget.partition.dataflow import Dataflow, Ints, Operands, Signatures, dataflow_of, operands_of, signatures_of
from tvmtarget.partition.dequantization import unshare_dequantized
from tvmtarget.partition.outline.canonical_order import CanonicalRanks
from tvmtarget.partition.placement.given_matches import imported_generators, imported_matches
from tvmtarget.partition.placement.where_rules import ConstraintResolver, Requirement, names_of, rules_matching
from tvmtarget.partition.wiring import Wiring
from tvmtarget.support.strategy import Op
from tvmtarget.target.constraints.constraint import Constraint, covers
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import Target

__all__ = ["BodyEdit", "FlatProgram", "atomic_call", "binds_readers", "normalise"]

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class BodyEdit:
    """What an edit changed of the operations of a program.

    Attributes:
        before: the operations before.
        after: as many operations after it.
        places: the numbers of those that are other objects.
    """

    before: tuple[Call, ...]
    after: tuple[Call, ...]
    places: Sequence[int]


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
        wiring: who computes and who reads each value, and the types of values.
        constants: constants by name.
        imported_matches: matches that the module brings along: code generator, pattern, operations.
        imported_generators: the code generator that the module assigns to an operation.
        atomic: groups of operations that must be in one function.
        boundaries: operations that must not be in one function with what they read, and with what reads them.
        rules: the rules of `where`, in order.
        matches: the numbers of the rules that match each operation.
        folded: operations of the module that were folded into constants, or replaced by their definitions.
        defined: those of the folded operations that may have been replaced.
        is_limited: whether no more weights are placed than memories hold.
        reserved: bytes of each memory domain that values need, so that they are not there for weights.
        edit: the edit that made it of another program, if it was made so.
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
    wiring: Wiring
    constants: Mapping[str, Constant]
    imported_matches: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    imported_generators: Mapping[int, str] = field(default_factory=dict)
    atomic: tuple[tuple[int, ...], ...] = ()
    boundaries: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    rules: tuple[Requirement, ...] = ()
    matches: tuple[tuple[int, ...], ...] = ()
    folded: tuple[str, ...] = ()
    defined: tuple[str, ...] = ()
    is_limited: bool = True
    reserved: Mapping[str, int] = field(default_factory=dict)
    edit: BodyEdit | None = None

    @property
    def producer(self) -> Mapping[str, int]:
        """The operation that computes each value."""
        return self.wiring.producer

    @property
    def consumers(self) -> Mapping[str, tuple[int, ...]]:
        """The operations that read each value (`Wiring.consumers`)."""
        return self.wiring.consumers

    @property
    def types(self) -> Mapping[str, Type]:
        """The type of each value."""
        return self.wiring.types

    @property
    def results(self) -> frozenset[str]:
        """The values that the function returns."""
        return self.wiring.results

    @cached_property
    def top(self) -> tuple[int, ...]:
        """Operations of the function itself, without those of nested bodies."""
        return tuple(self.scopes[0].calls)

    @cached_property
    def values_of_open_size(self) -> frozenset[str]:
        """The values whose size depends on more than the sizes of the inputs."""
        return values_of_open_size(self.function)

    def op(self, index: int) -> Op:
        """Return an operation in the form that operator support (`Strategy`) sees.

        Args:
            index: number of the operation.

        Returns:
            The operation with the types and constants that it uses.
        """
        return Op(self.body[index], self.types, self.constants, self.wiring.read, self._opsets)

    def fingerprint(self, index: int) -> OpFingerprint:
        """Return the name-independent fingerprint of an operation.

        Args:
            index: number of the operation.

        Returns:
            The fingerprint; operations of one signature share it.
        """
        call = self.body[self.representatives[self.signatures[index]]]
        known = self._fingerprints.get(id(call))
        if known is None:
            known = self._fingerprints[id(call)] = (call, op_fingerprint(call, self.types, self.is_read))
        return known[1]

    @cached_property
    def _fingerprints(self) -> dict[int, tuple[Call, OpFingerprint]]:
        """Fingerprints by the identity of an operation; one that an edit leaves alone keeps its own."""
        return self.wiring.derived("fingerprints", None, dict)

    def changed_since(self, body: tuple[Call, ...]) -> Sequence[int]:
        """Return which operations an edit changed.

        Args:
            body: as many operations, of the program before the edit.

        Returns:
            Numbers of operations that are other objects, ascending.
        """
        if self.edit is not None and self.edit.before is body and self.edit.after is self.body:
            return self.edit.places
        return changed_places(body, self.body)

    def is_read(self, value: str) -> bool:
        """Check whether an operation reads a value, or the function returns it.

        Args:
            value: name of a value.

        Returns:
            False for a value that nothing needs.
        """
        return value in self.wiring.read

    @cached_property
    def _opsets(self) -> Mapping[str, int]:
        return dict(self.function.opsets)

    def dataflow(self, calls: Sequence[int]) -> Dataflow:
        """Return the data flow of the body that contains some operations.

        Args:
            calls: operations of one body; the function itself if there are none.

        Returns:
            All values of that body, in canonical order where there is one.
        """
        scope = self.scope_of(calls[0]) if calls else self.scopes[0]
        first, ranks = scope.calls.start, self._ranks(scope)

        def make() -> Dataflow:
            is_only = len(self.scopes) == 1
            readers = self.consumers if is_only else readers_of(scope.function)
            producers = self.producer if is_only else None
            return dataflow_of(
                scope.function, first, readers, self.wiring.type_numbers, self.constants, ranks, producers
            )

        return self.wiring.derived(f"data flow of {scope.calls}", ranks, make)

    def in_canonical_order(self, atoms: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Sort groups of operations independently of how operations are listed.

        Args:
            atoms: disjoint groups of operations of one body.

        Returns:
            The groups by the canonical rank of their first operation; as they are if the body has no canonical order.
        """
        scope = self.scope_of(atoms[0][0]) if atoms else self.scopes[0]
        ranks, first = self._ranks(scope), scope.calls.start
        return atoms if ranks is None else sorted(atoms, key=lambda atom: min([ranks[one - first] for one in atom]))

    def is_ordered_as(self, other: FlatProgram) -> bool:
        """Return whether the canonical order of operations is that of another program.

        Args:
            other: a program with the same wiring.

        Returns:
            True also if neither has a canonical order.
        """
        own, others = self._ranks(self.scopes[0]), other._ranks(other.scopes[0])
        return own is others or own == others

    def _ranks(self, scope: Scope) -> list[int] | None:
        if scope.calls not in self._ranked:
            order = self.wiring.derived(
                f"canonical order of {scope.calls}", None, lambda: CanonicalRanks(scope.function)
            )
            first = scope.calls.start
            self._ranked[scope.calls] = order.ranks(lambda at: self.fingerprint(first + at).text)
        return self._ranked[scope.calls]

    @cached_property
    def _ranked(self) -> dict[range, list[int] | None]:
        return {}

    @cached_property
    def replaced(self) -> Set[str]:
        """Those of the folded operations that operations of their definitions in ONNX stand for."""
        sources = (call.source.split("/") for call in self.body) if self.defined else ()
        wholes = {"/".join(parts[:count]) for parts in sources for count in range(1, len(parts))}
        return wholes.intersection(self.defined)

    @property
    def operands(self) -> Operands:
        """The operands and results of all operations, by number; without what nested bodies read."""
        return self.wiring.derived("operands", None, lambda: operands_of(self.body, self.types))

    @property
    def signatures(self) -> list[int]:
        """A number for every operation; equal numbers mean equal up to names and values of constants."""
        return self._signatures.numbers

    @property
    def signature_array(self) -> Ints:
        """The same as an array."""
        return self._signatures.array

    @property
    def representatives(self) -> list[int]:
        """The first operation of every signature."""
        return self._signatures.firsts

    @cached_property
    def _signatures(self) -> Signatures:
        numbers, read = self.wiring.type_numbers.numbers, self.wiring.read
        if self.constants:
            numbers = {**numbers, **{name: -1 - numbers[name] for name in self.constants if name in numbers}}
        operand = numbers.get

        def make() -> Signatures:
            return signatures_of(self.body, operand, read)

        def update(earlier: Signatures) -> Signatures:
            return earlier.of(self.body, self.changed_since(earlier.body), operand, read)

        return self.wiring.derived("signatures", self.body, make, update)

    @property
    def requirement_rows(self) -> Ints:
        """A number for the requirements of every operation; equal numbers mean equal requirements."""

        def make() -> Ints:
            numbers: dict[tuple[Requirement, ...], int] = {}
            rows = [numbers.setdefault(requirements, len(numbers)) for requirements in self.requirements]
            return np.array(rows, dtype=np.int64)

        return self.wiring.derived("requirement rows", self.requirements, make)

    def is_boundary(self, first: int, then: int) -> bool:
        """Check whether a boundary between functions lies between two operations.

        Args:
            first: an operation.
            then: an operation that reads a result of `first`.

        Returns:
            True if the two must be in different functions.
        """
        before, after = self.boundaries
        return then in before or first in after

    def predecessors(self, index: int) -> Iterator[int]:
        """Yield what must run before an operation.

        Args:
            index: number of the operation.

        Yields:
            Each operation once: those whose results it reads, then the previous one with an effect.
        """
        # A dict keeps the order and drops repetitions.
        before = dict.fromkeys(self.producer[name] for name in self.body[index].uses() if name in self.producer)
        if index in self.effect_before:
            before[self.effect_before[index]] = None
        yield from before

    @cached_property
    def has_binding_values(self) -> bool:
        """Whether an operation computes a value that must stay in one function with its readers."""
        # Values share types: each is looked at once.
        types = {id(output.type): output.type for call in self.body for output in call.outputs if output.name}
        return any(map(binds_readers, types.values()))

    @cached_property
    def effect_before(self) -> Mapping[int, int]:
        """The previous operation with an effect in the same body, for each operation with an effect but the first."""
        found: dict[int, int] = {}
        for scope in self.scopes:
            effects = [index for index in scope.calls if self.body[index].has_effect]
            found |= zip(effects[1:], effects, strict=False)
        return found

    def scope_of(self, index: int) -> Scope:
        """Return the body that contains an operation.

        Args:
            index: number of the operation.

        Returns:
            The function itself or a nested body.
        """
        return self._by_call[index]

    @cached_property
    def _by_call(self) -> tuple[Scope, ...]:
        found = [self.scopes[0]] * len(self.body)
        for scope in self.scopes[1:]:
            found[scope.calls.start : scope.calls.stop] = [scope] * len(scope.calls)
        return tuple(found)

    def nesting_path(self, index: int) -> list[tuple[str, str]]:
        """Return the nested bodies around an operation.

        Args:
            index: number of the operation.

        Returns:
            The name of the owning operation and the label of the body, outermost first.
        """
        found: list[tuple[str, str]] = []
        scope = self.scope_of(index)
        while scope.owner is not None:
            found.append((self.body[scope.owner].source, scope.label))
            scope = self.scope_of(scope.owner)
        return found[::-1]

    def nested(self, index: int) -> Iterator[int]:
        """Yield the operations in the nested bodies of one.

        Args:
            index: number of an operation.

        Yields:
            Operations at any depth, each before those in its own bodies.
        """
        if index not in self.bodies:
            return
        # As in `calls_in`: generators in generators would pass each operation on through all levels around it.
        stack = [iter(scope.calls) for scope in reversed(self.bodies[index])]
        while stack:
            for inner in stack[-1]:
                yield inner
                if inner in self.bodies:
                    stack += [iter(scope.calls) for scope in reversed(self.bodies[inner])]
                    break
            else:
                stack.pop()

    def with_nested(self, calls: Iterable[int]) -> Iterator[int]:
        """Yield operations, each followed by those in its nested bodies.

        Args:
            calls: operations.

        Yields:
            Operations at any depth.
        """
        if not self.bodies:
            yield from calls
            return
        for index in calls:
            yield index
            yield from self.nested(index)

    def ops_named(self, name: str) -> list[int]:
        """Return the operations that match a name as `where` matches it.

        Args:
            name: a name, a glob or `op:KIND`.

        Returns:
            At least one operation, ascending.

        Raises:
            UnknownNameError: if no operation matches.
        """
        found = self._by_name.get(name, [])
        if set(name) & set("*?["):
            # Names may contain glob characters themselves, so a glob matches the name that is equal to it, too.
            matching = re.compile(translate(name))
            more = (calls for own, calls in self._by_name.items() if matching.match(own))
            found = sorted({*found, *chain.from_iterable(more)})
        return found or [self.find(name)]

    @cached_property
    def _by_name(self) -> Mapping[str, list[int]]:
        """The operations of each name that `where` can refer to, ascending."""
        found: dict[str, list[int]] = {}
        for index, call in enumerate(self.body):
            for name in dict.fromkeys(names_of(call)):
                found.setdefault(name, []).append(index)
        return found

    def find(self, source: str) -> int:
        """Return the operation of a name.

        Args:
            source: the name that the module gives the operation.

        Returns:
            The number of the first operation of that name.

        Raises:
            UnknownNameError: if there is none; the message has the nearest names.
        """
        for index, call in enumerate(self.body):
            if call.source == source:
                return index
        if source in self.replaced:
            parts = [call.source for call in self.body if call.source.startswith(f"{source}/")]
            raise UnknownNameError(
                f"op {source!r} was replaced by the operations that define it in ONNX, as no site of the target takes "
                f"it: {', '.join(parts)}"
            )
        if source in self.folded:
            raise UnknownNameError(
                f"op {source!r} was folded into a constant, so that no site runs it; fold_constants=False "
                "(--no-fold-constants) keeps it"
            )
        raise UnknownNameError(
            f"no op {source!r} in the model{did_you_mean(source, (call.source for call in self.body))}"
        )


def binds_readers(type_: Type) -> bool:
    """Check whether a value must stay in one function with its readers.

    Args:
        type_: the type of the value.

    Returns:
        True for a value that functions cannot return: of unknown type, or a tuple or function of another dialect.
    """
    return type_ is None or (isinstance(type_, OpaqueType) and type_.name.startswith(("Tuple(", "Func(")))


def normalise(
    module: IRModule, target: Target, where: Mapping[str, Constraint], named: Collection[str] = ()
) -> FlatProgram:
    """Flatten a module into one function, and resolve the constraints on each operation.

    All calls are inlined, and copies that an earlier decomposition inserted are dropped. Where there are several
    leaves, each reader of a dequantized value gets a DequantizeLinear of its own.

    Args:
        module: the module; its entry is `main`.
        target: the tree to partition over.
        where: constraints on operations and functions by name, glob or `op:KIND`.
        named: names, globs or `op:KIND` of operations that other options refer to.

    Returns:
        The flat program.

    Raises:
        InfeasibleError: if an input is in a memory that the driver cannot read.
        ModelError: if a `where` rule names both a function and an operation.
        UnknownNameError: if a `where` rule matches nothing, or a constraint names nothing in the tree.
    """
    topology = Topology(target.resolve())
    functions = constrain_from_tvm(canonicalize_calls(module.functions), module.attrs, topology)
    module = module.replace(functions=functions)
    others = _other_functions(module)
    by_name = {function.name: with_op_names(function) for function in module}
    inlined = inline_calls(by_name["main"], by_name)
    # With one leaf nothing is divided, and tuples may stay as they are.
    if len(tuple(topology.leaves())) > 1:
        inlined = split_tuples(inlined, where)
        # What the user names stays as it is; a rule for all operations of a kind applies to the copies, too.
        inlined = unshare_dequantized(inlined, (*where, *named))
    found = scopes_of(inlined)
    codes = {function.name: function.constraint for function in others if function.code is not None}
    _check_memories(module, topology)
    resolve = ConstraintResolver(topology)
    matches = rules_matching(where, found)
    rules = tuple(resolve(constraint, f"where {key!r}") for key, constraint in where.items())
    requirements = _requirements(found, resolve, codes, rules, matches)
    frames = _map_rows(found.frames, lambda frame: _resolved(frame, resolve))
    resolve.check()
    return FlatProgram(
        function=found.scopes[0].function,
        others=others,
        attrs=module.attrs,
        topology=topology,
        body=found.body,
        requirements=requirements,
        frames=frames,
        scopes=found.scopes,
        bodies=found.bodies,
        driven=_driven(found, module),
        wiring=Wiring(found.producers(), found.readers(), found.types(), found.results()),
        constants=found.constants(),
        rules=rules,
        matches=tuple(matches),
        imported_matches=imported_matches(found, module.by_name, topology),
        imported_generators=imported_generators(found, module.by_name),
    )


def _driven(found: Scopes, module: IRModule) -> frozenset[int]:
    """Return the operations with nested bodies that are part of a driver of the module."""
    holders = {index: found.frames[index][-1].callee if found.frames[index] else "main" for index in found.bodies}
    return frozenset(index for index, holder in holders.items() if module[holder].attr("role") == "driver")


def _resolved(frame: Frame, resolve: ConstraintResolver) -> Frame:
    provenance = tuple((resolve(constraint, origin).constraint, origin) for constraint, origin in frame.provenance)
    return replace(frame, provenance=provenance)


def _other_functions(module: IRModule) -> tuple[Function, ...]:
    """Return the functions that stay as they are: code, what `main` does not call, and what such functions call."""
    inlined = set(reachable_functions(["main"], module.by_name))
    others = set(reachable_functions([one.name for one in module if one.name not in inlined], module.by_name))
    return tuple(one for one in module if one.name in others or one.code is not None)


def _check_memories(module: IRModule, topology: Topology) -> None:
    """Raise an error for values in a memory that the target lacks, and for inputs that the driver reads elsewhere."""
    raise_all(ModelError, [problem for one in module for problem in unknown_memories(one, topology)])
    function = module.main
    home = topology.home("")
    misplaced = [param for param in function.params if param.scope in topology.domains() and param.scope != home]
    if function.attr("role") is None:
        raise_all(
            InfeasibleError,
            [
                f"input {param.name!r} is in memory {param.scope!r}, but the driver takes inputs in {home!r}; leave "
                f"the memory out, or make a site of {param.scope!r} the host of the root"
                for param in misplaced
            ],
        )


def _requirements(
    found: Scopes,
    resolve: ConstraintResolver,
    codes: Mapping[str, Constraint | None],
    rules: Sequence[Requirement],
    matches: Sequence[tuple[int, ...]],
) -> tuple[tuple[Requirement, ...], ...]:
    """Return the constraints on each operation, outermost first; operations of nested bodies inherit their owner's.

    An operation that calls code inherits the constraint of that function. Of the matching rules, the last one counts.
    """
    topology, function = resolve.topology, found.scopes[0].function
    constraint = function.site_constraint
    of_function = () if constraint is None else (resolve(constraint, f"function {function.name!r}"),)
    without_rules: list[tuple[Requirement, ...]] = []
    for scope in found.scopes:
        inherited = of_function if scope.owner is None else without_rules[scope.owner]
        constrained = _constrained(found, scope, codes)
        if_none = _innermost(inherited, topology)
        depth = 0 if scope.owner is None else len(found.frames[scope.owner])
        for index in scope.calls:
            if index not in constrained:
                without_rules.append(if_none)
                continue
            call = found.body[index]
            own = [resolve(*item) for frame in found.frames[index][depth:] for item in frame.provenance]
            code = codes.get(call.callee or "")
            if code is not None:
                own.append(resolve(code, f"function {call.callee!r}"))
            if call.constraint is not None:
                own.append(resolve(call.constraint, f"op {call.source!r}"))
            own += [resolve(*item) for item in _memory_requirements(call, topology)]
            without_rules.append(_innermost((*inherited, *own), topology) if own else if_none)
    if not any(matches):
        return tuple(without_rules)
    # Equal rows are one tuple, since thousands of operations have the same.
    rows: dict[tuple[int, int], tuple[Requirement, ...]] = {}
    return tuple(
        requirements if not ranks else rows.setdefault((id(requirements), ranks[-1]), (*requirements, rules[ranks[-1]]))
        for requirements, ranks in zip(without_rules, matches, strict=True)
    )


def _constrained(found: Scopes, scope: Scope, codes: Mapping[str, Constraint | None]) -> frozenset[int]:
    """Return the operations of a body that may have requirements of their own, which most do not have."""
    depth = 0 if scope.owner is None else len(found.frames[scope.owner])
    body, start = found.body[scope.calls.start : scope.calls.stop], scope.calls.start
    framed = [place for place, frames in enumerate(found.frames[start : scope.calls.stop]) if len(frames) > depth]
    stated = [place for place, call in enumerate(body) if call.constraint is not None]
    coded = [place for place, call in enumerate(body) if call.op[1:] in codes] if codes else ()
    scoped = [place for place, call in enumerate(body) for output in call.outputs if output.scope]
    return frozenset(start + place for places in (framed, stated, coded, scoped) for place in places)


def _memory_requirements(call: Call, topology: Topology) -> Iterator[tuple[Constraint, str]]:
    """Yield for each result in a memory of the target that a site with that memory computes it, and the origin.

    Memories inside a domain, such as `shared`, belong to the code generator. Results of control flow are skipped: the
    driver puts them into its own memory.
    """
    for output in () if call.regions else call.outputs:
        paths = [leaf.path for leaf in topology.leaves() if leaf.domain == output.scope] if output.scope else []
        if paths:
            yield Constraint.at_any(paths), f"value {output.name!r} in memory {output.scope!r}"


def _innermost(requirements: tuple[Requirement, ...], topology: Topology) -> tuple[Requirement, ...]:
    """Drop a requirement for a device if an inner one requires the host of that device.

    A function of mixed host and device code, split by an earlier decomposition, carries both.
    """
    kept: list[Requirement] = []
    for requirement in requirements:
        host = _required_path(requirement)
        if host is not None:
            kept = [outer for outer in kept if not _drives(topology, host, _required_path(outer))]
        kept.append(requirement)
    return tuple(kept)


def _required_path(requirement: Requirement) -> str | None:
    constraint = requirement.constraint
    return constraint.path if constraint.is_required and not constraint.is_negated else None


def _drives(topology: Topology, host: str, device: str | None) -> bool:
    if device is None or device == host or device not in topology:
        return False
    return not topology[device].is_system and topology[device].host == host


def _map_rows(rows: Iterable[tuple[_Item, ...]], change: Callable[[_Item], _Item]) -> tuple[tuple[_Item, ...], ...]:
    """Change the items of all rows; equal rows are computed once and share the result."""
    seen: dict[tuple[_Item, ...], tuple[_Item, ...]] = {}
    found = []
    for row in rows:
        if row not in seen:
            seen[row] = tuple(map(change, row))
        found.append(seen[row])
    return tuple(found)


def atomic_call(frames: tuple[Frame, ...], path: str) -> int | None:
    """Find the outermost inlined call around an operation that must not be divided at a node.

    A call of a function with a requirement is indivisible until the decomposition has reached the node that the
    requirement names.

    Args:
        frames: the inlined calls around the operation, outermost first.
        path: the path of the node.

    Returns:
        The number of the call (`Frame.ordinal`), None if there is no such call.
    """
    for frame in frames:
        # A negated constraint without paths excludes kinds or keys: it names no node to descend to.
        required = [constraint for constraint in frame.constraints if constraint.is_required]
        naming = [one for one in required if not one.is_negated or next(_named_paths(one), None) is not None]
        if required and not (naming and all(_is_inside(constraint, path) for constraint in naming)):
            return frame.ordinal
    return None


def _is_inside(constraint: Constraint, path: str) -> bool:
    """Check whether a node is one that a constraint names, or inside of one."""
    return any(covers(named, path) for named in _named_paths(constraint))


def _named_paths(constraint: Constraint, *, is_negated: bool = False) -> Iterator[str]:
    """Yield the paths that a constraint names and does not exclude; double negation does not exclude."""
    excludes = is_negated != constraint.is_negated
    if constraint.path is not None and not excludes:
        yield constraint.path
    for part in (*constraint.any_of, *constraint.all_of):
        yield from _named_paths(part, is_negated=excludes)
