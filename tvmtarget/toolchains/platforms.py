"""The platform of a target, and the tools that serve it: names of compilers, Debian packages and emulators."""

from __future__ import annotations

import platform
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tvmtarget.target.cpu.isa import family_of, features_of, is_arm
from tvmtarget.target.cpu.triples import Triple
from tvmtarget.target.tree import Target

__all__ = ["PLATFORMS", "Platform", "general", "is_this_machine", "platform_of", "this_machine", "triple_of"]


@dataclass(frozen=True)
class Platform:
    """What is known about the tools of a platform.

    Attributes:
        gnu: the triple in GNU's spelling; the prefix of cross compilers, and the folder of its libraries in `/usr`.
        compilers: Debian packages with the C and C++ compilers and the C library.
        emulator: name of the QEMU command; empty if there is none.
        emulator_package: the Debian package of the emulator.
        zig: Zig's name of the platform; empty if Zig has no C library for it.
    """

    gnu: str
    compilers: str
    emulator: str = ""
    emulator_package: str = "qemu-user"
    zig: str = ""


def _linux(gnu: str, debian: str, emulator: str, zig: str = "") -> Platform:
    return Platform(gnu, f"gcc-{gnu} g++-{gnu} libc6-dev-{debian}-cross", emulator, zig=zig or gnu)


# By `general` triple. Names of packages are those of Debian 12 and Ubuntu 24.04.
PLATFORMS: Mapping[str, Platform] = {
    "aarch64-linux-gnu": _linux("aarch64-linux-gnu", "arm64", "qemu-aarch64"),
    "arm-linux-gnueabihf": _linux("arm-linux-gnueabihf", "armhf", "qemu-arm"),
    "arm-linux-gnueabi": _linux("arm-linux-gnueabi", "armel", "qemu-arm"),
    "riscv64-linux-gnu": _linux("riscv64-linux-gnu", "riscv64", "qemu-riscv64"),
    "i386-linux-gnu": _linux("i686-linux-gnu", "i386", "qemu-i386", "x86-linux-gnu"),
    "x86_64-linux-gnu": _linux("x86_64-linux-gnu", "amd64", "qemu-x86_64"),
    "powerpc64le-linux-gnu": _linux("powerpc64le-linux-gnu", "ppc64el", "qemu-ppc64le"),
    "arm-eabi": Platform(
        "arm-none-eabi", "gcc-arm-none-eabi libnewlib-arm-none-eabi", "qemu-system-arm", "qemu-system-arm"
    ),
}

# The usual system of CPUs that are stated without a triple.
_USUAL = {"x86": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu", "arm": "arm-linux-gnueabihf"}
_USUAL["riscv"] = "riscv64-linux-gnu"


@cache
def this_machine() -> Triple:
    """Return the platform of this process."""
    return Triple.parse(str(sysconfig.get_config_var("HOST_GNU_TYPE") or f"{platform.machine()}-{sys.platform}"))


def triple_of(target: Target) -> Triple:
    """Return the platform of a CPU target.

    Without a triple it is that of this machine, unless the CPU is of another family: then it is Linux with GNU's C
    library, or no system at all for the cores of microcontrollers, which pass floats in registers if they have any.

    Args:
        target: a CPU target.

    Returns:
        The triple.
    """
    stated = target.attrs.get("mtriple")
    if isinstance(stated, str) and stated:
        return Triple.parse(stated)
    family, features = family_of(target.kind, target.attrs), features_of(target.kind, target.attrs)
    if family == "arm" and "mclass" in features:
        return Triple.parse("arm-none-eabihf" if "vfp2sp" in features else "arm-none-eabi")
    if family == "riscv" and "32bit" in features:
        return Triple.parse("riscv32-none-elf")  # the cores of microcontrollers, too
    if family == "" and is_arm(target.kind, target.attrs) and this_machine().family != "arm":
        family = "aarch64"  # of 32 or 64 bits, such as march=armv8-a
    if family in ("", this_machine().family):
        return this_machine()
    if family == "arm" and "vfp2sp" not in features:
        return Triple.parse("arm-linux-gnueabi")
    return Triple.parse(_USUAL.get(family, f"{family}-linux-gnu"))


def general(triple: Triple) -> str:
    """Return the platform of a triple without vendor and version, as tools are named by it.

    Args:
        triple: a triple.

    Returns:
        Such as `arm-linux-gnueabihf` for `armv7l-unknown-linux-gnueabihf`.
    """
    environment = triple.environment
    arch = "arm" if triple.family == "arm" and triple.endian == "little" else triple.arch
    if triple.os == "linux":
        bare = {"": "gnu"} | {"eabi": "gnueabi", "eabihf": "gnueabihf"}
        environment = bare.get(environment, environment)
        if arch == "arm" and environment == "gnu":
            environment = "gnueabi"
    elif arch == "arm" and triple.os in ("", "none") and environment in ("", "eabi", "eabihf"):
        environment = "eabi"  # one compiler; the float ABI is an option of it
    return Triple(arch, "", "", triple.os, "", environment).key


def platform_of(triple: Triple) -> Platform | None:
    """Return the known tools of a platform.

    Args:
        triple: a triple.

    Returns:
        The tools, or None for an unknown platform.
    """
    return PLATFORMS.get(general(triple))


def is_this_machine(triple: Triple) -> bool:
    """Whether a platform is that of this process.

    Instructions are not compared.

    Args:
        triple: a triple.

    Returns:
        True if architecture, system and C library are those of this process.
    """
    return general(triple) == general(this_machine())
