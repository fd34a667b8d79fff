"""Program that prints facts about NVIDIA GPUs that nvidia-smi lacks: one line for each GPU, facts as `name: value`.

Detection runs it as a separate process, as a process that has initialized the CUDA driver cannot use it after a fork.
"""

from __future__ import annotations

import ctypes
import sys

# Values of the enumeration CUdevice_attribute (cuda.h).
_ATTRIBUTES = {
    "num-compute-units": 16,
    "l2_cache_size_bytes": 38,
    "compute-capability-major": 75,
    "compute-capability-minor": 76,
}


def main() -> int:
    """Print the GPUs that this process may use.

    Returns:
        The exit status, 0 also without a driver.
    """
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
    name, result = ctypes.create_string_buffer(256), ctypes.c_int()
    driver.cuDeviceGetName(name, len(name), number)
    facts = {"name": name.value.decode(errors="replace")}
    for fact, attribute in _ATTRIBUTES.items():
        if driver.cuDeviceGetAttribute(ctypes.byref(result), attribute, number) == 0:
            facts[fact] = str(result.value)
    return ", ".join(f"{fact}: {value}" for fact, value in facts.items())


if __name__ == "__main__":
    sys.exit(main())
