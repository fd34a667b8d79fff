"""The algebra of CPU features: what follows from what, in any order.

A feature that is added brings all it needs; one that is removed takes with it all that need it. So the result is
closed, and the same for every order in which it is written. Adding a feature and removing one that it needs is a
contradiction, unless the added one is a level: a version of the Arm architecture or a RISC-V profile is a model, as a
CPU is, and `+v8.6a,-i8mm` means version 8.6 without i8mm (LLVM's `-mattr=+v8.6a,-i8mm`, GCC's and clang's
`-march=armv8.6-a+noi8mm`). LLVM clears what implies a removed feature (`ClearImpliedBits`, llvm/lib/MC/
MCSubtargetInfo.cpp), so the level itself is no longer listed among the features. The tables are data
(`data/features.json`, derived from LLVM by `tests/tools/derive_features.py`), read at first use.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

__all__ = ["FeatureTable", "families", "table_of"]

# Names that LLVM lists among the features and that stand for an architecture version or profile.
_LEVELS = {
    "aarch64": re.compile(r"v[89](\.[0-9]+)?[ar]"),
    "arm": re.compile(r"armv.*|v[4-9](\.[0-9]+)?(t|te|t2|k|a|m|m\.main)?"),
    "riscv": re.compile(r"rv[abim][0-9]*[us](32|64)"),
}


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """What LLVM knows of one family of CPUs.

    Args:
        family: x86, aarch64, arm, riscv, hexagon or wasm.
        implies: the features of the instruction set, and which others each one needs directly.
        cpus: a CPU's features, of which the others follow.
        baselines: the same by architecture, for code that names no CPU.
        system: those features that are for kernels, or that a hypervisor hides; no level asks for them.
        tuning: names LLVM lists among the features that change no code's legality.
    """

    family: str
    implies: Mapping[str, tuple[str, ...]]
    cpus: Mapping[str, tuple[str, ...]]
    baselines: Mapping[str, tuple[str, ...]]
    system: frozenset[str]
    tuning: frozenset[str]

    @cached_property
    def needed_by(self) -> Mapping[str, tuple[str, ...]]:
        """Which features need each one directly."""
        found: dict[str, list[str]] = {name: [] for name in self.implies}
        for name, needs in self.implies.items():
            for need in needs:
                found[need].append(name)
        return {name: tuple(needing) for name, needing in found.items()}

    @cached_property
    def _of_cpus(self) -> dict[str, frozenset[str]]:
        """What CPUs have, of those that were asked for."""
        return {}

    def need(self, names: Iterable[str]) -> frozenset[str]:
        """Return features and all that they need; a name that is in no table needs nothing."""
        return _reach(names, self.implies)

    def gone(self, names: Iterable[str]) -> frozenset[str]:
        """Return features and all that need them: what goes when they are removed."""
        return _reach(names, self.needed_by)

    def of_cpu(self, cpu: str) -> frozenset[str]:
        """Return all that a CPU has; nothing for one that is in no table."""
        if cpu not in self.cpus:
            return frozenset()
        if cpu not in self._of_cpus:
            self._of_cpus[cpu] = self.need(self.cpus[cpu])
        return self._of_cpus[cpu]

    def is_level(self, name: str) -> bool:
        """Whether a feature stands for a version of the architecture or a profile, from which features may be taken."""
        pattern = _LEVELS.get(self.family)
        return name in self.implies and pattern is not None and pattern.fullmatch(name) is not None

    def level(self, cpu: str) -> frozenset[str]:
        """Return what code for a CPU may take for granted: what it has, without what hypervisors hide."""
        return self.of_cpu(cpu) - self.system

    def combine(self, model: Iterable[str], added: Iterable[str], removed: Iterable[str]) -> frozenset[str]:
        """Return what a model has when features are added and removed; ask `contradictions` first."""
        return (self.need(model) | self.need(added)) - self.gone(removed)

    def contradictions(self, added: Iterable[str], removed: Iterable[str]) -> Iterator[str]:
        """Yield a message for each feature that needs one which is removed; a level only needs older levels."""
        off = sorted(set(removed))
        levels = [name for name in off if self.is_level(name)]
        for name in sorted(set(added)):
            blocking = levels if self.is_level(name) else off
            if name in off:
                yield f"feature {name!r} is both added and removed"
            elif name in self.gone(blocking):
                other, chain = next((o, c) for o in blocking if (c := self.chain(name, o)))
                yield (
                    f"features +{name} and -{other} contradict: +{name} needs {', '.join(chain)}, "
                    f"which -{other} removes"
                )

    def chain(self, name: str, needed: str) -> tuple[str, ...]:
        """Return the shortest way from a feature to one it needs, that one last; empty if it does not."""
        ways: deque[tuple[str, ...]] = deque([(name,)])
        seen = {name}
        while ways:
            way = ways.popleft()
            for need in self.implies.get(way[-1], ()):
                if need == needed:
                    return (*way[1:], need)
                if need not in seen:
                    seen.add(need)
                    ways.append((*way, need))
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
    data = json.loads(files("tvmtarget.target.cpu").joinpath("data/features.json").read_text(encoding="utf-8"))
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
    """List the families that have a table."""
    return tuple(_tables())


def table_of(family: str) -> FeatureTable | None:
    """Return the table of a family, or None for one that has none."""
    return _tables().get(family)
