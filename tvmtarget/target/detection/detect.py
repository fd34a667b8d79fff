"""Derive a target from a captured machine.

The derivation is a pure function, so captured machines test it. A machine with one type of cores and without
accelerators is an `llvm` leaf; any other machine is a composite. Only measured facts are stated; tags supply the limits
of a chip. Restrictions of a process (a container's quota, an affinity, CUDA_VISIBLE_DEVICES) are not properties of the
machine and are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tvmtarget.errors import TargetError
from tvmtarget.target.cpu.triples import Triple
from tvmtarget.target.detection.accelerators import Accelerator, find_accelerators
from tvmtarget.target.detection.cores import Cores, group_cores, sysctl_values
from tvmtarget.target.detection.machine import MEMORY_BLOCKS, Machine
from tvmtarget.target.detection.processors import cpu_attributes

__all__ = ["board_name", "describe_machine"]

_WINDOWS = {"amd64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "x86": "i686"}


def board_name(machine: Machine) -> str:
    """Return the name of the board, for display.

    The target does not include it, as it differs between revisions of one board.

    Args:
        machine: A captured machine.

    Returns:
        The name from the device tree; empty if there is none.

    >>> board_name(Machine(texts={"/proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.4"}))
    'Raspberry Pi 4 Model B Rev 1.4'
    """
    return machine.text("/proc/device-tree/model")


def describe_machine(machine: Machine) -> dict[str, object]:
    """Describe a machine as a target.

    Args:
        machine: A captured machine.

    Returns:
        The target as JSON data for `Target.from_json`.
    """
    cpus = [*_cpus(machine)]
    gpus = find_accelerators(machine)
    dram = _dram(machine)
    if len(cpus) == 1 and not gpus:
        leaf = {name: value for name, value in cpus[0].items() if name != "name"}
        return leaf | ({"memory": [{"name": "dram", "bytes": dram}]} if dram else {})
    children = [*_named_gpus(gpus)]
    return {
        "kind": "composite",
        "host": f"@{cpus[0]['name']}",
        "targets": [*(child for _, child in children), *cpus],
        "memory": [*_memories(children, [str(cpu["name"]) for cpu in cpus], dram)],
    }


def _cpus(machine: Machine) -> Iterator[dict[str, object]]:
    """Yield the types of cores as children, fastest first."""
    found, triple = group_cores(machine), _triple(machine)
    family = Triple.parse(triple).family if triple else ""
    for name, cores in zip(_cpu_names(found), found, strict=True):
        stated: dict[str, object] = {"mtriple": triple} if triple else {}
        yield {"name": name, "kind": "llvm"} | stated | cpu_attributes(cores, family) | cores.attributes


def _cpu_names(cores: Sequence[Cores]) -> Sequence[str]:
    names = {1: ["cpu"], 2: ["cpu-big", "cpu-little"], 3: ["cpu-prime", "cpu-big", "cpu-little"]}
    return names.get(len(cores), [f"cpu-{number}" for number in range(len(cores))])


def _triple(machine: Machine) -> str:
    """Return the triple of the machine's user space; empty for an architecture that LLVM does not have."""
    triple = _platform_triple(machine)
    try:
        return triple if triple and Triple.parse(triple) else ""
    except TargetError:
        return ""


def _platform_triple(machine: Machine) -> str:
    words = machine.user_space.lower().split("-")
    first, last = words[0], words[-1]
    arch = machine.architecture.lower() or first
    match machine.system:
        case "Darwin":
            is_apple = "Apple" in sysctl_values(machine).get("machdep.cpu.brand_string", "") or arch == "arm64"
            return f"{'arm64' if is_apple else 'x86_64'}-apple-macos"
        case "Windows":
            return f"{_WINDOWS[arch]}-pc-windows-msvc" if arch in _WINDOWS else ""
        case "Linux":
            # A 32-bit user space on a 64-bit kernel runs code for the 32-bit mode of the CPU.
            if arch == "aarch64" and first.startswith("arm"):
                arch = "armv8l"
            elif arch == "x86_64" and re.fullmatch("i[3-6]86", first):
                arch = first
            environment = last if last.startswith(("gnu", "musl")) else "gnu"
            return f"{arch}-linux-{environment}" if arch else ""
    return f"{arch}-unknown-{machine.system.lower()}" if arch and machine.system else ""


def _dram(machine: Machine) -> int:
    """Return the bytes of installed memory.

    The kernel's memory blocks state it exactly, while MemTotal lacks what the kernel reserves. If MemTotal is much less
    than the blocks, some of these are offline, and MemTotal is used.
    """
    total = re.search(r"MemTotal:\s+([0-9]{1,15}) kB", machine.text("/proc/meminfo"))
    available = int(total[1]) * 1024 if total else 0
    size = re.fullmatch("[0-9a-f]{1,12}", machine.text("/sys/devices/system/memory/block_size_bytes"))
    count = re.fullmatch("[0-9]{1,9}", machine.text(MEMORY_BLOCKS))
    blocks = int(size[0], 16) * int(count[0]) if size and count else 0
    if blocks and available <= blocks and available * 8 >= blocks * 7:
        return blocks
    memsize = sysctl_values(machine).get("hw.memsize", "")
    return available or (int(memsize) if re.fullmatch("[0-9]{1,15}", memsize) else 0)


def _named_gpus(gpus: Sequence[Accelerator]) -> Iterator[tuple[Accelerator, dict[str, object]]]:
    for number, gpu in enumerate(gpus):
        name = "gpu" if len(gpus) == 1 else f"gpu-{number}"
        count = (("count", gpu.count),) if gpu.count > 1 else ()
        yield gpu, dict((("name", name), ("kind", gpu.kind), *gpu.attributes, *count))


def _memories(
    gpus: Sequence[tuple[Accelerator, dict[str, object]]], cpus: Sequence[str], dram: int
) -> Iterator[dict[str, object]]:
    """Yield each GPU's own memory, and the memory of the host with all devices that share it."""
    for gpu, child in gpus:
        if gpu.memory_bytes and not gpu.is_integrated:
            name = "vram" if len(gpus) == 1 else f"vram-{child['name']}"
            yield {"name": name, "bytes": gpu.memory_bytes, "of": [child["name"]]}
    sharing = [child["name"] for gpu, child in gpus if gpu.is_integrated]
    if dram:
        yield {"name": "dram", "bytes": dram, "of": [*sharing, *cpus]}
