"""Parse target triples as LLVM does: `arm64-apple-macos` and `aarch64-apple-macosx` are equal.

Components and their order are LLVM's (`llvm/TargetParser/Triple.h`, `Triple::normalize`): two to four components, the
architecture first, the others recognized by their values. Parsing does not depend on the machine that it runs on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from tvmtarget.errors import TargetError, did_you_mean
from tvmtarget.target.problems import shown

__all__ = ["Triple", "looks_like_triple"]

# Architectures by LLVM's name: family (the table of CPUs), bits of an address, and whether it is big-endian.
_ARCHS: dict[str, tuple[str, int, bool]] = {
    "i386": ("x86", 32, False),
    "x86_64": ("x86", 64, False),
    "aarch64": ("aarch64", 64, False),
    "aarch64_be": ("aarch64", 64, True),
    "aarch64_32": ("aarch64", 32, False),
    "arm": ("arm", 32, False),
    "armeb": ("arm", 32, True),
    "thumb": ("arm", 32, False),
    "thumbeb": ("arm", 32, True),
    "riscv32": ("riscv", 32, False),
    "riscv64": ("riscv", 64, False),
    "hexagon": ("hexagon", 32, False),
    "wasm32": ("wasm", 32, False),
    "wasm64": ("wasm", 64, False),
    "nvptx": ("nvptx", 32, False),
    "nvptx64": ("nvptx", 64, False),
    "amdgcn": ("amdgcn", 64, False),
    "r600": ("r600", 32, False),
    "spirv32": ("spirv", 32, False),
    "spirv64": ("spirv", 64, False),
    "powerpc": ("powerpc", 32, True),
    "powerpcle": ("powerpc", 32, False),
    "powerpc64": ("powerpc", 64, True),
    "powerpc64le": ("powerpc", 64, False),
    "mips": ("mips", 32, True),
    "mipsel": ("mips", 32, False),
    "mips64": ("mips", 64, True),
    "mips64el": ("mips", 64, False),
    "sparc": ("sparc", 32, True),
    "sparcv9": ("sparc", 64, True),
    "s390x": ("systemz", 64, True),
    "loongarch32": ("loongarch", 32, False),
    "loongarch64": ("loongarch", 64, False),
    "xtensa": ("xtensa", 32, False),
    "avr": ("avr", 16, False),
    "msp430": ("msp430", 16, False),
}

_SPELLINGS = {
    "amd64": "x86_64",
    "x86-64": "x86_64",
    "x86_64h": "x86_64",
    "x86": "i386",
    "i86pc": "i386",
    "arm64": "aarch64",
    "arm64e": "aarch64",
    "arm64ec": "aarch64",
    "arm64_32": "aarch64_32",
    "ppc": "powerpc",
    "ppc64": "powerpc64",
    "ppc64le": "powerpc64le",
    "ppc32": "powerpc",
    "sparc64": "sparcv9",
    "systemz": "s390x",
    "spirv": "spirv64",
}

# Versions of the Arm architecture after `arm` or `thumb` (`llvm/TargetParser/ARMTargetParser.def`).
_ARM = re.compile(r"(arm|thumb)(eb)?(v(?:[4-9]|[89]\.[0-9])[a-z0-9]*(?:\.(?:base|main))?)?(eb)?")
_X86 = re.compile(r"i[3-9]86")

# uname and Linux distributions append the byte order and the float ABI to the name of an architecture.
_ARM_SUBS = {
    "v7l": "v7",
    "v7hl": "v7",
    "v8l": "v8a",
    "v8": "v8a",
    "v6l": "v6",
    "v6hl": "v6",
    "v5tel": "v5te",
    "v9": "v9a",
}

_OSES = (
    *("linux", "darwin", "macos", "macosx", "ios", "tvos", "watchos", "xros", "visionos", "driverkit"),
    *("windows", "win32", "mingw32", "freebsd", "netbsd", "openbsd", "dragonfly", "solaris", "haiku", "fuchsia"),
    *("cuda", "nvcl", "amdhsa", "amdpal", "mesa3d", "vulkan", "opencl", "emscripten", "wasi", "rtems", "uefi", "zos"),
    *("aix", "hurd", "nacl", "unknown", "none"),
)
_ENVIRONMENTS = (
    *("gnu", "gnueabi", "gnueabihf", "gnux32", "gnu_ilp32", "gnuabi64", "gnuabin32", "gnuf32", "gnuf64", "gnusf"),
    *("musl", "musleabi", "musleabihf", "muslx32", "eabi", "eabihf", "android", "androideabi", "msvc", "itanium"),
    *("cygnus", "simulator", "macabi", "hcc", "ohos", "elf", "macho", "coff", "llvm", "newlib"),
)
_VENDORS = ("apple", "pc", "nvidia", "amd", "ibm", "arm", "conda", "w64", "poky", "oe", "redhat", "suse", "scei", "mti")
_NOTHING = ("none", "unknown")
_NO_VENDORS = ("", "apple", "pc", "conda", "w64", "poky", "oe", "redhat", "suse")
_VERSION = re.compile(r"(.*?[^0-9.])([0-9][0-9.]*)?")
_OS_SPELLINGS = {"macosx": "macos", "win32": "windows", "visionos": "xros"}


@dataclass(frozen=True, slots=True)
class Triple:
    """Platform to generate code for; `str` is LLVM's normal form, `key` omits the vendor.

    `arch` is LLVM's name (aarch64 for arm64, i386 for i686), `sub` the version in it: v7a, i686. `version` is that of
    the system: 20.1 in darwin20.1. Omitted components are empty.
    """

    arch: str
    sub: str = ""
    vendor: str = ""
    os: str = ""
    version: str = ""
    environment: str = ""

    @classmethod
    def parse(cls, text: str) -> Triple:
        """Parse a triple.

        Args:
            text: An architecture, and up to three more components in any order.

        Returns:
            The triple with canonical names.

        Raises:
            TargetError: A component is unknown; the message suggests the nearest names.

        >>> Triple.parse("arm64-apple-macos").arch, str(Triple.parse("aarch64-linux-gnu"))
        ('aarch64', 'aarch64-unknown-linux-gnu')
        """
        if not isinstance(text, str):
            raise TargetError(f"a triple is text such as 'aarch64-linux-gnu', not {shown(text)}")
        return _parse(text)

    @property
    def family(self) -> str:
        """Name of the table of CPUs and features: x86, aarch64, arm, riscv, ..."""
        return _ARCHS[self.arch][0]

    @property
    def bits(self) -> int:
        """Width of a pointer in bits; 32 for environments with short pointers (x32, ILP32)."""
        return 32 if self.environment in ("gnux32", "muslx32", "gnu_ilp32") else _ARCHS[self.arch][1]

    @property
    def endian(self) -> Literal["little", "big"]:
        """Byte order."""
        return "big" if _ARCHS[self.arch][2] else "little"

    @property
    def float_abi(self) -> Literal["hard", "soft"] | None:
        """Float calling convention of 32-bit Arm; None elsewhere."""
        if self.family != "arm" or not self.environment:
            return None
        if self.environment.endswith("eabihf"):
            return "hard"
        return "soft" if self.environment.endswith("eabi") else None

    @property
    def machine(self) -> str:
        """First component of the triple: the architecture with its version."""
        return self.sub if self.arch == "i386" and self.sub else self.arch + self.sub

    @property
    def key(self) -> str:
        """Normal form that is equal for triples of one platform: without vendors that do not affect code.

        >>> Triple.parse("x86_64-pc-linux-gnu").key == Triple.parse("amd64-conda-linux-gnu").key
        True
        """
        vendor = "" if self.vendor in _NO_VENDORS else self.vendor
        os = "" if self.os in ("none", "unknown") else self.os + self.version
        words = (self.machine, "" if self.os else vendor, os, self.environment)
        return "-".join(filter(None, words))

    def __str__(self) -> str:
        words = [self.machine, self.vendor or "unknown", (self.os or "unknown") + self.version, self.environment]
        return "-".join(filter(None, words))


def looks_like_triple(word: str) -> bool:
    """Whether a word has the form of a triple.

    Args:
        word: A word of a target text.

    Returns:
        True for an architecture, a hyphen, and components that only triples have.

    >>> [looks_like_triple(word) for word in ("arm64-apple-macos", "x86-64-v3", "hexagon", "cortex-a72")]
    [True, False, False, False]
    """
    if "-" not in word:
        return False
    try:
        triple = _parse(word)
    except TargetError:
        return False
    return bool(triple.os or triple.environment or triple.vendor in _VENDORS)


@lru_cache(maxsize=1024)  # many nodes have equal triples
def _parse(text: str) -> Triple:
    first, *words = re.sub(r"^x86-64(?=-|$)", "x86_64", text).split("-")
    arch, sub = _arch(first, text)
    if len(words) > 4:
        raise TargetError(
            f"triple {shown(text)} has {len(words) + 1} components; write at most arch-vendor-os-environment"
        )
    os = version = environment = ""
    rest: list[str] = []
    for word in filter(None, words):
        stem, number = _stem(word)
        if stem in _OSES and not os and stem not in _NOTHING:
            os, version = _OS_SPELLINGS.get(stem, stem), number
        elif stem in _ENVIRONMENTS and not environment:
            environment = word
        else:
            rest.append(word)
    vendor = next((word for word in rest if word not in _NOTHING), "")
    _check_words(text, vendor, rest)
    if os == "mingw32":
        os, environment = "windows", environment or "gnu"
    return Triple(arch, sub, vendor, os or ("none" if "none" in rest else ""), version, environment)


def _stem(word: str) -> tuple[str, str]:
    """Split a version number off a component."""
    if word in _OSES or word in _ENVIRONMENTS:
        return word, ""
    found = _VERSION.fullmatch(word)
    return (found.group(1), found.group(2) or "") if found else (word, "")


def _arch(word: str, text: str) -> tuple[str, str]:
    word = word.lower()
    if _X86.fullmatch(word):
        return "i386", "" if word == "i386" else word
    known = _SPELLINGS.get(word, word)
    if known in _ARCHS:
        return known, ""
    if found := _ARM.fullmatch(word):
        arch, begin, sub, end = found.groups()
        return arch + (begin or end or ""), _ARM_SUBS.get(sub or "", sub or "")
    where = "" if word == text.lower() else f" of triple {shown(text)}"
    raise TargetError(f"architecture {shown(word)}{where} is unknown{did_you_mean(word, [*_ARCHS, *_SPELLINGS])}")


def _check_words(text: str, vendor: str, rest: Sequence[str]) -> None:
    """Reject unknown components, and a vendor that is probably a misspelled system."""
    if not rest or (rest == [vendor] and vendor in _VENDORS):
        return
    from difflib import get_close_matches  # most triples have no other words

    known = (*_OSES, *_ENVIRONMENTS)
    is_near = vendor not in ("", *_VENDORS) and bool(
        _stem(vendor)[0] in known or get_close_matches(vendor, known, cutoff=0.8)
    )
    wrong = next((word for word in rest if word not in _NOTHING and (word != vendor or is_near)), None)
    if wrong is not None:
        raise TargetError(f"triple {shown(text)} has an unknown component {shown(wrong)}{did_you_mean(wrong, known)}")
