"""OpenVINO on CPUs, GPUs and NPUs of Intel and Arm, for leaves of kind openvino."""

from __future__ import annotations

import math
import os
import re
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx.version_converter

from tvmtarget.backends.classical_expansion import TRAVERSED_TREES, TREES_SINCE
from tvmtarget.backends.expansion_builder import ExpansionBuilder, attributes_of, operands_of, stated_axes
from tvmtarget.backends.fourier_expansion import FOURIER_EXPANSIONS
from tvmtarget.backends.machine import processors, saturates_products
from tvmtarget.backends.operator_expansion import EXPANSIONS, Expansion, expand_operators, kind_of, value_types
from tvmtarget.backends.protocol import Ability, Array, Backend, Compiled, CompileRequest
from tvmtarget.errors import BackendError, CompileError, MissingExtraError, RunError
from tvmtarget.ir.dim_expressions import size_of, symbols_of
from tvmtarget.ir.function import Function
from tvmtarget.ir.onnx.reader import read_body
from tvmtarget.ir.resized_sizes import scales_at
from tvmtarget.ir.size_requirements import RunSizes
from tvmtarget.ir.types import Dim
from tvmtarget.python_process import never_free_in_forks
from tvmtarget.support.openvino_rules import (
    BY_FLOATS,
    COMPARISONS,
    EMPTY,
    EMPTY_IN_RUNS,
    EXACT,
    FAILS_EMPTY,
    RULES,
    SUMS_SINCE,
    rounded_up,
)
from tvmtarget.target.attributes import Value
from tvmtarget.target.tree import Target

__all__ = ["BACKEND"]

# Attributes that are set if they differ from their default, with the property of OpenVINO.
_COUNTS = {"inference-num-threads": "INFERENCE_NUM_THREADS", "num-streams": "NUM_STREAMS"}
_INT32 = np.iinfo("int32")


# What does not overwrite its operands; weights that it dequantizes stay small.
_KEEPS_OPERANDS = frozenset({"Convolution", "Gather", "GroupConvolution", "MatMul", "Result"})
# What rounds, and what may lie between a division and that.
_ROUNDS = frozenset({"Ceiling", "Floor", "Round"})
_SCALES = frozenset(
    {"Add", "Clamp", "Divide", "Maximum", "Minimum", "Multiply", "Negative", "Reshape", "Select", "Squeeze", "Subtract"}
)
# Operations that only move elements: OpenVINO computes operations of one value before them, and then may fuse these
# into a reduction (`MoveEltwiseUpThroughDataMov`).
_MOVES = frozenset(
    {
        *("BatchToSpace", "Broadcast", "DepthToSpace", "Gather", "ReorgYolo", "Reshape", "ReverseSequence"),
        *("ShuffleChannels", "Squeeze", "Transpose", "Unsqueeze"),
    }
)
# What it computes before it compiles, where its operands are so computed.
_FOLDED = frozenset({"Broadcast", "Concat", "Reshape", "ShapeOf", "Squeeze", "Subtract", "Transpose", "Unsqueeze"})
_SEQUENCES = frozenset({"GRUSequence", "LSTMSequence", "RNNSequence"})
_NEVER_CONSTANT = frozenset({"If", "Loop", "Multinomial", "RandomUniform", "TensorIterator"})
# Inputs of nodes by the output that they read: name of the node, and index.
_Readers: TypeAlias = "dict[tuple[str, int], list[Any]]"


def _openvino() -> Any:  # noqa: ANN401 - the package ships no types
    try:
        import openvino
    except ImportError as error:
        raise MissingExtraError("openvino", "openvino") from error
    return openvino


@cache
def _core() -> Any:  # noqa: ANN401
    return _openvino().Core()


class _OpenVino(Backend):
    name = "openvino"
    kinds = ("openvino",)
    supports = frozenset[Ability]({"keeps-inputs", "shared-code"})
    honours = {
        "openvino": frozenset(
            {"device-name", "inference-num-threads", "num-streams", "inference-precision", "cache-dir"}
        )
    }

    def version(self) -> str:
        return f"openvino {_openvino().__version__}"

    def unsupported_reason(self, target: Target, device: int = 0) -> str | None:
        name, here = str(target["device-name"]), _core().available_devices
        if name in here or any(one.startswith(f"{name}.") for one in here):
            return None
        return f"OpenVINO finds no device {name!r} here; it finds {', '.join(here)}; set device-name to one of these"

    def settings(self, target: Target) -> Mapping[str, Sequence[Value]]:
        if target["device-name"] != "CPU":
            return {}
        counts = {1, processors()} | {2**power for power in range(1, 7) if 2**power < processors()}
        return {"inference-num-threads": tuple(sorted(counts))}

    def compile(self, request: CompileRequest) -> _Program:
        ov, place = _openvino(), f"@{request.site or '.'}"
        reason = self.unsupported_reason(request.target)
        if reason is not None:
            raise BackendError(f"openvino cannot take function {request.name!r} of {place}: {reason}")
        target = request.target
        # By default OpenVINO computes in the fastest type of the processor, and reports no difference.
        precision = str(target["inference-precision"])
        properties: dict[str, object] = {"INFERENCE_PRECISION_HINT": getattr(ov.Type, _TYPES[precision])}
        properties["PERFORMANCE_HINT"] = "LATENCY"
        if "DYNAMIC_QUANTIZATION_GROUP_SIZE" in _core().get_property(target["device-name"], "SUPPORTED_PROPERTIES"):
            # In products with dequantized weights, it would round the other operand to 8 bits.
            properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
        if target["device-name"] == "CPU":
            # Threads of several functions, or programs, would be pinned to the same processors.
            properties["ENABLE_CPU_PINNING"] = False
        stated = {name: int(str(target[name])) for name in _COUNTS if target[name]}
        properties |= {_COUNTS[name]: count for name, count in stated.items()}
        if target["cache-dir"]:
            properties["CACHE_DIR"] = _cache_folder(str(target["cache-dir"]), place)
        try:
            is_cpu = target["device-name"] == "CPU"
            low_precision = not is_cpu or (not saturates_products() and _is_low_precision(request.model.graph))
            if not low_precision:
                properties["LP_TRANSFORMS_MODE"] = "NO"  # quantized operators are computed in floats
            checks = tuple(_index_checks(request.model.graph, place))
            float_checks = tuple(_float_checks(request.model, place))
            not_empty = _dims_of_elements(request.model.graph)
            scaled = tuple(_scaled_dims(request.model.graph))
            function = _function_of(request.model)
            request = replace(request, source=_expanded(request, low_precision=low_precision))
            indices = (check.indices for check in checks if check.constant is None)
            operands = (name for check in float_checks for name in check.operands)
            model = _core().read_model(request.source_with((*indices, *operands)))
            _remove_conversions(model)
            _keep_order_of_ties(ov, model)
            _keep_infinities(ov, model)
            _end_ranges(ov, model)
            _keep_signs(ov, model)
            _widen_single_channels(ov, model)
            _activate_after_pools(ov, model)
            _reduce_before_squeezes(ov, model)
            _reduce_four_dimensions(ov, model)
            _divide_exactly(model)
            _stride_before_products(ov, model)
            model.validate_nodes_and_infer_types()
            _separate_sequences(ov, model)
            _separate_biases(ov, model)
            _compute_constants(ov, model)
            compile_model = partial(_core().compile_model, model, str(target["device-name"]), properties)
            compiled = compile_model()
            found: dict[str, object] = {name: compiled.get_property(_COUNTS[name]) for name in stated}
            given = compiled.get_property("INFERENCE_PRECISION_HINT")
        except Exception as error:
            raise CompileError(
                f"openvino cannot take function {request.name!r} of {place}: {_first_line(error)}; place its "
                "operations on another site (where, --where)",
                function=request.name,
            ) from error
        used: dict[str, object] = {name: one for name, one in _TYPES.items() if getattr(ov.Type, one) == given}
        requested: dict[str, object] = {**stated, "inference-precision": precision}
        found["inference-precision"] = next(iter(used), given)
        for name, value in requested.items():
            if found[name] != value:
                raise BackendError(
                    f"{name} {value} of {place} cannot be honoured: OpenVINO uses {found[name]} on this machine; "
                    f"remove it (--unset {f'{request.site}/{name}'.lstrip('/')})"
                )
        return _Program(compiled, compile_model, model, request, checks, float_checks, not_empty, scaled, function)


def _cache_folder(path: str, place: str) -> str:
    """Make the folder of `cache-dir`; where it cannot be written, OpenVINO would store nothing, and say so nowhere."""
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BackendError(f"cache-dir {path!r} of {place} cannot be written: {reason}; name another folder") from error
    return path


def _is_low_precision(graph: onnx.GraphProto) -> bool:
    """Whether OpenVINO computes all quantized operators of a graph in integers as ONNX defines them.

    Its low-precision transformations saturate ReduceSum and ReduceMean, divide AveragePool of padding by another count,
    compute other results for networks with Resize, InstanceNormalization and products with quantized constants, and end
    with errors for attention. Networks of convolutions and products are computed as ONNX defines them, but halves are
    rounded after the zero point is added.
    """
    kinds = {kind_of(node) for node in graph.node}
    return kinds <= _LOW_PRECISION and not kinds.isdisjoint(_PRODUCTS)


def _expanded(request: CompileRequest, *, low_precision: bool) -> bytes:
    """Return the model of a function without the operators that OpenVINO does not know, or computes otherwise.

    Where quantized operators are computed in floats, QuantizeLinear is one of them.
    """
    if not any(kind_of(node) in _EXPANSIONS for node in request.model.graph.node):
        return request.source
    model = onnx.load_from_string(request.source)
    opset = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)
    if opset < TREES_SINCE and any(kind_of(node) in TRAVERSED_TREES for node in model.graph.node):
        if opset:
            model = onnx.version_converter.convert_version(model, TREES_SINCE)
        else:
            model.opset_import.append(onnx.helper.make_opsetid("", TREES_SINCE))
        opset = TREES_SINCE
    expand_operators(model.graph, value_types(model.graph), opset, _EXPANSIONS)
    if not low_precision:  # of what is expanded to, too
        compared = frozenset(
            name for node in model.graph.node if kind_of(node) in _SENSITIVE_TO_ZERO for name in node.input
        )
        exact = partial(_exact_dequantization, compared=compared)
        floats: dict[str, Expansion] = {"DequantizeLinear": exact, "QuantizeLinear": _quantization}
        expand_operators(model.graph, value_types(model.graph), opset, floats)
    return bytes(model.SerializeToString())


def _remove_conversions(model: Any) -> None:  # noqa: ANN401
    """Have what reads a conversion between equal types read its operand.

    Where an input of open sizes is so converted to a result, OpenVINO writes beyond memory in later runs (2026.4).
    """
    for node in model.get_ordered_ops():
        is_conversion = node.get_type_name() in ("Convert", "ConvertLike")
        if is_conversion and node.get_input_element_type(0) == node.get_output_element_type(0):
            source = node.input_value(0)
            source.add_names(node.output(0).get_names())
            for reader in node.output(0).get_target_inputs():
                reader.replace_source_output(source)


def _keep_order_of_ties(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Have TopK return the lowest of the indices of equal values, as ONNX requires."""
    for node in model.get_ordered_ops():
        if node.get_type_name() != "TopK":
            continue
        stated = node.get_attributes()
        kept = {name: stated[name] for name in ("axis", "mode", "index_element_type")}
        operands = [node.input_value(index) for index in range(2)]
        # Only what is sorted by value may be stable.
        stable = ov.opset11.topk(*operands, **kept, sort="value", stable=True)
        for result, replacement in zip(node.outputs(), stable.outputs(), strict=True):
            _replace(result, replacement)


def _replace(old: Any, result: Any, readers: Iterable[Any] | None = None) -> None:  # noqa: ANN401
    """Have what reads a result read another one, which takes over its names.

    If that is computed from the result, `readers` are those from before.
    """
    result.set_names(old.get_names())
    old.set_names(set())
    for reader in old.get_target_inputs() if readers is None else readers:
        reader.replace_source_output(result)


def _keep_infinities(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Have ReduceMax of -inf only, and ReduceMin of inf only, return it: OpenVINO begins with finite numbers.

    The extreme of halves, doubled, is the same number, where it is not subnormal.
    """
    for node in model.get_ordered_ops():
        kind = {"ReduceMax": "reduce_max", "ReduceMin": "reduce_min"}.get(node.get_type_name())
        if kind is None or not node.get_output_element_type(0).is_real():
            continue
        half, two = (ov.opset1.constant(value, node.get_output_element_type(0)) for value in (0.5, 2))
        halves = ov.opset1.multiply(node.input_value(0), half)
        extreme = getattr(ov.opset1, kind)(halves, node.input_value(1), node.get_attributes()["keep_dims"])
        doubled = ov.opset1.multiply(extreme, two).output(0)
        _replace(node.output(0), doubled)


def _end_ranges(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Have ranges away from their ends be empty: OpenVINO counts by the distance, in either direction (2026.4)."""
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Range" or all(map(_is_constant, _sources(node))):
            continue
        start, stop, step = (node.input_value(at) for at in range(3))
        if len({str(one.get_element_type()) for one in (start, stop, step)}) > 1:  # axes, of the reader's own
            continue
        rises = ov.opset1.greater(step, ov.opset1.constant(0, step.get_element_type()))
        ends = (ov.opset1.maximum(stop, start), ov.opset1.minimum(stop, start))
        node.input(1).replace_source_output(ov.opset1.select(rises, *ends).output(0))


def _keep_signs(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Have an Abs leave a concatenation as it is: OpenVINO overwrites those of one dimension (2026.4)."""
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Abs":
            continue
        joined = _sources(node)[0]
        while joined.get_type_name() == "Identity":
            joined = _sources(joined)[0]
        if joined.get_type_name() != "Concat" or joined.get_output_partial_shape(0).rank != 1:
            continue
        x = node.input_value(0)
        largest = ov.opset1.maximum(x, ov.opset1.negative(x)).output(0)
        _replace(node.output(0), largest)


def _widen_single_channels(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Compute convolutions of one channel to one as of one to two, where OpenVINO reads memory of others (2026.4).

    These are those with windows in nothing but padding, and those of three dimensions with dilations.
    """
    for node in model.get_ordered_ops():
        weights = node.get_input_partial_shape(1) if node.get_type_name() == "Convolution" else None
        if weights is None or weights.is_dynamic or list(weights)[:2] != [1, 1]:
            continue
        attributes = node.get_attributes()
        begins, ends, strides, gaps = (
            list(map(int, attributes[name])) for name in ("pads_begin", "pads_end", "strides", "dilations")
        )
        kernel = [int(size.get_length()) for size in list(weights)[2:]]
        widths = [(size - 1) * gap + 1 for size, gap in zip(kernel, gaps, strict=True)]
        is_outside = any(max(pads) >= width for *pads, width in zip(begins, ends, widths, strict=True))
        if not is_outside and not (len(kernel) == 3 and any(gap > 1 for gap in gaps)):
            continue
        given = node.input_value(1)
        zeros = ov.opset1.constant(np.zeros(kernel, "float32")[None, None], given.get_element_type())
        both = ov.opset1.concat([given, zeros], 0)
        product = ov.opset1.convolution(node.input_value(0), both, strides, begins, ends, gaps, attributes["auto_pad"])
        first = ov.opset8.slice(product, *(np.array([one]) for one in (0, 1, 1, 1))).output(0)
        _replace(node.output(0), first)


def _activate_after_pools(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Keep activations that fall anywhere behind the MaxPool that they follow.

    OpenVINO applies all that follow a convolution and a MaxPool before the MaxPool (2026.4), which gives other results
    unless they rise only. A MaxPool of single elements between the two keeps it from that.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() != "MaxPool":
            continue
        readers = list(node.output(0).get_target_inputs())
        activations = [one.get_node() for one in readers]
        while any(one.get_type_name() in _SHAPES for one in activations):
            nested = ([one] if one.get_type_name() not in _SHAPES else _readers_of(one) for one in activations)
            activations = [reader for ones in nested for reader in ones]
        kinds = {
            one.get_type_name()
            for one in activations
            if one.get_type_name() != "Add" or any(map(_is_constant, _sources(one)))
        }
        # Exporters write x * f(x), which OpenVINO makes one activation.
        if kinds.isdisjoint(_FALLING) and (len(activations) < 2 or kinds.isdisjoint(_PARTS_OF_FALLING)):
            continue
        whole, none = ([number] * (len(node.get_output_partial_shape(0)) - 2) for number in (1, 0))
        kept = ov.opset1.max_pool(node.output(0), whole, none, none, whole).output(0)
        _replace(node.output(0), kept, readers)


def _readers_of(node: Any) -> list[Any]:  # noqa: ANN401
    return [one.get_node() for one in node.output(0).get_target_inputs()]


_SHAPES = frozenset({"Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_FALLING = frozenset({"Abs", "Gelu", "HSwish", "Mish", "PRelu", "Selu", "Sqrt", "Swish"})
_PARTS_OF_FALLING = frozenset({"Add", "Divide", "Erf", "HSigmoid", "Multiply", "Power", "Sigmoid", "SoftPlus", "Tanh"})


def _reduce_before_squeezes(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Have reductions of transposed values keep dimensions, and these removed behind them.

    OpenVINO may else leave out a Transpose that moves dimensions of one element only, and their places too (2026.4).
    """
    for node in model.get_ordered_ops():
        is_reduction = node.get_type_name().startswith("Reduce") and not node.get_attributes()["keep_dims"]
        if not is_reduction or _sources(node)[0].get_type_name() != "Transpose":
            continue
        readers = list(node.output(0).get_target_inputs())
        node.set_attribute("keep_dims", True)
        node.constructor_validate_and_infer_types()
        removed = ov.opset1.squeeze(node, node.input_value(1)).output(0)
        _replace(node.output(0), removed, readers)


def _reduce_four_dimensions(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Have dimensions of three-dimensional values reduced together with a fourth one, of one element.

    OpenVINO fuses what follows by channel, such as a scale, into a reduction, but takes the batches of three dimensions
    for channels (2026.4).
    """
    for node in model.get_ordered_ops():
        shape = node.get_input_partial_shape(0) if node.get_type_name().startswith("Reduce") else None
        if shape is None or shape.rank.is_dynamic or len(shape) != 3:
            continue
        axes = _sources(node)[1]
        if axes.get_type_name() == "Constant":
            listed = [int(one) % 3 for one in axes.data.flat]
        else:  # those of a global pool begin with 2; others are all dimensions
            listed = [2] if axes.get_type_name() == "Range" and _begins_with(axes, 2) else []
        if not listed:
            continue
        node.input(0).replace_source_output(ov.opset1.unsqueeze(node.input_value(0), np.array([3])).output(0))
        node.input(1).replace_source_output(ov.opset1.constant(np.array([*listed, 3])).output(0))
        if not node.get_attributes()["keep_dims"]:
            continue
        readers = list(node.output(0).get_target_inputs())
        node.constructor_validate_and_infer_types()
        reduced = ov.opset1.squeeze(node, np.array([3])).output(0)
        _replace(node.output(0), reduced, readers)


def _begins_with(numbers: Any, first: int) -> bool:  # noqa: ANN401
    start = _sources(numbers)[0]
    return bool(start.get_type_name() == "Constant" and start.data.flat[0] == first)


def _divide_exactly(model: Any) -> None:  # noqa: ANN401
    """Have floats that are rounded divided, not multiplied by inverses, which is off by a unit in the last place.

    The mark is that of OpenVINO's `disable_divide_conversion` (`transformations/rt_info/nonconvertible_divide.hpp`). An
    inverse so marked is fused wrongly into the operation before it, and a division into a reduction (2026.4).

    Quotients of integers are cut off, where OpenVINO rounds those of constants down.
    """
    rounded: set[str] = set()
    for node in reversed(model.get_ordered_ops()):
        kind, name = node.get_type_name(), node.get_friendly_name()
        readers = [one.get_node() for output in node.outputs() for one in output.get_target_inputs()]
        is_integer = kind == "Convert" and node.get_output_element_type(0).is_integral_number()
        if kind == "Divide" and not node.get_output_element_type(0).is_real():
            node.set_attribute("m_pythondiv", False)
        if (
            kind in _ROUNDS
            or is_integer
            or (kind in _SCALES and any(one.get_friendly_name() in rounded for one in readers))
        ):
            rounded.add(name)
            is_inverse = kind == "Divide" and node.input_value(0).get_node().get_type_name() == "Constant"
            is_real = kind == "Divide" and node.get_output_element_type(0).is_real()
            if is_real and not is_inverse and not _follows_reduction(node):
                node.get_rt_info()["nonconvertable_divide_0"] = True


def _stride_before_products(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Have convolutions by one weight for each channel and strides read elements that are taken before them.

    OpenVINO moves such strides to operations before. It fails at those of several results, and convolutions that pad
    their image, these or others before them, read other elements then (2026.4).
    """
    products, has_parts = [], False
    for node in model.get_ordered_ops():
        has_parts = has_parts or len(node.outputs()) > 1
        if node.get_type_name() == "Convolution" and all(
            size == 1 for size in list(node.get_input_partial_shape(1))[2:]
        ):
            products.append((node, node.get_attributes()))
    is_padded = any(
        any([*one["pads_begin"], *one["pads_end"]]) or node.input_value(0).get_node().get_type_name() == "Pad"
        for node, one in products
    )
    for node, attributes in products if has_parts or is_padded else ():
        before, after, strides = (list(map(int, attributes[name])) for name in ("pads_begin", "pads_end", "strides"))
        if all(step == 1 for step in strides):
            continue
        data, rank = node.input_value(0), len(strides)
        margins = (np.array([0, 0, *margin]) for margin in (before, after))
        padded = ov.opset1.pad(data, *margins, "constant", ov.opset1.constant(0, data.get_element_type()))
        first, last = np.zeros(rank, "int64"), np.full(rank, np.iinfo("int64").max)
        taken = ov.opset8.slice(padded, first, last, np.array(strides), np.arange(2, 2 + rank))
        whole = [1] * rank
        product = ov.opset1.convolution(taken, node.input_value(1), whole, [0] * rank, [0] * rank, whole).output(0)
        _replace(node.output(0), product)


def _follows_reduction(node: Any) -> bool:  # noqa: ANN401
    """Whether an operation of one value may be fused into the reduction that makes it, also past moves of elements."""
    while not node.get_type_name().startswith("Reduce"):
        if node.get_type_name() in _MOVES:
            node = _sources(node)[0]
            continue
        given = [one for one in _sources(node) if not _is_constant(one)]
        if len(given) != 1 or node.get_type_name() in _KEEPS_OPERANDS:
            return False
        (node,) = given
    return True


def _is_constant(node: Any) -> bool:  # noqa: ANN401
    """Whether a node is a constant, or one in another type or shape."""
    while node.get_type_name() in ("Convert", "Reshape", "Unsqueeze"):
        node = _sources(node)[0]
    return bool(node.get_type_name() == "Constant")


def _sources(node: Any) -> list[Any]:  # noqa: ANN401
    return [one.get_source_output().get_node() for one in node.inputs()]


def _separate_sequences(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Have recurrent networks transpose by themselves what others transpose too.

    OpenVINO shares the transposition, and removes it for one of them only (2026.4).
    """
    for node in model.get_ordered_ops():
        moves = node.input_value(0).get_node() if node.get_type_name() in _SEQUENCES else node
        if moves is node or moves.get_type_name() != "Transpose":
            continue
        source = moves.input_value(0)
        readers = [one.get_node().get_type_name() for one in source.get_target_inputs()]
        if readers.count("Transpose") > 1:
            wide = ov.opset1.unsqueeze(source, np.array([2]))
            moved = ov.opset1.transpose(wide, np.array([1, 0, 2, 3]))
            node.input(0).replace_source_output(ov.opset1.squeeze(moved, np.array([2])).output(0))


def _separate_biases(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Keep a bias of known size out of a product of open columns, with which OpenVINO does not compile it (2026.4)."""
    for node in model.get_ordered_ops():
        operands = _sources(node) if node.get_type_name() == "Add" else []
        for position, product in enumerate(operands):
            if product.get_type_name() == "Multiply":
                product = next((one for one in _sources(product) if not _is_constant(one)), product)
            shape, other = (node.get_input_partial_shape(at) for at in (position, 1 - position))
            is_open = product.get_type_name() == "MatMul" and shape.rank.is_static and _columns(shape) is None
            if is_open and (_columns(other) or 1) > 1:
                kept = np.array([*[0] * (len(shape) - 1), -1])
                same = ov.opset1.reshape(node.input_value(position), kept, special_zero=True)
                node.input(position).replace_source_output(same.output(0))


def _columns(shape: Any) -> int | None:  # noqa: ANN401
    """Return the last dimension of a shape of OpenVINO; None if it is not known."""
    return int(shape[-1].get_length()) if shape.rank.is_static and len(shape) and shape[-1].is_static else None


def _compute_constants(ov: Any, model: Any) -> None:  # noqa: ANN401
    """Compute the operands that depend on constants only, of operations that depend on more, and of products.

    OpenVINO computes some of these at the first run, overwrites them by the result, and begins the next run with that.
    In a product of computed constants it reads transposed ones in the order that they had before (2026.4).
    """
    constant: set[str] = set()
    folded: set[str] = set()
    readers: _Readers = {}
    for node in model.get_ordered_ops():
        kind, sources = node.get_type_name(), [(one, one.get_source_output()) for one in node.inputs()]
        names = {source.get_node().get_friendly_name() for _, source in sources}
        is_constant = kind == "Constant" or (names and names <= constant and kind not in _NEVER_CONSTANT)
        if is_constant:
            constant.add(node.get_friendly_name())
            if kind == "Constant" or (names <= folded and kind in _FOLDED):
                folded.add(node.get_friendly_name())
        if kind == "MatMul" if is_constant else kind not in _KEEPS_OPERANDS:
            computed: _Readers = {} if is_constant else readers
            for one, source in sources:
                name = source.get_node().get_friendly_name()
                if name in constant - folded and source.get_element_type().bitwidth >= 8:
                    computed.setdefault((name, source.get_index()), []).append(one)
            if is_constant:  # at once: a later product may depend on it
                _replace_by_values(ov, computed)
    _replace_by_values(ov, readers)


def _replace_by_values(ov: Any, readers: _Readers) -> None:  # noqa: ANN401
    """Replace values that depend on constants only by what they are."""
    if not readers:
        return
    outputs = [ones[0].get_source_output() for ones in readers.values()]
    precision = {"INFERENCE_PRECISION_HINT": ov.Type.f32}
    request = _core().compile_model(ov.Model(outputs, []).clone(), "CPU", precision).create_infer_request()
    _run_to_end(request)
    for output, ones, tensor in zip(outputs, readers.values(), request.output_tensors, strict=True):
        computed = ov.opset1.constant(tensor.data, output.get_element_type()).output(0)
        for one in ones:
            one.replace_source_output(computed)


def _run_to_end(request: Any) -> None:  # noqa: ANN401
    """Run a request, and raise the error that it ends by.

    `infer` of one thread loses errors: it returns what was in memory, and overwrites that of others (2026.4).
    """
    request.start_async()
    request.wait()


def _dynamic_quantization(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a DynamicQuantizeLinear by its definition, with a scale of 1 for zeros only, as ONNX Runtime has it.

    OpenVINO rounds halves away from zero, and wants constant scales.
    """
    add, (x,) = builder.add, node.input
    y, scale, zero = node.output

    def constant(value: float) -> str:
        return builder.constant(np.array(value, "float32"), x)

    none, one, most = constant(0), constant(1), constant(255)
    scalar = builder.constant(np.array([], "int64"), x)
    least = add("Min", [add("ReduceMin", [x], keepdims=0), none])
    extent = add("Sub", [add("Max", [add("ReduceMax", [x], keepdims=0), none]), least])
    is_zero = add("Equal", [extent, none])
    step = add("Div", [add("Where", [is_zero, one, extent]), add("Where", [is_zero, one, most])])
    add("Reshape", [step, scalar], scale)
    offset = add("Round", [add("Clip", [add("Neg", [add("Div", [least, step])]), none, most])])
    add("Reshape", [add("Cast", [offset], to=onnx.TensorProto.UINT8), scalar], zero)
    shifted = add("Add", [add("Round", [add("Div", [x, step])]), offset])
    add("Cast", [add("Clip", [shifted, none, most])], y, to=onnx.TensorProto.UINT8)


def _softmax(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a Softmax over all dimensions from an axis on, as it is before version 13, as one of a matrix.

    OpenVINO computes it along the axis alone.
    """
    axis = onnx.helper.get_node_attr_value(node, "axis") if node.attribute else 1
    if builder.opset >= 13:
        builder.nodes.append(node)
        return
    rows = builder.add("Softmax", [builder.add("Flatten", [node.input[0]], axis=axis)], axis=1)
    builder.add("Reshape", [rows, builder.add("Shape", [node.input[0]])], node.output[0])


def _quantized_convolution(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a QLinearConv as a Conv between floats.

    OpenVINO takes scales of channels to be those of the last dimension, and adds the zero point before it rounds.
    """
    x, x_scale, x_zero, w, w_scale, w_zero, scale, zero, bias = operands_of(node, 9)
    channels = [-1, *[1] * (builder.rank(w) - 1)]
    inputs = [_floats(builder, x, x_scale, x_zero, []), _floats(builder, w, w_scale, w_zero, channels)]
    if bias:
        factors = builder.reshape(builder.add("Mul", [x_scale, w_scale]), [-1])
        inputs.append(builder.add("Mul", [builder.add("Cast", [bias], to=onnx.TensorProto.FLOAT), factors]))
    _quantize(builder, builder.add("Conv", inputs, **attributes_of(node)), scale, zero, node.output[0])


def _quantized_product(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a QLinearMatMul as a MatMul between floats: OpenVINO adds the zero point before it rounds."""
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = operands_of(node, 8)
    floats = [_floats(builder, a, a_scale, a_zero, [-1, 1]), _floats(builder, b, b_scale, b_zero, [-1])]
    _quantize(builder, builder.add("MatMul", floats), scale, zero, node.output[0])


def _floats(builder: ExpansionBuilder, name: str, scale: str, zero: str, shape: Sequence[int]) -> str:
    """Dequantize a value, in every version, where several scales have a shape."""
    rank = builder.rank(scale)
    numbers, shift, scale = (
        one if _dtype(builder, one) == "float32" else builder.add("Cast", [one], to=onnx.TensorProto.FLOAT)
        for one in (name, zero, scale)
    )
    if rank == 1:
        scale, shift = builder.reshape(scale, shape), builder.reshape(shift, shape)
    return builder.add("Mul", [builder.add("Sub", [numbers, shift]), scale])


def _integer_product(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a MatMulInteger as a sum of products of so few terms that float32, which OpenVINO computes in, is exact.

    Vectors become matrices, since OpenVINO gives their products another shape.
    """
    a, b, *zeros = node.input
    # Operator support requires that one of them is known.
    count = next(one for one in (_dims(builder, a)[-1], _dims(builder, b)[-2:][0]) if isinstance(one, int))
    terms = _exact_terms(builder.array(b), builder.array(zeros[1]) if zeros[1:] else np.zeros(1, "int8"))
    ranks = [builder.rank(a), builder.rank(b)]
    a = a if ranks[0] > 1 else builder.unsqueeze(a, 0)
    b = b if ranks[1] > 1 else builder.unsqueeze(b, 1)
    rank = max(2, *ranks)
    ones = [rank - 2 + at for at in range(2) if ranks[at] == 1]
    total = ""
    for start in range(0, max(count, 1), terms):
        parts = [a, b]
        if count > terms:
            end = min(start + terms, count)
            parts = [
                builder.slice(a, start, end, max(1, ranks[0] - 1)),
                builder.slice(b, start, end, max(0, ranks[1] - 2)),
            ]
        product = [total, builder.add("MatMulInteger", [*parts, *zeros])]
        total = builder.add("Add", product) if total else product[1]
    if ones:
        builder.along("Squeeze", total, ones, node.output[0])
    else:
        builder.add("Identity", [total], node.output[0])


def _exact_terms(weights: Array | None, zeros: Array | None) -> int:
    """Return how many products of bytes and weights float32 adds exactly."""
    if weights is None or zeros is None or not weights.size:
        return EXACT // 255**2
    sizes = np.abs(weights.astype("int32") - zeros.astype("int32"))
    along = max(weights.ndim - 2, 0)
    is_exact = 255 * int(sizes.sum(axis=along).max()) <= EXACT
    return weights.shape[along] if is_exact else EXACT // (255 * int(sizes.max()))


def _parametric_rectifier(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a PRelu with a slope of the rank of its data: OpenVINO takes a vector to be a slope for each channel."""
    x, slope = node.input
    more = builder.rank(x) - builder.rank(slope)
    if more > 0:
        slope = builder.along("Unsqueeze", slope, range(more))
    builder.add("PRelu", [x, slope], node.output[0])


def _choice(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a Where of truth values by operators of logic: OpenVINO stores inputs and what it computes differently."""
    condition, first, second = node.input
    if _dtype(builder, first) != "bool" and _dtype(builder, second) != "bool":
        builder.nodes.append(node)
        return
    chosen = builder.add("And", [condition, first])
    other = builder.add("And", [builder.add("Not", [condition]), second])
    builder.add("Or", [chosen, other], node.output[0])


def _reduction(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a reduction that computes something before or after it as two operators.

    OpenVINO ignores axes that are attributes in operator sets 13 to 17, and computes nothing over no axes.
    """
    kind, x, attributes = node.op_type, node.input[0], attributes_of(node)
    stated = stated_axes(node, builder.known)
    is_none = attributes.get("noop_with_empty_axes") == 1 and not stated
    if is_none and kind != "ReduceLogSumExp":
        builder.add("Log" if kind == "ReduceLogSum" else "Abs", [x], node.output[0])
    elif kind == "ReduceL2" or not 13 <= builder.opset < 18:
        builder.nodes.append(node)
    elif kind == "ReduceLogSumExp":
        EXPANSIONS[kind](builder, node)
    elif kind == "ReduceLogSum":
        total = builder.along("ReduceSum", x, stated, keepdims=attributes.get("keepdims", 1))
        builder.add("Log", [total], node.output[0])
    else:
        sizes = builder.add("Abs", [x])
        builder.along("ReduceSum", sizes, stated, node.output[0], keepdims=attributes.get("keepdims", 1))


def _clipped(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a Clip of integers by Max and Min, since OpenVINO computes it in float32."""
    x, least, most = operands_of(node, 3)
    if _dtype(builder, x) not in ("int32", "int64"):
        builder.nodes.append(node)
        return
    raised = builder.add("Max", [x, least]) if least else x
    builder.add("Min", [raised, *([most] if most else [])], node.output[0])


def _remainder(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a Mod with the sign of the divisor by that with the sign of the dividend.

    OpenVINO computes both in float32, where it subtracts a multiple of the divisor that may exceed the dividend.
    """
    (a, b), add = node.input, builder.add
    if attributes_of(node).get("fmod") or _dtype(builder, a) not in ("int32", "int64"):
        builder.nodes.append(node)
        return
    zero = builder.constant(np.array(0, _dtype(builder, a)), a)
    rest = add("Mod", [a, b], fmod=1)
    differs = add("Xor", [add("Less", [rest, zero]), add("Less", [b, zero])])
    is_moved = add("And", [differs, add("Not", [add("Equal", [rest, zero])])])
    add("Where", [is_moved, add("Add", [rest, b]), rest], node.output[0])


def _sum(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a ReduceSum of integers as the last of cumulative sums, which OpenVINO adds as integers, others as floats.

    They begin with 0, so that there is one for an axis without elements.
    """
    x = node.input[0]
    if builder.opset < SUMS_SINCE or _dtype(builder, x) not in ("int32", "int64"):
        builder.nodes.append(node)
        return
    rank, attributes = builder.rank(x), attributes_of(node)
    stated: Sequence[int] = stated_axes(node, builder.known)
    if not stated and not attributes.get("noop_with_empty_axes"):
        stated = range(rank)
    places = sorted(axis % rank for axis in stated)
    if places:
        pads = np.array([*(int(axis in places) for axis in range(rank)), *[0] * rank])
        x = builder.add("Pad", [x, builder.constant(pads, x)])
    for axis in places:
        sums = builder.add("CumSum", [x, builder.constant(np.array(axis), x)])
        x = builder.add("Gather", [sums, builder.constant(np.array([-1]), x)], axis=axis)
    if places and attributes.get("keepdims") == 0:
        builder.along("Squeeze", x, places, node.output[0])
    else:
        builder.add("Identity", [x], node.output[0])


def _norm_of_image(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a GlobalLpPool by its definition: OpenVINO does not compile it for symbolic dimensions."""
    (x,), order = node.input, float(attributes_of(node).get("p", 2))
    dtype = onnx.helper.tensor_dtype_to_np_dtype(builder.types[x].elem_type)
    powers = [builder.constant(np.array(power, dtype), x) for power in (order, 1 / order)]
    sums = builder.add("Pow", [builder.add("Abs", [x]), powers[0]])
    if builder.rank(x) > 2:
        sums = builder.along("ReduceSum", sums, range(2, builder.rank(x)))
    builder.add("Pow", [sums, powers[1]], node.output[0])


def _response_normalization(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write an LRN by its definition, with a pool over channels: OpenVINO ignores `bias`."""
    (x,), attributes = node.input, attributes_of(node)
    size, rank = attributes["size"], builder.rank(x)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(builder.types[x].elem_type)
    stated = (("alpha", 1e-4), ("bias", 1.0), ("beta", 0.75))
    alpha, bias, beta = (builder.constant(np.array(attributes.get(*one), dtype), x) for one in stated)
    image = builder.unsqueeze(builder.add("Mul", [x, x]), 1)
    ones, zeros = [1] * (rank - 2), [0] * (rank - 2)
    pads = [(size - 1) // 2, *zeros, size // 2, *zeros]
    means = builder.add("AveragePool", [image], kernel_shape=[size, *ones], pads=pads, count_include_pad=1)
    scaled = builder.add("Add", [builder.add("Mul", [builder.along("Squeeze", means, [1]), alpha]), bias])
    builder.add("Div", [x, builder.add("Pow", [scaled, beta])], node.output[0])


def _gathered_elements(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a GatherElements of as many elements along other axes as there are indices: OpenVINO requires as many.

    It removes slices of the elements.
    """
    x, indices = node.input
    axis = attributes_of(node).get("axis", 0) % max(1, builder.rank(x))
    for other, (size, count) in enumerate(zip(_dims(builder, x), _dims(builder, indices), strict=True)):
        if other == axis or (count and size == count):
            continue
        if isinstance(count, int):
            places = builder.constant(np.arange(count), x)
        else:
            zero, one, place = (builder.constant(np.array(number), x) for number in (0, 1, other))
            end = builder.add("Gather", [builder.add("Shape", [indices]), place], axis=0)
            places = builder.add("Range", [zero, end, one])
        x = builder.add("Gather", [x, places], axis=other)
    builder.add("GatherElements", [x, indices], node.output[0], axis=axis)


def _dims(builder: ExpansionBuilder, name: str) -> list[int | str]:
    dims = builder.types[name].shape.dim
    return [one.dim_value if one.HasField("dim_value") else one.dim_param for one in dims]


def _expansion(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write an Expand to no dimensions as what it is, since OpenVINO gives scalars one."""
    shape = builder.array(node.input[1])
    if shape is not None and not shape.size:
        builder.add("Identity", [node.input[0]], node.output[0])
    else:
        builder.nodes.append(node)


def _tiling(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a Tile of four or five dimensions as one of six where sizes are open, and one of a scalar as what it is.

    OpenVINO returns other elements where a second dimension of 1 and one that is open are repeated (2026.4).
    """
    x, repeats = node.input
    rank = builder.rank(x)
    if rank == 0:
        builder.add("Identity", [x], node.output[0])
        return
    if rank not in (4, 5) or all(isinstance(dim, int) for dim in _dims(builder, x)):
        builder.nodes.append(node)
        return
    added = range(6 - rank)
    times = builder.constant(np.array([*[1] * len(added), *builder.known(repeats)]), x)
    tiled = builder.add("Tile", [builder.along("Unsqueeze", x, added), times])
    builder.along("Squeeze", tiled, added, node.output[0])


def _averages(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Have an AveragePool of no padding count elements only: OpenVINO counts what is beyond them in the last ones."""
    attributes = attributes_of(node)
    if attributes.get("ceil_mode") and not any(attributes.get("pads", ())):
        attributes["count_include_pad"] = 0
    builder.add("AveragePool", node.input, node.output[0], **attributes)


def _compression(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a Compress by no more truth values than there are elements, and without axis as one of a vector.

    OpenVINO reads memory beyond the elements for others, and does not compile one without axis of symbolic dimensions.
    """
    data, condition = node.input
    attributes = attributes_of(node)
    if "axis" in attributes:
        size = builder.sizes(data)[attributes["axis"]]
    else:
        size = math.prod(builder.sizes(data))
        data, attributes["axis"] = builder.reshape(data, [-1]), 0
    [count] = builder.sizes(condition)
    if not count or count > size:
        first, last = (builder.constant(np.array([at]), data) for at in (0, attributes["axis"]))
        end = builder.add("Gather", [builder.add("Shape", [data]), last])
        condition = builder.add("Slice", [condition, first, end, first])
    builder.add("Compress", [data, condition], node.output[0], **attributes)


def _wrapped(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a Pad around the ends as choices of elements along each axis: OpenVINO has no such mode."""
    x, pads, _, axes = operands_of(node, 4)
    if attributes_of(node).get("mode") != "wrap":
        builder.nodes.append(node)
        return
    places = builder.known(axes).tolist() if axes else range(builder.rank(x))
    result = x
    for axis, (before, after) in zip(places, builder.known(pads).reshape(2, -1).T.tolist(), strict=True):
        if before or after:
            size = builder.types[x].shape.dim[axis].dim_value
            elements = builder.constant(np.arange(-before, size + after) % size, x)
            result = builder.add("Gather", [result, elements], axis=axis)
    builder.add("Identity", [result], node.output[0])


def _reversal(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a ReverseSequence by lengths that are no more than there are elements.

    OpenVINO stops in the middle of a run where they are; checks report them.
    """
    x, lengths = node.input
    attributes = attributes_of(node)
    if builder.array(lengths) is None or not builder.sizes(x)[attributes.get("time_axis", 0)]:
        first, axis = (builder.constant(np.array([at]), x) for at in (0, attributes.get("time_axis", 0)))
        size = builder.add("Gather", [builder.add("Shape", [x]), axis])
        lengths = builder.add("Max", [builder.add("Min", [lengths, size]), first])
    builder.add("ReverseSequence", [x, lengths], node.output[0], **attributes)


def _other_quantization(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a QuantizeLinear to 16 bits, or by computed scales, by its definition: OpenVINO does not support these."""
    _, scale, zero = operands_of(node, 3)
    zeros = builder.array(zero)
    is_wide = zeros is not None and zeros.dtype in (np.int16, np.uint16)
    is_computed = builder.array(scale) is None or (zero and zeros is None)
    if is_wide or is_computed or _dtype(builder, scale) != "float32":
        _quantization(builder, node)
    else:
        builder.nodes.append(node)


def _quantize(builder: ExpansionBuilder, name: str, scale: str, zero: str, result: str) -> None:
    _quantization(builder, onnx.helper.make_node("QuantizeLinear", [name, scale, zero], [result]))


def _quantization(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a QuantizeLinear by its definition: OpenVINO adds the zero point before it rounds halves to even."""
    x, scale, zero = operands_of(node, 3)
    add, attributes = builder.add, attributes_of(node)
    to = builder.types[zero].elem_type if zero else attributes.get("output_dtype") or onnx.TensorProto.UINT8
    floats = [add("Cast", [one], to=onnx.TensorProto.FLOAT) for one in (x, scale, *([zero] if zero else []))]
    if len(builder.types[scale].shape.dim) == 1 and builder.types[scale].shape.dim[0].dim_value != 1:
        shape = [1] * builder.rank(x)
        shape[attributes.get("axis", 1)] = -1
        floats[1:] = [builder.reshape(one, shape) for one in floats[1:]]
    info = np.iinfo(onnx.helper.tensor_dtype_to_np_dtype(to))
    bounds = [builder.constant(np.array(bound, "float32"), x) for bound in (info.min, info.max)]
    rounded = add("Round", [add("Div", floats[:2])])
    shifted = add("Add", [rounded, floats[2]]) if zero else rounded
    add("Cast", [add("Clip", [shifted, *bounds])], node.output[0], to=to)


def _regions(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a RoiAlign with the number of samples that ONNX assumes by default; OpenVINO takes one."""
    attributes = {"sampling_ratio": 0} | attributes_of(node)
    builder.add("RoiAlign", node.input, node.output[0], **attributes)


def _dequantized_scalar(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Reshape the result of a DequantizeLinear of a scalar: OpenVINO makes a vector of one element.

    Constants of 4 bits, and of blocks with scales of their own, are dequantized here.
    """
    x, result = node.input[0], node.output[0]
    EXPANSIONS["DequantizeLinear"](builder, node)
    if builder.nodes[-1] is node and builder.types[x].HasField("shape") and not builder.rank(x):
        node.output[0] = builder.fresh(f"{result}:vector")
        builder.add("Reshape", [node.output[0], builder.constant(np.array([], "int64"), x)], result)


def _exact_dequantization(builder: ExpansionBuilder, node: onnx.NodeProto, *, compared: Collection[str] = ()) -> None:
    """Write a DequantizeLinear with a difference of integers, to almost the largest floats, as of masks, or zeros.

    OpenVINO multiplies before it subtracts the zero point (2026.4), of which is left what rounding leaves, and the
    difference of two infinities is NaN. It takes three times as long with integers, so that others stay.
    """
    x, scale, zero = operands_of(node, 3)
    scales, is_block = builder.array(scale), bool(attributes_of(node).get("block_size"))
    if x not in builder.types:
        builder.nodes.append(node)
        return
    info = np.iinfo(onnx.helper.tensor_dtype_to_np_dtype(builder.types[x].elem_type))
    with np.errstate(over="ignore"):
        is_small = scales is not None and bool(np.isfinite(np.abs(scales) * np.float32(2) * info.max).all())
    is_inexact = not is_small or (node.output[0] in compared and builder.array(x) is None)
    if not is_inexact or is_block or not zero or _dtype(builder, scale) != "float32" or info.bits > 16:
        _dequantized_scalar(builder, node)
        return
    shape = [1] * builder.rank(x)
    if builder.rank(scale) == 1 and builder.types[scale].shape.dim[0].dim_value != 1:
        shape[attributes_of(node).get("axis", 1)] = -1
    scale, zero = (builder.reshape(one, shape) if builder.rank(one) else one for one in (scale, zero))
    numbers = [builder.add("Cast", [one], to=onnx.TensorProto.INT32) for one in (x, zero)]
    difference = builder.add("Cast", [builder.add("Sub", numbers)], to=onnx.TensorProto.FLOAT)
    builder.add("Mul", [difference, scale], node.output[0])


def _comparison(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a comparison of integers by comparisons with zero, as OpenVINO compares in float32.

    Of a difference that exceeds 32 bits, what is left is not zero either.
    """
    kind, (a, b) = node.op_type, node.input
    if not _is_inexact(builder, a, b):
        builder.nodes.append(node)
        return
    add, zero = builder.add, builder.constant(np.array(0, _dtype(builder, a)), a)
    if kind in ("Greater", "GreaterOrEqual"):
        a, b = b, a
    if kind == "Equal":
        add("Equal", [add("Sub", [a, b]), zero], node.output[0])
    elif kind in ("LessOrEqual", "GreaterOrEqual"):
        add("Equal", [add("Sub", [add("Max", [a, b]), b]), zero], node.output[0])
    else:
        add("Not", [add("Equal", [add("Sub", [add("Max", [a, b]), a]), zero])], node.output[0])


def _is_inexact(builder: ExpansionBuilder, *operands: str) -> bool:
    """Whether operands are integers that float32 may not hold, and neither is a constant that it holds."""
    if any(_dtype(builder, name) not in ("int32", "int64") for name in operands):
        return False
    constants = [values for name in operands if (values := builder.array(name)) is not None]
    return not any(values.size and np.abs(values).max() < EXACT for values in constants)


def _dtype(builder: ExpansionBuilder, name: str) -> str:
    known = builder.types.get(name)
    return "" if known is None else str(onnx.helper.tensor_dtype_to_np_dtype(known.elem_type))


_EXPANSIONS: dict[str, Expansion] = {
    **{kind: expand for kind, expand in EXPANSIONS.items() if kind in RULES and "::" in kind},
    "SimplifiedLayerNormalization": EXPANSIONS["SimplifiedLayerNormalization"],
    **TRAVERSED_TREES,
    **FOURIER_EXPANSIONS,
    **dict.fromkeys(COMPARISONS, _comparison),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"), _reduction),
    "ReduceSum": _sum,
    "AveragePool": _averages,
    "Clip": _clipped,
    "Compress": _compression,
    "DequantizeLinear": _dequantized_scalar,
    "DynamicQuantizeLinear": _dynamic_quantization,
    "Expand": _expansion,
    "GatherElements": _gathered_elements,
    "GlobalLpPool": _norm_of_image,
    "LRN": _response_normalization,
    "MatMulInteger": _integer_product,
    "Mod": _remainder,
    "PRelu": _parametric_rectifier,
    "Pad": _wrapped,
    "QLinearConv": _quantized_convolution,
    "QLinearMatMul": _quantized_product,
    "QuantizeLinear": _other_quantization,
    "ReverseSequence": _reversal,
    "RoiAlign": _regions,
    **dict.fromkeys(("ScatterElements", "ScatterND"), EXPANSIONS["ScatterND"]),
    "Softmax": _softmax,
    "ThresholdedRelu": EXPANSIONS["ThresholdedRelu"],
    "Tile": _tiling,
    "Where": _choice,
}


# What has another result of zero than of a number next to it.
_SENSITIVE_TO_ZERO = frozenset(
    {
        *("Cast", "Ceil", "Div", "Equal", "Floor", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Log"),
        *("Mod", "NonZero", "Reciprocal", "Sign", "Unique"),
    }
)
# What networks consist of whose low-precision transformations are tested.
_LOW_PRECISION = frozenset(
    {
        "Add",
        "Clip",
        "Concat",
        "Constant",
        "Conv",
        "DequantizeLinear",
        "Flatten",
        "Gemm",
        "GlobalAveragePool",
        "Identity",
        "MatMul",
        "MaxPool",
        "QLinearConv",
        "QLinearMatMul",
        "QuantizeLinear",
        "Relu",
        "Reshape",
        "Transpose",
    }
)
_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul", "QLinearConv", "QLinearMatMul"})
_TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


# Operators whose second operand holds indices along their axis, and those where it holds coordinates.
_ALONG_AXIS = frozenset({"Gather", "GatherElements", "ScatterElements"})
_COORDINATES = frozenset({"GatherND", "ScatterND"})


@dataclass(frozen=True)
class _IndexCheck:
    """Indices of an operator, of which OpenVINO does not report all that are out of bounds.

    Attributes:
        node: name, kind and place of the operator.
        indices: name of the value.
        sizes: elements along each axis that they refer to, as numbers or expressions of dimensions of the inputs.
        constant: the indices, if they are known.
        are_lengths: whether they are numbers of elements, up to all.
        are_natural: whether negative ones are out of bounds; else they count from the end.
    """

    node: str
    indices: str
    sizes: tuple[int | str, ...]
    constant: Array | None = None
    are_lengths: bool = False
    are_natural: bool = False

    def require_within(self, indices: Array, sizes: Mapping[str, int]) -> None:
        """Raise an error for an index that is out of bounds.

        Args:
            indices: the value.
            sizes: the dimensions of the inputs of the run.
        """
        columns = [indices] if len(self.sizes) == 1 else np.moveaxis(indices, -1, 0)
        for column, size in zip(columns, self.sizes, strict=True):
            elements = size_of(size, sizes)
            if elements is None:
                continue
            least = 0 if self.are_lengths or self.are_natural else -elements
            most = elements if self.are_lengths else elements - 1
            wrong = column[(column < least) | (column > most)]
            if wrong.size and self.are_lengths:
                raise RunError(f"length {wrong[0]} of {self.node} is not one of up to {elements} elements")
            if wrong.size:
                raise RunError(f"index {wrong[0]} of {self.node} is out of bounds for {elements} elements")


@dataclass(frozen=True)
class _FloatCheck:
    """Integers that OpenVINO computes with in float32, which is exact up to 2^24.

    Attributes:
        node: name, kind and place of the operator.
        kind: the operator.
        operands: names of the integers that are not constant; of a Pow, with its result.
    """

    node: str
    kind: str
    operands: tuple[str, ...]

    def require_exact(self, values: Mapping[str, Array]) -> None:
        """Raise an error for integers of which float32 may not hold one, or a sum or product of them.

        Args:
            values: the operands by name.
        """
        arrays = [np.abs(values[name].astype("float64")) for name in self.operands]
        if any(not array.size for array in arrays):
            return
        reached = [float(array.max()) for array in arrays]
        if max(reached) <= EXACT:
            match self.kind:
                case "ReduceL1" | "ReduceMean" | "ReduceSum":
                    reached.append(float(arrays[0].sum()))
                case "ReduceL2" | "ReduceSumSquare":
                    reached.append(float(np.square(arrays[0]).sum()))
                case "ReduceProd":
                    reached.append(float(np.maximum(arrays[0], 1).prod()))
                case "Pow":  # a larger one may have been rounded to this one
                    reached.append(reached[-1] + 1)
        if max(reached) > EXACT:
            dtype = values[self.operands[0]].dtype
            raise RunError(
                f"{self.node} of {', '.join(map(repr, self.operands))} reaches {max(reached):.0f}, and OpenVINO "
                f"computes {dtype} in float32; place its operations on another site"
            )


def _float_checks(model: onnx.ModelProto, place: str) -> Iterator[_FloatCheck]:
    """Yield what is to be checked in each run: integers that OpenVINO computes with in float32."""
    graph, types = model.graph, value_types(model.graph)
    opset = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)
    wide = {name for name, one in types.items() if one.elem_type in (onnx.TensorProto.INT32, onnx.TensorProto.INT64)}
    wide.difference_update(tensor.name for tensor in graph.initializer)
    for node in graph.node:
        if node.op_type in BY_FLOATS and (node.op_type != "ReduceSum" or opset < SUMS_SINCE):
            read = [name for name in node.input if name in wide]
            ends = [name for name in node.output if name in wide and node.op_type == "Pow"]
            if read:
                yield _FloatCheck(f"{node.name!r} ({node.op_type}) in {place}", node.op_type, (*read, *ends))


def _function_of(model: onnx.ModelProto) -> Function | None:
    """Return a function whose sizes are to be checked in each run; None if all are known."""
    dims = (dim for value in model.graph.input for dim in value.type.tensor_type.shape.dim)
    if all(dim.HasField("dim_value") for dim in dims):
        return None
    opsets = tuple((one.domain, one.version) for one in model.opset_import)
    return read_body(model.graph).replace(opsets=opsets)


def _size_problem(model: Any, inputs: Sequence[int | None], shapes: Sequence[tuple[int, ...]]) -> str | None:  # noqa: ANN401
    """Return what OpenVINO's inference says of the sizes of a run; None if they fit.

    It infers sizes while it runs, too, but broadcasts some that do not fit (2026.4).
    """
    known, ports = model.clone(), {}
    for at, shape in zip(inputs, shapes, strict=True):
        if at is not None:
            ports[known.input(at)] = _openvino().PartialShape(shape)
    try:
        known.reshape(ports)
    except Exception as error:
        return f"sizes of inputs do not fit: {_first_line(error)}"
    return None


def _index_checks(graph: onnx.GraphProto, place: str) -> Iterator[_IndexCheck]:
    """Yield what is to be checked in each run: indices, where they or the sizes of what they refer to are not known.

    Sizes that are neither static nor follow from those of inputs are not checked.
    """
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    constants = {name: tuple(tensor.dims) for name, tensor in tensors.items()}
    given = [value for value in graph.input if value.name not in constants]
    shapes: dict[str, tuple[int | str, ...]] = {**constants}
    for value in (*graph.value_info, *graph.output, *given):
        if value.type.tensor_type.HasField("shape"):
            dims = value.type.tensor_type.shape.dim
            shapes[value.name] = tuple(one.dim_value if one.HasField("dim_value") else one.dim_param for one in dims)
    symbols = {dim for value in given for dim in shapes.get(value.name, ()) if isinstance(dim, str)}
    for node in graph.node:
        if node.op_type not in _ALONG_AXIS | _COORDINATES | {"ArrayFeatureExtractor", "ReverseSequence"}:
            continue
        data, indices = shapes.get(node.input[0]), shapes.get(node.input[1])
        attributes = {one.name: one.i for one in node.attribute}
        if data is None or indices is None:
            continue
        are_lengths, are_natural = node.op_type == "ReverseSequence", node.op_type == "ArrayFeatureExtractor"
        first, count = attributes.get("time_axis" if are_lengths else "axis", -1 if are_natural else 0), 1
        if node.op_type in _COORDINATES:
            first, last = attributes.get("batch_dims", 0), indices[-1]
            count = last if isinstance(last, int) else 0
        sizes = data[first % len(data) :][:count]
        known = tuple(size for size in sizes if isinstance(size, int) or (size and symbols_of(size) <= symbols))
        tensor = tensors.get(node.input[1])
        if len(known) == count > 0 and (tensor is None or not all(isinstance(size, int) for size in known)):
            constant = None if tensor is None else onnx.numpy_helper.to_array(tensor)
            name = f"{node.name!r} ({node.op_type}) in {place}"
            yield _IndexCheck(name, node.input[1], known, constant, are_lengths, are_natural)


class _Program(Compiled):
    def __init__(
        self,
        compiled: Any,  # noqa: ANN401
        compile_model: Callable[[], Any],
        model: Any,  # noqa: ANN401
        request: CompileRequest,
        checks: Sequence[_IndexCheck],
        float_checks: Sequence[_FloatCheck],
        not_empty: Sequence[tuple[int, int, str, str]],
        scaled: Sequence[tuple[str, np.float32, str]],
        function: Function | None,
    ) -> None:
        self._compiled: Any = compiled  # None after a run that failed
        self._compile_model = compile_model
        self._place = f"@{request.site or '.'}"
        self._process = os.getpid()
        # A request serves one thread at a time.
        self._idle: list[Any] = []
        self._lock = threading.Lock()
        graph = request.model.graph
        initialized = {tensor.name for tensor in graph.initializer}
        self._names = [value.name for value in graph.input if value.name not in initialized]
        # Compiling keeps the order of inputs and results, but not all of their names.
        given = [port.get_names() for port in model.inputs]
        results = [port.get_names() for port in model.outputs]
        # An input that is a result too has lost its name, but is in its place if no input is left out.
        is_complete = len(given) == len(self._names)
        self._inputs = [at if is_complete else _position(given, name) for at, name in enumerate(self._names)]
        self._outputs = [_position(results, value.name) for value in graph.output]
        self._float_checks = float_checks
        names = {name for one in float_checks for name in one.operands}
        self._operands = {name: _position(results, name) for name in names.difference(self._names)}
        self._ends = _slice_ends(graph)
        self._not_empty = not_empty
        self._scaled = scaled
        self._dims = [_stated_dims(value.type.tensor_type) for value in graph.input if value.name not in initialized]
        self._results = [value.type.tensor_type for value in graph.output]
        read = set(_read(graph))
        ignored = [n for n, at in zip(self._names, self._inputs, strict=True) if at is None and n in read]
        if ignored or None in (*self._outputs, *self._operands.values()) or len(compiled.inputs) != len(given):
            what = f"its result depends on {ignored[0]!r}, which OpenVINO ignores" if ignored else "values are lost"
            raise BackendError(f"openvino cannot take function {request.name!r} of {self._place}: {what}")
        # Known indices and inputs are checked before a run, which may end the process, and computed ones after it.
        unknown = [one for one in checks if one.constant is None]
        self._known_indices = [(one, one.constant) for one in checks if one.constant is not None]
        self._checks_before = [(one, self._names.index(one.indices)) for one in unknown if one.indices in self._names]
        computed = [(one, _position(results, one.indices)) for one in unknown if one.indices not in self._names]
        self._checks_after = [(one, at) for one, at in computed if at is not None]
        self._sizes = None if function is None else RunSizes(function, partial(_size_problem, model, self._inputs))
        never_free_in_forks(compiled)

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        if self._process != os.getpid():
            raise RunError(
                f"OpenVINO compiled {self._place} in process {self._process}, and this is a fork of it, which has none "
                "of its threads; start processes with multiprocessing.get_context('spawn')"
            )
        ov = _openvino()
        arrays = [self._checked(name, array) for name, array in zip(self._names, inputs, strict=True)]
        shapes = [array.shape for array in arrays]
        sizes = self._sizes_of(shapes)
        for at, axis, dim, node in self._not_empty:
            if not shapes[at][axis]:
                nothing = self._results_of_nothing(sizes)
                if nothing is not None:
                    return nothing
                raise RunError(
                    f"{dim} of input {self._names[at]!r} of {self._place} is 0, and OpenVINO does not compute {node} "
                    "of no elements as ONNX defines it; place its operations on another site"
                )
        if self._sizes is not None and (problem := self._sizes.problem(shapes)):
            raise RunError(f"{problem} ({self._place})")
        for dim, scale, node in self._scaled:
            size = size_of(dim, sizes)
            if size is not None and rounded_up(np.array([size]), scale).size:
                raise RunError(
                    f"{dim} of {self._place} is {size}, and OpenVINO rounds {size} * {scale!s} up in {node}; place its "
                    "operations on another site"
                )
        for check, constant in self._known_indices:
            check.require_within(constant, sizes)
        for check, given in self._checks_before:
            check.require_within(arrays[given], sizes)
        with self._lock:
            if self._compiled is None:
                self._compiled = self._compile_model()
                never_free_in_forks(self._compiled)
            compiled = self._compiled
            request = self._idle.pop() if self._idle else compiled.create_infer_request()
        # A tensor that shares memory does not keep its array alive: `arrays` does, until the run has ended.
        for position, array in zip(self._inputs, arrays, strict=True):
            if position is not None:
                tensor = ov.Tensor(array, shared_memory=array.flags.writeable)
                request.set_input_tensor(position, tensor)
        try:
            _run_to_end(request)
        except Exception as error:
            # Some of its nodes have the shapes of this run now, and later runs would return these.
            with self._lock:
                if self._compiled is compiled:
                    self._compiled = None
                    self._idle.clear()
            raise RunError(f"openvino fails in {self._place}: {_first_line(error)}") from error
        results = [request.get_output_tensor(position).data.copy() for position in self._outputs]
        try:
            for check, result in self._checks_after:
                check.require_within(request.get_output_tensor(result).data, sizes)
            computed = {name: request.get_output_tensor(at).data for name, at in self._operands.items()}
            for float_check in self._float_checks:
                float_check.require_exact({**dict(zip(self._names, arrays, strict=True)), **computed})
        finally:
            with self._lock:
                if self._compiled is compiled:
                    self._idle.append(request)
        return results

    def _sizes_of(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """Return the sizes of the symbolic dimensions of the inputs."""
        sizes: dict[str, int] = {}
        for dims, shape in zip(self._dims, shapes, strict=True):
            sizes |= {dim: size for dim, size in zip(dims, shape, strict=False) if isinstance(dim, str)}
        return sizes

    def _results_of_nothing(self, sizes: Mapping[str, int]) -> list[Array] | None:
        """Return the results if none of them has elements, such as those of an empty batch; else None."""
        results = []
        for type_ in self._results:
            found = [size_of(dim, sizes) for dim in _stated_dims(type_)]
            known = [size for size in found if size is not None and size >= 0]
            if 0 not in known or len(known) < len(found):
                return None
            results.append(np.empty(known, onnx.helper.tensor_dtype_to_np_dtype(type_.elem_type)))
        return results

    def _checked(self, name: str, array: Array) -> Array:
        """Return an input as a contiguous array whose integers fit into the 32 bits that OpenVINO computes with."""
        if name in self._ends:  # beyond all elements in either case
            array = np.clip(array, _INT32.min, _INT32.max)
        if array.dtype == np.int64 and array.size:
            least, most = int(array.min()), int(array.max())
            if least < _INT32.min or most > _INT32.max:
                value = least if least < _INT32.min else most
                raise RunError(
                    f"input {name!r} of {self._place} holds {value}, and OpenVINO computes int64 in 32 bits; place its "
                    "operations on another site"
                )
        # OpenVINO knows one of numpy's two names for integers of 64 bits, and ONNX Runtime returns the other.
        return np.asarray(array, order="C").view(array.dtype.str)


def _stated_dims(type_: onnx.TypeProto.Tensor) -> list[Dim]:
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in type_.shape.dim]


def _position(names: Sequence[Collection[str]], name: str) -> int | None:
    return next((position for position, known in enumerate(names) if name in known), None)


def _read(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the values that operations read; of CastLike, only the type of the second is read."""
    yield from (value.name for value in graph.output)
    for node in graph.node:
        yield from node.input[:1] if node.op_type == "CastLike" else node.input
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _read(attribute.g)


def _dims_of_elements(graph: onnx.GraphProto) -> tuple[tuple[int, int, str, str], ...]:
    """Find the symbolic dimensions that must not be 0.

    Returns:
        Position of the input, axis, name of the dimension, and name and kind of an operation that needs elements.
    """
    types = value_types(graph)
    fails = any(
        node.op_type in FAILS_EMPTY or (node.op_type == "Flatten" and attributes_of(node).get("axis", 1) != 1)
        for node in graph.node
    )
    tested = (EMPTY if fails else EMPTY_IN_RUNS) | TRAVERSED_TREES.keys()
    needs: dict[str, str] = {}
    for node in graph.node:
        # Past keys may be none, but those of a run without any are those of the run before (2026.4).
        is_tested = kind_of(node) in tested
        if not is_tested or node.op_type == "Attention":
            for name in node.input[:3] if is_tested else (*node.input, *node.output):
                dims = types[name].shape.dim if name in types else ()
                needs |= {dim.dim_param: f"{node.name!r} ({node.op_type})" for dim in dims if dim.dim_param}
    constants = {tensor.name for tensor in graph.initializer}
    given = [value for value in graph.input if value.name not in constants]
    return tuple(
        (at, axis, dim.dim_param, needs[dim.dim_param])
        for at, value in enumerate(given)
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        if dim.dim_param in needs
    )


def _scaled_dims(graph: onnx.GraphProto) -> Iterator[tuple[str, np.float32, str]]:
    """Yield the symbolic dimensions that constants scale, with the scale, and the name and kind of the operation."""
    types = value_types(graph)
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type not in ("Resize", "Upsample") or node.input[0] not in types:
            continue
        attributes, operand = attributes_of(node), scales_at(node.input)
        tensor = None if operand is None else constants.get(node.input[operand])
        scales = attributes.get("scales", ()) if tensor is None else onnx.numpy_helper.to_array(tensor)
        dims = _stated_dims(types[node.input[0]])
        for axis, scale in zip(attributes.get("axes", range(len(dims))), scales, strict=False):
            if -len(dims) <= axis < len(dims) and isinstance(dim := dims[axis], str):
                yield dim, np.float32(scale), f"{node.name!r} ({node.op_type})"


def _slice_ends(graph: onnx.GraphProto) -> set[str]:
    """Find the inputs that say where slices begin and end, and nothing else."""
    ends = {name for node in graph.node if node.op_type == "Slice" for name in node.input[1:3]}
    return ends - {
        name for node in graph.node for at, name in enumerate(node.input) if node.op_type != "Slice" or at not in (1, 2)
    } - {value.name for value in graph.output}  # fmt: skip


def _first_line(error: Exception) -> str:
    """Return what an error of OpenVINO says, in one line, without where in its sources it was raised."""
    lines = [re.sub(r"Check '.*' failed at \S+", "", line).strip() for line in str(error).splitlines()]
    places = (
        *("Exception from", "Caught exception", "While validating", "FrontEnd API failed"),
        *("Errors during ONNX translation", "Model wasn't fully"),
    )
    said = [line.removeprefix("-- ") for line in lines if line and not line.startswith(places)]
    return ": ".join(line.rstrip(":") for line in said[:3]) or type(error).__name__


BACKEND = _OpenVino()
