"""Questions about operations that decide whether Apache TVM compiles them right; `tvm_rules` says which is asked where.

Each answers None, or why the operation is refused: because the importer or compiler raises, because the result would
be wrong without a word, or because the process would be killed, as seen with apache-tvm 0.27. The ranks of operands
are known by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.ir.types import Dim, TensorType
from tvmtarget.support.strategy import Op, Reject, reject

Shape: TypeAlias = tuple[Dim, ...]

_GIVE_NUMBERS = "give the inputs static shapes"


def something_of_something(op: Op) -> Reject | None:
    """Refuse to make something of nothing: a loop that runs zero times leaves its result as the memory was."""
    is_empty = any(isinstance(type_, TensorType) and 0 in (type_.shape or ()) for type_ in op.outputs)
    if is_empty or op.kind in ("CastLike", "Concat"):
        return None
    for index, name in enumerate(op.call.inputs):
        if 0 in _shape(op, index) and not op.is_constant(index):
            return reject("RULE", f"{name!r} is empty and the result of {op.kind} is not; it would not be written")
    return None


def static(*indices: int) -> Callable[[Op], Reject | None]:
    """Ask that all dimensions of some operands are numbers."""

    def check(op: Op) -> Reject | None:
        return next((_open(op, index) for index in indices if not _is_static(_shape(op, index))), None)

    return check


def blocks(op: Op) -> Reject | None:
    """Ask for known sizes but of the batch: with symbols in quotients it takes minutes to compile."""
    return None if _is_static(_shape(op, 0)[1:]) else _open(op, 0)


def absent(index: int) -> Callable[[Op], Reject | None]:
    """Ask that an optional operand is not given."""

    def check(op: Op) -> Reject | None:
        given = op.operand(index)
        return (
            reject("RULE", f"it takes no {op.kind} with operand {index}, {given!r}", hint="omit it") if given else None
        )

    return check


def broadcast(op: Op) -> Reject | None:
    """Ask that it is known which dimensions of the operands are stretched."""
    return _stretched(op, [_shape(op, index) for index in range(len(op.call.inputs))])


def prelu(op: Op) -> Reject | None:
    """Ask for a slope of known size, and for data of known size but for the first of several dimensions."""
    shape = _shape(op, 0)
    return static(1)(op) or broadcast(op) or (None if _is_static(shape[len(shape) > 1 :]) else _open(op, 0))


def matmul(op: Op) -> Reject | None:
    """Ask that the inner dimension is not empty, and that it is known which outer dimensions are stretched."""
    first, second = _shape(op, 0), _shape(op, 1)
    return _maybe_empty(op, first[-1:]) or _stretched(op, [first[:-2], second[:-2]])


def einsum(op: Op) -> Reject | None:
    """Ask that no dimension is empty, as any may be summed over."""
    return _maybe_empty(op, [dim for index in range(len(op.call.inputs)) for dim in _shape(op, index)])


def gemm(op: Op) -> Reject | None:
    """Ask the same as of a product; factors of an integer product must be 1, as others are rounded."""
    first, result = _shape(op, 0), op.outputs[0]
    tensor = op.tensor(0)
    if tensor is not None and "int" in tensor.dtype and {op.attr("alpha"), op.attr("beta")} - {None, 1.0}:
        return reject("ATTR", "it rounds alpha and beta of an integer Gemm", hint="scale in an operation of its own")
    inner = _dim(first, 0 if op.attr("transA") else 1)
    shape = result.shape if isinstance(result, TensorType) else None
    return _maybe_empty(op, [inner]) or _stretched(op, [shape or (), _shape(op, 2)])


def concat(op: Op) -> Reject | None:
    """Ask that all dimensions but that of the axis are known to be equal."""
    axis = _axis(op, 0)
    shapes = [_shape(op, index) for index in range(len(op.call.inputs))]
    others = zip(*(shape[:axis] + shape[axis + 1 :] for shape in shapes), strict=False)
    is_open = any(len(set(dims)) > 1 or dims.count(None) > 1 for dims in others)
    return _undecided(op) if is_open else None


def divisor(op: Op) -> Reject | None:
    """Refuse to divide integers by what may be 0 or -1: the first kills the process, the second can overflow."""
    tensor, by = op.tensor(1), op.constant(1)
    if tensor is None or "int" not in tensor.dtype:
        return None
    if by is None:
        message = f"the divisor {op.operand(1)!r} of an integer {op.kind} may be 0, which kills the process"
        return reject("NEED_CONST", message, hint="divide by an initializer")
    if np.isin(by, (0, -1)).any():
        return reject(
            "RULE", f"the divisor {op.operand(1)!r} of an integer {op.kind} has 0 or -1, which kills the process"
        )
    return None


def shift(op: Op) -> Reject | None:
    """Ask for shifts from 0 to the width: the machine takes others modulo the width."""
    by = op.constant(1)
    if by is None or ((by >= 0) & (by < by.dtype.itemsize * 8)).all():
        return None
    return reject("RULE", f"it shifts by less than the width, and {op.operand(1)!r} is from {by.min()} to {by.max()}")


def same_types(op: Op) -> Reject | None:
    """Ask that all operands have one element type."""
    types = {tensor.dtype for index in range(len(op.call.inputs)) if (tensor := op.tensor(index)) is not None}
    if len(types) < 2:
        return None
    return reject("DTYPE", f"it takes no {op.kind} of {' and '.join(sorted(types))}", hint="cast to one type")


def reduced(op: Op) -> Reject | None:
    """Ask that what is reduced is not empty."""
    shape, axes = _shape(op, 0), op.constant(1)
    if op.kind in ("ArgMax", "ArgMin"):
        return _maybe_empty(op, [_dim(shape, _axis(op, 0))])
    listed = _numbers(op, "axes") if axes is None else tuple(map(int, axes))
    if not listed and op.attr("noop_with_empty_axes"):
        return None
    return _maybe_empty(op, [_dim(shape, axis) for axis in listed] if listed else shape)


def index_in_range(op: Op) -> Reject | None:
    """Refuse constant indices outside of the axis: they would read or write elsewhere in memory."""
    indices, shape = op.constant(1), _shape(op, 0)
    return None if indices is None else _outside(op, indices, _dim(shape, _axis(op, 0)))


def coordinates_in_range(op: Op) -> Reject | None:
    """Refuse constant coordinates outside of the tensor: they would read or write elsewhere in memory."""
    indices, shape, places = op.constant(1), _shape(op, 0), _shape(op, 1)
    if not _is_static(places[-1:]):
        return _open(op, 1)
    if op.kind == "ScatterND" and _shape(op, 2) != places[:-1] + shape[int(str(places[-1])) :]:
        return _undecided(op)
    if indices is None:
        return None
    extents = shape[_number(op, "batch_dims", 0) :]
    columns = np.moveaxis(indices, -1, 0)
    found = (_outside(op, column, extent) for column, extent in zip(columns, extents, strict=False))
    return next((refusal for refusal in found if refusal is not None), None)


def reshape(op: Op) -> Reject | None:
    """Refuse to work out a dimension of an empty tensor."""
    wanted = op.constant(1)
    if wanted is not None and -1 in wanted and 0 in _shape(op, 0):
        return reject("RULE", "it works out no dimension (-1) of an empty tensor", hint="write the number")
    return None


def filled(op: Op) -> Reject | None:
    """Refuse to fill a scalar: the value is a vector, of one element."""
    shape = op.constant(0)
    if shape is not None and not shape.size:
        return reject("RULE", "it makes no scalar by ConstantOfShape", hint="use Constant")
    return None


def expand(op: Op) -> Reject | None:
    """Ask for a static operand and a target without empty dimensions."""
    wanted = op.constant(1)
    if wanted is not None and 0 in wanted:
        return reject("RULE", "it expands nothing to an empty tensor")
    return static(0)(op)


def cut(op: Op) -> Reject | None:
    """Refuse slices that may be empty, and those that run backwards from before the first element."""
    result, shape = op.outputs[0], _shape(op, 0)
    if isinstance(result, TensorType) and 0 in (result.shape or ()) and 0 not in shape:
        return reject("RULE", f"it makes no empty tensors, and Slice makes {result}")
    starts, ends, axes, steps = (op.constant(index) for index in (1, 2, 3, 4))
    if starts is None or ends is None:
        return None
    axes = np.arange(len(starts)) if axes is None else axes
    steps = np.ones_like(starts) if steps is None else steps
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=False):
        dim = _dim(shape, int(axis))
        if isinstance(dim, int) and step < 0 and start < -dim:
            return reject("RULE", f"it slices backwards from {start} wrongly", hint="start at -1")
        if not isinstance(dim, int) and not _is_ordered(start, end, step):
            return reject("SHAPE_DYNAMIC", f"it fails where [{start}:{end}:{step}] of {dim or '?'} elements is empty")
    return None


def _is_ordered(start: int, end: int, step: int) -> bool:
    """Whether a slice of any number of elements starts before it ends."""
    to_the_end = end >= np.iinfo("int32").max
    same_side = (start < 0) == (end < 0) and start <= end
    return step > 0 and (start == 0 or same_side or to_the_end)


def pad(op: Op) -> Reject | None:
    """Refuse to wrap around what is cut off."""
    pads = op.constant(1)
    if op.attr("mode") == "wrap" and pads is not None and (pads < 0).any():
        return reject("ATTR", "it takes no Pad with mode='wrap' and negative pads", hint="slice before")
    return None


def squeeze(op: Op) -> Reject | None:
    """Ask that what is squeezed is known to be 1."""
    shape, axes = _shape(op, 0), op.constant(1)
    listed = _numbers(op, "axes") if axes is None else tuple(map(int, axes))
    return None if _is_static(_dim(shape, axis) for axis in listed or range(len(shape))) else _open(op, 0)


def split(op: Op) -> Reject | None:
    """Refuse empty parts; without sizes, ask for a static axis."""
    sizes, shape = op.constant(1), _shape(op, 0)
    listed = _numbers(op, "split") if sizes is None else tuple(map(int, sizes))
    if 0 in listed:
        return reject("RULE", f"it makes no empty parts, and those of Split are {listed}")
    return None if listed or isinstance(_dim(shape, _axis(op, 0)), int) else _open(op, 0)


def hardmax(op: Op) -> Reject | None:
    """Ask for a static axis; before version 13 all from the axis on count as one."""
    shape, axis = _shape(op, 0), _axis(op, 1 if op.opset < 13 else -1)
    concerned = shape[axis:] if op.opset < 13 else shape[axis : axis + 1]
    return None if _is_static(concerned) else _open(op, 0)


def top_k(op: Op) -> Reject | None:
    """Refuse version 10, of which the importer takes k to be an attribute still."""
    return reject("RULE", "it takes no TopK of operator set 10", hint="convert to 11") if op.opset == 10 else None


def dropout(op: Op) -> Reject | None:
    """Refuse training."""
    training = op.constant(2)
    if not op.operand(2) or (training is not None and not training.any()):
        return None
    return reject("RULE", "it takes no Dropout in training", hint="export the model for inference")


def conv(op: Op) -> Reject | None:
    """Ask for static spatial dimensions where it pads by itself."""
    pads = op.attr("auto_pad") in ("SAME_UPPER", "SAME_LOWER")
    return _open(op, 0) if pads and not _is_static(_shape(op, 0)[2:]) else None


def conv_transpose(op: Op) -> Reject | None:
    """Ask for a known number of channels where there are groups of them."""
    return _open(op, 0) if op.attr("group") not in (None, 1) and not _is_static(_shape(op, 0)[1:2]) else None


def channels(op: Op) -> Reject | None:
    """Ask for one scale for each channel."""
    return _undecided(op) if _shape(op, 0)[1:2] != _shape(op, 1)[:1] else None


def scales(op: Op) -> Reject | None:
    """Ask for one scale, or one for each element of the axis."""
    scale = _shape(op, 1)
    return _undecided(op) if len(scale) == 1 and scale[0] not in (1, _dim(_shape(op, 0), _axis(op, 1))) else None


def batch_norm(op: Op) -> Reject | None:
    """Ask for one element type; only float16 data may have float32 parameters."""
    data, scale, bias, mean, variance = (tensor.dtype if (tensor := op.tensor(i)) else "" for i in range(5))
    is_mixed = data == "float16" and {scale, mean} <= {"float16", "float32"}
    if scale == bias and mean == variance and (data == scale == mean or is_mixed):
        return None
    return reject("DTYPE", f"it takes no BatchNormalization of {data} with {scale} and {mean}", hint="cast to float32")


def layer_norm(op: Op) -> Reject | None:
    """Ask that scale and bias have exactly the shape that is normalised."""
    normalised = _shape(op, 0)[_axis(op, -1) :]
    for index in (1, 2):
        if op.operand(index) and _shape(op, index) != normalised:
            message = f"operand {index} of {op.kind}, {op.tensor(index)}, is not of the shape that is normalised"
            return reject("RULE", message, hint="expand it")
    return None if _is_static(normalised) else _open(op, 0)


def rms_norm(op: Op) -> Reject | None:
    """Refuse to normalise the whole tensor."""
    if _axis(op, -1) == 0:
        return reject("ATTR", "it takes no RMSNormalization over all dimensions (axis 0)", hint="add a leading 1")
    return layer_norm(op)


def group_norm(op: Op) -> Reject | None:
    """Ask for a known number of channels; before version 21, for float32."""
    tensor, shape = op.tensor(0), _shape(op, 0)
    if op.opset < 21 and tensor is not None and tensor.dtype != "float32":
        return reject(
            "DTYPE", f"it takes no {op.kind} of {tensor.dtype} before operator set 21", hint="cast to float32"
        )
    return None if _is_static(shape[1:2]) else _open(op, 0)


def lrn(op: Op) -> Reject | None:
    """Ask for an odd window, and at most two spatial dimensions."""
    if _number(op, "size", 1) % 2 == 0 or len(_shape(op, 0)) not in (3, 4):
        return reject("ATTR", f"it takes LRN of an odd size, on 3 or 4 dimensions, not size {op.attr('size')!r}")
    return None


def pool(op: Op) -> Reject | None:
    """Ask of automatic padding that the importer's formula is ONNX's."""
    mode, shape = op.attr("auto_pad"), _shape(op, 0)[2:]
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        return None
    if not _is_static(shape):
        return _open(op, 0)
    ones = (1,) * len(shape)
    kernel, strides, dilations = (_numbers(op, name, ones) for name in ("kernel_shape", "strides", "dilations"))
    sizes = [dim for dim in shape if isinstance(dim, int)]
    # The importer's formulas pad by less than nothing where windows do not meet, and that of MaxPool rounds down below.
    meets = all(width >= stride for width, stride in zip(kernel, strides, strict=False))
    divides = all(size % stride == 0 for size, stride in zip(sizes, strides, strict=False))
    if dilations == ones and meets and (op.kind != "MaxPool" or divides or mode == "SAME_UPPER"):
        return None
    return reject("ATTR", f"it pads {op.kind} wrongly with auto_pad={mode!r} here", hint="write pads")


def quantize(op: Op) -> Reject | None:
    """Refuse 16-bit results of float16, which cannot hold their bounds."""
    tensor, result = op.tensor(0), op.outputs[0]
    if tensor is None or tensor.dtype != "float16" or not isinstance(result, TensorType) or "16" not in result.dtype:
        return None
    return reject("DTYPE", f"it quantizes no float16 to {result.dtype}", hint="cast to float32")


def roi_align(op: Op) -> Reject | None:
    """Refuse to shift by half a pixel and scale: the importer shifts before it scales."""
    mode = op.attr("coordinate_transformation_mode") or ("half_pixel" if op.opset >= 16 else "output_half_pixel")
    if mode == "half_pixel" and op.attr("spatial_scale") not in (None, 1.0):
        return reject("ATTR", "it scales RoiAlign of half_pixel coordinates wrongly", hint="scale the subgraphs before")
    return None


def grid_sample(op: Op) -> Reject | None:
    """Ask for two spatial dimensions, or three without cubic interpolation."""
    rank = len(_shape(op, 0))
    if rank == 4 or (rank == 5 and op.attr("mode") not in ("cubic", "bicubic")):
        return None
    return reject("RANK", f"it takes no GridSample with mode={op.attr('mode')!r} on {rank} dimensions")


def resize(op: Op) -> Reject | None:
    """Ask for one to three static spatial dimensions, and scales that give whole sizes.

    The compiler takes the ratio of sizes for the scale; ONNX takes the scale that is given.
    """
    shape, scales, sizes = _shape(op, 0), op.constant(2), op.constant(3)
    if len(shape) not in (3, 4, 5):
        return reject("RANK", f"it resizes 3 to 5 dimensions, not {len(shape)}")
    if not _is_static(shape):
        return _open(op, 0)
    before = np.array(shape, "float64")
    after = before * scales.astype("float64") if scales is not None and scales.size else sizes
    if after is None or len(after) != len(before) or (after[:2] != before[:2]).any() or (after % 1).any():
        return reject("RULE", "it resizes spatial dimensions only, all of them, to whole sizes", hint="give sizes")
    if op.attr("coordinate_transformation_mode") == "align_corners" and 1 in after[2:]:
        return reject("RULE", "it aligns no corners where a dimension becomes 1")
    return None


def _shape(op: Op, index: int) -> Shape:
    """Return the shape of an operand; () where it is absent."""
    tensor = op.tensor(index)
    return () if tensor is None or tensor.shape is None else tensor.shape


def _is_static(shape: Iterable[Dim]) -> bool:
    return all(isinstance(dim, int) for dim in shape)


def _dim(shape: Shape, axis: int) -> Dim:
    """Return a dimension; None where the model is wrong and there is none."""
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


def _open(op: Op, index: int) -> Reject:
    message = f"operand {index} of {op.kind}, {op.operand(index)!r}, is {op.tensor(index)}, which is open"
    return reject("SHAPE_DYNAMIC", message, hint=_GIVE_NUMBERS)


def _undecided(op: Op) -> Reject:
    types = " and ".join(str(op.tensor(index)) for index in range(len(op.call.inputs)))
    message = f"the operands of {op.kind} are {types}, of which it is open whether they fit"
    return reject("SHAPE_DYNAMIC", message, hint="give equal dimensions one name or number")


def _stretched(op: Op, shapes: Sequence[Shape]) -> Reject | None:
    for axis in range(1, max(map(len, shapes), default=0) + 1):
        dims = [shape[-axis] for shape in shapes if len(shape) >= axis and shape[-axis] != 1]
        if len(set(dims)) > 1 or dims.count(None) > 1:
            return _undecided(op)
    return None


def _maybe_empty(op: Op, dims: Iterable[Dim]) -> Reject | None:
    """Refuse to sum over dimensions of unknown size; those that the user named are checked when the program runs."""
    if not any(dim is None or (isinstance(dim, str) and dim.startswith("unk__")) for dim in dims):
        return None
    message = f"{op.kind} runs over a dimension that may be empty, and its result would not be written then"
    return reject("SHAPE_DYNAMIC", message, hint="give the dimension a number or a name")


def _outside(op: Op, indices: np.ndarray[Any, Any], extent: Dim) -> Reject | None:
    if not isinstance(extent, int) or not ((indices < -extent) | (indices >= extent)).any():
        return None
    return reject("RULE", f"{op.operand(1)!r} has indices outside of {extent} elements", hint="correct the model")
