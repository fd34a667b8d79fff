"""How a driver runs operations with nested bodies: it chooses one of them, or repeats one.

A row for each operator; what it means is in ONNX's own words (Operators.md: If, Loop, Scan), and in those of Relax
(`relax.expr.If`).
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

# How often the body of a loop is taken to run where nothing says so.
DEFAULT_TRIP_COUNT = 10


@dataclass(frozen=True, slots=True)
class ControlFlowForm:
    """What a driver does: `branch` on its first operand, `loop` with carried values, or `scan` over slices.

    `bodies` are the labels of the nested bodies; of a branch, the one to run if the operand is true comes first.
    """

    kind: Literal["branch", "loop", "scan"]
    bodies: tuple[str, ...]

    @property
    def repeats(self) -> bool:
        """Whether a body may run more than once for one run of the operation."""
        return self.kind != "branch"


CONTROL_FLOW_FORMS: Mapping[str, ControlFlowForm] = {
    "onnx.If": ControlFlowForm("branch", ("then_branch", "else_branch")),
    "onnx.Loop": ControlFlowForm("loop", ("body",)),
    "onnx.Scan": ControlFlowForm("scan", ("body",)),
    "relax.If": ControlFlowForm("branch", ("then", "else")),
}


def control_flow_form(call: Call) -> ControlFlowForm | None:
    """Return how a driver runs an operation, or None if no driver can."""
    return CONTROL_FLOW_FORMS.get(call.op)


@dataclass(frozen=True, slots=True)
class BodyArgument:
    """The places of a value that a loop carries.

    It begins as an operand, goes on as a parameter and a result of the body, and ends as an output.
    """

    operand: int
    param: int
    result: int
    output: int


def body_arguments(call: Call) -> tuple[BodyArgument, ...]:
    """Return the values that an operation carries from one run of its body to the next: of a Scan, its states."""
    form = control_flow_form(call)
    if form is not None and form.kind == "loop":
        return tuple(BodyArgument(2 + number, 2 + number, 1 + number, number) for number in range(len(call.inputs) - 2))
    sliced = call.attr("num_scan_inputs")
    if form is not None and form.kind == "scan" and isinstance(sliced, int):
        return tuple(BodyArgument(number, number, number, number) for number in range(len(call.inputs) - sliced))
    return ()


def why_not_driven(op: Op) -> Reject | None:
    """Return None if a driver can run an operation, else why not."""
    form = control_flow_form(op.call)
    if form is None:
        return reject("CONTROL_FLOW", f"drivers run {', '.join(CONTROL_FLOW_FORMS)}, not {op.call.op}")
    labels = sorted(label for label, _ in op.call.regions)
    if labels != sorted(form.bodies):
        return reject("CONTROL_FLOW", f"{op.kind} has the bodies {', '.join(labels)}, not {', '.join(form.bodies)}")
    if op.call.op == "onnx.Scan" and op.opset == _BATCHED_SCAN:
        return reject("RULE", "Scan of operator set 8 has a batch axis", hint="convert the model to operator set 9")
    return None


_BATCHED_SCAN = 8


def expected_body_runs(op: Op) -> Fraction:
    """Return how often a body is expected to run for one run of an operation: branches in equal shares."""
    form = control_flow_form(op.call)
    if form is not None and form.kind == "branch":
        return Fraction(1, max(1, len(op.call.regions)))
    return Fraction(_trips(op, form))


def _trips(op: Op, form: ControlFlowForm | None) -> int:
    """Return how often the body of a loop runs: what is known of that, else `DEFAULT_TRIP_COUNT`."""
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
