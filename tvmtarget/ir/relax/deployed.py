"""A decomposed module in TVM's terms: outlined functions of external generators, virtual devices, targets of code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvmtarget.ir.function import Function
from tvmtarget.target.tree import Target

__all__ = ["deployed"]


def deployed(
    functions: Sequence[Function], attrs: Mapping[str, Any], tree: Target | None
) -> tuple[tuple[Function, ...], Mapping[str, Any]]:
    """Return functions and attributes as TVM wants them; a module that no one decomposed is as it was."""
    return tuple(functions), attrs
