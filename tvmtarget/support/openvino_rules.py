"""Operator support of OpenVINO on a CPU, as far as it is less than ONNX: a row per operator.

Found by running ONNX's node tests with OpenVINO 2026.4, each in a process of its own, with static and symbolic shapes
(`tests/tools/derive_openvino.py`), and integers beyond 24 bits. What is left out has no kernel, is rejected when it is
compiled or runs, or computes another result than ONNX defines.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from tvmtarget.ir.symbolic_shapes import begins_within, integers_of, least_sizes
from tvmtarget.ir.types import TensorType
from tvmtarget.support import tvm_rules
from tvmtarget.support.classical_rules import ensemble_of
from tvmtarget.support.four_bits import FOUR_BITS
from tvmtarget.support.onnxruntime_rules import (
    check_aligned_corners,
    check_antialias,
    check_kept_sizes,
    resized_dims,
    sizes_and_scales,
)
from tvmtarget.support.op import STATIC_INPUTS
from tvmtarget.support.strategy import Op, Reject, Rule, reject

__all__ = [
    "BY_FLOATS",
    "COMPARISONS",
    "DTYPES",
    "EMPTY",
    "EMPTY_IN_RUNS",
    "EXACT",
    "FAILS_EMPTY",
    "MOVED_AS_FLOATS",
    "OPSETS",
    "RULES",
    "SUMS_SINCE",
    "UNSUPPORTED",
    "check_empty",
    "check_integers",
    "check_lists",
    "rounded_up",
]

_FLOATS = frozenset({"float16", "float32"})
_BYTES = frozenset({"int8", "uint8"})
_SHORT = frozenset({"int16", "uint16"})
_MOST_TRIED = 4096  # sizes of a dimension that is open
_WIDE = frozenset({"int32", "int64"})

# float64 is computed in float32, uint32 and uint64 in int32, and Python reads no bfloat16.
_RESIZED = _FLOATS | _BYTES | _WIDE
DTYPES = _RESIZED | frozenset({"int16", "uint16", "bool", *FOUR_BITS})

OPSETS = range(7, 29)

_REDUCTIONS = (
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
)
# On int32 and int64, its kernels for these compute in float32. The backend writes the comparisons otherwise, and checks
# the operands of the others, which may be vectors, in each run.
COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
BY_FLOATS = frozenset({*_REDUCTIONS, "Div", "Einsum", "Gemm", "MatMul", "Mean", "Mod", "Pow"})
# These move integers as float32. The backend checks them in each run, too.
MOVED_AS_FLOATS = frozenset({"Resize", "ReverseSequence"})
# On integers of 8 bits, these saturate, and those of 16 bits it computes in 32, where those of ONNX wrap around.
_WRAPPING = frozenset({"Abs", "Add", "Einsum", "Gemm", "MatMul", "Mul", "Neg", "Pow", "ReduceProd", "Sub", "Sum"})
# Operands that are lists of sizes, positions or axes, whose number decides on ranks.
_LISTS = {
    "CenterCropPad": (1,),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Pad": (1, 3),
    "Reshape": (1,),
    "Resize": (2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "Upsample": (1,),
}
# What computes tensors without elements as ONNX defines it. Others have another shape, fail, or end the process.
EMPTY = frozenset(
    {
        *COMPARISONS,
        *("Abs", "Asinh", "Atan", "Cast", "Ceil", "Celu", "Clip", "Cos", "Elu", "Erf", "Exp", "Floor", "HardSigmoid"),
        *("HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round"),
        *("Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Tanh", "ThresholdedRelu"),
        *("Add", "And", "Div", "Max", "Min", "Mul", "Or", "Pow", "Sub", "Sum"),
        *("Attention", "Concat", "Reshape", "Shape", "Slice", "Split", "Unsqueeze"),
    }
)
# What does so in runs in which a symbolic dimension is 0, between others in which it is not.
EMPTY_IN_RUNS = EMPTY | {
    *("BatchNormalization", "ConstantOfShape", "Cosh", "CumSum", "Expand", "Gather", "GatherElements", "GatherND"),
    *("Gelu", "Gemm", "Hardmax", "LayerNormalization", "Log", "LogSoftmax", "MatMul", "Mod", "NonZero"),
    *("ScatterElements", "ScatterND", "Sinh", "Size", "Softmax", "Squeeze", "Tan", "Tile", "TopK", "Transpose"),
    *("Trilu", "Where", "Xor"),
    *(kind for kind in _REDUCTIONS if "Log" not in kind),
}
# What ends the process of no elements, or returns others, also where they are computed and not seen before a run.
FAILS_EMPTY = frozenset({"Attention", "ConvTranspose", "GRU", "LSTM", "RNN"})
# Trees are walked level by level.
_MOST_LEVELS = 256
_MOST_WEIGHTS = 1 << 24
# What OpenVINO takes for a dimension that is open, when it compiles for the CPU (2026.4).
_ASSUMED_SIZE = 64
SUMS_SINCE = 11  # version of cumulative sums, by which integers are added
EXACT = 2**24  # float32 holds all integers up to this one


def check_integers(op: Op) -> Reject | None:
    """Reject integers that it computes in another type, or truncates.

    Vectors and scalars, which are sizes and positions, are supported.

    Args:
        op: an operation that the tables support.

    Returns:
        None if it is supported, else why not.
    """
    tensor = op.tensor(0)
    if tensor is not None and tensor.dtype in _BYTES and op.kind in ("Div", "Mod"):
        return reject("DTYPE", f"it rounds {op.kind} of {tensor.dtype} as floats", hint="cast to float32")
    if tensor is not None and tensor.dtype in _BYTES and op.kind in _WRAPPING:
        return reject("DTYPE", f"its {op.kind} of {tensor.dtype} saturates", hint="cast to int32")
    if tensor is not None and tensor.dtype in _SHORT and op.kind in _WRAPPING:
        return reject("DTYPE", f"it computes {op.kind} of {tensor.dtype} in 32 bits", hint="cast to int32")
    is_short = op.kind in ("Cast", "CastLike") and op.dtype in _SHORT
    if is_short and tensor is not None and "int" in tensor.dtype and not np.can_cast(tensor.dtype, op.dtype):
        return reject("DTYPE", f"it keeps numbers of {tensor.dtype} that {op.dtype} does not hold")
    is_long = tensor is None or tensor.shape is None or len(tensor.shape) > 1
    is_sum = op.kind == "ReduceSum" and op.opset >= SUMS_SINCE
    if tensor is not None and tensor.dtype in _WIDE and op.kind in BY_FLOATS and not is_sum:
        if is_long or op.kind in ("Einsum", "MatMul"):
            return reject("DTYPE", f"it computes {op.kind} of {tensor.dtype} in float32", hint="cast to float32")
        for index, values in enumerate(map(op.constant, range(len(op.call.inputs)))):
            if values is not None and values.size and np.abs(values.astype("float64")).max() > EXACT:
                return reject("DTYPE", f"it computes {op.kind} in float32, which does not hold {op.operand(index)!r}")
    # The greatest integer stands for the end of a slice, and is truncated to a size that does too.
    for index in range(len(op.call.inputs) if op.kind != "Slice" else 1):
        typed = op.tensor(index)
        values = op.constant(index) if typed is not None and typed.dtype == "int64" else None
        if values is not None and values.size and np.abs(values.astype("float64")).max() >= 2**31:
            return reject("DTYPE", f"it computes int64 in 32 bits, which {op.operand(index)!r} exceeds")
    return None


def check_empty(op: Op) -> Reject | None:
    """Reject tensors without elements, except where they are tested.

    Lists of axes may be empty, and so may the region and the scales of a Resize, which it does not read then.

    Args:
        op: an operation that the tables support.

    Returns:
        None if it is supported, else why not.
    """
    for index, tensor in enumerate(map(op.tensor, range(len(op.call.inputs)))):
        is_absent = op.kind == "Resize" and index in (1, 2)
        is_list = index > 0 and tensor is not None and tensor.dtype == "int64" and len(tensor.shape or ()) == 1
        is_tested = op.kind in EMPTY and (op.kind != "Attention" or index > 2)
        if not (is_list or is_absent) and _is_empty(tensor) and (not is_tested or op.is_constant(index)):
            return reject("RULE", f"its {op.kind} of no elements, as in {op.operand(index)!r}, is not that of ONNX")
    if op.kind not in EMPTY and any(_is_empty(one) for one in op.outputs):
        return reject("RULE", f"its {op.kind} without results is not that of ONNX")
    return None


def _is_empty(value: object) -> bool:
    return isinstance(value, TensorType) and value.shape is not None and 0 in value.shape


def check_lists(op: Op) -> Reject | None:
    """Reject lists of sizes whose number is not known, on which ranks depend.

    Args:
        op: an operation that the tables support.

    Returns:
        None if it is supported, else why not.
    """
    for index in _LISTS.get(op.kind, ()):
        tensor = op.tensor(index)
        if tensor is not None and not _is_static(tensor) and not op.is_constant(index):
            message = f"how many sizes {op.operand(index)!r} holds is not known"
            return reject("SHAPE_DYNAMIC", message, hint="give the input a shape")
    return None


def _is_static(tensor: TensorType | None) -> bool:
    return tensor is not None and tensor.shape is not None and all(isinstance(size, int) for size in tensor.shape)


def _static_weights(op: Op) -> Reject | None:
    if _is_static(op.tensor(1)):
        return None
    return reject(
        "SHAPE_DYNAMIC", f"it supports {op.kind} by weights of static shape only", hint="make them initializers"
    )


def _static_depth_and_values(op: Op) -> Reject | None:
    is_open = (index for index in (1, 2) if not _is_static(op.tensor(index)))
    if (index := next(is_open, None)) is None:
        return None
    shape = "(1,)" if index == 1 else "(2,)"
    return reject(
        "SHAPE_DYNAMIC", f"the shape of {op.operand(index)!r} is not static", hint=f"give it the shape {shape}"
    )


def _static_last_dimension(op: Op) -> Reject | None:
    indices = op.tensor(1)
    if indices is not None and indices.shape and isinstance(indices.shape[-1], int):
        return None
    return reject("SHAPE_DYNAMIC", f"the last dimension of {op.operand(1)!r} is not static, on which ranks depend")


def _no_equal_floats(op: Op) -> Reject | None:
    if op.operand(0) != op.operand(1):
        return None
    return reject("RULE", f"it takes {op.kind} of one value and itself to be true of NaN", hint="use IsNaN")


def _no_past_causal_mask(op: Op) -> Reject | None:
    # Operand 3 is `attn_mask`, operand 4 is `past_key`.
    if not (op.attr("is_causal") and op.operand(3) and op.operand(4)):
        return None
    return reject("RULE", "it ignores the causal mask beside another one and past keys")


def _no_padding_keys(op: Op) -> Reject | None:
    return reject("RULE", "it does not support keys that are padding") if op.operand(6) else None


def _one_numeric_type(op: Op) -> Reject | None:
    """Reject numbers of several types, which OpenVINO does not convert (2026.4)."""
    found = sorted({one.dtype for one in map(op.tensor, range(len(op.inputs))) if one is not None} - {"bool"})
    if len(found) < 2:
        return None
    return reject("DTYPE", f"it does not support {op.kind} on {' and '.join(found)}", hint="cast to one of them")


def _static_heads(op: Op) -> Reject | None:
    """Reject attention of symbolic numbers of heads or features; batches and lengths may be symbolic."""
    shapes = [None if one is None else one.shape for one in map(op.tensor, range(3))]
    if all(shape and all(isinstance(dim, int) for dim in (*shape[1:-2], shape[-1])) for shape in shapes):
        return None
    message = f"its {op.kind} on symbolic numbers of heads fails where queries share keys"
    return reject("SHAPE_DYNAMIC", message, hint=STATIC_INPUTS)


def _static_operands(op: Op) -> Reject | None:
    if all(_is_static(op.tensor(index)) for index, name in enumerate(op.call.inputs) if name):
        return None
    return reject("SHAPE_DYNAMIC", f"it does not support {op.kind} on symbolic dimensions", hint=STATIC_INPUTS)


def _known_axes(op: Op) -> Reject | None:
    """Reject a Squeeze of all dimensions of size 1, whose number is not known."""
    if op.operand(1) or op.attr("axes") is not None or _is_static(op.tensor(0)):
        return None
    return reject("SHAPE_DYNAMIC", "which dimensions are removed is not known", hint="state the axes")


def _no_rest(op: Op) -> Reject | None:
    """Reject a number of equal parts of which the last is, or may be, smaller."""
    tensor, count, axis = op.tensor(0), op.attr("num_outputs"), op.attr("axis") or 0
    if op.operand(1) or not isinstance(count, int):
        return None
    shape = () if tensor is None or tensor.shape is None else tensor.shape
    size = shape[axis] if isinstance(axis, int) and -len(shape) <= axis < len(shape) else None
    if isinstance(size, int) and count and size % count == 0:
        return None
    message = f"it divides {size or '?'} elements into {count} equal parts only"
    return reject("RULE" if isinstance(size, int) else "SHAPE_DYNAMIC", message, hint="give their sizes")


def _some_elements(op: Op) -> Reject | None:
    count = op.constant(1)
    if count is not None and not count.any():
        return reject("RULE", f"its {op.kind} of no elements is not that of ONNX")
    return None


def _some_kept(op: Op) -> Reject | None:
    """Reject a constant condition that keeps nothing: the process ends when that is compiled (2026.4)."""
    condition = op.constant(1)
    if condition is None or condition.any():
        return None
    return reject("RULE", f"it has no {op.kind} that keeps nothing, as {op.operand(1)!r} does")


def _listed_axes(op: Op) -> Reject | None:
    """Reject axes that are a scalar, for which it reduces all: ONNX defines vectors only."""
    axes = op.constant(1)
    if axes is None or axes.ndim:
        return None
    return reject("RANK", f"the axes {op.operand(1)!r} of {op.kind} are a scalar", hint="make them a vector")


def _known_samples(op: Op) -> Reject | None:
    """Reject transforms of a symbolic number of samples, whose angles it would round as floats."""
    if isinstance(tvm_rules.transformed_dim(op), int):
        return None
    return reject("SHAPE_DYNAMIC", f"how many samples {op.kind} transforms is not known", hint=STATIC_INPUTS)


def _never_empty(op: Op) -> Reject | None:
    """Reject what may have no elements in some runs, for which it returns those of the run before (2026.4)."""
    tensor = op.tensor(0)
    dims = (None,) if tensor is None or tensor.shape is None else tensor.shape
    if tvm_rules.check_nonempty(op, dims) is None:
        return None
    return reject("SHAPE_DYNAMIC", f"it finds elements in {op.operand(0)!r} where a run has none", hint=STATIC_INPUTS)


def _some_dimensions(op: Op) -> Reject | None:
    """Reject the shape of a scalar, or of none of the dimensions: it is a scalar in what reads it."""
    if op.outputs and _is_empty(op.outputs[0]):
        return reject("RULE", f"the shape {op.call.outputs[0].name!r} of no dimensions is not that of ONNX")
    return None


def _few_computed_repeats(op: Op) -> Reject | None:
    """Reject computed repeats of more than three dimensions, of which it returns other elements (2026.4)."""
    tensor = op.tensor(0)
    if op.is_constant(1) or (tensor is not None and tensor.shape is not None and len(tensor.shape) <= 3):
        return None
    message = f"the repeats {op.operand(1)!r} of more than three dimensions are computed at run time"
    return reject("NEED_CONST", message, hint=STATIC_INPUTS)


def _sorted_or_along_an_axis(op: Op) -> Reject | None:
    """Reject elements of a whole tensor that are not sorted, and slices of integers (2026.4).

    Of the former, it returns zeros, and counts of 1; of the latter, it takes different ones for equal.
    """
    if op.attr("axis") is None:
        if op.attr("sorted") == 0:
            return reject("ATTR", "it finds different elements of a whole tensor sorted only")
        return None
    tensor = op.tensor(0)
    if tensor is None or tensor.dtype == "float32" or (tensor.shape is not None and len(tensor.shape) == 1):
        return None
    return reject("DTYPE", f"it finds different slices of float32 only, not of {tensor.dtype}")


def _counted_from_the_first(op: Op) -> Reject | None:
    axes = op.attr("axes")
    if isinstance(axes, tuple) and any(isinstance(axis, int) and axis < 0 for axis in axes):
        return reject("ATTR", f"it does not support {op.kind} with axes={axes}", hint="count them from the first")
    return None


def _no_training(op: Op) -> Reject | None:
    return reject("RULE", "it does not train", hint="export the model for inference") if op.operand(2) else None


def _no_peepholes(op: Op) -> Reject | None:
    return reject("RULE", "it ignores the peepholes of LSTM", hint="leave operand 7 out") if op.operand(7) else None


def _no_weights_per_row(op: Op) -> Reject | None:
    """Reject weights of three and more dimensions for symbolic rows, unless their outer dimensions are the same."""
    weights, data = op.constant(1), op.tensor(0)
    if weights is None or weights.ndim < 3 or data is None or _is_static(data):
        return None
    outer = weights.shape[:-2]
    if all(size == 1 for size in outer) or (data.shape is not None and data.shape[:-2] == outer):
        return None
    message = f"it does not broadcast symbolic dimensions of {op.operand(0)!r} over weights"
    return reject("SHAPE_DYNAMIC", message, hint=STATIC_INPUTS)


def _no_open_padding(op: Op) -> Reject | None:
    """Reject automatic padding of a ConvTranspose of symbolic dimensions, which it ignores (2026.4)."""
    mode = op.attr("auto_pad")
    if mode not in ("SAME_LOWER", "SAME_UPPER") or _is_static(op.tensor(0)):
        return None
    message = f"it ignores auto_pad={mode!r} of a ConvTranspose of symbolic dimensions"
    return reject("SHAPE_DYNAMIC", message, hint=f"write pads, or {STATIC_INPUTS}")


def _usual_network(op: Op) -> Reject | None:
    """Reject lengths of sequences, which it ignores, and activations that its cells lack."""
    if op.operand(4):
        return reject("RULE", f"it ignores the lengths of sequences of {op.kind}", hint="leave operand 4 out")
    activations = op.attr("activations")
    others = sorted({*activations} - {"Relu", "Sigmoid", "Tanh"}) if isinstance(activations, tuple) else []
    if others:
        return reject("ATTR", f"its {op.kind} lacks the activations {', '.join(map(str, others))}")
    return None


def _two_dimensions(op: Op) -> Reject | None:
    tensor = op.tensor(1)
    if tensor is not None and tensor.shape == (2,):
        return None
    return reject("RANK", f"it supports {op.kind} of two spatial dimensions only")


def _no_partial_windows(op: Op) -> Reject | None:
    """Reject averages that count padding in windows that are cut off: it divides by the size of whole windows."""
    pads, is_automatic = op.attr("pads"), op.attr("auto_pad") not in (None, "NOTSET")
    if op.attr("ceil_mode") != 1 or op.attr("count_include_pad") != 1:
        return None
    if not is_automatic and (not isinstance(pads, tuple) or not any(pads)):  # the backend counts elements only
        return None
    return reject("ATTR", "it averages otherwise with ceil_mode=1 and count_include_pad=1", hint="set one of them to 0")


def _whole_windows(op: Op) -> Reject | None:
    """Reject windows that exceed the padded image, as they may where sizes are rounded up."""
    tensor = op.tensor(0)
    sizes = () if tensor is None or tensor.shape is None else tensor.shape[2:]
    kernel, pads, gaps = (
        integers_of(op.call, name, [default] * count * len(sizes))
        for name, default, count in (("kernel_shape", 1, 1), ("pads", 0, 2), ("dilations", 1, 1))
    )
    least = least_sizes(kernel, dilations=gaps, pads=pads)
    exceeds = any(isinstance(size, int) and size < needed for size, needed in zip(sizes, least, strict=False))
    if not exceeds or op.attr("ceil_mode") != 1 or op.attr("auto_pad") in ("SAME_LOWER", "SAME_UPPER"):
        return None
    return reject("ATTR", f"its {op.kind} needs padded images as large as windows", hint="pad them")


def _begins_within(op: Op) -> Reject | None:
    """Reject sizes that are rounded up where the last window may begin in padding: it has a result for that."""
    if op.attr("ceil_mode") != 1:
        return None
    if op.attr("auto_pad") not in (None, "NOTSET"):
        return reject("ATTR", "it supports MaxPool with ceil_mode=1 and no auto_pad only", hint="set ceil_mode=0")
    names = ("kernel_shape", "strides", "dilations", "pads")
    if begins_within(*(integers_of(op.call, name, []) for name in names)):
        return None
    return reject("ATTR", "its MaxPool with ceil_mode=1 has windows that begin in padding", hint="pad by Pad instead")


def _fits_the_assumed_size(op: Op) -> Reject | None:
    """Reject dilated windows that exceed the size with which OpenVINO compiles symbolic ones."""
    if op.attr("auto_pad") in ("SAME_LOWER", "SAME_UPPER"):
        return None
    kernel, gaps, pads = (integers_of(op.call, name, []) for name in ("kernel_shape", "dilations", "pads"))
    tensor = op.tensor(0)
    sizes = [None] * len(kernel) if tensor is None or tensor.shape is None else tensor.shape[2:]
    least = zip(sizes, gaps, least_sizes(kernel, dilations=gaps, pads=pads), strict=False)
    if all(isinstance(size, int) or gap == 1 or needed <= _ASSUMED_SIZE for size, gap, needed in least):
        return None
    message = f"it compiles a dilated {op.kind} of symbolic sizes for {_ASSUMED_SIZE} elements, less than its window"
    return reject("SHAPE_DYNAMIC", message, hint=STATIC_INPUTS)


def rounded_up(sizes: np.ndarray[Any, Any], scale: np.float32) -> np.ndarray[Any, Any]:
    """Find sizes that OpenVINO resizes to one more element than ONNX does.

    Their product with the scale is just below a whole number: it adds 1e-6 to scales other than 1 (2026.4).

    Args:
        sizes: sizes of a dimension, as integers.
        scale: the scale.

    Returns:
        Those of the sizes that it rounds up.
    """
    floats, added = sizes.astype("float32"), np.float32(1e-6 if scale != 1 else 0)
    wrong: np.ndarray[Any, Any] = sizes[np.floor(floats * (scale + added)) != np.floor(floats * scale)]
    return wrong


def _rounded_down(op: Op) -> Reject | None:
    """Reject scales that it rounds up for the size of a dimension; for a symbolic one, of many sizes.

    The backend checks larger sizes in each run.
    """
    for dim, scale in sizes_and_scales(op) or ():
        wrong = rounded_up(np.arange(1, _MOST_TRIED) if not isinstance(dim, int) else np.array([dim]), scale)
        if wrong.size:
            message = f"it rounds {wrong[0]} * {scale!s} up to a size of {round(wrong[0] * float(scale))}"
            return reject("RULE", message, hint="give sizes instead of scales, or let another leaf resize")
    return None


def _resizes_images(op: Op) -> Reject | None:
    """Reject dimensions that it resizes to what was in memory, and linear ones by which the process ends (2026.4).

    A cubic one changes the last two of three or four dimensions, or both before channels if `axes` are these.
    """
    mode, dims = str(op.attr("mode") or "nearest"), resized_dims(op)
    if mode == "linear" and len(dims) > 5:
        return reject("RANK", f"it supports {op.kind} of at most 5 dimensions")
    if mode == "cubic" and len(dims) in (3, 4):
        has_channels_last = len(dims) == 4 and op.attr("axes") == (1, 2)
        axes = [axis for axis in range(len(dims) - 2) if not dims[axis].is_kept and not (axis and has_channels_last)]
    elif mode == "cubic":
        axes = []
    else:
        axes = [axis for axis in range(len(dims) - 3) if dims[axis].is_changed]
    if not axes:
        return None
    message = f"it has no {mode} {op.kind} of dimension {axes[0]} of {len(dims)}"
    return reject("RULE", message, hint="state the sizes, or move what is resized behind what is not, by Transpose")


def _known_terms(op: Op) -> Reject | None:
    """Reject sums of products of bytes of which it is not known how many there are: float32 holds few exactly."""
    shapes = [None if one is None else one.shape for one in map(op.tensor, range(2))]
    if all(shapes) and any(isinstance(shape[-2:][at], int) for shape, at in zip(shapes, (-1, 0), strict=True) if shape):
        return None
    message = f"it computes {op.kind} in float32, and how many products are added is not known"
    return reject("SHAPE_DYNAMIC", message, hint=STATIC_INPUTS)


def _few_terms(op: Op) -> Reject | None:
    """Reject convolutions of bytes whose sums may exceed the integers that float32 holds."""
    typed, weights, zeros = op.tensor(1), op.constant(1), op.constant(3)
    if weights is not None and weights.size and (not op.operand(3) or zeros is not None):
        shift = np.zeros(1, "int32") if zeros is None else zeros.astype("int32").reshape(-1, *[1] * (weights.ndim - 1))
        largest = 255 * int(np.abs(weights - shift).sum(axis=tuple(range(1, weights.ndim))).max())
    else:
        sizes = () if typed is None or typed.shape is None else typed.shape[1:]
        largest = 255 * 255 * math.prod(size for size in sizes if isinstance(size, int))
    if largest <= EXACT:
        return None
    return reject("RULE", f"it computes {op.kind} in float32, and sums of {largest} are not exact in it")


def _wraps_known_sizes(op: Op) -> Reject | None:
    """Reject wrap-around by computed pads, and of symbolic dimensions."""
    if op.attr("mode") != "wrap":
        return None
    tensor, pads, axes = op.tensor(0), op.constant(1), op.constant(3)
    if tensor is None or tensor.shape is None or pads is None or (axes is None and op.operand(3)):
        return reject("ATTR", "it supports Pad with mode='wrap' by constant pads only", hint="use Concat of slices")
    rank = len(tensor.shape)
    places = range(rank) if axes is None else axes.tolist()
    if pads.size != 2 * len(places) or any(not -rank <= axis < rank for axis in places):
        return reject("RULE", f"the pads {op.operand(1)!r} do not fit the {rank} dimensions of {op.operand(0)!r}")
    for axis, amounts in zip(places, pads.reshape(2, -1).T.tolist(), strict=True):
        size = tensor.shape[axis]
        if any(amounts) and not (isinstance(size, int) and size):
            return reject(
                "SHAPE_DYNAMIC", f"it wraps around static dimensions only, not {size!r}", hint="use Concat of slices"
            )
    return None


def _no_remainder_of_floats(op: Op) -> Reject | None:
    """Reject Mod of floats: the remainder of 1e9 by 1.3 is off by 130, and that by an infinite divisor is NaN."""
    tensor = op.tensor(0)
    if tensor is None or tensor.dtype not in _FLOATS:
        return None
    message = "it computes Mod of floats from a rounded quotient, which is wrong where that is large"
    return reject("DTYPE", message, hint="let another leaf compute it")


def _quantises_to_integers(op: Op) -> Reject | None:
    typed = op.outputs[0] if op.outputs else None
    if isinstance(typed, TensorType) and typed.dtype in _BYTES | {"int16", "uint16"}:
        return None
    return reject("DTYPE", f"it quantises to 8 and 16 bits only, not {getattr(typed, 'dtype', 'an unknown type')}")


def _small_trees(op: Op) -> Reject | None:
    """Reject trees that would become too many operations, or too large a table of weights."""
    ensemble = ensemble_of(op)
    depth, weights = int(ensemble.depths.max(initial=0)), len(ensemble.features) * ensemble.targets
    if depth > _MOST_LEVELS:
        return reject("ATTR", f"it supports trees of at most {_MOST_LEVELS} comparisons, and one has {depth}")
    if weights > _MOST_WEIGHTS:
        return reject("ATTR", f"its table of weights would have {weights} elements, more than {_MOST_WEIGHTS}")
    return None


def _usual_places(op: Op) -> Reject | None:
    """Reject places of maxima by columns, and of windows whose padding only a run knows."""
    if len(op.call.outputs) < 2 or op.call.outputs[1].name not in op.read:
        return None
    if op.attr("storage_order"):
        return reject("ATTR", "it computes places of MaxPool with storage_order=0 only")
    tensor = op.tensor(0)
    is_static = tensor is not None and tensor.nbytes is not None
    if is_static or op.attr("auto_pad") not in ("SAME_LOWER", "SAME_UPPER"):
        return None
    return reject("SHAPE_DYNAMIC", "it pads a MaxPool with places of symbolic shapes wrongly", hint="state its pads")


_RECURRENT = Rule(attrs={"layout": (0,)}, checks=(_usual_network,))
_REDUCED = Rule(constants=(1,), checks=(_listed_axes,))
_WEIGHTED = Rule(checks=(_static_weights,))
_COMPARED = Rule(checks=(_no_equal_floats,))

RULES: dict[str, Rule] = {
    # The backend writes these as operators of ONNX.
    **{
        kind: replace(rule, checks=(*rule.checks, _small_trees)) if "::TreeEnsemble" in kind else rule
        for kind, rule in tvm_rules.EXPANDED.items()
        if "::" in kind or kind == "SimplifiedLayerNormalization"
    },
    "com.microsoft::FusedConv": replace(
        tvm_rules.EXPANDED["com.microsoft::FusedConv"],
        checks=(*tvm_rules.EXPANDED["com.microsoft::FusedConv"].checks, _static_weights),
    ),
    "AffineGrid": Rule(constants=(1,), checks=(tvm_rules.check_grid_of_rows,)),
    "AveragePool": Rule(checks=(_no_partial_windows, _whole_windows, _fits_the_assumed_size)),
    "Attention": Rule(
        attrs={"left_window_size": (), "right_window_size": ()},
        results=3,
        checks=(_static_heads, _no_past_causal_mask, _no_padding_keys, _one_numeric_type),
    ),
    **dict.fromkeys(("BatchNormalization", "RMSNormalization"), Rule(checks=(_one_numeric_type,))),
    "Celu": Rule(dtypes=frozenset({"float32"})),
    "Col2Im": Rule(constants=(1, 2), checks=(_two_dimensions,)),
    "Compress": Rule(checks=(_some_kept,)),
    "Conv": _WEIGHTED,
    "ConvInteger": Rule(checks=(_static_weights, _few_terms)),
    "ConvTranspose": Rule(checks=(_static_weights, _no_open_padding)),
    # It gives DFT another shape than ONNX, and has no STFT: the backend writes both as products.
    "DFT": replace(tvm_rules.EXPANDED["DFT"], checks=(*tvm_rules.EXPANDED["DFT"].checks, _known_samples)),
    "STFT": tvm_rules.EXPANDED["STFT"],
    "DequantizeLinear": Rule(checks=(tvm_rules.check_blocks_and_few_bits,)),
    "Dropout": Rule(constants=(1,), checks=(_no_training,)),
    "Equal": _COMPARED,
    "GRU": _RECURRENT,
    "GatherND": Rule(checks=(_static_last_dimension,)),
    "GridSample": Rule(max_rank=4),
    "LRN": Rule(max_rank=4),
    "LpPool": Rule(checks=(_whole_windows, _fits_the_assumed_size)),
    "LSTM": Rule(attrs={"input_forget": (0,), "layout": (0,)}, checks=(_usual_network, _no_peepholes)),
    "MatMul": Rule(checks=(_no_weights_per_row,)),
    "MatMulInteger": Rule(checks=(_known_terms,)),
    "MaxPool": Rule(checks=(_begins_within, _usual_places, _fits_the_assumed_size)),
    "Mod": Rule(checks=(_no_remainder_of_floats,)),
    "OneHot": Rule(checks=(_static_depth_and_values,)),
    # What version 28 added has no conversion rule.
    **dict.fromkeys(("OptionalGetElement", "OptionalHasElement"), Rule(opsets=range(15, 28))),
    # It fills by 0 where the value is computed.
    "Pad": Rule(attrs={"mode": ("constant", "edge", "reflect", "wrap")}, constants=(2,), checks=(_wraps_known_sizes,)),
    "QuantizeLinear": Rule(attrs={"block_size": (0,)}, checks=(_quantises_to_integers,)),
    "RNN": _RECURRENT,
    **dict.fromkeys(_REDUCTIONS, _REDUCED),
    # It rounds logarithms of integers, where others cut them off.
    **dict.fromkeys(("ReduceLogSum", "ReduceLogSumExp"), replace(_REDUCED, dtypes=_FLOATS)),
    "Resize": Rule(
        dtypes=_RESIZED,
        attrs={
            "coordinate_transformation_mode": (
                "align_corners",
                "asymmetric",
                "half_pixel",
                "pytorch_half_pixel",
                "tf_half_pixel_for_nn",
            ),
            "exclude_outside": (0,),
            "keep_aspect_ratio_policy": ("stretch",),
        },
        checks=(
            check_antialias,
            check_aligned_corners,
            _rounded_down,
            _counted_from_the_first,
            check_kept_sizes,
            _resizes_images,
        ),
    ),
    "Upsample": Rule(dtypes=_RESIZED, checks=(_rounded_down, check_kept_sizes, _resizes_images)),
    "RoiAlign": Rule(attrs={"mode": ("avg",)}, checks=(_static_operands,)),
    "RotaryEmbedding": Rule(checks=(_static_operands,)),
    "Shape": Rule(checks=(_some_dimensions,)),
    "SpaceToDepth": Rule(attrs={"mode": ("DCR",)}),
    # The process ends where it computes axes.
    "Slice": Rule(constants=(3,)),
    "Split": Rule(checks=(_no_rest,)),
    "Unique": Rule(checks=(_sorted_or_along_an_axis, _never_empty)),
    "Squeeze": Rule(constants=(1,), checks=(_known_axes,)),
    "Tile": Rule(checks=(_few_computed_repeats,)),
    "TopK": Rule(constants=(1,), checks=(_some_elements,)),
    "Unsqueeze": Rule(constants=(1,)),
}

UNSUPPORTED = {
    kind: f"it has no kernel for {kind}"
    for kind in (
        "BitCast",
        "CausalConvWithState",
        "CumProd",
        "DeformConv",
        "Det",
        "FlexAttention",
        "ImageDecoder",
        "LinearAttention",
        "MaxUnpool",
        "MelWeightMatrix",
        "RegexFullMatch",
        "StringConcat",
        "StringNormalizer",
        "StringSplit",
        "SwiGLU",
        "TensorScatter",
        "TfIdfVectorizer",
    )
} | {
    "BitShift": "its shifts of negative numbers, and beyond the width, are not those of ONNX",
    "NonMaxSuppression": "it keeps boxes whose overlap equals the threshold, which ONNX does not",
    **dict.fromkeys(
        ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        "its random numbers are not tested",
    ),
}
