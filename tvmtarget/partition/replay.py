"""Decisions that are kept: a plan in a file, and its sites given to a program that was edited since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tvmtarget.errors import InfeasibleError
from tvmtarget.partition.split import Choice, Chooser, Level
from tvmtarget.target.layout import is_below

__all__ = ["Given", "Keeping"]


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
            if all(leaf is not None and is_below(leaf, level.options[option].path) for leaf in had)
        ]
        return tuple(kept) or level.allowed[atom]


@dataclass(frozen=True)
class Given:
    """A chooser that takes the leaf that is given for every operation, by number, or refuses."""

    sites: tuple[str, ...]
    names: tuple[str, ...]

    def __call__(self, level: Level) -> Choice:
        """Choose the given site for every atom of a level; `InfeasibleError` where it is not allowed."""
        return Choice([self._of(level, atom) for atom in range(len(level.atoms))])

    def _of(self, level: Level, atom: int) -> int:
        first = level.atoms[atom][0]
        for option in level.allowed[atom]:
            if is_below(self.sites[first], level.options[option].path):
                return option
        raise InfeasibleError(f"op {self.names[first]!r} may not go to @{self.sites[first] or '.'}")
