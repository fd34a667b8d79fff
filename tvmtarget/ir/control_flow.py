"""Operators with regions: a branch chooses one of them, a loop or scan repeats one.

Sources: the ONNX operator specification (Operators.md: If, Loop, Scan) and Relax (`relax.expr.If`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tvmtarget.ir.function import Call

__all__ = [
    "BATCHED_SCAN",
    "CONTROL_FLOW_FORMS",
    "BodyArgument",
    "ControlFlowForm",
    "body_arguments",
    "control_flow_form",
]

# Version of the ONNX operator set in which Scan had a batch axis.
BATCHED_SCAN = 8


@dataclass(frozen=True, slots=True)
class ControlFlowForm:
    """How a driver runs an operator.

    Attributes:
        kind: `branch` on its first operand, `loop` with carried values, or `scan` over slices.
        bodies: labels of the regions; of a branch, the one to run if the operand is true comes first.
    """

    kind: Literal["branch", "loop", "scan"]
    bodies: tuple[str, ...]

    @property
    def repeats(self) -> bool:
        """Whether a region may run more than once for one run of the operation."""
        return self.kind != "branch"


CONTROL_FLOW_FORMS: Mapping[str, ControlFlowForm] = {
    "onnx.If": ControlFlowForm("branch", ("then_branch", "else_branch")),
    "onnx.Loop": ControlFlowForm("loop", ("body",)),
    "onnx.Scan": ControlFlowForm("scan", ("body",)),
    "relax.If": ControlFlowForm("branch", ("then", "else")),
}


def control_flow_form(call: Call) -> ControlFlowForm | None:
    """Look up how a driver runs an operation.

    Args:
        call: the operation.

    Returns:
        Its form; None if no driver can run it.
    """
    return CONTROL_FLOW_FORMS.get(call.op)


@dataclass(frozen=True, slots=True)
class BodyArgument:
    """The positions of a loop-carried value.

    Attributes:
        operand: operand of the operation that is the initial value.
        param: parameter of the body that is the value before an iteration.
        result: result of the body that is the value after an iteration.
        output: result of the operation that is the final value.
    """

    operand: int
    param: int
    result: int
    output: int


def body_arguments(call: Call) -> tuple[BodyArgument, ...]:
    """List the loop-carried values of an operation: of a Scan, its states.

    Args:
        call: the operation.

    Returns:
        Their positions; empty for other operations.
    """
    form = control_flow_form(call)
    if form is not None and form.kind == "loop":
        # By the specification of ONNX the operands are M, cond, v...; the parameters are iteration, cond, v...; the
        # results of the body are cond, v..., scan outputs.
        return tuple(BodyArgument(2 + number, 2 + number, 1 + number, number) for number in range(len(call.inputs) - 2))
    sliced = call.attr("num_scan_inputs")
    if form is not None and form.kind == "scan" and isinstance(sliced, int):
        return tuple(BodyArgument(number, number, number, number) for number in range(len(call.inputs) - sliced))
    return ()
