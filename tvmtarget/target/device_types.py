"""Device types: TVM's names of devices, and the numbers that DLPack and TVM give them.

Numbers are those of `DLDeviceType` of DLPack 1.0 and, from 32 on, of `TVMDeviceExtType` of TVM v0.19. Some changed
between versions (Hexagon from 14 to 16) and names did not, so only attributes of TVM hold a number.
"""

from __future__ import annotations

from tvmtarget.errors import TargetError, did_you_mean
from tvmtarget.target.kinds import find_kind, kind_names, kind_of
from tvmtarget.target.problems import shown

__all__ = ["DEVICE_TYPES", "device_type_of", "read_device_type"]

DEVICE_TYPES = {
    # TVM had aocl as 5 and sdaccel as 6 before it moved them to 32 and 33.
    1: "cpu",
    2: "cuda",
    3: "cuda_host",
    4: "opencl",
    7: "vulkan",
    8: "metal",
    9: "vpi",
    10: "rocm",
    11: "rocm_host",
    12: "ext_dev",
    13: "cuda_managed",
    14: "oneapi",
    15: "webgpu",
    16: "hexagon",
    17: "maia",
    18: "trn",
    32: "aocl",
    33: "sdaccel",
    34: "opengl",
    35: "micro_dev",
}


def device_type_of(kind: str, number: object) -> str:
    """Return the name of a target's device type.

    Args:
        kind: the target's kind; one that no package registers is its own device type.
        number: the attribute `target_device_type`, or None if it is not stated.

    Returns:
        The name, such as `cuda`.
    """
    if isinstance(number, int) and number in DEVICE_TYPES:
        return DEVICE_TYPES[number]
    row = find_kind(kind)
    return row.device if row is not None else kind


def read_device_type(value: object) -> str:
    """Return the name of a device type given by name or number.

    Args:
        value: name or number.

    Returns:
        The name.

    Raises:
        TargetError: there is no such device type; the message has the nearest names.

    >>> read_device_type("cuda"), read_device_type(2)
    ('cuda', 'cuda')
    """
    if isinstance(value, int) and not isinstance(value, bool) and value in DEVICE_TYPES:
        return DEVICE_TYPES[value]
    known = {*DEVICE_TYPES.values(), *(kind_of(name).device for name in kind_names())}
    if isinstance(value, str) and value in known:
        return value
    near = did_you_mean(value, known) if isinstance(value, str) else ""
    listed = ", ".join(sorted(known))
    raise TargetError(f"unknown device type {shown(value)}{near or f'; known: {listed}'}")
