"""One suite for all backends: ONNX's own node tests, judged by the strategy of a kind and run by its backend.

A case that the strategy refuses counts as refused, with its reason; an accepted one must compile, run, and return
what ONNX says. So a backend may take little, but never raise late or be wrong.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from tvmtarget.building import build
from tvmtarget.errors import TvmTargetError
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.program import normalise
from tvmtarget.partition.strategy import Reject, strategy_for
from tvmtarget.target.tree import Target

__all__ = ["Case", "Outcome", "node_cases", "run_case"]


@dataclass(frozen=True)
class Case:
    """A model with one set of inputs and what it should return; `bound` are inputs that become constants."""

    name: str
    model: ModelProto
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    rtol: float
    atol: float
    bound: int = 0


@dataclass(frozen=True)
class Outcome:
    """What became of a case, and why."""

    case: str
    status: Literal["passed", "refused", "failed"]
    reason: str = ""


@cache
def node_cases() -> tuple[Case, ...]:
    """Return ONNX's node tests, each with its first set of data."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = load_model_tests(kind="node")
    return tuple(
        Case(test.name, test.model, *(tuple(map(_array, data)) for data in test.data_sets[0]), test.rtol, test.atol)
        for test in found
    )


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def symbolic(case: Case) -> Case:
    """Give every dimension of the inputs a symbol, one for each size; sizes 0 and 1 stay as they are."""
    model = ModelProto()
    model.CopyFrom(case.model)
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value > 1:
                dim.dim_param = f"size{dim.dim_value}"
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return replace(case, name=f"{case.name} (symbolic)", model=model)


def run_case(case: Case, kind: str) -> Outcome:
    """Run a case on a leaf of a kind; operands that must be constants there become constants."""
    try:
        module = IRModule.from_onnx(case.model)
        outcome = _run(case, module, kind, bound=0)
        for bound in (len(case.inputs) - 1, len(case.inputs)):
            if not outcome.reason.startswith("NEED_CONST"):
                break
            outcome = _run(case, module, kind, bound=bound)
    except TvmTargetError as error:
        return Outcome(case.name, "failed", f"{type(error).__name__}: {error}")
    return outcome


def _run(case: Case, module: IRModule, kind: str, *, bound: int) -> Outcome:
    """Run a case whose last inputs, so many of them, are constants."""
    free = len(case.inputs) - bound
    names = [param.name for param in module.main.params]
    module = module.bind(dict(zip(names[free:], case.inputs[free:], strict=True)))
    refusal = _refusal(module, kind)
    if refusal is not None:
        return Outcome(case.name, "refused", str(refusal))
    results = build(module, kind, strict=True).run(dict(zip(names[:free], case.inputs[:free], strict=True)))
    differences = [
        difference
        for name, got, expected in zip(results, results.values(), case.outputs, strict=True)
        for difference in _differences(name, got, expected, case)
    ]
    return Outcome(case.name, "failed", "; ".join(differences)) if differences else Outcome(case.name, "passed")


def _refusal(module: IRModule, kind: str) -> Reject | None:
    """Return the first reason why a kind does not take a module, or None."""
    strategy = strategy_for(kind)
    assert strategy is not None
    program = normalise(module, Target(kind), None)
    verdicts = (strategy.check(program.op(index)) for index in range(len(program.body)))
    return next((verdict for verdict in verdicts if verdict is not None), None)


def _differences(name: str, got: Any, expected: Any, case: Case) -> Iterator[str]:
    """Yield how a result differs from what is expected: its structure, type, shape or values."""
    if isinstance(expected, Sequence) and not isinstance(expected, str):
        if not isinstance(got, Sequence) or len(got) != len(expected):
            yield f"{name} is {got!r:.60}, not {len(expected)} values"
            return
        for position, pair in enumerate(zip(got, expected, strict=True)):
            yield from _differences(f"{name}[{position}]", *pair, case)
        return
    if expected is None or got is None:
        if (expected is None) != (got is None):
            yield f"{name} is {got!r:.60}, not {expected!r:.60}"
        return
    got, expected = np.asarray(got), np.asarray(expected)
    if got.shape != expected.shape:
        yield f"{name} has shape {got.shape}, not {expected.shape}"
    elif (got.dtype.kind in "OUST") != (expected.dtype.kind in "OUST") or (
        got.dtype.kind not in "OUST" and got.dtype != expected.dtype
    ):
        yield f"{name} is {got.dtype}, not {expected.dtype}"
    elif not _are_close(got, expected, case):
        yield f"{name} has wrong values: {_worst(got, expected)}"


def _are_close(got: np.ndarray, expected: np.ndarray, case: Case) -> bool:
    if expected.dtype.kind in "OUST":
        return got.astype(str).tolist() == expected.astype(str).tolist()
    if expected.dtype.kind in "biu" and expected.dtype.names is None:
        return np.array_equal(got, expected)
    if expected.dtype.kind == "c":
        return np.allclose(got, expected, case.rtol, case.atol, equal_nan=True)
    return np.allclose(got.astype("float64"), expected.astype("float64"), case.rtol, case.atol, equal_nan=True)


def _worst(got: np.ndarray, expected: np.ndarray) -> str:
    if expected.dtype.kind in "OUST":
        return f"{got.ravel()[:3].tolist()} instead of {expected.ravel()[:3].tolist()}"
    gap = np.abs(got.astype("float64") - expected.astype("float64")).ravel()
    index = int(np.argmax(np.nan_to_num(gap, nan=np.inf)))
    return f"{got.ravel()[index]} instead of {expected.ravel()[index]} at {index} of {gap.size}"
