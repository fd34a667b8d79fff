"""Find the GPUs of a captured machine from drivers of NVIDIA and AMD, a Jetson's device tree and macOS.

Only measured facts are stated; tags supply the limits of a chip.
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

__all__ = ["Accelerator", "find_accelerators"]

_KFD = "/sys/class/kfd/kfd/topology/nodes"
_MIB = 1024**2

# Chips of Jetson boards, with their compute capability (https://developer.nvidia.com/cuda-gpus; device tree names in
# Linux, arch/arm64/boot/dts/nvidia/tegra*.dtsi). nvidia-smi is absent there or reports no memory.
_TEGRA = {
    "nvidia,tegra210": "sm_53",
    "nvidia,tegra186": "sm_62",
    "nvidia,tegra194": "sm_72",
    "nvidia,tegra234": "sm_87",
}

# Heap types of memory on the card, in /sys/class/kfd/kfd/topology/nodes/*/mem_banks (Linux,
# drivers/gpu/drm/amd/amdkfd/kfd_crat.h).
_LOCAL_MEMORY = ("1", "2")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Identical GPUs.

    Attributes:
        kind: The kind of target: `cuda`, `rocm` or `metal`.
        attributes: Measured attributes, as pairs of name and value.
        memory_bytes: Size of the memory of each GPU; 0 if unknown, or shared with the host.
        is_integrated: Whether the GPU uses the memory of the host.
        count: The number of GPUs.
    """

    kind: str
    attributes: tuple[tuple[str, str | int], ...]
    memory_bytes: int = 0
    is_integrated: bool = False
    count: int = 1


def find_accelerators(machine: Machine) -> tuple[Accelerator, ...]:
    """Find the GPUs of a machine.

    Args:
        machine: A captured machine.

    Returns:
        One entry for each group of identical GPUs, in the order of the first of each group.
    """
    # A Jetson has one GPU, which nvidia-smi may list a second time.
    found = Counter([*_tegra(machine)] or [*_nvidia(machine), *_amd(machine), *_apple(machine)])
    return tuple(
        Accelerator(gpu.kind, gpu.attributes, gpu.memory_bytes, gpu.is_integrated, count)
        for gpu, count in found.items()
    )


def _nvidia(machine: Machine) -> Iterator[Accelerator]:
    """Yield the GPUs that nvidia-smi lists; in MIG mode their partitions, as only these can run programs."""
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
        # Drivers before 510 do not have this query; their report holds only the product name and the memory.
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
    """Return the facts that libcuda reports for a GPU.

    The driver and nvidia-smi may number GPUs differently, so GPUs are matched by name and compute capability, and
    the facts are used only if all GPUs that match agree.
    """
    found: set[tuple[tuple[str, int], ...]] = set()
    for line in machine.text(CUDA_DRIVER).splitlines():
        values = dict(re.findall(r"([\w-]+): ([^,]+)(?:, |$)", line))
        capability = f"{values.get('compute-capability-major')}.{values.get('compute-capability-minor')}"
        if values.get("name") == name and _arch(capability) == arch:
            found.add(tuple((fact, int(values[fact])) for fact in _DRIVER_FACTS if values.get(fact, "").isdecimal()))
    return dict(found.pop()) if len(found) == 1 else {}


_DRIVER_FACTS = ("num-compute-units", "l2_cache_size_bytes")


def _cuda(model: str, arch: str, facts: Mapping[str, int], mebibytes: int) -> Accelerator:
    attributes: dict[str, str | int] = {"arch": arch, "model": model, **facts}
    return Accelerator("cuda", tuple((name, value) for name, value in attributes.items() if value), mebibytes * _MIB)


def _arch(capability: str) -> str:
    """Format a compute capability as compilers do; an empty string for other texts.

    >>> _arch("9.0"), _arch("[N/A]")
    ('sm_90', '')
    """
    return f"sm_{capability.replace('.', '')}" if re.fullmatch(r"[0-9]{1,2}\.[0-9]", capability) else ""


def _mebibytes(text: str | None) -> int:
    size = re.fullmatch(r"([0-9]{1,9}) MiB", (text or "").strip())
    return int(size[1]) if size else 0


def _amd(machine: Machine) -> Iterator[Accelerator]:
    """Yield the GPUs among the nodes of AMD's compute driver; a node with CPU cores and no version is the host."""
    nodes = {int(name.split("/")[-2]) for name in machine.texts if re.fullmatch(rf"{_KFD}/[0-9]+/properties", name)}
    for node in sorted(nodes):
        properties = _properties(machine, f"{_KFD}/{node}/properties")
        version = properties.get("gfx_target_version", 0)
        if not version:
            continue
        # 90010 is gfx90a: two decimal digits for each part, of which the names write the last two in hexadecimal.
        name = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
        units = properties.get("simd_count", 0) // (properties.get("simd_per_cu", 0) or 1)
        banks = [name for name in machine.texts if name.startswith(f"{_KFD}/{node}/mem_banks/")]
        local = [bank for name in banks if str((bank := _properties(machine, name)).get("heap_type")) in _LOCAL_MEMORY]
        attributes: dict[str, str | int] = {
            "mcpu": name,
            "num-compute-units": units,
            "thread_warp_size": properties.get("wave_front_size", 0),
            "unchecked": "" if name in chips_of("amdgcn") else "mcpu",
        }
        yield Accelerator(
            "rocm",
            tuple((name, value) for name, value in attributes.items() if value),
            sum(bank.get("size_in_bytes", 0) for bank in local),
            is_integrated=properties.get("cpu_cores_count", 0) > 0,
        )


def _properties(machine: Machine, name: str) -> dict[str, int]:
    return {key: int(value) for key, value in re.findall(r"^(\w+) ([0-9]{1,18})$", machine.text(name), re.MULTILINE)}


def _tegra(machine: Machine) -> Iterator[Accelerator]:
    for name in machine.text("/proc/device-tree/compatible").splitlines():
        if name in _TEGRA:
            yield Accelerator("cuda", (("arch", _TEGRA[name]),), is_integrated=True)


def _apple(machine: Machine) -> Iterator[Accelerator]:
    """Yield the GPUs of Apple's own chips, the only ones of which macOS reports the number of cores."""
    try:
        rows = parse_json(machine.text(DISPLAYS), "the list of displays")["SPDisplaysDataType"]
        cores = [str(row.get("sppci_cores", "")) for row in rows]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return
    for number in cores:
        if re.fullmatch("[1-9][0-9]{0,3}", number):
            yield Accelerator("metal", (("num-compute-units", int(number)),), is_integrated=True)
