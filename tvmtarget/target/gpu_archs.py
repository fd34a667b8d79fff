"""GPU architectures: which one can run instructions of which other, for NVIDIA and AMD.

NVIDIA (CUDA C++ Programming Guide, "Feature set compiler targets"; PTX ISA, `.target`): `sm_90` needs compute
capability 9.0 or later. The suffix `a` needs features of that chip alone, `f` those of its family: chips of the same
major capability, from the named one on. `sm_103a` has all of `sm_103f`, that all of `sm_100f`, and each has all of its
number. `sm_101` was renamed `sm_110` (PTX ISA 9.0). A measured chip has all features of its own capability; a target
written as `sm_90` is for code that uses no others.

AMD (LLVM, "User Guide for AMDGPU Backend", Generic Processors): a processor runs its own code, and that of its generic
processor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["NvidiaArch", "has_instructions", "is_ordered", "runs_machine_code"]

_NVIDIA = re.compile(r"sm_([0-9]{1,4})([0-9])([af]?)")
_RENAMED = {(10, 1): (11, 0)}

_GENERIC = {
    "gfx9-generic": ("gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c"),
    "gfx9-4-generic": ("gfx940", "gfx941", "gfx942", "gfx950"),
    "gfx10-1-generic": ("gfx1010", "gfx1011", "gfx1012", "gfx1013"),
    "gfx10-3-generic": tuple(f"gfx103{number}" for number in range(7)),
    "gfx11-generic": (
        *(f"gfx110{number}" for number in range(4)),
        *(f"gfx115{number}" for number in range(4)),
    ),
    "gfx12-generic": ("gfx1200", "gfx1201"),
}


@dataclass(frozen=True, slots=True)
class NvidiaArch:
    """A compute capability with an optional suffix: `a` for features of the chip, `f` for those of its family."""

    major: int
    minor: int
    suffix: str = ""

    @classmethod
    def parse(cls, name: str) -> NvidiaArch | None:
        """Parse a name such as `sm_90a`.

        Args:
            name: the name.

        Returns:
            The architecture, or None for any other text.
        """
        found = _NVIDIA.fullmatch(name)
        if found is None:
            return None
        capability = int(found.group(1)), int(found.group(2))
        return cls(*_RENAMED.get(capability, capability), found.group(3))

    @property
    def capability(self) -> tuple[int, int]:
        """Major and minor number."""
        return self.major, self.minor

    def has(self, required: NvidiaArch, *, measured: bool) -> bool:
        """Whether this GPU has all instructions of another architecture.

        Args:
            required: the other architecture.
            measured: whether this is a measured chip, which has the features of its suffix `a`.

        Returns:
            True if code for `required` can use no instruction that is missing here.
        """
        if required.suffix == "a":
            return self.capability == required.capability and (measured or self.suffix == "a")
        if required.suffix == "f":
            is_specific = measured or self.suffix != ""
            return is_specific and self.major == required.major and self.minor >= required.minor
        return self.capability >= required.capability


def has_instructions(actual: str, required: str, *, measured: bool = False) -> bool | None:
    """Whether a GPU has all instructions of another.

    Args:
        actual: name of the present GPU.
        required: name of the required GPU.
        measured: whether `actual` is a measured chip, which has the features of its suffix `a`.

    Returns:
        None if the names differ and no rule relates them.

    >>> has_instructions("sm_90", "sm_90a"), has_instructions("sm_90", "sm_90a", measured=True)
    (False, True)
    >>> has_instructions("sm_103a", "sm_100f"), has_instructions("sm_120a", "sm_100f")
    (True, False)
    """
    if actual == required:
        return True
    here, there = NvidiaArch.parse(actual), NvidiaArch.parse(required)
    if here is not None and there is not None:
        return here.has(there, measured=measured)
    if actual.startswith("gfx") and required.startswith("gfx"):
        return actual in _GENERIC.get(required, ())
    return None


def is_ordered(name: str) -> bool:
    """Whether more than one GPU can have all instructions of an architecture.

    Args:
        name: name of the architecture.

    Returns:
        True for compute capabilities and generic processors.

    >>> [is_ordered(name) for name in ("sm_90a", "gfx11-generic", "gfx90a")]
    [True, True, False]
    """
    return NvidiaArch.parse(name) is not None or name in _GENERIC


def runs_machine_code(device: str, built_for: str) -> bool:
    """Whether a measured NVIDIA GPU runs machine code of an architecture.

    Machine code runs on the same major capability from its minor one on; PTX also runs on later ones (CUDA C++
    Programming Guide, "Binary compatibility").

    Args:
        device: architecture of the measured GPU.
        built_for: architecture that the code was built for.

    Returns:
        True also for names that are not known, which the GPU's driver has to judge.

    >>> runs_machine_code("sm_86", "sm_80"), runs_machine_code("sm_90", "sm_80"), runs_machine_code("sm_90", "sm_90a")
    (True, False, True)
    """
    here, there = NvidiaArch.parse(device), NvidiaArch.parse(built_for)
    if here is None or there is None:
        return True  # a spelling of later chips; the driver has the last word
    return here.major == there.major and here.has(there, measured=True)
