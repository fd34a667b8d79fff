"""What LLVM calls the cores of a captured machine, and which features differ from what that name means.

Hypervisors hide flags and rename CPUs. So which instructions are legal is judged by the flags, never by the name that a
machine gives itself: a name is taken if all that a code generator would use of it is there, and what else is hidden
or added is written beside it. Names and flags are data
(`data/processors.json`, with sources); which x86 CPU is the successor of which is archspec's knowledge.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Set
from functools import cache
from importlib.resources import files
from typing import Any

from tvmtarget.target.cpu.features import FeatureTable, table_of
from tvmtarget.target.detection.cores import Cores

__all__ = ["processor", "unasked"]


@cache
def _data() -> Any:  # noqa: ANN401 - JSON of our own
    return json.loads(files("tvmtarget.target.detection").joinpath("data/processors.json").read_text(encoding="utf-8"))


def processor(cores: Cores, family: str) -> dict[str, object]:
    """Return `mcpu` and `mattr` of cores of a family of CPUs, as far as they are known."""
    table = table_of(family)
    describe = _FAMILIES.get(family)
    return {} if table is None or describe is None else describe(cores.facts, table)


def _x86(facts: Mapping[str, str], table: FeatureTable) -> dict[str, object]:
    """Take the name of the model if all its code runs here, else the newest of the vendor's that is there in full."""
    has, judged = _judge(table, _x86_flags(facts))
    model = _x86_model(facts)
    if model in table.cpus and table.of_cpu(model) & judged - unasked() <= has:
        return _described(model, table, has, judged)
    complete = (name for name in _x86_successors(facts) if name in table.cpus and table.of_cpu(name) & judged <= has)
    name = next(complete, None)
    return _described(name, table, has, judged) if name else {}


def _x86_flags(facts: Mapping[str, str]) -> frozenset[str]:
    """Return Linux's flags; macOS has other words for some."""
    if "flags" in facts:
        return frozenset(facts["flags"].split())
    words = " ".join(facts.get(f"machdep.cpu.{name}", "") for name in ("features", "leaf7_features", "extfeatures"))
    flags = set(words.lower().split())
    if flags:
        from archspec.cpu.schema import TARGETS_JSON

        for darwin, linux in TARGETS_JSON["conversions"]["darwin_flags"].items():
            flags |= set(linux.split()) if flags.issuperset(darwin.split()) else set()
        # What macOS does not list, because all its machines have it.
        flags |= {"lm", "pni"} if "em64t" in flags or "ssse3" in flags else set()
    return frozenset(flags)


def _x86_vendor(facts: Mapping[str, str]) -> str:
    return facts.get("vendor_id") or facts.get("machdep.cpu.vendor", "")


def _x86_model(facts: Mapping[str, str]) -> str:
    """Return the name of a CPU by its family and model, or nothing."""
    family = facts.get("cpu family") or facts.get("machdep.cpu.family", "")
    model = facts.get("model") or facts.get("machdep.cpu.model", "")
    for row in _data()["models"].get(_x86_vendor(facts), ()) if model.isdecimal() else ():
        of_family, models, name = row.split()
        first, _, last = models.partition("-")
        if family == of_family and int(first) <= int(model) <= int(last or first):
            return str(name)
    return ""


def _x86_successors(facts: Mapping[str, str]) -> Iterator[str]:
    """Yield the CPUs of a vendor, and the levels of any, as archspec orders them: the newest first."""
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
        # The first of them called themselves 'Apple processor'.
        said = re.search(r"M([0-9]{1,4})", brand)
        known = {int(number): name for number, name in _data()["apple"].items()}
        return {"mcpu": known[max(number for number in known if number <= max(1, int(said[1]) if said else 1))]}
    return _arm(facts, table)


def _arm(facts: Mapping[str, str], table: FeatureTable) -> dict[str, object]:
    """Name a core by who made it and its part number; the flags say what is switched off in it, or added."""
    parts = _data()["parts"].get(facts.get("CPU implementer", ""), {})
    name = parts.get(facts.get("CPU part", ""), "generic")
    flags = frozenset(facts.get("Features", "").split())
    if not flags:
        return {"mcpu": name} if name in table.cpus and name != "generic" else {}
    return _described(name if name in table.cpus else "generic", table, *_judge(table, flags))


def _riscv(facts: Mapping[str, str], table: FeatureTable) -> dict[str, object]:
    """Read an ISA string, as `rv64imafdc_zicsr_zba`; kernels do not list all, so what is not there is not hidden."""
    said = re.match(r"rv(32|64)([a-z]+)((?:_[a-z0-9]+)*)", facts.get("isa", ""))
    if said is None:
        return {}
    letters = said[2].replace("g", "imafd")
    has = table.closure({*letters, *said[3].split("_")} & table.implies.keys())
    name = _data()["riscv"].get(facts.get("uarch", ""), f"generic-rv{said[1]}")
    return _described(name, table, has, frozenset())


_FAMILIES = {"x86": _x86, "aarch64": _aarch64, "arm": _arm, "riscv": _riscv}


def unasked() -> frozenset[str]:
    """Return features that no code generator uses unless a program asks for them by name."""
    return frozenset(_data()["unasked"].split())


def _judge(table: FeatureTable, flags: Set[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the features that flags show with all that these need, and all those that flags could show.

    What hypervisors hide as a matter of course is in neither.
    """
    rows = {feature: set(needed.split()) for feature, needed in _data()["flags"][table.family].items()}
    shown = frozenset(feature for feature, needed in rows.items() if needed <= flags) - table.system
    judged = frozenset(rows) - table.system
    return shown - table.dependents(judged - shown), judged


def _described(name: str, table: FeatureTable, has: frozenset[str], judged: frozenset[str]) -> dict[str, object]:
    """Return a name with what there is beyond it, and without what is hidden; both as short as can be."""
    model = table.of_cpu(name)
    hidden = (model & judged) - has
    removed = {feature for feature in hidden if not (table.closure({feature}) - {feature}) & hidden}
    extra = has - model - unasked()
    added = extra - {needed for feature in extra for needed in table.closure({feature}) - {feature}}
    changes = [f"+{feature}" for feature in sorted(added)] + [f"-{feature}" for feature in sorted(removed)]
    return {"mcpu": name} | ({"mattr": changes} if changes else {})
