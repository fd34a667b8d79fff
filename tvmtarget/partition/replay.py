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
        allowed = tuple(self._narrowed(level, atom) for atom in range(len(level.atoms)))
        return self.choose(replace(level, allowed=allowed))

    def _narrowed(self, level: Level, atom: int) -> tuple[int, ...]:
        had = {self.sites.get(self.names[index]) for index in level.atoms[atom]}
        kept = [
            option
            for option in level.allowed[atom]
            if all(leaf is not None and _leads_to(level, option, leaf) for leaf in had)
        ]
        return tuple(kept) or level.allowed[atom]


def _leads_to(level: Level, option: int, path: str) -> bool:
    """Whether an option is, or has in it, a node; the level's own site, which runs control flow, only is itself."""
    site = level.options[option]
    return path == site.path if site is level.site else is_below(path, site.path)
