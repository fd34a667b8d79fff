"""Placement that TVM expresses (targets, code generators, virtual devices) as constraints on a target tree.

TVM's forms are the attribute `target` of a function or of code (a TVM target, its text or its JSON), `Codegen` and
`Composite`, which name an external code generator, and the virtual devices of values. A target selects the leaves that
satisfy it and are most similar to it; several equally similar leaves are alternatives.
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
    """Constrain functions and calls to the nodes that TVM's attributes select.

    An attribute of a function holds for its own operations; a callee with an attribute of its own runs where that says.
    Functions that a decomposition made are not changed.

    Args:
        functions: all functions of a module.
        attrs: attributes of the module, with its virtual devices.
        topology: the target tree.

    Returns:
        The functions with constraints.

    Raises:
        TargetError: no node of the tree fits a function or a value; all such problems with their reasons.
    """
    return _ConstraintReader(functions, attrs, topology).functions()


class _ConstraintReader:
    """Reads the placement of the functions of one module; problems are collected."""

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
        """Return the constraint that the attributes of a function state; None if there are none."""
        if function.attr("role") is not None:
            return None
        generator = code_generator(function)
        if generator is not None:
            return self._generator(generator, function.name)
        target = _target_of(function)
        if target is None:
            return None
        try:
            return Constraint.at_any(self._leaves_of(target))
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
        # Most programs have neither bodies nor results on virtual devices.
        may_state = function.calls is not body or [out for call in body for out in call.outputs if out.scope]
        if may_state and code_generator(function) is None:  # an external function has values in its driver's memory
            body = tuple(self._call(call, function.name) for call in body)
        if own is not None and elsewhere:
            body = tuple(_constrain_call(call, own, elsewhere) for call in body)
            own = None
        constraint = _both(function.constraint, own)
        # The same function keeps what was derived from it.
        is_same = body is function.body and constraint is function.constraint
        return function if is_same else function.replace(body=body, constraint=constraint)

    def _call(self, call: Call, name: str) -> Call:
        """Constrain a call to the site of the virtual device of its results."""
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
        """Return whether a call is of an external code generator, or of a function with operands other than values."""
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
            return None  # the module has no such device; the writer reports it
        vdevice = read_blob(self._vdevices[int(index)])
        try:
            found = self._leaves_of(vdevice.target)
        except TvmTargetError as error:
            self._problems += [f"virtual device {index} of {where}: {problem}" for problem in error.problems]
            return None
        # TVM numbers the devices of a kind; a number beyond the leaves that fit means the last one.
        return Constraint.at(found[min(int(vdevice.vdevice_id), len(found) - 1)])

    def _generator(self, name: str, function: str) -> Constraint | None:
        """Return a constraint on the outermost nodes of a code generator's kind."""
        found = [path for path, node in self._topology.root.walk() if node.kind == name]
        # A nested node of the same kind is part of the outer one.
        outer = [path for path in found if not any(path.startswith(f"{other}/") for other in found)]
        if not outer:
            has = ", ".join(f"@{leaf.path or '.'} ({leaf.target.kind})" for leaf in self._leaves)
            what = f"function {function!r} is for code generator {name!r}"
            self._problems.append(f"{what}, and no node of the target is of that kind; it has {has}")
            return None
        return Constraint.at_any(outer)

    def _leaves_of(self, target: object) -> list[str]:
        return _most_similar_leaves(target, self._leaves, self._topology.root)


def leaf_of_function(function: Function, leaves: Sequence[Site]) -> str | None:
    """Return the first leaf that the attributes of a function select.

    Args:
        function: the function.
        leaves: leaves of the target tree.

    Returns:
        Path of the leaf; None if the function states none, or none fits.
    """
    generator, target = code_generator(function), _target_of(function)
    if generator is not None:
        return next((leaf.path for leaf in leaves if leaf.target.kind == generator), None)
    try:
        return None if target is None else _most_similar_leaves(target, leaves, None)[0]
    except TvmTargetError:
        return None


def _target_of(function: Function) -> object:
    """Return the attribute `target` of a function or of its code; None without one."""
    if function.code is None or function.code.kind != TVM:
        return function.attr("target")
    own: object = getattr(read_blob(function.code), "attrs", {}).get("target")
    return own


def _most_similar_leaves(target: object, leaves: Sequence[Site], root: Target | None) -> list[str]:
    """Return the leaves that satisfy a target and are most similar to it; `TargetError` with reasons if none does."""
    requested = _read_target(target)
    constraint = Constraint.of(requested)
    answers = [(leaf, constraint.check(leaf.target, leaf.path, root)) for leaf in leaves]
    possible = [(leaf, answer.truth, _similarity(requested, leaf)) for leaf, answer in answers if answer.is_possible]
    if not possible:
        reasons = "; ".join(f"@{leaf.path or '.'}: {_why_not(answer)}" for leaf, answer in answers)
        raise TargetError(f"no leaf of the tree satisfies {str(constraint)!r}: {reasons}")
    best = max((truth, similarity) for _, truth, similarity in possible)
    return [leaf.path for leaf, truth, similarity in possible if (truth, similarity) == best]


def _why_not(answer: Reason) -> str:
    """Return the conditions that a leaf does not meet, else the whole reason."""
    return ", ".join(part.text for part in answer.parts if not part.is_possible) or answer.text


def _read_target(target: object) -> Target:
    """Read a TVM target, its JSON or text, or a text of this library."""
    if isinstance(target, Opaque):
        if target.kind != TVM:
            raise TargetError(f"an attribute of kind {target.kind!r} is not a target; write its text")
        target = read_blob(target)
    if isinstance(target, str):
        return Target.parse(target)
    if isinstance(target, Mapping):
        return Target.parse(json.dumps(target))
    return Target.from_tvm(target)


def _similarity(requested: Target, leaf: Site) -> tuple[int, int]:
    """Return the number of attributes that a leaf shares with a target, and the negated number of its other ones."""
    attrs, leaf_attrs = requested.attrs.to_json(), leaf.target.attrs.to_json()
    equal = sum(leaf_attrs.get(name) == value for name, value in attrs.items())
    return equal, -sum(name not in attrs for name in leaf_attrs)


def _both(one: Constraint | None, other: Constraint | None) -> Constraint | None:
    """Return the conjunction of two constraints; a path that the other one allows implies it."""
    if one is None or other is None:
        return one or other
    if one.path is not None and (one == other or (other.is_negated and ~one in other.all_of)):
        return one
    return one if one == other or other in one.all_of else one & other


def _constrain_call(call: Call, own: Constraint, elsewhere: set[str]) -> Call:
    """Constrain a call as its function, unless it calls a function with another placement."""
    if call.callee in elsewhere:
        return call
    if any(inner.callee in elsewhere for _, region in call.regions for inner in region.body) or any(
        inner.regions for _, region in call.regions for inner in region.body
    ):
        regions = tuple(
            (label, region.replace(body=tuple(_constrain_call(inner, own, elsewhere) for inner in region.body)))
            for label, region in call.regions
        )
        return replace(call, regions=regions)
    return replace(call, constraint=_both(call.constraint, own))
