"""What a TVM module says about where its parts run, as constraints on a tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvmtarget.ir.function import Function
from tvmtarget.target.tree import Target

__all__ = ["constrained"]


def constrained(functions: Sequence[Function], attrs: Mapping[str, Any], tree: Target | None) -> tuple[Function, ...]:
    """Return the functions with constraints on nodes of a tree where TVM's annotations correspond to some."""
    return tuple(functions)
