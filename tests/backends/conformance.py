"""One suite for all backends: ONNX's own node tests, judged by the strategy of a kind and run by its backend.

A case that the strategy does not support counts as unsupported, with the reason; a supported one must compile, run,
and return what ONNX says. So a backend may support little, but never fail late or be wrong.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from onnx import ModelProto, OptionalProto, SequenceProto, TensorProto, ValueInfoProto, load, numpy_helper

from tvmtarget.building.compile_plan import build
from tvmtarget.errors import TvmTargetError, TvmTargetWarning
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.flat_program import normalise
from tvmtarget.support.registry import strategy_for
from tvmtarget.support.strategy import Reject
from tvmtarget.target.tree import Target

__all__ = ["Case", "Outcome", "differences", "is_random", "node_cases", "run_case", "stored_cases", "symbolic"]

# Tolerances by bytes of an element, relative and, for a tensor whose greatest element is 1, absolute. Those of the
# tests fit the reference; code generators sum in another order.
_TOLERANCE = {1: (0.07, 0.07), 2: (1e-2, 1e-2), 4: (1e-3, 1e-5), 8: (1e-3, 1e-5)}

# Operators whose results no two implementations share.
_RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)


@dataclass(frozen=True)
class Case:
    """A model, one set of inputs, what it should return, and how far off a result may be."""

    name: str
    model: ModelProto
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    rtol: float
    atol: float


@dataclass(frozen=True)
class Outcome:
    """What became of a case, and why."""

    case: str
    status: Literal["passed", "unsupported", "failed"]
    reason: str = ""


@cache
def node_cases() -> tuple[Case, ...]:
    """Return ONNX's node tests, each with its first set of data."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = load_model_tests(kind="node")
    return tuple(
        Case(test.name, test.model, *(tuple(map(_array, data)) for data in test.data_sets[0]), test.rtol, test.atol)  # type: ignore[call-arg]
        for test in found
    )


@cache
def stored_cases(kind: Literal["simple", "pytorch-converted", "pytorch-operator"]) -> tuple[Case, ...]:
    """Return ONNX's cases of a kind that lie in files, each with its first set of data."""
    from onnx.backend.test.loader import load_model_tests

    found = []
    for test in load_model_tests(kind=kind):
        folder = Path(test.model_dir)
        model = load(folder / "model.onnx")
        inputs, outputs = (
            tuple(
                _stored(folder / "test_data_set_0" / f"{role}_{index}.pb", value) for index, value in enumerate(values)
            )
            for role, values in (("input", _fed(model)), ("output", model.graph.output))
        )
        found.append(Case(test.name, model, inputs, outputs, test.rtol, test.atol))
    return tuple(found)


def _fed(model: ModelProto) -> list[ValueInfoProto]:
    """Return the inputs of a model that have no initializer."""
    given = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in given]


def _stored(path: Path, value: ValueInfoProto) -> Any:
    """Read a stored tensor, sequence or optional, as the type of the value says."""
    forms = {
        "sequence_type": (SequenceProto, numpy_helper.to_list),
        "optional_type": (OptionalProto, numpy_helper.to_optional),
    }
    form, read = forms.get(value.type.WhichOneof("value"), (TensorProto, numpy_helper.to_array))
    return read(form.FromString(path.read_bytes()))


def is_random(case: Case) -> bool:
    """Whether the results depend on random numbers."""
    return any(node.op_type in _RANDOM for node in case.model.graph.node) or case.name.startswith("test_training_")


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def symbolic(case: Case) -> Case:
    """Give every dimension of the inputs a symbol, one for each size; sizes 0 and 1 stay as they are."""
    model = ModelProto()
    model.CopyFrom(case.model)
    for value in (value for value in model.graph.input if value.type.HasField("tensor_type")):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value > 1:
                dim.dim_param = f"size{dim.dim_value}"
    for value in model.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return replace(case, name=f"{case.name} (symbolic)", model=model)


def run_case(case: Case, leaf: str) -> Outcome:
    """Run a case on a leaf; operands that must be constants there become constants."""
    try:
        module = IRModule.from_onnx(case.model)
        outcome = _run(case, module, Target.parse(leaf), bound=0)
        for bound in (len(case.inputs) - 1, len(case.inputs)):
            if not outcome.reason.startswith("NEED_CONST"):
                break
            outcome = _run(case, module, Target.parse(leaf), bound=bound)
    except (TvmTargetError, TvmTargetWarning) as error:
        return Outcome(case.name, "failed", f"{type(error).__name__}: {error}")
    return outcome


def _run(case: Case, module: IRModule, leaf: Target, *, bound: int) -> Outcome:
    """Run a case whose last inputs, so many of them, are constants."""
    free = len(case.inputs) - bound
    names = [param.name for param in module.main.params]
    module = module.bind(dict(zip(names[free:], case.inputs[free:], strict=True)))
    reason = _unsupported_reason(module, leaf)
    if reason is not None:
        return Outcome(case.name, "unsupported", str(reason))
    with warnings.catch_warnings():
        warnings.simplefilter("error", TvmTargetWarning)  # of a function that the strategy supports and that fails
        exe = build(module, leaf)
    results = exe.run(dict(zip(names[:free], case.inputs[:free], strict=True)))
    wrong = differences(results, case)
    return Outcome(case.name, "failed", "; ".join(wrong)) if wrong else Outcome(case.name, "passed")


def differences(results: Mapping[str, Any], case: Case) -> list[str]:
    """Return how the results of a case differ from what is expected."""
    pairs = zip(results, results.values(), case.outputs, strict=True)
    return [difference for name, got, expected in pairs for difference in _differences(name, got, expected, case)]


def _unsupported_reason(module: IRModule, leaf: Target) -> Reject | None:
    """Return the first reason why a leaf does not take a module, or None."""
    strategy = strategy_for(leaf.kind)
    assert strategy is not None
    program = normalise(module, leaf, {})
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
    elif (index := _first_difference(got, expected, case)) is not None:
        yield f"{name}[{index}] is {got.flat[index]}, not {expected.flat[index]}"


def _first_difference(got: np.ndarray, expected: np.ndarray, case: Case) -> int | None:
    """Return the position of the first element that is wrong, or None."""
    if expected.dtype.kind in "OUST":
        equal = got.astype(str) == expected.astype(str)
    elif expected.dtype.kind in "biu":
        equal = got == expected
    else:
        wide = "complex128" if expected.dtype.kind == "c" else "float64"
        rtol, atol = _TOLERANCE.get(expected.dtype.itemsize, (0, 0))
        greatest = np.max(np.abs(expected.astype(wide)), initial=1, where=np.isfinite(expected.astype(wide)))
        tolerance = {"rtol": max(case.rtol, rtol), "atol": max(case.atol, atol) * greatest, "equal_nan": True}
        equal = np.isclose(got.astype(wide), expected.astype(wide), **tolerance)
    wrong = np.flatnonzero(~np.asarray(equal))
    return int(wrong[0]) if wrong.size else None
