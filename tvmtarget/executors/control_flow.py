"""Run control flow of a driver: branches, loops and scans, as ONNX defines them (Operators.md: If, Loop, Scan)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.errors import RunError
from tvmtarget.executors.driver_program import Block, Control, Signature
from tvmtarget.ir.dim_expressions import size_of
from tvmtarget.ir.types import numpy_dtype

__all__ = ["run_control"]

RunBlock: TypeAlias = "Callable[[Block, Sequence[Any]], list[Any]]"


def run_control(control: Control, inputs: Sequence[Any], sizes: Mapping[str, int], run: RunBlock) -> list[Any]:
    """Run a step of control flow.

    Args:
        control: the step.
        inputs: its operands, in order; None for absent ones.
        sizes: sizes of the symbolic dimensions of the program's inputs, by symbol.
        run: runs one of its bodies on the values of the body's parameters.

    Returns:
        The results, in order.

    Raises:
        RunError: a condition or trip count is no scalar, or the inputs of a scan have different lengths.
    """
    match control.kind:
        case "branch":
            return run(control.bodies[0 if _scalar(inputs[0], control) else 1], ())
        case "loop":
            return _loop(control, inputs, sizes, run)
        case "scan":
            return _scan(control, inputs, sizes, run)


def _scalar(value: Any, control: Control) -> Any:  # noqa: ANN401
    """Return the only element of a condition or trip count."""
    array = np.asarray(value)
    if array.size != 1:
        raise RunError(f"{control.op!r} is decided by one element, not by {array.size} of shape {array.shape}")
    return array.reshape(()).item()


# ONNX, Loop: operands are the trip count and the condition, both optional, then carried values; a body gets the
# iteration number and the condition, and returns the next condition, the carried values and the values to stack.
def _loop(control: Control, inputs: Sequence[Any], sizes: Mapping[str, int], run: RunBlock) -> list[Any]:
    count, condition, *carried = inputs
    limit = None if count is None else _scalar(count, control)
    goes_on = True if condition is None else bool(_scalar(condition, control))
    slices: list[list[Any]] = [[] for _ in control.joined]
    body, number = control.bodies[0], 0
    while goes_on and (limit is None or number < limit):
        flag = _shaped(np.asarray(goes_on), control.param_ranks[1])
        results = run(body, (_shaped(np.asarray(number, "int64"), control.param_ranks[0]), flag, *carried))
        goes_on = bool(_scalar(results[0], control))
        carried = results[1 : 1 + len(carried)]
        for collected, one in zip(slices, results[1 + len(carried) :], strict=True):
            collected.append(one)
        number += 1
    return [*carried, *_joined(control, slices, sizes)]


# Models declare the iteration number and the condition as scalars or as tensors of one element.
def _shaped(scalar: np.ndarray[Any, Any], rank: int | None) -> np.ndarray[Any, Any]:
    return scalar.reshape((1,) * (rank or 0))


# ONNX, Scan (since version 9): operands are states, then values to slice; slices are views, so they are made contiguous
# for compiled code.
def _scan(control: Control, inputs: Sequence[Any], sizes: Mapping[str, int], run: RunBlock) -> list[Any]:
    states = list(inputs[: len(inputs) - len(control.cut)])
    given = [
        np.flip(np.moveaxis(value, cut.axis, 0), 0) if cut.is_reversed else np.moveaxis(value, cut.axis, 0)
        for value, cut in zip(inputs[len(states) :], control.cut, strict=True)
    ]
    lengths = {len(value) for value in given}
    if len(lengths) != 1:
        raise RunError(f"{control.op!r} is given {sorted(lengths)} slices of its inputs, which must be equally many")
    slices: list[list[Any]] = [[] for _ in control.joined]
    for number in range(lengths.pop()):
        results = run(control.bodies[0], (*states, *(np.asarray(value[number], order="C") for value in given)))
        for collected, one in zip(slices, results[len(states) :], strict=True):
            collected.append(one)
        states = results[: len(states)]
    return [*states, *_joined(control, slices, sizes)]


def _joined(control: Control, slices: Sequence[Sequence[Any]], sizes: Mapping[str, int]) -> list[Any]:
    return [
        np.stack(ones[::-1] if axis.is_reversed else ones, axis.axis) if ones else _empty(signature, axis.axis, sizes)
        for ones, axis, signature in zip(slices, control.joined, control.empty, strict=True)
    ]


def _empty(signature: Signature, axis: int, sizes: Mapping[str, int]) -> np.ndarray[Any, Any]:
    """Return the result of stacking no slices; unknown dimensions are 0, as in onnxruntime."""
    shape = [size_of(dim, sizes) or 0 for dim in signature.shape or (0,)]
    shape[axis] = 0
    return np.zeros(shape, numpy_dtype(signature.dtype or "float32"))
