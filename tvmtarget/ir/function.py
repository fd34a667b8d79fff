"""Functions of the IR: a flat list of calls in SSA form and topological order, with typed parameters and results.

An operator name carries its dialect:

- `onnx.Conv`, `onnx.com.microsoft::Gelu`: an ONNX operator, with its domain unless that is ONNX's own.
- `relax.add`: an operator of TVM's Relax.
- `@callee`: a call of a function of the module.
- `tt.copy`: a copy between two memories.
- `tt.code`: code that only a compiler understands (a TIR function, C source). A function of code has this one call; its
  parameters and results are the signature.
- `tt.send`, `tt.recv`: the two ends of a transfer in the program of one machine. The attribute `to` or `from` names the
  other machine, `order` is the position among all transfers.

Functions, calls and values are frozen. Constants are held by reference and never copied.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from operator import attrgetter, is_not
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.errors import ModelError, TvmTargetError
from tvmtarget.ir.tensors import digest_of
from tvmtarget.ir.text.escaping import print_name, quote
from tvmtarget.ir.types import TensorType, Type
from tvmtarget.target.constraints.constraint import Constraint

__all__ = [
    "CALLEES",
    "CODE",
    "COPY",
    "DIMS",
    "DRIVEN_DEVICE",
    "FUNCTION",
    "OPS",
    "RECV",
    "SEND",
    "Attribute",
    "Call",
    "Constant",
    "Function",
    "Opaque",
    "Value",
    "all_names",
    "callees_first",
    "callees_of",
    "calls_in",
    "changed_places",
    "code_callees",
    "constants_of",
    "domain_of_op",
    "kind_of_op",
    "map_calls",
    "operand_functions",
    "reachable_functions",
    "with_renamed_callees",
]

COPY = "tt.copy"
SEND = "tt.send"
RECV = "tt.recv"
CODE = "tt.code"
# Attribute of a `tt.code` call: pairs of the name that the code uses (of a call, or the symbol of a kernel it launches)
# and the function of the module.
CALLEES = "callees"
OPS = "ops"  # attribute of a call of a function: names of the operations in it at this call (`op_aliases.py`)
DIMS = "dims"  # attribute of a call of a function: pairs of its symbolic dimension and the caller's (`dim_aliases.py`)
FUNCTION = "function:"  # prefix of a function name where names of operations are accepted too
DRIVEN_DEVICE = "drives"  # attribute of a host function: path of the device that it drives

Attribute: TypeAlias = "int | float | str | bytes | Constant | Opaque | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | tuple[bytes, ...] | tuple[Constant, ...]"  # noqa: E501


@dataclass(frozen=True, slots=True)
class Value:
    """A named value of a function.

    Attributes:
        name: name that operands use; empty for a result that is not used.
        type: type, or None where it is not known.
        scope: memory that holds the value; empty until that is decided.
    """

    name: str
    type: Type
    scope: str = ""

    def __str__(self) -> str:
        name = f"%{print_name(self.name)}" if self.name else "_"
        return f"{name}: {self.type or '?'}" + (f" in {quote(self.scope)}" if self.scope else "")


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor whose elements are known before the program runs; the elements never change.

    Two constants are equal if name, type and digest are.
    """

    name: str
    type: TensorType
    data: np.ndarray[Any, Any] = field(repr=False)
    # Digest that a checked file states, so that large constants are not hashed again.
    stored_digest: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if type(self.data) is np.ndarray and self.data.dtype.isnative:
            return
        if isinstance(self.data, np.ma.MaskedArray):
            raise ModelError(f"constant {self.name!r} is a masked array; replace what is masked by .filled(value)")
        # Engines read the elements in the byte order of this machine.
        plain = np.asarray(self.data)
        object.__setattr__(self, "data", plain.astype(plain.dtype.newbyteorder("="), copy=False))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the elements in hexadecimal; computed once."""
        return self.stored_digest or digest_of(self.data)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Constant):
            return NotImplemented
        if (self.name, self.type) != (other.name, other.type):
            return False
        # The same array needs no digest, which reads all its elements.
        return self.data is other.data or self.digest == other.digest

    def __hash__(self) -> int:
        # Without the digest, so that a constant can be a key without its elements being read.
        return hash((self.name, self.type))

    def __str__(self) -> str:
        return f"%{print_name(self.name)}: {self.type}"


@dataclass(frozen=True, slots=True)
class Opaque:
    """An attribute value in the encoding of its dialect.

    Attributes:
        kind: name of the encoding.
        data: encoded value.
    """

    kind: str
    data: bytes


def kind_of_op(op: str) -> str:
    """Return an operator without its dialect.

    Args:
        op: operator with its dialect, such as `onnx.Conv` or `com.microsoft::Gelu`.

    Returns:
        Its name alone, such as `Conv`.
    """
    return op.rsplit("::", 1)[-1].removeprefix("onnx.")


def domain_of_op(op: str) -> str:
    """Return the domain of an operator of ONNX.

    Args:
        op: operator with its dialect, such as `onnx.Conv` or `onnx.com.microsoft::Gelu`.

    Returns:
        The domain, such as `com.microsoft`; empty for that of ONNX.
    """
    return domain_and_kind(op)[0]


def domain_and_kind(op: str) -> tuple[str, str]:
    """Return the domain and the name of an operator of ONNX.

    Args:
        op: operator with or without its dialect, such as `onnx.Conv` or `com.microsoft::Gelu`.

    Returns:
        The domain, empty for that of ONNX, and the name alone, such as `Gelu`.
    """
    domain, _, kind = op.removeprefix("onnx.").rpartition("::")
    return domain, kind


@dataclass(frozen=True, slots=True)
class Call:
    """One operation of a function.

    Attributes:
        op: operator with its dialect (see the module).
        inputs: names of the operands in order; "" for an optional operand that is absent.
        outputs: results in order; one that is not used has no name.
        attrs: attributes by name, in the order of the source.
        regions: nested bodies by label (`then_branch`); they may read values of the enclosing functions.
        constraint: placement constraint. Its text or a target is parsed when the call is made.
        source: name of the operation in the source model; every pass keeps it.
        has_effect: whether the operation has side effects: it is never dropped, nor reordered with another such one.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[Value, ...]
    attrs: tuple[tuple[str, Attribute], ...] = ()
    regions: tuple[tuple[str, Function], ...] = ()
    constraint: Constraint | None = None
    source: str = ""
    has_effect: bool = False

    def __post_init__(self) -> None:
        if self.constraint is not None and type(self.constraint) is not Constraint:
            object.__setattr__(self, "constraint", _constraint(self.constraint, f"op {self.source or self.op!r}"))

    @property
    def kind(self) -> str:
        """Operator without its dialect: `Conv` for `onnx.Conv`."""
        return kind_of_op(self.op)

    @property
    def op_names(self) -> tuple[str, ...]:
        """Spellings by which users name the operator, each once: bare, with its domain, and with the dialect."""
        return tuple(dict.fromkeys((self.kind, self.op.removeprefix("onnx."), self.op)))

    @property
    def callee(self) -> str | None:
        """Name of the called function of the module; None for an operation."""
        return self.op[1:] if self.op[:1] == "@" else None

    def attr(self, name: str) -> Attribute | None:
        """Return the value of an attribute.

        Args:
            name: name of the attribute.

        Returns:
            The value, or None if the call lacks the attribute.
        """
        for key, value in self.attrs:
            if key == name:
                return value
        return None

    def uses(self) -> tuple[str, ...]:
        """List the values that the call reads, each once.

        Returns:
            Names of the operands in order, then of values that nested bodies capture.
        """
        captured = [name for _, region in self.regions for name in region.captures()] if self.regions else ()
        return tuple(dict.fromkeys(filter(None, (*self.inputs, *captured))))


@dataclass(frozen=True)
class Function:
    """A function; nested bodies of calls are functions too and may also read values of the enclosing functions.

    Attributes:
        name: name in the module, or a label for a nested body.
        params: parameters in order.
        body: calls in topological order.
        results: names of the returned values.
        constants: tensors that the body reads by name.
        constraint: placement constraint. Its text or a target is parsed when the function is made.
        opsets: operator set versions by domain, "" for ONNX's own.
        attrs: attributes by name.
    """

    name: str
    params: tuple[Value, ...]
    body: tuple[Call, ...] = field(repr=False)
    results: tuple[str, ...]
    constants: tuple[Constant, ...] = field(default=(), repr=False)
    constraint: Constraint | None = None
    opsets: tuple[tuple[str, int], ...] = ()
    attrs: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.constraint is not None and type(self.constraint) is not Constraint:
            object.__setattr__(self, "constraint", _constraint(self.constraint, f"function {self.name!r}"))

    def __reduce__(self) -> tuple[object, ...]:
        # Without what was computed, which is not all data that can be pickled.
        return (Function, tuple(getattr(self, one.name) for one in fields(self)))

    @cached_property
    def types(self) -> Mapping[str, Type]:
        """Types of all values by name: parameters, constants and results of calls."""
        found: dict[str, Type] = {param.name: param.type for param in self.params}
        found |= {constant.name: constant.type for constant in self.constants}
        found |= {output.name: output.type for call in self.body for output in call.outputs if output.name}
        return MappingProxyType(found)

    @cached_property
    def producers(self) -> Mapping[str, int]:
        """Index in the body of the operation that computes each value, by name."""
        return {output.name: index for index, call in enumerate(self.body) for output in call.outputs if output.name}

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """Calls of the body and of nested bodies, each before those in its nested bodies."""
        # Most functions have no such body, so that the test has to be fast.
        return tuple(calls_in(self)) if any(map(attrgetter("regions"), self.body)) else self.body

    @cached_property
    def ops(self) -> frozenset[str]:
        """Operators of `calls`: few, so that looking for one of them here is faster than in every call."""
        return frozenset(map(attrgetter("op"), self.calls))

    @property
    def code(self) -> Opaque | None:
        """Body of a function of code; None for a function of operations."""
        only = self.body[0] if len(self.body) == 1 and self.body[0].op == CODE else None
        code = None if only is None else only.attr("code")
        return code if isinstance(code, Opaque) else None

    @cached_property
    def constant_names(self) -> frozenset[str]:
        """Names of the constants."""
        return frozenset(constant.name for constant in self.constants)

    def captures(self) -> tuple[str, ...]:
        """List the values that the body reads but does not define.

        Returns:
            Names, each once, in order of first use; empty unless this is a nested body.
        """
        return self._captures

    @cached_property
    def _captures(self) -> tuple[str, ...]:
        own = self.types
        used = [name for call in self.body for name in call.uses()] + list(self.results)
        return tuple(dict.fromkeys(name for name in used if name and name not in own))

    @property
    def site_constraint(self) -> Constraint | None:
        """Constraint on the site of its operations; for a host function, the device that it drives."""
        device = self.attr(DRIVEN_DEVICE)
        return self.constraint if device is None else Constraint.at(device)

    def attr(self, name: str) -> Any:  # noqa: ANN401
        """Return the value of an attribute.

        Args:
            name: name of the attribute.

        Returns:
            The value, or None if the function lacks the attribute.
        """
        return dict(self.attrs).get(name)

    def replace(self, **changes: Any) -> Function:  # noqa: ANN401
        """Return a copy with some fields changed.

        Args:
            **changes: new values by field name.

        Returns:
            The changed function.
        """
        return replace(self, **changes)


def changed_places(before: Iterable[object], after: Iterable[object]) -> list[int]:
    """Return the positions at which two sequences hold other objects.

    Args:
        before: a sequence.
        after: another one of the same length.

    Returns:
        Positions, ascending; objects are compared by identity.
    """
    # Few differ, which are found faster among bytes than by counting along.
    differs = bytes(map(is_not, before, after))
    places: list[int] = []
    place = differs.find(1)
    while place >= 0:
        places.append(place)
        place = differs.find(1, place + 1)
    return places


def _constraint(value: Any, owner: str) -> Constraint:  # noqa: ANN401 - anything that Constraint.parse accepts
    """Parse a constraint; an error names the op or function it was set on."""
    try:
        return Constraint.parse(value)
    except TvmTargetError as error:
        raise type(error)(*[f"{problem} (constraint of {owner})" for problem in error.problems]) from error


def all_names(function: Function) -> Iterator[str]:
    """Yield the names of all values that a function and its nested bodies define.

    Args:
        function: the function.

    Yields:
        Names of parameters, constants and results of calls; nested bodies last.
    """
    yield from function.types
    for call in function.body:
        for _, region in call.regions:
            yield from all_names(region)


def constants_of(function: Function) -> Iterator[Constant]:
    """Yield all constants of a function, those in attributes and nested bodies too.

    Args:
        function: the function.

    Yields:
        The constants in order of the body; the same tensor may occur several times.
    """
    yield from function.constants
    yield from _constants_in(function.attrs)
    for call in [call for call in function.body if call.attrs or call.regions]:
        yield from _constants_in(call.attrs)
        for _, region in call.regions:
            yield from constants_of(region)


def _constants_in(attrs: tuple[tuple[str, Any], ...]) -> Iterator[Constant]:
    for _, value in attrs:
        yield from (item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, Constant))


def calls_in(function: Function) -> Iterator[Call]:
    """Yield the calls of a function and of its nested bodies.

    Args:
        function: the function.

    Yields:
        Each call before the calls in its nested bodies.
    """
    # Generators in generators would pass each call on through all levels around it.
    stack = [iter(function.body)]
    while stack:
        for call in stack[-1]:
            yield call
            if call.regions:
                stack += [iter(region.body) for _, region in reversed(call.regions)]
                break
        else:
            stack.pop()


def map_calls(function: Function, change: Callable[[Call], Call]) -> Function:
    """Change every call of a function and of its nested bodies.

    Args:
        function: the function.
        change: maps a call, whose nested bodies are changed already, to a new one.

    Returns:
        The changed function.
    """
    body = []
    for call in function.body:
        regions = tuple((label, map_calls(region, change)) for label, region in call.regions)
        body.append(change(replace(call, regions=regions) if regions else call))
    return function.replace(body=tuple(body))


def callees_of(function: Function) -> frozenset[str]:
    """Return the names of the functions that a function calls.

    Args:
        function: the function; calls in nested bodies, in code and in operands of Relax count too.

    Returns:
        Names of functions called directly.
    """
    own = {op[1:] for op in function.ops if op[:1] == "@"}
    if any(op[:6] == "relax." for op in function.ops):
        for call in [call for call in function.calls if call.op[:6] == "relax."]:
            own.update(operand_functions(call))
    if CODE in function.ops:
        bodies = (function, *(region for call in function.calls for _, region in call.regions))
        for body in [body for body in bodies if body.code is not None]:
            own.update(code_callees(body).values())
    return frozenset(own)


# An operand `Global('name')` of a Relax operation (`relax/syntax.py`), or any other Python string literal, which is
# matched so that a `Global(` inside of it is not taken for an operand.
_FUNCTION_OPERAND = re.compile(r"""(?<!\w)(?:Global\()?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")
_OPERANDS = "tvm.args"


def _operand_texts(call: Call) -> str:
    text = call.attr(_OPERANDS) if call.op.startswith("relax.") else None
    return text if isinstance(text, str) and "Global(" in text else ""


def _literal(text: str) -> str:
    """Return the value of a Python string literal; "" if an untrusted file holds a malformed one."""
    try:
        return str(literal_eval(text))
    except (SyntaxError, ValueError):
        return ""


def operand_functions(call: Call) -> Iterator[str]:
    """Yield the functions that are operands of a Relax operation.

    Args:
        call: any operation.

    Yields:
        Names in order, each as often as it occurs.
    """
    for found in _FUNCTION_OPERAND.findall(_operand_texts(call)):
        if found.startswith("Global("):
            name = _literal(found.removeprefix("Global("))
            yield from (name,) * bool(name)


def _rename_operands(text: str, names: Mapping[str, str]) -> str:
    """Rename the functions among the operands of a Relax operation."""

    def renamed(found: re.Match[str]) -> str:
        if not found[0].startswith("Global("):
            return found[0]
        name = _literal(found[0].removeprefix("Global("))
        return f"Global({names[name]!r}" if name in names else found[0]

    return _FUNCTION_OPERAND.sub(renamed, text)


def code_callees(function: Function) -> dict[str, str]:
    """Return the functions that a function of code calls.

    Args:
        function: the function; one of operations calls none this way.

    Returns:
        Functions of the module by the name that the code uses for them.
    """
    pairs = function.body[0].attr(CALLEES) if function.code is not None else None
    names = [str(name) for name in pairs] if isinstance(pairs, tuple) else []
    # An untrusted file may hold an odd number of names; `verify.py` reports that.
    return dict(zip(names[::2], names[1::2], strict=False))


def with_renamed_callees(function: Function, names: Mapping[str, str]) -> Function:
    """Return a function that calls the same functions by other names.

    Args:
        function: the function.
        names: new name of a callee by its present name.

    Returns:
        The function with calls in nested bodies, code and Relax operands renamed too.
    """
    if callees_of(function).isdisjoint(names):
        return function
    return function.replace(body=tuple(_with_renamed_callee(call, names) for call in function.body))


def _with_renamed_callee(call: Call, names: Mapping[str, str]) -> Call:
    op = call.op if call.callee is None else f"@{names.get(call.callee, call.callee)}"
    attrs, pairs = call.attrs, call.attr(CALLEES)
    if call.op == CODE and isinstance(pairs, tuple):
        # Only the second of each pair names a function of the module; the first is the name within the code.
        renamed = tuple(names.get(str(name), str(name)) if k % 2 else str(name) for k, name in enumerate(pairs))
        attrs = tuple((key, renamed if key == CALLEES else value) for key, value in attrs)
    operands = _operand_texts(call)
    if operands:
        attrs = tuple((key, _rename_operands(operands, names) if key == _OPERANDS else value) for key, value in attrs)
    regions = tuple((label, with_renamed_callees(region, names)) for label, region in call.regions)
    return replace(call, op=op, attrs=attrs, regions=regions)


def reachable_functions(names: Iterable[str], functions: Mapping[str, Function]) -> tuple[str, ...]:
    """Return the functions that can be reached by calls.

    Args:
        names: functions to begin with.
        functions: all functions by name.

    Returns:
        Names of the given functions and of those they call, directly or not, in order of discovery.
    """
    reached: dict[str, None] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached[name] = None
            # Sorted, since the order of a set of strings differs from process to process.
            waiting += sorted(callees_of(functions[name]))
    return tuple(reached)


def callees_first(
    roots: Iterable[Function], functions: Mapping[str, Function], *, descending: bool = False
) -> Iterator[Function]:
    """Yield functions in topological order of the call graph, callees before callers.

    Callees of code are not followed, since code may recurse.

    Args:
        roots: functions to begin with.
        functions: all functions by name.
        descending: visit the callees of a function in descending order of their names.

    Yields:
        The functions that the roots reach, each once; of the roots, those that are among `functions`.

    Raises:
        ModelError: functions of operations call each other in a cycle.
    """

    def callees(function: Function) -> Iterator[str]:
        return iter(sorted(callees_of(function), reverse=descending) if function.code is None else ())

    # Iterative depth-first search, since a chain of calls may be longer than Python's recursion limit.
    done: set[str] = set()
    for root in roots:
        stack = [(root.name, callees(root))]
        path = {root.name}
        while stack:
            name, rest = stack[-1]
            callee = next((other for other in rest if other in functions and other not in done), None)
            if callee is None:
                stack.pop()
                path.discard(name)
                if name not in done and name in functions:
                    done.add(name)
                    yield functions[name]
            elif callee in path:
                raise ModelError(f"function {callee!r} calls itself")
            else:
                path.add(callee)
                stack.append((callee, callees(functions[callee])))
