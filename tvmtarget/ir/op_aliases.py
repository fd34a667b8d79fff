"""Names of operations where one function serves several calls.

Deduplication lets equal subgraphs share one function, whose operations have the names of the first subgraph. A call for
another one carries the attribute `ops`: the names of all operations that it leads to, each before those in its nested
bodies and in callees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tvmtarget.ir.function import CODE, COPY, OPS, Call, Function, calls_in

__all__ = ["count_ops", "is_named_op", "is_named_operator", "op_aliases", "rename_ops", "with_op_aliases"]


def is_named_op(call: Call, functions: Mapping[str, Function]) -> bool:
    """Return whether a call counts as an operation with a name.

    Args:
        call: the call.
        functions: functions of the module by name.

    Returns:
        True for an operation and for a call of code; False for a copy, for code itself, and for a call of a function of
        operations.
    """
    return is_named_operator(call.op, functions)


def is_named_operator(op: str, functions: Mapping[str, Function]) -> bool:
    """Return whether calls of an operator count as operations with a name.

    Args:
        op: the operator of a call, `@` and a name for a function.
        functions: functions of the module by name.

    Returns:
        As for `is_named_op`.
    """
    if op[:1] != "@":
        return op not in (COPY, CODE)
    return op[1:] in functions and functions[op[1:]].code is not None


def op_aliases(call: Call) -> tuple[str, ...] | None:
    """Return the names that a call gives to the operations it leads to.

    Args:
        call: the call.

    Returns:
        Names in order, or None if the operations keep the names they have in the callee.
    """
    names = None if call.callee is None else call.attr(OPS)
    return None if names is None else tuple(map(str, names if isinstance(names, tuple) else (names,)))


def with_op_aliases(call: Call, names: tuple[str, ...]) -> Call:
    """Return a call with its `ops` replaced.

    Args:
        call: call of a function.
        names: names of all operations that it leads to, in order.

    Returns:
        The call.
    """
    return replace(call, attrs=(*((name, value) for name, value in call.attrs if name != OPS), (OPS, names)))


def count_ops(function: Function, functions: Mapping[str, Function]) -> int:
    """Count the operations that a call of a function leads to.

    Args:
        function: the callee.
        functions: functions of the module by name.

    Returns:
        The number of names that `ops` needs. In an invalid module with recursive calls each function counts once.
    """
    return _count(function, functions, ())


def _count(function: Function, functions: Mapping[str, Function], around: tuple[str, ...]) -> int:
    total = 0
    for call in calls_in(function):
        if is_named_op(call, functions):
            total += 1
        # Counting is part of the verification, which reports recursive calls only later and must end before.
        elif call.callee in functions and call.callee not in around:
            total += _count(functions[call.callee or ""], functions, (*around, function.name))
    return total


def rename_ops(region: Function, names: Iterator[str], functions: Mapping[str, Function]) -> Function:
    """Rename the operations of a nested body.

    Args:
        region: nested body that calls no functions but code.
        names: new names; one is taken for each operation, in order.
        functions: functions of the module by name.

    Returns:
        The body with new names.
    """
    body = []
    for call in region.body:
        source = next(names) if is_named_op(call, functions) else call.source
        regions = tuple((label, rename_ops(inner, names, functions)) for label, inner in call.regions)
        body.append(replace(call, source=source, regions=regions))
    return region.replace(body=tuple(body))
