"""What the code generators that this library drives take (entry points of `tvmtarget.strategies`)."""

from __future__ import annotations

from tvmtarget.partition import tvm_checks, tvm_rules
from tvmtarget.partition.strategy import Op, Reject, Strategy, reject

__all__ = ["CUDA", "LLVM", "NUMPY", "ONNXRUNTIME", "C"]


class LLVM(Strategy):
    """Apache TVM for CPUs: ONNX through Relax.

    What is refused is refused because it would raise late, be wrong without a word, or kill the process. One such
    risk is taken, as refusing it would refuse every embedding: indices that are computed at run time (Gather,
    Scatter and their kin) are not checked, and one outside of the tensor reads or writes elsewhere in memory.
    """

    ops = frozenset(tvm_rules.RULES) | frozenset(tvm_rules.REFUSED)
    refused = tvm_rules.REFUSED
    rules = tvm_rules.RULES
    dtypes = tvm_rules.DTYPES
    opsets = tvm_rules.OPSETS
    takes_unknown_ranks = False

    def check_op(self, op: Op) -> Reject | None:
        """Ask what is asked of every operation."""
        return tvm_checks.something_of_something(op)


class CUDA(LLVM):
    """Apache TVM for NVIDIA GPUs: the same operators as for CPUs."""


class C(LLVM):
    """Generated C: the same operators as for CPUs."""


class NUMPY(Strategy):
    """ONNX's reference evaluator: everything that ONNX defines."""

    takes_control_flow = True
    takes_non_tensors = True

    def check_op(self, op: Op) -> Reject | None:
        """Refuse operators of domains that are not ONNX's own."""
        return _only_onnx(op)


class ONNXRUNTIME(Strategy):
    """ONNX Runtime on the CPU: everything that ONNX defines, and its own domain."""

    takes_control_flow = True
    takes_non_tensors = True

    def check_op(self, op: Op) -> Reject | None:
        """Refuse operators of domains that nobody registers with it."""
        return None if op.kind.startswith("com.microsoft::") else _only_onnx(op)


def _only_onnx(op: Op) -> Reject | None:
    domain, separator, _ = op.kind.rpartition("::")
    if separator and domain not in ("ai.onnx.ml", "ai.onnx.preview.training"):
        return reject("NO_RULE", f"it does not know the domain {domain!r}")
    return None
