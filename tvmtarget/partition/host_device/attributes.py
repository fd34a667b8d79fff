"""What tells a host-driving function, a device function and one that is both apart: attributes, as TVM has them.

A function that is constrained to a device which another site drives is mixed (TVM's target with a host) unless it says
that it is a device function (a target without one).
"""

from __future__ import annotations

from typing import Any, Literal

from tvmtarget.ir.function import DRIVEN_DEVICE, Function
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.topology import Topology

__all__ = [
    "CALLING_CONVENTION",
    "DEVICE_KERNEL",
    "HOST_FUNCTION",
    "PACKED",
    "SIDE_ATTRS",
    "Side",
    "as_device",
    "as_host",
    "side_of",
]

CALLING_CONVENTION = "calling-convention"
HOST_FUNCTION = "is-host-function"
PACKED = "packed"  # TVM's kCPackedFunc, 1
DEVICE_KERNEL = "device-kernel-launch"  # TVM's kDeviceKernelLaunch, 2

SIDE_ATTRS = (CALLING_CONVENTION, HOST_FUNCTION, DRIVEN_DEVICE)

Side = Literal["host", "device", "mixed"]


def as_host(function: Function, host: str, device: str) -> Function:
    """Return a function that works for a device and runs on its host, by the paths of both."""
    attrs = {CALLING_CONVENTION: PACKED, HOST_FUNCTION: True, DRIVEN_DEVICE: device}
    return _with(function.replace(constraint=Constraint.at(host)), attrs)


def as_device(function: Function) -> Function:
    """Return a function of device code only, which nothing but its host calls."""
    return _with(function, {CALLING_CONVENTION: DEVICE_KERNEL})


def side_of(function: Function, topology: Topology) -> Side:
    """Say what a function is, by its attributes, else by the site that its constraint names."""
    if function.attr(HOST_FUNCTION):
        return "host"
    if function.attr(CALLING_CONVENTION) == DEVICE_KERNEL:
        return "device"
    path = None if function.constraint is None else function.constraint.path
    site = topology[path] if path is not None and path in topology else None
    return "host" if site is None or site.is_system or site.host == site.path else "mixed"


def _with(function: Function, attrs: dict[str, Any]) -> Function:
    return function.replace(attrs=tuple((dict(function.attrs) | attrs).items()))
