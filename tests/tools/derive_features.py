"""Derive `tvmtarget/target/cpu/data/features.json`: what each CPU of LLVM can do, and which feature needs which.

Run as `python tests/tools/derive_features.py`; it needs the extra `tvm`, whose wheel brings LLVM and answers for it.
LLVM puts three things under one roof. A name here is *tuning* if it changes which code is better, or is an option of
the code generator, and never which code is legal (LLVM's .td files call most of them `Tuning...`); it is *system* if it
is legal only in a kernel, or is what kernels and hypervisors switch off while programs go on as before; else it is a
feature of the instruction set. LLVM's binary does not say which is which, so the patterns below do, by name and by
LLVM's own description of a name (`-mattr=+help`).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

DATA = Path(__file__).parents[2] / "tvmtarget" / "target" / "cpu" / "data" / "features.json"

# Family in our table: the triple that names are listed for, and the ones whose own features are a baseline.
TRIPLES = {
    "x86": ("i686-linux-gnu", ("i386", "i586", "i686", "x86_64")),
    "aarch64": ("aarch64-linux-gnu", ("aarch64", "aarch64_be")),
    "arm": (
        "armv7a-linux-gnueabihf",
        (
            *(
                "arm",
                "armv4t",
                "armv5te",
                "armv6",
                "armv6k",
                "armv6t2",
                "armv7",
                "armv7a",
                "armv7r",
                "armv7k",
                "armv7s",
            ),
            *("armv8a", "armv8r", "armv8.1a", "armv8.2a", "armv8.3a", "armv8.4a", "armv8.5a", "armv8.6a", "armv9a"),
            *("thumbv6m", "thumbv7m", "thumbv7em", "thumbv8m.base", "thumbv8m.main", "thumbv8.1m.main"),
        ),
    ),
    "riscv": ("riscv64-linux-gnu", ("riscv32", "riscv64")),
    "hexagon": ("hexagon-linux", ()),
    "wasm": ("wasm32-unknown-unknown", ("wasm32", "wasm64")),
}

# Names of tuning, and of options: how code is laid out, hardened or aligned, which registers it leaves alone.
TUNING = {
    "x86": r"(16|32|64)bit-mode|allow-.*|branch-hint|branchfusion|ermsb|fsrm|false-deps-.*|fast-.*|faster-.*|harden-.*"
    r"|idiv.*|inline-asm-.*|lea-.*|lvi-.*|macrofusion|no-bypass-.*|pad-.*|prefer-.*|retpoline.*|sbb-.*|seses|slow-.*"
    r"|soft-float|sse-unaligned-mem|tagged-globals|tuning-.*|use-.*|vzeroupper|x32",
    "aarch64": r"addr-.*|aggressive-.*|all|alternate-.*|alu-.*|arith-.*|ascend-.*|avoid-.*|balance-.*|call-saved-.*"
    r"|cmp-bcc-.*|disable-.*|enable-.*|execute-only|exynos.*|fix-.*|fmv|force-.*|fuse-.*|harden-.*|ldp-.*|max-.*|no-.*"
    r"|outline-atomics|predictable-.*|reserve-.*|slow-.*|store-pair-.*|stp-.*|strict-align|tagged-globals|tpidr.*"
    r"|use-.*|zc[mz]-.*",
    "arm": r"32bit|aapcs-.*|atomics-32|avoid-.*|big-endian-.*|branch-align-.*|cheap-.*|disable-.*|dont-.*|execute-only"
    r"|expand-.*|fix-.*|fpao|fuse-.*|harden-.*|long-calls|loop-align|muxed-units|mve[124]beat|neon-fpmovs|neonfp|no-.*"
    r"|nonpipelined-vfp|prefer-.*|prof-unpr|read-tp-.*|reserve-.*|ret-addr-stack|slow.*|soft-float|splat-.*"
    r"|strict-align|thumb-mode|use-.*|vldn-align|vmlx-.*|wide-stride-.*|zcz",
    "riscv": r"",  # extensions describe themselves
    "hexagon": r"compound|duplex|long-calls|memops|noreturn-.*|nvj|nvs|packets|prev65|reserved-.*|small-data",
    "wasm": r"",
}

# Descriptions of a core's own bundle of tuning, which LLVM lists among the features.
CORES = r".* (processors|Processors)\.?|Apple (A|M)\d+.*"

SYSTEM = {
    "x86": r"fsgsbase|hreset|invpcid|k[l]|widekl|lwp|mwaitx|pconfig|pku|ptwrite|rdpru|sgx|shstk|uintr|usermsr|waitpkg"
    r"|wbnoinvd|xsavec|xsaveopt|xsaves|enqcmd|rtm|tsxldtrk",
    "aarch64": r"CONTEXTIDREL2|amv?s?|brbe|ccdp|ccidx|ccpp|chk|clrbhb|cmh|d128|ecv|el2vmsa|el3|ete|fgt|gcie|gcs|hcx|ite"
    r"|lor|mec|mpam|mpamv2|mtetc|nmi|nv|pan|pan-rwv|perfmon|poe2|predres|ras|rasv2|rme|sel2|spe|spe-eef|specres2"
    r"|specrestrict|ssbs|the|tlb.*|tracev8.4|trbe|uaops|vh|xs",
    "arm": r"clrbhb|perfmon|ras|trustzone|virtualization",
    "riscv": r"h|s.*",  # by RISC-V's naming, extensions of supervisors and machines begin with s
    "hexagon": r"",
    "wasm": r"",
}

# Extensions of RISC-V are described by their own name in quotes.
_RISCV = re.compile(r"'.*|Implements RV.*|RISC-V .* profile\.")


def derive() -> dict[str, object]:
    """Return the table as it is committed."""
    import tvm
    from tvm.target import codegen

    source = f"LLVM {codegen.llvm_version_major()}, as apache-tvm {tvm.__version__} answers (llvm_get_cpu_features)"
    return {"source": source, "families": {family: _family(family) for family in TRIPLES}}


def llvm_features(triple: str, cpu: str = "", changes: tuple[str, ...] = ()) -> set[str]:
    """Return the features that LLVM enables, including those for tuning."""
    import tvm
    from tvm.target import codegen

    target = {"kind": "llvm", "mtriple": triple, "mattr": list(changes)} | ({"mcpu": cpu} if cpu else {})
    return {str(name) for name in codegen.llvm_get_cpu_features(tvm.target.Target(target))}


def closed(implies: dict[str, list[str]], names: set[str]) -> set[str]:
    """Return names and all that they need."""
    found: set[str] = set()
    while names:
        found |= names
        names = {need for name in names for need in implies[name]} - found
    return found


def least(implies: dict[str, list[str]], names: set[str]) -> list[str]:
    """Return the fewest names that the others follow from."""
    following = {need for name in names for need in closed(implies, {name}) - {name}}
    return sorted(names - following)


def _family(family: str) -> dict[str, object]:
    from tvmtarget.target.cpu.chips import chips_of

    triple, archs = TRIPLES[family]
    described = _described(triple)
    tuning = {name for name, text in described.items() if _is_tuning(family, name, text)}
    isa = described.keys() - tuning
    off = tuple(f"-{name}" for name in sorted(llvm_features(triple)))
    forced = llvm_features(triple, changes=off)
    reached = {name: (llvm_features(triple, changes=(*off, f"+{name}")) - forced | {name}) & isa for name in isa}
    implies = {name: [] for name in isa}
    implies = {name: least(dict(_edges(reached)), reached[name] - {name}) for name in sorted(isa)}
    cpus = {cpu: llvm_features(triple, cpu) & isa for cpu in sorted(chips_of(family))}
    bases = {arch: llvm_features(f"{arch}-unknown-none") & isa for arch in archs}
    return {
        "implies": {name: " ".join(needs) for name, needs in implies.items()},
        "cpus": {cpu: " ".join(least(implies, names)) for cpu, names in cpus.items()},
        "baselines": {arch: " ".join(least(implies, names)) for arch, names in bases.items()},
        "system": " ".join(sorted(name for name in isa if re.fullmatch(SYSTEM[family], name))),
        "tuning": " ".join(sorted(tuning)),
    }


def _edges(reached: dict[str, set[str]]) -> dict[str, list[str]]:
    return {name: sorted(names - {name}) for name, names in reached.items()}


def _described(triple: str) -> dict[str, str]:
    """Return LLVM's description of every feature, which it prints for `+help`."""
    code = f"from tests.tools.derive_features import llvm_features; llvm_features({triple!r}, changes=('+help',))"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    listed = done.stderr.partition("Available features for this target:")[2]
    return dict(re.findall(r"^  (\S+) +- (.*)$", listed.partition("Use +feature")[0], re.MULTILINE))


def _is_tuning(family: str, name: str, text: str) -> bool:
    if family == "riscv":
        return not _RISCV.fullmatch(text)
    return bool(re.fullmatch(TUNING[family], name) or re.fullmatch(CORES, text))


if __name__ == "__main__":
    DATA.write_text(json.dumps(derive(), indent=1) + "\n", encoding="utf-8")
