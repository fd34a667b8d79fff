"""Find LLVM's name for the cores of a captured machine, and the features that differ from that name.

Hypervisors hide flags and rename CPUs, so flags, and never the reported name, determine which instructions are legal. A
name is used if the machine has all of its features that code generators use; features that are hidden or present beyond
the name become `mattr`. Names and flags are data (`data/processors.json`, with sources); archspec orders x86 CPUs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Set
from functools import cache
from pathlib import Path
from typing import Any

from tvmtarget.target.cpu.features import FeatureTable, table_of
from tvmtarget.target.detection.cores import Cores

__all__ = ["cpu_attributes", "explicit_features"]


@cache
def _data() -> Any:  # noqa: ANN401 - JSON of our own
    return json.loads((Path(__file__).parent / "data/processors.json").read_bytes())


def cpu_attributes(cores: Cores, family: str) -> dict[str, object]:
    """Determine the CPU attributes of cores.

    Args:
        cores: One type of cores.
        family: The CPU family of the machine's triple.

    Returns:
        `mcpu` and `mattr`, as far as they are known.
    """
    table = table_of(family)
    describe = _FAMILIES.get(family)
    return {} if table is None or describe is None else describe(cores.facts, table)


def _x86(facts: Mapping[str, str], table: FeatureTable) -> dict[str, object]:
    """Use the name of the model if all its code runs here, else the newest CPU of the vendor that is fully present."""
    has, visible = _features_of_flags(table, _x86_flags(facts))
    model = _x86_model(facts)
    if model in table.cpus and table.of_cpu(model) & visible - explicit_features() <= has:
        return _attributes(model, table, has, visible)
    complete = (name for name in _x86_successors(facts) if name in table.cpus and table.of_cpu(name) & visible <= has)
    name = next(complete, None)
    return _attributes(name, table, has, visible) if name else {}


def _x86_flags(facts: Mapping[str, str]) -> frozenset[str]:
    """Return the CPU flags in Linux's names; macOS names some of them differently."""
    if "flags" in facts:
        return frozenset(facts["flags"].split())
    words = " ".join(facts.get(f"machdep.cpu.{name}", "") for name in ("features", "leaf7_features", "extfeatures"))
    flags = set(words.lower().split())
    if flags:
        from archspec.cpu.schema import TARGETS_JSON

        for darwin, linux in TARGETS_JSON["conversions"]["darwin_flags"].items():
            flags |= set(linux.split()) if flags.issuperset(darwin.split()) else set()
        # macOS does not list the flags that all Macs have.
        flags |= {"lm", "pni"} if "em64t" in flags or "ssse3" in flags else set()
    return frozenset(flags)


def _x86_vendor(facts: Mapping[str, str]) -> str:
    return facts.get("vendor_id") or facts.get("machdep.cpu.vendor", "")


def _x86_model(facts: Mapping[str, str]) -> str:
    """Return LLVM's name for the family and model numbers of a CPU; empty if unknown."""
    family = facts.get("cpu family") or facts.get("machdep.cpu.family", "")
    model = facts.get("model") or facts.get("machdep.cpu.model", "")
    for row in _data()["models"].get(_x86_vendor(facts), ()) if model.isdecimal() else ():
        of_family, models, name = row.split()
        first, _, last = models.partition("-")
        if family == of_family and int(first) <= int(model) <= int(last or first):
            return str(name)
    return ""


def _x86_successors(facts: Mapping[str, str]) -> Iterator[str]:
    """Yield the CPUs of the vendor and the generic levels in archspec's order, newest first."""
    from archspec.cpu import TARGETS, UnsupportedMicroarchitecture

    known = [target for target in TARGETS.values() if target.vendor in (_x86_vendor(facts), "generic")]
    for target in sorted(known, key=lambda target: (len(target.ancestors), len(target.features)), reverse=True):
        if str(target.family) == "x86_64":
            try:
                flags = target.optimization_flags("clang", "99")
            except UnsupportedMicroarchitecture:
                continue
            yield from re.findall(r"-march=(\S+)", flags)


def _aarch64(facts: Mapping[str, str], table: FeatureTable) -> dict[str, object]:
    brand = facts.get("machdep.cpu.brand_string", "")
    if brand.startswith("Apple"):
        # The first of these reported 'Apple processor'. A newer one than the table gets the newest known name.
        number = re.search(r"M([0-9]{1,4})", brand)
        generation = max(1, int(number[1]) if number else 1)
        names = {int(first): name for first, name in _data()["apple"].items()}
        return {"mcpu": names[max(first for first in names if first <= generation)]}
    return _arm(facts, table)


def _arm(facts: Mapping[str, str], table: FeatureTable) -> dict[str, object]:
    """Name a core by its implementer and part number, and correct the features by the flags."""
    parts = _data()["parts"].get(facts.get("CPU implementer", ""), {})
    name = parts.get(facts.get("CPU part", ""), "generic")
    flags = frozenset(facts.get("Features", "").split())
    if not flags:
        return {"mcpu": name} if name in table.cpus and name != "generic" else {}
    return _attributes(name if name in table.cpus else "generic", table, *_features_of_flags(table, flags))


def _riscv(facts: Mapping[str, str], table: FeatureTable) -> dict[str, object]:
    """Read an ISA string such as `rv64imafdc_zicsr_zba`; kernels do not list all extensions, so none is absent."""
    isa = re.match(r"rv(32|64)([a-z]+)((?:_[a-z0-9]+)*)", facts.get("isa", ""))
    if isa is None:
        return {}
    letters = isa[2].replace("g", "imafd")
    has = table.closure({*letters, *isa[3].split("_")} & table.implies.keys())
    name = _data()["riscv"].get(facts.get("uarch", ""), f"generic-rv{isa[1]}")
    return _attributes(name, table, has, frozenset())


_FAMILIES = {"x86": _x86, "aarch64": _aarch64, "arm": _arm, "riscv": _riscv}


def explicit_features() -> frozenset[str]:
    """List the features that code generators use only where a program names them.

    Returns:
        LLVM's names of features of x86.
    """
    return frozenset(_data()["explicit"].split())


def _features_of_flags(table: FeatureTable, flags: Set[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the features that flags show, and all features that flags can show.

    Neither contains system features, which hypervisors usually hide.
    """
    rows = {feature: set(needed.split()) for feature, needed in _data()["flags"][table.family].items()}
    shown = frozenset(feature for feature, needed in rows.items() if needed <= flags) - table.system
    visible = frozenset(rows) - table.system
    # A feature is legal only together with those that it implies.
    return shown - table.dependents(visible - shown), visible


def _attributes(name: str, table: FeatureTable, has: frozenset[str], visible: frozenset[str]) -> dict[str, object]:
    """Return `mcpu` with the minimal lists of added and removed features that describe the machine."""
    model = table.of_cpu(name)
    hidden = (model & visible) - has
    removed = {feature for feature in hidden if not (table.closure({feature}) - {feature}) & hidden}
    extra = has - model - explicit_features()
    added = extra - {implied for feature in extra for implied in table.closure({feature}) - {feature}}
    changes = [f"+{feature}" for feature in sorted(added)] + [f"-{feature}" for feature in sorted(removed)]
    return {"mcpu": name} | ({"mattr": changes} if changes else {})
