"""Constraints and operation names that TVM cannot express, stored as function attributes.

`tvmtarget.constraint` is the constraint of a function. `tvmtarget.constraints` holds those of its bindings by name, as
JSON; `*` applies to all that are not listed, except calls of functions with a site of their own. `tvmtarget.names`
holds the source names of operations that differ from the name of their binding. Only what does not follow from TVM's
own attributes is written.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvmtarget.errors import ModelError, TvmTargetError, raise_all
from tvmtarget.ir.function import Call, Function, map_calls
from tvmtarget.ir.relax.canonical_calls import code_generator
from tvmtarget.ir.relax.vdevice_constraints import constrain_from_tvm
from tvmtarget.ir.types import TensorType
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.topology import Site, Topology
from tvmtarget.untrusted import parse_json

__all__ = ["assigned_constraint", "read_constraint_attributes", "write_constraint_attributes"]

CONSTRAINT = "tvmtarget.constraint"
CONSTRAINTS = "tvmtarget.constraints"
NAMES = "tvmtarget.names"
_DEFAULT = "*"


def assigned_constraint(own: Constraint | None, site: Site | None) -> Constraint | None:
    """Return the constraint of an operation after assignment.

    Args:
        own: constraint of the operation before.
        site: site that the operation is assigned to, or None.

    Returns:
        The site as a constraint, combined with what else the operation requires; preferences are resolved by it.
    """
    if site is None:
        return own
    at = Constraint.at(site.path)
    return at if own is None or own.path is not None or not own.is_required else own & at


def write_constraint_attributes(
    functions: Sequence[Function], attrs: Mapping[str, Any], topology: Topology | None
) -> tuple[Function, ...]:
    """Add attributes for constraints and names that TVM's own attributes do not express.

    Args:
        functions: functions of a module.
        attrs: attributes of the module.
        topology: its target tree, or None.

    Returns:
        The functions.

    Raises:
        ModelError: a function has constraints on bindings whose names are not unique.
    """
    plain = tuple(_unconstrained(function) for function in functions)
    implied = plain
    if topology is not None:
        try:
            implied = constrain_from_tvm(plain, attrs, topology)
        except TvmTargetError:  # TVM's attributes are for another tree, so that nothing follows from them
            implied = plain
    sited = _sited_functions(functions)
    return tuple(_write_attributes(one, other, sited) for one, other in zip(functions, implied, strict=True))


def read_constraint_attributes(functions: Sequence[Function]) -> tuple[Function, ...]:
    """Replace the attributes for constraints and names by the constraints and names.

    Args:
        functions: functions of a module.

    Returns:
        The functions.

    Raises:
        ModelError: an attribute is malformed, or names a binding that its function does not have.
    """
    problems: list[str] = []
    sited = _sited_functions(functions)
    found = tuple(_read_attributes(function, sited, problems) for function in functions)
    raise_all(ModelError, problems)
    return found


def _sited_functions(functions: Sequence[Function]) -> frozenset[str]:
    """Return the names of functions with a site of their own, which holds for calls of them."""
    return frozenset(
        one.name
        for one in functions
        if one.code is None
        and (one.constraint is not None or one.attr(CONSTRAINT) is not None or code_generator(one) is not None)
    )


def _unconstrained(function: Function) -> Function:
    return map_calls(function, lambda call: replace(call, constraint=None)).replace(constraint=None)


def _calls(function: Function) -> Iterator[Call]:
    """Yield the calls that are bindings in TVM in any kind of block, in nested bodies too."""
    for call in function.body:
        if not _is_returned(function, call):
            yield call
        for _, region in call.regions:
            yield from _calls(region)


def _is_returned(function: Function, call: Call) -> bool:
    """Return whether a call only builds the tuple that a function returns, which reading splits."""
    if call.op != "relax.Tuple" or function.results != (call.outputs[0].name,):
        return False
    types = (function.types.get(name) for name in call.inputs)
    return all(isinstance(type_, TensorType) or str(type_).startswith('opaque("Tensor(') for type_ in types)


def _binding(call: Call) -> str:
    """Return the name of the variable that a call is bound to."""
    return call.outputs[0].name if len(call.outputs) == 1 else call.source


def _takes_default(call: Call, sited: frozenset[str]) -> bool:
    """Return whether the default constraint applies to a call, and not the site of its callee."""
    if call.callee is not None:
        return call.callee not in sited
    text = call.attr("tvm.args")
    return not (call.op == "relax.Call" and isinstance(text, str) and text.startswith("Global("))


def _write_attributes(function: Function, implied: Function, sited: frozenset[str]) -> Function:
    """Add attributes to a function; `implied` is the function as reading TVM's own attributes would give it."""
    if function.code is not None:
        return function
    attrs: list[tuple[str, Any]] = []
    if function.constraint is not None and function.constraint != implied.constraint:
        attrs.append((CONSTRAINT, str(function.constraint)))
    pairs = list(zip(_calls(function), _calls(implied), strict=True))
    if any(call.constraint is not None and call.constraint != other.constraint for call, other in pairs):
        bindings = {_binding(call) for call, _ in pairs}
        constraints = [call.constraint for call, _ in pairs if _takes_default(call, sited)]
        # The most frequent constraint becomes the default, so that the attribute stays short.
        default = Counter(constraints).most_common(1)[0][0] if constraints else None
        texts = {} if default is None else {_DEFAULT: str(default)}
        for call, _ in pairs:
            if call.constraint != (default if _takes_default(call, sited) else None):
                texts[_binding(call)] = "" if call.constraint is None else str(call.constraint)
        if len(bindings) != len(pairs):
            raise ModelError(f"function {function.name!r} has constraints, and operations of one name")
        attrs.append((CONSTRAINTS, json.dumps(texts, ensure_ascii=False, sort_keys=True)))
    ops = [call for call, _ in pairs if call.source and _takes_default(call, sited)]
    names = {_binding(call): call.source for call in ops if call.source != _binding(call)}
    if names:
        attrs.append((NAMES, json.dumps(names, ensure_ascii=False, sort_keys=True)))
    return function.replace(attrs=(*function.attrs, *attrs)) if attrs else function


def _read_attributes(function: Function, sited: frozenset[str], problems: list[str]) -> Function:
    stored = {name: value for name, value in function.attrs if name in (CONSTRAINT, CONSTRAINTS, NAMES)}
    if not stored:
        return function
    where = f"function {function.name!r}"
    try:
        own = Constraint.parse(str(stored[CONSTRAINT])) if CONSTRAINT in stored else None
        texts = _read_texts(stored.get(CONSTRAINTS))
        names = _read_texts(stored.get(NAMES))
        constraints = {name: Constraint.parse(text) if text else None for name, text in texts.items()}
    except (TvmTargetError, ValueError) as error:
        problems.append(f"{where}: its attributes 'tvmtarget.*' cannot be read: {error}")
        return function
    known = {_binding(call) for call in _calls(function)}
    for name in sorted(constraints.keys() - known - {_DEFAULT}):
        problems.append(
            f"{where} has the constraint {texts[name]!r} for binding {name!r}, which it does not have; a pass of TVM "
            f"renamed or removed it: remove it from the attribute {CONSTRAINTS!r}, or constrain an existing binding"
        )

    returned = {_binding(call) for call in function.body if _is_returned(function, call)}

    def change(call: Call) -> Call:
        name = _binding(call)
        if name in returned:
            return call
        default = constraints.get(_DEFAULT) if _takes_default(call, sited) else None
        return replace(call, constraint=constraints.get(name, default), source=names.get(name, call.source))

    attrs = tuple(item for item in function.attrs if item[0] not in stored)
    return map_calls(function, change).replace(attrs=attrs, constraint=own)


def _read_texts(text: object) -> dict[str, str]:
    """Parse a JSON object of strings; anything else is a `ValueError`."""
    read = {} if text is None else parse_json(str(text), "it")
    if not isinstance(read, dict) or not all(isinstance(value, str) for value in read.values()):
        raise ValueError(f"{text!r} is not a JSON object of strings")
    return read
