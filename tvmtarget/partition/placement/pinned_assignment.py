"""Decisions that are kept: a plan in a file, and its sites given to a program that was edited since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tvmtarget.partition.placement.level import Assignment, Chooser, Level
from tvmtarget.target.topology import Site, is_below

__all__ = ["PinnedChooser"]


@dataclass(frozen=True)
class PinnedChooser:
    """A chooser (see `split`) that keeps the leaves that operations had, by name, wherever they are still allowed.

    `names[i]` is the name of operation `i`. What is new, or no longer allowed where it was, is left to another chooser.
    """

    sites: Mapping[str, str]
    names: tuple[str, ...]
    choose: Chooser

    def __call__(self, level: Level) -> Assignment:
        """Choose a site for every atom of a level."""
        allowed = level.allowed.copy()
        for number, atom in enumerate(level.atoms):
            had = {self.sites.get(self.names[index]) for index in atom}
            kept = [all(leaf is not None and _leads_to(level, site, leaf) for leaf in had) for site in level.options]
            if (allowed[number] & kept).any():
                allowed[number] &= kept
        choice = self.choose(replace(level, allowed=allowed))
        if choice.least_time is None or (allowed == level.allowed).all():
            return choice
        return replace(choice, least_time=self.choose(level).least_time)  # of all choices, not of those that keep


def _leads_to(level: Level, site: Site, path: str) -> bool:
    """Whether an option is, or has in it, a node; the level's own site, which runs control flow, only is itself."""
    return path == site.path if site.path == level.site.path else is_below(path, site.path)
