"""Functions in other versions of operator sets, so that functions of several versions can become one.

An operation whose definition is the same in both versions is left alone. Others are converted one by one, by ONNX's
version converter, which needs the types of their operands; constraints, effects and names in the model are kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx
from google.protobuf.message import DecodeError, EncodeError
from onnx import ModelProto

from tvmtarget.errors import ModelError
from tvmtarget.ir.function import Call, Constant, Function, Value, all_names
from tvmtarget.ir.names import Names
from tvmtarget.ir.onnx.graph import write_graph
from tvmtarget.ir.onnx.reader import read_body
from tvmtarget.ir.onnx.tensors import SMALL
from tvmtarget.ir.types import Type

__all__ = ["convert_opsets", "unify_opsets"]

# Control flow changes between versions by the types that it takes; Scan does since version 9, before it was another.
_CONTROL = {"If": 1, "Loop": 1, "Scan": 9, "SequenceMap": 17}


def unify_opsets(functions: Sequence[Function]) -> tuple[Function, ...]:
    """Return functions in the same versions of operator sets: those of the first where all fit, else the newest."""
    stated: dict[str, list[int]] = defaultdict(list)
    for function in functions:
        for domain, version in function.opsets:
            stated[domain].append(version)
    chosen: dict[str, int] = {}
    for domain, versions in stated.items():
        fits = all(_is_same(call, domain, versions[0], function) for function in functions for call in function.body)
        chosen[domain] = versions[0] if fits else max(versions)
    return tuple(convert_opsets(function, chosen) for function in functions)


def convert_opsets(function: Function, opsets: Mapping[str, int]) -> Function:
    """Return a function in other versions of its operator sets, by domain; `ModelError` names what has no such."""
    old = dict(function.opsets)
    for domain, version in opsets.items():
        if domain in old and old[domain] != version:
            function = _Converter(function, domain, old[domain], version).convert(function)
    changed = {**old, **{domain: version for domain, version in opsets.items() if domain in old}}
    return function.replace(opsets=tuple(sorted(changed.items())))


def _split(call: Call) -> tuple[str, str]:
    """Return domain and name of an operator of ONNX; those of other dialects have a domain that no model states."""
    domain, _, kind = call.op.removeprefix("onnx.").rpartition("::")
    return (domain, kind) if call.op.startswith("onnx.") else (call.op, "")


def _since(kind: str, version: int, domain: str) -> int | None:
    """Return the version in which an operator got the definition that it has in one; None where ONNX has none."""
    try:
        return int(onnx.defs.get_schema(kind, version, domain).since_version)
    except onnx.defs.SchemaError:
        return None


def _is_same(call: Call, domain: str, version: int, function: Function) -> bool:
    """Whether an operation, with its nested bodies, is defined alike in a version and in that of its function."""
    nested = (inner for _, region in call.regions for inner in region.body)
    if not all(_is_same(inner, domain, version, function) for inner in nested):
        return False
    old = dict(function.opsets).get(domain, version)
    own, kind = _split(call)
    if own != domain or old == version:
        return True
    since = _since(kind, version, domain)
    return since is not None and since == _since(kind, old, domain)


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
        """Convert a function or a nested body; types and constants of the functions around are given."""
        known = {**(types or {}), **function.types}
        fixed = {**(constants or {}), **{one.name: one for one in function.constants}}
        body: list[Call] = []
        added: list[Constant] = []
        for call in function.body:
            regions = tuple((label, self.convert(region, known, fixed)) for label, region in call.regions)
            new = replace(call, regions=regions) if regions else call
            if self._stays(call):
                body.append(new)
            else:
                converted = self._converted(new, known, fixed)
                body += converted.body
                added += converted.constants
        return function.replace(body=tuple(body), constants=(*function.constants, *added))

    def _stays(self, call: Call) -> bool:
        domain, kind = _split(call)
        old, new = self._versions
        since = _since(kind, old, domain) if domain == self._domain else None
        if domain != self._domain or (since is not None and since == _since(kind, new, domain)):
            return True
        return min(old, new) >= _CONTROL.get(kind, new + old) and not domain

    def _converted(self, call: Call, types: Mapping[str, Type], constants: Mapping[str, Constant]) -> Function:
        """Convert one operation by ONNX's converter; returns a function whose body and constants stand for it."""
        old, new = self._versions
        used = call.uses()
        small = tuple(constants[name] for name in used if name in constants and constants[name].data.size <= SMALL)
        held = {constant.name for constant in small}
        params = tuple(Value(name, types.get(name)) for name in used if name not in held)
        alone = Function("converted", params, (call,), tuple(out.name for out in call.outputs if out.name), small)
        model = ModelProto(ir_version=10)
        model.opset_import.append(onnx.helper.make_opsetid(self._domain, old))
        try:
            write_graph(alone.replace(opsets=((self._domain, old),)), model.graph, is_nested=True)
            converted = read_body(onnx.version_converter.convert_version(model, new).graph)
        except (RuntimeError, ValueError, TypeError, DecodeError, EncodeError, ModelError, LookupError) as error:
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            what = f"op {call.source or call.op!r} of function {self._root.name!r} has no form in version {new}"
            raise ModelError(
                f"{what} of operator set {self._domain or 'onnx'!r}, only in version {old}: {reason}"
            ) from error
        return self._renamed(converted, call, {*held, *(param.name for param in params)})

    def _renamed(self, converted: Function, call: Call, kept: set[str]) -> Function:
        """Give new values fresh names, and to all new operations what was asked of the old one."""
        outputs = {output.name: output for output in call.outputs}
        constants = tuple(one for one in converted.constants if one.name not in kept)
        made = [one.name for one in constants] + [out.name for inner in converted.body for out in inner.outputs]
        names = {name: self._names.fresh(name) for name in made if name and name not in outputs}
        body = []
        itself = next((inner for inner in converted.body if inner.kind == call.kind), None)
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
                    source=call.source if inner is itself else self._sources.fresh(f"{call.source}_{inner.kind}"),
                )
            )
        return converted.replace(
            body=tuple(body), constants=tuple(replace(one, name=names.get(one.name, one.name)) for one in constants)
        )
