"""Verification of modules: a table of rules, whose messages name function, op and value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, repeat
from operator import attrgetter
from types import NoneType
from typing import Any, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from tvmtarget.errors import ModelError, TargetError, UnknownNameError, did_you_mean, raise_all
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
    Constant,
    Function,
    Opaque,
    Value,
    callees_of,
    changed_places,
    code_callees,
    constants_of,
    domain_of_op,
    operand_functions,
)
from tvmtarget.ir.op_aliases import count_ops
from tvmtarget.ir.operator_arguments import CHECKED_OPS, READ_OPERANDS, argument_problems
from tvmtarget.ir.resized_sizes import scales_at
from tvmtarget.ir.result_types import contradicted_results
from tvmtarget.ir.symbolic_shapes import integers_of, least_sizes
from tvmtarget.ir.text.printer import MAX_DEPTH
from tvmtarget.ir.types import (
    DTYPES,
    MAX_DIM,
    Dim,
    MapType,
    OpaqueType,
    OptionalType,
    SequenceType,
    SparseType,
    TensorType,
    Type,
    dtype_of,
)
from tvmtarget.target.problems import shown
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import Target

__all__ = [
    "MODULE_RULES",
    "RULES",
    "TARGET_RULES",
    "mistyped_attributes",
    "mistyped_fields",
    "unknown_memories",
    "verify_functions",
    "verify_result_types",
]

MAX_SHOWN = 5

# Calls of a body from which on arrays are faster than a walk.
MANY = 100

Functions: TypeAlias = "Mapping[str, Function]"
_Item = TypeVar("_Item")

# Functions that keep all rules of their own, by identity: functions are frozen, and every pass verifies them again.
_SOUND: WeakValueDictionary[int, Function] = WeakValueDictionary()


def verify_functions(module: Functions, target: Target | None = None, since: Functions | None = None) -> None:
    """Check all rules of the IR.

    Args:
        module: functions by name.
        target: target tree; with it, paths and memory scopes are checked too.
        since: functions of a module before an edit, verified with the same target. Where one of them differs in few
            calls that read and define the same values, most rules are checked on these calls alone.

    Raises:
        ModelError: rules are broken; the first 5 problems are listed.
    """
    excerpts = {} if since is None else _sound_excerpts(module, since)
    unproven = _unproven(module)
    # The rules rely on the types of fields, which are checked first.
    raise_all(
        ModelError,
        _first([f"{text} (function {shown(one.name)})" for one in unproven for text in mistyped_fields(one)]),
    )
    problems: list[str] = []
    tree = None if target is None else _TargetView(target)
    bodies = {name: _Body(function) for name, function in module.items()}
    for name in bodies if since is not None else ():
        bodies[name].proven = _proven_calls(module, since or {}, name)
    for name, body in bodies.items():
        found = list(_own_problems(body))
        # The other rules recurse into nested bodies, so that depth is checked first; edited calls have none.
        if name in excerpts or not body.is_too_deep:
            # Most functions call no others.
            found += [problem for rule in MODULE_RULES for problem in rule(bodies, body)] if body.is_calling else []
            part = _Body(excerpts[name]) if name in excerpts else body
            found += [] if tree is None else [problem for rule in TARGET_RULES for problem in rule(part, tree)]
        problems += [f"{problem} (function {body.function.name!r})" for problem in found]
    # A library of code needs no entry: it is called by its symbols.
    is_code = bool(module) and all(function.code is not None for function in module.values())
    if "main" not in module and not is_code and not any(f.attr("global_symbol") for f in module.values()):
        problems.append("the module has no function 'main'")
    problems += [] if problems else _cycles(module)  # the call graph is well defined only if all callees exist
    raise_all(ModelError, _first(problems))


def verify_result_types(module: Functions) -> None:
    """Check that results are stated to be of the element types that ONNX infers.

    Passes keep that, so that it is checked where a module is read or enters the library, and not between passes.

    Args:
        module: functions by name that keep the rules of the IR.

    Raises:
        ModelError: there are such results; the first 5 are listed.
    """
    found = [
        f"{_op(call)} states {output.name!r} as {output.type}, but {_element(type_)} is inferred from its operands "
        f"and attributes (function {name!r})"
        for name, function in module.items()
        for call, output, type_ in contradicted_results(function)
    ]
    raise_all(ModelError, _first(found))


def _element(type_: Type) -> str:
    return f"element type {type_.dtype}" if isinstance(type_, TensorType) else str(type_)


def _first(problems: list[str]) -> list[str]:
    more = len(problems) - MAX_SHOWN
    return [*problems[:MAX_SHOWN], f"... and {more} more problems"] if more > 0 else problems


def _sound_excerpts(module: Functions, since: Functions) -> dict[str, Function]:
    """Return by name what an edit changed of functions that kept `RULES` before, where it keeps them, too."""
    excerpts: dict[str, Function] = {}
    for name, function in module.items():
        earlier = since.get(name)
        if earlier is None or earlier is function or _SOUND.get(id(earlier)) is not earlier:
            continue
        excerpt = _edited_calls(function, earlier)
        if excerpt is not None and _is_sound(excerpt):
            excerpts[name] = excerpt
            _SOUND[id(function)] = function
    return excerpts


def _unproven(module: Functions) -> list[Function]:
    """Return the functions that may break `RULES`: those that were not checked before, and no fast check is enough."""
    new = [function for function in module.values() if _SOUND.get(id(function)) is not function]
    # Types of fields are checked for all at once, as there may be many small functions.
    are_typed, valid = _have_typed_fields(new), dict[int, Type]()
    unproven: list[Function] = []
    for function in new:
        if (are_typed or _have_typed_fields([function])) and _keeps_all_rules(function, valid):
            _SOUND[id(function)] = function
        else:
            unproven.append(function)
    return unproven


def _is_sound(function: Function) -> bool:
    rules = (problem for rule in RULES for problem in rule(_Body(function)))
    if _have_typed_fields([function]) and _keeps_all_rules(function, {}):
        return True
    return next(chain(mistyped_fields(function), rules), None) is None


def _own_problems(body: _Body) -> Iterator[str]:
    """Yield what is wrong with a function by itself, which other functions do not change."""
    function = body.function
    if _SOUND.get(id(function)) is function:
        return
    if body.is_too_deep:
        yield f"bodies are nested deeper than {MAX_DEPTH} levels"
        return
    problems = [problem for rule in RULES for problem in rule(body)]
    yield from problems
    if not problems:
        _SOUND[id(function)] = function


def _keeps_all_rules(function: Function, valid: dict[int, Type]) -> bool:
    """Return whether a function of plain operations keeps `RULES`, in one pass; False where that is not certain.

    Args:
        function: a function whose fields are of their types (`_have_typed_fields`).
        valid: types that were found valid, by identity, as functions share them; others are added.
    """
    params, constants = function.params, function.constants
    named = (*map(attrgetter("name"), params), *map(attrgetter("name"), constants))
    known = {"", *named}
    if len(known) <= len(named) or _twice(function.attrs) or _twice(function.opsets):
        return False
    types = {id(param.type): param.type for param in params}
    types |= {id(constant.type): constant.type for constant in constants}
    for call in function.body:
        if not known.issuperset(call.inputs):
            return False
        if call.attrs != () and not _are_plain(call.attrs):
            return False
        for output in call.outputs:
            name = output.name
            if name in known and name:
                return False
            known.add(name)
            types[id(output.type)] = output.type
    new = {key: type_ for key, type_ in types.items() if key not in valid}
    if not all(_is_type(one) and (one.is_valid if isinstance(one, TensorType) else True) for one in new.values()):
        return False
    valid |= new
    body = _Body(function)
    return (
        known.issuperset(function.results)
        and "" not in function.results
        and not [*_mistyped(constants if _are_plain(function.attrs) else constants_of(function))]
        and not [problem for rule in _RULES_OF_OPERATORS for problem in rule(body)]
    )


def _are_plain(attrs: tuple[tuple[str, object], ...]) -> bool:
    """Return whether attributes have different names and numbers, texts or tuples of these as values."""
    if type(attrs) is not tuple:
        return False
    for pair in attrs:
        if type(pair) is not tuple or len(pair) != 2 or type(pair[0]) is not str:
            return False
        value = pair[1]
        if type(value) not in _PLAIN and not (isinstance(value, tuple) and _PLAIN.issuperset(map(type, value))):
            return False
    return len(attrs) < 2 or len(dict(attrs)) == len(attrs)


_PLAIN = frozenset({int, float, str, bool})


# Fields by class: those of one type, tuples of one type, and tuples of pairs of a name and a value of one type.
_FIELDS: Mapping[type, Mapping[str, type]] = {
    Function: {"name": str},
    Call: {"op": str, "source": str, "has_effect": bool},
    Value: {"name": str, "scope": str},
    Constant: {"name": str},
}
_TUPLES: Mapping[type, Mapping[str, type]] = {
    Function: {"params": Value, "body": Call, "results": str, "constants": Constant},
    Call: {"inputs": str, "outputs": Value},
}
_PAIRS: Mapping[type, Mapping[str, type]] = {
    Function: {"attrs": object, "opsets": int},
    Call: {"attrs": object, "regions": Function},
}


def _have_typed_fields(functions: Sequence[Function]) -> bool:
    """Return whether fields of functions, their plain calls and values, apart from attributes and types, are typed.

    It is what `mistyped_fields` checks, for all at once; False for nested bodies. The types of constants and the
    attributes of functions are checked, too.
    """
    items = _items_of(functions, Function)
    calls = None if items is None else _items_of(items["body"], Call)
    if items is None or calls is None or calls["regions"]:
        return False
    values = [*items["params"], *calls["outputs"]]
    return (
        _are_of_types(values, _FIELDS[Value])
        and _are_of_types(items["constants"], _FIELDS[Constant])
        and {TensorType}.issuperset(type(constant.type) for constant in items["constants"])
        and not any(True for one in functions for _ in _mistyped_pairs("", "opsets", one.opsets, int))
        and all(_are_pairs(one.attrs) and next(mistyped_attributes(one.attrs, ""), None) is None for one in functions)
    )


def _items_of(holders: Sequence[object], kind: type) -> dict[str, list[Any]] | None:
    """Return what the tuples of functions or calls hold, by field; None if a field is not of its type."""
    if not {kind}.issuperset(map(type, holders)) or not _are_of_types(holders, _FIELDS[kind]):
        return None
    fields = {field: list(map(attrgetter(field), holders)) for field in (*_TUPLES[kind], *_PAIRS[kind])}
    if not {tuple}.issuperset(map(type, chain.from_iterable(fields.values()))):
        return None
    items = {field: list(chain.from_iterable(values)) for field, values in fields.items()}
    are_typed = all({of}.issuperset(map(type, items[field])) for field, of in _TUPLES[kind].items())
    return items if are_typed else None


def _are_of_types(holders: Sequence[object], fields: Mapping[str, type]) -> bool:
    return all({of}.issuperset(map(type, map(attrgetter(field), holders))) for field, of in fields.items())


def mistyped_fields(function: Function) -> Iterator[str]:
    """Yield the fields of a function, its calls and values of other types than annotated.

    Args:
        function: the function.

    Yields:
        Messages that name the field, what is expected, and the value.
    """
    yield from _mistyped_holder("", function, Function)
    values: list[Value | Constant] = [*_items(function.params, Value), *_items(function.constants, Constant)]
    for value in values:
        yield from _mistyped_value(value)
    for call in _items(function.body, Call):
        owner = f" of op {shown(call.source or call.op)}"
        yield from _mistyped_holder(owner, call, Call)
        for output in _items(call.outputs, Value):
            yield from _mistyped_value(output)
        for label, region in call.regions if _are_pairs(call.regions) else ():
            if isinstance(region, Function):
                yield from (f"{problem} in {label!r}{owner}" for problem in mistyped_fields(region))


def _mistyped_holder(owner: str, holder: Function | Call, kind: type) -> Iterator[str]:
    """Yield the fields of a function or call that are of other types, without those of the values that they hold."""
    for field, of in _TUPLES[kind].items():
        yield from _mistyped_items(owner, field, getattr(holder, field), of)
    yield from _mistyped_scalars(owner, holder, kind)
    for field, of in _PAIRS[kind].items():
        yield from _mistyped_pairs(owner, field, getattr(holder, field), of)
    yield from mistyped_attributes(holder.attrs if _are_pairs(holder.attrs) else (), owner)


def _mistyped_scalars(owner: str, holder: object, kind: type) -> Iterator[str]:
    for field, of in _FIELDS[kind].items():
        if not isinstance(value := getattr(holder, field), of):
            yield f"{field}{owner} is {'a text' if of is str else 'True or False'}, not {shown(value)}"


def mistyped_attributes(attrs: Iterable[tuple[object, object]], owner: str) -> Iterator[str]:
    """Yield the attributes that text and JSON have no form of.

    Args:
        attrs: names with values.
        owner: what they are attributes of, as the end of a phrase such as " of the module".

    Yields:
        Messages that name the attribute, what is expected, and the value.
    """
    for name, value in attrs:
        if not isinstance(name, str):
            yield f"the name of an attribute{owner} is a text, not {shown(name)}"
        elif _is_attribute(value, 0):
            continue
        elif _is_nested_too_deep(value):
            yield f"attribute {name!r}{owner} is nested deeper than {MAX_DEPTH} levels"
        else:
            forms = "a number, a text, bytes, None, a Constant, or a tuple or mapping by name of these"
            yield f"attribute {name!r}{owner} is {forms}, not {shown(value)}"


def _items(value: object, of: type[_Item]) -> list[_Item]:
    return [one for one in value if isinstance(one, of)] if isinstance(value, tuple) else []


def _mistyped_items(owner: str, field: str, value: object, of: type) -> Iterator[str]:
    """Yield a field that is not a tuple of one class."""
    one, many = ("a text", "texts") if of is str else (f"a {of.__name__}", f"{of.__name__}s")
    if not isinstance(value, tuple):
        yield f"{field}{owner} is a tuple of {many}, not {shown(value)}"
        return
    wrong = next((at for at, item in enumerate(value) if not isinstance(item, of)), None)
    if wrong is not None:
        yield f"{field}[{wrong}]{owner} is {one}, not {shown(value[wrong])}"


def _are_pairs(value: object) -> bool:
    """Return whether a value is a tuple of pairs of a name and anything."""
    return isinstance(value, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in value
    )


def _mistyped_pairs(owner: str, field: str, value: tuple[tuple[str, object], ...], second: type) -> Iterator[str]:
    if not _are_pairs(value) or not all(isinstance(one, second) for _, one in value):
        kinds = {object: "its value", int: "a whole number", Function: "a Function"}
        yield f"{field}{owner} is a tuple of pairs of a name and {kinds[second]}, not {shown(value)}"


def _mistyped_value(value: Value | Constant) -> Iterator[str]:
    owner = f" of value {shown(value.name)}"
    yield from _mistyped_scalars(owner, value, Value if isinstance(value, Value) else Constant)
    if not _is_type(value.type) or (isinstance(value, Constant) and not isinstance(value.type, TensorType)):
        yield f"the type{owner} is one such as TensorType('float32', (2, 3)), not {shown(value.type)}"


def _is_type(type_: object) -> bool:
    """Return whether a type and its parts are of the classes of the IR, whose fields have the annotated types."""
    match type_:
        case TensorType():
            shape = type_.shape
            known = shape is None or (type(shape) is tuple and _DIMS.issuperset(map(type, shape)))
            return known and type(type_.dtype) is str
        case SequenceType() | OptionalType():
            return _is_type(type_.element)
        case MapType():
            return type(type_.key) is str and _is_type(type_.value)
        case SparseType():
            return isinstance(type_.tensor, TensorType) and _is_type(type_.tensor)
        case OpaqueType():
            return type(type_.name) is str
    return type_ is None


_DIMS = frozenset({int, str, NoneType})


def _is_nested_too_deep(value: object, depth: int = 0) -> bool:
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else ()
    return depth > MAX_DEPTH or any(_is_nested_too_deep(item, depth + 1) for item in items)


def _is_attribute(value: object, depth: int) -> bool:
    """Return whether text and JSON have a form of a value that is inside others, as many as `depth`."""
    if depth > MAX_DEPTH:
        return False
    if isinstance(value, tuple):
        return all(_is_attribute(one, depth + 1) for one in value)
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_attribute(one, depth + 1) for key, one in value.items())
    return value is None or isinstance(value, int | float | str | bytes | Constant | Opaque)


def _edited_calls(function: Function, earlier: Function) -> Function | None:
    """Return a function of the calls and constants that an edit changed; None if rules may be broken elsewhere.

    It has the constants and types of all that the calls read, which rules on operators need.
    """
    parts = ("params", "results", "opsets", "attrs")
    if (
        type(function.body) is not tuple
        or type(function.constants) is not tuple
        or any(getattr(function, part) != getattr(earlier, part) for part in parts)
    ):
        return None
    if len(function.body) != len(earlier.body) or len(function.constants) != len(earlier.constants):
        return None
    edited = changed_places(function.body, earlier.body)
    calls = [(function.body[at], earlier.body[at]) for at in edited]
    places = changed_places(function.constants, earlier.constants)
    constants = [(function.constants[at], earlier.constants[at]) for at in places]
    if _items_of([new for new, _ in calls], Call) is None or any(type(new) is not Constant for new, _ in constants):
        return None
    if any(new.name != old.name for new, old in constants) or any(
        new.inputs != old.inputs
        or [output.name for output in new.outputs] != [output.name for output in old.outputs]
        or (new.regions or old.regions or CODE in (new.op, old.op))
        for new, old in calls
    ):
        return None
    own = {new.name for new, _ in constants}
    readers = [at for at, call in enumerate(function.body) if not own.isdisjoint(call.inputs)] if own else []
    body = tuple(function.body[at] for at in sorted({*edited, *readers}))
    computed = {output.name for call in body for output in call.outputs}
    read = dict.fromkeys(name for call in body for name in call.inputs if name and name not in computed)
    used = own.union(earlier.constant_names & read.keys())
    params = tuple(Value(name, earlier.types.get(name)) for name in read if name not in used)
    held = tuple(constant for constant in function.constants if constant.name in used) if used else ()
    return function.replace(params=params, body=body, results=(), constants=held)


def _proven_calls(module: Functions, since: Functions, name: str) -> frozenset[int]:
    """Return the ids of calls that keep the rules on what a function calls as they did before an edit.

    Such a call is the same object, the types of its operands are the same, and so is its callee, which calls nothing.
    """
    function, earlier = module[name], since.get(name)
    if earlier is None or function.calls is not function.body or not any(op[:1] == "@" for op in function.ops):
        return frozenset()
    defined = ((one.params, [constant.type for constant in one.constants]) for one in (function, earlier))
    if len(function.body) != len(earlier.body) or next(defined) != next(defined):
        return frozenset()
    places = changed_places(function.body, earlier.body)
    if any(function.body[at].outputs != earlier.body[at].outputs for at in places):
        return frozenset()
    same = {
        f"@{other}"
        for other, callee in module.items()
        if since.get(other) is callee and not any(op[:1] == "@" or op == CODE for op in callee.ops)
    }
    changed = {id(function.body[at]) for at in places}
    return frozenset([id(call) for call in function.body if call.op in same and id(call) not in changed])


class _Body:
    """A function with the calls that rules look for, so that a rule does not pass over all calls again."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.proven: frozenset[int] = frozenset()  # ids of calls of functions that need no check

    @cached_property
    def is_too_deep(self) -> bool:
        """Whether bodies are nested deeper than the parser reads them."""
        if not any(map(attrgetter("regions"), self.function.body)):
            return False
        level = [self.function]
        for _ in range(MAX_DEPTH + 1):
            level = [region for body in level for call in body.body if call.regions for _, region in call.regions]
        return bool(level)

    @cached_property
    def bodies(self) -> tuple[Function, ...]:
        """The function itself, then its nested bodies."""
        if self.function.calls is self.function.body:
            return (self.function,)
        nested = (_Body(region).bodies for call in self.function.body if call.regions for _, region in call.regions)
        return (self.function, *chain.from_iterable(nested))

    @property
    def calls(self) -> tuple[Call, ...]:
        """All calls, those of nested bodies too."""
        return self.function.calls

    def calls_of(self, *ops: str) -> tuple[Call, ...]:
        """Return the calls of some operators, which most functions lack."""
        return () if self.function.ops.isdisjoint(ops) else tuple(call for call in self.calls if call.op in ops)

    @property
    def is_calling(self) -> bool:
        """Whether it, or code that it consists of, may call functions of the module."""
        return any(op[:1] == "@" or op == CODE or op[:6] == "relax." for op in self.function.ops)

    @cached_property
    def calls_of_functions(self) -> tuple[tuple[Function, Call, str], ...]:
        """The calls of functions of the module, each with the body that holds it and the name of the callee."""
        if not any(op[:1] == "@" for op in self.function.ops):
            return ()
        calls = ((body, call) for body in self.bodies for call in body.body if call.op[:1] == "@")
        return tuple((body, call, call.op[1:]) for body, call in calls if id(call) not in self.proven)

    @cached_property
    def result_types(self) -> tuple[Type, ...]:
        """The types of the results."""
        function, wanted = self.function, frozenset(self.function.results)
        types: dict[str, Type] = {param.name: param.type for param in function.params}
        types |= {constant.name: constant.type for constant in function.constants}
        # Faster than `Function.types`, which most functions need for nothing else; results are mostly computed last.
        left = set(wanted.difference(types))
        for call in reversed(function.body):
            if not left:
                break
            for output in call.outputs:
                if output.name in left:
                    types[output.name] = output.type
                    left.remove(output.name)
        return tuple([types.get(name) for name in function.results])

    def shapes_of(self, names: Iterable[str]) -> dict[str, tuple[Dim, ...]]:
        """Return the known shapes of some values, except of names that nested bodies give to several."""
        wanted, shapes = frozenset(names), dict[str, tuple[Dim, ...]]()
        unclear: set[str] = set()
        for function in self.bodies:
            defined = [(param.name, param.type) for param in function.params]
            defined += [(constant.name, constant.type) for constant in function.constants]
            defined += [(output.name, output.type) for call in function.body for output in call.outputs]
            for name, type_ in defined:
                shape = type_.shape if name in wanted and isinstance(type_, TensorType) else None
                if shape is not None and shapes.setdefault(name, shape) != shape:
                    unclear.add(name)
        return {name: shape for name, shape in shapes.items() if name not in unclear}

    @cached_property
    def has_effect(self) -> bool:
        """Whether one of its own operations has an effect."""
        return any(map(attrgetter("has_effect"), self.function.body))


def _values_are_defined_once(body: _Body) -> Iterator[str]:
    function = body.function
    if body.bodies == (function,):
        named = [*(param.name for param in function.params), *(constant.name for constant in function.constants)]
        computed = [output.name for call in function.body for output in call.outputs if output.name]
        if "" not in named and len({*named, *computed}) == len(named) + len(computed):
            return
    yield from _defined_once(body.function, set())


def _defined_once(function: Function, seen: set[str]) -> Iterator[str]:
    """Check a body; `seen` holds the values in scope and is restored on return, so that the check takes linear time."""
    added: list[str] = []
    named = [(param.name, "parameter") for param in function.params]
    for name, what in (*named, *((constant.name, "constant") for constant in function.constants)):
        if not name:
            yield f"a {what} has no name"
        elif name in seen:
            yield f"value {name!r} is defined again by {what}"
        else:
            seen.add(name)
            added.append(name)
    for call in function.body:
        for label, region in call.regions:
            # Before the results of the call itself: these are not visible in its own bodies.
            yield from (f"{problem} in {label!r} of {_op(call)}" for problem in _defined_once(region, seen))
        for output in call.outputs:
            name = output.name
            if name in seen:
                yield f"value {name!r} is defined again by {_op(call)}"
            elif name:
                seen.add(name)
                added.append(name)
    seen.difference_update(added)


def _values_are_defined_before_use(body: _Body) -> Iterator[str]:
    if len(body.calls) >= MANY and len(body.bodies) == 1 and _is_in_order(body.function):
        return
    yield from _defined_before_use(body.function, {""})


def _is_in_order(function: Function) -> bool:
    """Return whether each operand and result is computed before; False where that is not certain."""
    # The number of the call that computes each value.
    known = dict.fromkeys(("", *(param.name for param in function.params), *function.constant_names), -1)
    known |= function.producers
    operands = [call.inputs for call in function.body]
    made = np.fromiter(map(known.get, chain.from_iterable(operands), repeat(len(operands))), dtype=np.int64)
    reader = np.repeat(np.arange(len(operands)), np.fromiter(map(len, operands), dtype=np.int64, count=len(operands)))
    return bool((made < reader).all()) and "" not in function.results and known.keys() >= {*function.results}


def _defined_before_use(function: Function, known: set[str]) -> Iterator[str]:
    """Check a body; `known` holds the values in scope, "" for an absent operand too, and is restored on return."""
    defined = (*(param.name for param in function.params), *function.constant_names)
    added = [name for name in defined if name not in known]
    known.update(added)
    for call in function.body:
        if not known.issuperset(call.inputs):
            for name in dict.fromkeys(call.inputs):
                if name not in known:
                    how = "before it is computed" if name in function.types else "but nothing defines it"
                    yield f"{_op(call)} reads {name!r} {how}"
        for label, region in call.regions:
            yield from (f"{problem} in {label!r} of {_op(call)}" for problem in _defined_before_use(region, known))
        for output in call.outputs:
            if output.name not in known:
                known.add(output.name)
                added.append(output.name)
    for name in function.results:
        if name not in known or not name:
            yield f"result {name!r} is not defined{did_you_mean(name, sorted(filter(None, known)))}"
    known.difference_update(added)


def _op(call: Call) -> str:
    return f"op {call.source or call.op!r}"


def _callees_exist_and_fit(bodies: Mapping[str, _Body], body: _Body) -> Iterator[str]:
    for _, call, name in body.calls_of_functions:
        if name not in bodies:
            yield f"{_op(call)} calls {call.op!r}, which is not in the module{did_you_mean(name, bodies)}"
            continue
        callee = bodies[name].function
        expected, found = (len(callee.params), len(callee.results)), (len(call.inputs), len(call.outputs))
        if expected != found:
            arity = f"takes {expected[0]} and returns {expected[1]} values, not {found[0]} and {found[1]}"
            yield f"{_op(call)} calls {call.op!r}, which {arity}"


def _operand_functions_exist(bodies: Mapping[str, _Body], body: _Body) -> Iterator[str]:
    if not any(op[:6] == "relax." for op in body.function.ops):
        return
    for call in body.calls:
        for name in operand_functions(call):
            if name not in bodies:
                yield f"{_op(call)} has operand {name!r}, which is not in the module{did_you_mean(name, bodies)}"


def _aliases_fit(bodies: Mapping[str, _Body], body: _Body) -> Iterator[str]:
    functions: dict[str, Function] = {}
    counts: dict[str, int] = {}  # a shared function is called many times, and counted once
    for _, call, name in body.calls_of_functions:
        if name not in bodies or not call.attrs:
            continue
        dims, names = call.attr(DIMS), call.attr(OPS)
        if dims is not None and not is_dim_aliases(dims):
            yield f"{_op(call)} has dims={dims!r}, which should be names of dimensions in pairs"
        if names is None:
            continue
        functions = functions or {other: one.function for other, one in bodies.items()}
        count = counts[name] if name in counts else counts.setdefault(name, count_ops(functions[name], functions))
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            yield f"{_op(call)} has ops={names!r}, which should be names"
        elif len(names) != count:
            yield f"{_op(call)} names {len(names)} ops of {call.op!r}, which has {count}"


def _types_at_calls_fit(bodies: Mapping[str, _Body], body: _Body) -> Iterator[str]:
    for holder, call, name in body.calls_of_functions:
        if name not in bodies:
            continue
        callee, types = bodies[name].function, holder.types
        for operand, param in zip(call.inputs, callee.params, strict=False):
            have = types.get(operand)
            if have is not param.type and not _agree(have, param.type):
                takes = f"takes {param.type} as {param.name!r}, but {operand!r} is {have}"
                yield f"{_op(call)} calls {call.op!r}, which {takes}"
        results = zip(call.outputs, callee.results, bodies[name].result_types, strict=False)
        for output, result, gives in results:
            if gives is not output.type and not _agree(output.type, gives):
                returns = f"returns {gives} as {result!r}, but {output.name!r} is {output.type}"
                yield f"{_op(call)} calls {call.op!r}, which {returns}"


def _agree(one: Type, other: Type) -> bool:
    """Return whether a value can be of both types, of which one that is not known may be any."""
    if one is other or one is None or other is None:
        return True
    if not isinstance(one, TensorType) or not isinstance(other, TensorType):
        return one == other or type(one) is type(other)
    return one.agrees_with(other)


def _types_are_known(body: _Body) -> Iterator[str]:
    function = body.function
    # Values share types: each is looked at once.
    types = {id(output.type): output.type for call in function.body for output in call.outputs if output.name}
    types |= {id(param.type): param.type for param in function.params}
    types |= {id(constant.type): constant.type for constant in function.constants}
    if all(type_.is_valid for type_ in types.values() if isinstance(type_, TensorType)):
        return
    for name, type_ in function.types.items():
        if not isinstance(type_, TensorType) or type_.is_valid:
            continue
        if type_.dtype not in DTYPES:
            yield f"value {name!r} has element type {type_.dtype!r}{did_you_mean(type_.dtype, DTYPES)}"
        else:
            wrong = [dim for dim in type_.shape or () if isinstance(dim, int) and not 0 <= dim <= MAX_DIM]
            yield f"value {name!r} has dimension {shown(wrong[0])}; it should be from 0 to {MAX_DIM}"


def _constants_have_their_types(body: _Body) -> Iterator[str]:
    yield from _mistyped(constants_of(body.function))


def _mistyped(constants: Iterable[Constant]) -> Iterator[str]:
    for constant in constants:
        shape, dtype = constant.data.shape, dtype_of(constant.data.dtype)
        if shape != constant.type.shape or dtype != constant.type.dtype:
            yield f"constant {constant.name!r} is {constant.type}, but holds {TensorType(dtype, shape)}"


def _names_are_unique(body: _Body) -> Iterator[str]:
    # Most calls have one attribute or none; counting takes far longer than this test.
    for call in [call for call in body.calls if len(call.attrs) > 1 or len(call.regions) > 1]:
        for what, named in (("attributes", call.attrs), ("bodies", call.regions)):
            yield from (f"{_op(call)} has two {what} {name!r}" for name in _twice(named))
    yield from (f"there are two attributes {name!r}" for name in _twice(body.function.attrs))
    yield from (f"operator set {name!r} has two versions" for name in _twice(body.function.opsets))


def _twice(named: Sequence[tuple[str, object]]) -> list[str]:
    if len(dict(named)) == len(named):
        return []
    return sorted(name for name, count in Counter(name for name, _ in named).items() if count > 1)


def _opaque_code_is_alone(body: _Body) -> Iterator[str]:
    alone = body.function.body[0] if body.function.code is not None else None
    for call in [call for call in body.calls_of(CODE) if call is not alone]:
        yield f"{_op(call)} is code, which must be alone in a function of its own, with an attribute 'code'"


def _code_calls_functions_of_the_module(bodies: Mapping[str, _Body], body: _Body) -> Iterator[str]:
    function = body.function
    pairs = function.body[0].attr(CALLEES) if function.code is not None else None
    if pairs is None:
        return
    if not isinstance(pairs, tuple) or len(pairs) % 2 or not all(isinstance(name, str) for name in pairs):
        yield f"code has {CALLEES}={pairs!r}, which should be names in pairs: in the code, and of the function"
        return
    for name in code_callees(function).values():
        if name not in bodies:
            yield f"code calls {name!r}, which is not in the module{did_you_mean(name, bodies)}"
        elif bodies[name].function.code is None:
            yield f"code calls {name!r}, which is a function of operations and no code"


def _copies_have_ends(body: _Body) -> Iterator[str]:
    for call in body.calls_of(COPY):
        attrs = dict(call.attrs)
        if len(call.inputs) != 1 or len(call.outputs) != 1 or attrs.get("src") == attrs.get("dst"):
            yield f"copy {call.source!r} is not from one memory to another"


def _transfers_have_ends(body: _Body) -> Iterator[str]:
    for call in body.calls_of(SEND, RECV):
        end, values, unexpected = (
            ("to", call.inputs, call.outputs) if call.op == SEND else ("from", call.outputs, call.inputs)
        )
        is_complete = isinstance(call.attr(end), str) and isinstance(call.attr("order"), int) and call.has_effect
        if not is_complete or len(values) > 1 or unexpected:
            yield f"{_op(call)} is not a {end!r} end of a transfer: at most one value, a machine, an order, an effect"


def _effects_of_bodies_are_marked(body: _Body) -> Iterator[str]:
    for call in body.calls if len(body.bodies) > 1 else ():
        if not call.has_effect and any(_Body(region).has_effect for _, region in call.regions):
            yield f"{_op(call)} is not marked with an effect, but its body has one"


def _effects_of_callees_are_marked(bodies: Mapping[str, _Body], body: _Body) -> Iterator[str]:
    for _, call, name in body.calls_of_functions:
        if not call.has_effect and name in bodies and bodies[name].has_effect:
            yield f"{_op(call)} is not marked with an effect, but {call.op!r} has one"


@dataclass(frozen=True)
class _TargetView:
    """A target tree with its sites, computed at most once per verification."""

    target: Target

    @cached_property
    def topology(self) -> Topology | None:
        """The sites with their memory domains; None if the tree is inconsistent."""
        try:
            return Topology(self.target.resolve())
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


def _paths_name_nodes(body: _Body, tree: _TargetView) -> Iterator[str]:
    constraints = [body.function.constraint, *filter(None, map(attrgetter("constraint"), body.calls))]
    for path in sorted({path for constraint in constraints if constraint for path in constraint.paths()}):
        yield from tree.problems_of(path)


def _memories_exist(body: _Body, tree: _TargetView) -> Iterator[str]:
    """Check that scopes are memory domains of the target, or memories that code generators provide everywhere."""
    if (values := _values_in_memories(body)) and tree.topology is not None:
        yield from _unknown_memories(values, tree.topology)


def unknown_memories(function: Function, topology: Topology) -> Iterator[str]:
    """Yield an error for each value of a function in a memory that a target does not have.

    Args:
        function: the function; values of nested bodies count too.
        topology: the target.

    Yields:
        Messages with the memories of the target.
    """
    if values := _values_in_memories(_Body(function)):
        yield from (f"{problem} (function {function.name!r})" for problem in _unknown_memories(values, topology))


def _values_in_memories(body: _Body) -> list[Value]:
    """Return the values in memories that code generators do not provide everywhere."""
    values = [*chain.from_iterable(one.params for one in body.bodies)]
    values += chain.from_iterable(map(attrgetter("outputs"), body.calls))
    scopes = set(map(attrgetter("scope"), values))
    named = {scope for scope in scopes if scope and _memory_of(scope) not in _MEMORIES}
    return [value for value in values if value.scope in named] if named else []


def _unknown_memories(values: Iterable[Value], topology: Topology) -> Iterator[str]:
    memories = topology.domains()
    for value in values:
        if value.scope in memories:
            continue
        site = value.scope.lstrip(":@")
        # The nearest name is often that of another device, as `:cpu` is near to `:gpu`, so that all are listed.
        own = f"; that of @{site} is {topology[site].domain}" if site in topology else ""
        there = f"memories of the target: {', '.join(sorted(memories))}{own}"
        yield f"value {value.name!r} is in memory {value.scope!r}, which the target does not have; {there}"


def _memory_of(scope: str) -> str:
    """Return the memory of a scope without its suffix, as those of `shared.dyn` and `vdevice:0`."""
    return scope.replace(":", ".").split(".")[0]


# Memories within any domain that TVM's code generators use (StorageRank in TVM's runtime/thread_storage_scope.h), and
# `vdevice:0`, a virtual device of a module that came from TVM.
_MEMORIES = frozenset({"global", "shared", "warp", "local", "texture", "wmma", "m16n8k8", "metal", "amx", "vdevice"})


def _opsets_are_stated(body: _Body) -> Iterator[str]:
    domains = {domain for domain, _ in body.function.opsets}
    if {domain_of_op(op) for op in body.function.ops if op.startswith("onnx.")} <= domains:
        return
    last_of_kind = {call.op: call for call in body.calls}
    used = {domain_of_op(op): call for op, call in last_of_kind.items() if op.startswith("onnx.")}
    # ONNX defines an operator only together with a version of its set (ONNX, docs/Versioning.md).
    for domain in sorted(used.keys() - domains):
        yield f"{_op(used[domain])} is of domain {domain or 'onnx'!r}, but no version of it is stated"


def _versions_are_known(body: _Body) -> Iterator[str]:
    """Check that ONNX's own operators are of a version that the installed package defines."""
    version = dict(body.function.opsets).get("", 1)
    if not 1 <= version <= _newest_version():
        known = f"the installed onnx knows versions 1 to {_newest_version()}"
        yield f"version {version} of ONNX's operators is stated; {known}"


@cache
def _newest_version() -> int:
    import onnx.defs  # takes long, and many modules are verified before anything else needs it

    return int(onnx.defs.onnx_opset_version())


_CONVOLUTIONS = {"onnx.Conv": 1, "onnx.ConvInteger": 1, "onnx.QLinearConv": 3}  # with the place of their weights
_WINDOWED = ("onnx.AveragePool", "onnx.LpPool", "onnx.MaxPool", *_CONVOLUTIONS)


def _windows_fit(body: _Body) -> Iterator[str]:
    """Yield operations whose windows are larger than their padded images.

    The formula of ONNX makes the result empty or negative, and shape inference and runtimes round it otherwise.
    """
    calls = body.calls_of(*_WINDOWED)
    shapes = body.shapes_of(name for call in calls for name in call.inputs[:4]) if calls else {}
    for call in calls:
        at = _CONVOLUTIONS.get(call.op, 0)
        weights = shapes.get(call.inputs[at], ())[2:] if at and len(call.inputs) > at else ()
        sizes, given = shapes.get(call.inputs[0], ())[2:], [one for one in weights if isinstance(one, int)]
        kernel, rank = integers_of(call, "kernel_shape", given), len(sizes)
        strides, gaps = integers_of(call, "strides", [1] * rank), integers_of(call, "dilations", [1] * rank)
        pads, is_padded = integers_of(call, "pads", [0] * 2 * rank), str(call.attr("auto_pad")).startswith("SAME")
        if is_padded or not len(kernel) == len(strides) == len(gaps) == rank or len(pads) != 2 * rank:
            continue
        least = least_sizes(kernel, strides, gaps, pads, rounds_up=bool(call.attr("ceil_mode")))
        for axis, (size, needed) in enumerate(zip(sizes, least, strict=True), 2):
            if isinstance(size, int) and 0 < size < needed:  # an image without elements has no windows
                where = f"along axis {axis} of {call.inputs[0]!r}"
                yield f"{_op(call)} has windows that need {needed} elements {where} beside its padding, not {size}"


def _arguments_fit(body: _Body) -> Iterator[str]:
    """Yield operations whose axes, pads or sizes do not fit their operands; those of nested bodies need not run."""
    function = body.function
    calls = () if function.ops.isdisjoint(CHECKED_OPS) else [one for one in function.body if one.op in CHECKED_OPS]
    if not calls:
        return
    shapes = body.shapes_of(name for call in calls for name in call.inputs[:READ_OPERANDS])
    constants = {one.name: one.data for one in function.constants}
    version, fitting = dict(function.opsets).get("", 1), set[object]()
    for call in calls:
        names = call.inputs[:READ_OPERANDS]
        # Most operations have the attributes and shapes of an earlier one.
        if _are_plain(call.attrs) and constants.keys().isdisjoint(names):
            key = (call.op, call.attrs, *map(shapes.get, names))
            if key in fitting:
                continue
            if next(argument_problems(call, version, shapes, constants), None) is None:
                fitting.add(key)
                continue
        yield from (f"{_op(call)} {problem}" for problem in argument_problems(call, version, shapes, constants))


def _scales_are_positive(body: _Body) -> Iterator[str]:
    """Yield resizings by constants that are no scales (ONNX, Resize)."""
    calls = body.calls_of("onnx.Resize", "onnx.Upsample")
    constants = {one.name: one.data for one in body.function.constants} if calls else {}
    for call in calls:
        operand = scales_at(call.inputs)
        name = "" if operand is None else call.inputs[operand]
        scales = constants.get(name)
        if scales is None or not scales.size or scales.dtype.kind != "f":
            continue  # without elements, they are left out
        if scales.ndim != 1 or not (np.isfinite(scales) & (scales > 0)).all():
            yield f"{_op(call)} has scales {name!r} of {shown(scales.tolist())}; give a positive number for each axis"


def _slopes_fit(body: _Body) -> Iterator[str]:
    """Yield rectifiers whose slope is not broadcast to their data, but would broadcast these (ONNX, PRelu).

    Before version 7, a vector has a slope for each channel.
    """
    calls = body.calls_of("onnx.PRelu") if dict(body.function.opsets).get("", 0) >= 7 else ()
    shapes = body.shapes_of(name for call in calls for name in call.inputs) if calls else {}
    for call in calls:
        data, slope = (shapes.get(name) for name in call.inputs[:2])
        if data is None or slope is None:
            continue
        pairs = zip(reversed(data), reversed(slope), strict=False)
        known = [pair for pair in pairs if all(isinstance(one, int) for one in pair)]
        fits = all(slope_size in (1, size) for size, slope_size in known)
        if len(slope) > len(data) or not fits:
            what = f"{call.inputs[1]!r} of shape {slope} does not broadcast to {call.inputs[0]!r} of shape {data}"
            yield f"the slope of {_op(call)} does not fit: {what}"


# Rules that a function keeps by itself.
RULES: tuple[Callable[[_Body], Iterator[str]], ...] = (
    _names_are_unique,
    _values_are_defined_once,
    _values_are_defined_before_use,
    _types_are_known,
    _constants_have_their_types,
    _copies_have_ends,
    _transfers_have_ends,
    _opaque_code_is_alone,
    _effects_of_bodies_are_marked,
    _opsets_are_stated,
    _versions_are_known,
    _arguments_fit,
    _scales_are_positive,
    _slopes_fit,
    _windows_fit,
)

# Those of them that look for operators.
_RULES_OF_OPERATORS = (
    _copies_have_ends,
    _transfers_have_ends,
    _opaque_code_is_alone,
    _opsets_are_stated,
    _versions_are_known,
    _arguments_fit,
    _scales_are_positive,
    _slopes_fit,
    _windows_fit,
)

# Rules on what a function calls.
MODULE_RULES: tuple[Callable[[Mapping[str, _Body], _Body], Iterator[str]], ...] = (
    _callees_exist_and_fit,
    _operand_functions_exist,
    _aliases_fit,
    _types_at_calls_fit,
    _code_calls_functions_of_the_module,
    _effects_of_callees_are_marked,
)

# Rules that need the target tree.
TARGET_RULES: tuple[Callable[[_Body, _TargetView], Iterator[str]], ...] = (_paths_name_nodes, _memories_exist)


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
