"""Verification of modules: a table of rules, whose messages name function, op and value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from tvmtarget.errors import ModelError, TargetError, UnknownNameError, did_you_mean
from tvmtarget.ir.dim_aliases import is_dim_aliases
from tvmtarget.ir.function import (
    CALLEES,
    CODE,
    COPY,
    DIMS,
    OPS,
    RECV,
    SEND,
    Call,
    Function,
    Value,
    callees_of,
    code_callees,
    constants_of,
)
from tvmtarget.ir.op_aliases import count_ops
from tvmtarget.ir.text.parser import MAX_DEPTH
from tvmtarget.ir.types import DTYPES, TensorType, Type, dtype_of
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import Target

__all__ = ["RULES", "TARGET_RULES", "verify_functions"]

MAX_SHOWN = 5

Functions: TypeAlias = "Mapping[str, Function]"
Rule: TypeAlias = "Callable[[Functions, Function], Iterator[str]]"


def verify_functions(module: Functions, target: Target | None = None) -> None:
    """Check all rules of the IR.

    Args:
        module: functions by name.
        target: target tree; with it, paths and memory scopes are checked too.

    Raises:
        ModelError: rules are broken; the first 5 problems are listed.
    """
    problems: list[str] = []
    tree = None if target is None else _TargetView(target)
    for function in module.values():
        # The other rules recurse into nested bodies, so that depth is checked first.
        deep = list(_bodies_are_not_too_deep(module, function))
        problems += [f"{problem} (function {function.name!r})" for problem in deep]
        for rule in () if deep else RULES:
            problems += [f"{problem} (function {function.name!r})" for problem in rule(module, function)]
        if tree is not None and not deep:
            for target_rule in TARGET_RULES:
                problems += [f"{problem} (function {function.name!r})" for problem in target_rule(function, tree)]
    # A library of code needs no entry: it is called by its symbols.
    is_code = bool(module) and all(function.code is not None for function in module.values())
    if "main" not in module and not is_code and not any(f.attr("global_symbol") for f in module.values()):
        problems.append("the module has no function 'main'")
    problems += [] if problems else _cycles(module)  # the call graph is well defined only if all callees exist
    if len(problems) > MAX_SHOWN:
        problems[MAX_SHOWN:] = [f"... and {len(problems) - MAX_SHOWN} more problems"]
    if problems:
        raise ModelError(*problems)


def _values_are_defined_once(_module: Functions, function: Function) -> Iterator[str]:
    yield from _defined_once(function, set())


def _defined_once(function: Function, seen: set[str]) -> Iterator[str]:
    """Check a body; `seen` holds the values in scope and is restored on return, so that the check takes linear time."""
    added: list[str] = []

    def new(name: str, what: str) -> Iterator[str]:
        if name in seen and name:
            yield f"value {name!r} is defined again by {what}"
        elif name:
            seen.add(name)
            added.append(name)
        elif not what.startswith("op"):
            yield f"a {what} has no name"

    for param in function.params:
        yield from new(param.name, "parameter")
    for constant in function.constants:
        yield from new(constant.name, "constant")
    for call in function.body:
        for label, region in call.regions:
            # Before the results of the call itself: these are not visible in its own bodies.
            yield from (f"{problem} in {label!r} of {_op(call)}" for problem in _defined_once(region, seen))
        for output in call.outputs:
            yield from new(output.name, _op(call))
    seen.difference_update(added)


def _values_are_defined_before_use(_module: Functions, function: Function) -> Iterator[str]:
    yield from _defined_before_use(function, set())


def _defined_before_use(function: Function, known: set[str]) -> Iterator[str]:
    """Check a body; `known` holds the values in scope and is restored on return."""
    later = set(function.types)
    added = ({param.name for param in function.params} | function.constant_names) - known
    known |= added
    for call in function.body:
        for name in dict.fromkeys(filter(None, call.inputs)):
            if name not in known:
                how = "before it is computed" if name in later else "but nothing defines it"
                yield f"{_op(call)} reads {name!r} {how}"
        for label, region in call.regions:
            yield from (f"{problem} in {label!r} of {_op(call)}" for problem in _defined_before_use(region, known))
        fresh = {output.name for output in call.outputs} - known
        added |= fresh
        known |= fresh
    for name in function.results:
        if name not in known or not name:
            yield f"result {name!r} is not defined{did_you_mean(name, known)}"
    known -= added


def _op(call: Call) -> str:
    return f"op {call.source or call.op!r}"


def _all_calls(function: Function) -> Iterator[tuple[Function, Call]]:
    """Yield the calls of a function and of its nested bodies, each with the body that holds it."""
    for call in function.body:
        yield function, call
        for _, region in call.regions:
            yield from _all_calls(region)


def _callees_exist_and_fit(module: Functions, function: Function) -> Iterator[str]:
    for _, call in _all_calls(function):
        if call.callee is None:
            continue
        if call.callee not in module:
            yield f"{_op(call)} calls {call.op!r}, which is not in the module{did_you_mean(call.callee, module)}"
            continue
        callee = module[call.callee]
        expected, found = (len(callee.params), len(callee.results)), (len(call.inputs), len(call.outputs))
        if expected != found:
            arity = f"takes {expected[0]} and returns {expected[1]} values, not {found[0]} and {found[1]}"
            yield f"{_op(call)} calls {call.op!r}, which {arity}"


def _aliases_fit(module: Functions, function: Function) -> Iterator[str]:
    for _, call in _all_calls(function):
        if call.callee is None or call.callee not in module:
            continue
        dims, names = call.attr(DIMS), call.attr(OPS)
        if dims is not None and not is_dim_aliases(dims):
            yield f"{_op(call)} has dims={dims!r}, which should be names of dimensions in pairs"
        if names is None:
            continue
        count = count_ops(module[call.callee], module)
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            yield f"{_op(call)} has ops={names!r}, which should be names"
        elif len(names) != count:
            yield f"{_op(call)} names {len(names)} ops of {call.op!r}, which has {count}"


def _types_at_calls_fit(module: Functions, function: Function) -> Iterator[str]:
    for body, call in _all_calls(function):
        if call.callee is None or call.callee not in module:
            continue
        callee = module[call.callee]
        for name, param in zip(call.inputs, callee.params, strict=False):
            have = body.types.get(name)
            if have is not None and param.type is not None and not _agree(have, param.type):
                takes = f"takes {param.type} as {param.name!r}, but {name!r} is {have}"
                yield f"{_op(call)} calls {call.op!r}, which {takes}"
        for output, result in zip(call.outputs, callee.results, strict=False):
            gives = callee.types.get(result)
            if gives is not None and output.type is not None and not _agree(output.type, gives):
                returns = f"returns {gives} as {result!r}, but {output.name!r} is {output.type}"
                yield f"{_op(call)} calls {call.op!r}, which {returns}"


def _agree(one: Type, other: Type) -> bool:
    """Return whether a value can be of both types."""
    if not isinstance(one, TensorType) or not isinstance(other, TensorType):
        return one == other or type(one) is type(other)
    return one.agrees_with(other)


def _types_are_known(_module: Functions, function: Function) -> Iterator[str]:
    for name, type_ in function.types.items():
        dtype = type_.dtype if isinstance(type_, TensorType) else None
        if dtype is not None and dtype not in DTYPES:
            yield f"value {name!r} has element type {dtype!r}{did_you_mean(dtype, DTYPES)}"


def _constants_have_their_types(_module: Functions, function: Function) -> Iterator[str]:
    for constant in constants_of(function):
        shape, dtype = constant.data.shape, dtype_of(constant.data.dtype)
        if shape != constant.type.shape or dtype != constant.type.dtype:
            yield f"constant {constant.name!r} is {constant.type}, but holds {TensorType(dtype, shape)}"


def _names_are_unique(_module: Functions, function: Function) -> Iterator[str]:
    for _, call in _all_calls(function):
        for what, named in (("attributes", call.attrs), ("bodies", call.regions)):
            yield from (f"{_op(call)} has two {what} {name!r}" for name in _twice(named))
    yield from (f"there are two attributes {name!r}" for name in _twice(function.attrs))
    yield from (f"operator set {name!r} has two versions" for name in _twice(function.opsets))


def _twice(named: Sequence[tuple[str, object]]) -> list[str]:
    if len(named) < 2:  # most calls; counting takes far longer than this test
        return []
    return sorted(name for name, count in Counter(name for name, _ in named).items() if count > 1)


def _bodies_are_not_too_deep(_module: Functions, function: Function) -> Iterator[str]:
    level = [function]
    for _ in range(MAX_DEPTH + 1):
        level = [region for body in level for call in body.body for _, region in call.regions]
    if level:
        yield f"bodies are nested deeper than {MAX_DEPTH} levels"


def _opaque_code_is_alone(_module: Functions, function: Function) -> Iterator[str]:
    for body, call in _all_calls(function):
        if call.op == CODE and (body.code is None or body is not function):
            yield f"{_op(call)} is code, which must be alone in a function of its own, with an attribute 'code'"


def _code_calls_functions_of_the_module(module: Functions, function: Function) -> Iterator[str]:
    pairs = function.body[0].attr(CALLEES) if function.code is not None else None
    if pairs is None:
        return
    if not isinstance(pairs, tuple) or len(pairs) % 2 or not all(isinstance(name, str) for name in pairs):
        yield f"code has {CALLEES}={pairs!r}, which should be names in pairs: in the code, and of the function"
        return
    for name in code_callees(function).values():
        if name not in module:
            yield f"code calls {name!r}, which is not in the module{did_you_mean(name, module)}"
        elif module[name].code is None:
            yield f"code calls {name!r}, which is a function of operations and no code"


def _copies_have_ends(_module: Functions, function: Function) -> Iterator[str]:
    for _, call in _all_calls(function):
        if call.op == COPY and (
            len(call.inputs) != 1 or len(call.outputs) != 1 or call.attr("src") == call.attr("dst")
        ):
            yield f"copy {call.source!r} is not from one memory to another"


def _transfers_have_ends(_module: Functions, function: Function) -> Iterator[str]:
    for _, call in _all_calls(function):
        if call.op not in (SEND, RECV):
            continue
        end, values, unexpected = (
            ("to", call.inputs, call.outputs) if call.op == SEND else ("from", call.outputs, call.inputs)
        )
        is_complete = isinstance(call.attr(end), str) and isinstance(call.attr("order"), int) and call.has_effect
        if not is_complete or len(values) > 1 or unexpected:
            yield f"{_op(call)} is not a {end!r} end of a transfer: at most one value, a machine, an order, an effect"


def _effects_are_marked(module: Functions, function: Function) -> Iterator[str]:
    for _, call in _all_calls(function):
        if call.has_effect:
            continue
        callee = module.get(call.callee or "")
        if callee is not None and any(inner.has_effect for inner in callee.body):
            yield f"{_op(call)} is not marked with an effect, but {call.op!r} has one"
        if any(inner.has_effect for _, region in call.regions for inner in region.body):
            yield f"{_op(call)} is not marked with an effect, but its body has one"


@dataclass(frozen=True)
class _TargetView:
    """A target tree with its memory domains, computed at most once per verification."""

    target: Target

    @cached_property
    def memories(self) -> frozenset[str] | None:
        """Names of the memory domains; None if the tree is inconsistent."""
        try:
            return Topology(self.target.resolve()).domains()
        except TargetError:
            return None  # the error is raised where the tree is used; it is not a fault of the module

    def problems_of(self, path: str) -> tuple[str, ...]:
        """Return why a path names no node, if so; many functions are on one site, so each path is looked up once."""
        if path not in self._problems:
            try:
                self.target.at(path)
                self._problems[path] = ()
            except UnknownNameError as error:
                self._problems[path] = (str(error),)
        return self._problems[path]

    @cached_property
    def _problems(self) -> dict[str, tuple[str, ...]]:
        return {}


def _paths_name_nodes(function: Function, tree: _TargetView) -> Iterator[str]:
    constraints = [function.constraint, *(call.constraint for _, call in _all_calls(function))]
    for path in sorted({path for constraint in constraints if constraint for path in constraint.paths()}):
        yield from tree.problems_of(path)


def _memories_exist(function: Function, tree: _TargetView) -> Iterator[str]:
    """Check that scopes are memory domains of the target, or memories that code generators provide everywhere."""
    bodies = {id(function): function} | {id(body): body for body, _ in _all_calls(function)}
    values = [value for body in bodies.values() for value in _values(body) if value.scope]
    # A scope may have a suffix: `shared.dyn` and `vdevice:0` belong to the memories `shared` and `vdevice`.
    named = [value for value in values if value.scope.replace(":", ".").split(".")[0] not in _MEMORIES]
    memories = tree.memories if named else None
    if memories is None:
        return
    for value in named:
        if value.scope not in memories:
            there = did_you_mean(value.scope, memories, listing="memories of the target")
            yield f"value {value.name!r} is in memory {value.scope!r}, which the target does not have{there}"


def _values(body: Function) -> Iterator[Value]:
    yield from body.params
    for call in body.body:
        yield from call.outputs


# Memories within any domain that TVM's code generators use (StorageRank in TVM's runtime/thread_storage_scope.h), and
# `vdevice:0`, a virtual device of a module that came from TVM.
_MEMORIES = frozenset({"global", "shared", "warp", "local", "texture", "wmma", "m16n8k8", "metal", "amx", "vdevice"})


def _opsets_are_stated(_module: Functions, function: Function) -> Iterator[str]:
    domains = {domain for domain, _ in function.opsets}
    used = {_domain(call): call for _, call in _all_calls(function) if call.op.startswith("onnx.")}
    # ONNX defines an operator only together with a version of its set (ONNX, docs/Versioning.md).
    for domain in sorted(used.keys() - domains):
        yield f"{_op(used[domain])} is of domain {domain or 'onnx'!r}, but no version of it is stated"


def _domain(call: Call) -> str:
    head, separator, _ = call.op.removeprefix("onnx.").rpartition("::")
    return head if separator else ""


RULES: tuple[Rule, ...] = (
    _names_are_unique,
    _values_are_defined_once,
    _values_are_defined_before_use,
    _callees_exist_and_fit,
    _aliases_fit,
    _types_at_calls_fit,
    _types_are_known,
    _constants_have_their_types,
    _copies_have_ends,
    _transfers_have_ends,
    _opaque_code_is_alone,
    _code_calls_functions_of_the_module,
    _effects_are_marked,
    _opsets_are_stated,
)

# Rules that need the target tree.
TARGET_RULES: tuple[Callable[[Function, _TargetView], Iterator[str]], ...] = (_paths_name_nodes, _memories_exist)


def _cycles(module: Functions) -> Iterator[str]:
    """Find a cycle of calls by iterative depth-first search; only code may recurse."""
    calls = {
        function.name: sorted(callees_of(function) & module.keys()) if function.code is None else []
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
                cycle = [*path[path.index(following) :], following]
                yield f"functions call each other in a cycle: {' -> '.join(cycle)}"
                return
            elif following not in done:
                stack.append((following, iter(calls[following])))
