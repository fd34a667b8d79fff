"""The cores of a captured machine, by sort: how many there are, with how many threads and which caches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tvmtarget.target.detection.machine import CPUID, SYSCTL, Machine

__all__ = ["Cores", "cores_of", "sysctl"]

_CPU = "/sys/devices/system/cpu"
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


@dataclass(frozen=True, slots=True)
class Cores:
    """Cores that are alike; what nobody said is None. `facts` are the lines of /proc/cpuinfo about the first."""

    facts: Mapping[str, str] = field(default_factory=dict)
    num_cores: int | None = None
    threads_per_core: int | None = None
    l1d_cache_bytes: int | None = None
    l2_cache_bytes: int | None = None
    l3_cache_bytes: int | None = None
    capacity: int | None = None

    @property
    def attributes(self) -> dict[str, int]:
        """Return what is known, as attributes of a CPU."""
        names = ("num_cores", "threads_per_core", "l1d_cache_bytes", "l2_cache_bytes", "l3_cache_bytes")
        known = {name.replace("_", "-"): getattr(self, name) for name in names}
        return {name: value for name, value in known.items() if value}


def cores_of(machine: Machine) -> tuple[Cores, ...]:
    """Return the sorts of cores, the fastest first; one without any facts where a machine says nothing."""
    if machine.text(SYSCTL):
        return tuple(_darwin_cores(machine)) or (Cores(),)
    cpus = _cpus(machine)
    sorts: dict[object, list[int]] = {}
    hybrid = {
        cpu: sort for sort in ("cpu_core", "cpu_atom") for cpu in _numbers(machine.text(f"/sys/devices/{sort}/cpus"))
    }
    for cpu, facts in cpus.items():
        sort = (facts.get("CPU implementer"), facts.get("CPU part"), facts.get("uarch"), hybrid.get(cpu))
        sorts.setdefault(sort, []).append(cpu)
    found = [_cores(machine, {cpu: cpus[cpu] for cpu in members}) for members in sorts.values()]
    return tuple(sorted(found, key=_strength, reverse=True)) or (Cores(),)


def _strength(cores: Cores) -> tuple[int, int, int]:
    """Which sort comes first: by the kernel's measure of speed, then by caches."""
    shared = (cores.l2_cache_bytes or 0) // (cores.num_cores or 1)
    return cores.capacity or 0, cores.l1d_cache_bytes or 0, shared


def _cpus(machine: Machine) -> dict[int, dict[str, str]]:
    """Return the facts of every logical CPU; a capture says of later ones only what differs from the first."""
    blocks = [_pairs(block) for block in re.split(r"\n\s*\n", machine.text("/proc/cpuinfo") or machine.text(CPUID))]
    common = blocks[0] | {
        # Old kernels for Arm write what all CPUs have in common in a block of its own.
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
    """Yield what tells the core of each CPU from others: its siblings, else its numbers; nothing if any is silent."""
    siblings = [machine.text(f"{_CPU}/cpu{cpu}/topology/thread_siblings_list") for cpu in cpus]
    numbers = [(facts.get("physical id"), facts.get("core id")) for facts in cpus.values()]
    if all(siblings):
        yield from siblings
    elif all(core is not None for _, core in numbers):
        yield from numbers


def _caches(machine: Machine, cpu: int) -> dict[int, int]:
    """Return the bytes of data caches by level as one CPU sees them; of level 3, of its whole socket."""
    found: dict[int, int] = {}
    for index in range(8):
        about = {name: machine.text(f"{_CPU}/cpu{cpu}/cache/index{index}/{name}") for name in ("level", "type", "size")}
        size = _bytes(about["size"])
        if size and about["level"].isdecimal() and about["type"] in ("Data", "Unified"):
            found[int(about["level"])] = size * (_instances(machine, cpu, index) if about["level"] == "3" else 1)
    return found


def _instances(machine: Machine, cpu: int, index: int) -> int:
    """Return how many caches like this one a socket has."""
    socket = _numbers(machine.text(f"{_CPU}/cpu{cpu}/topology/core_siblings_list"))
    sharing = _numbers(machine.text(f"{_CPU}/cpu{cpu}/cache/index{index}/shared_cpu_list"))
    return max(1, -(-len(socket) // len(sharing))) if sharing else 1


def _bytes(text: str) -> int:
    size = re.fullmatch(r"([0-9]{1,9})([KMG]?)", text)
    return int(size[1]) * _UNITS[size[2]] if size else 0


def _numbers(text: str) -> tuple[int, ...]:
    """Read a kernel's list of CPUs; what is no such list is empty.

    >>> _numbers("0-3,8,10-11")
    (0, 1, 2, 3, 8, 10, 11)
    """
    found: list[int] = []
    for item in text.split(","):
        span = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", item.strip())
        found += range(int(span[1]), int(span[2] or span[1]) + 1) if span else ()
    return tuple(found)


def sysctl(machine: Machine) -> dict[str, str]:
    """Return what macOS says, by name."""
    return _pairs(machine.text(SYSCTL))


def _darwin_cores(machine: Machine) -> Iterable[Cores]:
    """Yield the performance levels of macOS; a Mac of Intel's has one."""
    said = sysctl(machine)
    levels = [f"hw.perflevel{level}." for level in range(4) if f"hw.perflevel{level}.physicalcpu" in said]
    for level in levels or ["hw."]:
        cores, logical = _number(said, f"{level}physicalcpu"), _number(said, f"{level}logicalcpu")
        yield Cores(
            facts=said,
            num_cores=cores,
            threads_per_core=logical // cores if logical and cores else None,
            l1d_cache_bytes=_number(said, f"{level}l1dcachesize"),
            l2_cache_bytes=_number(said, f"{level}l2cachesize"),
            l3_cache_bytes=_number(said, f"{level}l3cachesize"),
        )


def _number(said: Mapping[str, str], name: str) -> int | None:
    value = said.get(name, "").strip()
    return int(value) if re.fullmatch("[0-9]{1,15}", value) else None
