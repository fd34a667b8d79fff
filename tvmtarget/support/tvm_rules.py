"""Operator support of Apache TVM for ONNX: checks, and a table with a row per operator.

Source: the converters of apache-tvm 0.27, python/tvm/relax/frontend/onnx/onnx_frontend.py, and running them on ONNX's
node tests, on older operator sets, on every element type and on symbolic shapes. What is rejected raises an error in
the importer or compiler, silently computes a wrong result, or kills the process. Checks of single operators are called
when the ranks of the operands are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.ir.dim_expressions import least_dim, symbols_of
from tvmtarget.ir.types import Dim, TensorType
from tvmtarget.support.classical_rules import CLASSICAL
from tvmtarget.support.four_bits import FOUR_BITS
from tvmtarget.support.onnxruntime_rules import check_antialias
from tvmtarget.support.op import STATIC_INPUTS, Op, Reject, reject
from tvmtarget.support.strategy import Rule

__all__ = [
    "ACTIVATIONS",
    "DTYPES",
    "EXPANDED",
    "OF_TENSORFLOW",
    "OPSETS",
    "RULES",
    "UNSUPPORTED",
    "check_blocks_and_few_bits",
    "check_broadcast",
    "check_empty_operands",
    "check_grid_of_rows",
    "check_matmul",
    "check_nonempty",
    "computed_shape",
    "order_to_resize",
    "reduced_dims",
    "squeezed_dims",
    "transformed_dim",
    "unknown_fit",
]

# Coordinates of Resize in versions 11 and 12, which tf2onnx and engines know in later ones, too.
OF_TENSORFLOW = "tf_half_pixel_for_nn"

_Shape: TypeAlias = tuple[Dim, ...]


# Operands that say which shape a result has.
_SHAPE_OPERANDS = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (3,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Tile": (1,),
    "TopK": (1,),
}


def computed_shape(op: Op) -> str:
    """Return the operand that says which shape a result has, if it is computed at run time.

    Args:
        op: an operation of any operator.

    Returns:
        The name of the operand; '' if it is a constant, or the operator has none.
    """
    return next((op.operand(at) for at in _SHAPE_OPERANDS.get(op.kind, ()) if not op.is_constant(at)), "")


def check_empty_operands(op: Op) -> Reject | None:
    """Reject a result with elements that is computed from an empty operand.

    The loop over the operand runs zero times and leaves uninitialized memory in the result.

    Args:
        op: an operation of any operator.

    Returns:
        None if this cannot happen, else why it can.
    """
    is_empty = any(isinstance(type_, TensorType) and 0 in (type_.shape or ()) for type_ in op.outputs)
    # CastLike reads only the type of its second operand, Shape and Size only the shape, and an empty part of a Concat
    # contributes no elements.
    if is_empty or op.kind in ("CastLike", "Concat", "com.microsoft::QLinearConcat", "Shape", "Size"):
        return None
    for index, name in enumerate(op.call.inputs):
        if 0 in _shape(op, index) and not op.is_constant(index):
            return reject("RULE", f"{name!r} is empty and the result of {op.kind} is not; it would not be written")
    return None


def _require_static(*indices: int) -> Callable[[Op], Reject | None]:
    """Return a check that all dimensions of some operands are numbers."""

    def check(op: Op) -> Reject | None:
        return next((_symbolic(op, index) for index in indices if not _is_static(_shape(op, index))), None)

    return check


def _check_channel_count(op: Op) -> Reject | None:
    """Require a known number of channels."""
    return None if isinstance(_dim(_shape(op, 0), 1), int) else _symbolic(op, 0)


def _check_col2im(op: Op) -> Reject | None:
    """Reject columns that are no windows of the image."""
    image, block, shape = op.constant(1), op.constant(2), _shape(op, 0)
    if image is None or block is None or len(shape) != 3:
        return _symbolic(op, 0)
    rank = len(image)
    pads, strides, dilations = (
        np.array(op.attr(name) or [default] * count)
        for name, default, count in (("pads", 0, 2 * rank), ("strides", 1, rank), ("dilations", 1, rank))
    )
    counts = (image + pads[:rank] + pads[rank:] - dilations * (block - 1) - 1) // strides + 1
    rows, columns = shape[1:]
    fits = (not isinstance(rows, int) or rows % math.prod(block) == 0) and counts.min() > 0
    if fits and (not isinstance(columns, int) or columns == math.prod(counts)):
        return None
    return reject("RULE", f"operand 0 of Col2Im, {op.operand(0)!r}, is {op.tensor(0)}, not the windows of an image")


def _require_absent(index: int) -> Callable[[Op], Reject | None]:
    """Return a check that an optional operand is absent."""

    def check(op: Op) -> Reject | None:
        name = op.operand(index)
        if not name:
            return None
        return reject("RULE", f"it does not support {op.kind} with operand {index}, {name!r}", hint="omit it")

    return check


def check_broadcast(op: Op, places: Iterable[int] = ()) -> Reject | None:
    """Reject operands of which it is not known which dimensions are broadcast.

    Args:
        op: the operation.
        places: the operands that are broadcast; all if none is given.

    Returns:
        None if it is known, else why the operation is rejected.
    """
    return _check_broadcast_dims(op, [_shape(op, index) for index in places or range(len(op.call.inputs))])


def _check_prelu(op: Op) -> Reject | None:
    """Require a static slope that is known to fit."""
    return _require_static(1)(op) or check_broadcast(op)


def check_matmul(op: Op, second_operand: int = 1) -> Reject | None:
    """Reject a matrix product of which it is not known which outer dimensions are broadcast.

    Args:
        op: the operation.
        second_operand: the index of the second matrix.

    Returns:
        None if it is known, else why the operation is rejected.
    """
    first, second = _shape(op, 0), _shape(op, second_operand)
    return _check_broadcast_dims(op, [first[:-2], second[:-2]])


def _check_gemm(op: Op) -> Reject | None:
    """Require what a matrix product requires; alpha and beta of an integer product must be 1, as others are rounded."""
    result = op.outputs[0]
    tensor = op.tensor(0)
    if tensor is not None and "int" in tensor.dtype and {op.attr("alpha"), op.attr("beta")} - {None, 1.0}:
        return reject("ATTR", "it rounds alpha and beta of an integer Gemm", hint="scale in an operation of its own")
    shape = result.shape if isinstance(result, TensorType) else None
    return _check_broadcast_dims(op, [shape or (), _shape(op, 2)])


def _check_concat(op: Op) -> Reject | None:
    """Require operands of one rank; whether their other dimensions are equal is checked at run time, if not before."""
    axis = _axis(op, 0)
    shapes = [_shape(op, index) for index in range(len(op.call.inputs))]
    others = zip(*(shape[:axis] + shape[axis + 1 :] for shape in shapes), strict=False)
    numbers = [{dim for dim in dims if isinstance(dim, int)} for dims in others]
    has_rank = len({len(shape) for shape in shapes}) == 1 and shapes[0]
    return None if has_rank and all(len(sizes) < 2 for sizes in numbers) else unknown_fit(op)


def _check_divisor(op: Op) -> Reject | None:
    """Reject constant integer divisors that are 0; others are checked at run time."""
    tensor, by = op.tensor(1), op.constant(1)
    if tensor is None or "int" not in tensor.dtype or by is None or by.all():
        return None
    return reject("RULE", f"the divisor {op.operand(1)!r} of an integer {op.kind} has 0, which kills the process")


def _check_remainder(op: Op) -> Reject | None:
    """Require the remainder of C for floats; ONNX defines no other one."""
    tensor = op.tensor(0)
    if tensor is None or "float" not in tensor.dtype or op.attr("fmod") == 1:
        return None
    return reject("ATTR", "Mod of floats is defined for fmod=1 only", hint="set it to 1")


def _check_shift(op: Op) -> Reject | None:
    """Require shifts from 0 to the width: processors compute others modulo the width."""
    by = op.constant(1)
    if by is None or ((by >= 0) & (by < by.dtype.itemsize * 8)).all():
        return None
    return reject("RULE", f"it shifts by less than the width, and {op.operand(1)!r} is from {by.min()} to {by.max()}")


def _check_reduction(op: Op) -> Reject | None:
    """Require that the dimensions of places and of means of integers are not empty: these have no result then."""
    tensor = op.tensor(0)
    is_mean = op.kind == "ReduceMean" and tensor is not None and "int" in tensor.dtype
    return check_nonempty(op, reduced_dims(op)) if is_mean or op.kind in ("ArgMax", "ArgMin") else None


def reduced_dims(op: Op) -> tuple[Dim, ...]:
    """Return the dimensions that a sum, maximum, minimum or mean runs over.

    Args:
        op: an operation of any operator.

    Returns:
        Dimensions; more than these for Einsum, and none for an operator that reduces nothing.
    """
    shape, axes = _shape(op, 0), op.constant(1)
    if op.kind in ("MatMul", "MatMulInteger"):
        return shape[-1:]
    if op.kind == "com.microsoft::FusedMatMul":
        return shape[-2:-1] if op.attr("transA") and len(shape) > 1 else shape[-1:]
    if op.kind == "Gemm":
        return (_dim(shape, 0 if op.attr("transA") else 1),)
    if op.kind == "Einsum":
        return tuple(dim for index in range(len(op.call.inputs)) for dim in _shape(op, index))
    if op.kind in ("ArgMax", "ArgMin"):
        return (_dim(shape, _axis(op, 0)),)
    if not op.kind.startswith("Reduce"):
        return ()
    # The axes of reductions are an attribute in old operator sets, and operand 1 since 18 (ReduceSum: since 13).
    listed = _numbers(op, "axes") if axes is None else tuple(map(int, axes))
    if not listed:
        return () if op.attr("noop_with_empty_axes") else shape
    return tuple(_dim(shape, axis) for axis in listed)


def _check_indices(op: Op) -> Reject | None:
    """Reject constant indices that are out of bounds: they access other memory."""
    indices, shape = op.constant(1), _shape(op, 0)
    return None if indices is None else _check_bounds(op, indices, _dim(shape, _axis(op, 0)))


def _check_coordinates(op: Op) -> Reject | None:
    """Reject constant coordinates that are out of bounds: they access other memory."""
    indices, shape, places = op.constant(1), _shape(op, 0), _shape(op, 1)
    if not _is_static(places[-1:]):
        return _symbolic(op, 1)
    if op.kind == "ScatterND" and len(_shape(op, 2)) != len(places) - 1 + len(shape) - int(str(places[-1])):
        return unknown_fit(op)
    if indices is None:
        return None
    extents = shape[_number(op, "batch_dims", 0) :]
    columns = np.moveaxis(indices, -1, 0)
    found = (_check_bounds(op, column, extent) for column, extent in zip(columns, extents, strict=False))
    return next((refusal for refusal in found if refusal is not None), None)


def _require_rank(op: Op) -> Reject | None:
    """Require that the number of dimensions of the result is known."""
    result = op.outputs[0]
    if isinstance(result, TensorType) and result.shape is not None:
        return None
    return reject("SHAPE_DYNAMIC", f"the number of dimensions that {op.kind} makes is not known", hint=STATIC_INPUTS)


def _check_places(op: Op) -> Reject | None:
    """Reject scalars, whose places have no coordinates: TVM finds one."""
    tensor = op.tensor(0)
    return reject("RANK", "it finds no places in a scalar") if tensor is not None and tensor.shape == () else None


def _check_range(op: Op) -> Reject | None:
    """Require a constant step where bounds are computed: a step of 0 kills the process."""
    computed = [index for index in (0, 1) if not op.is_constant(index)]
    if not computed and op.is_constant(2):
        return None
    step = op.constant(2)
    if step is None or not step.all():
        return reject("NEED_CONST", f"the step of Range, {op.operand(2)!r}, is computed at run time and may be 0")
    tensor = op.tensor(0)
    if tensor is not None and tensor.dtype in ("int16", "int32", "int64", "float32", "float64"):
        return None
    return reject("NEED_CONST", f"it computes no Range of {tensor} whose bounds are not known", hint="cast to int64")


def _check_reshape(op: Op) -> Reject | None:
    """Reject an inferred dimension (-1) of an empty tensor."""
    wanted = op.constant(1)
    if wanted is not None and -1 in wanted and 0 in _shape(op, 0):
        return reject("RULE", "it works out no dimension (-1) of an empty tensor", hint="write the number")
    return None


def _check_expand(op: Op) -> Reject | None:
    """Require a known number of dimensions, and a constant target without empty ones."""
    wanted, tensor = op.constant(1), op.tensor(0)
    if wanted is not None and 0 in wanted:
        return reject("RULE", "it expands nothing to an empty tensor")
    pairs = () if wanted is None else zip(reversed(_shape(op, 0)), reversed(wanted.tolist()), strict=False)
    for old, new in pairs:
        if isinstance(old, int) and old != new and 1 not in (old, new):
            return reject(
                "RULE", f"it expands no dimension of {old} to {new}, nor does ONNX", hint="make one of them 1"
            )
    return _symbolic(op, 0) if tensor is None or tensor.shape is None else None


def _check_slice(op: Op) -> Reject | None:
    """Require constant bounds of backward slices, and as many of others as are known."""
    starts, ends, steps = (op.constant(index) for index in (1, 2, 4))
    if starts is not None and ends is not None:
        return None
    if steps is not None and (steps < 1).any():
        return reject("RULE", "it slices backwards between constant bounds only")
    return _require_static(1, 2)(op)


def _check_pad(op: Op) -> Reject | None:
    """Reject wrap-around by negative or computed pads, and an unknown number of these."""
    pads, shape, axes = op.constant(1), _shape(op, 0), op.constant(3)
    if op.attr("mode") == "wrap" and op.operand(1) and (pads is None or (pads < 0).any()):
        return reject("ATTR", "it supports Pad with mode='wrap' by constant pads from 0 only", hint="slice before")
    if not op.operand(1) or pads is not None:
        return None
    tensor = op.tensor(0)
    is_known = tensor is not None and tensor.shape is not None
    return None if is_known and _shape(op, 1) == (2 * len(shape if axes is None else axes),) else unknown_fit(op)


def squeezed_dims(op: Op) -> tuple[Dim, ...]:
    """Return the dimensions that a Squeeze removes, as far as they are stated.

    Args:
        op: the operation.

    Returns:
        The dimensions along its axes; all of its operand if it has none.
    """
    shape, axes = _shape(op, 0), op.constant(1)
    listed = _numbers(op, "axes") if axes is None else tuple(map(int, axes))
    return tuple(_dim(shape, axis) for axis in listed or range(len(shape)))


def _check_squeeze(op: Op) -> Reject | None:
    """Require axes or a static operand; whether the dimensions that are removed are 1 is checked at run time."""
    has_axes = op.constant(1) is not None or bool(_numbers(op, "axes"))
    return None if has_axes or _is_static(_shape(op, 0)) else _symbolic(op, 0)


def _check_hardmax(op: Op) -> Reject | None:
    """Require static dimensions from the axis on before version 13, where they count as one."""
    return None if op.opset > 12 or _is_static(_shape(op, 0)[_axis(op, 1) :]) else _symbolic(op, 0)


def check_grid_of_rows(op: Op) -> Reject | None:
    """Reject grids whose aligned corners are one element.

    Args:
        op: an AffineGrid.

    Returns:
        The reason, or None.
    """
    sizes = op.constant(1)
    if not op.attr("align_corners") or sizes is None or (sizes[2:] > 1).all():
        return None
    return reject("RULE", "it aligns corners of 2 or more elements only")


def _check_top_k(op: Op) -> Reject | None:
    """Reject version 10, whose k the importer reads as an attribute."""
    return (
        reject("RULE", "it does not support TopK of operator set 10", hint="convert to 11") if op.opset == 10 else None
    )


def _check_dropout(op: Op) -> Reject | None:
    """Reject training."""
    training = op.constant(2)
    if not op.operand(2) or (training is not None and not training.any()):
        return None
    return reject("RULE", "it does not support Dropout in training", hint="export the model for inference")


def _check_conv(op: Op) -> Reject | None:
    """Require windows of static size, a bias for each channel, and static data with automatic padding."""
    data, weights, bias = (_shape(op, index) for index in range(3))
    if op.attr("auto_pad") in ("SAME_UPPER", "SAME_LOWER") and not _is_static(data[2:]):
        return _symbolic(op, 0)
    if op.kind == "Conv" and not _is_static(weights[1:]):
        return _symbolic(op, 1)
    if op.kind == "Conv" and bias not in ((), weights[:1]):
        return unknown_fit(op)
    return None


def _check_conv_transpose(op: Op) -> Reject | None:
    """Require static channels with groups, a bias for each channel, and with `output_shape` static sizes."""
    sizes, has_groups, has_shape = _shape(op, 0), op.attr("group") not in (None, 1), bool(op.attr("output_shape"))
    if not _is_static(sizes[1:2] * has_groups + sizes[2:] * has_shape):
        return _symbolic(op, 0)
    return unknown_fit(op) if op.operand(2) and not _is_static(_shape(op, 2)) else None


def _check_channels(op: Op) -> Reject | None:
    """Require a value of each parameter per channel; a symbolic number of channels is checked at run time."""
    channels, parameters = _shape(op, 0)[1:2], _shape(op, 1)
    is_checked = _is_static(parameters) and not _is_static(channels)
    are_equal = all(_shape(op, index) == parameters for index in range(2, len(op.call.inputs)))
    return None if are_equal and (is_checked or parameters == channels) else unknown_fit(op)


def _check_scales(op: Op) -> Reject | None:
    """Require one scale, or one per element of the axis, which has some."""
    scale = _shape(op, 1)
    if 0 in scale:
        return reject("RULE", f"it does not support {op.kind} along an axis without elements")
    return unknown_fit(op) if len(scale) == 1 and scale[0] not in (1, _dim(_shape(op, 0), _axis(op, 1))) else None


def _check_dequantize(op: Op) -> Reject | None:
    """Require one scale for each place along an axis; only of constants also scales of blocks, and 4 bits."""
    tensor = op.tensor(0)
    is_plain = not op.attr("block_size") and (tensor is None or tensor.dtype not in FOUR_BITS)
    return _check_scales(op) if is_plain else check_blocks_and_few_bits(op)


def check_blocks_and_few_bits(op: Op) -> Reject | None:
    """Require constants of 4 bits, and where blocks have scales of their own.

    Args:
        op: a DequantizeLinear.

    Returns:
        None if it is supported, else why not.
    """
    tensor = op.tensor(0)
    if not op.attr("block_size") and (tensor is None or tensor.dtype not in FOUR_BITS):
        return None
    index = next((index for index in range(3) if op.operand(index) and not op.is_constant(index)), None)
    if index is None:
        return None
    message = f"operand {index} of DequantizeLinear of 4 bits or blocks, {op.operand(index)!r}, is computed at run time"
    return reject("NEED_CONST", message, hint="make it an initializer")


def _check_batch_norm(op: Op) -> Reject | None:
    """Require one element type; only float16 data may have float32 parameters."""
    data, scale, bias, mean, variance = (tensor.dtype if (tensor := op.tensor(i)) else "" for i in range(5))
    is_mixed = data == "float16" and {scale, mean} <= {"float16", "float32"}
    if scale == bias and mean == variance and (data == scale == mean or is_mixed):
        return None
    return reject(
        "DTYPE", f"it does not support BatchNormalization of {data} with {scale} and {mean}", hint="cast to float32"
    )


def _check_layer_norm(op: Op) -> Reject | None:
    """Require that scale and bias have the shape that is normalized; what is symbolic of it is checked at a run."""
    normalised, scale = _shape(op, 0)[_axis(op, -1) :], _shape(op, 1)
    if len(scale) == len(normalised) and _is_static(scale) and 1 not in scale:
        pairs = zip(normalised, scale, strict=True)
        normalised = tuple(one if isinstance(one, int) else known for one, known in pairs)
    for index in (1, 2):
        if op.operand(index) and _shape(op, index) != normalised:
            message = f"operand {index} of {op.kind}, {op.tensor(index)}, is not of the shape that is normalised"
            return reject("RULE", message, hint="expand it")
    return None if _is_static(normalised) else _symbolic(op, 0)


def _check_rms_norm(op: Op) -> Reject | None:
    """Reject normalization over the whole tensor."""
    if _axis(op, -1) == 0:
        return reject(
            "ATTR", "it does not support RMSNormalization over all dimensions (axis 0)", hint="add a leading 1"
        )
    data, scale = op.tensor(0), op.tensor(1)
    if data is not None and scale is not None and data.dtype != scale.dtype and "float64" in op.dtypes:
        message = f"it does not support RMSNormalization of {data.dtype} with a scale of {scale.dtype}"
        return reject("DTYPE", message, hint="cast one of them")
    return _check_layer_norm(op)


def _check_group_norm(op: Op) -> Reject | None:
    """Require a static number of channels with their parameters, and float32 before version 21."""
    tensor, shape = op.tensor(0), _shape(op, 0)
    if op.opset < 21 and tensor is not None and tensor.dtype != "float32":
        return reject(
            "DTYPE", f"it does not support {op.kind} of {tensor.dtype} before operator set 21", hint="cast to float32"
        )
    if not _is_static(shape[1:2]):
        return _symbolic(op, 0)
    parameters = shape[1:2] if op.opset >= 21 else (_number(op, "num_groups", 1),)
    return None if _shape(op, 1) == _shape(op, 2) == parameters else unknown_fit(op)


def _check_lrn(op: Op) -> Reject | None:
    """Require an odd window, and at most two spatial dimensions."""
    if _number(op, "size", 1) % 2 == 0 or len(_shape(op, 0)) not in (3, 4):
        return reject("ATTR", f"it supports LRN of an odd size, on 3 or 4 dimensions, not size {op.attr('size')!r}")
    return None


def _check_pool(op: Op) -> Reject | None:
    """Require that the importer's formula of automatic padding agrees with ONNX."""
    mode, shape = op.attr("auto_pad"), _shape(op, 0)[2:]
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        return None
    if not _is_static(shape):
        return _symbolic(op, 0)
    ones = (1,) * len(shape)
    kernel, strides, dilations = (_numbers(op, name, ones) for name in ("kernel_shape", "strides", "dilations"))
    sizes = [dim for dim in shape if isinstance(dim, int)]
    # The importer's formulas pad by less than nothing where windows do not meet, and that of MaxPool rounds down below.
    meets = all(width >= stride for width, stride in zip(kernel, strides, strict=False))
    divides = all(size % stride == 0 for size, stride in zip(sizes, strides, strict=False))
    if dilations == ones and meets and (op.kind != "MaxPool" or divides or mode == "SAME_UPPER"):
        return None
    return reject("ATTR", f"it pads {op.kind} wrongly with auto_pad={mode!r} here", hint="write pads")


def _check_quantize(op: Op) -> Reject | None:
    """Reject scales of integers, and float16 to 16-bit integers, whose bounds float16 cannot represent."""
    tensor, scale, result = op.tensor(0), op.tensor(1), op.outputs[0]
    if scale is not None and scale.dtype not in _FLOATS:
        return reject("DTYPE", f"it does not support scales of {scale.dtype}", hint="cast the scale to float32")
    if tensor is None or tensor.dtype != "float16" or not isinstance(result, TensorType) or "16" not in result.dtype:
        return None
    return reject("DTYPE", f"it quantizes no float16 to {result.dtype}", hint="cast to float32")


def _check_grid_sample(op: Op) -> Reject | None:
    """Require two spatial dimensions, or three without cubic interpolation.

    Reflections between the corners of a single element divide by 0, which ends the process (TVM 0.27); cubic ones are
    the importer's own.
    """
    shape = _shape(op, 0)
    rank, is_cubic = len(shape), op.attr("mode") in ("cubic", "bicubic")
    if op.attr("align_corners") and op.attr("padding_mode") == "reflection" and not is_cubic:
        narrow = next((size or "?" for size in shape[2:] if not isinstance(size, int) or size < 2), None)
        if narrow is not None:
            message = f"it reflects between aligned corners of 2 or more elements, and there are {narrow}"
            return reject("SHAPE" if narrow == 1 else "SHAPE_DYNAMIC", message, hint=STATIC_INPUTS * (narrow != 1))
    if rank == 4 or (rank == 5 and not is_cubic):
        return None
    return reject("RANK", f"it does not support GridSample with mode={op.attr('mode')!r} on {rank} dimensions")


def order_to_resize(
    before: Sequence[Dim], after: Sequence[Dim], scales: Sequence[float] | None
) -> tuple[tuple[int, ...], int]:
    """Return how to arrange an image for a Resize of all dimensions but the first two.

    Args:
        before: its sizes.
        after: the sizes of the result, as far as they are known.
        scales: what they are scaled by, one for each dimension; None if sizes are given.

    Returns:
        The order of its dimensions, of which those that stay as they are come first, and how many of size 1 are to be
        put before them.
    """
    if scales is None:
        pairs = enumerate(zip(before, after, strict=False))
        kept = [axis for axis, (old, new) in pairs if old is not None and old == new]
    else:
        kept = [axis for axis, scale in enumerate(scales) if scale == 1]
    first = kept[:2]
    return (*first, *(axis for axis in range(len(before)) if axis not in first)), 2 - len(first)


def _check_resize(op: Op) -> Reject | None:
    """Require one to three resized dimensions; where sizes or scales are not whole numbers, also a mode for these."""
    shape, scales, result = _shape(op, 0), op.constant(2), op.outputs[0]
    after = result.shape or () if isinstance(result, TensorType) else ()
    factors = None if scales is None or not scales.size else scales.astype("float64").tolist()
    order, missing = order_to_resize(shape, after, factors)
    if len(order) + missing not in (3, 4, 5):
        return reject("RANK", f"it resizes 1 to 3 dimensions, not {len(order) + missing - 2}")
    is_plain = len(after if factors is None else factors) == len(shape)
    if is_plain:
        shape = (*[1] * missing, *(shape[axis] for axis in order))
        after = (*[1] * missing, *(after[axis] for axis in order if axis < len(after)))
        factors = factors and [*[1.0] * missing, *(factors[axis] for axis in order)]
    if factors is not None:
        pairs = list(zip(shape, factors, strict=False))
        after = tuple(int(dim * factor) if isinstance(dim, int) else None for dim, factor in pairs)
        # TVM computes the scale of static dimensions from the sizes; ONNX uses the scale of the model.
        is_static = all(isinstance(dim, int) and dim * factor % 1 == 0 for dim, factor in pairs[2:])
        is_whole = is_static or all(factor % 1 == 0 for _, factor in pairs)
        # A scale such as 20 / 12, of TensorFlow, gives 20 in float32 only; a ratio of the sizes is as near to it.
        if op.attr("mode") in ("linear", "cubic"):
            is_whole |= all(isinstance(dim, int) and np.float32(dim) * np.float32(by) % 1 == 0 for dim, by in pairs[2:])
        if op.attr("coordinate_transformation_mode") == "align_corners" and not is_whole:
            # ONNX's reference evaluator divides by the size before it is rounded, ONNX Runtime by that after.
            return reject("RULE", "it aligns no corners by scales that give no whole sizes", hint="give sizes")
    else:
        is_plain = is_plain and None not in after
        # Sizes that are given when the program runs are symbols in the code, also where the result states them.
        is_static = _is_static(shape[2:]) and op.constant(3) is not None
    if not is_plain:
        return reject("RULE", "it resizes to known or named sizes only")
    if op.attr("coordinate_transformation_mode") == "align_corners" and 1 in after[2:]:
        return reject("RULE", "it aligns no corners where a dimension becomes 1")
    tensor = op.tensor(0)
    is_float = tensor is not None and "float" in tensor.dtype
    if is_static or op.attr("mode") in (None, "nearest") or is_float:
        return None
    message = (
        "it resizes symbolic dimensions, and by scales that give no whole sizes, to their nearest elements or floats"
    )
    return reject("SHAPE_DYNAMIC", message, hint=f"{STATIC_INPUTS}, and the sizes as an initializer")


def _check_boxes(op: Op) -> Reject | None:
    """Require boxes of four numbers each, and scores of classes."""
    boxes, scores = _shape(op, 0), _shape(op, 1)
    if len(boxes) == len(scores) == 3 and boxes[2] == 4:
        return None
    return reject("SHAPE_DYNAMIC", f"{op.operand(0)!r} is not known to be boxes of 4 numbers", hint=STATIC_INPUTS)


def _shape(op: Op, index: int) -> _Shape:
    """Return the shape of an operand; () if it is absent."""
    tensor = op.tensor(index)
    return () if tensor is None or tensor.shape is None else tensor.shape


def _is_static(shape: Iterable[Dim]) -> bool:
    return all(isinstance(dim, int) for dim in shape)


def _dim(shape: _Shape, axis: int) -> Dim:
    """Return a dimension; None if a malformed model has none."""
    return shape[axis] if -len(shape) <= axis < len(shape) else None


def _number(op: Op, name: str, default: int) -> int:
    value = op.attr(name)
    return value if isinstance(value, int) else default


def _numbers(op: Op, name: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
    value = op.attr(name)
    return tuple(item for item in value if isinstance(item, int)) if isinstance(value, tuple) else default


def _axis(op: Op, default: int) -> int:
    """Return the attribute `axis`, counted from the front."""
    return _number(op, "axis", default) % max(1, len(_shape(op, 0)))


def _symbolic(op: Op, index: int) -> Reject:
    message = f"operand {index} of {op.kind}, {op.operand(index)!r}, is {op.tensor(index)}, which is not static"
    return reject("SHAPE_DYNAMIC", message, hint=STATIC_INPUTS)


def unknown_fit(op: Op) -> Reject:
    """Reject operands of which it is not known whether they fit together.

    Args:
        op: the operation.

    Returns:
        The reason.
    """
    types = " and ".join(str(op.tensor(index)) for index in range(len(op.call.inputs)))
    message = f"the operands of {op.kind} are {types}, and it is not known whether these fit"
    return reject("SHAPE_DYNAMIC", message, hint="give equal dimensions one name or number")


def _check_broadcast_dims(op: Op, shapes: Sequence[_Shape]) -> Reject | None:
    for axis in range(1, max(map(len, shapes), default=0) + 1):
        dims = [shape[-axis] for shape in shapes if len(shape) >= axis and shape[-axis] != 1]
        if len(set(dims)) > 1 or dims.count(None) > 1:
            return unknown_fit(op)
    return None


def check_nonempty(op: Op, dims: Iterable[Dim]) -> Reject | None:
    """Reject dimensions of unknown size; those that the user named are checked at run time.

    Args:
        op: the operation.
        dims: the dimensions that it runs over.

    Returns:
        None if no dimension is empty, else why the operation is rejected.
    """
    if all(map(_is_never_empty, dims)):
        return None
    message = f"{op.kind} runs over a dimension that may be empty, and it has no result then"
    return reject("SHAPE_DYNAMIC", message, hint="give the dimension a number or a name")


def _is_never_empty(dim: Dim) -> bool:
    """Whether a dimension has elements if those have that the user named."""
    if not isinstance(dim, str):
        return dim is not None
    # ONNX's shape inference names unknown dimensions unk__0, unk__1, ...: such a name is no statement of the user.
    if any(name.startswith("unk__") for name in symbols_of(dim)):
        return False
    least = least_dim(dim, 1)
    return least is not None and least > 0 if symbols_of(dim) != {dim} else True


def _check_bounds(op: Op, indices: np.ndarray[Any, Any], extent: Dim) -> Reject | None:
    if not isinstance(extent, int) or not ((indices < -extent) | (indices >= extent)).any():
        return None
    return reject("RULE", f"{op.operand(1)!r} has indices outside of {extent} elements", hint="correct the model")


_SIGNED = frozenset({"int8", "int16", "int32", "int64"})
_UNSIGNED = frozenset({"uint8", "uint16", "uint32", "uint64"})
_INTEGERS = _SIGNED | _UNSIGNED
_WIDE_INTEGERS = frozenset({"int32", "int64", "uint32", "uint64"})
_FLOATS = frozenset({"float16", "float32", "float64"})
_WIDE_FLOATS = frozenset({"float32", "float64"})
_NARROW_FLOATS = frozenset({"float16", "float32"})
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
_REDUCTION = Rule(dtypes=_FLOATS | _WIDE_INTEGERS, constants=(1,), checks=(_check_reduction,))
_NO_NOOP = {"noop_with_empty_axes": (0,)}
_POOL = Rule(dtypes=_FLOATS, checks=(_check_pool,))

RULES: dict[str, Rule] = {
    # Elementwise, one operand.
    **_each(
        "Atanh Ceil Cos Erf Exp Floor Gelu HardSigmoid HardSwish IsNaN IsInf LeakyRelu Log LogSoftmax Mish", _FLOAT
    ),
    **_each("Reciprocal Round Shrink Sigmoid Sin Softmax Softplus Softsign Sqrt Tan Tanh", _FLOAT),
    **_each("Acos Acosh Asin Asinh Atan Cosh Sinh", _FLOAT),
    **_each("Elu Selu ThresholdedRelu", Rule(dtypes=_NARROW_FLOATS)),
    **_each("Neg Relu", Rule(dtypes=_SIGNED | _FLOATS)),
    **_each("Abs Clip Sign", Rule(dtypes=_NUMBERS)),
    **_each("Cast CastLike Identity", _ANY),
    "BitwiseNot": Rule(dtypes=_INTEGERS),
    "Not": Rule(dtypes=_BOOL),
    "Dropout": Rule(dtypes=_FLOATS, results=1, checks=(_check_dropout,)),
    # Elementwise, several operands.
    **_each(
        "Add Greater GreaterOrEqual Less LessOrEqual Max Min Mul Sub",
        Rule(dtypes=_NUMBERS),
    ),
    "Equal": _ANY,
    **_each("Mean Sum", Rule(dtypes=_FLOATS)),
    **_each("And Or Xor", Rule(dtypes=_BOOL)),
    **_each("BitwiseAnd BitwiseOr BitwiseXor", Rule(dtypes=_INTEGERS)),
    "BitShift": Rule(dtypes=_INTEGERS, constants=(1,), checks=(_check_shift,)),
    "Div": Rule(dtypes=_NUMBERS, checks=(_check_divisor,)),
    "Mod": Rule(dtypes=_NUMBERS, checks=(_check_divisor, _check_remainder)),
    "Pow": Rule(dtypes=_FLOATS | {"int32", "int64"}),
    "PRelu": Rule(dtypes=_FLOATS | _WIDE_INTEGERS, checks=(_check_prelu,)),
    "Where": _ANY,
    # Reductions.
    **_each("ReduceMean", replace(_REDUCTION, dtypes=_FLOATS | {"int64", "uint64"})),
    **_each("ReduceMax ReduceMin", replace(_REDUCTION, dtypes=_FLOATS | _WIDE_INTEGERS | {"int8", "uint8"})),
    **_each("ReduceProd ReduceSum", _REDUCTION),
    **_each("ReduceL1 ReduceSumSquare", replace(_REDUCTION, attrs=_NO_NOOP)),
    **_each("ReduceL2 ReduceLogSum ReduceLogSumExp", replace(_REDUCTION, dtypes=_FLOATS, attrs=_NO_NOOP)),
    **_each("ArgMax ArgMin", Rule(dtypes=_NUMBERS, checks=(_check_reduction,))),
    "CumSum": Rule(dtypes=_FLOATS | _WIDE_INTEGERS, constants=(1,)),
    "Hardmax": Rule(dtypes=_FLOATS, checks=(_check_hardmax,)),
    "TopK": Rule(dtypes=_FLOATS | {"int8", "int32", "int64", "uint8"}, checks=(_check_top_k, _require_static(1))),
    # Products.
    "Einsum": Rule(dtypes=_NUMBERS),
    "Gemm": Rule(dtypes=_FLOATS | _WIDE_INTEGERS, checks=(_check_gemm,)),
    "MatMul": Rule(dtypes=_FLOATS | _WIDE_INTEGERS),
    "MatMulInteger": Rule(dtypes=frozenset({"int8", "uint8"}), checks=(check_matmul,)),
    # Convolution, pooling, normalisation.
    "Conv": Rule(dtypes=_FLOATS, checks=(_check_conv,)),
    "ConvTranspose": Rule(dtypes=_FLOATS, checks=(_require_static(1), _check_conv_transpose)),
    "AveragePool": _POOL,
    "LpPool": replace(_POOL, attrs={"ceil_mode": (0,)}),
    "MaxPool": replace(_POOL, dtypes=_FLOATS | {"int8", "uint8"}),
    "MaxRoiPool": Rule(dtypes=_NARROW_FLOATS),
    "MaxUnpool": Rule(dtypes=_FLOATS, checks=(_require_absent(2), _require_static(0))),
    **_each("GlobalAveragePool GlobalLpPool GlobalMaxPool", _FLOAT),
    "InstanceNormalization": Rule(dtypes=_FLOATS, checks=(_check_channels,)),
    "BatchNormalization": Rule(
        dtypes=_FLOATS,
        attrs={"training_mode": (0,), "spatial": (1,)},
        results=1,
        checks=(_check_batch_norm, _check_channels),
    ),
    "GroupNormalization": Rule(dtypes=_FLOATS, attrs={"stash_type": (1,)}, checks=(_check_group_norm,)),
    "LayerNormalization": Rule(
        dtypes=_NARROW_FLOATS, attrs={"stash_type": (1,)}, results=1, checks=(_check_layer_norm,)
    ),
    "LRN": Rule(dtypes=_NARROW_FLOATS, checks=(_check_lrn,)),
    "MeanVarianceNormalization": Rule(dtypes=_NARROW_FLOATS),
    "RMSNormalization": Rule(dtypes=_FLOATS, checks=(_check_rms_norm,)),
    # Shapes and topology.
    **_each("Flatten Transpose Trilu", _ANY),
    "DepthToSpace": Rule(checks=(_check_channel_count,)),
    "SpaceToDepth": Rule(attrs={"mode": ("DCR",)}, checks=(_check_channel_count,)),
    **_each("Shape Size", _ANY),
    "Concat": Rule(checks=(_check_concat,)),
    "Constant": Rule(
        attrs=dict.fromkeys(
            ("sparse_value", "value_float", "value_floats", "value_int", "value_ints", "value_string", "value_strings"),
            (),
        )
    ),
    "ConstantOfShape": Rule(checks=(_require_rank, _require_static(0))),
    "Expand": Rule(checks=(_require_rank, _require_static(1), _check_expand)),
    "Pad": Rule(constants=(3,), checks=(_check_pad,)),
    "Range": Rule(checks=(_check_range,)),
    "Reshape": Rule(checks=(_require_rank, _require_static(1), _check_reshape)),
    "Slice": Rule(constants=(3, 4), opsets=range(10, 29), checks=(_check_slice,)),
    "Split": Rule(checks=(_require_static(1),)),
    "Squeeze": Rule(constants=(1,), checks=(_check_squeeze,)),
    "Tile": Rule(checks=(_require_static(1),)),
    "Unsqueeze": Rule(constants=(1,)),
    # Choice of elements.
    **_each("Compress Unique", _ANY),
    "NonZero": Rule(checks=(_check_places,)),
    **_each("Gather GatherElements ScatterElements", Rule(checks=(_check_indices,))),
    "NonMaxSuppression": Rule(dtypes=_FLOAT32, checks=(_check_boxes,)),
    **_each("GatherND ScatterND", Rule(checks=(_check_coordinates,))),
    "Scatter": Rule(opsets=range(9, 11), checks=(_check_indices, _require_static(0, 1))),
    # Quantization.
    "DequantizeLinear": Rule(
        dtypes=frozenset({"int8", "int16", "int32", "uint8", "uint16", *FOUR_BITS}), checks=(_check_dequantize,)
    ),
    "DynamicQuantizeLinear": Rule(dtypes=_FLOAT32),
    "QuantizeLinear": Rule(
        dtypes=_NARROW_FLOATS,
        attrs={"block_size": (0,), "precision": (0,)},
        checks=(_check_quantize, _check_scales),
    ),
    # Images.
    "AffineGrid": Rule(dtypes=_NARROW_FLOATS, constants=(1,), checks=(check_grid_of_rows,)),
    "GridSample": Rule(dtypes=_FLOATS, checks=(_check_grid_sample,)),
    "Resize": Rule(
        dtypes=_NUMBERS,
        constants=(1, 2),
        attrs={
            "axes": (),
            "coordinate_transformation_mode": (
                *("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel"),
                OF_TENSORFLOW,
            ),
            "keep_aspect_ratio_policy": ("stretch",),
        },
        opsets=range(11, 29),
        checks=(check_antialias, _check_resize),
    ),
    "RoiAlign": Rule(dtypes=_FLOATS, attrs={"mode": ("avg",)}),
}

_BYTES = frozenset({"int8", "uint8"})


def _check_quantized(*data: int, first: int = 0, step: int = 0) -> Callable[[Op], Reject | None]:
    """Return a check that scales and zero points are constants of float32, and single ones of computed operands.

    Args:
        *data: the operands that are followed by their scale and zero point.
        first: with `step`, the first of any number of such operands.
        step: distance of such operands; 0 if their number is fixed.
    """

    def check(op: Op) -> Reject | None:
        places = (*data, *(range(first, len(op.call.inputs), step) if step else ()))
        for index in range(len(op.call.inputs)):
            is_computed = bool(op.operand(index)) and not op.is_constant(index)
            if is_computed and index not in places:
                message = f"operand {index} of {op.kind}, {op.operand(index)!r}, is computed at run time"
                return reject("NEED_CONST", message, hint="make it an initializer")
            scale = op.tensor(index + 1)
            if index in places and scale is not None and scale.dtype != "float32":
                return reject(
                    "DTYPE", f"it does not support {op.kind} with scales of {scale.dtype}", hint="cast to float32"
                )
            if is_computed and math.prod(dim for dim in _shape(op, index + 1) if isinstance(dim, int)) > 1:
                return reject("RULE", f"it supports one scale of {op.operand(index)!r}, which is computed, not several")
        return None

    return check


def _check_bits(op: Op) -> Reject | None:
    """Require quantized numbers of 8 or 16 bits, or dequantized ones of 32, and scales of float32."""
    dequantizes = op.kind.endswith("DequantizeLinear")
    numbers, scale = op.tensor(0 if dequantizes else 2), op.tensor(1)
    if scale is None or scale.dtype != "float32" or scale.shape is None or len(scale.shape) > 1:
        return reject("DTYPE", f"it supports {op.kind} with one scale of float32, or one for each place along an axis")
    taken = {*_BYTES, "int16", "uint16"} | ({"int32", *FOUR_BITS} if dequantizes else set())
    if numbers is not None and numbers.dtype not in taken:
        return reject("DTYPE", f"it does not support {op.kind} of {numbers.dtype} here")
    return (check_blocks_and_few_bits(op) if dequantizes else None) or _require_rank(op)


def _check_quantized_softmax(op: Op) -> Reject | None:
    """Require the last axis before version 13 of Softmax, where all from the axis on are one."""
    version, rank = op.attr("opset"), len(_shape(op, 0))
    if (isinstance(version, int) and version > 12) or _axis(op, -1) == rank - 1:
        return None
    message = f"it supports {op.kind} with opset={version!r} along the last axis only"
    return reject("ATTR", message, hint="transpose its operand")


def _check_skip_norm(op: Op) -> Reject | None:
    """Require that the results are the normalized values and the sum only, and that broadcasting is known."""
    for output in op.call.outputs[1:3]:
        if output.name and output.name in op.read:
            return reject("RULE", f"it computes no mean and deviation of {op.kind}, but {output.name!r} is read")
    return _check_broadcast_dims(op, [_shape(op, 0), _shape(op, 1)])


def _check_blocks(op: Op) -> Reject | None:
    """Require weights of 2, 4 or 8 bits."""
    zeros = op.tensor(3)
    if op.attr("bits") not in (None, 2, 4, 8) or (
        zeros is not None and zeros.dtype not in ("uint8", "float16", "float32")
    ):
        return reject("ATTR", f"it supports {op.kind} of 2, 4 and 8 bits with zero points of uint8 or floats")
    return None


# The activations of recurrent networks that state none.
ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def _check_recurrent(op: Op) -> Reject | None:
    """Require known sizes of the weights, and activations without parameters."""
    return _check_activations(op) if _is_static(_shape(op, 2)) else _symbolic(op, 2)


def _check_activations(op: Op) -> Reject | None:
    """Require activations without parameters."""
    activations = op.attr("activations")
    named = {str(name) for name in activations} if isinstance(activations, tuple) else set[str]()
    others = sorted(named - {"Relu", "Sigmoid", "Tanh"})
    if others:
        return reject("ATTR", f"it does not support {op.kind} with the activations {', '.join(others)}")
    return None


_LARGEST_TRANSFORM = 1 << 22  # elements of a matrix: 32 MiB of complex values


def _check_transform(op: Op) -> Reject | None:
    """Require one of the operations that are written as products (`backends/fourier_expansion.py`)."""
    shape, length, samples = _shape(op, 0), op.constant(1), transformed_dim(op)
    is_whole = not op.attr("onesided") and not op.operand(1)
    if not _is_static(shape[-1:]) or not (isinstance(samples, int) or is_whole):
        return _symbolic(op, 0)
    if not isinstance(samples, int):
        return None
    is_half, is_inverse = bool(op.attr("onesided")), bool(op.attr("inverse"))
    if is_half and is_inverse != (shape[-1] == 2):
        return reject("ATTR", "it supports one-sided DFT of real values, and of complex ones with inverse=1")
    default = 2 * (samples - 1) if is_half and is_inverse else samples
    return _check_matrix(op, samples, default if length is None else int(length.item()))


def transformed_dim(op: Op) -> Dim:
    """Return the dimension along which a DFT transforms.

    Args:
        op: a DFT.

    Returns:
        The dimension; None if it is not known.
    """
    axis, stated = op.constant(2), _number(op, "axis", 1) if op.opset < 20 else -2
    return _dim(_shape(op, 0), stated if axis is None else int(axis.item()))


def _check_frames(op: Op) -> Reject | None:
    """Require a known length of the frames of a Fourier transform."""
    shape, window, length = _shape(op, 0), op.constant(2), op.constant(3)
    if not _is_static(shape[2:]):
        return _symbolic(op, 0)
    if shape[2:] == (2,) and _number(op, "onesided", 1):
        return reject("ATTR", "it supports one-sided STFT of real values only", hint="set onesided=0")
    if length is None and window is None:
        return reject("NEED_CONST", "STFT has neither a window nor a length of its frames")
    samples = int(length.item()) if length is not None else 0 if window is None else window.size
    return _check_matrix(op, samples, samples)


def _check_matrix(op: Op, samples: int, length: int) -> Reject | None:
    """Require a matrix from samples to frequencies that has elements, and not too many."""
    if 0 < samples * length <= _LARGEST_TRANSFORM:
        return None
    return reject("RULE", f"it multiplies by a matrix of {samples} x {length}, and supports up to {_LARGEST_TRANSFORM}")


_RECURRENT = Rule(
    dtypes=_NARROW_FLOATS,
    constants=(1, 2, 3, 7),
    attrs={"activation_alpha": (), "activation_beta": (), "clip": (), "input_forget": (0,), "layout": (0,)},
    checks=(_check_recurrent,),
)
_SKIP_NORM = Rule(dtypes=_NARROW_FLOATS, checks=(_check_skip_norm,))
_SIMPLE_NORM = Rule(dtypes=_NARROW_FLOATS, attrs={"axis": (-1,)}, results=1)
_GELU = Rule(dtypes=_NARROW_FLOATS)
_QUANTIZED_PAIR = Rule(dtypes=_BYTES, checks=(_check_quantized(0, 3),))
_QUANTIZED_UNARY = Rule(dtypes=_BYTES, checks=(_check_quantized(0),))

# Operators that the importer does not know: the backend writes them as others (`backends/operator_expansion.py`), or
# lowers them itself (`backends/tvm/onnx_import.py`).
EXPANDED: dict[str, Rule] = {
    **_each("Celu Swish", Rule(dtypes=_NARROW_FLOATS)),
    "Col2Im": Rule(dtypes=_FLOATS, constants=(1, 2), checks=(_check_col2im,)),
    "ConvInteger": Rule(dtypes=_BYTES, constants=(1, 3), checks=(_check_conv,)),
    **_each("GRU LSTM RNN", _RECURRENT),
    "DFT": Rule(dtypes=_FLOATS, constants=(1, 2), opsets=range(17, 29), checks=(_check_transform,)),
    "EyeLike": Rule(opsets=range(14, 29)),
    "LpNormalization": Rule(dtypes=_FLOATS, checks=(_require_rank,)),
    "OneHot": Rule(dtypes=_NUMBERS, constants=(1,), checks=(_require_rank,)),
    "ReverseSequence": _ANY,
    "QLinearConv": Rule(dtypes=_BYTES, constants=(3, 8), checks=(_check_quantized(0), _check_conv)),
    "QLinearMatMul": _QUANTIZED_PAIR,
    "STFT": Rule(dtypes=_FLOATS, constants=(1, 2, 3), opsets=range(17, 29), checks=(_check_frames,)),
    **_each("com.microsoft::BiasGelu com.microsoft::FastGelu com.microsoft::Gelu com.microsoft::QuickGelu", _GELU),
    "com.microsoft::CDist": Rule(dtypes=_WIDE_FLOATS, attrs={"metric": ("euclidean", "sqeuclidean")}),
    "com.microsoft::DynamicQuantizeLSTM": replace(
        _RECURRENT,
        dtypes=_FLOAT32,
        constants=(1, 2, 3, 7, 8, 9, 10, 11),
        attrs={name: values for name, values in _RECURRENT.attrs.items() if name != "layout"},
        checks=(_check_activations,),
    ),
    "com.microsoft::DequantizeLinear": Rule(checks=(_check_bits,)),
    "com.microsoft::QuantizeLinear": Rule(dtypes=_FLOAT32, checks=(_check_bits,)),
    "com.microsoft::FusedConv": Rule(
        dtypes=_FLOAT32, attrs={"activation": ("Clip", "LeakyRelu", "Relu", "Sigmoid", "Tanh")}, checks=(_check_conv,)
    ),
    "com.microsoft::FusedMatMul": Rule(dtypes=_FLOATS, attrs={"transBatchA": (0,), "transBatchB": (0,)}),
    "com.microsoft::DynamicQuantizeMatMul": Rule(dtypes=_FLOAT32, constants=(1,), checks=(check_matmul,)),
    "com.microsoft::MatMulIntegerToFloat": Rule(dtypes=_BYTES, constants=(1,), checks=(check_matmul,)),
    "com.microsoft::MatMulNBits": Rule(
        dtypes=_NARROW_FLOATS,
        constants=(1, 2, 3, 4),
        attrs={"weight_prepacked": (0,)},
        checks=(_check_blocks,),
    ),
    "com.microsoft::QGemm": Rule(dtypes=_BYTES, constants=(3,), checks=(_check_quantized(0),)),
    **_each("com.microsoft::QLinearAdd com.microsoft::QLinearMul", _QUANTIZED_PAIR),
    "com.microsoft::QLinearAveragePool": replace(
        _QUANTIZED_UNARY, attrs={"channels_last": (0,)}, checks=(*_QUANTIZED_UNARY.checks, _require_rank, _check_pool)
    ),
    "com.microsoft::QLinearConcat": Rule(dtypes=_BYTES, typed=2, checks=(_check_quantized(first=2, step=3),)),
    "com.microsoft::QLinearGlobalAveragePool": replace(_QUANTIZED_UNARY, attrs={"channels_last": (0,)}),
    **_each("com.microsoft::QLinearLeakyRelu com.microsoft::QLinearSigmoid", _QUANTIZED_UNARY),
    "com.microsoft::QLinearSoftmax": replace(
        _QUANTIZED_UNARY, checks=(*_QUANTIZED_UNARY.checks, _check_quantized_softmax)
    ),
    "SimplifiedLayerNormalization": _SIMPLE_NORM,
    **_each("com.microsoft::SkipLayerNormalization com.microsoft::SkipSimplifiedLayerNormalization", _SKIP_NORM),
    **CLASSICAL,
}

_OTHER_DOMAIN = "its rule for this name is that of an operator of com.microsoft"
_TENSORS_ONLY = "it supports tensors only, no sequences and optionals"
_NO_MAPS = "it supports tensors only, no maps; give it a leaf such as onnxruntime beside this one, or export without it"

# Operators with a converter that cannot be trusted, and why.
UNSUPPORTED: dict[str, str] = {
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
    **{f"ai.onnx.ml::{kind}": _NO_MAPS for kind in ("CastMap", "DictVectorizer", "ZipMap")},
    "Upsample": "its rule is wrong for Upsample; convert the model to operator set 11, where it is Resize",
}
