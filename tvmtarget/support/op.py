"""An operation as a strategy sees it, and the refusals that a strategy answers with."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from tvmtarget.errors import TargetError, did_you_mean
from tvmtarget.ir.function import Attribute, Call, Constant
from tvmtarget.ir.types import TensorType, Type

__all__ = ["Code", "Op", "Reject", "reject"]

Code: TypeAlias = Literal[
    "NO_RULE",
    "RULE",
    "DTYPE",
    "RANK",
    "SHAPE",
    "SHAPE_DYNAMIC",
    "ATTR",
    "NEED_CONST",
    "NON_TENSOR",
    "CONTROL_FLOW",
    "EFFECT",
    "CONSTRAINT",
    "OVERLAP",
    "MAX_SIZE",
    "MAX_INPUTS",
    "MAX_OUTPUTS",
]


@dataclass(frozen=True, slots=True)
class Reject:
    """A refusal: its code, what was seen, and what would help."""

    code: Code
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" + (f"; {self.hint}" if self.hint else "")


def reject(code: Code, message: str = "", *, hint: str = "", dims: Iterable[object] = ()) -> Reject:
    """Refuse an operation, saying why; `dims` are dimensions that are in the way, told behind the message.

    >>> str(reject("SHAPE_DYNAMIC", dims=("batch", "?")))
    'SHAPE_DYNAMIC: dimensions batch, ? are not known'
    """
    if code not in get_args(Code):
        raise TargetError(f"no code {code!r} of refusals{did_you_mean(str(code), get_args(Code), listing='there are')}")
    listed = ", ".join(map(str, dims))
    told = f"dimensions {listed} are not known" if listed else ""
    return Reject(code, ": ".join(filter(None, (message, told))), hint)


@dataclass(frozen=True, slots=True)
class Op:
    """An operation as a strategy sees it: the call, and what is known of the values around it.

    `types` and `constants` are those of the function by name of the value, `read` says which values anything reads,
    and `opsets` are the versions of operator sets by domain.
    """

    call: Call
    types: Mapping[str, Type]
    constants: Mapping[str, Constant]
    read: Container[str]
    opsets: Mapping[str, int]

    @property
    def kind(self) -> str:
        """The operator, `Conv`; one of another domain than ONNX's own is `domain::Name`."""
        return self.call.op.removeprefix("onnx.")

    @property
    def inputs(self) -> tuple[Type, ...]:
        """Types of the operands; None where one is absent or nothing is known."""
        return tuple(self.types.get(name) if name else None for name in self.call.inputs)

    @property
    def outputs(self) -> tuple[Type, ...]:
        """Types of the results."""
        return tuple(output.type for output in self.call.outputs)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Element types of all tensors around the operation, each once, sorted."""
        around = (*self.inputs, *self.outputs)
        return tuple(sorted({type_.dtype for type_ in around if isinstance(type_, TensorType)}))

    def attr(self, name: str) -> Attribute | None:
        """Return an attribute, or None where it is absent."""
        return self.call.attr(name)

    @property
    def dtype(self) -> str:
        """Element type of the first result; '' where it is unknown or no tensor."""
        type_ = self.outputs[0] if self.outputs else None
        return type_.dtype if isinstance(type_, TensorType) else ""

    @property
    def opset(self) -> int:
        """Version of the operator set that the operation belongs to; 0 where none is stated."""
        domain, _, _ = self.kind.rpartition("::")
        return self.opsets.get(domain, 0)

    def operand(self, index: int) -> str:
        """Return the name of an operand; '' where it is absent."""
        return self.call.inputs[index] if index < len(self.call.inputs) else ""

    def tensor(self, index: int) -> TensorType | None:
        """Return the type of an operand; None where it is absent, no tensor, or nothing is known."""
        type_ = self.types.get(self.operand(index))
        return type_ if isinstance(type_, TensorType) else None

    def constant(self, index: int) -> np.ndarray[Any, Any] | None:
        """Return the elements of an operand that is a constant, else None."""
        constant = self.constants.get(self.operand(index))
        return None if constant is None else constant.data

    def is_constant(self, index: int) -> bool:
        """Whether an operand is a constant (or absent)."""
        return not self.operand(index) or self.operand(index) in self.constants

    def is_read(self, index: int) -> bool:
        """Whether anything reads a result; an absent one is never read."""
        return index < len(self.call.outputs) and self.call.outputs[index].name in self.read

    def nested(self) -> Iterator[Op]:
        """Yield the operations of nested bodies, which also see the values around this one."""
        for _, body in self.call.regions:
            types = ChainMap(dict(body.types), dict(self.types))
            constants = ChainMap({constant.name: constant for constant in body.constants}, dict(self.constants))
            read = frozenset(body.results).union(*(call.uses() for call in body.body))
            for call in body.body:
                yield Op(call, types, constants, read, self.opsets)
