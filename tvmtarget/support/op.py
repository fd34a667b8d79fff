"""What the checks of a strategy get and return: operations, matches of patterns, and rejections."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from tvmtarget.errors import TargetError, did_you_mean
from tvmtarget.ir.function import Attribute, Call, Constant, domain_of_op
from tvmtarget.ir.types import TensorType, Type
from tvmtarget.target.argument_types import check_arguments

__all__ = ["STATIC_INPUTS", "Code", "MatchedOps", "Op", "Operand", "Reject", "reject"]

# What helps where symbolic dimensions are not supported, and those of the inputs are symbolic.
STATIC_INPUTS = "give the inputs static shapes, by tt.specialize or --dim NAME=N"

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
    """A reason why something is not supported: a code, what is wrong, and what would help."""

    code: Code
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" + (f"; {self.hint}" if self.hint else "")


@check_arguments
def reject(code: Code, message: str = "", *, hint: str = "", dims: Iterable[object] = ()) -> Reject:
    """Return a reason why something is not supported.

    >>> str(reject("SHAPE_DYNAMIC", dims=("batch", "?")))
    'SHAPE_DYNAMIC: dimensions batch, ? are not known'

    Args:
        code: the class of the reason, one of `Code`.
        message: what is wrong.
        hint: what the user can do.
        dims: unknown dimensions, which are appended to the message.

    Returns:
        The reason.

    Raises:
        TargetError: there is no such code.
    """
    if code not in get_args(Code):
        raise TargetError(f"no rejection code {code!r}{did_you_mean(str(code), get_args(Code), listing='there are')}")
    listed = ", ".join(map(str, dims))
    unknown = f"dimensions {listed} are not known" if listed else ""
    return Reject(code, ": ".join(filter(None, (message, unknown))), hint)


# A strategy, an operation, and why the strategy does not support it.
_Answer: TypeAlias = tuple[object, Call, Reject | None]


@dataclass(frozen=True, slots=True)
class Op:
    """An operation and what is known of its values.

    Attributes:
        call: the operation in the function.
        types: types of the function's values, by name.
        constants: constants of the function, by name.
        read: names of the values that anything reads.
        opsets: versions of operator sets, by domain.
        known: answers about operations of nested bodies, each with the strategy and the operation, by the identities of
            both; new answers are added to them. None if they are not kept.
    """

    call: Call
    types: Mapping[str, Type]
    constants: Mapping[str, Constant]
    read: Container[str]
    opsets: Mapping[str, int]
    known: dict[tuple[int, int], _Answer] | None = field(default=None, compare=False, repr=False)

    @property
    def kind(self) -> str:
        """Name of the operator, `Conv`; outside of ONNX's own domain, `domain::Name`."""
        return self.call.op.removeprefix("onnx.")

    @property
    def inputs(self) -> tuple[Type, ...]:
        """Types of the operands, in order; None for absent and unknown ones."""
        return tuple(self.types.get(name) if name else None for name in self.call.inputs)

    @property
    def outputs(self) -> tuple[Type, ...]:
        """Types of the results, in order."""
        return tuple(output.type for output in self.call.outputs)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Element types of all tensor operands and results, each once, sorted."""
        types = (*self.inputs, *self.outputs)
        return tuple(sorted({type_.dtype for type_ in types if isinstance(type_, TensorType)}))

    def attr(self, name: str) -> Attribute | None:
        """Return an attribute.

        Args:
            name: name of the attribute.

        Returns:
            Its value, or None if it is absent.
        """
        return self.call.attr(name)

    @property
    def dtype(self) -> str:
        """Element type of the first result; '' if it is unknown or no tensor."""
        type_ = self.outputs[0] if self.outputs else None
        return type_.dtype if isinstance(type_, TensorType) else ""

    @property
    def opset(self) -> int:
        """Version of the operator set that the operation belongs to; 0 if none is stated."""
        return self.opsets.get(domain_of_op(self.call.op), 0)

    def operand(self, index: int) -> str:
        """Return the name of an operand.

        Args:
            index: number of the operand, from 0.

        Returns:
            The name of the value; '' if the operand is absent.
        """
        return self.call.inputs[index] if index < len(self.call.inputs) else ""

    def tensor(self, index: int) -> TensorType | None:
        """Return the type of an operand.

        Args:
            index: number of the operand, from 0.

        Returns:
            The tensor type; None if the operand is absent, no tensor, or of unknown type.
        """
        type_ = self.types.get(self.operand(index))
        return type_ if isinstance(type_, TensorType) else None

    def constant(self, index: int) -> np.ndarray[Any, Any] | None:
        """Return the elements of a constant operand.

        Args:
            index: number of the operand, from 0.

        Returns:
            The array; None if the operand is absent or computed at run time.
        """
        constant = self.constants.get(self.operand(index))
        return None if constant is None else constant.data

    def is_constant(self, index: int) -> bool:
        """Return whether an operand is a constant or absent.

        Args:
            index: number of the operand, from 0.

        Returns:
            False if the operand is computed at run time.
        """
        return not self.operand(index) or self.operand(index) in self.constants

    def is_read(self, index: int) -> bool:
        """Return whether anything reads a result.

        Args:
            index: number of the result, from 0.

        Returns:
            False also for absent results.
        """
        return index < len(self.call.outputs) and self.call.outputs[index].name in self.read

    def nested(self) -> Iterator[Op]:
        """List the operations of nested bodies, which can also read the values around this one.

        Yields:
            The operations, body by body, in order.
        """
        for _, body in self.call.regions:
            # Names of the inner body hide equal names around it.
            types = {**self.types, **body.types}
            constants = {**self.constants, **{constant.name: constant for constant in body.constants}}
            read = frozenset(body.results).union(*(call.uses() for call in body.body))
            for call in body.body:
                yield Op(call, types, constants, read, self.opsets, self.known)


@dataclass(frozen=True, slots=True)
class Operand:
    """The value that a variable of a pattern denotes; `data` is None if it is no constant."""

    name: str
    type: Type
    data: np.ndarray[Any, Any] | None

    @property
    def is_constant(self) -> bool:
        """Whether the value is known before the program runs."""
        return self.data is not None

    @property
    def shape(self) -> tuple[int | str | None, ...] | None:
        """Dimensions: numbers, names of symbolic ones, None for unknown ones; None if the rank is unknown."""
        return self.type.shape if isinstance(self.type, TensorType) else None

    @property
    def dtype(self) -> str:
        """Element type; '' if it is unknown or the value is no tensor."""
        return self.type.dtype if isinstance(self.type, TensorType) else ""


@dataclass(frozen=True, slots=True)
class MatchedOps:
    """Operations that a pattern matches, in order, the root last; the pattern's variables are attributes.

    With the pattern `relu(conv(x, w, ...))`, `m.w.shape` is the shape of the weights and `m.root` the Relu.
    """

    pattern: str
    ops: tuple[Op, ...]
    values: Mapping[str, Operand]

    @property
    def root(self) -> Op:
        """The operation whose results leave the match."""
        return self.ops[-1]

    def __getattr__(self, name: str) -> Operand:
        if name in self.values:
            return self.values[name]
        raise AttributeError(f"pattern {self.pattern!r} has no variable {name!r}; it has {', '.join(self.values)}")

    @property
    def dynamic_dims(self) -> tuple[str, ...]:
        """Dimensions of all operands and results that are not numbers: names, and `?` for unnamed ones."""
        types = [type_ for op in self.ops for type_ in (*op.inputs, *op.outputs)]
        shapes = [type_.shape for type_ in types if isinstance(type_, TensorType) and type_.shape is not None]
        return tuple(dict.fromkeys(str(dim or "?") for shape in shapes for dim in shape if not isinstance(dim, int)))

    @property
    def is_dynamic(self) -> bool:
        """Whether any dimension, or a rank, of an operand or result is unknown before the program runs."""
        types = [type_ for op in self.ops for type_ in (*op.inputs, *op.outputs)]
        return bool(self.dynamic_dims) or any(isinstance(type_, TensorType) and type_.shape is None for type_ in types)
