"""Derive `tags/aws.ec2.toml`: every instance type of Amazon EC2, from the records that moto carries.

Run as `python -m tests.tools.derive_ec2` with moto installed. What moto does not say is in `ec2_families.toml`
(CPU levels, devices, corrections); types that Amazon no longer lists are in `ec2_retired.json`.
"""

from __future__ import annotations

import gzip
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

from . import tag_toml

HERE = Path(__file__).parent
TAGS = Path(__file__).parents[2] / "tags" / "aws.ec2.toml"
MOTO = "5.2.5"
RETRIEVED = "2026-11-20"

Record: TypeAlias = Mapping[str, Any]

HEAD = f"""\
# Amazon EC2 instances. Written by `python -m tests.tools.derive_ec2`: change that, or the tables beside it.
# Cores, threads, memory and devices: PyPI package moto {MOTO} (Apache License 2.0). CPU levels: ec2_families.toml.
# The confidence of a tag is that of its weakest fact. A family is what all its sizes have, a size what differs.
# The network of one instance has one end here, so it is left out; clusters have links between their nodes.
schema = 1
"""

# What moto's architectures mean, and the CPU level that each of their machines has.
_TRIPLES = {
    "x86_64": ("x86_64-linux-gnu", "x86-64"),
    "arm64": ("aarch64-linux-gnu", "generic"),
    "x86_64_mac": ("x86_64-apple-macos", "x86-64"),
    "arm64_mac": ("arm64-apple-macos", "generic"),
}

# Where moto has devices: the section, its list, and whether their names need the manufacturer's.
_DEVICES = (
    ("GpuInfo", "Gpus", True),
    ("NeuronInfo", "NeuronDevices", False),
    ("InferenceAcceleratorInfo", "Accelerators", True),
    ("FpgaInfo", "Fpgas", True),
    ("MediaAcceleratorInfo", "Accelerators", True),
)


def installed() -> str | None:
    """Return the version of moto that is installed, if any."""
    try:
        return metadata.version("moto")
    except metadata.PackageNotFoundError:
        return None


def derive() -> str:
    """Return the tag file as it is committed."""
    known = tomllib.loads((HERE / "ec2_families.toml").read_text(encoding="utf-8"))
    retired = json.loads((HERE / "ec2_retired.json").read_text(encoding="utf-8"))
    records: dict[str, Record] = dict(sorted({**retired["types"], **_moto()}.items()))
    for type_, correction in known["correction"].items():
        records[type_] = {**records[type_], **correction}
    families: dict[str, dict[str, Record]] = {}
    for type_ in sorted(records, key=lambda type_: (type_.partition(".")[0], _order(type_, records[type_]))):
        family, _, size = type_.partition(".")
        families.setdefault(family, {})[size] = records[type_]
    sources = {
        "moto": {"cite": f"PyPI package moto {MOTO}: moto/ec2/resources/instance_types.json"},
        "retired": {"cite": f"PyPI package {retired['source']}"},
        **known["source"],
    }
    parts = [tag_toml.table(f"source.{name}", {**row, "retrieved": RETRIEVED}) for name, row in sources.items()]
    for family, sizes in families.items():
        gone = [f"{family}.{size}" in retired["types"] for size in sizes]
        parts += _family(family, sizes, known, ["moto"] * (not all(gone)) + ["retired"] * any(gone))
    parts += [_cluster(name, type_, records[type_], known) for name, type_ in known["cluster"].items()]
    return "\n".join([HEAD, *parts]).replace(f'"{RETRIEVED}"', RETRIEVED)


def _moto() -> dict[str, Record]:
    """Read moto's data file; moto is not imported, so that what it needs need not be installed."""
    path = metadata.distribution("moto").locate_file("moto/ec2/resources/instance_types.json.gz")
    return json.loads(gzip.decompress(Path(str(path)).read_bytes()))


def _order(type_: str, record: Record) -> tuple[bool, int, int, str]:
    return "metal" in type_, record["VCpuInfo"]["DefaultCores"], record["MemoryInfo"]["SizeInMiB"], type_


def _family(family: str, sizes: Mapping[str, Record], known: Record, sources: list[str]) -> Iterator[str]:
    """Yield the tag of a family, which says what all sizes have, and the table of what differs."""
    level, device = _level(family, known), _device(next(iter(sizes.values())), known)
    changes = {size: _changes(size, record, level, known) for size, record in sizes.items()}
    common = tag_toml.shared(changes.values())
    own = {size: {path: value for path, value in row.items() if path not in common} for size, row in changes.items()}
    tvm = {size: known["tvm"].get(f"{family}.{size}", {}) for size in sizes}
    seen = level["seen"] if level else "a CPU of an unknown level"
    notes = {
        "doc": f"Amazon EC2 {family}: {', '.join([seen, *([device['name']] if device else [])])}",
        "source": [*sources, *dict.fromkeys(_cited(level, device)), *(["tvm"] if any(tvm.values()) else [])],
        "confidence": _confidence(level),
    }
    arch = next(iter(sizes.values()))["ProcessorInfo"]["SupportedArchitectures"][-1]
    yield tag_toml.table(f"tag.{family}", notes | _whole(arch, level, device, common))
    yield tag_toml.table(f"family.{family}.sizes", {size: row | tvm[size] for size, row in own.items()})


def _whole(arch: str, level: Record | None, device: Record | None, common: Record) -> dict[str, object]:
    """Return what all sizes of a family have, as flat JSON."""
    triple, mcpu = _TRIPLES[arch]
    named = (level["mcpu"], level.get("hidden", ())) if level else (mcpu,)
    children = [{"name": device["slot"], **device["target"], **_below(device["slot"], common)}] if device else []
    rest = {name: value for name, value in common.items() if "/" not in name}
    return tag_toml.machine(*children, tag_toml.cpu(triple, *named) | _below("cpu", common)) | rest


def _level(family: str, known: Record) -> Record | None:
    """Return what is known about the CPUs of a family."""
    return next((row for row in known["cpu"] if family in row["families"].split()), None)


def _confidence(level: Record | None) -> str:
    """Return the confidence of a vendor's facts together with a CPU level."""
    return tag_toml.weakest("vendor", level.get("confidence", "measured") if level else "assumed")


def _cited(level: Record | None, device: Record | None) -> Iterator[str]:
    """Yield the sources of a family beside moto."""
    if level:
        yield level.get("source", "inspector")
    if device:
        also = {"source": device.get("source"), "visible": "inspector", "link": "nvlink"}
        yield from (source for field, source in also.items() if field in device)


def _changes(size: str, record: Record, level: Record | None, known: Record) -> dict[str, object]:
    """Return what one size says, by path."""
    device = _device(record, known)
    cores = record["VCpuInfo"]
    mcpu = level.get("sizes", {}).get(size) if level else None
    changes: dict[str, object] = {
        "cpu/num-cores": cores["DefaultCores"],
        "cpu/threads-per-core": cores["DefaultThreadsPerCore"],
        "memory": tag_toml.dram(record["MemoryInfo"]["SizeInMiB"], alone=device is not None),
    }
    changes |= {"cpu/mcpu": mcpu} if mcpu else {}
    if device is None:
        return changes
    slot, count = device["slot"], device["count"]
    changes[f"{slot}/count"] = count
    changes |= {f"{slot}/memory": [device["memory"]]} if "memory" in device else {}
    changes |= {"links": [{"src": slot, "dst": slot, **device["link"]}]} if count > 1 and "link" in device else {}
    return changes


def _device(record: Record, known: Record) -> dict[str, Any] | None:
    """Return what is known about the devices of a record: slot, target, count and memory."""
    for section, field, has_manufacturer in _DEVICES:
        for row in record.get(section, {}).get(field, ()):
            name = f"{row['Manufacturer']} {row['Name']}" if has_manufacturer else row["Name"]
            spec = {"slot": "gpu", **known["device"][name]}
            count = row.get("LogicalGpuCount", row["Count"])
            return {**spec, "name": name, "count": count, **_target(spec, row)}
    return None


def _target(spec: Record, row: Record) -> dict[str, object]:
    """Return the target of a device, by its tag or in flat JSON, and its memory where the tag has none."""
    mib = str(row["MemoryInfo"]["SizeInMiB"])
    chip = spec.get("chip")
    if chip and row.get("GpuPartitionSize", 1) == 1:
        target = {"tag": chip if isinstance(chip, str) else chip[mib]}
        has_memory = mib not in spec.get("visible", {})
    else:
        target, has_memory = spec["share" if chip else "target"], False
    if has_memory:
        return {"target": target}
    memory = {
        "name": "vram" if spec["slot"] == "gpu" else "device",
        "bytes": int(spec.get("visible", {}).get(mib, mib)) * tag_toml.MIB,
    }
    return {"target": target, "memory": memory | {k: spec[k] for k in ("bandwidth_Bps",) if k in spec}}


def _below(child: str, changes: Mapping[str, object]) -> dict[str, object]:
    """Return the changes of one child by attribute."""
    return {path.removeprefix(f"{child}/"): value for path, value in changes.items() if path.startswith(f"{child}/")}


def _cluster(name: str, type_: str, record: Record, known: Record) -> str:
    """Return the tag of two nodes of a type."""
    times, gigabits = re.fullmatch(r"(?:(\d+)x )?(\d+) Gigabit", record["NetworkInfo"]["NetworkPerformance"]).groups()
    notes = {
        "doc": f"Two {type_} in one placement group, on Elastic Fabric Adapter; override node/count for more",
        "source": ["moto"],
        "confidence": _confidence(_level(type_.partition(".")[0], known)),
    }
    return tag_toml.table(
        f"tag.{name}-cluster", notes | tag_toml.cluster(f"aws/{type_}", int(times or 1) * int(gigabits))
    )


if __name__ == "__main__":
    TAGS.write_text(derive(), encoding="utf-8")
