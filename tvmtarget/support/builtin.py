"""What the code generators that this library drives take (entry points of `tvmtarget.strategies`)."""

from __future__ import annotations

from typing import ClassVar

from tvmtarget.ir.function import Attribute
from tvmtarget.support import onnxruntime_rules, tvm_checks, tvm_rules
from tvmtarget.support.relax_rules import check_relax, is_relax
from tvmtarget.support.strategy import Op, Reject, Rule, Strategy, reject
from tvmtarget.support.tvm_gpu_checks import fits_gpu

__all__ = ["CUDA", "LLVM", "NUMPY", "ONNXRUNTIME", "C"]


class LLVM(Strategy):
    """Apache TVM for CPUs: ONNX through Relax, Relax, and TIR.

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

    def check(self, op: Op) -> Reject | None:
        """Answer for operations of Relax by their own table, for ONNX's by this one."""
        return check_relax(op) if is_relax(op) else super().check(op)

    def check_op(self, op: Op) -> Reject | None:
        """Ask what is asked of every operation."""
        return tvm_checks.something_of_something(op)


class CUDA(LLVM):
    """Apache TVM for NVIDIA GPUs: the same operators as for CPUs, but for what its schedules for GPUs do not take."""

    def check(self, op: Op) -> Reject | None:
        """Ask what is asked for a CPU, then what a GPU asks for."""
        return super().check(op) or fits_gpu(op)


class C(LLVM):
    """Generated C: the same operators as for CPUs."""


_FORWARDS: dict[str, tuple[Attribute, ...]] = {
    f"scan_{side}_{what}": tuple((0,) * count for count in range(1, 17))
    for side in ("input", "output")
    for what in ("axes", "directions")
}


class NUMPY(Strategy):
    """ONNX's reference evaluator: what ONNX defines, but for what it computes otherwise.

    Found by running ONNX's node tests with onnx 1.23: it scans by the meaning that Scan has since version 9, forwards
    and along first axes, and decodes images where Pillow is installed, which is not asked for.
    """

    refused: ClassVar[dict[str, str]] = {
        "ImageDecoder": "it decodes images by Pillow only",
        **{kind: f"it has no kernel for {kind}" for kind in ("GlobalLpPool", "MaxRoiPool", "Multinomial")},
    }
    rules: ClassVar[dict[str, Rule]] = {"Scan": Rule(opsets=range(9, 1000), attrs=_FORWARDS)}

    takes_control_flow = True
    takes_non_tensors = True

    def check_op(self, op: Op) -> Reject | None:
        """Refuse operators of domains that are not ONNX's own, and absent values, which the evaluator cannot return."""
        if op.kind == "Optional" and not op.inputs:
            return reject("RULE", "it cannot make an optional value that is absent")
        return _only_domains(op, "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")


class ONNXRUNTIME(Strategy):
    """ONNX Runtime on the CPU: what ONNX defines, on the types that its Python interface and kernels have.

    Found by running ONNX's node tests with onnxruntime 1.31, which takes operator sets up to 26 and says so.
    """

    refused = onnxruntime_rules.REFUSED
    rules = onnxruntime_rules.RULES
    dtypes = tvm_rules.DTYPES - {"bfloat16"} | {"string", "complex64", "complex128"}
    opsets = range(1, 27)
    takes_control_flow = True
    takes_non_tensors = True

    def check_op(self, op: Op) -> Reject | None:
        """Refuse operators of domains that nobody registers with it."""
        return _only_domains(op, "ai.onnx.ml", "com.microsoft")


def _only_domains(op: Op, *domains: str) -> Reject | None:
    if is_relax(op):
        return reject("NO_RULE", f"it runs ONNX, and {op.kind} is of Relax")
    domain, separator, _ = op.kind.rpartition("::")
    if separator and domain not in domains:
        return reject("NO_RULE", f"it does not know the domain {domain!r}")
    return None
