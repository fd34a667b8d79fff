"""Versions of TVM for which targets are written, and the class of TVM's own targets; `bridge.py` converts them."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

__all__ = ["TODAY", "VERSIONS", "Version", "is_live"]

Version: TypeAlias = Literal["v0.9", "v0.19", "v0.27"]

VERSIONS: tuple[Version, ...] = get_args(Version)
TODAY: Version = "v0.27"


def is_live(source: object) -> bool:
    """Return whether a value is a live target of TVM.

    Args:
        source: any value.

    Returns:
        True for TVM's own class of targets.
    """
    return type(source).__module__.partition(".")[0] == "tvm" and hasattr(source, "export")
