"""Operators that TVM or OpenVINO does not know, written as operators that it knows.

These are the products of integers, the operators that ONNX Runtime's quantization and optimisation write, and those of
classical models (`classical_expansion`). Quantized operators are computed as ONNX defines them, in float between
DequantizeLinear and QuantizeLinear; constants are dequantized here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, TypeProto, helper

from tvmtarget.backends.classical_expansion import CLASSICAL_EXPANSIONS
from tvmtarget.backends.convolution_expansion import CONVOLUTION_EXPANSIONS
from tvmtarget.backends.expansion_builder import (
    ExpansionBuilder,
    attributes_of,
    dequantized_array,
    operands_of,
    stated_axes,
)
from tvmtarget.backends.fourier_expansion import FOURIER_EXPANSIONS
from tvmtarget.support.tvm_rules import order_to_resize

__all__ = ["EXPANSIONS", "RECURRENT_EXPANSIONS", "Expansion", "expand_operators", "kind_of", "value_types"]

Expansion: TypeAlias = Callable[[ExpansionBuilder, NodeProto], None]
Array: TypeAlias = "np.ndarray[Any, Any]"

# Sums of products of whole numbers are exact in float32 up to here.
_EXACT = 1 << 24
_FOUR_BITS = (TensorProto.INT4, TensorProto.UINT4)


def expand_operators(
    graph: GraphProto, types: Mapping[str, TypeProto.Tensor], opset: int, expansions: Mapping[str, Expansion]
) -> None:
    """Expand operators in place.

    Args:
        graph: the graph of a model; constants of expanded operators are added to it.
        types: the types of its values by name.
        opset: the version of ONNX's operator set.
        expansions: what writes the operators of a kind as others.
    """
    nodes = list(graph.node)
    if not any(kind_of(node) in expansions for node in nodes):
        return
    builder = ExpansionBuilder(graph, types, opset)
    for node in nodes:
        expand = expansions.get(kind_of(node))
        if expand is None:
            builder.nodes.append(node)
        else:
            expand(builder, node)
    del graph.node[:]
    graph.node.extend(builder.nodes)
    # The importer reads all initializers, and knows none of 4 bits.
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    for at, tensor in reversed([*enumerate(graph.initializer)]):
        if tensor.name in builder.replaced or (tensor.data_type in _FOUR_BITS and tensor.name not in read):
            del graph.initializer[at]


def value_types(graph: GraphProto) -> dict[str, TypeProto.Tensor]:
    """Return the types of all values of a graph, as far as they are known.

    Args:
        graph: the graph.

    Returns:
        Types by name.
    """
    types = {info.name: info.type.tensor_type for info in (*graph.input, *graph.value_info, *graph.output)}
    for tensor in graph.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims).tensor_type
    return types


def kind_of(node: NodeProto) -> str:
    """Name the operator of a node, with its domain unless that is ONNX's own.

    Args:
        node: the node.

    Returns:
        A name such as `Conv` or `com.microsoft::Gelu`.
    """
    return f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


# Products of integers


def _integer_product(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write a MatMulInteger as a MatMul of operands without zero points, in narrow types that hold them.

    Constants are shifted by their zero points here. `narrow_products` multiplies the operands as they are.
    """
    a, b, first, second = operands_of(node, 4)
    operands = [builder.shifted(a, first, is_row=True), builder.shifted(b, second, is_row=False)]
    casts = [builder.add("Cast", [operand], to=TensorProto.INT32) for operand in operands]
    builder.add("MatMul", casts, node.output[0])


def _integer_convolution(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write a ConvInteger with constant weights as a Conv of floats that hold all sums exactly."""
    x, w, x_zero, w_zero = operands_of(node, 4)
    weights = builder.known(w).astype("int32")
    if w_zero:
        zeros = builder.known(w_zero).astype("int32")
        weights = weights - zeros.reshape(-1, *[1] * (weights.ndim - 1) * (zeros.ndim == 1))
    largest = np.abs(weights).sum(axis=tuple(range(1, weights.ndim))).max(initial=0) * 255
    dtype = "float32" if largest < _EXACT else "float64"
    to = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    data = builder.add("Cast", [x], to=to)
    if x_zero:
        data = builder.add("Sub", [data, builder.add("Cast", [x_zero], to=to)])
    product = builder.add("Conv", [data, builder.constant(weights.astype(dtype), w)], **attributes_of(node))
    builder.add("Cast", [product], node.output[0], to=TensorProto.INT32)


def _few_bits(packed: Array, count: int, bits: int) -> Array:
    """Unpack numbers of few bits, lowest first, along the last axis."""
    per_byte = 8 // bits
    shifts = np.arange(per_byte, dtype=np.uint8) * bits
    flat = (packed[..., None] >> shifts) & ((1 << bits) - 1)
    return flat.reshape(*packed.shape[:-1], -1)[..., :count]


def _block_product(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write a MatMulNBits as a MatMul with dequantized weights."""
    a, b, scale, zero, groups, bias = operands_of(node, 6)
    attributes = attributes_of(node)
    rows, columns = attributes["N"], attributes["K"]
    bits, block = attributes.get("bits", 4), attributes["block_size"]
    blocks = -(-columns // block)
    values = _few_bits(builder.known(b).reshape(rows, blocks, -1), block, bits).astype("float32")
    scales = builder.known(scale).reshape(rows, blocks)
    zeros: Array = np.full((rows, blocks), 1 << (bits - 1), "float32")
    if zero:
        known = builder.known(zero)
        is_packed = known.dtype == np.uint8
        zeros = _few_bits(known.reshape(rows, -1), blocks, bits) if is_packed else known.reshape(rows, blocks)
    group = builder.known(groups)[:columns] if groups else np.arange(columns) // block
    floats = values.reshape(rows, -1)[:, :columns] - zeros.astype("float32")[:, group]
    flat = (floats * scales.astype("float32")[:, group]).T.astype(scales.dtype)
    product = builder.add("MatMul", [a, builder.constant(flat, b)], None if bias else node.output[0])
    if bias:
        builder.add("Add", [product, bias], node.output[0])


def _equal(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write an Equal of truth values as a Xor, since TVM compares numbers only."""
    a, b = node.input
    if any(name in builder.types and builder.types[name].elem_type == TensorProto.BOOL for name in (a, b)):
        builder.add("Not", [builder.add("Xor", [a, b])], node.output[0])
    else:
        builder.nodes.append(node)


def _along_axes(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write a Squeeze or Unsqueeze along one axis that is a scalar, as torch exports it, as one along a vector."""
    x, axes = operands_of(node, 2)
    known = builder.array(axes)
    if known is not None and not known.ndim:
        builder.add(node.op_type, [x, builder.constant(known.reshape(1), axes)], node.output[0])
    else:
        builder.nodes.append(node)


def _scatter(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write a reduction of scattered truth values as a product of numbers; a sum is false where all of it is.

    TVM reduces numbers only, to their maximum since version 18 only.
    """
    data, indices, updates = node.input
    attributes = attributes_of(node)
    reduction = attributes.pop("reduction", "none")
    if reduction == "none" or builder.types[data].elem_type != TensorProto.BOOL:
        builder.nodes.append(node)
        return
    is_sum = reduction in ("add", "max")
    truths = [builder.add("Not", [one]) if is_sum else one for one in (data, updates)]
    numbers = [builder.add("Cast", [one], to=TensorProto.UINT8) for one in truths]
    product = builder.add(node.op_type, [numbers[0], indices, numbers[1]], reduction="mul", **attributes)
    truth = builder.add("Cast", [product], None if is_sum else node.output[0], to=TensorProto.BOOL)
    if is_sum:
        builder.add("Not", [truth], node.output[0])


def _one_hot(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write a OneHot as a choice where an index equals a position; one that is out of range equals none."""
    indices, depth_name, values = node.input
    depth, rank = int(builder.known(depth_name).item()), builder.rank(indices)
    axis = attributes_of(node).get("axis", -1) % (rank + 1)
    numbers = builder.add("Cast", [indices], to=TensorProto.INT64)
    is_negative = builder.add("Less", [numbers, builder.constant(np.array(0), indices)])
    from_end = builder.add("Add", [numbers, builder.constant(np.array(depth), indices)])
    numbers = builder.unsqueeze(builder.add("Where", [is_negative, from_end, numbers]), axis)
    positions = np.arange(depth).reshape(-1, *[1] * (rank - axis))
    is_here = builder.add("Equal", [numbers, builder.constant(positions, indices)])
    off, on = (builder.slice(values, at, at + 1, 0) for at in (0, 1))
    builder.add("Where", [is_here, on, off], node.output[0])


def _eye_like(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write an EyeLike as what is neither above a diagonal nor below it."""
    (x,), attributes = node.input, attributes_of(node)
    diagonal, to = attributes.get("k", 0), attributes.get("dtype", builder.types[x].elem_type)
    sizes = [dim.dim_value for dim in builder.types[x].shape.dim if dim.HasField("dim_value")]
    if len(sizes) == builder.rank(x):
        rows, columns = sizes
        eye = np.eye(rows, columns, diagonal, dtype=onnx.helper.tensor_dtype_to_np_dtype(to))
        builder.add("Identity", [builder.constant(eye, x)], node.output[0])
        return
    one = onnx.numpy_helper.from_array(np.ones(1, "float32"))
    ones = builder.add("ConstantOfShape", [builder.add("Shape", [x])], value=one)
    diagonal = builder.constant(np.array(diagonal), x)
    above = builder.add("Trilu", [ones, diagonal], upper=1)
    builder.add("Cast", [builder.add("Trilu", [above, diagonal], upper=0)], node.output[0], to=to)


def _place_of_extreme(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Count a negative axis from the first one: the importer rejects it before version 11, where exporters write it."""
    attributes = attributes_of(node)
    if attributes.get("axis", 0) < 0:
        attributes["axis"] += builder.rank(node.input[0])
        node = helper.make_node(node.op_type, node.input, node.output, node.name, **attributes)
    builder.nodes.append(node)


def _hardmax(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write a Hardmax along a symbolic dimension as the first of the places of the maximum."""
    (x,) = node.input
    axis = attributes_of(node).get("axis", -1)
    if builder.opset < 13 or builder.types[x].shape.dim[axis].HasField("dim_value"):
        builder.nodes.append(node)
        return
    is_most = builder.add("Equal", [x, builder.along("ReduceMax", x, [axis])])
    count = builder.add("Cast", [is_most], to=TensorProto.INT64)
    count = builder.add("CumSum", [count, builder.constant(np.array(axis), x)])
    is_first = builder.add("Equal", [count, builder.constant(np.array(1), x)])
    builder.add("Cast", [builder.add("And", [is_most, is_first])], node.output[0], to=builder.types[x].elem_type)


def _dequantized_constant(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Compute floats of constants of 4 bits, and of blocks with scales of their own."""
    x, scale, zero = operands_of(node, 3)
    array, scales = builder.array(x), builder.array(scale)
    attributes = attributes_of(node)
    block, axis = attributes.get("block_size", 0), attributes.get("axis", 1)
    if array is None or scales is None or (array.dtype.kind in "iu" and not block):
        builder.nodes.append(node)
        return
    floats = dequantized_array(array, scales, builder.known(zero) if zero else None, axis, block)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(attributes.get("output_dtype") or builder.types[scale].elem_type)
    builder.add("Identity", [builder.constant(floats.astype(dtype), x)], node.output[0])


def _constant_batch_norm(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write a normalization by constants as a product and a sum, or into the weights of the convolution before it.

    onnxruntime computes both forms, too.
    """
    x, *names = operands_of(node, 5)
    arrays, attributes = [builder.array(name) for name in names], attributes_of(node)
    dims = builder.types[x].shape.dim if x in builder.types else []
    known = [array for array in arrays if array is not None and array.dtype == np.float32 and array.ndim == 1]
    if len(known) < len(arrays) or len(dims) < 2 or dims[1].dim_value != known[0].size:
        builder.nodes.append(node)
        return
    scale, bias, mean, variance = (array.astype("float64") for array in known)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + attributes.get("epsilon", 1e-5))
        offset = bias - mean * factor
    shape = (-1, *[1] * (len(dims) - 2))
    before = builder.nodes[-1] if builder.nodes else node
    weights = builder.array(before.input[1]) if before.op_type == "Conv" and before.output[0] == x else None
    own = builder.array(before.input[2]) if weights is not None and len(before.input) > 2 else np.zeros(1)
    if weights is None or own is None or weights.dtype != np.float32 or not builder.is_read_once(x):
        product = builder.add("Mul", [x, builder.constant(factor.astype("float32").reshape(shape), names[0])])
        constant = builder.constant(offset.astype("float32").reshape(shape), names[1])
        builder.add("Add", [product, constant], node.output[0])
        return
    builder.nodes.pop()
    builder.replaced.update(name for name in before.input[1:] if builder.is_read_once(name))
    scaled = weights * factor.reshape(-1, *[1] * (weights.ndim - 1))
    inputs = [before.input[0], builder.constant(scaled.astype("float32"), before.input[1])]
    inputs.append(builder.constant((own * factor + offset).astype("float32"), names[1]))
    builder.add("Conv", inputs, node.output[0], **attributes_of(before))


# Quantized operators


def _quantized_convolution(builder: ExpansionBuilder, node: NodeProto) -> None:
    x, x_scale, x_zero, w, w_scale, w_zero, scale, zero, bias = operands_of(node, 9)
    inputs = [builder.dequantized(x, x_scale, x_zero), builder.dequantized(w, w_scale, w_zero, axis=0)]
    if bias:
        scales = builder.known(x_scale).astype("float64") * builder.known(w_scale)
        inputs.append(builder.constant((builder.known(bias) * scales).astype("float32").reshape(-1), bias))
    builder.quantize(builder.add("Conv", inputs, **attributes_of(node)), scale, zero, node.output[0])


def _quantized_product(builder: ExpansionBuilder, node: NodeProto) -> None:
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = operands_of(node, 8)
    operands = [builder.dequantized(a, a_scale, a_zero, axis=-2), builder.dequantized(b, b_scale, b_zero, axis=-1)]
    builder.quantize(builder.add("MatMul", operands), scale, zero, node.output[0])


def _quantized_gemm(builder: ExpansionBuilder, node: NodeProto) -> None:
    a, a_scale, a_zero, b, b_scale, b_zero, bias, scale, zero = operands_of(node, 9)
    attributes = attributes_of(node)
    axis = 0 if attributes.get("transB") else 1
    operands = [builder.dequantized(a, a_scale, a_zero), builder.dequantized(b, b_scale, b_zero, axis=axis)]
    if bias:
        alpha = attributes.get("alpha", 1.0)
        scales = builder.known(a_scale).astype("float64") * builder.known(b_scale) * alpha
        operands.append(builder.constant((builder.known(bias) * scales).astype("float32"), bias))
    result = builder.add("Gemm", operands, None if scale else node.output[0], **attributes)
    if scale:
        builder.quantize(result, scale, zero, node.output[0])


def _integer_product_as_float(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write a product of integers, or of floats that are quantized by their range, as a float."""
    if node.op_type == "DynamicQuantizeMatMul":
        x, b, b_scale, b_zero, bias = operands_of(node, 5)
        a, a_scale, a_zero = (builder.fresh(f"{x}:{name}") for name in ("quantized", "scale", "zero"))
        builder.nodes.append(onnx.helper.make_node("DynamicQuantizeLinear", [x], [a, a_scale, a_zero]))
    else:
        a, b, a_scale, b_scale, a_zero, b_zero, bias = operands_of(node, 7)
    zeros = [a_zero, b_zero] if b_zero else [a_zero] if a_zero else []
    product = builder.add("Cast", [builder.add("MatMulInteger", [a, b, *zeros])], to=TensorProto.FLOAT)
    operands = [product, builder.add("Mul", [a_scale, b_scale])]
    result = builder.add("Mul", operands, None if bias else node.output[0])
    if bias:
        builder.add("Add", [result, bias], node.output[0])


def _quantized_binary(kind: str) -> Expansion:
    def expand(builder: ExpansionBuilder, node: NodeProto) -> None:
        a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = operands_of(node, 8)
        operands = [builder.dequantized(a, a_scale, a_zero), builder.dequantized(b, b_scale, b_zero)]
        builder.quantize(builder.add(kind, operands), scale, zero, node.output[0])

    return expand


def _quantized_unary(kind: str, *kept: str) -> Expansion:
    """Return an expansion that keeps some attributes."""

    def expand(builder: ExpansionBuilder, node: NodeProto) -> None:
        x, x_scale, x_zero, scale, zero = operands_of(node, 5)
        attributes = {name: value for name, value in attributes_of(node).items() if name in kept}
        result = builder.add(kind, [builder.dequantized(x, x_scale, x_zero)], **attributes)
        builder.quantize(result, scale, zero, node.output[0])

    return expand


def _quantization_of_onnx(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write the operator of com.microsoft, which has 4 and 16 bits in every version, as that of ONNX."""
    made = onnx.helper.make_node(node.op_type, node.input, node.output[:1], **attributes_of(node))
    if node.op_type == "DequantizeLinear":
        _dequantized_constant(builder, made)
    else:
        builder.nodes.append(made)


def _quantized_concat(builder: ExpansionBuilder, node: NodeProto) -> None:
    scale, zero, *parts = node.input
    operands = [builder.dequantized(*parts[at : at + 3]) for at in range(0, len(parts), 3)]
    builder.quantize(builder.add("Concat", operands, **attributes_of(node)), scale, zero, node.output[0])


# Operators that fuse others


def _scalar(builder: ExpansionBuilder, name: str, value: float) -> str:
    """Return a scalar constant of the element type of a value."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(builder.types[name].elem_type)
    return builder.constant(np.array(value, dtype), name)


def _gelu(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write x * (1 + erf(x / sqrt(2))) / 2, of an operand and its bias."""
    x, bias = operands_of(node, 2)
    data = builder.add("Add", [x, bias]) if bias else x
    error = builder.add("Erf", [builder.add("Mul", [data, _scalar(builder, x, 0.5**0.5)])])
    gate = builder.add("Add", [error, _scalar(builder, x, 1.0)])
    builder.add("Mul", [builder.add("Mul", [data, _scalar(builder, x, 0.5)]), gate], node.output[0])


def _fast_gelu(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))) / 2, of an operand and its bias."""
    x, bias = operands_of(node, 2)
    data = builder.add("Add", [x, bias]) if bias else x
    square = builder.add("Mul", [data, data])
    inner = builder.add("Add", [builder.add("Mul", [square, _scalar(builder, x, 0.044715)]), _scalar(builder, x, 1.0)])
    scaled = builder.add("Mul", [data, _scalar(builder, x, (2 / np.pi) ** 0.5)])
    gate = builder.add("Add", [builder.add("Tanh", [builder.add("Mul", [scaled, inner])]), _scalar(builder, x, 1.0)])
    builder.add("Mul", [builder.add("Mul", [data, _scalar(builder, x, 0.5)]), gate], node.output[0])


def _fused_product(builder: ExpansionBuilder, node: NodeProto) -> None:
    attributes = attributes_of(node)
    operands = list(node.input)
    for at, name in enumerate(("transA", "transB")):
        if attributes.get(name):
            rank = builder.rank(operands[at])
            perm = [*range(rank - 2), rank - 1, rank - 2] if rank > 1 else [0]
            operands[at] = builder.add("Transpose", [operands[at]], perm=perm)
    alpha = attributes.get("alpha", 1.0)
    product = builder.add("MatMul", operands, node.output[0] if alpha == 1 else None)
    if alpha != 1:
        builder.add("Mul", [product, _scalar(builder, node.input[0], alpha)], node.output[0])


def _distances(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write the distances of all rows of two matrices, which TVM sums without storing the differences."""
    a, b = node.input
    rows, columns = builder.unsqueeze(a, 1), builder.unsqueeze(b, 0)
    difference = builder.add("Sub", [rows, columns])
    is_root = attributes_of(node).get("metric", "sqeuclidean") == "euclidean"
    kind, result = ("ReduceL2" if is_root else "ReduceSumSquare"), node.output[0]
    if builder.opset >= 18:
        builder.add(kind, [difference, builder.constant(np.array([2]), a)], result, keepdims=0)
    else:
        builder.add(kind, [difference], result, axes=[2], keepdims=0)


def _fused_convolution(builder: ExpansionBuilder, node: NodeProto) -> None:
    attributes = attributes_of(node)
    activation = attributes.pop("activation", "")
    params = list(attributes.pop("activation_params", ()))
    x, w, bias, added = operands_of(node, 4)
    result = builder.add("Conv", [x, w, *([bias] if bias else [])], **attributes)
    if added:
        result = builder.add("Add", [result, added])
    if activation == "Clip":
        bounds = [builder.constant(np.array(bound, "float32"), x) for bound in params]
        builder.add("Clip", [result, *bounds], node.output[0])
    elif activation == "LeakyRelu":
        builder.add("LeakyRelu", [result], node.output[0], **({"alpha": params[0]} if params else {}))
    else:
        builder.add(activation or "Identity", [result], node.output[0])


def _normalized(
    builder: ExpansionBuilder, data: str, like: str, epsilon: float, axis: int, *, is_centered: bool
) -> str:
    """Return data divided by its deviation, or by the root of its mean square, along the axes from one on."""
    centered = builder.add("Sub", [data, builder.along("ReduceMean", data, [axis])]) if is_centered else data
    square = builder.along("ReduceMean", builder.add("Mul", [centered, centered]), [axis])
    root = builder.add("Sqrt", [builder.add("Add", [square, _scalar(builder, like, epsilon)])])
    return builder.add("Div", [centered, root])


def _skip_norm(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write the normalization of a sum over the last axis; the fourth result is the sum."""
    is_simple = node.op_type == "SkipSimplifiedLayerNormalization"
    x, skip, gamma, *others = operands_of(node, 5)
    beta, bias = ("", others[0]) if is_simple else others
    total = node.output[3] if len(node.output) > 3 and node.output[3] else None
    if bias:
        x_skip = builder.add("Add", [x, skip])
        data = builder.add("Add", [x_skip, bias], total)
    else:
        data = builder.add("Add", [x, skip], total)
    epsilon = attributes_of(node).get("epsilon", 1e-12)
    result = _normalized(builder, data, x, epsilon, -1, is_centered=not is_simple)
    scaled = builder.add("Mul", [result, gamma], None if beta else node.output[0])
    if beta:
        builder.add("Add", [scaled, beta], node.output[0])


def _simple_norm(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write a division by the root of the mean square over the last axis."""
    x, gamma = operands_of(node, 2)
    epsilon = attributes_of(node).get("epsilon", 1e-5)
    builder.add("Mul", [_normalized(builder, x, x, epsilon, -1, is_centered=False), gamma], node.output[0])


def _lp_norm(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write a division by the sum of magnitudes, or the root of the sum of squares; zeros stay zeros."""
    (x,) = node.input
    attributes = attributes_of(node)
    norm = builder.along(f"ReduceL{attributes.get('p', 2)}", x, [attributes.get("axis", -1)])
    is_zero = builder.add("Not", [builder.add("Cast", [norm], to=TensorProto.BOOL)])
    divisor = builder.add("Where", [is_zero, _scalar(builder, x, 1.0), norm])
    builder.add("Div", [x, divisor], node.output[0])


def _log_sum_exp(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write a ReduceLogSumExp that subtracts the maximum only where it is finite: the importer's is NaN of infinity."""
    x, attributes, stated = node.input[0], attributes_of(node), stated_axes(node, builder.known)
    zero = _scalar(builder, x, 0)
    most = builder.along("ReduceMax", x, stated)
    largest = builder.add("Where", [builder.add("IsInf", [most]), zero, most])
    total = builder.along("ReduceSum", builder.add("Exp", [builder.add("Sub", [x, largest])]), stated)
    keeps = bool(attributes.get("keepdims", 1))
    result = builder.add("Add", [builder.add("Log", [total]), largest], node.output[0] if keeps else None)
    if not keeps:
        builder.along("Squeeze", result, stated, node.output[0])


# Images


def _image_resize(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write a Resize so that the dimensions that stay as they are, such as channels behind the others, come first."""
    x, _, scales, sizes = operands_of(node, 4)
    before, after = (
        [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in builder.types[name].shape.dim]
        for name in (x, node.output[0])
    )
    factors = builder.array(scales) if scales else None
    factors = None if factors is None or not factors.size else factors
    order, missing = order_to_resize(before, after, None if factors is None else factors.tolist())
    if not missing and list(order) == sorted(order):
        builder.nodes.append(node)
        return
    image = builder.add("Transpose", [x], perm=order)
    image = builder.along("Unsqueeze", image, range(missing)) if missing else image
    operands = [image, "", scales, sizes]
    for at, dtype in ((2, "float32"), (3, "int64")):
        given = builder.array(operands[at]) if operands[at] else None
        if given is not None and given.size:
            operands[at] = builder.constant(np.array([*[1] * missing, *given[list(order)]], dtype), x)
        elif operands[at] and given is None:
            ordered = builder.add("Gather", [operands[at], builder.constant(np.array(order), x)])
            operands[at] = builder.add("Concat", [builder.constant(np.ones(missing, dtype), x), ordered], axis=0)
    image = builder.add("Resize", operands, **attributes_of(node))
    image = builder.along("Squeeze", image, range(missing)) if missing else image
    builder.add("Transpose", [image], node.output[0], perm=[order.index(axis) for axis in range(len(order))])


# Pools


def _rounded_pool(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write a pool whose sizes are rounded up as one with more padding at the ends.

    TVM infers such sizes by a choice, and compiles nested ones of symbolic dimensions for minutes or not at all (0.27).
    They are those of `strides - 1` more elements, which no maximum counts, and no mean of elements. Windows that begin
    in padding at the ends have no result: no window ends more than its extent less one behind the last element. Padding
    that a mean counts becomes elements, unless sizes are known.
    """
    attributes = attributes_of(node)
    kernel, strides, dilations, pads = (
        attributes.get(name, []) for name in ("kernel_shape", "strides", "dilations", "pads")
    )
    counts_padding = attributes.get("count_include_pad") and any(pads)
    is_automatic = attributes.get("auto_pad", "NOTSET") != "NOTSET"
    is_known = counts_padding and all(builder.sizes(node.input[0])[2:])
    if not attributes.get("ceil_mode") or is_automatic or is_known:
        builder.nodes.append(node)
        return
    rank, x = len(kernel), node.input[0]
    before, after = (pads[part] or [0] * rank for part in (slice(rank), slice(rank, None)))
    steps, distances = (values or [1] * rank for values in (strides, dilations))
    ends = zip(after, steps, distances, kernel, strict=True)
    more = [min(end + step - 1, distance * (size - 1)) for end, step, distance, size in ends]
    if counts_padding:
        x = builder.pad(x, [0, 0, *before, 0, 0, *after])
        before, more = [0] * rank, [most - end for most, end in zip(more, after, strict=True)]
    attributes |= {"ceil_mode": 0, "pads": [*before, *more]}
    if "count_include_pad" in attributes:
        attributes["count_include_pad"] = 0
    builder.nodes.append(helper.make_node(node.op_type, [x], node.output, node.name, **attributes))


# Activations


def _celu(builder: ExpansionBuilder, node: NodeProto) -> None:
    (x,) = node.input
    alpha = _scalar(builder, x, attributes_of(node).get("alpha", 1.0))
    curved = builder.add("Elu", [builder.add("Div", [x, alpha])], alpha=1.0)
    builder.add("Mul", [curved, alpha], node.output[0])


def _threshold(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write a choice of 0 where x is not above: TVM and OpenVINO multiply by 0, which is NaN for minus infinity."""
    (x,) = node.input
    is_above = builder.add("Greater", [x, _scalar(builder, x, attributes_of(node).get("alpha", 1.0))])
    builder.add("Where", [is_above, x, _scalar(builder, x, 0.0)], node.output[0])


def _swish(builder: ExpansionBuilder, node: NodeProto, alpha: float = 1.0) -> None:
    (x,) = node.input
    scaled = builder.add("Mul", [x, _scalar(builder, x, attributes_of(node).get("alpha", alpha))])
    builder.add("Mul", [x, builder.add("Sigmoid", [scaled])], node.output[0])


# Recurrent networks


def _quantized_lstm(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write a DynamicQuantizeLSTM as an LSTM of dequantized weights, on inputs that are quantized and dequantized.

    The importer gets an attribute of its own, by which states are rounded, too.
    """
    x, w, r, b, lengths, h, c, p, w_scale, w_zero, r_scale, r_zero = operands_of(node, 12)

    def weights(name: str, scale: str, zero: str) -> str:
        array, scales = builder.known(name).astype("float32"), builder.known(scale)
        zeros = builder.known(zero).astype("float32") if zero else np.zeros_like(scales)
        scales, zeros = (one.reshape(len(array), 1, -1) for one in (scales, zeros))
        return builder.constant(((array - zeros) * scales).swapaxes(1, 2), name)

    parts = [builder.fresh(f"{x}:{part}") for part in ("quantized", "scale", "zero")]
    builder.nodes.append(onnx.helper.make_node("DynamicQuantizeLinear", [x], parts))
    data = builder.add("DequantizeLinear", parts)
    inputs = [data, weights(w, w_scale, w_zero), weights(r, r_scale, r_zero), b, lengths, h, c, p]
    made = onnx.helper.make_node("LSTM", inputs, node.output, rounds_states=1)
    made.attribute.extend(node.attribute)
    builder.nodes.append(made)


def _recurrent(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write an LSTM or a GRU step by step, with the products of all inputs at once."""
    x, w, r, b, _, first_h, first_c, _ = operands_of(node, 8)
    attributes = attributes_of(node)
    hidden, direction = attributes["hidden_size"], attributes.get("direction", "forward")
    is_gru = node.op_type == "GRU"
    is_reset_last = is_gru and bool(attributes.get("linear_before_reset"))
    steps = builder.types[x].shape.dim[0].dim_value
    sequences, last_h, last_c = [], [], []
    for number in range(2 if direction == "bidirectional" else 1):
        weights, inner = builder.known(w)[number], builder.known(r)[number]
        gates = len(weights) // hidden
        biases = builder.known(b)[number] if b else np.zeros(2 * gates * hidden, weights.dtype)
        outer_bias, inner_bias = np.split(biases, 2)
        cell = _Cell(builder, inner, inner_bias if is_reset_last else None, hidden, r)
        # Only the bias inside of the product with the reset gate is not a part of the inputs.
        product = builder.add("MatMul", [x, builder.constant(weights.T, w)])
        bias = outer_bias if is_reset_last else outer_bias + inner_bias
        inputs = builder.add("Add", [product, builder.constant(bias, b or w)])
        h, c = (_initial(builder, name, number) for name in (first_h, first_c))
        found: dict[int, str] = {}
        for at in reversed(range(steps)) if number == 1 or direction == "reverse" else range(steps):
            here = builder.reshape(builder.slice(inputs, at, at + 1, 0), [-1, gates * hidden])
            if is_gru:
                h = cell.gru(here, h)
            else:
                h, c = cell.lstm(here, h, c)
            found[at] = h
        parts = [builder.reshape(found[at], [1, 1, -1, hidden]) for at in range(steps)]
        sequences.append(builder.join(parts, axis=0))
        last_h.append(h)
        last_c.append(c)
    for output, values, shape, axis in zip(
        node.output,
        (sequences, last_h, last_c),
        ([steps, len(last_h), -1, hidden], [len(last_h), -1, hidden], [len(last_h), -1, hidden]),
        (1, 0, 0),
        strict=False,
    ):
        if output:
            builder.reshape(builder.join(values, axis=axis), shape, output)


def _initial(builder: ExpansionBuilder, name: str, number: int) -> str:
    """Return the first state of a direction as a matrix; "" if it is absent, which is zero."""
    if not name:
        return ""
    return builder.reshape(builder.slice(name, number, number + 1, 0), [-1, builder.types[name].shape.dim[2].dim_value])


class _Cell:
    """One step of a direction.

    Args:
        builder: takes the operations.
        inner: the weights of the state, gate after gate.
        bias: the bias of the state of a GRU with `linear_before_reset`, else None.
        hidden: the size of the state.
        like: a name for constants.
    """

    def __init__(self, builder: ExpansionBuilder, inner: Array, bias: Array | None, hidden: int, like: str) -> None:
        self.builder = builder
        self.hidden = hidden
        self.matrix = builder.constant(inner.T, like)
        self.gate_matrix = builder.constant(inner[: 2 * hidden].T, like)
        self.last_matrix = builder.constant(inner[2 * hidden : 3 * hidden].T, like)
        self.bias = None if bias is None else builder.constant(bias[None], like)

    def gate(self, name: str, at: int) -> str:
        """Return the part of a gate."""
        return self.builder.slice(name, at * self.hidden, (at + 1) * self.hidden, -1)

    def lstm(self, here: str, h: str, c: str) -> tuple[str, str]:
        """Return the next states; gates are in the order input, output, forget, cell."""
        add = self.builder.add
        total = add("Add", [here, add("MatMul", [h, self.matrix])]) if h else here
        given, out, forget = (add("Sigmoid", [self.gate(total, at)]) for at in range(3))
        cell = add("Mul", [given, add("Tanh", [self.gate(total, 3)])])
        if c:
            cell = add("Add", [cell, add("Mul", [forget, c])])
        return add("Mul", [out, add("Tanh", [cell])]), cell

    def gru(self, here: str, h: str) -> str:
        """Return the next state; gates are in the order update, reset, hidden."""
        add, last = self.builder.add, self.gate(here, 2)
        if self.bias is not None:
            inner = add("Add", [add("MatMul", [h, self.matrix]), self.bias]) if h else self.bias
            update, reset = (add("Sigmoid", [add("Add", [self.gate(here, at), self.gate(inner, at)])]) for at in (0, 1))
            last = add("Add", [last, add("Mul", [reset, self.gate(inner, 2)])])
        elif h:
            inner = add("MatMul", [h, self.gate_matrix])
            update, reset = (add("Sigmoid", [add("Add", [self.gate(here, at), self.gate(inner, at)])]) for at in (0, 1))
            last = add("Add", [last, add("MatMul", [add("Mul", [reset, h]), self.last_matrix])])
        else:
            update = add("Sigmoid", [self.gate(here, 0)])
        candidate = add("Tanh", [last])
        # (1 - update) * candidate + update * h
        if not h:
            return add("Sub", [candidate, add("Mul", [update, candidate])])
        return add("Add", [candidate, add("Mul", [update, add("Sub", [h, candidate])])])


EXPANSIONS: dict[str, Expansion] = {
    **dict.fromkeys(("ArgMax", "ArgMin"), _place_of_extreme),
    **dict.fromkeys(("AveragePool", "MaxPool"), _rounded_pool),
    "BatchNormalization": _constant_batch_norm,
    "Celu": _celu,
    "ConvInteger": _integer_convolution,
    "DequantizeLinear": _dequantized_constant,
    "Equal": _equal,
    "EyeLike": _eye_like,
    "Hardmax": _hardmax,
    "LpNormalization": _lp_norm,
    "MatMulInteger": _integer_product,
    "OneHot": _one_hot,
    "QLinearConv": _quantized_convolution,
    "QLinearMatMul": _quantized_product,
    "Swish": _swish,
    "ThresholdedRelu": _threshold,
    "com.microsoft::BiasGelu": _gelu,
    "com.microsoft::DequantizeLinear": _quantization_of_onnx,
    "com.microsoft::FastGelu": _fast_gelu,
    "com.microsoft::FusedConv": _fused_convolution,
    "com.microsoft::FusedMatMul": _fused_product,
    "com.microsoft::Gelu": _gelu,
    **dict.fromkeys(
        ("com.microsoft::DynamicQuantizeMatMul", "com.microsoft::MatMulIntegerToFloat"), _integer_product_as_float
    ),
    "com.microsoft::MatMulNBits": _block_product,
    "com.microsoft::QGemm": _quantized_gemm,
    "com.microsoft::QLinearAdd": _quantized_binary("Add"),
    "com.microsoft::QLinearAveragePool": _quantized_unary(
        "AveragePool", "auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides"
    ),
    "com.microsoft::QLinearConcat": _quantized_concat,
    "com.microsoft::QLinearGlobalAveragePool": _quantized_unary("GlobalAveragePool"),
    "com.microsoft::QLinearLeakyRelu": _quantized_unary("LeakyRelu", "alpha"),
    "com.microsoft::QLinearMul": _quantized_binary("Mul"),
    "com.microsoft::QLinearSigmoid": _quantized_unary("Sigmoid"),
    "com.microsoft::QLinearSoftmax": _quantized_unary("Softmax", "axis"),
    "com.microsoft::QuantizeLinear": _quantization_of_onnx,
    "com.microsoft::QuickGelu": partial(_swish, alpha=1.702),
    "com.microsoft::SkipLayerNormalization": _skip_norm,
    "com.microsoft::SkipSimplifiedLayerNormalization": _skip_norm,
    "ReduceLogSumExp": _log_sum_exp,
    "Resize": _image_resize,
    **dict.fromkeys(("ScatterElements", "ScatterND"), _scatter),
    **dict.fromkeys(("Squeeze", "Unsqueeze"), _along_axes),
    "SimplifiedLayerNormalization": _simple_norm,
    "com.microsoft::CDist": _distances,
    "com.microsoft::DynamicQuantizeLSTM": _quantized_lstm,
    **CLASSICAL_EXPANSIONS,
    **CONVOLUTION_EXPANSIONS,
    **FOURIER_EXPANSIONS,
}
# Recurrent networks step by step, where they are no loops.
RECURRENT_EXPANSIONS: dict[str, Expansion] = {"GRU": _recurrent, "LSTM": _recurrent}
