"""Vector registers of an llvm target, by the features of its CPU. TVM is imported late and ships no types."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

from tvmtarget.backends.tvm.register_tiling import VectorUnit

__all__ = ["vector_unit"]

Target: TypeAlias = Any

# Vector registers by LLVM's features of a CPU, the first match counts. Sources: Intel SDM 1, chapters 10 to 15; Arm ARM
# for A-profile, parts B and E; RISC-V "V" 1.0, chapters 3 and 18. Elsewhere there are no register blocks.
UNITS = (
    ({"avx512f"}, VectorUnit(512, 32, multiplies_pairs=True)),
    ({"avx", "fma"}, VectorUnit(256, 16, multiplies_pairs=True)),
    ({"avx"}, VectorUnit(256, 16, is_fused=False, multiplies_pairs=True)),
    ({"sse2", "64bit-mode"}, VectorUnit(128, 16, broadcast=2, is_fused=False, multiplies_pairs=True)),
    ({"sse2"}, VectorUnit(128, 8, broadcast=2, is_fused=False, multiplies_pairs=True)),
    ({"neon", "aclass"}, VectorUnit(128, 16)),
    ({"neon"}, VectorUnit(128, 32)),
    ({"zvl512b"}, VectorUnit(512, 32)),
    ({"zvl256b"}, VectorUnit(256, 32)),
    ({"v"}, VectorUnit(128, 32)),
)
SCALAR = VectorUnit(32, 16)


def vector_unit(target: Target) -> VectorUnit:
    """Return the vector unit of a target; its attribute vector-width overrides the CPU's.

    `llvm_get_vector_width` returns 512 for every x86-64, SSE2 alone included, and is not used.

    Args:
        target: TVM's target of kind llvm.

    Returns:
        Width and number of the vector registers.
    """
    from tvm.target import codegen

    features = {str(name) for name in codegen.llvm_get_cpu_features(target)}
    unit = next((unit for needed, unit in UNITS if needed <= features), SCALAR)
    return replace(unit, bits=int(target.attrs.get("vector-width", unit.bits)))
