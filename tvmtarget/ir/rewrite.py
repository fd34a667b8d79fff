"""Rewrites of functions and modules: rename, replace uses, remove dead code, share constants, outline, inline.

Each returns a new value; the body stays in topological order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tvmtarget.errors import ModelError, UnknownNameError, did_you_mean
from tvmtarget.ir.def_use import boundary, detour, readers_of
from tvmtarget.ir.function import (
    CODE,
    COPY,
    Call,
    Function,
    Value,
    callees_of,
    calls_in,
    reachable_functions,
    with_renamed_callees,
)
from tvmtarget.ir.inline import inline_calls
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.names import Names
from tvmtarget.target.constraints.constraint import Constraint

__all__ = [
    "check_convex",
    "clone",
    "extract",
    "inline",
    "outline",
    "outline_calls",
    "positions_of",
    "remove_dead_code",
    "remove_dead_functions",
    "rename",
    "replace_uses",
    "share_constants",
    "values_of",
    "with_body",
    "with_op_names",
]


def replace_uses(function: Function, values: Mapping[str, str]) -> Function:
    """Replace uses of values in operations, nested bodies and results.

    Args:
        function: the function.
        values: name of the value to read instead, by name.

    Returns:
        The changed function.
    """
    body = tuple(
        replace(
            call,
            inputs=tuple(values.get(name, name) for name in call.inputs),
            regions=tuple((label, replace_uses(region, values)) for label, region in call.regions),
        )
        for call in function.body
    )
    return function.replace(body=body, results=tuple(values.get(name, name) for name in function.results))


def remove_dead_code(function: Function) -> Function:
    """Remove unused operations without effects, and unused constants, in nested bodies too.

    Args:
        function: the function.

    Returns:
        The changed function.
    """
    needed = set(function.results)
    body: list[Call] = []
    # One backward pass suffices: the body is in topological order, so that readers come before producers.
    for call in reversed(function.body):
        if not call.has_effect and needed.isdisjoint(output.name for output in call.outputs):
            continue
        regions = tuple((label, remove_dead_code(region)) for label, region in call.regions)
        kept = replace(call, regions=regions) if regions else call
        needed |= set(kept.uses())
        body.append(kept)
    constants = tuple(constant for constant in function.constants if constant.name in needed)
    return function.replace(body=tuple(reversed(body)), constants=constants)


def remove_dead_functions(module: IRModule, keep: Collection[str] = ("main",)) -> IRModule:
    """Remove functions that cannot be reached by calls.

    Args:
        module: the module.
        keep: functions to keep with all that they reach.

    Returns:
        The changed module.
    """
    reached = reachable_functions([name for name in keep if name in module], module.by_name)
    return module.replace(functions=tuple(function for function in module if function.name in reached))


def share_constants(function: Function) -> Function:
    """Merge constants of equal type and elements.

    Args:
        function: the function.

    Returns:
        The function with the first of each set of equal constants.
    """
    first: dict[object, str] = {}
    same = {one.name: first.setdefault((one.type, one.digest), one.name) for one in function.constants}
    constants = tuple(constant for constant in function.constants if same[constant.name] == constant.name)
    changed = {name: kept for name, kept in same.items() if name != kept}
    return replace_uses(function.replace(constants=constants), changed) if changed else function


def rename(module: IRModule, old: str, new: str) -> IRModule:
    """Rename a function and its calls.

    Args:
        module: the module.
        old: present name.
        new: new name.

    Returns:
        The changed module.

    Raises:
        UnknownNameError: there is no function of the old name.
        ModelError: there is a function of the new name.
    """
    module[old]  # raises if there is none
    if new in module and new != old:
        raise ModelError(f"function {old!r} cannot be called {new!r}; there is one with that name")
    functions = (with_renamed_callees(function, {old: new}) for function in module)
    return module.replace(functions=tuple(one.replace(name=new) if one.name == old else one for one in functions))


def clone(module: IRModule, name: str, new: str) -> IRModule:
    """Add a copy of a function, which nothing calls yet.

    Args:
        module: the module.
        name: function to copy.
        new: name of the copy.

    Returns:
        The changed module.

    Raises:
        ModelError: there is a function of the new name.
    """
    if new in module:
        raise ModelError(f"function {name!r} cannot be copied to {new!r}; there is one with that name")
    return module.with_function(module[name].replace(name=new))


def inline(module: IRModule, name: str) -> IRModule:
    """Inline all calls of a function, and remove it unless it is `main`.

    Args:
        module: the module.
        name: function to inline.

    Returns:
        The changed module.

    Raises:
        ModelError: the function or a call of it has a constraint, which makes it one unit of work, or it is code.
    """
    callee = module[name]
    if callee.constraint is not None:
        raise ModelError(
            f"function {name!r} is constrained to {callee.constraint}, so it is one unit of work and is not inlined"
        )
    if callee.code is not None:
        raise ModelError(f"function {name!r} is code of {callee.code.kind!r}, which is not inlined")
    functions = []
    for function in module:
        pinned = next(
            (call for call in calls_in(function) if call.callee == name and call.constraint is not None), None
        )
        if pinned is not None:
            problem = f"the call of {name!r} in function {function.name!r} is constrained to {pinned.constraint}"
            raise ModelError(f"{problem}, so it is one unit of work and is not inlined")
        is_called = name in callees_of(function)
        functions.append(inline_calls(function, {name: callee}, only={name}).function if is_called else function)
    changed = module.replace(functions=tuple(functions))
    return changed if name == "main" else changed.replace(functions=tuple(one for one in changed if one.name != name))


def with_op_names(function: Function) -> Function:
    """Give every operation a unique name; one is made up where it is missing or taken.

    Args:
        function: the function.

    Returns:
        The function; the same one if its names are unique already.
    """
    has_others = any(not _needs_name(op) for op in function.ops)
    sources = [call.source for call in function.calls if not has_others or _needs_name(call.op)]
    if len(set(sources)) == len(sources) and "" not in sources:
        return function
    return _with_op_names(function, Names(sources), set())


def _with_op_names(function: Function, names: Names, seen: set[str]) -> Function:
    body = []
    for call in function.body:
        regions = tuple((label, _with_op_names(region, names, seen)) for label, region in call.regions)
        source = call.source
        if _needs_name(call.op) and (not source or source in seen):
            source = names.fresh(source or call.kind)
        seen.add(source)
        body.append(replace(call, regions=regions, source=source))
    return function.replace(body=tuple(body))


def _needs_name(op: str) -> bool:
    return not op.startswith("@") and op not in (COPY, CODE)


def outline(
    module: IRModule,
    calls: Iterable[str],
    name: str,
    constraint: Constraint | str | None = None,
    *,
    function: str = "main",
) -> IRModule:
    """Move operations into a new function, and call it in their place.

    Args:
        module: the module.
        calls: source names of the operations.
        name: name of the new function.
        constraint: placement constraint of the new function.
        function: function that holds the operations.

    Returns:
        The changed module.

    Raises:
        UnknownNameError: there is no such operation.
        ModelError: a name is ambiguous or taken, or the operations are not convex: a value leaves them and comes back.
            The message shows the path.
    """
    old = module[function]
    return outline_calls(module, positions_of(old, calls), name, constraint, function=function)


def positions_of(function: Function, names: Iterable[str]) -> list[int]:
    """Return the indices of operations by their source names.

    Args:
        function: the function.
        names: source names.

    Returns:
        Ascending indices in the body.

    Raises:
        UnknownNameError: there is no operation of a name.
        ModelError: there are several.
    """
    positions: dict[str, list[int]] = {}
    for index, call in enumerate(function.body):
        positions.setdefault(call.source, []).append(index)
    found: set[int] = set()
    for name in names:
        if name not in positions:
            raise UnknownNameError(f"no op {name!r} in function {function.name!r}{did_you_mean(name, positions)}")
        if len(positions[name]) > 1:
            count = len(positions[name])
            raise ModelError(f"{count} ops of function {function.name!r} are called {name!r}; rename them")
        found.update(positions[name])
    return sorted(found)


def outline_calls(
    module: IRModule,
    calls: Collection[int],
    name: str,
    constraint: Constraint | str | None = None,
    *,
    function: str = "main",
) -> IRModule:
    """Outline operations given by index, as `outline` does.

    Args:
        module: the module.
        calls: indices of the operations.
        name: name of the new function.
        constraint: placement constraint of the new function.
        function: function that holds the operations.

    Returns:
        The changed module.

    Raises:
        ModelError: as for `outline`, or no operations are given.
    """
    old = module[function]
    if name in module:
        raise ModelError(f"operations cannot be outlined into {name!r}; there is a function with that name")
    if not calls:
        raise ModelError(f"no operations are given to be outlined into {name!r}")
    behind = check_convex(old, calls)
    inside = sorted(calls)
    new, call = extract(old, inside, name, constraint, readers_of(old), values_of(old))
    taken = set(inside)
    # Everything that depends on the new call moves behind it; the rest keeps its order in front.
    before = tuple(one for index, one in enumerate(old.body) if index not in taken and index not in behind)
    after = tuple(one for index, one in enumerate(old.body) if index in behind)
    return module.with_function(with_body(old, (*before, call, *after))).with_function(new)


def check_convex(function: Function, calls: Collection[int]) -> frozenset[int]:
    """Check that no value leaves a set of operations and comes back.

    Args:
        function: the function.
        calls: indices of the operations.

    Returns:
        Indices of the operations that depend on the set.

    Raises:
        ModelError: the set is not convex; the message shows the path.
    """
    path, behind = detour(function, calls)
    if path:
        shown = " -> ".join(repr(function.body[index].source or function.body[index].op) for index in path)
        raise ModelError(f"these operations do not fit into one function: {shown} leaves it and comes back")
    return behind


def values_of(function: Function) -> dict[str, Value]:
    """Return parameters and results of operations by name.

    Args:
        function: the function.

    Returns:
        The values with their types and scopes; without constants and nested bodies.
    """
    computed = (output for call in function.body for output in call.outputs)
    return {value.name: value for value in (*function.params, *computed) if value.name}


def extract(
    function: Function,
    calls: Sequence[int],
    name: str,
    constraint: Constraint | str | None,
    readers: Mapping[str, tuple[int, ...]],
    values: Mapping[str, Value],
) -> tuple[Function, Call]:
    """Build a function from some operations, and the call that replaces them.

    Args:
        function: function that holds the operations.
        calls: ascending indices of the operations.
        name: name of the new function.
        constraint: placement constraint of the new function.
        readers: result of `readers_of(function)`.
        values: result of `values_of(function)`.

    Returns:
        The new function and its call.
    """
    inputs, outputs = boundary(function, calls, readers)
    body = tuple(function.body[index] for index in calls)
    used = {used for call in body for used in call.uses()} & function.constant_names
    new = Function(
        name=name,
        params=tuple(values.get(value, Value(value, None)) for value in inputs),
        body=body,
        results=outputs,
        constants=tuple(constant for constant in function.constants if constant.name in used) if used else (),
        constraint=None if constraint is None else Constraint.parse(constraint),
        opsets=function.opsets,
    )
    has_effect = any(call.has_effect for call in body)
    call = Call(f"@{name}", inputs, tuple(values[value] for value in outputs), source=name, has_effect=has_effect)
    return new, call


def with_body(function: Function, body: tuple[Call, ...]) -> Function:
    """Replace the body of a function.

    Args:
        function: the function.
        body: calls in topological order.

    Returns:
        The function without constants that only the old body used.
    """
    old, new = ({used for call in calls for used in call.uses()} for calls in (function.body, body))
    # Constants that neither body uses stay: they may be results, or be used by a later pass.
    gone = old - new - set(function.results)
    return function.replace(body=body, constants=tuple(one for one in function.constants if one.name not in gone))
