"""Which GPU has the instructions of which: NVIDIA's compute capabilities, AMD's processors.

NVIDIA (CUDA C++ Programming Guide, "Feature set compiler targets"; PTX ISA, `.target`): `sm_90` asks for capability 9.0
or a later one. The suffix `a` asks for features of that chip alone, `f` for those of its family: chips of the same
major capability, from the named one on. `sm_103a` has all of `sm_103f`, that all of `sm_100f`, and each all of its
number. `sm_101` was renamed `sm_110` (PTX ISA 9.0). A chip that was measured has all features of its own capability; a
target that was written `sm_90` asks for code that uses no others.

AMD (LLVM, "User Guide for AMDGPU Backend", Generic Processors): a processor runs its own code, and that for the generic
processor which it is one of.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["NvidiaArch", "has_instructions", "is_ordered", "runs_machine_code"]

_NVIDIA = re.compile(r"sm_([0-9]+)([0-9])([af]?)")
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
    """A compute capability, and a suffix: `a` for features of the chip, `f` for those of its family."""

    major: int
    minor: int
    suffix: str = ""

    @classmethod
    def parse(cls, name: str) -> NvidiaArch | None:
        """Read a name such as `sm_90a`; None for what is none."""
        found = _NVIDIA.fullmatch(name)
        if found is None:
            return None
        capability = int(found.group(1)), int(found.group(2))
        return cls(*_RENAMED.get(capability, capability), found.group(3))

    @property
    def capability(self) -> tuple[int, int]:
        """Major and minor number."""
        return self.major, self.minor

    def has(self, wanted: NvidiaArch, *, measured: bool) -> bool:
        """Whether all instructions of another name are there."""
        if wanted.suffix == "a":
            return self.capability == wanted.capability and (measured or self.suffix == "a")
        if wanted.suffix == "f":
            is_specific = measured or self.suffix != ""
            return is_specific and self.major == wanted.major and self.minor >= wanted.minor
        return self.capability >= wanted.capability


def has_instructions(actual: str, wanted: str, *, measured: bool = False) -> bool | None:
    """Say whether a GPU has all instructions of another; None where nothing is known of two names that differ.

    Args:
        actual: The name of what is there.
        wanted: The name of what is needed.
        measured: Whether `actual` is a chip that was measured, so that it has the features of a suffix.

    >>> has_instructions("sm_90", "sm_90a"), has_instructions("sm_90", "sm_90a", measured=True)
    (False, True)
    >>> has_instructions("sm_103a", "sm_100f"), has_instructions("sm_120a", "sm_100f")
    (True, False)
    """
    if actual == wanted:
        return True
    here, there = NvidiaArch.parse(actual), NvidiaArch.parse(wanted)
    if here is not None and there is not None:
        return here.has(there, measured=measured)
    if actual.startswith("gfx") and wanted.startswith("gfx"):
        return actual in _GENERIC.get(wanted, ())
    return None


def is_ordered(name: str) -> bool:
    """Whether more than one GPU can have all instructions of this one.

    >>> [is_ordered(name) for name in ("sm_90a", "gfx11-generic", "gfx90a")]
    [True, True, False]
    """
    return NvidiaArch.parse(name) is not None or name in _GENERIC


def runs_machine_code(device: str, built_for: str) -> bool:
    """Whether a measured NVIDIA GPU runs machine code of an architecture: its own major one, and no later minor one.

    PTX goes to later architectures as well, machine code does not (CUDA C++ Programming Guide, "Binary compatibility").

    >>> runs_machine_code("sm_86", "sm_80"), runs_machine_code("sm_90", "sm_80"), runs_machine_code("sm_90", "sm_90a")
    (True, False, True)
    """
    here, there = NvidiaArch.parse(device), NvidiaArch.parse(built_for)
    if here is None or there is None:
        return True  # a spelling of later chips; the driver has the last word
    return here.major == there.major and here.has(there, measured=True)
