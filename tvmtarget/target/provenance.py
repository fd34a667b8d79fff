"""Provenance of values: the layer and the source that a value of a target comes from.

Nodes record the origins of their values (`TargetNode.with_origins`); equality and digests ignore them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tvmtarget.target.problems import shown

__all__ = ["CODE", "MEASURED", "OVERRIDE", "Layer", "Origin"]

Layer: TypeAlias = Literal["code", "text", "json", "toml", "tag", "override", "measured", "default", "derived"]


@dataclass(frozen=True, slots=True)
class Origin:
    """The layer that a value comes from, and its source: a text, tag, file or kind.

    >>> str(Origin("tag", "arm/rasp4b in arm.toml"))
    'tag arm/rasp4b in arm.toml'
    """

    layer: Layer
    detail: str = ""

    def __str__(self) -> str:
        detail = shown(self.detail) if self.layer in ("text", "json") and self.detail else self.detail
        return f"{self.layer} {detail}".rstrip()

    def to_json(self) -> dict[str, str]:
        """Return the layer, and the source as `detail` if there is one."""
        return {"layer": self.layer} | ({"detail": self.detail} if self.detail else {})


CODE = Origin("code")
OVERRIDE = Origin("override")
MEASURED = Origin("measured")
