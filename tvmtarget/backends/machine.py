"""Whether this machine can run what a CPU leaf describes: its architecture, operating system and instructions."""

from __future__ import annotations

import platform
import sys

from tvmtarget.target.tree import Target

__all__ = ["refuses_native", "refuses_triple"]

# Spellings of one architecture in LLVM triples and in platform.machine().
_ARCHITECTURES = {
    "x86_64": "x86_64",
    "amd64": "x86_64",
    "aarch64": "aarch64",
    "arm64": "aarch64",
    "i386": "x86",
    "i686": "x86",
    "x86": "x86",
    "riscv64": "riscv64",
}
_SYSTEMS = {"linux": ("linux",), "darwin": ("darwin", "macos"), "win32": ("windows", "win32")}
# LLVM's name of a CPU where archspec has another one (archspec-json, cpu/microarchitectures.json).
_ARCHSPEC = {f"znver{version}": f"zen{version}" for version in range(2, 6)} | {"znver1": "zen", "core-avx2": "haswell"}
# Flags that no code generator emits code for; hypervisors hide some of them.
_NOT_CODE = frozenset({"pku", "ospke", "waitpkg", "flush_l1d", "ssbs", "sgx", "clflushopt", "clwb", "rdrand", "rdseed"})
# Linux flags that LLVM spells otherwise.
_FLAGS = {"sse4.1": "sse4_1", "sse4.2": "sse4_2", "bmi": "bmi1", "lzcnt": "abm", "neon": "asimd"}


def refuses_triple(target: Target) -> str | None:
    """Return why code for a leaf's triple is foreign to this machine, or None if it is at home here."""
    triple = target.attrs.get("mtriple")
    if not isinstance(triple, str):
        return None
    here = _ARCHITECTURES.get(platform.machine().lower(), platform.machine().lower())
    there = triple.split("-")[0]
    if _ARCHITECTURES.get(there, there) != here:
        return f"it is for {triple!r}, and this machine is {platform.machine()!r}"
    systems = _SYSTEMS.get(sys.platform, (sys.platform,))
    if not any(system in part for part in triple.split("-")[1:] for system in systems):
        return f"it is for {triple!r}, and this machine runs {sys.platform}"
    return None


def refuses_native(target: Target) -> str | None:
    """Return why this machine cannot execute native code for a leaf, or None if it can."""
    foreign = refuses_triple(target)
    if foreign is not None:
        return foreign
    import archspec.cpu
    from archspec.cpu.detect import detected_info

    flags = set(detected_info().features)
    mcpu = target.attrs.get("mcpu")
    if isinstance(mcpu, str) and mcpu not in ("generic", "x86-64"):
        known = archspec.cpu.TARGETS.get(_ARCHSPEC.get(mcpu, mcpu.replace("-", "_")))
        if known is None:
            return f"nothing is known of CPU {mcpu!r}, so its instructions may be missing here"
        missing = sorted(set(known.features) - flags - _NOT_CODE)
        if missing:
            return f"CPU {mcpu!r} has {', '.join(missing[:4])}, which this machine lacks"
    wanted = target.attrs.get("mattr")
    names = [str(name)[1:] for name in (wanted if isinstance(wanted, tuple) else ()) if str(name).startswith("+")]
    missing = [name for name in names if _FLAGS.get(name, name) not in flags and name.replace("-", "_") not in flags]
    return f"feature {missing[0]!r} is asked for, and this machine lacks it" if missing else None
