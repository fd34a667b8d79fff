"""Where the values of a tree come from: kept beside the tree, never part of what it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tvmtarget.target.problems import shown

__all__ = ["CODE", "MEASURED", "OVERRIDE", "Layer", "Origin"]

Layer: TypeAlias = Literal["code", "text", "json", "toml", "tag", "override", "measured", "default", "derived"]


@dataclass(frozen=True, slots=True)
class Origin:
    """The layer that gave a value, and the text, tag, file or kind in which it stands.

    >>> str(Origin("tag", "arm/rasp4b in arm.toml"))
    'tag arm/rasp4b in arm.toml'
    """

    layer: Layer
    detail: str = ""

    def __str__(self) -> str:
        detail = shown(self.detail) if self.layer in ("text", "json") and self.detail else self.detail
        return f"{self.layer} {detail}".rstrip()

    def to_json(self) -> dict[str, str]:
        """Return the layer, and the detail where there is one."""
        return {"layer": self.layer} | ({"detail": self.detail} if self.detail else {})


CODE = Origin("code")
OVERRIDE = Origin("override")
MEASURED = Origin("measured")
