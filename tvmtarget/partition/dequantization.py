"""Dequantized values with several readers, which get an operation each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tvmtarget.ir.def_use import readers_of
from tvmtarget.ir.function import Call, all_names, calls_in, kind_of_op
from tvmtarget.ir.inline import Inlined
from tvmtarget.ir.names import Names
from tvmtarget.ir.relax.blocks import BLOCKS
from tvmtarget.partition.placement.where_rules import NamePatterns

__all__ = ["DEQUANTIZE", "unshare_dequantized"]

# Operators that compute float copies of quantized values.
DEQUANTIZE = frozenset({"DequantizeLinear", "relax.dequantize"})


def unshare_dequantized(inlined: Inlined, kept: Iterable[str]) -> Inlined:
    """Give each reader of a dequantized value a DequantizeLinear of its own.

    A value that is dequantized once for several sites would be copied to them as floats.

    Args:
        inlined: the function with the frames of its operations.
        kept: names and globs of operations that are left as they are; those with a constraint always are.

    Returns:
        The changed function. The first reader keeps the operation and its name; those in other inlined calls, results
        and nested bodies read it, too.
    """
    if not any(kind_of_op(op) in DEQUANTIZE for op in inlined.function.ops):
        return inlined
    names = Names(all_names(inlined.function))
    sources = Names(call.source for call in calls_in(inlined.function))
    return _unshared(inlined, NamePatterns(kept), names, sources)


def _unshared(inlined: Inlined, kept: NamePatterns, names: Names, sources: Names) -> Inlined:
    function, readers, results = inlined.function, readers_of(inlined.function), {*inlined.function.results}
    # The value that a reader reads instead, by reader and original value.
    own: dict[tuple[int, str], str] = {}
    body: list[Call] = []
    frames = []
    bodies = {}
    for index, call in enumerate(function.body):
        if index in inlined.bodies:
            inner = tuple(_unshared(one, kept, names, sources) for one in inlined.bodies[index])
            labels = (label for label, _ in call.regions)
            regions = tuple((label, one.function) for label, one in zip(labels, inner, strict=True))
            call = replace(call, regions=regions)
            bodies[len(body)] = inner
        inputs = tuple(own.get((index, name), name) for name in call.inputs)
        body.append(replace(call, inputs=inputs) if inputs != call.inputs else call)
        frames.append(inlined.frames[index])
        if call.kind not in DEQUANTIZE or call.constraint is not None or kept.matching((call.source,)):
            continue
        value = call.outputs[0]
        plain = [
            reader
            for reader in readers.get(value.name, ())
            if not function.body[reader].regions and inlined.frames[reader] == inlined.frames[index]
        ]
        is_read_otherwise = len(plain) < len(readers.get(value.name, ())) or value.name in results
        for reader in plain if is_read_otherwise else plain[1:]:
            copy = replace(value, name=names.fresh(value.name))
            own[reader, value.name] = copy.name
            body.append(replace(body[-1], outputs=(copy,), source=sources.fresh(call.source)))
            frames.append(inlined.frames[index])
    if tuple(body) == function.body:
        return inlined
    # Recorded blocks count the bindings, whose number has changed.
    attrs = tuple(item for item in function.attrs if item[0] != BLOCKS)
    return Inlined(function.replace(body=tuple(body), attrs=attrs), tuple(frames), bodies)
