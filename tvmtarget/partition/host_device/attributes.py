"""Attributes that mark host functions, device functions and mixed functions, as in TVM.

A function that is constrained to a device which another site drives is mixed (TVM: its target has a host), unless its
calling convention says that it is a device function (TVM: its target has no host).
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

# Attributes that a function gets when it is split, in addition to its constraint.
SIDE_ATTRS = (CALLING_CONVENTION, HOST_FUNCTION, DRIVEN_DEVICE)

Side = Literal["host", "device", "mixed"]


def as_host(function: Function, host: str, device: str) -> Function:
    """Mark a function as code that runs on the host for a device.

    Args:
        function: the function.
        host: path of the host.
        device: path of the device.

    Returns:
        The function with its attributes, constrained to the host.
    """
    attrs = {CALLING_CONVENTION: PACKED, HOST_FUNCTION: True, DRIVEN_DEVICE: device}
    return _with(function.replace(constraint=Constraint.at(host)), attrs)


def as_device(function: Function) -> Function:
    """Mark a function as device code, which only its host calls.

    Args:
        function: the function.

    Returns:
        The function with its attributes.
    """
    return _with(function, {CALLING_CONVENTION: DEVICE_KERNEL})


def side_of(function: Function, topology: Topology) -> Side:
    """Classify a function by its attributes, else by the site that its constraint names.

    Args:
        function: the function.
        topology: sites of the target.

    Returns:
        Whether it is host code, device code, or mixed.
    """
    if function.attr(HOST_FUNCTION):
        return "host"
    if function.attr(CALLING_CONVENTION) == DEVICE_KERNEL:
        return "device"
    path = None if function.constraint is None else function.constraint.path
    site = topology[path] if path is not None and path in topology else None
    return "host" if site is None or site.is_system or site.host == site.path else "mixed"


def _with(function: Function, attrs: dict[str, Any]) -> Function:
    return function.replace(attrs=tuple((dict(function.attrs) | attrs).items()))
