"""The GPUs of a captured machine: what drivers of NVIDIA and AMD, a Jetson's device tree and macOS say.

Only what is measured is said: a limit that follows from the chip is the business of tags.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from xml.etree import ElementTree

from tvmtarget.target.cpu.chips import chips_of
from tvmtarget.target.detection.machine import CUDA_DRIVER, DISPLAYS, GPU_QUERY, GPU_REPORT, Machine
from tvmtarget.untrusted import parse_json

__all__ = ["Accelerator", "accelerators_of"]

_KFD = "/sys/class/kfd/kfd/topology/nodes"
_MIB = 1024**2

# The chip of a Jetson and its compute capability (https://developer.nvidia.com/cuda-gpus; NVIDIA's own names of boards
# in Linux, arch/arm64/boot/dts/nvidia/tegra*.dtsi). Its nvidia-smi is absent or knows no memory.
_TEGRA = {
    "nvidia,tegra210": "sm_53",
    "nvidia,tegra186": "sm_62",
    "nvidia,tegra194": "sm_72",
    "nvidia,tegra234": "sm_87",
}

# Memory on the card, of /sys/class/kfd/kfd/topology/nodes/*/mem_banks (Linux, drivers/gpu/drm/amd/amdkfd/kfd_crat.h).
_LOCAL_MEMORY = ("1", "2")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """GPUs that are alike: attributes, how many, the bytes of each one's own memory (0: unknown, or the host's)."""

    kind: str
    attributes: tuple[tuple[str, str | int], ...]
    memory_bytes: int = 0
    is_integrated: bool = False
    count: int = 1


def accelerators_of(machine: Machine) -> tuple[Accelerator, ...]:
    """Return the GPUs, like ones together, in the order of the first of each sort."""
    found = Counter([*_tegra(machine)] or [*_nvidia(machine), *_amd(machine), *_apple(machine)])
    return tuple(
        Accelerator(gpu.kind, gpu.attributes, gpu.memory_bytes, gpu.is_integrated, count)
        for gpu, count in found.items()
    )


def _nvidia(machine: Machine) -> Iterator[Accelerator]:
    """Yield the GPUs that the driver lists; of one that is partitioned its partitions, which are all one can use."""
    reports = _reports(machine)
    rows = [[cell.strip() for cell in row] for row in csv.reader(machine.text(GPU_QUERY).splitlines())]
    rows = [row for row in rows if len(row) == 4 and row[0]]
    for number, (name, capability, mebibytes, is_partitioned) in enumerate(rows):
        arch = _arch(capability)
        if is_partitioned == "Enabled":
            parts = reports[number].findall(".//mig_device") if number < len(reports) else []
            yield from (_partition(name, arch, part) for part in parts)
        else:
            facts = _driver_facts(machine, name, arch)
            yield _cuda(name, arch, facts, int(mebibytes) if mebibytes.isdecimal() else 0)
    if not rows:
        # A driver before 510 has no such question; the product's name and its memory is all that it says.
        for gpu in reports:
            yield _cuda(gpu.findtext("product_name", ""), "", {}, _mebibytes(gpu.findtext("fb_memory_usage/total")))


def _reports(machine: Machine) -> list[ElementTree.Element]:
    try:
        return ElementTree.fromstring(machine.text(GPU_REPORT)).findall("gpu")
    except ElementTree.ParseError:
        return []


def _partition(name: str, arch: str, part: ElementTree.Element) -> Accelerator:
    units = part.findtext("device_attributes/shared/multiprocessor_count", "")
    size = _mebibytes(part.findtext("fb_memory_usage/total"))
    facts = {"num-compute-units": int(units)} if units.isdecimal() else {}
    return _cuda(f"{name} MIG", arch, facts, size)


def _driver_facts(machine: Machine, name: str, arch: str) -> dict[str, int]:
    """Return what the driver tells of GPUs of a name and capability, which it may number otherwise than nvidia-smi."""
    found: set[tuple[tuple[str, int], ...]] = set()
    for line in machine.text(CUDA_DRIVER).splitlines():
        said = dict(re.findall(r"([\w-]+): ([^,]+)(?:, |$)", line))
        capability = f"{said.get('compute-capability-major')}.{said.get('compute-capability-minor')}"
        if said.get("name") == name and _arch(capability) == arch:
            found.add(tuple((fact, int(said[fact])) for fact in _DRIVER_FACTS if said.get(fact, "").isdecimal()))
    return dict(found.pop()) if len(found) == 1 else {}


_DRIVER_FACTS = ("num-compute-units", "l2_cache_size_bytes")


def _cuda(model: str, arch: str, facts: Mapping[str, int], mebibytes: int) -> Accelerator:
    attributes: dict[str, str | int] = {"arch": arch, "model": model, **facts}
    return Accelerator("cuda", tuple((name, value) for name, value in attributes.items() if value), mebibytes * _MIB)


def _arch(capability: str) -> str:
    """Return a compute capability as the compilers spell it, or nothing.

    >>> _arch("9.0"), _arch("[N/A]")
    ('sm_90', '')
    """
    return f"sm_{capability.replace('.', '')}" if re.fullmatch(r"[0-9]{1,2}\.[0-9]", capability) else ""


def _mebibytes(text: str | None) -> int:
    size = re.fullmatch(r"([0-9]{1,9}) MiB", (text or "").strip())
    return int(size[1]) if size else 0


def _amd(machine: Machine) -> Iterator[Accelerator]:
    """Yield the nodes of AMD's compute driver that are GPUs; a node with CPU cores and no version is the host."""
    nodes = {int(name.split("/")[-2]) for name in machine.texts if re.fullmatch(rf"{_KFD}/[0-9]+/properties", name)}
    for node in sorted(nodes):
        said = _properties(machine, f"{_KFD}/{node}/properties")
        version = said.get("gfx_target_version", 0)
        if not version:
            continue
        name = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
        units = said.get("simd_count", 0) // (said.get("simd_per_cu", 0) or 1)
        banks = [name for name in machine.texts if name.startswith(f"{_KFD}/{node}/mem_banks/")]
        local = [bank for name in banks if str((bank := _properties(machine, name)).get("heap_type")) in _LOCAL_MEMORY]
        attributes: dict[str, str | int] = {
            "mcpu": name,
            "num-compute-units": units,
            "thread_warp_size": said.get("wave_front_size", 0),
            "unchecked": "" if name in chips_of("amdgcn") else "mcpu",
        }
        yield Accelerator(
            "rocm",
            tuple((name, value) for name, value in attributes.items() if value),
            sum(bank.get("size_in_bytes", 0) for bank in local),
            is_integrated=said.get("cpu_cores_count", 0) > 0,
        )


def _properties(machine: Machine, name: str) -> dict[str, int]:
    return {key: int(value) for key, value in re.findall(r"^(\w+) ([0-9]{1,18})$", machine.text(name), re.MULTILINE)}


def _tegra(machine: Machine) -> Iterator[Accelerator]:
    for name in machine.text("/proc/device-tree/compatible").splitlines():
        if name in _TEGRA:
            yield Accelerator("cuda", (("arch", _TEGRA[name]),), is_integrated=True)


def _apple(machine: Machine) -> Iterator[Accelerator]:
    """Yield the GPUs of Apple's own chips; macOS says of no other how many cores it has."""
    try:
        rows = parse_json(machine.text(DISPLAYS), "the list of displays")["SPDisplaysDataType"]
        cores = [str(row.get("sppci_cores", "")) for row in rows]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return
    for number in cores:
        if re.fullmatch("[1-9][0-9]{0,3}", number):
            yield Accelerator("metal", (("num-compute-units", int(number)),), is_integrated=True)
