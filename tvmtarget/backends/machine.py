"""Whether this machine can run code for a CPU leaf: its architecture, operating system and instructions."""

from __future__ import annotations

import os
from collections.abc import Collection
from functools import cache

from tvmtarget.target.detection.machine import Machine
from tvmtarget.target.detection.why_not import compare_instructions, compare_triples
from tvmtarget.target.kinds import find_kind
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import Target
from tvmtarget.toolchains.platforms import triple_of

__all__ = [
    "foreign_hosts",
    "interpreter_mismatch",
    "is_any_x86",
    "load",
    "native_code_mismatch",
    "processors",
    "saturates_products",
]


def processors() -> int:
    """Return the number of processors that this process may use.

    Returns:
        At least 1.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load() -> float:
    """Return the average load of each processor in the last minute.

    Returns:
        1 if all processors are busy; 0 if the system does not report it.
    """
    try:
        return os.getloadavg()[0] / processors()
    except (AttributeError, OSError):
        return 0.0


@cache
def _cpus() -> tuple[Target, ...]:
    """Return the types of cores of this machine; a thread may run on any of them."""
    here = Target.detect(Machine.capture(gpus=False))
    return tuple(leaf for leaf in here.targets or (here,) if leaf.kind == "llvm")


def native_code_mismatch(target: Target) -> str | None:
    """Return why this machine cannot execute native code for a leaf.

    Args:
        target: a CPU leaf.

    Returns:
        The first difference, or None if it can.
    """
    reasons = (
        reason for cpu in _cpus() for reason in (*compare_triples(cpu, target), *compare_instructions(cpu, target))
    )
    return next((reason.text for reason in reasons if not reason), None)


# Attributes from which LLVM takes the instructions that it may use.
_STATE_INSTRUCTIONS = frozenset({"mcpu", "mattr", "march"})


def is_any_x86(target: Target) -> bool:
    """Return whether a leaf stands for any CPU of x86-64, and this machine is one.

    Args:
        target: a leaf.

    Returns:
        True if it is of kind llvm and states no instructions.
    """
    if target.kind != "llvm" or target.attrs.keys() & _STATE_INSTRUCTIONS or native_code_mismatch(target) is not None:
        return False
    return triple_of(target).arch == "x86_64"


def saturates_products() -> bool:
    """Return whether sums of products of bytes saturate in libraries on this machine.

    Returns:
        True on x86-64 without VNNI, where `pmaddubsw` adds two products in 16 bits.
    """
    cpus = [cpu for cpu in _cpus() if str(cpu.attrs.get("mtriple", "")).startswith("x86_64")]
    return any(not {"avx512vnni", "avxvnni"} & {*cpu.features} for cpu in cpus)


# Attributes that only code for these architectures has, as LLVM's triples spell them (`llvm/lib/Target/{ARM,RISCV}`).
_ONLY_OF = {"mfloat-abi": ("arm", "thumb"), "mabi": ("riscv", "mips", "powerpc", "loongarch")}

# The model of generated C for the machine that builds it (`tvm.target.micro`, v0.9 to v0.19).
_THIS_MACHINE = "host"


def interpreter_mismatch(target: Target) -> str | None:
    """Return why an interpreter on this machine cannot stand in for a leaf.

    Args:
        target: the leaf.

    Returns:
        How the leaf describes another machine, or None if it may describe this one.
    """
    kind = find_kind(target.kind)
    if target.device != "cpu":
        return f"it is a device of type {target.device!r}, not a CPU"
    if kind is not None and kind.hardware:
        return f"kind {target.kind!r} runs on {kind.hardware}"
    foreign = native_code_mismatch(target)
    if foreign is not None:
        return foreign
    here = [str(cpu.attrs.get("mtriple", "")) for cpu in _cpus()]
    for name, families in _ONLY_OF.items():
        if name in target.attrs and not any(triple.startswith(families) for triple in here):
            return f"{name} {target.attrs[name]}: only code for {families[0]} has it"
    model = target.attrs.get("model", _THIS_MACHINE)
    if target.kind == "c" and model != _THIS_MACHINE:
        return f"model {model!r} names another machine; that of this one is {_THIS_MACHINE!r}"
    if "arm_cpu" in target.keys and not any("arm_cpu" in cpu.keys for cpu in _cpus()):
        return "key 'arm_cpu': this is no Arm CPU"
    return None


def foreign_hosts(topology: Topology, sites: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return the hosts of a program that are not this machine, without those that are sites.

    Args:
        topology: the sites of the target.
        sites: paths of the leaves that have functions.

    Returns:
        By the path of the host: the path of a node that it drives, and the reason.
    """
    names = [site.split("/") if site else [] for site in sorted(sites)]
    nodes = dict.fromkeys("/".join(each[:count]) for each in names for count in range(len(each) + 1))
    hosts = {topology[path].host: path for path in nodes if topology[path].host not in sites}
    reasons = {host: interpreter_mismatch(topology[host].target) for host in hosts}
    return {host: (hosts[host], reason) for host, reason in reasons.items() if reason is not None}
