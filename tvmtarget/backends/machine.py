"""Whether this machine can run what a CPU leaf describes: its architecture, operating system and instructions."""

from __future__ import annotations

import os
from functools import cache

from tvmtarget.target.constraints.reasons import Truth
from tvmtarget.target.detection.machine import Machine
from tvmtarget.target.detection.why_not import instructions, triples
from tvmtarget.target.tree import Target

__all__ = ["load", "processors", "refuses_native", "refuses_triple"]


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load() -> float:
    """Return how much was asked of each processor in the last minute: 1 is all that it can do; 0 if unknown."""
    try:
        return os.getloadavg()[0] / processors()
    except (AttributeError, OSError):
        return 0.0


@cache
def _cpus() -> tuple[Target, ...]:
    """Return the sorts of cores of this machine; a thread may run on any of them."""
    here = Target.detect(Machine.capture(gpus=False))
    return tuple(leaf for leaf in here.targets or (here,) if leaf.kind == "llvm")


def refuses_triple(target: Target) -> str | None:
    """Return why code for a leaf's triple is foreign to this machine, or None if it is at home here."""
    reasons = (reason for cpu in _cpus() for reason in triples(cpu, target))
    return next((reason.text for reason in reasons if reason.truth is Truth.NO), None)


def refuses_native(target: Target) -> str | None:
    """Return why this machine cannot execute native code for a leaf, or None if it can."""
    reasons = (reason for cpu in _cpus() for reason in (*triples(cpu, target), *instructions(cpu, target)))
    return next((reason.text for reason in reasons if not reason), None)
