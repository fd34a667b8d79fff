"""What a valid module is: one table of rules, each of which names function, op and value when it is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from tvmtarget.errors import ModelError, UnknownNameError, did_you_mean
from tvmtarget.ir.function import COPY, Call, Function
from tvmtarget.target.tree import Target

__all__ = ["RULES", "verify_functions"]

MAX_SHOWN = 5

Functions: TypeAlias = "Mapping[str, Function]"
Rule: TypeAlias = "Callable[[Functions, Function], Iterator[str]]"


def verify_functions(module: Functions, target: Target | None = None) -> None:
    """Raise `ModelError` with the first problems if any function breaks any rule, or names no node of the target."""
    problems: list[str] = []
    for function in module.values():
        for rule in RULES:
            problems += [f"{problem} (function {function.name!r})" for problem in rule(module, function)]
        problems += [f"{problem} (function {function.name!r})" for problem in _paths_name_nodes(function, target)]
    if "main" not in module:
        problems.append("the module has no function 'main'")
    problems += _cycles(module)
    if len(problems) > MAX_SHOWN:
        problems[MAX_SHOWN:] = [f"... and {len(problems) - MAX_SHOWN} more problems"]
    if problems:
        raise ModelError(*problems)


def _values_are_defined_once(_module: Functions, function: Function) -> Iterator[str]:
    seen: set[str] = set()
    defined = [(param.name, "parameter") for param in function.params]
    defined += [(constant.name, "constant") for constant in function.constants]
    defined += [(out.name, f"op {call.source or call.op!r}") for call in function.body for out in call.outputs]
    for name, what in defined:
        if name in seen and name:
            yield f"value {name!r} is defined again by {what}"
        if not name and not what.startswith("op"):
            yield f"a {what} has no name"
        seen.add(name)


def _values_are_defined_before_use(_module: Functions, function: Function) -> Iterator[str]:
    known = {param.name for param in function.params} | function.constant_names
    later = set(function.types)
    for call in function.body:
        for name in call.uses():
            if name not in known:
                how = "before it is computed" if name in later else "but nothing defines it"
                yield f"op {call.source or call.op!r} reads {name!r} {how}"
        known |= {output.name for output in call.outputs}
    for name in function.results:
        if name not in known:
            yield f"result {name!r} is not defined{did_you_mean(name, known)}"


def _callees_exist_and_fit(module: Functions, function: Function) -> Iterator[str]:
    for call in function.body:
        if call.callee is None:
            continue
        if call.callee not in module:
            yield f"op {call.source or call.op!r} calls {call.op!r}, which is not in the module"
            continue
        callee = module[call.callee]
        expected, given = (len(callee.params), len(callee.results)), (len(call.inputs), len(call.outputs))
        if expected != given:
            yield f"{call.op!r} takes {expected[0]} and returns {expected[1]} values, not {given[0]} and {given[1]}"


def _types_of_arguments_fit(module: Functions, function: Function) -> Iterator[str]:
    for call in function.body:
        if call.callee is None or call.callee not in module:
            continue
        for name, param in zip(call.inputs, module[call.callee].params, strict=False):
            have = function.types.get(name)
            if have is not None and param.type is not None and have != param.type:
                yield f"{call.op!r} takes {param.type} as {param.name!r}, but {name!r} is {have}"


def _copies_have_ends(_module: Functions, function: Function) -> Iterator[str]:
    for call in function.body:
        if call.op == COPY and (
            len(call.inputs) != 1 or len(call.outputs) != 1 or call.attr("src") == call.attr("dst")
        ):
            yield f"copy {call.source!r} is not from one memory to another"


def _paths_name_nodes(function: Function, target: Target | None) -> Iterator[str]:
    if target is None:
        return
    constraints = [function.constraint, *(call.constraint for call in function.body)]
    for path in sorted({path for constraint in constraints if constraint for path in constraint.paths()}):
        try:
            target.at(path)
        except UnknownNameError as error:
            yield str(error)


def _opsets_are_stated(_module: Functions, function: Function) -> Iterator[str]:
    domains = {domain for domain, _ in function.opsets}
    used = {_domain(call) for call in function.body if call.op.startswith("onnx.")}
    for domain in sorted(used - domains):
        yield f"operators of domain {domain!r} are used, but no version of it is stated"


def _domain(call: Call) -> str:
    head, separator, _ = call.op.removeprefix("onnx.").rpartition("::")
    return head if separator else ""


RULES: tuple[Rule, ...] = (
    _values_are_defined_once,
    _values_are_defined_before_use,
    _callees_exist_and_fit,
    _types_of_arguments_fit,
    _copies_have_ends,
    _opsets_are_stated,
)


def _cycles(module: Functions) -> Iterator[str]:
    calls = {
        function.name: sorted(
            {call.callee for call in function.body if call.callee is not None and call.callee in module}
        )
        for function in module.values()
    }
    done: set[str] = set()
    for root in calls:
        path: list[str] = []
        stack = [(root, iter(calls[root]))] if root not in done else []
        while stack:
            name, rest = stack[-1]
            if not path or path[-1] != name:
                path.append(name)
            following = next(rest, None)
            if following is None:
                stack.pop()
                path.pop()
                done.add(name)
            elif following in path:
                circle = [*path[path.index(following) :], following]
                yield f"functions call each other in a circle: {' -> '.join(circle)}"
                return
            elif following not in done:
                stack.append((following, iter(calls[following])))
