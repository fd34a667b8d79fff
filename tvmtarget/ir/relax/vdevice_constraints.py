"""What a module says about where its functions run, in TVM's words, as constraints on a tree.

The words are the attribute `target` of a function or of code (a target of TVM, its text or its JSON), `Codegen` and
`Composite`, which name an external code generator, and the virtual devices of values. A target means the node that
satisfies it and is most like it; several nodes that are equally like it are a choice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvmtarget.errors import TargetError, TvmTargetError, raise_all
from tvmtarget.ir.function import Call, Function, Opaque, reachable_functions
from tvmtarget.ir.relax.attributes import TVM, read_blob
from tvmtarget.ir.relax.canonical_calls import code_generator
from tvmtarget.ir.relax.reader import GLOBALS
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.constraints.reasons import Reason
from tvmtarget.target.topology import Site, Topology
from tvmtarget.target.tree import Target

__all__ = ["constrain_from_tvm", "leaf_of_function"]


def constrain_from_tvm(
    functions: Sequence[Function], attrs: Mapping[str, Any], topology: Topology
) -> tuple[Function, ...]:
    """Return the functions with constraints on nodes of a tree for what they say about where they run.

    Functions that a decomposition made stay as they are. What a function says is about its own operations: a function
    that it calls, and that says where it runs, runs there.

    Args:
        functions: all functions of a module.
        attrs: the attributes of the module, with its virtual devices.
        topology: the tree.

    Raises:
        TargetError: no node of the tree is what a function or a value asks for; all of them with the reasons.
    """
    return _ConstraintReader(functions, attrs, topology).functions()


class _ConstraintReader:
    def __init__(self, functions: Sequence[Function], attrs: Mapping[str, Any], topology: Topology) -> None:
        self._functions = {function.name: function for function in functions}
        self._topology = topology
        self._leaves = tuple(topology.leaves())
        self._vdevices = (attrs.get(GLOBALS) or {}).get("vdevice", ())
        self._problems: list[str] = []
        self._of_vdevices: dict[str, Constraint | None] = {}

    def functions(self) -> tuple[Function, ...]:
        """Return the functions with their constraints."""
        stated = {name: self._stated(function) for name, function in self._functions.items()}
        placed = tuple(self._function(function, stated) for function in self._functions.values())
        raise_all(TargetError, list(dict.fromkeys(self._problems)))
        return placed

    def _stated(self, function: Function) -> Constraint | None:
        """Return the nodes that a function says it is for, None if it says nothing."""
        if function.attr("role") is not None:
            return None
        generator = code_generator(function)
        if generator is not None:
            return self._generator(generator, function.name)
        target = _target_of(function)
        if target is None:
            return None
        try:
            return Constraint.at_any(self._meant(target))
        except TvmTargetError as error:
            self._problems += [f"target of function {function.name!r}: {problem}" for problem in error.problems]
            return None

    def _function(self, function: Function, stated: Mapping[str, Constraint | None]) -> Function:
        if function.attr("role") is not None:
            return function
        own = stated[function.name]
        known = self._functions.keys()
        called = [name for name in reachable_functions([function.name], self._functions) if name != function.name]
        elsewhere = {name for name in called if name in known and stated[name] not in (None, own)}
        body = function.body
        if code_generator(function) is None:  # else values are where the host of the code generator has them
            body = tuple(self._call(call, function.name) for call in body)
        if own is not None and elsewhere:
            body = tuple(_bound(call, own, elsewhere) for call in body)
            own = None
        return function.replace(body=body, constraint=_both(function.constraint, own))

    def _call(self, call: Call, name: str) -> Call:
        """Return a call at the site of the virtual device that its results are on."""
        regions = tuple(
            (label, region.replace(body=tuple(self._call(inner, name) for inner in region.body)))
            for label, region in call.regions
        )
        call = replace(call, regions=regions) if regions else call
        scopes = [output.scope for output in call.outputs if output.scope.startswith("vdevice:")]
        if not scopes or call.constraint is not None or call.regions or self._is_external(call):
            return call
        where = f"op {call.source!r} of function {name!r}"
        return replace(call, constraint=self._vdevice(scopes[0], where))

    def _is_external(self, call: Call) -> bool:
        """Whether a call is of a function that says where it runs, or of one that is given more than values."""
        text = call.attr("tvm.args")
        if call.op == "relax.Call" and isinstance(text, str) and text.startswith("Global("):
            return True
        callee = self._functions.get(call.callee or "")
        return callee is not None and code_generator(callee) is not None

    def _vdevice(self, scope: str, where: str) -> Constraint | None:
        if scope not in self._of_vdevices:
            self._of_vdevices[scope] = self._read_vdevice(scope, where)
        return self._of_vdevices[scope]

    def _read_vdevice(self, scope: str, where: str) -> Constraint | None:
        index = scope.partition(":")[2]
        if not index.isdecimal() or int(index) >= len(self._vdevices):
            return None  # of a value of another module; writing refuses it
        vdevice = read_blob(self._vdevices[int(index)])
        try:
            found = self._meant(vdevice.target)
        except TvmTargetError as error:
            self._problems += [f"virtual device {index} of {where}: {problem}" for problem in error.problems]
            return None
        return Constraint.at(found[min(int(vdevice.vdevice_id), len(found) - 1)])

    def _generator(self, name: str, function: str) -> Constraint | None:
        """Return the nodes of a code generator's kind."""
        found = [path for path, node in self._topology.root.walk() if node.kind == name]
        outer = [path for path in found if not any(path.startswith(f"{other}/") for other in found)]
        if not outer:
            has = ", ".join(f"@{leaf.path or '.'} ({leaf.target.kind})" for leaf in self._leaves)
            what = f"function {function!r} is for code generator {name!r}"
            self._problems.append(f"{what}, and no node of the target is of that kind; it has {has}")
            return None
        return Constraint.at_any(outer)

    def _meant(self, target: object) -> list[str]:
        return _meant(target, self._leaves, self._topology.root)


def leaf_of_function(function: Function, leaves: Sequence[Site]) -> str | None:
    """Return the first of the leaves that a function says it is for; None if it says nothing, or none satisfies it."""
    generator, target = code_generator(function), _target_of(function)
    if generator is not None:
        return next((leaf.path for leaf in leaves if leaf.target.kind == generator), None)
    try:
        return None if target is None else _meant(target, leaves, None)[0]
    except TvmTargetError:
        return None


def _target_of(function: Function) -> object:
    """Return the target that a function, or the code that it is, is for; None if it says none."""
    if function.code is None or function.code.kind != TVM:
        return function.attr("target")
    own: object = getattr(read_blob(function.code), "attrs", {}).get("target")
    return own


def _meant(target: object, leaves: Sequence[Site], root: Target | None) -> list[str]:
    """Return the leaves that satisfy a target and are most like it; `TargetError` if none does, with reasons."""
    wanted = _read_target(target)
    constraint = Constraint.of(wanted)
    answers = [(leaf, constraint.check(leaf.target, leaf.path, root)) for leaf in leaves]
    possible = [(leaf, answer.truth, _likeness(wanted, leaf)) for leaf, answer in answers if answer.is_possible]
    if not possible:
        reasons = "; ".join(f"@{leaf.path or '.'}: {_why_not(answer)}" for leaf, answer in answers)
        raise TargetError(f"no leaf of the tree satisfies {str(constraint)!r}: {reasons}")
    best = max((truth, likeness) for _, truth, likeness in possible)
    return [leaf.path for leaf, truth, likeness in possible if (truth, likeness) == best]


def _why_not(answer: Reason) -> str:
    """Return what is wrong with a leaf: the conditions that it does not meet, else what it is."""
    return ", ".join(part.text for part in answer.parts if not part.is_possible) or answer.text


def _read_target(target: object) -> Target:
    """Read a target of TVM, its JSON, its text, or a text of our own."""
    if isinstance(target, Opaque):
        if target.kind != TVM:
            raise TargetError(f"an attribute of kind {target.kind!r} is no target; write its text")
        target = read_blob(target)
    if isinstance(target, str):
        return Target.parse(target)
    if isinstance(target, Mapping):
        return Target.parse(json.dumps(target))
    return Target.from_tvm(target)


def _likeness(wanted: Target, leaf: Site) -> tuple[int, int]:
    """Return how many attributes of a target a leaf has with the same values, and less how many others it has."""
    mine, theirs = wanted.attrs.to_json(), leaf.target.attrs.to_json()
    equal = sum(theirs.get(name) == value for name, value in mine.items())
    return equal, -sum(name not in mine for name in theirs)


def _both(one: Constraint | None, other: Constraint | None) -> Constraint | None:
    """Return what asks for both; a path that the other allows says all."""
    if one is None or other is None:
        return one or other
    if one.path is not None and (one == other or (other.is_negated and ~one in other.all_of)):
        return one
    return one if one == other or other in one.all_of else one & other


def _bound(call: Call, own: Constraint, elsewhere: set[str]) -> Call:
    """Return a call with what its function says, unless it calls a function that says something else."""
    if call.callee in elsewhere:
        return call
    if any(inner.callee in elsewhere for _, region in call.regions for inner in region.body) or any(
        inner.regions for _, region in call.regions for inner in region.body
    ):
        regions = tuple(
            (label, region.replace(body=tuple(_bound(inner, own, elsewhere) for inner in region.body)))
            for label, region in call.regions
        )
        return replace(call, regions=regions)
    return replace(call, constraint=_both(call.constraint, own))
