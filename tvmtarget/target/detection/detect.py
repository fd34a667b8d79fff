"""From what a machine says of itself to the target it is: a pure function, so that captured machines test it.

A machine without accelerators is an `llvm` leaf; with some, or with cores of several sorts, it is a composite of
them. Only what was measured is written: the limits of a chip are the business of tags. What a process may use of
the machine (a container's quota, an affinity, CUDA_VISIBLE_DEVICES) is no property of the machine and is not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tvmtarget.errors import TargetError
from tvmtarget.target.cpu.triples import Triple
from tvmtarget.target.detection.accelerators import Accelerator, accelerators_of
from tvmtarget.target.detection.cores import Cores, cores_of, sysctl
from tvmtarget.target.detection.machine import MEMORY_BLOCKS, Machine
from tvmtarget.target.detection.processors import processor

__all__ = ["board", "describe"]

_WINDOWS = {"amd64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "x86": "i686"}


def board(machine: Machine) -> str:
    """Return what a board calls itself, for people; no part of the target, because revisions of one board differ in it.

    >>> board(Machine(texts={"/proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.4"}))
    'Raspberry Pi 4 Model B Rev 1.4'
    """
    return machine.text("/proc/device-tree/model")


def describe(machine: Machine) -> dict[str, object]:
    """Return the flat JSON of the target that a machine is."""
    cpus = [*_cpus(machine)]
    gpus = accelerators_of(machine)
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
    """Yield the sorts of cores as children, the fastest first."""
    found, triple = cores_of(machine), _triple(machine)
    family = Triple.parse(triple).family if triple else ""
    for name, cores in zip(_cpu_names(found), found, strict=True):
        said: dict[str, object] = {"mtriple": triple} if triple else {}
        yield {"name": name, "kind": "llvm"} | said | processor(cores, family) | cores.attributes


def _cpu_names(cores: Sequence[Cores]) -> Sequence[str]:
    names = {1: ["cpu"], 2: ["cpu-big", "cpu-little"], 3: ["cpu-prime", "cpu-big", "cpu-little"]}
    return names.get(len(cores), [f"cpu-{number}" for number in range(len(cores))])


def _triple(machine: Machine) -> str:
    """Return the triple of programs that run here, or nothing for an architecture that LLVM does not have."""
    triple = _spelled(machine)
    try:
        return triple if triple and Triple.parse(triple) else ""
    except TargetError:
        return ""


def _spelled(machine: Machine) -> str:
    words = machine.user_space.lower().split("-")
    first, last = words[0], words[-1]
    arch = machine.architecture.lower() or first
    match machine.system:
        case "Darwin":
            is_apple = "Apple" in sysctl(machine).get("machdep.cpu.brand_string", "") or arch == "arm64"
            return f"{'arm64' if is_apple else 'x86_64'}-apple-macos"
        case "Windows":
            return f"{_WINDOWS[arch]}-pc-windows-msvc" if arch in _WINDOWS else ""
        case "Linux":
            # A 32-bit user space on a 64-bit kernel runs, and is compiled for, the 32-bit mode of the CPU.
            if arch == "aarch64" and first.startswith("arm"):
                arch = "armv8l"
            elif arch == "x86_64" and re.fullmatch("i[3-6]86", first):
                arch = first
            environment = last if last.startswith(("gnu", "musl")) else "gnu"
            return f"{arch}-linux-{environment}" if arch else ""
    return f"{arch}-unknown-{machine.system.lower()}" if arch and machine.system else ""


def _dram(machine: Machine) -> int:
    """Return the bytes of memory that are built in.

    The kernel's blocks of memory say it exactly; MemTotal is what the kernel left over. Where the two are far apart,
    blocks are switched off, and MemTotal counts.
    """
    total = re.search(r"MemTotal:\s+([0-9]{1,15}) kB", machine.text("/proc/meminfo"))
    left = int(total[1]) * 1024 if total else 0
    size = re.fullmatch("[0-9a-f]{1,12}", machine.text("/sys/devices/system/memory/block_size_bytes"))
    count = re.fullmatch("[0-9]{1,9}", machine.text(MEMORY_BLOCKS))
    blocks = int(size[0], 16) * int(count[0]) if size and count else 0
    if blocks and left <= blocks and left * 8 >= blocks * 7:
        return blocks
    memsize = sysctl(machine).get("hw.memsize", "")
    return left or (int(memsize) if re.fullmatch("[0-9]{1,15}", memsize) else 0)


def _named_gpus(gpus: Sequence[Accelerator]) -> Iterator[tuple[Accelerator, dict[str, object]]]:
    for number, gpu in enumerate(gpus):
        name = "gpu" if len(gpus) == 1 else f"gpu-{number}"
        count = (("count", gpu.count),) if gpu.count > 1 else ()
        yield gpu, dict((("name", name), ("kind", gpu.kind), *gpu.attributes, *count))


def _memories(
    gpus: Sequence[tuple[Accelerator, dict[str, object]]], cpus: Sequence[str], dram: int
) -> Iterator[dict[str, object]]:
    """Yield each GPU's own memory, and the memory of the host with all that share it."""
    for gpu, child in gpus:
        if gpu.memory_bytes and not gpu.is_integrated:
            name = "vram" if len(gpus) == 1 else f"vram-{child['name']}"
            yield {"name": name, "bytes": gpu.memory_bytes, "of": [child["name"]]}
    sharing = [child["name"] for gpu, child in gpus if gpu.is_integrated]
    if dram:
        yield {"name": "dram", "bytes": dram, "of": [*sharing, *cpus]}
