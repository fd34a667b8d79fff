"""The interpreter: ONNX's reference evaluator, for leaves of kind numpy, and for others if that is allowed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from tvmtarget.backends.float_accumulation import accumulate_in_float32
from tvmtarget.backends.machine import interpreter_mismatch
from tvmtarget.backends.protocol import Ability, Array, Backend, Compiled, CompileRequest
from tvmtarget.errors import BackendError, first_line
from tvmtarget.target.tree import Target

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

__all__ = ["BACKEND", "outputs_in_float64"]

_NUMBERS = "fiu"  # kinds of types in NumPy

# The evaluator is wrong on several operators as older versions defined them, so models are converted up to this one.
_LEAST_OPSET = 17
_NARROW = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_TYPE_ATTRIBUTES = ("dtype", "output_dtype", "softmax_precision", "to")
# Resize says how it maps places since this version.
_FIRST_WITH_MODES = 11


class _Numpy(Backend):
    name = "numpy"
    kinds = ("numpy",)
    supports = frozenset[Ability]({"shared-code"})
    # Of another kind, the interpreter honours what a processor has and what code may, but need not, do.
    honours = {
        "numpy": frozenset[str](),
        "llvm": frozenset(
            {"mcpu", "mtriple", "mattr", "vector-width", "opt-level", "mabi", "mfloat-abi", "fast-math"}
            | {f"fast-math-{name}" for name in ("nnan", "ninf", "nsz", "arcp", "contract", "reassoc")}
        ),
        "c": frozenset({"mcpu", "march"}),
        "onnxruntime": frozenset({"intra-op-threads", "intra-op-spinning", "optimization-level"}),
    }

    def version(self) -> str:
        return f"onnx {onnx.__version__}"

    def unsupported_reason(self, target: Target, device: int = 0) -> str | None:
        return interpreter_mismatch(target)

    def compile(self, request: CompileRequest) -> _Interpreted:
        # The evaluator has a module for each operator, which leaves of other kinds do not need.
        from onnx.reference import ReferenceEvaluator

        from tvmtarget.backends.reference_fixes import FIXES

        try:
            model = accumulate_in_float32(_converted(request.model))
            return _Interpreted(_with_types(ReferenceEvaluator(model, new_ops=FIXES), model))
        except Exception as error:
            raise BackendError(f"numpy cannot take function {request.name!r}: {first_line(error)}") from error


def outputs_in_float64(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, object]:
    """Compute the outputs of a model with all floats of 16 and 32 bits in float64.

    Values that are quantized stay integers, and may be one step from those of float32.

    Args:
        model: The model.
        inputs: Arrays by the name of the input, of the types that the model states.

    Returns:
        Outputs by name, in the types that the model states.

    Raises:
        BackendError: ONNX's reference evaluator has no kernel for an operator in float64.
    """
    from onnx.reference import ReferenceEvaluator

    from tvmtarget.backends.reference_fixes import FIXES

    stated = [value.type.tensor_type.elem_type for value in model.graph.output]
    wide = onnx.ModelProto()
    wide.CopyFrom(_converted(model))
    _widen(wide.graph)
    names = {value.name for value in wide.graph.input}
    given = {name: _widened(array) for name, array in inputs.items() if name in names}
    try:
        results = _with_types(ReferenceEvaluator(wide, new_ops=FIXES), wide).run(None, given)
    except Exception as error:
        raise BackendError(f"the model cannot be computed in float64: {first_line(error)}") from error
    return {
        value.name: result.astype(onnx.helper.tensor_dtype_to_np_dtype(dtype)) if dtype in _NARROW else result
        for value, result, dtype in zip(model.graph.output, results, stated, strict=True)
    }


def _widened(array: Array) -> Array:
    is_narrow = array.dtype.kind in "fV" and onnx.helper.np_dtype_to_tensor_dtype(array.dtype) in _NARROW
    return array.astype(np.float64) if is_narrow else array


def _widen(graph: onnx.GraphProto) -> None:
    """Change the floats of 16 and 32 bits of a graph, and of the bodies in it, to float64."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in _NARROW:
            value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _widen(attribute.g)
            elif attribute.HasField("t"):
                _widen_tensor(attribute.t)
            elif attribute.name in _TYPE_ATTRIBUTES and attribute.i in _NARROW:
                attribute.i = onnx.TensorProto.DOUBLE
            elif attribute.name in ("value_float", "value_floats"):
                numbers = attribute.f if attribute.name == "value_float" else list(attribute.floats)
                constant = onnx.numpy_helper.from_array(np.array(numbers, np.float64))
                attribute.CopyFrom(onnx.helper.make_attribute("value", constant))
        if node.op_type == "ConstantOfShape" and not node.attribute:
            zero = onnx.numpy_helper.from_array(np.zeros(1))
            node.attribute.append(onnx.helper.make_attribute("value", zero))


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _NARROW:
        array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def _converted(model: onnx.ModelProto) -> onnx.ModelProto:
    version = next((opset.version for opset in model.opset_import if opset.domain == ""), _LEAST_OPSET)
    if version >= _LEAST_OPSET:
        return model
    converted = onnx.version_converter.convert_version(model, _LEAST_OPSET)
    if version < _FIRST_WITH_MODES:
        _keep_places(converted.graph)
    return converted


def _keep_places(graph: onnx.GraphProto) -> None:
    """Have each Resize map places as those of old versions do, which the converter forgets (onnx 1.23)."""
    for node in graph.node:
        for body in (attribute.g for attribute in node.attribute if attribute.HasField("g")):
            _keep_places(body)
        if node.op_type == "Resize":
            modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
            node.attribute.extend(onnx.helper.make_attribute(name, mode) for name, mode in modes.items())


def _with_types(evaluator: ReferenceEvaluator, model: onnx.ModelProto) -> ReferenceEvaluator:
    """Give results the types of ONNX where the evaluator makes others, such as sums of squares of int32 (onnx 1.23)."""
    stated = {value.name: value.type.tensor_type.elem_type for value in (*model.graph.value_info, *model.graph.output)}
    dtypes = {name: onnx.helper.tensor_dtype_to_np_dtype(number) for name, number in stated.items() if number}
    for node in evaluator.rt_nodes_:
        wanted = [dtypes.get(name) for name in node.output]
        if any(dtype is not None and dtype.kind in _NUMBERS for dtype in wanted):
            node.run = partial(_run_with_types, node.run, wanted)
    return evaluator


def _run_with_types(
    run: Callable[..., tuple[object, ...]], wanted: Sequence[np.dtype[Any] | None], *args: object, **options: object
) -> tuple[object, ...]:
    return tuple(
        found.astype(dtype)
        if dtype is not None and isinstance(found, np.ndarray) and found.dtype != dtype and found.dtype.kind in _NUMBERS
        else found
        for found, dtype in zip(run(*args, **options), wanted, strict=False)
    )


class _Interpreted(Compiled):
    def __init__(self, evaluator: ReferenceEvaluator) -> None:
        self._evaluator = evaluator

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        named = dict(zip(self._evaluator.input_names, inputs, strict=True))
        results: Sequence[Array] = self._evaluator.run(None, named)
        return results


BACKEND = _Numpy()
