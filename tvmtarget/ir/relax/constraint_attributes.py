"""Decisions that TVM has no words for, as attributes of its functions.

`tvmtarget.constraint` is the constraint of a function, `tvmtarget.constraints` those of its bindings by name, as JSON
(`*` for all that are not listed, but calls of functions that say where they run), and `tvmtarget.names` what operations
are called where that is not the name of the binding. Only what does not follow from TVM's own words is written.
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
_OTHERS = "*"


def assigned_constraint(own: Constraint | None, site: Site | None) -> Constraint | None:
    """Return the site."""
    if site is None:
        return own
    at = Constraint.at(site.path)
    return at if own is None or own.path is not None or not own.is_required else own & at


def write_constraint_attributes(
    functions: Sequence[Function], attrs: Mapping[str, Any], topology: Topology | None
) -> tuple[Function, ...]:
    """Return functions with attributes for constraints and names that reading them back would not find."""
    plain = tuple(_unconstrained(function) for function in functions)
    implied = plain
    if topology is not None:
        try:
            implied = constrain_from_tvm(plain, attrs, topology)
        except TvmTargetError:  # of a module for another tree: then nothing follows from that
            implied = plain
    elsewhere = _elsewhere(functions)
    return tuple(_with_kept(one, other, elsewhere) for one, other in zip(functions, implied, strict=True))


def read_constraint_attributes(functions: Sequence[Function]) -> tuple[Function, ...]:
    """Return functions with the constraints and names that their attributes say, in the place of these.

    Raises:
        ModelError: an attribute cannot be read, or speaks of a binding that the function has not.
    """
    problems: list[str] = []
    elsewhere = _elsewhere(functions)
    found = tuple(_read_attributes(function, elsewhere, problems) for function in functions)
    raise_all(ModelError, problems)
    return found


def _elsewhere(functions: Sequence[Function]) -> frozenset[str]:
    """Return the functions that say where they run: calls of them are where these are."""
    return frozenset(
        one.name
        for one in functions
        if one.code is None
        and (one.constraint is not None or one.attr(CONSTRAINT) is not None or code_generator(one) is not None)
    )


def _unconstrained(function: Function) -> Function:
    return map_calls(function, lambda call: replace(call, constraint=None)).replace(constraint=None)


def _calls(function: Function) -> Iterator[Call]:
    """Yield the calls that are bindings wherever TVM's blocks end, in bodies too."""
    for call in function.body:
        if not _is_returned(function, call):
            yield call
        for _, region in call.regions:
            yield from _calls(region)


def _is_returned(function: Function, call: Call) -> bool:
    """Whether a call only makes the tuple that a function returns, which reading takes apart."""
    if call.op != "relax.Tuple" or function.results != (call.outputs[0].name,):
        return False
    types = (function.types.get(name) for name in call.inputs)
    return all(isinstance(type_, TensorType) or str(type_).startswith('opaque("Tensor(') for type_ in types)


def _binding(call: Call) -> str:
    """Return the name of the variable that a call is bound to."""
    return call.outputs[0].name if len(call.outputs) == 1 else call.source


def _follows_others(call: Call, elsewhere: frozenset[str]) -> bool:
    """Whether a call is where all that are not listed are, and not where its function is."""
    if call.callee is not None:
        return call.callee not in elsewhere
    text = call.attr("tvm.args")
    return not (call.op == "relax.Call" and isinstance(text, str) and text.startswith("Global("))


def _with_kept(function: Function, implied: Function, elsewhere: frozenset[str]) -> Function:
    if function.code is not None:
        return function
    attrs: list[tuple[str, Any]] = []
    if function.constraint is not None and function.constraint != implied.constraint:
        attrs.append((CONSTRAINT, str(function.constraint)))
    pairs = list(zip(_calls(function), _calls(implied), strict=True))
    if any(call.constraint is not None and call.constraint != other.constraint for call, other in pairs):
        said = {_binding(call): call.constraint for call, _ in pairs}
        following = [call.constraint for call, _ in pairs if _follows_others(call, elsewhere)]
        others = Counter(following).most_common(1)[0][0] if following else None
        texts = {} if others is None else {_OTHERS: str(others)}
        for call, _ in pairs:
            usual = others if _follows_others(call, elsewhere) else None
            if call.constraint != usual:
                texts[_binding(call)] = "" if call.constraint is None else str(call.constraint)
        if len(said) != len(pairs):
            raise ModelError(f"function {function.name!r} has constraints, and operations of one name")
        attrs.append((CONSTRAINTS, json.dumps(texts, ensure_ascii=False, sort_keys=True)))
    ops = [call for call, _ in pairs if call.source and _follows_others(call, elsewhere)]
    names = {_binding(call): call.source for call in ops if call.source != _binding(call)}
    if names:
        attrs.append((NAMES, json.dumps(names, ensure_ascii=False, sort_keys=True)))
    return function.replace(attrs=(*function.attrs, *attrs)) if attrs else function


def _read_attributes(function: Function, elsewhere: frozenset[str], problems: list[str]) -> Function:
    kept = {name: value for name, value in function.attrs if name in (CONSTRAINT, CONSTRAINTS, NAMES)}
    if not kept:
        return function
    place = f"function {function.name!r}"
    try:
        own = Constraint.parse(str(kept[CONSTRAINT])) if CONSTRAINT in kept else None
        texts = _texts(kept.get(CONSTRAINTS))
        names = _texts(kept.get(NAMES))
        said = {name: Constraint.parse(text) if text else None for name, text in texts.items()}
    except (TvmTargetError, ValueError) as error:
        problems.append(f"{place}: its attributes 'tvmtarget.*' cannot be read: {error}")
        return function
    known = {_binding(call) for call in _calls(function)}
    for name in sorted(said.keys() - known - {_OTHERS}):
        problems.append(
            f"{place} has the constraint {texts[name]!r} for binding {name!r}, which it has not; a pass of TVM renamed "
            f"or removed it: take it out of the attribute {CONSTRAINTS!r}, or constrain what is there now"
        )

    returned = {_binding(call) for call in function.body if _is_returned(function, call)}

    def change(call: Call) -> Call:
        name = _binding(call)
        if name in returned:
            return call
        others = said.get(_OTHERS) if _follows_others(call, elsewhere) else None
        return replace(call, constraint=said.get(name, others), source=names.get(name, call.source))

    attrs = tuple(item for item in function.attrs if item[0] not in kept)
    return map_calls(function, change).replace(attrs=attrs, constraint=own)


def _texts(text: object) -> dict[str, str]:
    """Read an object of texts; `ValueError` for anything else."""
    read = {} if text is None else parse_json(str(text), "it")
    if not isinstance(read, dict) or not all(isinstance(value, str) for value in read.values()):
        raise ValueError(f"{text!r} is no JSON object of texts")
    return read
