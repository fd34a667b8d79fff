"""Sizes that must fit together for an operation to be defined, as ONNX states them operator by operator.

ONNX's shape inference reports sizes that contradict each other where they are numbers. With symbolic dimensions only a
run can tell, and not all engines check: some broadcast or read what is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from tvmtarget.errors import ModelError
from tvmtarget.ir.dim_expressions import (
    add_dims,
    divide_dims,
    least_dim,
    multiply_dims,
    product_of_dims,
    size_of,
    subtract_dims,
)
from tvmtarget.ir.function import Call, Function, Value
from tvmtarget.ir.inference import infer_types
from tvmtarget.ir.symbolic_shapes import BROADCASTING, ShapeOperands, integer_of, integers_of, least_sizes
from tvmtarget.ir.types import Dim, TensorType

__all__ = ["Relation", "RunSizes", "SizeRequirement", "size_requirements"]

Shape: TypeAlias = "tuple[int, ...]"
_Found: TypeAlias = "Iterator[tuple[Relation, Sequence[Dim]]]"

_MOST_SIZES = 64  # elements of a constant that holds sizes
_MOST_REMEMBERED = 4096  # combinations of sizes


class Relation(Enum):
    """How the sizes of a requirement relate; the value describes sizes that do not."""

    EQUAL = "should be equal"
    BROADCAST = "should be equal or 1"
    FIRST_OR_ONE = "should be the first or 1"
    AT_LEAST = "should be at least the second"
    MULTIPLE = "should be a multiple of the second"

    def holds(self, sizes: Sequence[int]) -> bool:
        """Test sizes.

        Args:
            sizes: the sizes.

        Returns:
            Whether they relate so.
        """
        first, *others = sizes
        match self:
            case Relation.EQUAL:
                return all(size == first for size in others)
            case Relation.BROADCAST:
                return len({size for size in sizes if size != 1}) <= 1
            case Relation.FIRST_OR_ONE:
                return all(size in (1, first) for size in others)
            case Relation.AT_LEAST:
                return all(first >= size for size in others)
            case Relation.MULTIPLE:
                return all(first % size == 0 if size else first == 0 for size in others)


@dataclass(frozen=True, slots=True)
class SizeRequirement:
    """Sizes that an operation needs.

    Attributes:
        call: the operation.
        relation: how they relate.
        dims: the sizes: numbers and expressions of symbols; None for those that are not known.
    """

    call: Call
    relation: Relation
    dims: tuple[Dim, ...]

    def is_met(self, sizes: Mapping[str, int]) -> bool | None:
        """Return whether it is met.

        Args:
            sizes: numbers by symbol.

        Returns:
            Whether it is; None if that is not known.
        """
        found = [size_of(dim, sizes) for dim in self.dims]
        known = [size for size in found if size is not None]
        return self.relation.holds(known) if len(known) == len(found) else None

    def problem(self, sizes: Mapping[str, int]) -> str:
        """Describe sizes that do not meet it.

        Args:
            sizes: numbers by symbol.

        Returns:
            The operation and the sizes.
        """
        shown = [str(size_of(dim, sizes)) for dim in self.dims]
        operation = f"{self.call.source!r} ({self.call.op.removeprefix('onnx.')})"
        return f"sizes {', '.join(shown[:-1])} and {shown[-1]} do not fit in {operation}: {self.relation.value}"


def size_requirements(function: Function) -> Iterator[SizeRequirement]:
    """Yield what the operations of a function need, and its types do not prove.

    Operations in nested bodies need not run, and are left out.

    Args:
        function: the function.

    Yields:
        The requirements, operation by operation.
    """
    types, constants = function.types, {one.name: one.data for one in function.constants}
    for call in function.body:
        rule = _RULES.get(call.op)
        if rule is None:
            continue

        def tensor(index: int, call: Call = call) -> TensorType | None:
            type_ = types.get(call.inputs[index]) if index < len(call.inputs) else None
            return type_ if isinstance(type_, TensorType) else None

        def sizes(index: int, call: Call = call) -> Sequence[object] | None:
            data = constants.get(call.inputs[index]) if index < len(call.inputs) else None
            return None if data is None or data.ndim > 1 or data.dtype.kind != "i" else data.reshape(-1).tolist()

        for relation, dims in rule(call, ShapeOperands(tensor, sizes)):
            if not _is_proven(relation, dims):
                yield SizeRequirement(call, relation, tuple(dims))


def _is_proven(relation: Relation, dims: Sequence[Dim]) -> bool:
    numbers = [dim for dim in dims if isinstance(dim, int)]
    if len(dims) < 2:
        return True
    if len(numbers) == len(dims):
        return relation.holds(numbers)
    first, *others = dims
    match relation:
        case Relation.EQUAL:
            return len(set(dims)) == 1 and first is not None
        case Relation.BROADCAST:
            others = [dim for dim in dims if dim != 1]
            return len(others) <= 1 or _is_proven(Relation.EQUAL, others)
        case Relation.FIRST_OR_ONE:
            return all(dim == 1 or _is_proven(Relation.EQUAL, (first, dim)) for dim in others)
        case Relation.AT_LEAST:
            bounds = [least_dim(subtract_dims(first, dim), 0) for dim in others]
            return all(bound is not None and bound >= 0 for bound in bounds)
        case Relation.MULTIPLE:
            quotients = [divide_dims(first, dim) for dim in others]
            return all(
                quotient is not None and multiply_dims(quotient, dim) == add_dims(first, 0)
                for quotient, dim in zip(quotients, others, strict=True)
            )


class RunSizes:
    """Checks the sizes of each run of a function; those that fit are remembered.

    Args:
        function: the function. Constants with more elements than there are sizes are not kept.
        infer: returns what an engine's inference says of sizes of the parameters; None if they fit.
    """

    def __init__(self, function: Function, infer: Callable[[Sequence[Shape]], str | None]) -> None:
        is_kept = {one.name: one.data.size <= _MOST_SIZES for one in function.constants}
        large = tuple(Value(one.name, one.type) for one in function.constants if not is_kept[one.name])
        small = tuple(one for one in function.constants if is_kept[one.name])
        self._function = function.replace(params=(*function.params, *large), constants=small)
        self._requirements = tuple(size_requirements(self._function))
        self._infer = infer
        self._fitting: set[tuple[Shape, ...]] = set()

    def problem(self, shapes: Sequence[Shape]) -> str | None:
        """Return why the function cannot run with some sizes.

        Args:
            shapes: sizes of the parameters, in order.

        Returns:
            The reason, None if they fit.
        """
        if not self._requirements or (key := tuple(shapes)) in self._fitting:
            return None
        sizes: dict[str, int] = {}
        for param, shape in zip(self._function.params, shapes, strict=False):
            if isinstance(param.type, TensorType) and param.type.shape is not None:
                sizes |= {dim: size for dim, size in zip(param.type.shape, shape, strict=False) if isinstance(dim, str)}
        verdicts = [one.is_met(sizes) for one in self._requirements]
        problem = None
        if False in verdicts:
            problem = self._confirmed(self._requirements[verdicts.index(False)].problem(sizes), shapes)
        if problem is None and not all(verdicts):
            problem = self._infer(shapes)
        if problem is None:
            if len(self._fitting) >= _MOST_REMEMBERED:
                self._fitting.clear()
            self._fitting.add(key)
        return problem

    def _confirmed(self, problem: str, shapes: Sequence[Shape]) -> str | None:
        """Return a problem unless ONNX's inference finds none, since models state one symbol for sizes that differ."""
        given = [
            replace(param, type=replace(param.type, shape=shape)) if isinstance(param.type, TensorType) else param
            for param, shape in zip(self._function.params, shapes, strict=False)
        ]
        params = (*given, *self._function.params[len(given) :])
        body = tuple(
            replace(call, outputs=tuple(Value(one.name, None) for one in call.outputs)) for call in self._function.body
        )
        try:
            function = infer_types(self._function.replace(params=params, body=body))
        except ModelError:
            return problem
        return next((one.problem({}) for one in size_requirements(function) if one.is_met({}) is False), None)


def _axis(call: Call, shape: Sequence[Dim], default: int = 0) -> int:
    return integer_of(call, "axis", default) % max(1, len(shape))


def _columns(shapes: Sequence[Sequence[Dim]]) -> Iterator[Sequence[Dim]]:
    """Yield the sizes that are broadcast together, from the last dimension on."""
    for at in range(max(map(len, shapes), default=0)):
        yield [shape[-1 - at] for shape in shapes if at < len(shape)]


def _broadcast(call: Call, operands: ShapeOperands) -> _Found:
    shapes = [operands.shape(at) for at in range(len(call.inputs))]
    for column in _columns([shape for shape in shapes if shape is not None]):
        yield Relation.BROADCAST, column


def _expand(_call: Call, operands: ShapeOperands) -> _Found:
    for column in _columns([operands.shape(0) or (), operands.dims(1) or ()]):
        yield Relation.BROADCAST, column


def _fits_first(_call: Call, operands: ShapeOperands) -> _Found:
    """Yield what a second operand needs that is broadcast to the first one."""
    for column in _columns([operands.shape(0) or (), operands.shape(1) or ()]):
        yield Relation.FIRST_OR_ONE, column


def _normalization(call: Call, operands: ShapeOperands) -> _Found:
    shape = operands.shape(0) or ()
    normalized = shape[_axis(call, shape, -1) :]
    for at in range(1, len(call.inputs)):
        for column in _columns([normalized, (operands.shape(at) or ())[-len(normalized) :]]):
            yield Relation.FIRST_OR_ONE, column


def _product(call: Call, operands: ShapeOperands) -> _Found:
    second = 3 if "QLinear" in call.op else 1
    a, b = operands.shape(0), operands.shape(second)
    if not a or not b:
        return
    yield Relation.EQUAL, (a[-1], b[-2:][0])
    for column in _columns([a[:-2], b[:-2]]):
        yield Relation.BROADCAST, column


def _general_product(call: Call, operands: ShapeOperands) -> _Found:
    a, b = operands.shape(0), operands.shape(1)
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        return
    rows, inner = a[::-1] if call.attr("transA") else a
    other, columns = b[::-1] if call.attr("transB") else b
    yield Relation.EQUAL, (inner, other)
    for size, added in zip((columns, rows), (operands.shape(2) or ())[::-1], strict=False):
        yield Relation.FIRST_OR_ONE, (size, added)


def _convolution(call: Call, operands: ShapeOperands) -> _Found:
    weights_at, bias_at = (3, 8) if "QLinear" in call.op else (1, 2)
    x, weights, bias = operands.shape(0), operands.shape(weights_at), operands.shape(bias_at)
    if x is None or weights is None or len(x) != len(weights) or len(x) < 3:
        return
    groups = integer_of(call, "group", 1)
    is_transposed = call.op == "onnx.ConvTranspose"
    channels = weights[0] if is_transposed else multiply_dims(weights[1], groups)
    results = multiply_dims(weights[1], groups) if is_transposed else weights[0]
    yield Relation.EQUAL, (x[1], channels)
    if not is_transposed:
        yield Relation.MULTIPLE, (weights[0], groups)
    if bias is not None and "Integer" not in call.op:
        yield Relation.EQUAL, (results, *bias)
    kernel = integers_of(call, "kernel_shape") or [dim for dim in weights[2:] if isinstance(dim, int)]
    if not is_transposed and len(kernel) == len(x) - 2:
        yield from _windows(call, x, kernel)


def _pooling(call: Call, operands: ShapeOperands) -> _Found:
    x, kernel = operands.shape(0), integers_of(call, "kernel_shape")
    if x is not None and len(kernel) == len(x) - 2:
        yield from _windows(call, x, kernel)


def _windows(call: Call, x: Sequence[Dim], kernel: Sequence[int]) -> _Found:
    if call.attr("auto_pad") not in (None, "NOTSET", "VALID"):
        return
    strides, dilations, pads = (integers_of(call, name) for name in ("strides", "dilations", "pads"))
    least = least_sizes(kernel, strides, dilations, pads, rounds_up=bool(call.attr("ceil_mode")))
    for size, needed in zip(x[2:], least, strict=True):
        if needed > 1:  # a window of 1 has no results where there is no data
            yield Relation.AT_LEAST, (size, needed)


def _parameters_of_channels(call: Call, operands: ShapeOperands) -> _Found:
    x = operands.shape(0)
    if x is not None and len(x) > 1:
        yield Relation.EQUAL, (x[1], *(dim for at in range(1, len(call.inputs)) for dim in operands.shape(at) or ()))


def _recurrence(_call: Call, operands: ShapeOperands) -> _Found:
    x, weights, state = operands.shape(0), operands.shape(1), operands.shape(2)
    if x is None or len(x) != 3:
        return
    if weights is not None and len(weights) == 3:
        yield Relation.EQUAL, (x[2], weights[2])
    lengths, initial = operands.shape(4), [operands.shape(5), operands.shape(6)]
    yield Relation.EQUAL, (x[1], *(lengths or ()), *(one[1] for one in initial if one is not None and len(one) == 3))
    for one in initial:
        if one is not None and state is not None and len(one) == len(state) == 3:
            yield Relation.EQUAL, (one[2], state[2])


def _concat(call: Call, operands: ShapeOperands) -> _Found:
    shapes = [shape for at in range(len(call.inputs)) if (shape := operands.shape(at)) is not None]
    if len({len(shape) for shape in shapes}) != 1:
        return
    axis = _axis(call, shapes[0])
    for at, column in enumerate(zip(*shapes, strict=True)):
        if at != axis:
            yield Relation.EQUAL, column


def _split(call: Call, operands: ShapeOperands) -> _Found:
    shape, parts = operands.shape(0), operands.dims(1) or integers_of(call, "split")
    if shape and parts:
        total = sum(part for part in parts if isinstance(part, int))
        yield Relation.EQUAL, (shape[_axis(call, shape)], total)


def _squeeze(call: Call, operands: ShapeOperands) -> _Found:
    shape = operands.shape(0)
    for axis in operands.dims(1) or integers_of(call, "axes"):
        if shape is not None and isinstance(axis, int) and -len(shape) <= axis < len(shape):
            yield Relation.EQUAL, (shape[axis], 1)


def _reshape(call: Call, operands: ShapeOperands) -> _Found:
    shape, wanted = operands.shape(0), operands.dims(1)
    if shape is None or wanted is None:
        return
    if not call.attr("allowzero"):
        if any(dim == 0 and at >= len(shape) for at, dim in enumerate(wanted)):
            return
        # Dimensions that are kept cancel out, unless one is 0.
        kept = {at for at, dim in enumerate(wanted) if dim == 0}
        shape = tuple(dim for at, dim in enumerate(shape) if at not in kept)
        wanted = [dim for dim in wanted if dim != 0]
    others = product_of_dims(dim for dim in wanted if dim != -1)
    yield Relation.MULTIPLE if -1 in wanted else Relation.EQUAL, (product_of_dims(shape), others)


def _gather_nd(call: Call, operands: ShapeOperands) -> _Found:
    count = integer_of(call, "batch_dims", 0)
    data, indices = operands.shape(0) or (), operands.shape(1) or ()
    for pair in zip(data[:count], indices[:count], strict=False):
        yield Relation.EQUAL, pair


def _elements(call: Call, operands: ShapeOperands) -> _Found:
    data, indices, updates = operands.shape(0), operands.shape(1), operands.shape(2)
    if data is None or indices is None or len(data) != len(indices):
        return
    axis = _axis(call, data)
    for at, pair in enumerate(zip(data, indices, strict=True)):
        if at != axis:
            yield Relation.AT_LEAST, pair
    if updates is not None:
        for pair in zip(indices, updates, strict=False):
            yield Relation.EQUAL, pair


def _scatter_nd(_call: Call, operands: ShapeOperands) -> _Found:
    data, indices, updates = (operands.shape(at) for at in range(3))
    if not data or not indices or updates is None or not isinstance(indices[-1], int):
        return
    for pair in zip((*indices[:-1], *data[indices[-1] :]), updates, strict=False):
        yield Relation.EQUAL, pair


def _grid_sample(_call: Call, operands: ShapeOperands) -> _Found:
    data, grid = operands.shape(0), operands.shape(1)
    if data and grid:
        yield Relation.EQUAL, (data[0], grid[0])
        yield Relation.EQUAL, (len(data) - 2, grid[-1])


def _einsum(call: Call, operands: ShapeOperands) -> _Found:
    equation = call.attr("equation")
    terms = str(equation).replace(" ", "").partition("->")[0].split(",")
    shapes = [operands.shape(at) for at in range(len(call.inputs))]
    sizes: dict[str, list[Dim]] = {}
    for term, shape in zip(terms, shapes, strict=False):
        if shape is not None and len(term) == len(shape) and "." not in term:
            for subscript, dim in zip(term, shape, strict=True):
                sizes.setdefault(subscript, []).append(dim)
    for dims in sizes.values():
        yield Relation.BROADCAST, dims


def _scales(call: Call, operands: ShapeOperands) -> _Found:
    x, scale, zeros = (operands.shape(at) for at in range(3))
    if x is None or scale is None or len(scale) != 1 or not x or call.attr("block_size"):
        return
    if scale[0] != 1:
        yield Relation.EQUAL, (x[_axis(call, x, 1)], *scale, *(zeros or ()))


def _top(call: Call, operands: ShapeOperands) -> _Found:
    shape, counts = operands.shape(0), operands.dims(1)
    if shape and counts:
        yield Relation.AT_LEAST, (shape[_axis(call, shape, -1)], counts[0])


def _lengths(call: Call, operands: ShapeOperands) -> _Found:
    shape, lengths = operands.shape(0), operands.shape(1)
    axis = integer_of(call, "batch_axis", 1)
    if shape is not None and lengths and axis < len(shape):
        yield Relation.EQUAL, (shape[axis], *lengths)


def _blocks(call: Call, operands: ShapeOperands) -> _Found:
    shape, size = operands.shape(0), integer_of(call, "blocksize", 1)
    if shape is not None and len(shape) == 4:
        if call.op == "onnx.DepthToSpace":
            yield Relation.MULTIPLE, (shape[1], size * size)
        else:
            yield Relation.MULTIPLE, (shape[2], size)
            yield Relation.MULTIPLE, (shape[3], size)


def _regions(_call: Call, operands: ShapeOperands) -> _Found:
    regions, batches = operands.shape(1), operands.shape(2)
    if regions and batches:
        yield Relation.EQUAL, (regions[0], batches[0])
    if regions and len(regions) == 2:
        yield Relation.EQUAL, (regions[1], 4)


def _pad(call: Call, operands: ShapeOperands) -> _Found:
    shape, pads = operands.shape(0), operands.dims(1) or integers_of(call, "pads")
    axes = operands.dims(3) if len(call.inputs) > 3 and call.inputs[3] else list(range(len(shape or ())))
    if shape is None or axes is None or len(pads) != 2 * len(axes):
        return
    for axis, begin, end in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        if isinstance(axis, int) and isinstance(begin, int) and isinstance(end, int):
            is_reflected = call.attr("mode") == "reflect" and max(begin, end) > 0
            needed = max(begin, end) + 1 if is_reflected else -begin - end
            if needed > 0:
                yield Relation.AT_LEAST, (shape[axis], needed)


def _not_stated(_call: Call, _operands: ShapeOperands) -> _Found:
    yield Relation.EQUAL, (None, None)


_RULES: dict[str, Callable[[Call, ShapeOperands], _Found]] = {
    **{f"onnx.{kind}": _broadcast for kind in BROADCASTING},
    **dict.fromkeys(("onnx.BatchNormalization", "onnx.InstanceNormalization"), _parameters_of_channels),
    **dict.fromkeys(("onnx.Conv", "onnx.ConvInteger", "onnx.ConvTranspose", "onnx.QLinearConv"), _convolution),
    **dict.fromkeys(("onnx.DepthToSpace", "onnx.SpaceToDepth"), _blocks),
    **dict.fromkeys(("onnx.DequantizeLinear", "onnx.QuantizeLinear"), _scales),
    **dict.fromkeys(("onnx.GRU", "onnx.LSTM", "onnx.RNN"), _recurrence),
    **dict.fromkeys(("onnx.AveragePool", "onnx.LpPool", "onnx.MaxPool"), _pooling),
    **dict.fromkeys(("onnx.GatherElements", "onnx.ScatterElements"), _elements),
    **dict.fromkeys(("onnx.LayerNormalization", "onnx.RMSNormalization"), _normalization),
    **dict.fromkeys(("onnx.MatMul", "onnx.MatMulInteger", "onnx.QLinearMatMul"), _product),
    **dict.fromkeys(("onnx.Col2Im", "onnx.DeformConv", "onnx.MaxUnpool"), _not_stated),
    "onnx.Concat": _concat,
    "onnx.Einsum": _einsum,
    "onnx.Expand": _expand,
    "onnx.GatherND": _gather_nd,
    "onnx.Gemm": _general_product,
    "onnx.GridSample": _grid_sample,
    "onnx.PRelu": _fits_first,
    "onnx.Pad": _pad,
    "onnx.Reshape": _reshape,
    "onnx.ReverseSequence": _lengths,
    "onnx.RoiAlign": _regions,
    "onnx.ScatterND": _scatter_nd,
    "onnx.Split": _split,
    "onnx.Squeeze": _squeeze,
    "onnx.TopK": _top,
}
