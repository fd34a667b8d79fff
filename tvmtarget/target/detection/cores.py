"""Group the CPU cores of a captured machine by type, with their counts, threads and caches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tvmtarget.target.detection.machine import CPUID, SYSCTL, Machine

__all__ = ["Cores", "group_cores", "sysctl_values"]

_CPU = "/sys/devices/system/cpu"
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


@dataclass(frozen=True, slots=True)
class Cores:
    """Identical CPU cores; unknown values are None.

    `facts` are the lines of /proc/cpuinfo for the first core, `capacity` is the kernel's measure of speed.
    """

    facts: Mapping[str, str] = field(default_factory=dict)
    num_cores: int | None = None
    threads_per_core: int | None = None
    l1d_cache_bytes: int | None = None
    l2_cache_bytes: int | None = None
    l3_cache_bytes: int | None = None
    capacity: int | None = None

    @property
    def attributes(self) -> dict[str, int]:
        """Known values, as attributes of an `llvm` target."""
        names = ("num_cores", "threads_per_core", "l1d_cache_bytes", "l2_cache_bytes", "l3_cache_bytes")
        known = {name.replace("_", "-"): getattr(self, name) for name in names}
        return {name: value for name, value in known.items() if value}


def group_cores(machine: Machine) -> tuple[Cores, ...]:
    """Group the cores of a machine by type.

    Args:
        machine: A captured machine.

    Returns:
        The types of cores, fastest first; one entry without facts if the machine reports none.
    """
    if machine.text(SYSCTL):
        return tuple(_darwin_cores(machine)) or (Cores(),)
    cpus = _cpus(machine)
    # Intel's hybrid CPUs report one model for both types of cores; Linux lists which is which.
    hybrid = {
        cpu: unit for unit in ("cpu_core", "cpu_atom") for cpu in _numbers(machine.text(f"/sys/devices/{unit}/cpus"))
    }
    by_type: dict[object, list[int]] = {}
    for cpu, facts in cpus.items():
        core_type = (facts.get("CPU implementer"), facts.get("CPU part"), facts.get("uarch"), hybrid.get(cpu))
        by_type.setdefault(core_type, []).append(cpu)
    found = [_cores(machine, {cpu: cpus[cpu] for cpu in members}) for members in by_type.values()]
    return tuple(sorted(found, key=_strength, reverse=True)) or (Cores(),)


def _strength(cores: Cores) -> tuple[int, int, int]:
    """Sort key of a type of cores: the kernel's measure of speed, then the caches."""
    shared = (cores.l2_cache_bytes or 0) // (cores.num_cores or 1)
    return cores.capacity or 0, cores.l1d_cache_bytes or 0, shared


def _cpus(machine: Machine) -> dict[int, dict[str, str]]:
    """Return the facts of every logical CPU; a capture stores of later ones only what differs from the first."""
    blocks = [_pairs(block) for block in re.split(r"\n\s*\n", machine.text("/proc/cpuinfo") or machine.text(CPUID))]
    common = blocks[0] | {
        # Old kernels for Arm write the common facts of all CPUs in a separate block.
        name: value
        for block in blocks[1:]
        if "processor" not in block
        for name, value in block.items()
    }
    numbered = [block for block in blocks if block.get("processor", "").isdecimal()]
    return {int(block["processor"]): common | block for block in numbered} or ({0: common} if common else {})


def _pairs(text: str) -> dict[str, str]:
    lines = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in lines if colon}


def _cores(machine: Machine, cpus: Mapping[int, Mapping[str, str]]) -> Cores:
    first = next(iter(cpus))
    # Several logical CPUs name the same core, so distinct names count the cores.
    number = len(set(cores)) if (cores := [*_core_names(machine, cpus)]) else None
    caches = next((found for cpu in cpus if (found := _caches(machine, cpu))), {})
    return Cores(
        facts=cpus[first],
        num_cores=number,
        threads_per_core=-(-len(cpus) // number) if number else None,
        l1d_cache_bytes=caches.get(1),
        l2_cache_bytes=caches.get(2),
        l3_cache_bytes=caches.get(3),
        capacity=_number(machine.texts, f"{_CPU}/cpu{first}/cpu_capacity"),
    )


def _core_names(machine: Machine, cpus: Mapping[int, Mapping[str, str]]) -> Iterator[object]:
    """Yield an identifier of the core of each CPU: its siblings, else its numbers; nothing if one is missing."""
    siblings = [machine.text(f"{_CPU}/cpu{cpu}/topology/thread_siblings_list") for cpu in cpus]
    numbers = [(facts.get("physical id"), facts.get("core id")) for facts in cpus.values()]
    if all(siblings):
        yield from siblings
    elif all(core is not None for _, core in numbers):
        yield from numbers


def _caches(machine: Machine, cpu: int) -> dict[int, int]:
    """Return the bytes of data caches by level, as seen by one CPU; for level 3 the sum of its socket."""
    found: dict[int, int] = {}
    for index in range(8):
        about = {name: machine.text(f"{_CPU}/cpu{cpu}/cache/index{index}/{name}") for name in ("level", "type", "size")}
        size = _bytes(about["size"])
        if size and about["level"].isdecimal() and about["type"] in ("Data", "Unified"):
            found[int(about["level"])] = size * (_instances(machine, cpu, index) if about["level"] == "3" else 1)
    return found


def _instances(machine: Machine, cpu: int, index: int) -> int:
    """Return how many identical caches a socket has."""
    socket = _numbers(machine.text(f"{_CPU}/cpu{cpu}/topology/core_siblings_list"))
    sharing = _numbers(machine.text(f"{_CPU}/cpu{cpu}/cache/index{index}/shared_cpu_list"))
    return max(1, -(-len(socket) // len(sharing))) if sharing else 1


def _bytes(text: str) -> int:
    size = re.fullmatch(r"([0-9]{1,9})([KMG]?)", text)
    return int(size[1]) * _UNITS[size[2]] if size else 0


def _numbers(text: str) -> tuple[int, ...]:
    """Parse the kernel's list format of CPUs; other texts give an empty tuple.

    >>> _numbers("0-3,8,10-11")
    (0, 1, 2, 3, 8, 10, 11)
    """
    found: list[int] = []
    for item in text.split(","):
        span = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", item.strip())
        found += range(int(span[1]), int(span[2] or span[1]) + 1) if span else ()
    return tuple(found)


def sysctl_values(machine: Machine) -> dict[str, str]:
    """Parse the output of macOS's sysctl.

    Args:
        machine: A captured machine.

    Returns:
        Values by name; empty on other systems.
    """
    return _pairs(machine.text(SYSCTL))


def _darwin_cores(machine: Machine) -> Iterable[Cores]:
    """Yield the performance levels of macOS; Macs with Intel CPUs have one."""
    values = sysctl_values(machine)
    levels = [f"hw.perflevel{level}." for level in range(4) if f"hw.perflevel{level}.physicalcpu" in values]
    for level in levels or ["hw."]:
        cores, logical = _number(values, f"{level}physicalcpu"), _number(values, f"{level}logicalcpu")
        yield Cores(
            facts=values,
            num_cores=cores,
            threads_per_core=logical // cores if logical and cores else None,
            l1d_cache_bytes=_number(values, f"{level}l1dcachesize"),
            l2_cache_bytes=_number(values, f"{level}l2cachesize"),
            l3_cache_bytes=_number(values, f"{level}l3cachesize"),
        )


def _number(values: Mapping[str, str], name: str) -> int | None:
    value = values.get(name, "").strip()
    return int(value) if re.fullmatch("[0-9]{1,15}", value) else None
