"""Values of 4 bits, which code generators know as constants that are dequantised only."""

from __future__ import annotations

from tvmtarget.support.op import Op, Reject, reject

__all__ = ["FOUR_BITS", "check_four_bits"]

FOUR_BITS = frozenset({"int4", "uint4"})


def check_four_bits(op: Op) -> Reject | None:
    """Reject values of 4 bits but dequantised constants.

    Args:
        op: an operation of any operator.

    Returns:
        None if it has no others.
    """
    if FOUR_BITS.isdisjoint(op.dtypes):
        return None
    constant = all(op.is_constant(index) for index in (0, 2) if op.operand(index))
    if op.kind in ("DequantizeLinear", "com.microsoft::DequantizeLinear") and constant:
        return None
    return reject(
        "DTYPE", f"it supports 4 bits only in constants of DequantizeLinear, not in {op.kind}", hint="cast to int8"
    )
