"""A program that asks NVIDIA's driver what nvidia-smi does not tell of its GPUs: a line each, facts as `name: value`.

It is run as a process of its own: one that has used the driver cannot be forked and use it again.
"""

from __future__ import annotations

import ctypes
import sys

# Of the enumeration CUdevice_attribute (cuda.h).
_ATTRIBUTES = {
    "num-compute-units": 16,
    "l2_cache_size_bytes": 38,
    "compute-capability-major": 75,
    "compute-capability-minor": 76,
}


def main() -> int:
    """Print the GPUs that the driver lets this process use; nothing where there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    for number in range(count.value):
        print(_described(driver, number))
    return 0


def _described(driver: ctypes.CDLL, number: int) -> str:
    name, value = ctypes.create_string_buffer(256), ctypes.c_int()
    driver.cuDeviceGetName(name, len(name), number)
    facts = {"name": name.value.decode(errors="replace")}
    for fact, attribute in _ATTRIBUTES.items():
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, number) == 0:
            facts[fact] = str(value.value)
    return ", ".join(f"{fact}: {told}" for fact, told in facts.items())


if __name__ == "__main__":
    sys.exit(main())
