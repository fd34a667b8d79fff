"""Derive `tvmtarget/target/cpu/data/chips.json`: the names of CPUs and GPUs that LLVM knows, by architecture.

Run as `python tests/tools/derive_chips.py`; it needs the extra `tvm`, whose wheel brings LLVM and lists its names.
"""

from __future__ import annotations

import json
from pathlib import Path

DATA = Path(__file__).parents[2] / "tvmtarget" / "target" / "cpu" / "data" / "chips.json"

# Architecture in our table: a triple that LLVM lists the names for.
TRIPLES = {
    "x86": "x86_64-linux-gnu",
    "aarch64": "aarch64-linux-gnu",
    "arm": "armv7a-linux-gnueabihf",
    "riscv": "riscv64-linux-gnu",
    "hexagon": "hexagon-linux",
    "nvptx": "nvptx64-nvidia-cuda",
    "amdgcn": "amdgcn-amd-amdhsa-hcc",
    "wasm": "wasm32-unknown",
}

# Second names (`ProcessorAlias` in LLVM's AArch64Processors.td), which LLVM takes but does not list.
ALIASES = {
    "aarch64": (
        *("apple-a8", "apple-a9", "apple-a18", "apple-a19", "apple-m1", "apple-m2", "apple-m3", "apple-s4", "apple-s5"),
        *("apple-s6", "apple-s7", "apple-s8", "apple-s9", "apple-s10", "apple-latest", "cobalt-100", "cyclone"),
    )
}


def derive() -> dict[str, object]:
    """Return the table as it is committed."""
    import tvm
    from tvm.target import codegen

    chips = {}
    for arch, triple in TRIPLES.items():
        listed = {str(name) for name in codegen.llvm_get_cpu_archlist(_target(tvm, triple))}
        aliases = {name for name in ALIASES.get(arch, ()) if codegen.llvm_is_valid_cpu(name, triple)}
        chips[arch] = sorted(listed | aliases)
    source = f"LLVM {codegen.llvm_version_major()}, as listed by apache-tvm {tvm.__version__} (llvm_get_cpu_archlist)"
    return {"source": source, "chips": chips}


def _target(tvm, triple: str):
    return tvm.target.Target({"kind": "llvm", "mtriple": triple})


if __name__ == "__main__":
    DATA.write_text(json.dumps(derive(), indent=1) + "\n", encoding="utf-8")
