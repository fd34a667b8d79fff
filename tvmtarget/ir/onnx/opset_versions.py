"""Conversion of functions between versions of operator sets, so that functions of several versions can be merged.

An operation whose definition is the same in both versions is not changed. Others are converted one by one with ONNX's
version converter, which needs the types of their operands. Constraints, effects and source names are kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import onnx
from google.protobuf.message import DecodeError, EncodeError
from onnx import ModelProto

from tvmtarget.errors import ModelError, first_line
from tvmtarget.ir.function import Call, Constant, Function, Value, all_names, domain_and_kind
from tvmtarget.ir.names import Names
from tvmtarget.ir.onnx.graph import write_graph
from tvmtarget.ir.onnx.reader import read_body
from tvmtarget.ir.onnx.tensors import SMALL
from tvmtarget.ir.types import Type

__all__ = ["convert_opsets", "since_version", "unify_opsets"]

# First version since which a control flow operator changed only in the types that it accepts, so that it needs no
# conversion; Scan had other semantics before version 9.
_CONTROL = {"If": 1, "Loop": 1, "Scan": 9, "SequenceMap": 17}


def unify_opsets(functions: Sequence[Function]) -> tuple[Function, ...]:
    """Convert functions to the same versions of operator sets.

    Args:
        functions: the functions.

    Returns:
        The functions in the versions of the first one if all operations are defined the same there, else in the newest.

    Raises:
        ModelError: an operation cannot be converted.
    """
    stated: dict[str, list[int]] = defaultdict(list)
    for function in functions:
        for domain, version in function.opsets:
            stated[domain].append(version)
    chosen: dict[str, int] = {}
    for domain, versions in stated.items():
        fits = all(
            _has_same_definition(call, domain, versions[0], function)
            for function in functions
            for call in function.body
        )
        # Without a change of definitions the version of the first function avoids any conversion.
        chosen[domain] = versions[0] if fits else max(versions)
    return tuple(convert_opsets(function, chosen) for function in functions)


def convert_opsets(function: Function, opsets: Mapping[str, int]) -> Function:
    """Convert a function to other versions of its operator sets.

    Args:
        function: the function.
        opsets: versions by domain; domains that the function does not use are ignored.

    Returns:
        The converted function.

    Raises:
        ModelError: an operation has no form in the other version; the message names it.
    """
    old = dict(function.opsets)
    for domain, version in opsets.items():
        if domain in old and old[domain] != version:
            function = _Converter(function, domain, old[domain], version).convert(function)
    changed = {**old, **{domain: version for domain, version in opsets.items() if domain in old}}
    return function.replace(opsets=tuple(sorted(changed.items())))


def _domain_and_kind(call: Call) -> tuple[str, str]:
    """Return domain and name of an ONNX operator; the domain of another dialect's operator is one that no model has."""
    return domain_and_kind(call.op) if call.op.startswith("onnx.") else (call.op, "")


@cache
def since_version(kind: str, version: int, domain: str) -> int | None:
    """Return the version of an operator set that introduced the definition of an operator.

    Args:
        kind: name of the operator.
        version: version of the operator set in which it is used.
        domain: the operator set; empty for ONNX's own.

    Returns:
        The version; None if ONNX does not know the operator.
    """
    try:
        return int(onnx.defs.get_schema(kind, version, domain).since_version)
    except onnx.defs.SchemaError:
        return None


def _has_same_definition(call: Call, domain: str, version: int, function: Function) -> bool:
    """Return whether an operation and its nested bodies have the same definition in another version."""
    nested = (inner for _, region in call.regions for inner in region.body)
    if not all(_has_same_definition(inner, domain, version, function) for inner in nested):
        return False
    old = dict(function.opsets).get(domain, version)
    own, kind = _domain_and_kind(call)
    if own != domain or old == version:
        return True
    since = since_version(kind, version, domain)
    return since is not None and since == since_version(kind, old, domain)


class _Converter:
    """Converts the operations of a function, and of its nested bodies, of one domain between two versions."""

    def __init__(self, function: Function, domain: str, old: int, new: int) -> None:
        self._root = function
        self._domain = domain
        self._versions = (old, new)
        self._names = Names(all_names(function))
        self._sources = Names(call.source for call in function.body)

    def convert(
        self,
        function: Function,
        types: Mapping[str, Type] | None = None,
        constants: Mapping[str, Constant] | None = None,
    ) -> Function:
        """Convert a function or a nested body, given types and constants of the enclosing functions."""
        known = {**(types or {}), **function.types}
        fixed = {**(constants or {}), **{one.name: one for one in function.constants}}
        body: list[Call] = []
        added: list[Constant] = []
        for call in function.body:
            regions = tuple((label, self.convert(region, known, fixed)) for label, region in call.regions)
            new = replace(call, regions=regions) if regions else call
            if self._is_unchanged(call):
                body.append(new)
            else:
                converted = self._convert_call(new, known, fixed)
                body += converted.body
                added += converted.constants
        return function.replace(body=tuple(body), constants=(*function.constants, *added))

    def _is_unchanged(self, call: Call) -> bool:
        domain, kind = _domain_and_kind(call)
        old, new = self._versions
        since = since_version(kind, old, domain) if domain == self._domain else None
        if domain != self._domain or (since is not None and since == since_version(kind, new, domain)):
            return True
        # The default is above both versions, so that other operators are never exempt.
        return min(old, new) >= _CONTROL.get(kind, new + old) and not domain

    def _convert_call(self, call: Call, types: Mapping[str, Type], constants: Mapping[str, Constant]) -> Function:
        """Convert one operation with ONNX's converter; return a function whose body and constants replace it."""
        old, new = self._versions
        used = call.uses()
        small = tuple(constants[name] for name in used if name in constants and constants[name].data.size <= SMALL)
        # The converter turns attributes into operands and back (axes, pads), for which it has to know their values.
        held = {constant.name for constant in small}
        params = tuple(Value(name, types.get(name)) for name in used if name not in held)
        alone = Function("converted", params, (call,), tuple(out.name for out in call.outputs if out.name), small)
        model = ModelProto(ir_version=10)
        model.opset_import.append(onnx.helper.make_opsetid(self._domain, old))
        try:
            write_graph(alone.replace(opsets=((self._domain, old),)), model.graph, is_nested=True)
            converted = read_body(onnx.version_converter.convert_version(model, new).graph)
        except (RuntimeError, ValueError, TypeError, DecodeError, EncodeError, ModelError, LookupError) as error:
            what = f"op {call.source or call.op!r} of function {self._root.name!r} has no form in version {new}"
            raise ModelError(
                f"{what} of operator set {self._domain or 'onnx'!r}, only in version {old}: {first_line(error)}"
            ) from error
        return self._rename(converted, call, {*held, *(param.name for param in params)})

    def _rename(self, converted: Function, call: Call, kept: set[str]) -> Function:
        """Rename new values apart, and copy constraint, effect and source name of the operation to its replacements."""
        outputs = {output.name: output for output in call.outputs}
        constants = tuple(one for one in converted.constants if one.name not in kept)
        new = [one.name for one in constants] + [out.name for inner in converted.body for out in inner.outputs]
        names = {name: self._names.fresh(name) for name in new if name and name not in outputs}
        body = []
        # The source name stays with the operation of the same kind; those that the converter adds get derived names.
        same = next((inner for inner in converted.body if inner.kind == call.kind), None)
        for inner in converted.body:
            body.append(
                replace(
                    inner,
                    inputs=tuple(names.get(name, name) for name in inner.inputs),
                    outputs=tuple(
                        outputs.get(out.name) or Value(names.get(out.name, ""), out.type) for out in inner.outputs
                    ),
                    constraint=call.constraint,
                    has_effect=call.has_effect,
                    source=call.source if inner is same else self._sources.fresh(f"{call.source}_{inner.kind}"),
                )
            )
        return converted.replace(
            body=tuple(body), constants=tuple(replace(one, name=names.get(one.name, one.name)) for one in constants)
        )
