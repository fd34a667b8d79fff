"""What Apache TVM takes of ONNX: a row per operator.

Source: the converters of apache-tvm 0.27, python/tvm/relax/frontend/onnx/onnx_frontend.py, and what came of running
them on ONNX's node tests, on older operator sets, on every element type and on symbolic shapes. What a row leaves
out raises, is wrong without a word, or kills the process.
"""

from __future__ import annotations

from dataclasses import replace

from tvmtarget.support import tvm_checks as ask
from tvmtarget.support.strategy import Rule

__all__ = ["DTYPES", "OPSETS", "REFUSED", "RULES"]

_SIGNED = frozenset({"int8", "int16", "int32", "int64"})
_UNSIGNED = frozenset({"uint8", "uint16", "uint32", "uint64"})
_INTEGERS = _SIGNED | _UNSIGNED
_WIDE_INTEGERS = frozenset({"int32", "int64", "uint32", "uint64"})
_FLOATS = frozenset({"float16", "float32", "float64"})
_WIDE_FLOATS = frozenset({"float32", "float64"})
_FLOAT32 = frozenset({"float32"})
_NUMBERS = _INTEGERS | _FLOATS
_BOOL = frozenset({"bool"})

DTYPES = _NUMBERS | _BOOL

# Before version 7 operands are broadcast by an attribute `axis` that the importer does not know; what operators mean
# after version 28 these rows do not know.
OPSETS = range(7, 29)


def _each(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


_ANY = Rule()
_FLOAT = Rule(dtypes=_FLOATS)
_REDUCTION = Rule(dtypes=_FLOATS | _WIDE_INTEGERS, constants=(1,), checks=(ask.reduced,))
_NO_NOOP = {"noop_with_empty_axes": (0,)}
_POOL = Rule(dtypes=_FLOATS, checks=(ask.pool,))

RULES: dict[str, Rule] = {
    # Elementwise, one operand.
    **_each("Atanh Ceil Cos Erf Exp Floor Gelu HardSigmoid HardSwish IsNaN LeakyRelu Log LogSoftmax Mish", _FLOAT),
    **_each("Reciprocal Round Shrink Sigmoid Sin Softmax Softplus Softsign Sqrt Tan Tanh", _FLOAT),
    **_each("Acos Acosh Asin Asinh Atan Cosh Sinh", Rule(dtypes=_WIDE_FLOATS)),
    **_each("Elu Selu ThresholdedRelu", Rule(dtypes=_FLOAT32)),
    **_each("Neg Relu Sign", Rule(dtypes=_SIGNED | _FLOATS)),
    **_each("Abs Clip", Rule(dtypes=_NUMBERS)),
    **_each("Cast CastLike Identity", _ANY),
    "BitwiseNot": Rule(dtypes=_INTEGERS),
    "IsInf": Rule(dtypes=_FLOATS, attrs={"detect_negative": (1,), "detect_positive": (1,)}),
    "Not": Rule(dtypes=_BOOL),
    "Dropout": Rule(dtypes=_FLOATS, results=1, checks=(ask.dropout,)),
    # Elementwise, several operands.
    **_each(
        "Add Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mul Sub",
        Rule(dtypes=_NUMBERS, checks=(ask.broadcast,)),
    ),
    **_each("Mean Sum", Rule(dtypes=_FLOATS, checks=(ask.broadcast,))),
    **_each("And Or Xor", Rule(dtypes=_BOOL, checks=(ask.broadcast,))),
    **_each("BitwiseAnd BitwiseOr BitwiseXor", Rule(dtypes=_INTEGERS, checks=(ask.broadcast,))),
    "BitShift": Rule(dtypes=_INTEGERS, constants=(1,), checks=(ask.shift, ask.broadcast)),
    "Div": Rule(dtypes=_NUMBERS, checks=(ask.divisor, ask.broadcast)),
    "Mod": Rule(dtypes=_INTEGERS, checks=(ask.divisor, ask.broadcast)),
    "Pow": Rule(dtypes=_FLOATS, checks=(ask.same_types, ask.broadcast)),
    "PRelu": Rule(dtypes=_FLOATS, checks=(ask.prelu,)),
    "Where": Rule(checks=(ask.broadcast,)),
    # Reductions.
    **_each("ReduceMean", replace(_REDUCTION, dtypes=_FLOATS | {"int64", "uint64"})),
    **_each("ReduceMax ReduceMin", replace(_REDUCTION, dtypes=_FLOATS | _WIDE_INTEGERS | {"int8", "uint8"})),
    **_each("ReduceProd ReduceSum", _REDUCTION),
    **_each("ReduceL1 ReduceSumSquare", replace(_REDUCTION, attrs=_NO_NOOP)),
    **_each("ReduceL2 ReduceLogSum ReduceLogSumExp", replace(_REDUCTION, dtypes=_FLOATS, attrs=_NO_NOOP)),
    **_each("ArgMax ArgMin", Rule(dtypes=_NUMBERS, checks=(ask.reduced,))),
    "CumSum": Rule(dtypes=_FLOATS | _WIDE_INTEGERS, constants=(1,)),
    "Hardmax": Rule(dtypes=_FLOATS, checks=(ask.hardmax,)),
    "TopK": Rule(
        dtypes=_FLOATS | {"int8", "int32", "int64", "uint8"},
        constants=(1,),
        attrs={"sorted": (1,)},
        checks=(ask.top_k,),
    ),
    # Products.
    "Einsum": Rule(dtypes=_NUMBERS, checks=(ask.einsum,)),
    "Gemm": Rule(dtypes=_FLOATS | _WIDE_INTEGERS, checks=(ask.gemm,)),
    "MatMul": Rule(dtypes=_FLOATS | _WIDE_INTEGERS, checks=(ask.matmul,)),
    "MatMulInteger": Rule(dtypes=frozenset({"int8", "uint8"}), checks=(ask.matmul,)),
    # Convolution, pooling, normalisation.
    "Conv": Rule(dtypes=_FLOATS, checks=(ask.conv,)),
    "ConvTranspose": Rule(dtypes=_FLOATS, attrs={"output_shape": ()}, checks=(ask.static(1), ask.conv_transpose)),
    "AveragePool": _POOL,
    "LpPool": replace(_POOL, attrs={"ceil_mode": (0,)}),
    "MaxPool": replace(_POOL, dtypes=_FLOATS | {"int8", "uint8"}, results=1),
    "MaxRoiPool": Rule(dtypes=_FLOAT32),
    "MaxUnpool": Rule(dtypes=_FLOATS, checks=(ask.absent(2), ask.static(0))),
    **_each("GlobalAveragePool GlobalLpPool GlobalMaxPool", _FLOAT),
    "InstanceNormalization": Rule(dtypes=_FLOATS, checks=(ask.channels,)),
    "BatchNormalization": Rule(
        dtypes=_FLOATS, attrs={"training_mode": (0,), "spatial": (1,)}, results=1, checks=(ask.batch_norm, ask.channels)
    ),
    "GroupNormalization": Rule(dtypes=_FLOATS, attrs={"stash_type": (1,)}, checks=(ask.group_norm,)),
    "LayerNormalization": Rule(
        dtypes=frozenset({"float16", "float32"}), attrs={"stash_type": (1,)}, results=1, checks=(ask.layer_norm,)
    ),
    "LRN": Rule(dtypes=_FLOAT32, checks=(ask.lrn,)),
    "MeanVarianceNormalization": Rule(dtypes=_FLOAT32),
    "RMSNormalization": Rule(dtypes=_FLOATS, checks=(ask.rms_norm,)),
    # Shapes and topology.
    **_each("Flatten Transpose Trilu", _ANY),
    "DepthToSpace": Rule(checks=(ask.blocks,)),
    "SpaceToDepth": Rule(attrs={"mode": ("DCR",)}, checks=(ask.blocks,)),
    **_each("Shape Size", Rule(checks=(ask.static(0),))),
    "Concat": Rule(checks=(ask.concat,)),
    "Constant": Rule(
        attrs=dict.fromkeys(
            ("sparse_value", "value_float", "value_floats", "value_int", "value_ints", "value_string", "value_strings"),
            (),
        )
    ),
    "ConstantOfShape": Rule(constants=(0,), checks=(ask.filled,)),
    "Expand": Rule(constants=(1,), checks=(ask.expand,)),
    "Pad": Rule(constants=(1, 2, 3), checks=(ask.pad,)),
    "Range": Rule(constants=(0, 1, 2)),
    "Reshape": Rule(constants=(1,), checks=(ask.reshape,)),
    "Slice": Rule(constants=(1, 2, 3, 4), opsets=range(10, 29), checks=(ask.cut,)),
    "Split": Rule(constants=(1,), checks=(ask.split,)),
    "Squeeze": Rule(constants=(1,), checks=(ask.squeeze,)),
    "Tile": Rule(checks=(ask.static(1),)),
    "Unsqueeze": Rule(constants=(1,)),
    # Choice of elements.
    **_each("Compress NonZero Unique", _ANY),
    **_each("Gather GatherElements ScatterElements", Rule(checks=(ask.index_in_range,))),
    **_each("GatherND ScatterND", Rule(checks=(ask.coordinates_in_range,))),
    "Scatter": Rule(opsets=range(9, 11), checks=(ask.index_in_range, ask.static(0, 1))),
    # Quantization.
    "DequantizeLinear": Rule(
        dtypes=frozenset({"int8", "int16", "int32", "uint8", "uint16"}),
        attrs={"block_size": (0,)},
        checks=(ask.scales,),
    ),
    "DynamicQuantizeLinear": Rule(dtypes=_FLOAT32),
    "QuantizeLinear": Rule(
        dtypes=frozenset({"float16", "float32"}),
        attrs={"block_size": (0,), "precision": (0,)},
        checks=(ask.quantize, ask.scales),
    ),
    # Images.
    "AffineGrid": Rule(dtypes=_FLOAT32, constants=(1,)),
    "GridSample": Rule(dtypes=_WIDE_FLOATS, checks=(ask.grid_sample,)),
    "Resize": Rule(
        dtypes=_NUMBERS,
        constants=(1, 2, 3),
        attrs={
            "antialias": (0,),
            "axes": (),
            "coordinate_transformation_mode": ("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel"),
            "keep_aspect_ratio_policy": ("stretch",),
        },
        opsets=range(11, 29),
        checks=(ask.resize,),
    ),
    "RoiAlign": Rule(dtypes=_WIDE_FLOATS, attrs={"mode": ("avg",)}, checks=(ask.static(1), ask.roi_align)),
}

_OTHER_DOMAIN = "its rule for this name is that of an operator of com.microsoft"
_TENSORS_ONLY = "it takes tensors only, no sequences and optionals"

# Operators with a converter that cannot be trusted, and why.
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        (
            "AllClassNMS",
            "Attention",
            "BiasGelu",
            "EmbedLayerNormalization",
            "FastGelu",
            "MatMulInteger16",
            "SkipLayerNormalization",
        ),
        _OTHER_DOMAIN,
    ),
    **dict.fromkeys(("ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement"), _TENSORS_ONLY),
    **dict.fromkeys(("SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase"), _TENSORS_ONLY),
    **dict.fromkeys(("SequenceInsert", "SequenceLength", "SplitToSequence"), _TENSORS_ONLY),
    "EyeLike": "its rule ignores the type that EyeLike asks for",
    "NonMaxSuppression": "its rule drops boxes whose overlap equals the threshold, which ONNX keeps",
    "OneHot": "its rule returns values of another type than those it is given",
    "Upsample": "its rule is wrong for Upsample; convert the model to operator set 11, where it is Resize",
}
