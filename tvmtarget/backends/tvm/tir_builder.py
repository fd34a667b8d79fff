"""Statements of TIR: what functions that are written as loops share.

TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeAlias

__all__ = ["FUSES_WHAT_FOLLOWS", "OPAQUE", "TirBuilder"]

Buffer: TypeAlias = Any
Expr: TypeAlias = Any
Stmt: TypeAlias = Any

FUSES_WHAT_FOLLOWS = 4  # TVM's kOutEWiseFusable, such as a product and what is computed of each of its elements
OPAQUE = 8  # TVM's kOpaque, an operator that is fused with no other


class TirBuilder:
    """Builds loops, and names their variables."""

    def __init__(self) -> None:
        import tvm

        self.tvm = tvm
        self.tirx = tvm.tirx
        self._numbers = itertools.count()

    def number(self, value: int, dtype: str = "int64") -> Expr:
        """Make a whole number.

        Args:
            value: the number.
            dtype: its type.

        Returns:
            The number as an expression.
        """
        return self.tirx.IntImm(dtype, value)

    def loop(self, extent: Any, body: Callable[[Expr], Stmt | list[Stmt]], kind: str = "SERIAL") -> Stmt:  # noqa: ANN401
        """Make a loop from 0.

        Args:
            extent: the number of iterations, a number or an expression.
            body: makes the statements of an iteration from the variable of the loop.
            kind: one of TVM's kinds of loops.

        Returns:
            The loop.
        """
        at = self.tirx.Var(f"i{next(self._numbers)}", "int64")
        extent = self.number(extent) if isinstance(extent, int) else extent
        return self.tirx.For(at, self.number(0), extent, getattr(self.tirx.ForKind, kind), self.sequence(body(at)))

    def sequence(self, body: Stmt | list[Stmt]) -> Stmt:
        """Join statements.

        Args:
            body: one statement, or several in order.

        Returns:
            One statement.
        """
        if not isinstance(body, list):
            return body
        return self.tirx.SeqStmt(body) if len(body) > 1 else body[0]

    def store(self, buffer: Buffer, value: Expr, *at: Expr) -> Stmt:
        """Assign to an element.

        Args:
            buffer: the buffer.
            value: the new value.
            *at: the place of the element.

        Returns:
            The assignment.
        """
        return self.tirx.BufferStore(buffer, value, list(at))

    def require(self, condition: Expr, kind: str, message: str) -> Stmt:
        """Fail unless a condition holds.

        Args:
            condition: the condition.
            kind: the type of the error, such as `IndexError`.
            message: its text.

        Returns:
            The statement.
        """
        text = self.tvm.ir.StringImm
        parts = {"error_kind": text(kind), "message_parts": [text(message)]}
        return self.tvm.ir.make_node("tirx.AssertStmt", condition=condition, **parts, span=None)

    def local(self, size: int, dtype: str, name: str) -> tuple[Stmt, Buffer]:
        """Declare a vector of local memory.

        Args:
            size: number of elements.
            dtype: their type.
            name: what its name begins with.

        Returns:
            The declaration, and the vector.
        """
        buffer = self.tirx.decl_buffer([size], dtype, f"{name}{next(self._numbers)}", scope="local")
        return self.tirx.AllocBuffer(buffer), buffer
