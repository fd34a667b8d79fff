"""Operands that fit together, which only a run can tell of symbolic dimensions.

What TVM compiles trusts the shapes of its operands, and would read other memory. Where it is not known that dimensions
are equal, a check that runs with the program (`match_cast`) requires it; where one may be 1, it is repeated.

TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, TypeAlias

from onnx import ModelProto, NodeProto

from tvmtarget.backends.tvm.symbolic_sizes import Shapes, SymbolicSizes
from tvmtarget.ir.symbolic_shapes import BROADCASTING, least_sizes

__all__ = ["FittingOperands"]

Builder: TypeAlias = Any
Expr: TypeAlias = Any  # of Relax
Size: TypeAlias = Any  # an integer expression of TIR, or a bool that is known

# What is checked is what these read, so that they stay next to a product of integers, which is computed without them.
_ELEMENTWISE = frozenset({"relax.astype", "relax.dequantize", "relax.subtract"})
_WINDOWS = frozenset({"AveragePool", "Conv", "LpPool", "MaxPool"})
# The operand whose shape says how many columns or channels the first one has.
_WEIGHTED = {
    **dict.fromkeys(("BatchNormalization", "Conv", "ConvInteger", "ConvTranspose", "Gemm", "InstanceNormalization"), 1),
    **dict.fromkeys(("GRU", "LSTM", "MatMul", "MatMulInteger", "RNN"), 1),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul"), 3),
}


class FittingOperands(SymbolicSizes):
    """Sizes, and checks of operands when the program runs."""

    def __init__(self, model: ModelProto, shapes: Shapes, dtypes: Mapping[str, int]) -> None:
        super().__init__(model, shapes, dtypes)
        # Dimensions that two of operands make together, with those two, and all that they are made of.
        self._joined: list[tuple[Size, tuple[Size, Size], list[Size]]] = []

    def fit(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> None:
        """Replace the operands of a node by those that fit together, or fail when the program runs.

        Args:
            builder: TVM's builder of Relax functions.
            node: the node.
            inputs: its operands, which are replaced in place.
        """
        if node.op_type in _WINDOWS:
            inputs[0] = self._wide_enough(builder, node, inputs)
        if node.op_type == "MatMul" or node.op_type in BROADCASTING:
            inputs[:] = self._broadcast(builder, inputs, 2 * (node.op_type == "MatMul"))
        if node.op_type in _WEIGHTED:
            self._require_inner_size(builder, node, inputs)
        check = _CHECKS.get(node.op_type)
        if check is not None:
            check(self, builder, node, inputs)

    def _wide_enough(self, builder: Builder, node: NodeProto, inputs: Sequence[Expr]) -> Expr:
        """Return the data of a convolution or pooling, after a check that the window fits into it.

        The partitioner relies on results with elements.
        """
        data = inputs[0]
        if self.attribute(node, "auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
            return data
        kernel = self.attribute(node, "kernel_shape", None) or [
            self.value(size) or 1 for size in self.shape(inputs[1])[2:]
        ]
        strides, dilations, pads = (self.attribute(node, name, ()) for name in ("strides", "dilations", "pads"))
        rounds_up = bool(self.attribute(node, "ceil_mode", 0))
        least = least_sizes(kernel, strides, dilations, pads, rounds_up=rounds_up)
        return self._at_least(builder, data, dict(enumerate(least, 2)))

    def _at_least(self, builder: Builder, data: Expr, least: Mapping[int, int]) -> Expr:
        """Return a tensor after a check that it has some numbers of elements at least, by axis."""
        shape = self.shape(data)
        wanted = [
            size if at not in least or self.is_proven(size >= least[at]) else self._tvm.tirx.max(size, least[at])
            for at, size in enumerate(shape)
        ]
        if all(new is old for new, old in zip(wanted, shape, strict=True)):
            return data
        relax = self._tvm.relax
        made = builder.lookup_binding(data) if isinstance(data, relax.Var) else data
        is_elementwise = isinstance(made, relax.Call) and getattr(made.op, "name", "") in _ELEMENTWISE
        if is_elementwise and not any(one.ty.ndim for one in made.args[1:]):
            checked = self._at_least(builder, made.args[0], least)
            return builder.normalize(relax.Call(made.op, [checked, *made.args[1:]], made.attrs, made.ty_args))
        return builder.match_cast(data, relax.TensorType(wanted, data.ty.dtype))

    def _broadcast(self, builder: Builder, inputs: Sequence[Expr], inner: int) -> list[Expr]:
        """Return operands whose dimensions, but the last `inner`, are equal or 1 for all sizes.

        Where only a run can tell whether a dimension is broadcast, it is made as long as that of the other operands,
        after a check that it is as long or 1.
        """
        if len(inputs) < 2 or not all(isinstance(value.ty, self._tvm.relax.TensorType) for value in inputs):
            return list(inputs)
        shapes = [self.shape(value) for value in inputs]
        outer = [shape[: max(0, len(shape) - inner)] for shape in shapes]
        rank = max(map(len, outer))
        columns = zip(*([self.number(1)] * (rank - len(shape)) + shape for shape in outer), strict=True)
        common = [reduce(partial(self._longer, builder), column) for column in columns]
        return [
            self._fitting(builder, value, shape, [*common[rank - len(sizes) :], *shape[len(sizes) :]])
            for value, shape, sizes in zip(inputs, shapes, outer, strict=True)
        ]

    def _longer(self, builder: Builder, first: Size, second: Size) -> Size:
        """Return the dimension that two make together: a symbol of its own where only a run knows which is longer.

        An expression for it would double with each operation.
        """
        if self.value(first) == 1 or self._are_equal(first, second):
            return second
        if self.value(second) == 1 or self.value(first) is not None:
            return first
        if self.value(second) is not None:
            return second
        for joined, pair, parts in self._joined:
            for size, other in ((first, second), (second, first)):
                is_part = self._are_equal(size, joined) and any(self._are_equal(other, part) for part in parts)
                if is_part or all(map(self._are_equal, (size, other), pair)):
                    return joined
        chosen = self._tvm.tirx.Select(second == 1, first, second)
        [joined] = self.read_sizes(builder, self.vector(builder, [chosen]))
        before = (part for size, _, parts in self._joined if size is first or size is second for part in parts)
        self._joined.append((joined, (first, second), [first, second, *before]))
        return joined

    def _fitting(self, builder: Builder, value: Expr, shape: Sequence[Size], wanted: Sequence[Size]) -> Expr:
        """Return a tensor whose dimensions are 1 or wanted: those that may be either are repeated as a run needs."""
        if all(self.value(old) == 1 or self._are_equal(old, new) for old, new in zip(shape, wanted, strict=True)):
            return value
        te, tirx = self._tvm.te, self._tvm.tirx
        sizes = [old if self.value(old) == 1 else new for old, new in zip(shape, wanted, strict=True)]
        may_repeat = [not self._are_equal(old, new) for old, new in zip(shape, sizes, strict=True)]
        limits = [
            tirx.Select(old == 1, old, new) if may else old
            for old, new, may in zip(shape, sizes, may_repeat, strict=True)
        ]
        checked = builder.match_cast(value, self._tvm.relax.TensorType(limits, value.ty.dtype))

        def repeated(operand: Any, before: Sequence[Size]) -> Any:  # noqa: ANN401
            def element(*indices: Any) -> Any:  # noqa: ANN401
                places = zip(indices, before, may_repeat, strict=True)
                return operand(*(tirx.Select(size == 1, self.number(0), at) if may else at for at, size, may in places))

            return te.compute(sizes, element, name="broadcast")

        return self.emitted(builder, repeated, checked, list(shape))

    def _require_inner_size(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> None:
        """Check that the first operand has as many columns or channels as its weights take.

        The code that TVM makes reads as many, whether there are.
        """
        kind = node.op_type
        shape, weights = self.shape(inputs[0]), self.shape(inputs[_WEIGHTED[kind]])
        axis = 1
        if kind == "Gemm":
            axis = 0 if self.attribute(node, "transA", 0) else 1
            size = weights[1 if self.attribute(node, "transB", 0) else 0]
        elif kind in ("MatMul", "MatMulInteger", "QLinearMatMul"):
            axis, size = len(shape) - 1, weights[-2:][0]
        elif kind in ("GRU", "LSTM", "RNN"):
            axis, size = 2, weights[2]
        elif kind in ("Conv", "ConvInteger", "QLinearConv"):
            groups = self.attribute(node, "group", 1)
            size = self.simple(weights[1] * groups)
            whole = self.simple(self._tvm.tirx.floordiv(weights[0], groups) * groups)
            self._require(builder, inputs, _WEIGHTED[kind], [whole, *weights[1:]])
        else:
            size = weights[0]
        self._require(builder, inputs, 0, [*shape[:axis], size, *shape[axis + 1 :]])

    def _concat(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> None:
        """Check when the program runs that operands of a Concat fit together, where this is not known."""
        if not all(isinstance(value.ty, self._tvm.relax.TensorType) for value in inputs):
            return
        shapes = [self.shape(value) for value in inputs]
        axis = self.attribute(node, "axis", 0) % max(1, len(shapes[0]))
        common = [
            next((one for one in dims if self.value(one) is not None), dims[0]) for dims in zip(*shapes, strict=True)
        ]
        for number, shape in enumerate(shapes):
            wanted = [*common[:axis], shape[axis], *common[axis + 1 :]]
            if not all(map(self._are_equal, shape, wanted)):
                inputs[number] = self._matched(builder, inputs[number], wanted)

    def _matched(self, builder: Builder, value: Expr, wanted: Sequence[Size]) -> Expr:
        """Return a tensor after a check that it has wanted dimensions, in place of its own.

        TVM would substitute a size by an expression of itself, without end, if it knew both.
        """
        relax, dtype = self._tvm.relax, str(value.ty.dtype)
        unknown = builder.match_cast(value, relax.TensorType(dtype=dtype, ndim=len(wanted)))
        return builder.match_cast(unknown, relax.TensorType(relax.ShapeExpr(wanted), dtype))

    def _einsum(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> None:
        """Repeat operands of an Einsum along subscripts of which only a run can tell whether they are broadcast."""
        terms = self.attribute(node, "equation", b"").decode().replace(" ", "").partition("->")[0].split(",")
        shapes = [self.shape(value) for value in inputs]
        if any(len(term) != len(shape) for term, shape in zip(terms, shapes, strict=True)):
            return  # an ellipsis, which takes static operands only
        common: dict[str, Size] = {}
        for term, shape in zip(terms, shapes, strict=True):
            for subscript, size in zip(term, shape, strict=True):
                common[subscript] = self._longer(builder, common.get(subscript, size), size)
        for at, (term, shape) in enumerate(zip(terms, shapes, strict=True)):
            inputs[at] = self._fitting(builder, inputs[at], shape, [common[subscript] for subscript in term])

    def _elements(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> None:
        """Check that indices of GatherElements and ScatterElements are no more than the data along the other axes."""
        data, shape = self.shape(inputs[0]), self.shape(inputs[1])
        axis = self.attribute(node, "axis", 0) % max(1, len(data))
        limits = [
            old if at == axis else self.least(old, most) for at, (old, most) in enumerate(zip(shape, data, strict=True))
        ]
        if not all(map(self._are_equal, shape, limits)):
            inputs[1] = builder.match_cast(inputs[1], self._tvm.relax.TensorType(limits, inputs[1].ty.dtype))
        if len(inputs) > 2:
            self._require(builder, inputs, 2, shape)

    def _gather_nd(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> None:
        """Check that the batches of a GatherND are as many as those of its data."""
        count = self.attribute(node, "batch_dims", 0)
        self._require(builder, inputs, 1, [*self.shape(inputs[0])[:count], *self.shape(inputs[1])[count:]])

    def _grid_sample(self, builder: Builder, _node: NodeProto, inputs: list[Expr]) -> None:
        """Give the grids of a GridSample the type of its data, and check that they are as many places in it."""
        data, grid = inputs
        if grid.ty.dtype != data.ty.dtype:
            inputs[1] = builder.emit(self._tvm.relax.op.astype(grid, data.ty.dtype))
        shape = self.shape(data)
        self._require(builder, inputs, 1, [shape[0], *self.shape(grid)[1:-1], self.number(len(shape) - 2)])

    def _layer_norm(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> None:
        """Check that the operand of a normalization has the dimensions of its scale."""
        shape, axis = self.shape(inputs[0]), self.attribute(node, "axis", -1)
        self._require(builder, inputs, 0, [*shape[: axis % len(shape)], *self.shape(inputs[1])])

    def _unique(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> None:
        """Flatten the operand of a Unique without an axis: TVM gives the places of its elements their shape."""
        shape = self.shape(inputs[0])
        if self.attribute(node, "axis", None) is None and len(shape) != 1:
            relax = self._tvm.relax
            inputs[0] = builder.emit(relax.op.reshape(inputs[0], relax.ShapeExpr([self.product(shape)])))

    def _split(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> None:
        """Check that the parts of a Split are all of its operand."""
        sizes = self.known(node.input[1]) if len(node.input) > 1 else self.attribute(node, "split", None)
        if sizes:
            shape = self.shape(inputs[0])
            axis = self.attribute(node, "axis", 0) % len(shape)
            self._require(builder, inputs, 0, [*shape[:axis], self.simple(sum(sizes)), *shape[axis + 1 :]])

    def _squeeze(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> None:
        """Check that the dimensions that a Squeeze removes are 1."""
        axes = self.known(node.input[1]) if len(node.input) > 1 and node.input[1] else None
        listed = self.attribute(node, "axes", []) if axes is None else [self.value(axis) or 0 for axis in axes]
        wanted = self.shape(inputs[0])
        for axis in listed:
            wanted[axis] = self.number(1)
        self._require(builder, inputs, 0, wanted)

    def _scatter_nd(self, builder: Builder, _node: NodeProto, inputs: list[Expr]) -> None:
        """Check that there is one update for each place of a ScatterND."""
        data, places, _ = map(self.shape, inputs)
        self._require(builder, inputs, 2, [*places[:-1], *data[self.value(places[-1]) or 0 :]])

    def _require(self, builder: Builder, inputs: list[Expr], at: int, wanted: Sequence[Size]) -> None:
        """Check when the program runs that an operand has wanted dimensions, where this is not known."""
        shape = self.shape(inputs[at])
        if not all(map(self._are_equal, shape, wanted)):
            inputs[at] = self._checked(builder, inputs[at], shape, wanted)


_CHECKS: dict[str, Callable[[FittingOperands, Builder, NodeProto, list[Expr]], None]] = {
    "Concat": FittingOperands._concat,
    "Einsum": FittingOperands._einsum,
    **dict.fromkeys(("GatherElements", "ScatterElements"), FittingOperands._elements),
    "GatherND": FittingOperands._gather_nd,
    "GridSample": FittingOperands._grid_sample,
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), FittingOperands._layer_norm),
    "ScatterND": FittingOperands._scatter_nd,
    "Split": FittingOperands._split,
    "Squeeze": FittingOperands._squeeze,
    "Unique": FittingOperands._unique,
}
