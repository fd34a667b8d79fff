"""Control-flow operators that drivers can run: a branch chooses one region, a loop or scan repeats one.

Sources: the ONNX operator specification (Operators.md: If, Loop, Scan) and Relax (`relax.expr.If`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from tvmtarget.ir.function import Call
from tvmtarget.support.strategy import Op, Reject, reject

__all__ = [
    "CONTROL_FLOW_FORMS",
    "DEFAULT_TRIP_COUNT",
    "BodyArgument",
    "ControlFlowForm",
    "body_arguments",
    "control_flow_form",
    "expected_body_runs",
    "why_not_driven",
]

# Assumed number of iterations of a loop whose trip count is not constant.
DEFAULT_TRIP_COUNT = 10


# Version of the ONNX operator set in which Scan had a batch axis.
_BATCHED_SCAN = 8


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


def why_not_driven(op: Op) -> Reject | None:
    """Check whether a driver can run an operation.

    Args:
        op: the operation.

    Returns:
        None if a driver can run it, else the reason why not.
    """
    form = control_flow_form(op.call)
    if form is None:
        return reject("CONTROL_FLOW", f"drivers run {', '.join(CONTROL_FLOW_FORMS)}, not {op.call.op}")
    labels = sorted(label for label, _ in op.call.regions)
    if labels != sorted(form.bodies):
        return reject("CONTROL_FLOW", f"{op.kind} has the bodies {', '.join(labels)}, not {', '.join(form.bodies)}")
    if op.call.op == "onnx.Scan" and op.opset == _BATCHED_SCAN:
        return reject("RULE", "Scan of operator set 8 has a batch axis", hint="convert the model to operator set 9")
    return None


def expected_body_runs(op: Op) -> Fraction:
    """Estimate how often a region runs for one run of its operation.

    Args:
        op: operation with regions.

    Returns:
        The trip count of a loop or scan if it is constant, else `DEFAULT_TRIP_COUNT`. The regions of a branch have
        equal shares.
    """
    form = control_flow_form(op.call)
    if form is not None and form.kind == "branch":
        return Fraction(1, max(1, len(op.call.regions)))
    return Fraction(_trip_count(op, form))


def _trip_count(op: Op, form: ControlFlowForm | None) -> int:
    """Return the trip count if constant operands or shapes determine it, else `DEFAULT_TRIP_COUNT`."""
    # A loop with a condition may end early, so that its trip count is only an upper bound.
    if form is not None and form.kind == "loop" and not op.operand(1):
        count = op.constant(0)
        if count is not None and count.size == 1:
            return max(0, int(np.ravel(count)[0]))
    if form is not None and form.kind == "scan":
        sliced = op.attr("num_scan_inputs")
        first = op.tensor(len(op.call.inputs) - sliced) if isinstance(sliced, int) else None
        axes = op.attr("scan_input_axes")
        axis = axes[0] if isinstance(axes, tuple) and axes else 0
        if first is not None and first.shape and isinstance(axis, int) and -len(first.shape) <= axis < len(first.shape):
            length = first.shape[axis]
            return length if isinstance(length, int) else DEFAULT_TRIP_COUNT
    return DEFAULT_TRIP_COUNT
