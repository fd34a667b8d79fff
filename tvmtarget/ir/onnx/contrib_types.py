"""Result types that ONNX's shape inference does not know: of com.microsoft, of classical models, and a few others.

Source: the operator documents of ONNX Runtime (docs/ContribOperators.md) and of ONNX (docs/Operators-ml.md); the tests
compare with what ONNX Runtime returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from tvmtarget.ir.function import Call
from tvmtarget.ir.symbolic_shapes import integer_of, integers_of, window_count
from tvmtarget.ir.types import Dim, TensorType

__all__ = ["contrib_types"]

_Types: TypeAlias = "Sequence[TensorType | None]"
_Shape: TypeAlias = "tuple[Dim, ...]"
_Rule: TypeAlias = "Callable[[Call, _Types], _Types]"


def contrib_types(call: Call, operands: Sequence[TensorType | None]) -> Sequence[TensorType | None]:
    """Return the types of the results of an operator of com.microsoft or ai.onnx.ml.

    Args:
        call: the operation.
        operands: types of its operands; None where they are absent or not known.

    Returns:
        The types of the first results; None where they are not known, and nothing for operators without a rule.
    """
    domain, _, kind = call.op.rpartition("::")
    rule = _RULES_BY_DOMAIN.get(domain, {}).get(kind)
    known = [*operands, *[None] * 16]
    return () if rule is None or known[0] is None or known[0].shape is None else rule(call, known)


def _like_first(_call: Call, operands: _Types) -> _Types:
    return operands[:1]


def _typed(index: int) -> _Rule:
    """Return a rule for the shape of the first operand and the element type of another one."""

    def rule(_call: Call, operands: _Types) -> _Types:
        first, other = operands[0], operands[index]
        return () if first is None or other is None else (TensorType(other.dtype, first.shape),)

    return rule


def _shape(operand: TensorType | None) -> _Shape:
    return () if operand is None or operand.shape is None else operand.shape


def _broadcast(first: _Shape, second: _Shape) -> _Shape:
    rank = max(len(first), len(second))
    pairs = zip(*((1,) * (rank - len(shape)) + shape for shape in (first, second)), strict=True)
    return tuple(_broadcast_dim(a, b) for a, b in pairs)


def _broadcast_dim(first: Dim, second: Dim) -> Dim:
    if 1 in (first, second) or first == second:
        return second if first == 1 else first
    # Of a symbol and a number above 1, the number is the result.
    return next((dim for dim in (first, second) if isinstance(dim, int)), None)


def _binary(first: int, second: int, dtype: int) -> _Rule:
    """Return a rule for an elementwise operator on two operands, by their positions and that of the element type."""

    def rule(_call: Call, operands: _Types) -> _Types:
        typed = operands[dtype]
        if typed is None or operands[second] is None:
            return ()
        return (TensorType(typed.dtype, _broadcast(_shape(operands[first]), _shape(operands[second]))),)

    return rule


def _product(second: int, dtype: int) -> _Rule:
    """Return a rule for a matrix product of operand 0, by the position of the other one and of the element type."""

    def rule(call: Call, operands: _Types) -> _Types:
        a, b, typed = _shape(operands[0]), _shape(operands[second]), operands[dtype]
        if len(a) < 2 or len(b) < 2 or typed is None:
            return ()
        rows = a[-1] if integer_of(call, "transA", 0) else a[-2]
        columns = b[-2] if integer_of(call, "transB", 0) else b[-1]
        return (TensorType(typed.dtype, (*_broadcast(a[:-2], b[:-2]), rows, columns)),)

    return rule


def _blockwise_product(call: Call, operands: _Types) -> _Types:
    """Type a product with a matrix of few bits, whose columns are an attribute."""
    a = operands[0]
    return () if a is None else (TensorType(a.dtype, (*_shape(a)[:-1], integer_of(call, "N", 0))),)


def _layer_norm(call: Call, operands: _Types) -> _Types:
    """Type a normalisation after a sum: the result, and in place 3 the sum."""
    return (operands[0], None, None, operands[0])[: len(call.outputs)]


def _attention(call: Call, operands: _Types) -> _Types:
    """Type an attention that projects its operand: the value's part of the weights is the last dimension."""
    x, weights = operands[:2]
    shape, columns = _shape(x), (_shape(weights) or (None,))[-1]
    sizes = call.attr("qkv_hidden_sizes")
    size: Dim = columns // 3 if isinstance(columns, int) else None
    if isinstance(sizes, tuple) and len(sizes) == 3 and isinstance(sizes[2], int):
        size = sizes[2]
    if x is None or len(shape) != 3 or len(call.outputs) > 1:
        return ()
    dtype = x.dtype
    if call.kind == "QAttention":
        scale = operands[3]
        if scale is None:
            return ()
        dtype = scale.dtype
    return (TensorType(dtype, (*shape[:2], size)),)


def _multi_head_attention(call: Call, operands: _Types) -> _Types:
    """Type an attention over heads: the result, and where they are returned, keys and values so far."""
    query, key, value, past = operands[0], operands[1], operands[2], operands[6]
    heads, shape = integer_of(call, "num_heads", 0), _shape(query)
    if query is None or heads < 1 or len(shape) != 3 or (past is not None and len(call.outputs) > 1):
        return ()
    last = _shape(value)
    size = last[-1] if len(last) == 3 else _times(heads, last[-1]) if len(last) == 4 else None
    result = TensorType(query.dtype, (*shape[:2], size))
    keys = _shape(key)
    if len(call.outputs) == 1 or len(keys) != 3:
        return (result,)
    present = TensorType(query.dtype, (shape[0], heads, keys[1], _parts(keys[2], heads)))
    return (result, present, TensorType(query.dtype, (shape[0], heads, keys[1], _parts(size, heads))))


def _group_query_attention(call: Call, operands: _Types) -> _Types:
    """Type an attention whose heads share keys: without keys, the query holds them and the values, too."""
    query, key, past = operands[0], operands[1], operands[3]
    heads, shared, shape = integer_of(call, "num_heads", 0), integer_of(call, "kv_num_heads", 0), _shape(query)
    if query is None or heads < 1 or shared < 1 or len(shape) != 3:
        return ()
    size = _parts(shape[2], heads if key is not None else heads + 2 * shared)
    result = TensorType(query.dtype, (*shape[:2], _times(heads, size)))
    # Keys and values so far may be quantized.
    if past is None and call.attr("k_quant_type") not in (None, "NONE"):
        return (result,)
    # How long the keys are is computed: the buffer that is given, or the past and what is new.
    present = TensorType(query.dtype if past is None else past.dtype, (shape[0], shared, None, size))
    return (result, present, present)[: len(call.outputs)]


def _parts(size: Dim, count: int) -> Dim:
    return size // count if isinstance(size, int) else None


def _times(count: int, size: Dim) -> Dim:
    return count * size if isinstance(size, int) else None


def _embedding(call: Call, operands: _Types) -> _Types:
    """Type embeddings that are summed and normalised."""
    ids, words = operands[0], operands[2]
    if ids is None or words is None or len(_shape(ids)) != 2:
        return ()
    result = TensorType(words.dtype, (*_shape(ids), _shape(words)[-1] if _shape(words) else None))
    return (result, TensorType("int32", _shape(ids)[:1]), result)[: len(call.outputs)]


def _distances(_call: Call, operands: _Types) -> _Types:
    """Type the distances of all rows of two matrices."""
    a, b = operands[:2]
    if a is None or b is None or len(_shape(a)) != 2 or len(_shape(b)) != 2:
        return ()
    return (TensorType(a.dtype, (_shape(a)[0], _shape(b)[0])),)


def _recurrent(call: Call, operands: _Types) -> _Types:
    """Type the states of all steps, and the last ones."""
    x, inner = operands[0], operands[2]
    shape, directions = _shape(x), (_shape(inner) or (None,))[0]
    hidden = call.attr("hidden_size")
    if x is None or len(shape) != 3 or not isinstance(hidden, int):
        return ()
    last = TensorType(x.dtype, (directions, shape[1], hidden))
    return (TensorType(x.dtype, (shape[0], directions, shape[1], hidden)), last, last)[: len(call.outputs)]


def _gather_blocks(call: Call, operands: _Types) -> _Types:
    """Type rows of a matrix of few bits."""
    data, indices, scales = operands[:3]
    shape, axis = _shape(data), integer_of(call, "gather_axis", 0)
    if data is None or indices is None or scales is None or data.dtype == "uint8" or not shape:
        return ()
    axis %= len(shape)
    return (TensorType(scales.dtype, (*shape[:axis], *_shape(indices), *shape[axis + 1 :])),)


def _quantized_concat(call: Call, operands: _Types) -> _Types:
    """Type a concatenation of quantized values, each followed by its scale and zero point."""
    parts = [operands[at] for at in range(2, len(call.inputs), 3)]
    first = parts[0] if parts else None
    if first is None or not first.shape or any(len(_shape(part)) != len(first.shape) for part in parts):
        return ()
    axis = integer_of(call, "axis", 0) % len(first.shape)
    sizes = [_shape(part)[axis] for part in parts]
    total = sum(size for size in sizes if isinstance(size, int)) if all(isinstance(one, int) for one in sizes) else None
    return (TensorType(first.dtype, (*first.shape[:axis], total, *first.shape[axis + 1 :])),)


def _global_pool(call: Call, operands: _Types) -> _Types:
    """Type the means of whole images."""
    first = operands[0]
    shape = _shape(first)
    if first is None or len(shape) < 3:
        return ()
    ones = (1,) * (len(shape) - 2)
    return (
        TensorType(first.dtype, (shape[0], *ones, shape[-1]) if call.attr("channels_last") else (*shape[:2], *ones)),
    )


def _average_pool(call: Call, operands: _Types) -> _Types:
    """Type the means of windows; sizes are known where they are numbers, pads are given, and none is rounded up."""
    data, kernel = operands[0], integers_of(call, "kernel_shape")
    shape, rank = _shape(data), len(kernel)
    if data is None or len(shape) != rank + 2:
        return ()
    outer, inner = (shape[:1], shape[-1:]) if call.attr("channels_last") else (shape[:2], ())
    counts = _window_counts(call, shape[len(outer) : len(outer) + rank], kernel)
    return (TensorType(data.dtype, (*outer, *counts, *inner)),)


def _window_counts(call: Call, sizes: Sequence[Dim], kernel: Sequence[Dim]) -> Sequence[Dim]:
    rank = len(sizes)
    strides, dilations = integers_of(call, "strides", [1] * rank), integers_of(call, "dilations", [1] * rank)
    pads = integers_of(call, "pads", [0] * 2 * rank)
    is_given = call.attr("auto_pad") in (None, "NOTSET") and not call.attr("ceil_mode")
    if not is_given or not len(strides) == len(dilations) == rank or len(pads) != 2 * rank:
        return [None] * rank
    padding = [pads[at] + pads[at + rank] for at in range(rank)]
    counts = map(window_count, sizes, kernel, strides, dilations, padding)
    return [count if isinstance(count, int) else None for count in counts]


def _quantized_gemm(call: Call, operands: _Types) -> _Types:
    """Type a matrix product, which is of floats unless it has a scale."""
    a, b, scale = operands[0], operands[3], operands[7]
    if a is None or b is None or len(_shape(a)) != 2 or len(_shape(b)) != 2:
        return ()
    rows, columns = _shape(a)[1 if call.attr("transA") else 0], _shape(b)[0 if call.attr("transB") else 1]
    return (TensorType("float32" if scale is None else a.dtype, (rows, columns)),)


def _convolution(call: Call, operands: _Types) -> _Types:
    """Type a convolution with an activation; sizes are known where they are numbers and pads are given."""
    data, weights = operands[:2]
    if data is None or weights is None or len(_shape(data)) != len(_shape(weights)) or len(_shape(data)) < 3:
        return ()
    counts = _window_counts(call, _shape(data)[2:], _shape(weights)[2:])
    return (TensorType(data.dtype, (_shape(data)[0], _shape(weights)[0], *counts)),)


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(
        (
            "BiasAdd",
            "BiasGelu",
            "FastGelu",
            "Gelu",
            "GroupNorm",
            "Inverse",
            "MoE",
            "QLinearLeakyRelu",
            "QLinearSigmoid",
            "QLinearSoftmax",
            "QMoE",
            "QuickGelu",
            "RotaryEmbedding",
        ),
        _like_first,
    ),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _layer_norm),
    **dict.fromkeys(("MatMulBnb4", "MatMulNBits"), _blockwise_product),
    **dict.fromkeys(("Attention", "QAttention"), _attention),
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), _binary(0, 3, 0)),
    "CDist": _distances,
    "DequantizeLinear": _typed(1),
    "DynamicQuantizeLSTM": _recurrent,
    "DynamicQuantizeMatMul": _product(1, 0),
    "EmbedLayerNormalization": _embedding,
    "FusedConv": _convolution,
    "FusedMatMul": _product(1, 0),
    "GatherBlockQuantized": _gather_blocks,
    "GroupQueryAttention": _group_query_attention,
    "MatMulIntegerToFloat": _product(1, 2),
    "MultiHeadAttention": _multi_head_attention,
    "QGemm": _quantized_gemm,
    "QLinearAveragePool": _average_pool,
    "QLinearConcat": _quantized_concat,
    "QLinearGlobalAveragePool": _global_pool,
    "QuantizeLinear": _typed(2),
    "TransposeMatMul": _product(1, 0),
}


def _length(call: Call, *names: str) -> int:
    """Return the length of the first attribute that is a list."""
    return next((len(value) for name in names if isinstance(value := call.attr(name), tuple) and value), 0)


def _classifier(call: Call, operands: _Types) -> _Types:
    """Type a label for each row, and a score for each class."""
    rows = _shape(operands[0])
    names = _length(call, "classlabels_strings")
    classes = names or _length(call, "classlabels_int64s", "classlabels_ints")
    if len(rows) != 2 or not classes:
        return ()
    scores = classes
    # Support vectors compare pairs of classes, if there are no probabilities.
    if call.kind == "SVMClassifier" and call.attr("vectors_per_class") and not call.attr("prob_a") and classes > 2:
        scores = classes * (classes - 1) // 2
    return (TensorType("string" if names else "int64", rows[:1]), TensorType("float32", (rows[0], scores)))


def _regressor(call: Call, operands: _Types) -> _Types:
    rows = _shape(operands[0])
    targets = integer_of(call, "n_targets", integer_of(call, "targets", 1))
    return (TensorType("float32", (rows[0], targets)),) if len(rows) == 2 else ()


def _trees(call: Call, operands: _Types) -> _Types:
    first, rows = operands[0], _shape(operands[0])
    return (TensorType(first.dtype, (rows[0], integer_of(call, "n_targets", 1))),) if first and len(rows) == 2 else ()


def _scaled(_call: Call, operands: _Types) -> _Types:
    """Type numbers that become floats."""
    return (TensorType("float32", _shape(operands[0])),)


def _extracted(_call: Call, operands: _Types) -> _Types:
    """Type the chosen elements along the last axis."""
    data, indices = operands[:2]
    shape = _shape(data)
    if data is None or indices is None or indices.shape is None:
        return ()
    sizes = [dim for dim in indices.shape if isinstance(dim, int)]
    count = math.prod(sizes) if len(sizes) == len(indices.shape) else None
    return (TensorType(data.dtype, (*(shape[:-1] if len(shape) > 1 else (1,)), count)),)


def _one_hot(call: Call, operands: _Types) -> _Types:
    categories = _length(call, "cats_int64s", "cats_strings")
    return (TensorType("float32", (*_shape(operands[0]), categories)),) if categories else ()


def _encoded(call: Call, operands: _Types) -> _Types:
    """Type the values of labels."""
    kinds = {"values_floats": "float32", "values_int64s": "int64", "values_strings": "string"}
    dtype = next((kind for name, kind in kinds.items() if call.attr(name)), "")
    return (TensorType(dtype, _shape(operands[0])),) if dtype else ()


def _joined(call: Call, operands: _Types) -> _Types:
    """Type rows of features that stand side by side."""
    shape, sizes = _shape(operands[0]), integers_of(call, "inputdimensions")
    return (TensorType("float32", (shape[0] if len(shape) > 1 else 1, sum(sizes))),) if sizes else ()


_CLASSICAL: dict[str, _Rule] = {
    **dict.fromkeys(("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier"), _classifier),
    **dict.fromkeys(("LinearRegressor", "SVMRegressor", "TreeEnsembleRegressor"), _regressor),
    **dict.fromkeys(("Normalizer", "Scaler"), _scaled),
    **dict.fromkeys(("Binarizer", "Imputer"), _like_first),
    "ArrayFeatureExtractor": _extracted,
    "FeatureVectorizer": _joined,
    "LabelEncoder": _encoded,
    "OneHotEncoder": _one_hot,
    "TreeEnsemble": _trees,
}


def _frames(call: Call, operands: _Types) -> _Types:
    """Type the spectra of frames, whose number follows from the length of the signal."""
    signal, window = operands[0], _shape(operands[2])
    length = window[0] if window else None
    bins = length // 2 + 1 if isinstance(length, int) and integer_of(call, "onesided", 1) else length
    return (TensorType(signal.dtype, (_shape(signal)[0], None, bins, 2)),) if signal and _shape(signal) else ()


_RULES_BY_DOMAIN: Mapping[str, Mapping[str, _Rule]] = {
    "": {
        "onnx.GroupNormalization": _like_first,
        "onnx.STFT": _frames,
        "onnx.SimplifiedLayerNormalization": _like_first,  # ONNX Runtime adds it to ONNX's own domain
    },
    "onnx.com.microsoft": _RULES,
    "onnx.ai.onnx.ml": _CLASSICAL,
}
