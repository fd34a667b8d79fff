"""Axes, permutations, pads and sizes of ONNX operators that do not fit the shapes of their operands.

The rules are those of ONNX's operator documentation. Engines do not check all of them: some read or write other
elements, or fail without naming the operation. Only what is known before a run is checked: attributes, constants, and
dimensions that are numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tvmtarget.human_units import counted
from tvmtarget.ir.function import Call
from tvmtarget.ir.symbolic_shapes import integer_of, integers_of
from tvmtarget.ir.types import Dim

__all__ = ["CHECKED_OPS", "READ_OPERANDS", "argument_problems"]

READ_OPERANDS = 5  # the first operands of an operation, of which shapes and elements are read

_MOST = 64  # elements of a constant that holds axes or sizes


@dataclass(frozen=True, slots=True)
class _Arguments:
    """An operation with the shapes and elements of its operands, as far as they are known."""

    call: Call
    version: int
    shapes: Mapping[str, tuple[Dim, ...]]
    constants: Mapping[str, np.ndarray]

    @property
    def kind(self) -> str:
        return self.call.op.removeprefix("onnx.")

    @property
    def data(self) -> str:
        return self.call.inputs[0]

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.shapes[self.data]

    def has(self, name: str) -> bool:
        return self.call.attr(name) is not None

    def shape_of(self, place: int) -> tuple[Dim, ...] | None:
        return self.shapes.get(self.call.inputs[place]) if len(self.call.inputs) > place else None

    def operand(self, place: int) -> list[int] | None:
        """Return the elements of a constant operand of integers; None if they are not known."""
        found = self.constants.get(self.call.inputs[place]) if len(self.call.inputs) > place else None
        if found is None or found.dtype.kind not in "iu" or found.size > _MOST:
            return None
        return [int(one) for one in found.reshape(-1)]

    def integers(self, name: str, place: int) -> list[int] | None:
        """Return a list of integers that is an attribute in older versions of an operator, and an operand since."""
        return integers_of(self.call, name) if self.has(name) else self.operand(place)


_Problems = Iterator[str]


def _axes(given: _Arguments, axes: Sequence[int], more: int = 0, *, once: bool = False) -> _Problems:
    """Check axes of the first operand; `more` counts dimensions that the operation adds."""
    rank = len(given.shape)
    if not rank and not more:
        return  # exporters of PyTorch write 0 and -1 for scalars, as PyTorch allows
    least, most = -rank - more, rank + more - 1
    for axis in axes:
        if not least <= axis <= most:
            adds = f" and {given.kind} adds {more}" if more else ""
            has = counted(rank, "dimension")
            yield f"has axis {axis}, but {given.data!r} has {has}{adds}: axes are {least} to {most}"
            return
    if once and len({axis % (rank + more) for axis in axes}) < len(axes):
        yield f"has axes {axes}, of which one is repeated"


def _axis(given: _Arguments) -> _Problems:
    if given.has("axis"):
        yield from _axes(given, [integer_of(given.call, "axis", 0)])


def _axis_of_softmax(given: _Arguments) -> _Problems:
    # Before version 11, it may also be behind the last dimension, as for Flatten.
    if given.version >= 11:
        yield from _axis(given)


def _axis_of_scales(given: _Arguments) -> _Problems:
    match given.shape_of(1):
        case (int() as count,) if count > 1:  # otherwise, one scale is that of all elements
            yield from _axis(given)


def _axis_of_flatten(given: _Arguments) -> _Problems:
    # It may be behind the last dimension.
    if given.has("axis") and integer_of(given.call, "axis", 0) != len(given.shape):
        yield from _axis(given)


def _axis_of_onehot(given: _Arguments) -> _Problems:
    yield from _axes(given, [integer_of(given.call, "axis", -1)], 1)


def _axis_of_cumsum(given: _Arguments) -> _Problems:
    yield from _axes(given, given.operand(1) or ())


def _reduced_axes(given: _Arguments) -> _Problems:
    yield from _axes(given, given.integers("axes", 1) or ())


def _squeezed_axes(given: _Arguments) -> _Problems:
    axes, shape = given.integers("axes", 1) or (), given.shape
    problems = list(_axes(given, axes))
    yield from problems
    for axis in axes if shape and not problems else ():
        if isinstance(size := shape[axis], int) and size != 1:
            yield f"removes axis {axis} of {given.data!r}, whose size is {size}, not 1"
            return


def _unsqueezed_axes(given: _Arguments) -> _Problems:
    axes = given.integers("axes", 1) or ()
    yield from _axes(given, axes, len(axes), once=True)


def _slices(given: _Arguments) -> _Problems:
    yield from _axes(given, given.integers("axes", 3) or (), once=True)
    lists = {
        "starts": given.integers("starts", 1),
        "ends": given.integers("ends", 2),
        "axes": given.integers("axes", 3),
    }
    lengths = {name: len(one) for name, one in lists.items() if one is not None}
    if len(set(lengths.values())) > 1:
        yield f"has lists of different lengths: {', '.join(f'{length} {name}' for name, length in lengths.items())}"
    if 0 in (given.operand(4) or ()):
        yield "has a step of 0"


def _permutation(given: _Arguments) -> _Problems:
    permutation = integers_of(given.call, "perm")
    if given.has("perm") and sorted(permutation) != list(range(len(given.shape))):
        yield f"has perm {permutation}, which is no order of {counted(len(given.shape), 'dimension')}"


def _parts(given: _Arguments) -> _Problems:
    problems = [*_axis(given)]
    yield from problems
    parts, axis = given.integers("split", 1), integer_of(given.call, "axis", 0)
    if problems or parts is None or not -len(given.shape) <= axis < len(given.shape):
        return
    size = given.shape[axis]
    if min(parts, default=0) < 0 or (isinstance(size, int) and sum(parts) != size):
        yield f"has parts of {parts} elements, but {given.data!r} has {size} along axis {axis}"


def _pads(given: _Arguments) -> _Problems:
    axes = given.operand(3)
    yield from _axes(given, axes or (), once=True)
    if len(given.call.inputs) > 3 and given.call.inputs[3] and axes is None:
        return
    pads, count = given.integers("pads", 1), len(given.shape) if axes is None else len(axes)
    if pads is not None and len(pads) != 2 * count:
        yield f"has {len(pads)} pads; give two for each of {counted(count, 'dimension')}"


def _window(given: _Arguments) -> _Problems:
    call, rank = given.call, len(given.shape) - 2
    if rank < 1:
        return
    is_explicit = call.attr("auto_pad") in (None, "NOTSET")
    for name, count, least in (("kernel_shape", rank, 1), ("strides", rank, 1), ("dilations", rank, 1),
                               ("pads", 2 * rank, 0)):  # fmt: skip
        values = integers_of(call, name)
        if not given.has(name) or (name == "pads" and not is_explicit):
            continue
        if len(values) != count or min(values) < least:
            behind = f"as {given.data!r} has {counted(rank, 'dimension')} behind batch and channels"
            yield f"has {name} {values}; give {counted(count, 'number')} of at least {least}, {behind}"
    weights = given.shape_of(3 if given.kind == "QLinearConv" else 1) if "Conv" in given.kind else None
    kernel = integers_of(call, "kernel_shape")
    if weights is not None and kernel and all(isinstance(one, int) for one in weights) and (*kernel,) != weights[2:]:
        yield f"has kernel_shape {kernel}, but weights of shape {list(weights)}"


def _largest(given: _Arguments) -> _Problems:
    problems = [*_axis(given)]
    yield from problems
    count, axis = given.operand(1), integer_of(given.call, "axis", -1)
    if problems or not count or not -len(given.shape) <= axis < len(given.shape):
        return
    size = given.shape[axis]
    if count[0] < 0 or (isinstance(size, int) and count[0] > size):
        yield f"returns {count[0]} elements along axis {axis} of {given.data!r}, which has {size}"


def _repeats(given: _Arguments) -> _Problems:
    repeats, rank = given.operand(1), len(given.shape)
    if repeats is not None and given.version >= 6 and (len(repeats) != rank or min(repeats, default=0) < 0):
        yield f"has repeats {repeats}; give a count for each of {counted(rank, 'dimension')}"


def _matrices(given: _Arguments) -> _Problems:
    if len(given.shape) < 2:
        yield f"takes matrices, but {given.data!r} has {counted(len(given.shape), 'dimension')}"


def _blocks(given: _Arguments) -> _Problems:
    size, shape = integer_of(given.call, "blocksize", 1), given.shape
    if size < 1:
        yield f"has blocks of size {size}"
    elif len(shape) == 4:
        is_deep = given.kind == "DepthToSpace"
        for axis in (1,) if is_deep else (2, 3):
            found, needed = shape[axis], size * size if is_deep else size
            if isinstance(found, int) and found % needed:
                yield f"needs a multiple of {needed} along axis {axis} of {given.data!r}, not {found}"


_REDUCTIONS = tuple(
    f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
)
_OF_ONE_AXIS = (
    *("ArgMax", "ArgMin", "Compress", "Concat", "Gather", "GatherElements", "LayerNormalization", "LpNormalization"),
    *("ScatterElements", "SplitToSequence", "Unique"),
)
_RULES: Mapping[str, Callable[[_Arguments], _Problems]] = {
    **dict.fromkeys(_OF_ONE_AXIS, _axis),
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), _axis_of_softmax),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _blocks),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), _axis_of_scales),
    **dict.fromkeys((*_REDUCTIONS, "MeanVarianceNormalization"), _reduced_axes),
    **dict.fromkeys(
        ("AveragePool", "Conv", "ConvInteger", "ConvTranspose", "LpPool", "MaxPool", "QLinearConv"), _window
    ),
    "CumSum": _axis_of_cumsum,
    "Flatten": _axis_of_flatten,
    "OneHot": _axis_of_onehot,
    "Pad": _pads,
    "Slice": _slices,
    "Split": _parts,
    "Squeeze": _squeezed_axes,
    "Tile": _repeats,
    "TopK": _largest,
    "Transpose": _permutation,
    "Trilu": _matrices,
    "Unsqueeze": _unsqueezed_axes,
}

CHECKED_OPS: Collection[str] = frozenset(f"onnx.{kind}" for kind in _RULES)


def argument_problems(
    call: Call, version: int, shapes: Mapping[str, tuple[Dim, ...]], constants: Mapping[str, np.ndarray]
) -> Iterator[str]:
    """Yield why the arguments of an operation do not fit the shape of its first operand.

    Args:
        call: an operation of `CHECKED_OPS`.
        version: the version of ONNX's operators.
        shapes: known shapes by value.
        constants: elements by value, of constants.

    Yields:
        A verb phrase, such as `has axis 5, but 'x' has 2 dimensions: axes are -2 to 1`.
    """
    if call.inputs and call.inputs[0] in shapes:
        yield from _RULES[call.op.removeprefix("onnx.")](_Arguments(call, version, shapes, constants))
