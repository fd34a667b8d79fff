"""Decisions that are kept: a plan in a file, and its sites given to a program that was edited since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tvmtarget.partition.split import Choice, Chooser, Level
from tvmtarget.target.layout import is_below

__all__ = ["Keeping"]


@dataclass(frozen=True)
class Keeping:
    """A chooser (see `split`) that keeps the leaves that operations had, by name, wherever they are still allowed.

    `names[i]` is the name of operation `i`. What is new, or no longer allowed where it was, is left to another chooser.
    """

    sites: Mapping[str, str]
    names: tuple[str, ...]
    choose: Chooser

    def __call__(self, level: Level) -> Choice:
        """Choose a site for every atom of a level."""
        allowed = level.allowed.copy()
        for number, atom in enumerate(level.atoms):
            had = {self.sites.get(self.names[index]) for index in atom}
            kept = [all(leaf is not None and is_below(leaf, site.path) for leaf in had) for site in level.options]
            if (allowed[number] & kept).any():
                allowed[number] &= kept
        return self.choose(replace(level, allowed=allowed))
