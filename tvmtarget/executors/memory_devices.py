"""The devices of leaf functions of TVM, and of the memories that copies of a driver program name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from tvmtarget.backends.sharing import device_index
from tvmtarget.executors.driver_program import DriverProgram
from tvmtarget.executors.protocol import Leaf

__all__ = ["CPU", "Device", "device_of", "memory_devices"]

# TVM's device type and number (DLPack); None for this process's memory, which CPUs share.
Device: TypeAlias = tuple[int, int] | None

CPU = (1, 0)
_TYPES = {"cuda": 2}


def device_of(leaf: Leaf) -> Device:
    """Return the device that a leaf function runs on.

    Args:
        leaf: a leaf function of TVM.

    Returns:
        The device; None if it is a CPU.
    """
    kind = leaf.request.target.kind
    return (_TYPES[kind], device_index(leaf.request.site)) if kind in _TYPES else None


def memory_devices(program: DriverProgram, devices: Mapping[str, Device]) -> dict[str, tuple[int, int]]:
    """Return the devices of memories that hold values of leaf functions on devices.

    Args:
        program: the driver program.
        devices: devices of the leaf functions by name.

    Returns:
        Devices by name of the memory; those of CPUs are left out.
    """
    found: dict[str, tuple[int, int]] = {}
    for driver in program.drivers.values():
        steps = list(driver.walk())
        calls = [(step, devices[step.call]) for step in steps if step.call is not None and step.call in devices]
        made = {name: device for step, device in calls for name in step.outputs}
        read = {name: device for step, device in calls for name in step.inputs}
        for step in (step for step in steps if step.src is not None):
            for memory, device in ((step.src, made.get(step.inputs[0])), (step.dst, read.get(step.outputs[0]))):
                if device is not None:
                    found[str(memory)] = device
    return found
