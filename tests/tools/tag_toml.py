"""Writing tag files: TOML of plain values, and the machines that clouds lend, as flat JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

MIB = 1 << 20
KEYS = {"x86_64": ["x86", "cpu"], "aarch64": ["arm_cpu", "cpu"], "arm64": ["arm_cpu", "cpu"]}
CONFIDENCES = ("measured", "vendor", "derived", "assumed")


def key(name: str) -> str:
    """Spell a key, quoted where it must be."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def inline(value: object) -> str:
    """Spell a value on one line."""
    if isinstance(value, Mapping):
        items = ", ".join(f"{key(name)} = {inline(item)}" for name, item in value.items())
        return f"{{ {items} }}" if items else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(inline, value))}]"
    return json.dumps(value, ensure_ascii=False)


def table(name: str, values: Mapping[str, object], *, long: tuple[str, ...] = ("targets",)) -> str:
    """Spell a table; lists of the keys in `long` get a line for each item."""
    lines = [f"[{name}]"]
    for field, value in values.items():
        if field in long and isinstance(value, list):
            lines += [f"{key(field)} = [", *(f"  {inline(item)}," for item in value), "]"]
        else:
            lines.append(f"{key(field)} = {inline(value)}")
    return "\n".join(lines) + "\n"


def cpu(triple: str, mcpu: str, hidden: Iterable[str] = ()) -> dict[str, object]:
    """Return the CPU of a machine as flat JSON; `hidden` are features of the CPU that guests do not have."""
    keys = KEYS[triple.partition("-")[0]]
    mattr = {"mattr": [f"-{feature}" for feature in hidden]} if hidden else {}
    return {"name": "cpu", "kind": "llvm", "keys": keys, "mtriple": triple, "mcpu": mcpu, **mattr}


def machine(*children: Mapping[str, object]) -> dict[str, object]:
    """Return a system driven by its CPU."""
    return {"kind": "composite", "host": "@cpu", "targets": list(children)}


def cluster(tag: str, gigabits: int) -> dict[str, object]:
    """Return two nodes of a tag; the link carries what the network cards of a node do together, each way."""
    return {
        "kind": "composite",
        "host": "@node.0/cpu",
        "targets": [{"name": "node", "tag": tag, "count": 2}],
        "links": [{"src": "node", "dst": "node", "bandwidth_Bps": gigabits * 10**9 // 8}],
    }


def dram(mib: int, *, alone: bool) -> list[dict[str, object]]:
    """Return the memory of a machine; `alone` says that its CPU has it alone, and no device shares it."""
    memory: dict[str, object] = {"name": "dram", "bytes": mib * MIB}
    return [memory | ({"of": ["cpu"]} if alone else {})]


def shared(sizes: Iterable[Mapping[str, object]]) -> dict[str, object]:
    """Return the changes that all sizes have in common."""
    first, *others = sizes
    return {path: value for path, value in first.items() if all(other.get(path) == value for other in others)}


def weakest(*confidences: str) -> str:
    """Return the confidence of several facts together."""
    return max(confidences, key=CONFIDENCES.index)
