"""Result shapes with symbolic dimensions that ONNX's shape inference leaves open, as expressions of the operands'.

ONNX's own inference keeps symbols that pass through an operator, and makes unknown dimensions of sums, products and
quotients. These rules compute them, as onnxruntime.tools.symbolic_shape_infer does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tvmtarget.ir.dim_expressions import (
    add_dims,
    divide_dims,
    least_dim,
    min_dims,
    multiply_dims,
    product_of_dims,
    subtract_dims,
)
from tvmtarget.ir.function import Call
from tvmtarget.ir.types import Dim, TensorType

__all__ = [
    "BROADCASTING",
    "SLICE_END",
    "ShapeOperands",
    "begins_within",
    "integer_of",
    "integers_of",
    "least_sizes",
    "symbolic_shape",
    "window_count",
]

_Shape: TypeAlias = "tuple[Dim, ...]"
_Sizes: TypeAlias = "list[Dim]"

# Operators of ONNX whose operands are broadcast to one shape (its document Broadcasting.md), other than PRelu, which
# broadcasts one of them.
BROADCASTING = frozenset(
    {
        *("Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater"),
        *("GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum"),
        *("Where", "Xor"),
    }
)

SLICE_END = (1 << 31) - 1  # from here on, exporters mean the end of a dimension


@dataclass(frozen=True)
class ShapeOperands:
    """What is known of the operands of one operation.

    Attributes:
        tensor: returns the type of an operand by its position; None if it is absent or not known.
        sizes: returns the elements of an operand that holds sizes; None if they are not known.
        unclamped: is filled with the sizes of slices whose bounds may exceed the operand: the size that the slice has
            if they do not, by the actual size.
    """

    tensor: Callable[[int], TensorType | None]
    sizes: Callable[[int], Sequence[object] | None]
    unclamped: dict[str, Dim] = field(default_factory=dict)

    def shape(self, index: int) -> _Shape | None:
        """Return the dimensions of an operand.

        Args:
            index: its position.

        Returns:
            Its dimensions, None if their number is not known.
        """
        tensor = self.tensor(index)
        return None if tensor is None else tensor.shape

    def dims(self, index: int) -> _Sizes | None:
        """Return sizes as dimensions.

        Args:
            index: the position of an operand that holds sizes.

        Returns:
            Numbers, expressions, and None for what is not known; None if nothing is known.
        """
        sizes = self.sizes(index)
        return None if sizes is None else [size if isinstance(size, int | str) else None for size in sizes]


def symbolic_shape(call: Call, operands: ShapeOperands) -> _Shape | None:
    """Return the shape of the first result of an operation.

    Args:
        call: the operation.
        operands: what is known of its operands.

    Returns:
        The dimensions, None for those that are not known; None for operators without a rule.
    """
    rule = _RULES.get(call.op)
    return None if rule is None else rule(call, operands)


def least_sizes(
    kernel: Sequence[int],
    strides: Sequence[int] = (),
    dilations: Sequence[int] = (),
    pads: Sequence[int] = (),
    *,
    rounds_up: bool = False,
) -> list[int]:
    """Return how many elements a window needs, by dimension, for a result with elements.

    Args:
        kernel: extents of the window.
        strides: its steps; ones if empty.
        dilations: distances of its elements; ones if empty.
        pads: what is padded at the begin of each dimension, then at their ends; zeros if empty.
        rounds_up: whether the last window may begin in the data and end beyond (`ceil_mode`).

    Returns:
        At least 1 for each dimension.
    """
    rank = len(kernel)
    strides, dilations, pads = strides or [1] * rank, dilations or [1] * rank, pads or [0] * (2 * rank)
    beyond = [stride - 1 if rounds_up else 0 for stride in strides]
    extents = [(kernel[at] - 1) * dilations[at] + 1 for at in range(rank)]
    return [max(1, extents[at] - pads[at] - pads[at + rank] - beyond[at]) for at in range(rank)]


def begins_within(
    kernel: Sequence[int], strides: Sequence[int] = (), dilations: Sequence[int] = (), pads: Sequence[int] = ()
) -> bool:
    """Return whether no window begins in padding at the ends, where sizes are rounded up.

    This holds for images of all sizes. Engines differ in whether such windows have a result.

    Args:
        kernel: extents of the window.
        strides: its steps; ones if empty.
        dilations: distances of its elements; ones if empty.
        pads: what is padded at the begin of each dimension, then at their ends; zeros if empty.

    Returns:
        Whether none does.
    """
    rank = len(kernel)
    strides, dilations, pads = strides or [1] * rank, dilations or [1] * rank, pads or [0] * (2 * rank)
    extents = [(kernel[at] - 1) * dilations[at] + 1 for at in range(rank)]
    return all(strides[at] + pads[at + rank] <= extents[at] for at in range(rank))


def window_count(size: Dim, kernel: Dim, stride: int, dilation: int, padding: int) -> Dim:
    """Return how many windows fit in a dimension of a convolution or pooling that rounds down.

    Args:
        size: the size of the dimension.
        kernel: the extent of the window.
        stride: its step.
        dilation: the distance of its elements.
        padding: what is padded at both ends together.

    Returns:
        The count, None if it is not known.
    """
    extent = add_dims(multiply_dims(subtract_dims(kernel, 1), dilation), 1)
    return add_dims(divide_dims(subtract_dims(add_dims(size, padding), extent), stride), 1)


def integers_of(call: Call, name: str, default: Sequence[int] = ()) -> list[int]:
    """Read an attribute that is a list of integers.

    Args:
        call: the operation.
        name: the attribute.
        default: what an absent one means.

    Returns:
        The integers.
    """
    value = call.attr(name)
    return [one for one in value if isinstance(one, int)] if isinstance(value, tuple) else list(default)


def integer_of(call: Call, name: str, default: int) -> int:
    """Read an attribute that is an integer.

    Args:
        call: the operation.
        name: the attribute.
        default: what an absent one means.

    Returns:
        The integer.
    """
    value = call.attr(name)
    return value if isinstance(value, int) else default


def _reshape(call: Call, operands: ShapeOperands) -> _Shape | None:
    shape, wanted = operands.shape(0), operands.dims(1)
    if wanted is None:
        return None
    if call.attr("allowzero"):
        return tuple(None if dim == -1 else dim for dim in wanted)
    known = [*(shape or ()), *[None] * len(wanted)]
    dims = [known[at] if dim == 0 else dim for at, dim in enumerate(wanted)]
    if -1 in dims and shape is not None:
        # Dimensions that stay cancel out, so that sums among them need not be divided.
        rest, divisors = [*shape], []
        for dim in dims:
            if dim in rest and dim is not None:
                rest.remove(dim)
            elif dim != -1:
                divisors.append(dim)
        total, others = product_of_dims(rest), product_of_dims(divisors)
        inferred = None if others == 0 else divide_dims(total, others)
        # A quotient with a remainder is no size.
        if inferred is None or multiply_dims(inferred, others) != add_dims(total, 0):
            inferred = None
        dims[dims.index(-1)] = inferred
    return tuple(None if dim == -1 else dim for dim in dims)


def _expand(_call: Call, operands: ShapeOperands) -> _Shape | None:
    shape, wanted = operands.shape(0), operands.dims(1)
    if shape is None or wanted is None:
        return None
    rank = max(len(shape), len(wanted))
    pairs = zip((1,) * (rank - len(shape)) + shape, [1] * (rank - len(wanted)) + wanted, strict=True)
    return tuple(_broadcast(old, new) for old, new in pairs)


def _broadcast(old: Dim, new: Dim) -> Dim:
    if new == 1 or old == new:
        return old
    if old == 1:
        return new
    # The other one is equal, or 1.
    return next((dim for dim in (old, new) if isinstance(dim, int)), None)


def _constant_of_shape(_call: Call, operands: ShapeOperands) -> _Shape | None:
    dims = operands.dims(0)
    return None if dims is None else tuple(dims)


def _range(_call: Call, operands: ShapeOperands) -> _Shape | None:
    start, limit, step = (dims[0] if (dims := operands.dims(index)) and len(dims) == 1 else None for index in range(3))
    distance = subtract_dims(limit, start)
    bound = least_dim(distance, 0)
    if not isinstance(step, int) or step < 1 or bound is None or bound < 0:
        return None
    return (divide_dims(add_dims(distance, step - 1), step),)


def _concat(call: Call, operands: ShapeOperands) -> _Shape | None:
    shapes = [operands.shape(index) for index in range(len(call.inputs))]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or len({len(shape) for shape in known}) != 1:
        return None
    axis = integer_of(call, "axis", 0) % max(1, len(known[0]))
    dims = [next((dim for dim in column if isinstance(dim, int)), column[0]) for column in zip(*known, strict=True)]
    total: Dim = 0
    for shape in known:
        total = add_dims(total, shape[axis])
    dims[axis] = total
    return tuple(dims)


def _slice(call: Call, operands: ShapeOperands) -> _Shape | None:
    shape, starts, ends = operands.shape(0), operands.dims(1), operands.dims(2)
    if shape is None or starts is None or ends is None:
        return None
    axes = operands.dims(3) if len(call.inputs) > 3 and call.inputs[3] else list(range(len(starts)))
    steps = operands.dims(4) if len(call.inputs) > 4 and call.inputs[4] else [1] * len(starts)
    if axes is None or steps is None or not len(starts) == len(ends) == len(axes) == len(steps):
        return None
    dims = list(shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if not isinstance(axis, int) or not -len(dims) <= axis < len(dims):
            return None
        if step == 1:
            dims[axis] = _slice_size(shape[axis], start, end, operands)
        elif not (step == -1 and start == -1 and isinstance(end, int) and end <= -SLICE_END):  # PyTorch's `flip`
            dims[axis] = None
    return tuple(dims)


def _slice_size(dim: Dim, start: Dim, end: Dim, operands: ShapeOperands) -> Dim:
    """Return the size of a slice with step 1."""
    first, last = _bound(dim, start), _bound(dim, end)
    size = subtract_dims(last, first)
    plain = subtract_dims(end, start) if _sign(start) == _sign(end) == 1 else None
    bound, least = least_dim(size, 0), least_dim(plain, 0)
    is_sure = (bound is not None and bound >= 0) or (least is not None and least >= 0)
    if isinstance(start, int) and isinstance(end, int) and not is_sure:
        # Backward bounds, or a start beyond one symbol: the size is never less than 0 if the bounds are ordered so.
        is_sure = (start >= 0 and end >= SLICE_END) or (start < 0 and (end >= SLICE_END or start <= end < 0))
        is_sure |= start == 0 and end < 0
    if not is_sure:
        return None
    if (
        isinstance(size, str)
        and plain is not None
        and size != plain
        and not (isinstance(end, int) and end >= SLICE_END)
    ):
        operands.unclamped[size] = plain
    return size


def _bound(dim: Dim, bound: Dim) -> Dim:
    """Return a bound of a slice within a dimension."""
    if isinstance(bound, int) and bound >= SLICE_END:
        return dim
    if _sign(bound) == 1:
        return min_dims(bound, dim)
    return subtract_dims(dim, min_dims(subtract_dims(0, bound), dim)) if _sign(bound) == -1 else None


def _sign(bound: Dim) -> int:
    """Return 1 for a bound from the start, -1 for one from the end, and 0 if that is not known."""
    forward, backward = least_dim(bound, 0), least_dim(subtract_dims(0, bound), 1)
    return 1 if forward is not None and forward >= 0 else -1 if backward is not None and backward >= 1 else 0


def _pad(call: Call, operands: ShapeOperands) -> _Shape | None:
    shape, pads = operands.shape(0), operands.dims(1)
    if shape is None or pads is None:
        return None
    axes = operands.dims(3) if len(call.inputs) > 3 and call.inputs[3] else list(range(len(shape)))
    if axes is None or len(pads) != 2 * len(axes):
        return None
    dims = list(shape)
    for at, axis in enumerate(axes):
        if not isinstance(axis, int) or not -len(dims) <= axis < len(dims):
            return None
        dims[axis] = add_dims(shape[axis], add_dims(pads[at], pads[at + len(axes)]))
    return tuple(dims)


def _tile(_call: Call, operands: ShapeOperands) -> _Shape | None:
    shape, repeats = operands.shape(0), operands.dims(1)
    if shape is None or repeats is None or len(shape) != len(repeats):
        return None
    return tuple(multiply_dims(dim, times) for dim, times in zip(shape, repeats, strict=True))


def _flatten(call: Call, operands: ShapeOperands) -> _Shape | None:
    shape = operands.shape(0)
    if shape is None:
        return None
    axis = integer_of(call, "axis", 1)
    axis += len(shape) if axis < 0 else 0
    return (product_of_dims(shape[:axis]), product_of_dims(shape[axis:]))


def _window(call: Call, operands: ShapeOperands) -> _Shape | None:
    """Return the shape of a convolution or pooling that rounds down, or up with automatic padding."""
    at = 3 if call.op == "onnx.QLinearConv" else 1
    shape, weights = operands.shape(0), operands.shape(at) if "Conv" in call.op else None
    if shape is None or call.attr("auto_pad") == "VALID" or call.attr("ceil_mode"):
        return None
    rank = len(shape) - 2
    kernel: list[Dim] = list(integers_of(call, "kernel_shape")) or list(weights[2:] if weights else ())
    strides, dilations = integers_of(call, "strides", [1] * rank), integers_of(call, "dilations", [1] * rank)
    pads = integers_of(call, "pads", [0] * (2 * rank))
    if not len(kernel) == len(strides) == len(dilations) == rank or len(pads) != 2 * rank:
        return None
    dims: list[Dim] = [shape[0], weights[0] if weights else shape[1]]
    if call.attr("auto_pad") in ("SAME_LOWER", "SAME_UPPER"):
        each = zip(shape[2:], strides, strict=False)
        return (*dims, *(divide_dims(add_dims(size, stride - 1), stride) for size, stride in each))
    for at in range(rank):
        padding = pads[at] + pads[at + rank]
        dims.append(window_count(shape[2 + at], kernel[at], strides[at], dilations[at], padding))
    return tuple(dims)


def _transposed_window(call: Call, operands: ShapeOperands) -> _Shape | None:
    shape, weights = operands.shape(0), operands.shape(1)
    if shape is None or weights is None or call.attr("auto_pad") not in (None, "NOTSET") or call.attr("output_shape"):
        return None
    rank = len(shape) - 2
    strides, dilations = integers_of(call, "strides", [1] * rank), integers_of(call, "dilations", [1] * rank)
    pads, added = integers_of(call, "pads", [0] * (2 * rank)), integers_of(call, "output_padding", [0] * rank)
    if not len(strides) == len(dilations) == len(added) == len(weights) - 2 == rank or len(pads) != 2 * rank:
        return None
    dims: list[Dim] = [shape[0], multiply_dims(weights[1], integer_of(call, "group", 1))]
    for at in range(rank):
        extent = add_dims(multiply_dims(subtract_dims(weights[2 + at], 1), dilations[at]), 1)
        moved = multiply_dims(subtract_dims(shape[2 + at], 1), strides[at])
        dims.append(subtract_dims(add_dims(moved, add_dims(extent, added[at])), pads[at] + pads[at + rank]))
    return tuple(dims)


def _resize(call: Call, operands: ShapeOperands) -> _Shape | None:
    sizes = operands.dims(3) if len(call.inputs) > 3 and call.inputs[3] else None
    is_plain = call.attr("keep_aspect_ratio_policy") in (None, "stretch") and call.attr("axes") is None
    return tuple(sizes) if sizes is not None and is_plain else None


_RULES: dict[str, Callable[[Call, ShapeOperands], _Shape | None]] = {
    **dict.fromkeys(("onnx.AveragePool", "onnx.Conv", "onnx.LpPool", "onnx.MaxPool"), _window),
    **dict.fromkeys(("onnx.ConvInteger", "onnx.QLinearConv", "onnx.com.microsoft::FusedConv"), _window),
    "onnx.Concat": _concat,
    "onnx.ConstantOfShape": _constant_of_shape,
    "onnx.ConvTranspose": _transposed_window,
    "onnx.Expand": _expand,
    "onnx.Flatten": _flatten,
    "onnx.Pad": _pad,
    "onnx.Range": _range,
    "onnx.Reshape": _reshape,
    "onnx.Resize": _resize,
    "onnx.Slice": _slice,
    "onnx.Tile": _tile,
}
