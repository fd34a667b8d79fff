"""Matches of a strategy's patterns, as its checks see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmtarget.ir.types import TensorType, Type
from tvmtarget.support.op import Op

__all__ = ["Matched", "Operand"]


@dataclass(frozen=True, slots=True)
class Operand:
    """What a variable of a pattern stands for: a value by its name, its type, its elements if it is a constant."""

    name: str
    type: Type
    data: np.ndarray[Any, Any] | None

    @property
    def is_constant(self) -> bool:
        """Whether it is known before the program runs."""
        return self.data is not None

    @property
    def shape(self) -> tuple[int | str | None, ...] | None:
        """Its dimensions: numbers, names of symbolic ones, None for unknown ones; None if the rank is unknown."""
        return self.type.shape if isinstance(self.type, TensorType) else None

    @property
    def dtype(self) -> str:
        """Its element type; '' where that is unknown or it is no tensor."""
        return self.type.dtype if isinstance(self.type, TensorType) else ""


@dataclass(frozen=True, slots=True)
class Matched:
    """Operations that a pattern matches, in order, the root last; the variables of the pattern are attributes.

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
        """The dimensions around the operations that are not numbers: names, `?` for those without."""
        types = [type_ for op in self.ops for type_ in (*op.inputs, *op.outputs)]
        shapes = [type_.shape for type_ in types if isinstance(type_, TensorType) and type_.shape is not None]
        return tuple(dict.fromkeys(str(dim or "?") for shape in shapes for dim in shape if not isinstance(dim, int)))

    @property
    def is_dynamic(self) -> bool:
        """Whether any dimension, or a rank, around the operations is unknown before the program runs."""
        types = [type_ for op in self.ops for type_ in (*op.inputs, *op.outputs)]
        return bool(self.dynamic_dims) or any(isinstance(type_, TensorType) and type_.shape is None for type_ in types)
