"""Control-flow operations that drivers can run, and how often these run their regions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from tvmtarget.ir.control_flow import BATCHED_SCAN, CONTROL_FLOW_FORMS, ControlFlowForm, control_flow_form
from tvmtarget.support.strategy import Op, Reject, reject

__all__ = ["DEFAULT_TRIP_COUNT", "expected_body_runs", "why_not_driven"]

# Assumed number of iterations of a loop whose trip count is not constant.
DEFAULT_TRIP_COUNT = 10


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
    if op.call.op == "onnx.Scan" and op.opset == BATCHED_SCAN:
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
