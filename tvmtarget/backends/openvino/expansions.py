"""Operators that OpenVINO does not know, or computes otherwise than ONNX defines, as other operators of ONNX."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import partial

import numpy as np
import onnx
import onnx.version_converter

from tvmtarget.backends.classical_expansion import TRAVERSED_TREES, TREES_SINCE
from tvmtarget.backends.expansion_builder import ExpansionBuilder, attributes_of, operands_of, stated_axes
from tvmtarget.backends.fourier_expansion import FOURIER_EXPANSIONS
from tvmtarget.backends.operator_expansion import EXPANSIONS, Expansion, expand_operators, kind_of, value_types
from tvmtarget.backends.protocol import Array, CompileRequest
from tvmtarget.support.openvino_rules import COMPARISONS, EXACT, RULES, SUMS_SINCE

__all__ = ["expanded", "is_low_precision"]


def is_low_precision(graph: onnx.GraphProto) -> bool:
    """Return whether quantized operators can be computed in integers as ONNX defines them.

    OpenVINO's low-precision transformations saturate ReduceSum and ReduceMean, divide AveragePool of padding by another
    count, compute other results for networks with Resize, InstanceNormalization and products with quantized constants,
    and end with errors for attention. Networks of convolutions and products are computed as ONNX defines them, but
    halves are rounded after the zero point is added.

    Args:
        graph: the graph of a function.

    Returns:
        False where low-precision transformations have to be off.
    """
    kinds = {kind_of(node) for node in graph.node}
    return kinds <= _LOW_PRECISION and not kinds.isdisjoint(_PRODUCTS)


def expanded(request: CompileRequest, *, low_precision: bool) -> bytes:
    """Replace the operators that OpenVINO does not know, or computes otherwise.

    Where quantized operators are computed in floats, QuantizeLinear is one of them.

    Args:
        request: the function.
        low_precision: whether quantized operators are computed in integers.

    Returns:
        The model, serialized.
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
    """Write a PRelu with a slope of the rank of its data: OpenVINO takes a vector to be a slope for each channel.

    That of integers, which it computes in float32, is a sum.
    """
    x, slope = node.input
    if _is_wide(builder, x):
        zero, add = builder.constant(np.array(0, _dtype(builder, x)), x), builder.add
        add("Add", [add("Max", [x, zero]), add("Mul", [slope, add("Min", [x, zero])])], node.output[0])
        return
    more = builder.rank(x) - builder.rank(slope)
    if more > 0:
        slope = builder.along("Unsqueeze", slope, range(more))
    builder.add("PRelu", [x, slope], node.output[0])


def _rectifier(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a Relu of integers, which OpenVINO computes in float32, as a maximum."""
    (x,) = node.input
    if _is_wide(builder, x):
        builder.add("Max", [x, builder.constant(np.array(0, _dtype(builder, x)), x)], node.output[0])
    else:
        builder.nodes.append(node)


def _triangle(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a Trilu of integers as a product with that of ones: OpenVINO may compute it in float32 (2026.4)."""
    x, add = node.input[0], builder.add
    if not _is_wide(builder, x):
        builder.nodes.append(node)
        return
    ones = add("Cast", [add("Equal", [x, x])], to=onnx.TensorProto.FLOAT)
    kept = add("Trilu", [ones, *node.input[1:]], **attributes_of(node))
    add("Mul", [x, add("Cast", [kept], to=builder.types[x].elem_type)], node.output[0])


def _is_wide(builder: ExpansionBuilder, name: str) -> bool:
    """Return whether values are integers that float32 may not hold."""
    return _dtype(builder, name) in ("int32", "int64")


def _choice(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a Where of truth values by operators of logic: OpenVINO stores inputs and what it computes differently.

    That of integers, which it may compute in float32 together with the condition (2026.4), is a sum of products; lists
    of sizes are small.
    """
    condition, first, second = node.input
    if _is_wide(builder, first) and not all(map(builder.is_of_sizes, node.input)):
        add, dtype = builder.add, builder.types[first].elem_type
        is_first = add("Cast", [condition], to=dtype)
        is_second = add("Cast", [add("Not", [condition])], to=dtype)
        add("Add", [add("Mul", [first, is_first]), add("Mul", [second, is_second])], node.output[0])
        return
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
    _write_least(builder, [raised, *([most] if most else [])], node.output[0])


def _least(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    if _is_wide(builder, node.input[0]):
        _write_least(builder, [*node.input], node.output[0])
    else:
        builder.nodes.append(node)


def _write_least(builder: ExpansionBuilder, operands: list[str], output: str) -> None:
    """Write a minimum of integers, of which one is a constant, as `~max(~a, ~b)`.

    OpenVINO makes a Clamp of a minimum and a maximum, and its bounds are float32. Minima of sizes stay as they are
    where the constant fits.
    """
    constants = [values for name in operands if (values := builder.array(name)) is not None and values.size]
    are_sizes = all(map(builder.is_of_sizes, operands))
    if len(operands) < 2 or not constants or (are_sizes and max(np.abs(one).max() for one in constants) < EXACT):
        builder.add("Min", operands, output)
        return
    ones = builder.constant(np.array(-1, _dtype(builder, operands[-1])), operands[-1])
    most = builder.add("Max", [builder.add("Sub", [ones, name]) for name in operands])
    builder.add("Sub", [ones, most], output)


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
        x = builder.pad(x, [*(int(axis in places) for axis in range(rank)), *[0] * rank])
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


def _truth(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write a cast to bool as a comparison with 0: OpenVINO makes false of NaN and of the least int32 (2026.4)."""
    x, *like = node.input
    dtype = _dtype(builder, x)
    is_truth = _dtype(builder, like[0]) == "bool" if like else attributes_of(node)["to"] == onnx.TensorProto.BOOL
    if not is_truth or dtype not in ("float16", "float32", "int32", "int64"):
        builder.nodes.append(node)
        return
    is_zero = builder.add("Equal", [x, builder.constant(np.array(0, dtype), x)])
    builder.add("Not", [is_zero], node.output[0])


def _shrunk(builder: ExpansionBuilder, node: onnx.NodeProto) -> None:
    """Write choices: OpenVINO multiplies by 0, which is NaN for infinities (2026.4)."""
    (x,), attributes, add = node.input, attributes_of(node), builder.add
    limit, bias = attributes.get("lambd", 0.5), attributes.get("bias", 0.0)

    def scalar(value: float) -> str:
        return builder.constant(np.array(value, _dtype(builder, x)), x)

    above, below = add("Less", [scalar(limit), x]), add("Less", [x, scalar(-limit)])
    lower = add("Where", [below, add("Add", [x, scalar(bias)]), scalar(0)])
    add("Where", [above, add("Sub", [x, scalar(bias)]), lower], node.output[0])


def _is_inexact(builder: ExpansionBuilder, *operands: str) -> bool:
    """Whether operands are integers that float32 may not hold, and neither is a constant that it holds."""
    if not all(_is_wide(builder, name) for name in operands):
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
    **dict.fromkeys(("Cast", "CastLike"), _truth),
    "Celu": EXPANSIONS["Celu"],
    "Clip": _clipped,
    "Compress": _compression,
    "DequantizeLinear": _dequantized_scalar,
    "DynamicQuantizeLinear": _dynamic_quantization,
    "Expand": _expansion,
    "GatherElements": _gathered_elements,
    "GlobalLpPool": _norm_of_image,
    "LRN": _response_normalization,
    "MatMulInteger": _integer_product,
    "Min": _least,
    "Mod": _remainder,
    "PRelu": _parametric_rectifier,
    "Pad": _wrapped,
    "QLinearConv": _quantized_convolution,
    "QLinearMatMul": _quantized_product,
    "QuantizeLinear": _other_quantization,
    "Relu": _rectifier,
    "ReverseSequence": _reversal,
    "RoiAlign": _regions,
    "Shrink": _shrunk,
    **dict.fromkeys(("ScatterElements", "ScatterND"), EXPANSIONS["ScatterND"]),
    "Softmax": _softmax,
    "ThresholdedRelu": EXPANSIONS["ThresholdedRelu"],
    "Tile": _tiling,
    "Trilu": _triangle,
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
