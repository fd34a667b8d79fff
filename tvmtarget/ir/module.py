"""IRModule: a frozen program of functions, each a flat list of calls in SSA form and topological order.

Names of operators carry their dialect: `onnx.Conv`, `onnx.com.microsoft::Gelu`, `@callee` for a function of the
module, `tt.copy` for a copy between memories. Constants are held by reference and never copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tvmtarget.errors import ModelError, UnknownNameError, did_you_mean
from tvmtarget.ir.types import TensorType, Type
from tvmtarget.target.constraint import Constraint
from tvmtarget.target.tree import Target

if TYPE_CHECKING:
    import onnx

__all__ = ["COPY", "Attribute", "Call", "Constant", "Function", "IRModule", "Value"]

COPY = "tt.copy"

Attribute: TypeAlias = "int | float | str | bytes | Constant | Opaque | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | tuple[bytes, ...] | tuple[Constant, ...]"  # noqa: E501


@dataclass(frozen=True, slots=True)
class Value:
    """A named value of a function: its type, and the memory it lives in once that is decided."""

    name: str
    type: Type
    scope: str = ""

    def __str__(self) -> str:
        return f"%{self.name}: {self.type or '?'}" + (f" in {self.scope!r}" if self.scope else "")


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A tensor known before the program runs; compared by reference, as its elements may be many."""

    name: str
    type: TensorType
    data: np.ndarray[Any, Any]

    def __str__(self) -> str:
        return f"%{self.name}: {self.type}"


@dataclass(frozen=True, slots=True)
class Opaque:
    """An attribute that only its dialect understands: its name there, and its bytes."""

    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Call:
    """One operation: operands by name ('' where an optional one is absent), results, attributes, nested bodies.

    `source` is the name the operation had in the model that it came from; it survives every pass.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[Value, ...]
    attrs: tuple[tuple[str, Attribute], ...] = ()
    regions: tuple[tuple[str, Function], ...] = ()
    constraint: Constraint | None = None
    source: str = ""

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
        captured = (name for _, region in self.regions for name in region.captures())
        return tuple(dict.fromkeys(name for name in (*self.inputs, *captured) if name))


@dataclass(frozen=True)
class Function:
    """A function: typed parameters, constants, a flat body, and the names of its results.

    `constraint` says which node of the target it runs on; `opsets` are versions of operator sets by domain.
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

    @cached_property
    def types(self) -> Mapping[str, Type]:
        """Types of all values by name: parameters, constants and results of calls."""
        found: dict[str, Type] = {param.name: param.type for param in self.params}
        found |= {constant.name: constant.type for constant in self.constants}
        found |= {output.name: output.type for call in self.body for output in call.outputs if output.name}
        return MappingProxyType(found)

    @cached_property
    def constant_names(self) -> frozenset[str]:
        """Names of the constants."""
        return frozenset(constant.name for constant in self.constants)

    def captures(self) -> tuple[str, ...]:
        """List the values this reads but does not define, each once, in order of first use."""
        own = self.types
        used = [name for call in self.body for name in call.uses()] + list(self.results)
        return tuple(dict.fromkeys(name for name in used if name and name not in own))

    def attr(self, name: str) -> Any:  # noqa: ANN401
        """Return an attribute of the function, or None."""
        return dict(self.attrs).get(name)

    def replace(self, **changes: Any) -> Function:  # noqa: ANN401
        """Return a copy with some fields changed."""
        return replace(self, **changes)


@dataclass(frozen=True)
class IRModule:
    """A program: functions, the target tree they are constrained to, and free attributes.

    The entry is the function called `main`.
    """

    functions: tuple[Function, ...]
    target: Target | None = None
    attrs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        names = [function.name for function in self.functions]
        twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) != len(names) else []
        if twice:
            raise ModelError(f"two functions are called {twice[0]!r}")
        object.__setattr__(self, "attrs", MappingProxyType(dict(self.attrs)))

    def __reduce__(self) -> tuple[object, ...]:
        return (IRModule, (self.functions, self.target, dict(self.attrs)))

    @classmethod
    def from_onnx(cls, model: str | Path | bytes | onnx.ModelProto) -> IRModule:
        """Read an ONNX file, its bytes, or a loaded model; `ModelError` says what is wrong with it.

        Initializers become constants by reference, shapes are inferred, symbolic dimensions are kept, and every
        operation keeps the name it has in the model (one is made for those that have none).
        """
        from tvmtarget.ir.onnx_reader import read_model

        return read_model(model)

    def to_onnx(self, function: str = "main") -> onnx.ModelProto:
        """Write a function, with all it calls, as a checked ONNX model that computes the same."""
        from tvmtarget.ir.onnx_writer import write_function

        return write_function(self, function)

    @cached_property
    def _by_name(self) -> Mapping[str, Function]:
        return {function.name: function for function in self.functions}

    def __getitem__(self, name: str) -> Function:
        if name not in self._by_name:
            raise UnknownNameError(f"no function {name!r} in the module{did_you_mean(name, self._by_name)}")
        return self._by_name[name]

    def __iter__(self) -> Iterator[Function]:
        return iter(self.functions)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @property
    def main(self) -> Function:
        """The entry function."""
        return self["main"]

    def replace(self, **changes: Any) -> IRModule:  # noqa: ANN401
        """Return a copy with some fields changed."""
        return replace(self, **changes)

    def with_target(self, target: Target | str | None) -> IRModule:
        """Return the module on another target tree."""
        return self.replace(target=Target.parse(target) if isinstance(target, str) else target)

    def with_attrs(self, **attrs: Any) -> IRModule:  # noqa: ANN401
        """Return the module with attributes added or changed."""
        return self.replace(attrs={**self.attrs, **attrs})

    def with_function(self, function: Function) -> IRModule:
        """Return the module with one function added, or exchanged for the one of that name."""
        if function.name not in self:
            return self.replace(functions=(*self.functions, function))
        return self.replace(functions=tuple(function if old.name == function.name else old for old in self.functions))

    def bind(self, values: Mapping[str, np.ndarray[Any, Any]]) -> IRModule:
        """Return the module with parameters of the entry turned into constants; `ModelError` if they do not fit."""
        types = {param.name: param.type for param in self.main.params}
        constants: list[Constant] = []
        for name, value in values.items():
            type_ = types.get(name)
            if not isinstance(type_, TensorType):
                raise ModelError(f"{name!r} cannot be bound; tensors that can be: {', '.join(types)}")
            array = np.asarray(value)
            if array.dtype.name != type_.dtype:
                raise ModelError(f"{name!r} is bound to {array.dtype.name}, not {type_.dtype}")
            constants.append(Constant(name, TensorType(type_.dtype, array.shape), array))
        params = tuple(param for param in self.main.params if param.name not in values)
        return self.with_function(self.main.replace(params=params, constants=(*self.main.constants, *constants)))

    def constrain(self, name: str, constraint: Constraint | str, *, function: str = "main") -> IRModule:
        """Return the module with a constraint on one call, named by its source; earlier ones on it are replaced."""
        old = self[function]
        sources = {call.source for call in old.body}
        if name not in sources:
            raise UnknownNameError(f"no op {name!r} in function {function!r}{did_you_mean(name, sources)}")
        wanted = Constraint.parse(constraint)
        body = tuple(replace(call, constraint=wanted) if call.source == name else call for call in old.body)
        return self.with_function(old.replace(body=body))

    def verify(self) -> IRModule:
        """Check every rule of the IR and return the module; `ModelError` lists all that is broken."""
        from tvmtarget.ir.verify import verify_module

        verify_module(self)
        return self

    def __str__(self) -> str:
        from tvmtarget.ir.printer import print_module

        return print_module(self)
