"""Arithmetic operations and memory traffic of an ONNX operation, computed from the types of its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from tvmtarget.ir.types import DTYPES, TensorType, Type
from tvmtarget.support.strategy import Op

__all__ = ["FORMS", "Unknown", "Work", "form_of", "nbytes_of", "work_of"]

Hints = Mapping[str, int]

# Cap on sizes and counts: dimensions may be absurdly large, and times must remain finite floats.
LARGEST = 10**36


@dataclass(frozen=True, slots=True)
class Work:
    """Arithmetic operations on one element type, and bytes read and written.

    `is_contraction` marks sums of products, which tensor units compute; all other operations are bound by memory.
    A convolution of one group computes the same sums at all `positions`, the elements of a channel of its result.
    """

    flops: int
    dtype: str
    nbytes: int
    is_contraction: bool = False
    positions: int = 1

    @property
    def size(self) -> int:
        """Size for the lookup of efficiencies: of sums of products their operations, else the bytes.

        Of a convolution of one group it is the operations at one position, in proportion to its weights: what code
        reaches depends on the channels, and layers of a network often have equal numbers of operations altogether.
        """
        return self.flops // self.positions if self.is_contraction else self.nbytes


@dataclass(frozen=True, slots=True)
class Unknown:
    """The reason why a number is not known."""

    reason: str

    def __str__(self) -> str:
        return self.reason


def _hint(type_: Type, hints: Hints) -> str:
    """Return advice that lists the symbolic dimensions of a value without an assumed size."""
    dims = (type_.shape or ()) if isinstance(type_, TensorType) else ()
    unsized = list(dict.fromkeys(dim for dim in dims if isinstance(dim, str) and dim not in hints))
    return f" (give symbolic_hints, --assume-dim, for {', '.join(map(repr, unsized))})" if unsized else ""


def work_of(op: Op, hints: Hints) -> Work | Unknown:
    """Count the arithmetic operations and the memory traffic of an operation.

    Args:
        op: the operation.
        hints: sizes to assume for symbolic dimensions.

    Returns:
        The work, or why it is unknown.
    """
    if op.call.regions or op.kind in _UNCOUNTED or "::" in op.kind:
        return Unknown(f"no formula says what {op.kind} computes")
    inputs = [_shape(type_, hints) for type_ in op.inputs]
    result = _shape(op.outputs[0], hints) if op.outputs else None
    touched = [(name, type_) for name, type_ in zip(op.call.inputs, op.inputs, strict=True) if name]
    written = [output for index, output in enumerate(op.call.outputs) if not index or op.is_read(index)]
    touched += [(output.name, output.type) for output in written if output.name]
    sizes = {name: nbytes_of(type_, hints) for name, type_ in touched}
    unsized = next((name for name, size in sizes.items() if size is None), None)
    if unsized is not None or result is None:
        type_ = dict(touched)[unsized] if unsized is not None else op.outputs[0] if op.outputs else None
        return Unknown(f"the size of {unsized or 'its result'!r} is not known{_hint(type_, hints)}")
    to_write = sum(sizes[output.name] or 0 for output in written if output.name)
    to_read = to_write if op.kind in _GATHERING else sum(sizes[name] or 0 for name in set(op.call.inputs) if name)
    dtype = next((type_.dtype for type_ in (*op.inputs, *op.outputs) if isinstance(type_, TensorType)), "float32")
    shapes = [shape or () for shape in inputs]
    weights, count = _CONTRACTIONS.get(op.kind, (0, None))
    # Products of dimensions may exceed what floats represent exactly; they are capped, not rounded.
    if count is not None:
        if len(shapes) <= weights or not shapes[0]:
            return Unknown(f"{op.kind} lacks an operand")
        flops = min(count(op, shapes, result), LARGEST)
        is_dense = op.kind in _CONVOLUTIONS and op.attr("group") in (None, 1)
        positions = max(1, min(prod((*result[:1], *result[2:])), flops)) if is_dense else 1
        return Work(flops, dtype, to_read + to_write, is_contraction=True, positions=positions)
    return Work(min(_plain(op, shapes, result), LARGEST), dtype, to_read + to_write)


def form_of(op: Op) -> str | None:
    """Classify a convolution.

    Args:
        op: any operation.

    Returns:
        One of `FORMS`; None for other operators, and where shapes are not known.
    """
    shapes = [type_.shape if isinstance(type_, TensorType) else None for type_ in op.inputs[:2]]
    if op.kind != "Conv" or len(shapes) < 2 or shapes[0] is None or shapes[1] is None or len(shapes[0]) < 3:
        return None
    channels, (filters, own, *kernel) = shapes[0][1], shapes[1]
    if None in (channels, filters, own) or isinstance(channels, str):
        return None
    if own != channels:
        return "depthwise" if own == 1 else "grouped"
    if isinstance(own, int) and own < SHALLOW:
        return "shallow"
    if all(size == 1 for size in kernel):
        return "pointwise"
    strides = op.attr("strides")
    return "strided" if isinstance(strides, tuple) and any(stride != 1 for stride in strides) else "window"


def nbytes_of(type_: Type, hints: Hints) -> int | None:
    """Return the size of a value.

    Args:
        type_: its type.
        hints: sizes to assume for symbolic dimensions.

    Returns:
        Bytes, at most `LARGEST`; None if a dimension is unknown or elements have no fixed size.
    """
    shape = _shape(type_, hints)
    if shape is None or not isinstance(type_, TensorType) or not DTYPES[type_.dtype][1]:
        return None
    return min((prod(shape) * DTYPES[type_.dtype][1] + 7) // 8, LARGEST)


def _shape(type_: Type, hints: Hints) -> tuple[int, ...] | None:
    if not isinstance(type_, TensorType) or type_.shape is None:
        return None
    sizes = [dim if isinstance(dim, int) else hints.get(dim or "") for dim in type_.shape]
    return tuple(size for size in sizes if size is not None) if None not in sizes else None


# Forms of convolutions for which code generators have different kernels: one channel per filter, a group of channels
# per filter, fewer channels than `SHALLOW` (images), kernels of one element, windows at a stride, where Winograd's
# algorithm does not apply, and all others.
FORMS = ("depthwise", "grouped", "shallow", "pointwise", "strided", "window")
SHALLOW = 8

Shape = tuple[int, ...]
_Count = Callable[[Op, list[Shape], Shape], int]


def _convolution(weights: int) -> _Count:
    """Count 2 operations per output element and element of one filter; weights are (M, C / groups, kernel...)."""
    return lambda op, inputs, output: 2 * prod(output) * prod(inputs[weights][1:])


def _transposed(op: Op, inputs: list[Shape], output: Shape) -> int:
    """Count 2 operations per input element and element of one filter; weights are (C, M / groups, kernel...)."""
    return 2 * prod(inputs[0]) * prod(inputs[1][1:])


def _product(op: Op, inputs: list[Shape], output: Shape) -> int:
    """Count 2 operations per output element and element of the axis that is summed."""
    left = inputs[0]
    summed = left[0] if op.attr("transA") == 1 else left[-1]
    return 2 * prod(output) * summed


# Sums of products: the operand that holds the weights, and the function that counts operations.
_CONTRACTIONS: Mapping[str, tuple[int, _Count | None]] = {
    "Conv": (1, _convolution(1)),
    "ConvInteger": (1, _convolution(1)),
    "QLinearConv": (3, _convolution(3)),
    "ConvTranspose": (1, _transposed),
    "Gemm": (1, _product),
    "MatMul": (1, _product),
    "MatMulInteger": (1, _product),
    "QLinearMatMul": (3, _product),
}

_CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "QLinearConv"})

# Operators without a formula: their work depends on values, or on subtle attributes.
_UNCOUNTED = frozenset(
    {
        "Attention",
        "DeformConv",
        "DFT",
        "Einsum",
        "FlexAttention",
        "GRU",
        "LSTM",
        "NonMaxSuppression",
        "NonZero",
        "RNN",
        "RotaryEmbedding",
        "STFT",
        "Unique",
        "ImageDecoder",
        "LinearAttention",
    }
)

# Operators that read as much of their first operand as they write, not all of it.
_GATHERING = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "Shape", "Size", "ConstantOfShape", "Range"})

# Operations for each element of the result, where it is not one: counted from the operators' definitions.
_PER_ELEMENT = {
    "Softmax": 5,
    "LogSoftmax": 6,
    "LayerNormalization": 8,
    "BatchNormalization": 4,
    "Gelu": 8,
    "HardSwish": 5,
}

# Operators that only move or reinterpret elements.
_MOVING = frozenset(
    {
        "Cast",
        "CastLike",
        "Concat",
        "ConstantOfShape",
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "Pad",
        "Reshape",
        "Shape",
        "Size",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    }
)


def _plain(op: Op, inputs: list[Shape], output: Shape) -> int:
    if op.kind in _MOVING:
        return 0
    if op.kind in ("MaxPool", "AveragePool", "LpPool"):
        kernel = op.attr("kernel_shape")
        sizes = kernel if isinstance(kernel, tuple) else ()
        return prod(output) * prod(size for size in sizes if isinstance(size, int))
    if op.kind.startswith(("Reduce", "Arg", "Global")):
        return prod(inputs[0]) if inputs else 0
    if op.kind == "LRN":
        size = op.attr("size")
        return 2 * prod(output) * (size if isinstance(size, int) else 1)
    return _PER_ELEMENT.get(op.kind, 1) * prod(output)
