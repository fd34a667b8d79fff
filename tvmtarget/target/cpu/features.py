"""Implications between CPU features: the feature set of a CPU with features added and removed.

Adding a feature adds all features that it implies; removing one removes all that imply it. The result is closed under
implication and independent of the order of additions and removals. It is a contradiction to add a feature and remove
one that it implies, unless the added one is a level: a version of the Arm architecture or a RISC-V profile acts as a
CPU model, and `+v8.6a,-i8mm` means version 8.6 without i8mm (LLVM's `-mattr=+v8.6a,-i8mm`, GCC's and clang's
`-march=armv8.6-a+noi8mm`). LLVM clears the features that imply a removed one (`ClearImpliedBits`, llvm/lib/MC/
MCSubtargetInfo.cpp), so the level itself is no longer among the features. The tables are data (`data/features.json`,
derived from LLVM by `tests/tools/derive_features.py`), read at first use.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

__all__ = ["FeatureTable", "families", "table_of"]

# Architecture versions and profiles, which LLVM lists among the features.
_LEVELS = {
    "aarch64": re.compile(r"v[89](\.[0-9]+)?[ar]"),
    "arm": re.compile(r"armv.*|v[4-9](\.[0-9]+)?(t|te|t2|k|a|m|m\.main)?"),
    "riscv": re.compile(r"rv[abim][0-9]*[us](32|64)"),
}


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """The CPUs and features of one family, as LLVM defines them.

    Attributes:
        family: x86, aarch64, arm, riscv, hexagon or wasm.
        implies: The features of the instruction set, with those that each implies directly.
        cpus: The features of each CPU, without implied ones.
        baselines: The same for each architecture, for code that names no CPU.
        system: Features for kernels, and those that hypervisors hide; no level requires them.
        tuning: Names that LLVM lists among the features but that do not change which code is legal.
    """

    family: str
    implies: Mapping[str, tuple[str, ...]]
    cpus: Mapping[str, tuple[str, ...]]
    baselines: Mapping[str, tuple[str, ...]]
    system: frozenset[str]
    tuning: frozenset[str]

    @cached_property
    def implied_by(self) -> Mapping[str, tuple[str, ...]]:
        """For each feature, those that imply it directly."""
        found: dict[str, list[str]] = {name: [] for name in self.implies}
        for name, implied in self.implies.items():
            for other in implied:
                found[other].append(name)
        return {name: tuple(dependents) for name, dependents in found.items()}

    @cached_property
    def _of_cpus(self) -> dict[str, frozenset[str]]:
        """Cache of `of_cpu`."""
        return {}

    def closure(self, names: Iterable[str]) -> frozenset[str]:
        """Compute the closure of features under implication.

        Args:
            names: Names of features; unknown ones imply nothing.

        Returns:
            The features and all that they imply.
        """
        return _reach(names, self.implies)

    def dependents(self, names: Iterable[str]) -> frozenset[str]:
        """Find the features that cannot remain when some are removed.

        Args:
            names: The removed features.

        Returns:
            The features and all that imply one of them.
        """
        return _reach(names, self.implied_by)

    def of_cpu(self, cpu: str) -> frozenset[str]:
        """Look up the features of a CPU.

        Args:
            cpu: LLVM's name of the CPU.

        Returns:
            All its features, with implied ones; empty for a CPU that is not in the table.
        """
        if cpu not in self.cpus:
            return frozenset()
        if cpu not in self._of_cpus:
            self._of_cpus[cpu] = self.closure(self.cpus[cpu])
        return self._of_cpus[cpu]

    def is_level(self, name: str) -> bool:
        """Whether a feature is an architecture version or a profile.

        Args:
            name: The feature.

        Returns:
            True if features may be removed from it.
        """
        pattern = _LEVELS.get(self.family)
        return name in self.implies and pattern is not None and pattern.fullmatch(name) is not None

    def level(self, cpu: str) -> frozenset[str]:
        """Return the features that code for a CPU may use.

        Args:
            cpu: LLVM's name of the CPU.

        Returns:
            Its features without those that hypervisors hide.
        """
        return self.of_cpu(cpu) - self.system

    def combine(self, model: Iterable[str], added: Iterable[str], removed: Iterable[str]) -> frozenset[str]:
        """Compute the feature set of a model with changes that have no `contradictions`.

        Args:
            model: The features of a CPU or an architecture.
            added: Added features.
            removed: Removed features.

        Returns:
            The resulting features, closed under implication.
        """
        return (self.closure(model) | self.closure(added)) - self.dependents(removed)

    def contradictions(self, added: Iterable[str], removed: Iterable[str]) -> Iterator[str]:
        """Find added features that imply a removed one.

        Args:
            added: Added features; a level contradicts only the removal of an older level.
            removed: Removed features.

        Yields:
            A message for each, with the shortest chain of implications.
        """
        off = sorted(set(removed))
        levels = [name for name in off if self.is_level(name)]
        for name in sorted(set(added)):
            blocking = levels if self.is_level(name) else off
            if name in off:
                yield f"feature {name!r} is both added and removed"
            elif name in self.dependents(blocking):
                other, chain = next((o, c) for o in blocking if (c := self.chain(name, o)))
                yield (
                    f"features +{name} and -{other} contradict: +{name} needs {', '.join(chain)}, "
                    f"which -{other} removes"
                )

    def chain(self, name: str, implied: str) -> tuple[str, ...]:
        """Find why a feature implies another, by breadth-first search.

        Args:
            name: The feature to start from.
            implied: The feature to reach.

        Returns:
            The features after `name` on the shortest chain, with `implied` last; empty if there is none.
        """
        chains: deque[tuple[str, ...]] = deque([(name,)])
        seen = {name}
        while chains:
            chain = chains.popleft()
            for step in self.implies.get(chain[-1], ()):
                if step == implied:
                    return (*chain[1:], step)
                if step not in seen:
                    seen.add(step)
                    chains.append((*chain, step))
        return ()


def _reach(names: Iterable[str], edges: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    found, waiting = set[str](), list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(edges.get(name, ()))
    return frozenset(found)


@cache
def _tables() -> Mapping[str, FeatureTable]:
    data = json.loads((Path(__file__).parent / "data/features.json").read_bytes())
    return {family: _table(family, flat) for family, flat in data["families"].items()}


def _table(family: str, flat: Mapping[str, Mapping[str, str] | str]) -> FeatureTable:
    rows: dict[str, dict[str, tuple[str, ...]]] = {}
    words: dict[str, frozenset[str]] = {}
    for field, value in flat.items():
        if isinstance(value, str):
            words[field] = frozenset(value.split())
        else:
            rows[field] = {name: tuple(items.split()) for name, items in value.items()}
    return FeatureTable(family, **rows, **words)  # type: ignore[arg-type]


def families() -> tuple[str, ...]:
    """List the CPU families.

    Returns:
        The families with a feature table, in the order of the data.
    """
    return tuple(_tables())


def table_of(family: str) -> FeatureTable | None:
    """Look up the feature table of a family.

    Args:
        family: A CPU family, such as `x86`.

    Returns:
        The table, or None for other names.
    """
    return _tables().get(family)
