"""What programs are made of: functions, each a flat list of calls in SSA form and topological order.

Names of operators carry their dialect: `onnx.Conv`, `onnx.com.microsoft::Gelu`, `@callee` for a function of the
module, `tt.copy` for a copy between memories, `tt.code` for code that only a dialect or a compiler understands (a TIR
function, C source): such a function has one call of it, and its parameters and results are the signature. In the
program of one machine, `tt.send` and `tt.recv` are the two ends of a transfer: `to` or `from` is the other machine, and
`order` the place of the transfer among all of them. Constants are held by reference and never copied.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.errors import TvmTargetError
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
    "callees_of",
    "calls_in",
    "code_callees",
    "constants_of",
    "reachable_functions",
    "with_renamed_callees",
]

COPY = "tt.copy"
SEND = "tt.send"
RECV = "tt.recv"
CODE = "tt.code"
# The attribute of a call of code that names the functions which that code calls: pairs of the name that the code uses,
# for a call or as the symbol of a kernel that it launches, and the function of the module.
CALLEES = "callees"
OPS = "ops"  # the attribute of a call of a function that names the operations it leads to (`op_names.py`)
DIMS = "dims"  # beside it: symbolic dimensions of the function, each followed by what it is where that is called
FUNCTION = "function:"  # what begins the name of a function where operations are named, too
DRIVEN_DEVICE = "drives"  # the attribute of a host function that names, by its path, the device it works for

Attribute: TypeAlias = "int | float | str | bytes | Constant | Opaque | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | tuple[bytes, ...] | tuple[Constant, ...]"  # noqa: E501


@dataclass(frozen=True, slots=True)
class Value:
    """A named value of a function: its type, and the memory it lives in once that is decided."""

    name: str
    type: Type
    scope: str = ""

    def __str__(self) -> str:
        name = f"%{print_name(self.name)}" if self.name else "_"
        return f"{name}: {self.type or '?'}" + (f" in {quote(self.scope)}" if self.scope else "")


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor known before the program runs; equal if name, type and digest are. The elements never change."""

    name: str
    type: TensorType
    data: np.ndarray[Any, Any]

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the elements, read once."""
        return digest_of(self.data)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Constant):
            return NotImplemented
        if (self.name, self.type) != (other.name, other.type):
            return False
        return self.data is other.data or self.digest == other.digest

    def __hash__(self) -> int:
        return hash((self.name, self.type))

    def __str__(self) -> str:
        return f"%{print_name(self.name)}: {self.type}"


@dataclass(frozen=True, slots=True)
class Opaque:
    """An attribute that only its dialect understands: its name there, and its bytes."""

    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Call:
    """One operation: operands by name ('' where an optional one is absent), results, attributes, nested bodies.

    A constraint is a `Constraint`, or its text or a target, which are read when the call is made.

    `source` is the name the operation had in the model that it came from; it survives every pass. An operation that
    `has_effect` is never dropped, and never moved before or behind another one.
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
        """The operator without its dialect: `Conv` of `onnx.Conv`."""
        return self.op.rsplit("::", 1)[-1].removeprefix("onnx.")

    @property
    def callee(self) -> str | None:
        """The function of the module that this calls, or None."""
        return self.op[1:] if self.op.startswith("@") else None

    def attr(self, name: str) -> Attribute | None:
        """Return an attribute, or None where it is absent."""
        return next((value for key, value in self.attrs if key == name), None)

    def uses(self) -> tuple[str, ...]:
        """List the values this reads, each once: operands, then what nested bodies capture."""
        captured = [name for _, region in self.regions for name in region.captures()] if self.regions else ()
        return tuple(dict.fromkeys(filter(None, (*self.inputs, *captured))))


@dataclass(frozen=True)
class Function:
    """A function: typed parameters, constants, a flat body, and the names of its results.

    `constraint` says which node of the target it runs on; a text or a target is read when it is set. `opsets` are
    versions of operator sets by domain.
    A nested body of a call is a Function too; it may also read values of the functions around it.
    """

    name: str
    params: tuple[Value, ...]
    body: tuple[Call, ...]
    results: tuple[str, ...]
    constants: tuple[Constant, ...] = ()
    constraint: Constraint | None = None
    opsets: tuple[tuple[str, int], ...] = ()
    attrs: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.constraint is not None and type(self.constraint) is not Constraint:
            object.__setattr__(self, "constraint", _constraint(self.constraint, f"function {self.name!r}"))

    @cached_property
    def types(self) -> Mapping[str, Type]:
        """Types of all values by name: parameters, constants and results of calls."""
        found: dict[str, Type] = {param.name: param.type for param in self.params}
        found |= {constant.name: constant.type for constant in self.constants}
        found |= {output.name: output.type for call in self.body for output in call.outputs if output.name}
        return MappingProxyType(found)

    @property
    def code(self) -> Opaque | None:
        """What an opaque function consists of, or None for a function of operations."""
        only = self.body[0] if len(self.body) == 1 and self.body[0].op == CODE else None
        code = None if only is None else only.attr("code")
        return code if isinstance(code, Opaque) else None

    @cached_property
    def constant_names(self) -> frozenset[str]:
        """Names of the constants."""
        return frozenset(constant.name for constant in self.constants)

    def captures(self) -> tuple[str, ...]:
        """List the values this reads but does not define, each once, in order of first use."""
        own = self.types
        used = [name for call in self.body for name in call.uses()] + list(self.results)
        return tuple(dict.fromkeys(name for name in used if name and name not in own))

    @property
    def site_constraint(self) -> Constraint | None:
        """What it asks of where its operations run; of a host function that is the device it works for."""
        device = self.attr(DRIVEN_DEVICE)
        return self.constraint if device is None else Constraint.at(device)

    def attr(self, name: str) -> Any:  # noqa: ANN401
        """Return an attribute of the function, or None."""
        return dict(self.attrs).get(name)

    def replace(self, **changes: Any) -> Function:  # noqa: ANN401
        """Return a copy with some fields changed."""
        return replace(self, **changes)


def _constraint(value: Any, place: str) -> Constraint:  # noqa: ANN401 - what is no constraint is refused
    """Read a constraint where it is set; what is none is refused there."""
    try:
        return Constraint.parse(value)
    except TvmTargetError as error:
        raise type(error)(*[f"{problem} (constraint of {place})" for problem in error.problems]) from error


def all_names(function: Function) -> Iterator[str]:
    """Yield the names of all values that a function and its nested bodies define."""
    yield from function.types
    for call in function.body:
        for _, region in call.regions:
            yield from all_names(region)


def constants_of(function: Function) -> Iterator[Constant]:
    """Yield all constants of a function: its own, those in attributes, and those of nested bodies."""
    yield from function.constants
    yield from _constants_in(function.attrs)
    for call in function.body:
        yield from _constants_in(call.attrs)
        for _, region in call.regions:
            yield from constants_of(region)


def _constants_in(attrs: tuple[tuple[str, Any], ...]) -> Iterator[Constant]:
    for _, value in attrs:
        yield from (item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, Constant))


def calls_in(function: Function) -> Iterator[Call]:
    """Yield the calls of a function and of its nested bodies."""
    for call in function.body:
        yield call
        for _, region in call.regions:
            yield from calls_in(region)


def callees_of(function: Function) -> frozenset[str]:
    """Return the names of the functions that one calls, in nested bodies and in code too."""
    own = {call.op[1:] for call in function.body if call.op.startswith("@")}
    for call in function.body:
        own.update(_named_in(call))
    if function.code is not None:
        own.update(code_callees(function).values())
    nested = [callees_of(region) for call in function.body for _, region in call.regions]
    return frozenset(own).union(*nested)


# A function among the operands of an operation of Relax (`relax/spelling.py`), or another text of Python.
_FUNCTION_OPERAND = re.compile(r"""(?<!\w)(?:Global\()?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")
_OPERANDS = "tvm.args"


def _operand_texts(call: Call) -> str:
    text = call.attr(_OPERANDS) if call.op.startswith("relax.") else None
    return text if isinstance(text, str) and "Global(" in text else ""


def _literal(text: str) -> str:
    """Return the text that a literal of Python is; one that is broken, as a file of strangers may hold, is no name."""
    try:
        return str(literal_eval(text))
    except (SyntaxError, ValueError):
        return ""


def _named_in(call: Call) -> Iterator[str]:
    """Yield the functions that are operands of an operation of Relax."""
    for found in _FUNCTION_OPERAND.findall(_operand_texts(call)):
        if found.startswith("Global("):
            name = _literal(found.removeprefix("Global("))
            yield from (name,) * bool(name)


def _naming(text: str, names: Mapping[str, str]) -> str:
    """Return operands of Relax with other functions in place of those that are keys of `names`."""

    def renamed(found: re.Match[str]) -> str:
        if not found[0].startswith("Global("):
            return found[0]
        name = _literal(found[0].removeprefix("Global("))
        return f"Global({names[name]!r}" if name in names else found[0]

    return _FUNCTION_OPERAND.sub(renamed, text)


def code_callees(function: Function) -> dict[str, str]:
    """Return the functions that an opaque function calls, by the names that its code uses for them."""
    pairs = function.body[0].attr(CALLEES) if function.code is not None else None
    names = [str(name) for name in pairs] if isinstance(pairs, tuple) else []
    return dict(zip(names[::2], names[1::2], strict=False))


def with_renamed_callees(function: Function, names: Mapping[str, str]) -> Function:
    """Return a function that calls other functions in place of those that are keys of `names`."""
    if callees_of(function).isdisjoint(names):
        return function
    return function.replace(body=tuple(_calling(call, names) for call in function.body))


def _calling(call: Call, names: Mapping[str, str]) -> Call:
    op = call.op if call.callee is None else f"@{names.get(call.callee, call.callee)}"
    attrs, pairs = call.attrs, call.attr(CALLEES)
    if call.op == CODE and isinstance(pairs, tuple):
        renamed = tuple(names.get(str(one), str(one)) if place % 2 else str(one) for place, one in enumerate(pairs))
        attrs = tuple((key, renamed if key == CALLEES else value) for key, value in attrs)
    operands = _operand_texts(call)
    if operands:
        attrs = tuple((key, _naming(operands, names) if key == _OPERANDS else value) for key, value in attrs)
    regions = tuple((label, with_renamed_callees(region, names)) for label, region in call.regions)
    return replace(call, op=op, attrs=attrs, regions=regions)


def reachable_functions(names: Iterable[str], functions: Mapping[str, Function]) -> tuple[str, ...]:
    """Return the names of functions and of all that they call, directly or through others."""
    reached: dict[str, None] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached[name] = None
            waiting += sorted(callees_of(functions[name]))
    return tuple(reached)
