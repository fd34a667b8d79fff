"""Derive `tags/gcp.toml` and `tags/azure.toml` from the tables of their machine series beside this script.

Run as `python -m tests.tools.derive_clouds`. The tables say what a series is and which types it has; here a type
becomes a tag, `gcp/n2-standard-8` or `azure/standard_d4s_v5`, with its series (`gcp/n2`, `azure/dv5`) as its base.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from . import tag_toml

HERE = Path(__file__).parent
TAGS = Path(__file__).parents[2] / "tags"
CLOUDS = {"gcp": ("Google Compute Engine", "google"), "azure": ("Azure", "microsoft")}
RETRIEVED = "2026-11-20"

Series: TypeAlias = Mapping[str, Any]

HEAD = """\
# {cloud} machines. Written by `python -m tests.tools.derive_clouds` from tests/tools/{name}_series.toml:
# change that table. A series is what all its types have; a vCPU is a hardware thread, num-cores are cores.
# The confidence of a tag is that of its weakest fact; where the CPU level was measured, the rest is the vendor's.
schema = 1
"""


def derive(name: str) -> str:
    """Return the tag file of a cloud as it is committed."""
    known = tomllib.loads((HERE / f"{name}_series.toml").read_text(encoding="utf-8"))
    cloud, vendor = CLOUDS[name]
    parts = [HEAD.format(cloud=cloud, name=name)]
    parts += [tag_toml.table(f"source.{key}", row | {"retrieved": RETRIEVED}) for key, row in known["source"].items()]
    types = ["[tag]"]
    for key, series in known["series"].items():
        device = known["device"][series["device"]] if "device" in series else None
        notes = _notes(series, device, vendor)
        parts.append(_series(f"{name}/{key}", series, device, notes | {"doc": f"{cloud} {key}"}))
        types += _types(f"{name}/{key}", series, device, notes | {"doc": cloud})
    parts += _clusters(name, known)
    parts.append("\n".join(types) + "\n")
    return "\n".join(parts).replace(f'"{RETRIEVED}"', RETRIEVED)


def _series(tag: str, series: Series, device: Series | None, notes: Mapping[str, object]) -> str:
    """Return the tag of a series."""
    triple = f"{series.get('arch', 'x86_64')}-linux-gnu"
    cpu = tag_toml.cpu(triple, series["mcpu"], series.get("hidden", ())) | {"threads-per-core": series["threads"]}
    gpu = None if device is None else device.get("target") or {"tag": device["chip"]}
    children = [{"name": "gpu", **gpu}] if gpu else []
    doc = f"{notes['doc']}: {', '.join([series['seen'], *([] if device is None else [series['device']])])}"
    return tag_toml.table(f"tag.{tag.partition('/')[2]}", {**notes, "doc": doc, **tag_toml.machine(*children, cpu)})


def _notes(series: Series, device: Series | None, vendor: str) -> dict[str, object]:
    sources = list(series.get("source", [vendor, "inspector"]))
    if device is not None:
        sources += ["chips" if "chip" in device else "cuda", *(["nvlink"] if "link" in device else [])]
    return {"doc": "", "source": sources, "confidence": series.get("confidence", "vendor")}


def _types(base: str, series: Series, device: Series | None, notes: Mapping[str, object]) -> Iterator[str]:
    """Yield a line for each type of a series: its base and what differs."""
    for spelled, vcpus, gib, devices in _sizes(series):
        alias = {"aliases": [spelled]} if spelled != spelled.lower() else {}
        changes: dict[str, object] = {
            "cpu/num-cores": vcpus // series["threads"],
            "memory": tag_toml.dram(int(gib * 1024), alone=device is not None),
        }
        changes |= {"gpu/count": devices} if devices else {}
        if device is not None and "link" in device and devices > 1:
            changes["links"] = [{"src": "gpu", "dst": "gpu", **device["link"]}]
        row = {"base": base, **notes, "doc": f"{notes['doc']} {spelled}", **alias, **changes}
        yield f"{tag_toml.key(spelled.lower())} = {tag_toml.inline(row)}"


def _clusters(name: str, known: Series) -> Iterator[str]:
    """Yield the tags of clusters; they are as sure as their nodes."""
    for key, cluster in known["cluster"].items():
        node = cluster["node"]
        series = next(series for series in known["series"].values() if node in series.get("types", {}))
        notes = {
            "doc": f"Two {node}; override node/count for more",
            "source": cluster["source"],
            "confidence": series.get("confidence", "vendor"),
        }
        yield tag_toml.table(f"tag.{key}", notes | tag_toml.cluster(f"{name}/{node.lower()}", cluster["gigabits"]))


def _sizes(series: Series) -> Iterator[tuple[str, int, float, int]]:
    """Yield name, vCPUs, GiB and devices of all types of a series."""
    for shape in series.get("shapes", ()):
        for vcpus in shape.get("vcpus", series.get("vcpus", ())):
            gib = shape["gib"] * vcpus
            yield shape["name"].format(vcpus), vcpus, int(gib) if series.get("whole") else gib, 0
    for spelled, (vcpus, gib, *devices) in series.get("types", {}).items():
        yield spelled, vcpus, gib, sum(devices)


if __name__ == "__main__":
    for cloud in CLOUDS:
        (TAGS / f"{cloud}.toml").write_text(derive(cloud), encoding="utf-8")
