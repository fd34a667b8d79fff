"""What the operations of a function that does for several parts of a program are called in each of them.

The function has the names of the operations of one part; calls of it for the others have the attribute `ops`, which
names all operations that the call leads to, each before those in its nested bodies and in callees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tvmtarget.ir.function import CODE, COPY, OPS, Call, Function, calls_in

__all__ = ["count_ops", "is_named_op", "op_aliases", "rename_ops", "with_op_aliases"]


def is_named_op(call: Call, functions: Mapping[str, Function]) -> bool:
    """Whether a call is told by its name: an operation or a call of code, neither a copy nor a call to look into."""
    if call.callee is None:
        return call.op not in (COPY, CODE)
    return call.callee in functions and functions[call.callee].code is not None


def op_aliases(call: Call) -> tuple[str, ...] | None:
    """Return what a call names the operations that it leads to; None if they have their own names."""
    names = None if call.callee is None else call.attr(OPS)
    return None if names is None else tuple(map(str, names if isinstance(names, tuple) else (names,)))


def with_op_aliases(call: Call, names: tuple[str, ...]) -> Call:
    """Return a call that names the operations that it leads to."""
    return replace(call, attrs=(*((name, value) for name, value in call.attrs if name != OPS), (OPS, names)))


def count_ops(function: Function, functions: Mapping[str, Function]) -> int:
    """Count the operations that a call of a function leads to; what is in a circle of calls counts once."""
    return _count(function, functions, ())


def _count(function: Function, functions: Mapping[str, Function], around: tuple[str, ...]) -> int:
    total = 0
    for call in calls_in(function):
        if is_named_op(call, functions):
            total += 1
        elif call.callee in functions and call.callee not in around:
            total += _count(functions[call.callee or ""], functions, (*around, function.name))
    return total


def rename_ops(region: Function, names: Iterator[str], functions: Mapping[str, Function]) -> Function:
    """Return a nested body, which calls no functions but code, with other names of its operations."""
    body = []
    for call in region.body:
        source = next(names) if is_named_op(call, functions) else call.source
        regions = tuple((label, rename_ops(inner, names, functions)) for label, inner in call.regions)
        body.append(replace(call, source=source, regions=regions))
    return region.replace(body=tuple(body))
