"""What a code generator takes: the protocol that authors of external code generators write.

A strategy answers one question per operation, "can you take this?", with None or with a `Reject` that says why
not. It is found by the entry-point group `tvmtarget.strategies`, under the name of the target kind it speaks for.

    from tvmtarget import Strategy, reject

    class Npu(Strategy):
        ops = frozenset({"Conv", "Relu", "MatMul"})

        def check_op(self, op):
            if op.inputs[0].dtype != "float16":
                return reject("DTYPE", op.inputs[0].dtype, hint="cast to float16")
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from tvmtarget import plugins
from tvmtarget.errors import TargetError
from tvmtarget.ir.function import Attribute, Call, Constant
from tvmtarget.ir.types import OpaqueType, TensorType, Type

__all__ = ["Code", "Op", "Reject", "Strategy", "reject", "strategy_for"]

Code: TypeAlias = Literal[
    "NO_RULE",
    "RULE",
    "DTYPE",
    "RANK",
    "SHAPE_DYNAMIC",
    "ATTR",
    "NEED_CONST",
    "NON_TENSOR",
    "CONTROL_FLOW",
    "CONSTRAINT",
]


@dataclass(frozen=True, slots=True)
class Reject:
    """A refusal: its code, what was seen, and what would help."""

    code: Code
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" + (f"; {self.hint}" if self.hint else "")


def reject(code: Code, message: str, *, hint: str = "") -> Reject:
    """Refuse an operation, saying why."""
    return Reject(code, message, hint)


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


class Strategy:
    """What one code generator takes; subclass, fill the tables, refine `check_op`.

    ops: operators taken, or None for all; refused: operators not taken although they are in `ops`, with the reason.
    dtypes: element types taken, or None for all. regions: `superstep` puts operations that do not feed each other
    into one function, `single` makes a function of each.
    """

    ops: ClassVar[frozenset[str] | None] = None
    refused: ClassVar[Mapping[str, str]] = {}
    dtypes: ClassVar[frozenset[str] | None] = None
    takes_control_flow: ClassVar[bool] = False
    takes_non_tensors: ClassVar[bool] = False
    regions: ClassVar[Literal["superstep", "single"]] = "superstep"
    takes: ClassVar[Literal["mixed", "device"]] = "mixed"

    def check(self, op: Op) -> Reject | None:
        """Return None if this can take the operation, else why not."""
        if op.call.op == "tt.copy":
            return None
        if self.ops is not None and op.kind not in self.ops:
            return reject("NO_RULE", f"it has no rule for {op.kind}")
        if op.kind in self.refused:
            return reject("RULE", self.refused[op.kind])
        if op.call.regions and not self.takes_control_flow:
            return reject("CONTROL_FLOW", f"it takes no control flow, and {op.kind} has nested bodies")
        around = (*op.inputs, *op.outputs)
        opaque = next((type_ for type_ in around if isinstance(type_, OpaqueType)), None)
        if opaque is not None and not self.takes_non_tensors:
            return reject("NON_TENSOR", f"it takes tensors only, not {opaque}")
        foreign = [] if self.dtypes is None else [dtype for dtype in op.dtypes if dtype not in self.dtypes]
        if foreign:
            return reject(
                "DTYPE", f"it takes no {foreign[0]}", hint="cast to one of " + ", ".join(sorted(self.dtypes or ()))
            )
        return self.check_op(op)

    def check_op(self, op: Op) -> Reject | None:
        """Refine the tables; called for operations that they let pass."""
        return None


@cache
def strategy_for(kind: str) -> Strategy | None:
    """Return the strategy registered for a target kind, or None if there is none."""
    if kind not in plugins.names("tvmtarget.strategies"):
        return None
    found = plugins.load("tvmtarget.strategies", kind)
    strategy = found() if isinstance(found, type) else found
    if not isinstance(strategy, Strategy):
        raise TargetError(f"strategy {kind!r} is {found!r}; it should be a tvmtarget.Strategy")
    return strategy
