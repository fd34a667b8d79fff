"""Import of ONNX models with shapes that are computed when a program runs.

TVM's importer represents `Shape` in a form that most of its operators do not accept, and knows few results of
computations with sizes. The importer of this module knows the elements of a value that holds sizes as expressions, in
symbols of the shapes of the inputs; `Reshape`, `Expand`, `Range`, `ConstantOfShape`, `Slice`, `Tile` and `Resize` get
their shapes from these. Other sizes are read from tensors when the program runs.

The partitioner decides by its own types which operations fit together. Where TVM derives less of a shape than these
say, a check that runs with the program (`match_cast`) states it.

TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tvmtarget.backends.expansion_builder import attributes_of
from tvmtarget.backends.protocol import Array
from tvmtarget.backends.tvm.call_sites import constant_of, operator_of
from tvmtarget.backends.tvm.compiled_module import LARGEST_SIZE
from tvmtarget.backends.tvm.fitting_operands import FittingOperands
from tvmtarget.backends.tvm.image_windows import (
    blocks_of_channels,
    channels_of_blocks,
    maxima_places,
    summed_windows,
)
from tvmtarget.backends.tvm.index_checks import check_divisors, check_lengths
from tvmtarget.backends.tvm.integer_products import converted_product, fits_int32
from tvmtarget.backends.tvm.interpolation import interpolation
from tvmtarget.backends.tvm.non_max_suppression import non_max_suppression
from tvmtarget.backends.tvm.recurrent import Network, recurrent
from tvmtarget.backends.tvm.segment_sums import SEGMENT_SUM, segment_sum
from tvmtarget.backends.tvm.symbolic_sizes import INTEGERS, MOST_SIZES, Shapes
from tvmtarget.backends.tvm.tir_builder import OPAQUE
from tvmtarget.backends.tvm.tree_ensembles import tree_ensemble
from tvmtarget.ir.resized_sizes import resized
from tvmtarget.ir.symbolic_shapes import SLICE_END
from tvmtarget.support.tree_ensembles import classes_of, read_ensemble
from tvmtarget.support.tvm_rules import OF_TENSORFLOW

__all__ = ["Shapes", "import_onnx"]

Module: TypeAlias = Any
Builder: TypeAlias = Any
Expr: TypeAlias = Any  # of Relax
Size: TypeAlias = Any  # an integer expression of TIR, or a bool that is known

_INFINITIES = {"detect_negative": -np.inf, "detect_positive": np.inf}
_SAME = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


def import_onnx(model: ModelProto, shapes: Shapes, dtypes: Mapping[str, int]) -> Module:
    """Import a model.

    Args:
        model: the model; the names of symbolic dimensions of its inputs are identifiers.
        shapes: dimensions of its values by name, with the symbols and expressions of the partitioner.
        dtypes: element types of its values by name.

    Returns:
        TVM's module.
    """
    from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

    copy = ModelProto()
    copy.CopyFrom(model)
    # The importer passes the name of a node to converters, so that it tells here which node it is.
    for number, node in enumerate(copy.graph.node):
        node.name = str(number)
    symbolic = _SymbolicImport(copy, shapes, dtypes)

    class Importer(ONNXGraphImporter):  # type: ignore[misc]  # TVM ships no types
        def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
            """Accept operators that TVM does not know; converting those that this module does not know either fails."""

        def _convert_operator(self, op_name: str, inputs: Any, attrs: Any, opset: int) -> Expr:  # noqa: ANN401
            def default(operands: Sequence[Expr]) -> Expr:
                inputs[:] = operands
                return super(Importer, self)._convert_operator(op_name, inputs, attrs, opset)

            number = attrs["tvm_custom"]["name"]
            if not number.isdecimal():  # of a nested body
                return default(list(inputs))
            symbolic.bind(self._inputs)
            return symbolic.converted(self.bb, int(number), list(inputs), default)

    return Importer({}, "float32", sanitize=False).from_onnx(copy.graph, symbolic.opset)


class _SymbolicImport(FittingOperands):
    """What is known of the sizes in a graph while it is imported."""

    def __init__(self, model: ModelProto, shapes: Shapes, dtypes: Mapping[str, int]) -> None:
        super().__init__(model, shapes, dtypes)
        self.opset = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 1)
        self._nodes = model.graph.node
        self._read = {name for node in model.graph.node for name in node.input}

    def converted(
        self, builder: Builder, number: int, inputs: list[Expr], default: Callable[[Sequence[Expr]], Expr]
    ) -> Expr:
        """Return the results of a node."""
        node = self._nodes[number]
        sizes = self._computed(node, inputs)
        if sizes is not None:
            self._sizes[node.output[0]] = sizes
            return self._tensor(builder, node.output[0], sizes)
        self.fit(builder, node, inputs)
        lower = _LOWERED.get(node.op_type)
        found = self._nothing(node, inputs) if lower is None else lower(self, builder, node, inputs)
        found = default(inputs) if found is None else builder.normalize(found)
        if node.op_type == "MaxPool" and len(node.output) == 2:
            found = self._with_places(builder, node, inputs[0], builder.emit(found))
        if node.op_type == "ReduceMean":
            found = self._mean(builder, node, inputs[0], found)
        if isinstance(found.ty, self._tvm.relax.ShapeType):  # a concatenation of constants
            found = self.vector(builder, list(found.values))
        return self._aligned(builder, node, found)

    def _nothing(self, node: NodeProto, inputs: Sequence[Expr | None]) -> Expr | None:
        """Return a result without elements, of an operand without elements; None for others.

        TVM broadcasts no dimension of 1 to 0 in a Max or Min, and divides by 0 in a CumSum.
        """
        name, relax = node.output[0], self._tvm.relax
        dims = self._shapes.get(name, ())
        sizes = [self.dim(dim) for dim in dims]
        is_known = name in self._dtypes and all(size is not None for size in sizes)
        given = [value for value in inputs if value is not None]
        is_empty = any(self.value(size) == 0 for value in given for size in self._shape_of(value) or ())
        if not is_known or not is_empty or 0 not in dims or len(node.output) != 1:
            return None
        return relax.op.zeros(relax.ShapeExpr(sizes), str(helper.tensor_dtype_to_np_dtype(self._dtypes[name])))

    # Sizes that are expressions

    def _tensor(self, builder: Builder, name: str, sizes: Sequence[Size]) -> Expr:
        """Return sizes as a tensor."""
        relax = self._tvm.relax
        dtype = INTEGERS[self._dtypes[name]]
        values = [size if isinstance(size, bool) else self.value(size) for size in sizes]
        rank = self.rank(name)
        if None not in values:
            return relax.const(np.array(values, dtype).reshape(() if rank == 0 else (-1,)), dtype)
        return self.vector(builder, sizes, dtype, is_scalar=rank == 0)

    def _computed(self, node: NodeProto, inputs: Sequence[Expr]) -> list[Size] | None:
        """Return the elements of the result of a computation with sizes; None if it is none, or they are not known."""
        if len(node.output) != 1 or self._dtypes.get(node.output[0]) not in INTEGERS:
            return None
        rank = self.rank(node.output[0])
        if rank is None or rank > 1 or node.op_type not in _COMPUTED:
            return None
        if node.op_type in ("Shape", "Size"):
            shape = self._shape_of(inputs[0])
            if shape is None:
                return None
            if node.op_type == "Size":
                return [self.product(shape)]
            return shape[self.attribute(node, "start", 0) : self.attribute(node, "end", None)]
        operands = [self.known(name) for name in node.input if name]
        if None in operands or not operands:
            return None
        found = _COMPUTED[node.op_type](self, node, operands)
        if found is None or len(found) > MOST_SIZES or (rank == 0 and len(found) != 1):
            return None
        if any(one is None for one in found):
            return None
        return [self.simple(one) for one in found]

    # Types

    def _aligned(self, builder: Builder, node: NodeProto, found: Expr) -> Expr:
        """Return results with all that the partitioner knows of their shapes."""
        relax, names = self._tvm.relax, [*node.output]
        fields = getattr(found.ty, "fields", None)
        if fields is None:
            return self._with_shape(builder, names[0], found)
        each = [found[at] if isinstance(found, relax.Tuple) else None for at in range(len(fields))]
        if not any(self._needs_shape(name) for name in names):
            return found
        values = [builder.emit(relax.TupleGetItem(found, at)) if one is None else one for at, one in enumerate(each)]
        named = zip([*names, *[""] * len(values)], values, strict=False)
        return relax.Tuple([self._with_shape(builder, name, value) for name, value in named])

    def _needs_shape(self, name: str) -> bool:
        return any(not isinstance(dim, int) for dim in self._shapes.get(name, ()))

    def _with_shape(self, builder: Builder, name: str, value: Expr) -> Expr:
        relax, tirx = self._tvm.relax, self._tvm.tirx
        dims = self._shapes.get(name)
        if dims is None or not isinstance(value.ty, relax.TensorType) or value.ty.ndim != len(dims):
            return value
        sizes = self._shape_of(value)
        wanted: list[Size] = []
        for at, dim in enumerate(dims):
            size, known = None if sizes is None else sizes[at], self.dim(dim)
            if size is not None and (known is None or self.value(size) is not None or self._are_equal(size, known)):
                found = size
            elif known is not None:
                found = known
            else:
                found = tirx.Var(f"d{len(self._dims or {})}_{at}", "int64")
                self._proofs.bind(found, self._tvm.ir.Range(0, LARGEST_SIZE))
            if isinstance(dim, str) and self._dims is not None:
                self._dims.setdefault(dim, found)
            wanted.append(found)
        is_same = sizes is not None and all(new is old for new, old in zip(wanted, sizes, strict=True))
        # What nothing reads needs no check: exporters name the dimensions of results as they like.
        if is_same or (sizes is not None and name not in self._read):
            return value
        if sizes is None:
            return builder.match_cast(value, relax.TensorType(wanted, value.ty.dtype))
        return self._checked(builder, value, sizes, wanted)

    # Operators whose shapes are computed

    def reshape(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower a Reshape to or from computed sizes, after a check that they hold as many elements; None for others."""
        data, shape = inputs[0], self.shape(inputs[0])
        wanted, copies = self.known(node.input[1]), not self.attribute(node, "allowzero", 0)
        is_known = node.input[1] in self._constants and all(self.value(size) for size in shape)
        if is_known and copies:
            return None
        if wanted is None:
            wanted = self.read_sizes(builder, self._resolved(builder, inputs[1], shape, copies=copies))
        elif copies:
            wanted = [shape[at] if self.value(one) == 0 else one for at, one in enumerate(wanted)]
            self._require_no_copied_sizes(builder, shape, wanted)
        if any(self.value(one) == -1 for one in wanted):
            at = next(at for at, one in enumerate(wanted) if self.value(one) == -1)
            # A size that stays, such as that of an empty batch, is no divisor.
            given, others = self._without_common(shape, [*wanted[:at], *wanted[at + 1 :]])
            # Where others are 0, there is no quotient, and the process would end.
            quotient = self._tvm.tirx.floordiv(self.product(given), self.most(self.product(others), self.number(1)))
            wanted = [*wanted[:at], self.simple(quotient), *wanted[at + 1 :]]
        self._require_equal(builder, self.product(shape), self.product(wanted))
        if any(self.value(one) == 0 for one in wanted):  # for which TVM copies a size of the operand
            return self._tvm.relax.op.zeros(self._tvm.relax.ShapeExpr(wanted), str(data.ty.dtype))
        return self._tvm.relax.op.reshape(data, self._tvm.relax.ShapeExpr(wanted))

    def _require_no_copied_sizes(self, builder: Builder, shape: Sequence[Size], wanted: Sequence[Size]) -> None:
        """Check when the program runs that no symbolic size is 0 where that copies another size of the operand.

        The stated type of the result has 0 there. Only a tensor without elements has two such sizes that fit; one of
        them may be inferred (-1).
        """
        tirx = self._tvm.tirx
        symbolic = [at for at, size in enumerate(wanted) if self.value(size) is None]
        is_inferred = any(self.value(size) == -1 for size in wanted)
        if len(symbolic) + is_inferred < 2:
            return
        for at, (size, old) in enumerate(zip(wanted, shape, strict=False)):
            if at in symbolic and not self.is_proven(tirx.any(size != 0, old == 0)):
                others = self.product([*wanted[:at], *wanted[at + 1 :]])
                is_copied = size == 0 if is_inferred else tirx.all(size == 0, others == 0)
                self._require_equal(builder, tirx.Select(is_copied, old, size), size)

    def _without_common(self, sizes: Sequence[Size], others: Sequence[Size]) -> tuple[list[Size], list[Size]]:
        """Return sizes without the symbolic ones that occur in both lists."""
        kept, left = [], [*others]
        for size in sizes:
            at = next((at for at, one in enumerate(left) if self.value(one) is None and size.same_as(one)), None)
            if at is None:
                kept.append(size)
            else:
                del left[at]
        return kept, left

    def _resolved(self, builder: Builder, sizes: Expr, shape: Sequence[Size], *, copies: bool) -> Expr:
        """Return the sizes of a Reshape with what 0 and -1 stand for, computed when the program runs."""
        relax = self._tvm.relax
        op, emit = relax.op, builder.normalize
        count = self.value(self.shape(sizes)[0]) or 0
        if str(sizes.ty.dtype) != "int64":
            sizes = emit(op.astype(sizes, "int64"))
        one, zero, minus = (relax.const(value, "int64") for value in (1, 0, -1))
        if copies:
            same = self.vector(builder, [*shape, *[self.number(1)] * count][:count])
            sizes = emit(op.where(emit(op.equal(sizes, zero)), same, sizes))
        is_inferred = emit(op.equal(sizes, minus))
        others = emit(op.prod(emit(op.where(is_inferred, one, sizes))))
        total = emit(op.prod(self.vector(builder, shape))) if shape else one
        inferred = emit(op.floor_divide(total, emit(op.maximum(others, one))))
        return emit(op.where(is_inferred, inferred, sizes))

    def expand(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower an Expand to computed sizes; None for one to constant sizes."""
        data, shape = inputs[0], self.shape(inputs[0])
        if node.input[1] in self._constants and all(self.value(size) is not None for size in shape):
            return None
        wanted = self.known(node.input[1]) or self.read_sizes(builder, inputs[1])
        rank = max(len(shape), len(wanted))
        shape, wanted = ([self.number(1)] * (rank - len(one)) + one for one in (shape, wanted))
        tirx, relax, one = self._tvm.tirx, self._tvm.relax, self.number(1)
        sizes: list[Size] = []
        open_axes: set[int] = set()
        for axis, (old, new) in enumerate(zip(shape, wanted, strict=True)):
            if self.value(old) == 1:
                sizes.append(new)
            elif self.value(old) is not None or self.value(new) == 1 or self._are_equal(old, new):
                sizes.append(old)
                if self.value(new) != 1:
                    self._require_equal(builder, tirx.Select(new == one, old, new), old)
            else:
                open_axes.add(axis)
                is_one = old == one
                sizes.append(tirx.Select(is_one, new, tirx.Select(new == one, old, new)))
                self._require_equal(builder, new, tirx.Select(tirx.any(is_one, new == one), new, old))
        if not open_axes:
            return relax.op.broadcast_to(data, relax.ShapeExpr(sizes))
        more = rank - len(self.shape(data))

        def expanded(operand: Any) -> Any:  # noqa: ANN401
            def element(*indices: Any) -> Any:  # noqa: ANN401
                own = list(enumerate(zip(indices[more:], operand.shape, strict=True), more))
                return operand(
                    *(
                        self.number(0)
                        if self.value(size) == 1
                        else tirx.Select(size == one, self.number(0), at)
                        if axis in open_axes
                        else at
                        for axis, (at, size) in own
                    )
                )

            return self._tvm.te.compute(sizes, element, name="expanded")

        return builder.emit(builder.call_te(expanded, data, primfunc_attrs={"op_pattern": OPAQUE}))

    def dynamic_quantization(self, builder: Builder, _node: NodeProto, inputs: list[Expr]) -> Expr:
        """Lower a DynamicQuantizeLinear, with a scale of 1 for zeros and for no elements, as ONNX Runtime has it.

        TVM's scale is 0 then, and it divides by that.
        """
        relax, (x,) = self._tvm.relax, inputs
        op, emit = relax.op, builder.normalize
        none, most = (relax.const(value, "float32") for value in (0, 255))
        least = emit(op.minimum(none, emit(op.min(x))))
        extent = emit(op.subtract(emit(op.maximum(none, emit(op.max(x)))), least))
        extent = emit(op.where(emit(op.equal(extent, none)), most, extent))
        scale = builder.emit(op.divide(extent, most))
        offset = emit(op.round(emit(op.clip(emit(op.subtract(none, emit(op.divide(least, scale)))), 0, 255))))
        zero = builder.emit(op.astype(offset, "uint8"))
        return relax.Tuple([emit(op.quantize(x, scale, zero, axis=0, out_dtype="uint8")), scale, zero])

    def cast(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower a Cast to int32 of the sums of a ConvInteger, which are whole and fit; None for others.

        TVM's importer wraps numbers that do not fit, by nine operations with integers of 64 bits for each element.
        """
        relax, (sums,) = self._tvm.relax, inputs

        def producer(expr: Expr) -> Expr:
            bound = builder.lookup_binding(expr) if isinstance(expr, relax.Var) else None
            return expr if bound is None else bound

        call = producer(sums)
        if self.attribute(node, "to", 0) != TensorProto.INT32 or operator_of(call) != "relax.nn.conv2d":
            return None
        data, weights = map(producer, call.args)
        known = constant_of(weights)
        product = None if known is None else converted_product(data, known, producer)
        return relax.op.astype(sums, "int32") if product is not None and fits_int32(product) else None

    def sign(self, builder: Builder, _node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower a Sign of floats, which is NaN of NaN, where TVM's is 0, or of unsigned integers; None for others."""
        (x,), op = inputs, self._tvm.relax.op
        if str(x.ty.dtype).startswith("uint"):
            return op.minimum(x, self._tvm.relax.const(1, str(x.ty.dtype)))
        if "float" not in str(x.ty.dtype):
            return None
        return op.where(builder.emit(op.isnan(x)), x, builder.emit(op.sign(x)))

    def infinities(self, _builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower an IsInf of one sign, or of none; None for both."""
        (x,), relax = inputs, self._tvm.relax
        found = [value for name, value in _INFINITIES.items() if self.attribute(node, name, 1)]
        # Nothing is equal to NaN.
        return relax.op.equal(x, relax.const(*found or [np.nan], str(x.ty.dtype))) if len(found) < 2 else None

    def constant_of_shape(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower a ConstantOfShape of computed sizes, or a scalar; None for one of constant sizes."""
        tensor = self.attribute(node, "value", None)
        value = np.zeros(1, "float32") if tensor is None else numpy_helper.to_array(tensor)
        relax, dtype = self._tvm.relax, str(value.dtype)
        if node.input[0] in self._constants:
            return None if self.known(node.input[0]) else relax.const(value.reshape(()), dtype)
        sizes = self.known(node.input[0]) or self.read_sizes(builder, inputs[0])
        # `full` writes no infinities, and `broadcast_to` compiles for 20 s in front of Trilu.
        is_finite = value.dtype.kind != "f" or bool(np.isfinite(value).all())
        constant, one = (relax.const(number.reshape(()), dtype) for number in (value, np.ones(1, value.dtype)))
        filled = relax.op.full(relax.ShapeExpr(sizes), constant if is_finite else one, dtype)
        return filled if is_finite else relax.op.multiply(filled, constant)

    def range(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower a Range of known sizes or of floats; None for others, whose length TVM's importer computes."""
        tvm, number = self._tvm, self._dtypes.get(node.output[0], 0)
        dtype = INTEGERS.get(number)
        if number in (TensorProto.FLOAT, TensorProto.DOUBLE) and not all(one in self._constants for one in node.input):
            return self._range_of_floats(builder, inputs)
        start, limit, step = (self.known(name) for name in node.input)
        if start is None or limit is None or step is None or dtype is None or all(map(self._is_number, node.input)):
            return None
        by = self.value(step[0])
        if not by:
            return None
        distance = limit[0] - start[0] if by > 0 else start[0] - limit[0]
        length = tvm.tirx.floordiv(distance + (abs(by) - 1), abs(by))
        count = self.simple(self.most(self.simple(length), self.number(0)))

        def counted(first: Sequence[Size]) -> Any:  # noqa: ANN401
            return tvm.te.compute((count,), lambda at: (first[0] + at * by).astype(dtype), name="range")

        return self.emitted(builder, counted, start)

    def _range_of_floats(self, builder: Builder, inputs: Sequence[Expr]) -> Expr:
        """Lower a Range of floats, whose length is computed when the program runs."""
        relax, te, op, dtype = self._tvm.relax, self._tvm.te, self._tvm.relax.op, str(inputs[0].ty.dtype)

        def emit(value: Expr) -> Expr:
            return builder.emit(builder.normalize(value))

        start, limit, step = (emit(op.reshape(value, (1,))) for value in inputs)
        # In float64, as onnxruntime divides: a quotient that is rounded may be one element less.
        distance, by = (emit(op.astype(one, "float64")) for one in (emit(op.subtract(limit, start)), step))
        steps = emit(op.ceil(emit(op.divide(distance, by))))
        [count] = self.read_sizes(builder, emit(op.maximum(steps, relax.const(0, "float64"))))

        def counted(first: Any, by: Any) -> Any:  # noqa: ANN401
            return te.compute((count,), lambda at: first[0] + at.astype(dtype) * by[0], name="range")

        return self.emitted(builder, counted, start, step)

    def _is_number(self, name: str) -> bool:
        return all(self.value(one) is not None for one in self.known(name) or [])

    def slice(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower a Slice with constant axes and steps; None for one of elements that are known, forwards."""
        tvm = self._tvm
        names = [*node.input, "", ""][:5]
        data, shape = inputs[0], self.shape(inputs[0])
        count = self.value(self.shape(inputs[1])[0]) or 0
        axes = self.known(names[3]) if names[3] else [self.number(at) for at in range(count)]
        steps = self.known(names[4]) if names[4] else [self.number(1)] * count
        if axes is None or steps is None:
            raise ValueError("the axes and steps of a Slice are not known")
        places = [(self.value(axis) or 0) % len(shape) for axis in axes]
        starts, ends = self.known(names[1]), self.known(names[2])
        tensor = None
        if starts is None or ends is None:
            tensor, counts = self._bounds(builder, [shape[at] for at in places], inputs[1], inputs[2], steps)
        else:
            spans = [
                self._span(start, end, step, shape[at])
                for start, end, step, at in zip(starts, ends, steps, places, strict=True)
            ]
            starts, counts = [start for start, _ in spans], [count for _, count in spans]
        sizes = list(shape)
        for at, size in zip(places, counts, strict=True):
            sizes[at] = size
        if all(self.value(size) is not None for size in (*shape, *sizes)):
            if not all(map(self.value, sizes)):
                return tvm.relax.op.zeros(tvm.relax.ShapeExpr(sizes), str(data.ty.dtype))
            is_forward = all((self.value(step) or 1) > 0 for step in steps)
            if is_forward and all(name in self._constants for name in names[1:3]):
                return None

        def sliced(operand: Any, first: Any) -> Any:  # noqa: ANN401
            def element(*indices: Any) -> Any:  # noqa: ANN401
                moved = list(indices)
                for number, at in enumerate(places):
                    moved[at] = first[number] + indices[at] * steps[number]
                return operand(*moved)

            return tvm.te.compute(sizes, element, name="slice")

        return self.emitted(builder, sliced, data, starts if tensor is None else tensor)

    def _span(self, start: Size, end: Size, step: Size, size: Size) -> tuple[Size, Size]:
        """Return the first element of a slice along a dimension, and the number of elements."""
        by = self.value(step) or 1
        if by > 0:
            first, last = self._bound(start, size), self._bound(end, size)
            count = self._tvm.tirx.floordiv(last - first + (by - 1), by)
            return first, self.simple(self.most(self.simple(count), self.number(0)))
        begin, stop = self.value(start), self.value(end)
        if begin is None or stop is None:
            raise ValueError("a Slice runs backwards between bounds that are not known")

        def within(bound: int) -> Size:
            place = size if bound >= SLICE_END else self.number(0) if bound <= -SLICE_END else self.number(bound)
            return self.least(self.simple(place + size if -SLICE_END < bound < 0 else place), self.simple(size - 1))

        # A dimension without elements has its last one before the first.
        before = self.number(-1)
        first = self.simple(self.least(self.most(within(begin), self.number(0)), self.simple(size - 1)))
        last = before if abs(stop) >= SLICE_END else self.simple(self.most(within(stop), before))
        count = self._tvm.tirx.floordiv(first - last - by - 1, -by)
        return first, self.simple(self.most(self.simple(count), self.number(0)))

    def _bound(self, bound: Size, size: Size) -> Size:
        """Return a bound of a slice, counted from the start and within the dimension."""
        if (self.value(bound) or 0) >= SLICE_END:
            return size
        if self.is_proven(bound < 0):
            bound = self.simple(bound + size)
        elif not self.is_proven(bound >= 0):
            bound = self._tvm.tirx.Select(bound < 0, bound + size, bound)
        return self.simple(self.most(self.least(bound, size), self.number(0)))

    def _bounds(
        self, builder: Builder, sizes: Sequence[Size], start: Expr, end: Expr, steps: Sequence[Size]
    ) -> tuple[Expr, list[Size]]:
        """Return the starts and counts of a slice whose bounds are computed when the program runs."""
        relax = self._tvm.relax
        op, emit = relax.op, builder.normalize
        step = relax.const(np.array([self.value(one) for one in steps], "int64"), "int64")
        extent, zero = self.vector(builder, sizes), relax.const(0, "int64")

        def within(bound: Expr) -> Expr:
            bound = bound if str(bound.ty.dtype) == "int64" else emit(op.astype(bound, "int64"))
            moved = emit(op.where(emit(op.less(bound, zero)), emit(op.add(bound, extent)), bound))
            return emit(op.maximum(emit(op.minimum(moved, extent)), zero))

        first, last = within(start), within(end)
        distance = emit(
            op.add(
                emit(op.subtract(last, first)),
                relax.const(np.array([(self.value(one) or 1) - 1 for one in steps], "int64"), "int64"),
            )
        )
        counts = emit(op.maximum(emit(op.floor_divide(distance, step)), zero))
        return first, self.read_sizes(builder, counts)

    def divide(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower a remainder of floats, or a division by integers that a run knows or that are -1, or of or by a 0.

        The least number divided by -1 would kill the process, too: it is negated, as all numbers are.
        """
        data, by = inputs
        dtype = str(by.ty.dtype)
        if "int" not in dtype and node.op_type == "Mod":
            return self._remainder(builder, data, by)
        if "int" not in dtype:
            return self.keep_zeros(builder, node, inputs)
        constant = self._constants.get(node.input[1])
        if constant is not None and -1 not in numpy_helper.to_array(constant):
            return None
        op, emit = self._tvm.relax.op, builder.normalize
        by = check_divisors(builder, node.op_type, by) if constant is None else by
        if dtype.startswith("uint"):
            inputs[1] = by
            return None
        one, minus = (self._tvm.relax.const(value, dtype) for value in (1, -1))
        is_minus = emit(op.equal(by, minus))
        inputs[1] = emit(op.where(is_minus, one, by))
        if node.op_type == "Mod":
            return None
        return op.where(is_minus, emit(op.negative(data)), emit(op.divide(data, inputs[1])))

    def _remainder(self, builder: Builder, data: Expr, by: Expr) -> Expr:
        """Return the remainders of floats, with the sign of the dividend, as `fmod` of C."""
        from tvm import te

        op, tirx, dtype = self._tvm.relax.op, self._tvm.tirx, str(data.ty.dtype)
        symbol = "fmodf" if dtype == "float32" else "fmod"  # TVM has an operator, but no code for CPUs
        shape = builder.normalize(op.add(data, by)).ty.shape
        operands = [builder.emit(op.broadcast_to(one, shape)) for one in (data, by)]

        def remainders(first: Any, second: Any) -> Any:  # noqa: ANN401
            def remainder(*at: Any) -> Any:  # noqa: ANN401
                return tirx.call_pure_extern(dtype, symbol, first(*at), second(*at))

            return te.compute(first.shape, remainder, name="remainders")

        return builder.call_te(remainders, *operands, primfunc_name_hint="remainders")

    def rectify(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower a PRelu of a scalar, integers or symbolic dimensions, which TVM's operator lacks; None for others."""
        (x, slope), op, emit = inputs, self._tvm.relax.op, builder.normalize
        dtype, shape = str(x.ty.dtype), self.shape(x)
        if "float" in dtype and shape and all(self.value(size) is not None for size in shape[len(shape) > 1 :]):
            return None
        is_negative = emit(op.less(x, self._tvm.relax.const(0, dtype)))
        return op.where(is_negative, emit(op.multiply(x, slope)), x)

    def extremes(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr:
        """Lower a Max or Min, which is NaN where an operand is; TVM's importer stacks the operands."""
        op = self._tvm.relax.op
        found = self._nothing(node, inputs)
        if found is not None:
            return found
        choose = op.maximum if node.op_type == "Max" else op.minimum

        def either(first: Expr, second: Expr) -> Expr:
            chosen = builder.normalize(choose(first, second))
            # Of NaN and another operand TVM chooses the second one; `propagate_nan` puts scalars first.
            if "float" not in str(chosen.ty.dtype) or second.ty.ndim == 0:
                return chosen
            return builder.emit(op.where(builder.emit(op.isnan(first)), first, chosen))

        return reduce(either, sorted(inputs, key=lambda one: one.ty.ndim == 0))

    def keep_zeros(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Make a scalar 0 a tensor; None for tensors: TVM takes `x * 0` and `0 / x` to be 0, even where x is NaN."""
        op, scalars = self._tvm.relax.op, [not one.ty.ndim for one in inputs]
        for at, name in enumerate(node.input):
            constant, dtype = self._constants.get(name), str(inputs[at].ty.dtype)
            if constant is None or not scalars[at] or "float" not in dtype or numpy_helper.to_array(constant).any():
                continue
            inputs[at] = self._tvm.relax.const(np.zeros(1, dtype), dtype)
            if all(scalars):
                write = op.multiply if node.op_type == "Mul" else op.divide
                return op.squeeze(builder.emit(write(*inputs)), [0])
        return None

    def power(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower a Pow of integers, or of two types; None for others. Powers of integers are rounded to float64."""
        (x, exponent), op, emit = inputs, self._tvm.relax.op, builder.normalize
        dtype = str(x.ty.dtype)
        if "float" in dtype:
            inputs[1] = exponent if str(exponent.ty.dtype) == dtype else builder.emit(op.astype(exponent, dtype))
            return None
        constant = self._constants.get(node.input[1])
        powers = None if constant is None else set(numpy_helper.to_array(constant).ravel().tolist())
        if powers in ({2}, {3}) and not exponent.ty.ndim:
            return op.multiply(x, x if powers == {2} else emit(op.multiply(x, x)))
        wide = [emit(op.astype(one, "float64")) for one in (x, exponent)]
        return op.astype(emit(op.power(*wide)), dtype)

    def reverse_sequence(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr:
        """Lower a ReverseSequence, whose lengths are checked where indices are."""
        steps, rows = self.attribute(node, "time_axis", 0), self.attribute(node, "batch_axis", 1)
        self._require(builder, inputs, 1, [self.shape(inputs[0])[rows]])
        return self._tvm.relax.op.reverse_sequence(*inputs, seq_axis=steps, batch_axis=rows)

    def pad(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower a Pad by computed numbers of elements, with a computed one, around the end, or back twice; None else.

        TVM's importer knows wrap-around in versions from 19 only, and PyTorch writes it in version 18, too. It reflects
        elements once, and reads beyond memory for more.
        """
        tvm, relax = self._tvm, self._tvm.relax
        names = [*node.input, *[""] * 4][:4]
        mode = self.attribute(node, "mode", b"constant").decode()
        is_computed = bool(names[2]) and names[2] not in self._constants
        if is_computed and mode != "constant":  # which reads no element
            inputs[2], is_computed = relax.const(0, inputs[0].ty.dtype), False
        is_own = is_computed or mode == "wrap" or (mode == "reflect" and not self._reflects_once(names, inputs[0]))
        if not names[1] or (names[1] in self._constants and not is_own):
            return None
        data, rank = inputs[0], len(self.shape(inputs[0]))
        given = self.known(names[1])
        if not is_own and given is not None and all(self.value(one) is not None for one in given):
            inputs[1] = relax.const(np.array([self.value(one) for one in given], "int64"), "int64")
            return None
        given = given or self.read_sizes(builder, inputs[1], least=-LARGEST_SIZE)
        axes = self.known(names[3]) if names[3] else [self.number(at) for at in range(rank)]
        every = zip(axes or [], given[: len(axes or [])], given[len(axes or []) :], strict=True)
        padding = [each for each in every if self.value(each[1]) != 0 or self.value(each[2]) != 0]
        places = [(self.value(axis) or 0) % rank for axis, _, _ in padding]
        before, after = [first for _, first, _ in padding], [last for _, _, last in padding]
        if mode != "constant":  # which has no elements to repeat in an empty tensor
            data = self._at_least(builder, data, dict.fromkeys(places, 1))
        sizes = self.shape(data)
        for at, first, last in zip(places, before, after, strict=True):
            sizes[at] = self.simple(self.most(sizes[at] + first + last, self.number(0)))
        constant = numpy_helper.to_array(self._constants[names[2]]).item() if names[2] in self._constants else 0

        def padded(operand: Any, first: Any, *filling: Any) -> Any:  # noqa: ANN401
            def element(*indices: Any) -> Any:  # noqa: ANN401
                moved, within = list(indices), []
                for number, at in enumerate(places):
                    place, size = indices[at] - first[number], operand.shape[at]
                    moved[at] = self._padding(mode, place, size, is_last=at == rank - 1)
                    within += [place >= 0, place < size]
                if mode != "constant" or not within:
                    return operand(*moved)
                if filling:
                    return tvm.tirx.if_then_else(
                        tvm.tirx.all(*within), operand(*moved), filling[0](*[0] * len(filling[0].shape))
                    )
                return tvm.tirx.if_then_else(
                    tvm.tirx.all(*within), operand(*moved), tvm.tirx.const(constant, operand.dtype)
                )

            return tvm.te.compute(sizes, element, name="pad")

        return self.emitted(builder, padded, data, before, *inputs[2:3] * is_computed)

    def space_to_depth(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower a SpaceToDepth of images of symbolic sizes, which blocks have to divide; None for static ones."""
        block, shape = self.attribute(node, "blocksize", 1), self.shape(inputs[0])
        count, channels, *sizes = shape
        if all(self.value(size) is not None for size in sizes):
            return None
        blocks = [self.simple(self._tvm.tirx.floordiv(size, block)) for size in sizes]
        self._require(builder, inputs, 0, [count, channels, *(self.simple(size * block) for size in blocks)])
        result = [count, self.simple(channels * block * block), *blocks]
        return self.emitted(builder, channels_of_blocks(block, self.value(channels) or 0, result), inputs[0])

    def depth_to_space(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower a DepthToSpace of images of symbolic sizes; None for static ones, which TVM's importer lowers."""
        block, (count, channels, *sizes) = self.attribute(node, "blocksize", 1), self.shape(inputs[0])
        if all(self.value(size) is not None for size in sizes):
            return None
        result = [count, self.number((self.value(channels) or 0) // block**2), *(size * block for size in sizes)]
        is_crd = self.attribute(node, "mode", b"DCR") == b"CRD"
        return self.emitted(builder, blocks_of_channels(block, result, is_crd=is_crd), inputs[0])

    def _mean(self, builder: Builder, node: NodeProto, data: Expr, found: Expr) -> Expr:
        """Return a mean that is 0 of no elements, as onnxruntime and PyTorch's EmbeddingBag have it, and not NaN."""
        shape, dtype = self.shape(data), str(data.ty.dtype)
        axes = self.known(node.input[1]) if node.input[1:] and node.input[1] else None
        listed = self.attribute(node, "axes", []) if axes is None else [self.value(axis) or 0 for axis in axes]
        if not listed and self.attribute(node, "noop_with_empty_axes", 0):
            return found
        sizes = [shape[axis] for axis in listed or range(len(shape))]
        if "float" not in dtype or all(self.is_proven(size > 0) for size in sizes):
            return found
        te, tirx, found = self._tvm.te, self._tvm.tirx, builder.emit(found)

        def compute(mean: Any, count: Sequence[Size]) -> Any:  # noqa: ANN401
            nothing = tirx.const(0, dtype)
            return te.compute(mean.shape, lambda *at: tirx.Select(count[0] > 0, mean(*at), nothing), name="mean")

        return self.emitted(builder, compute, found, [self.product(sizes)])

    def _with_places(self, builder: Builder, node: NodeProto, data: Expr, found: Expr) -> Expr:
        """Return the results of a MaxPool: its maxima, and where they are."""
        attributes, shape = attributes_of(node), self.shape(found)
        kernel = attributes["kernel_shape"]
        rank, mode = len(kernel), attributes.get("auto_pad", "NOTSET")
        pads = [self.number(pad) for pad in (attributes.get("pads") or [0] * rank)[:rank]]
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            strides, dilations = (attributes.get(name) or [1] * rank for name in ("strides", "dilations"))
            for at, (size, result) in enumerate(zip(self.shape(data)[2:], shape[2:], strict=True)):
                read = (result - 1) * strides[at] + (kernel[at] - 1) * dilations[at] + 1
                both = self.most(self.simple(read - size), self.number(0))
                pads[at] = self.simple(self._tvm.tirx.floordiv(both + int(mode == "SAME_LOWER"), 2))
        found = builder.normalize(found)
        return self._tvm.relax.Tuple([found, self.emitted(builder, maxima_places(attributes, pads, shape), data)])

    def col2im(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr:
        """Lower a Col2Im, whose columns are checked when the program runs."""
        image, block = (numpy_helper.to_array(self._constants[name]).tolist() for name in node.input[1:3])
        batch, rows, _ = self.shape(inputs[0])
        channels = self.simple(self._tvm.tirx.floordiv(rows, prod(block)))
        columns, summed = summed_windows(image, block, attributes_of(node), batch, channels)
        self._require(builder, inputs, 0, [batch, self.simple(channels * prod(block)), self.number(columns)])
        return self.emitted(builder, summed, inputs[0])

    def _reflects_once(self, names: Sequence[str], data: Expr) -> bool:
        """Return whether all dimensions have more elements than a Pad by known numbers reflects."""
        pads = self._constants.get(names[1])
        if pads is None:
            return False
        shape = self.shape(data)
        axes = (self.known(names[3]) or []) if names[3] else [self.number(at) for at in range(len(shape))]
        most = np.abs(numpy_helper.to_array(pads)).reshape(2, -1).max(axis=0)
        sizes = [self.value(shape[(self.value(axis) or 0) % len(shape)]) for axis in axes]
        return all(not count or (size or 0) > count for count, size in zip(most, sizes, strict=True))

    def _padding(self, mode: str, place: Size, size: Size, *, is_last: bool) -> Size:
        """Return which element of a dimension stands at a place, which may be outside of it.

        Only of the last dimension are there many places, which a branch may find without a division. Branches of
        several dimensions make LLVM write loops for all their combinations, which took it 10 s for four.
        """
        tirx = self._tvm.tirx
        if mode == "edge":
            return tirx.max(tirx.min(place, size - 1), self.number(0))
        if mode == "reflect":  # there and back, as often as needed
            period = tirx.max(2 * (size - 1), self.number(1))
            at = tirx.floormod(place, period)
            again = tirx.min(at, tirx.max(2 * (size - 1) - at, self.number(0)))
            if not is_last:
                return again
            once = tirx.abs(place)
            once = tirx.Select(once < size, once, 2 * (size - 1) - once)
            return tirx.if_then_else(once >= 0, once, again)
        if mode == "wrap":
            return tirx.floormod(place, tirx.max(size, self.number(1)))
        return place

    def tile(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower a Tile by known sizes; None for others, which TVM's importer lowers."""
        tvm, repeats = self._tvm, self.known(node.input[1])
        if node.input[1] in self._constants or repeats is None:
            return None
        shape = self.shape(inputs[0])
        sizes = [self.simple(size * times) for size, times in zip(shape, repeats, strict=True)]

        def tiled(operand: Any) -> Any:  # noqa: ANN401
            def element(*indices: Any) -> Any:  # noqa: ANN401
                return operand(*(tvm.tirx.floormod(at, size) for at, size in zip(indices, shape, strict=True)))

            return tvm.te.compute(sizes, element, name="tile")

        return self.emitted(builder, tiled, inputs[0])

    def resize(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower a Resize of symbolic dimensions, by scales that give no whole sizes, or of TensorFlow; None else.

        That of numbers that float32 may not hold is lowered, too, as TVM resizes in float32.
        """
        relax = self._tvm.relax
        names = [*node.input, *[""] * 4][:4]
        data, shape = inputs[0], self.shape(inputs[0])
        factors = None
        if names[2] in self._constants and numpy_helper.to_array(self._constants[names[2]]).size:
            factors = [float(one) for one in numpy_helper.to_array(self._constants[names[2]])]
            after = self._scaled(builder, shape, factors)
        else:
            after = self.known(names[3]) or self.read_sizes(builder, inputs[3])
        is_static = all(self.value(size) is not None for size in (*shape[2:], *after[2:]))
        is_known = self.attribute(node, "coordinate_transformation_mode", b"").decode() != OF_TENSORFLOW
        is_narrow = str(data.ty.dtype.dtype) in _IN_FLOAT32
        if is_static and is_known and is_narrow and self._are_whole(shape, factors):
            if names[3]:  # which the importer reads only the spatial sizes of
                inputs[3] = relax.const(np.array([1, 1, *map(self.value, after[2:])], "int64"), "int64")
            return None
        return self.emitted(builder, interpolation(node, factors), data, list(after[2:]))

    def _scaled(self, builder: Builder, shape: Sequence[Size], factors: Sequence[float]) -> list[Size]:
        """Return sizes times factors, rounded down as in float32."""
        relax = self._tvm.relax
        op, emit = relax.op, builder.normalize

        def scaled(size: Size, factor: float) -> Size | None:
            value = self.value(size)
            if value is not None:
                return self.number(resized(value, factor))
            if factor % 1 == 0:
                return self.simple(size * int(factor))
            return self.simple(self._tvm.tirx.floordiv(size, round(1 / factor))) if 1 / factor % 1 == 0 else None

        after = [scaled(size, factor) for size, factor in zip(shape, factors, strict=True)]
        places = [at for at, size in enumerate(after) if size is None]
        if places:
            floats = emit(op.astype(self.vector(builder, [shape[at] for at in places]), "float32"))
            by = relax.const(np.array([factors[at] for at in places], "float32"), "float32")
            rounded = emit(op.astype(emit(op.floor(emit(op.multiply(floats, by)))), "int64"))
            for at, size in zip(places, self.read_sizes(builder, rounded), strict=True):
                after[at] = size
        return after

    def _are_whole(self, shape: Sequence[Size], factors: Sequence[float] | None) -> bool:
        """Return whether known sizes times factors are whole, so that TVM computes the same factors from the sizes."""
        return all(
            (self.value(size) or 0) * factor % 1 == 0 for size, factor in zip(shape, factors or (), strict=False)
        )

    def non_max_suppression(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr:
        """Lower a NonMaxSuppression; its result has as many rows as boxes are chosen when the program runs."""
        relax = self._tvm.relax
        names = [*node.input, *[""] * 5][:5]
        boxes, scores = inputs[:2]
        batch, count, _ = self.shape(boxes)
        wanted = [batch, self.shape(scores)[1], count]
        if not all(map(self._are_equal, self.shape(scores), wanted)):
            scores = self._matched(builder, scores, wanted)

        def limit(at: int, dtype: str) -> Expr:
            if not names[at]:
                return relax.const(np.zeros(1, dtype), dtype)
            return builder.emit(relax.op.reshape(inputs[at], (1,)))

        most = self.known(names[2]) if names[2] else [self.number(0)]
        rows, total = non_max_suppression(
            builder,
            boxes,
            scores,
            (limit(2, "int64"), limit(3, "float32"), limit(4, "float32") if names[4] else None),
            self.value(most[0]) if most else None,
            is_centered=bool(self.attribute(node, "center_point_box", 0)),
        )
        return self._first(builder, rows, self.read_sizes(builder, total)[0], 0)

    def _first(self, builder: Builder, data: Expr, count: Size, axis: int) -> Expr:
        """Return the first elements along an axis, whose number is read when the program runs."""
        te, shape = self._tvm.te, self.shape(data)
        shape[axis] = count

        def first(operand: Any) -> Any:  # noqa: ANN401
            return te.compute(shape, lambda *at: operand(*at), name="first")

        # TVM's fusion would move it before the number that it reads.
        return builder.emit(builder.call_te(first, data, primfunc_attrs={"op_pattern": OPAQUE}))

    def split(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower a Split into parts of computed sizes, of none, or of a symbolic dimension; None for others."""
        te, relax, shape = self._tvm.te, self._tvm.relax, self.shape(inputs[0])
        axis = self.attribute(node, "axis", 0) % len(shape)
        sizes = self._computed_parts(builder, node, inputs, axis)
        if sizes is None:
            return None
        start, parts = self.number(0), []
        for size in sizes:
            self._require_equal(builder, size, self._tvm.tirx.max(size, 0))

            def part(operand: Any, first: Any, size: Size = size) -> Any:  # noqa: ANN401
                def element(*at: Any) -> Any:  # noqa: ANN401
                    return operand(*at[:axis], first[0] + at[axis], *at[axis + 1 :])

                return te.compute([*shape[:axis], size, *shape[axis + 1 :]], element, name="part")

            parts.append(self.emitted(builder, part, inputs[0], [start]))
            start = self.simple(start + size)
        return relax.Tuple(parts)

    def _computed_parts(self, builder: Builder, node: NodeProto, inputs: list[Expr], axis: int) -> list[Size] | None:
        """Return the sizes of the parts of a Split, which make up its operand; None for constant ones above 0."""
        relax, shape, count = self._tvm.relax, self.shape(inputs[0]), len(node.output)
        name = node.input[1] if len(node.input) > 1 else ""
        sizes = self.known(name) if name else [*map(self.number, self.attribute(node, "split", ()))]
        if sizes:
            is_constant = name in self._constants or not name
            if is_constant and all(map(self.value, sizes)):
                return None
        elif name:
            # A negative size becomes 0, so that the sum is more than there is.
            given = builder.emit(relax.op.maximum(inputs[1], relax.const(0, str(inputs[1].ty.dtype))))
            sizes = self.read_sizes(builder, given)
        elif self.value(shape[axis]) is not None:
            return None
        else:
            most = self.simple(self._tvm.tirx.floordiv(shape[axis] + count - 1, count))
            # Since version 18, the last part may be smaller.
            last = self.most(self.simple(shape[axis] - most * (count - 1)), self.number(0))
            sizes = [*[most] * (count - 1), last if self.opset > 17 else most]
        self._require(builder, inputs, 0, [*shape[:axis], self.simple(sum(sizes)), *shape[axis + 1 :]])
        return sizes

    def scatter_elements(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower a ScatterElements with fewer indices than elements to a ScatterND; None for others.

        TVM takes the sizes of the data for those of the indices along other axes: the first one on either side of the
        scattered axis does not matter, the others are those that it counts with.
        """
        tirx, relax, te = self._tvm.tirx, self._tvm.relax, self._tvm.te
        data, places = self.shape(inputs[0]), self.shape(inputs[1])
        axis = self.attribute(node, "axis", 0) % len(data)
        others = [*range(1, axis), *range(axis + 2, len(data))]
        reduction = self.attribute(node, "reduction", b"none").decode()
        if all(self._are_equal(data[at], places[at]) for at in others):
            # ONNX has maxima and minima since version 18; torch writes them before, and ONNX Runtime takes them.
            is_early = reduction in ("max", "min") and self.opset < 18
            return relax.op.scatter_elements(*inputs, axis=axis, reduction=reduction) if is_early else None

        def coordinates(indices: Any, wanted: Any, size: Any) -> Any:  # noqa: ANN401
            def element(*at: Any) -> Any:  # noqa: ANN401
                dtype = indices.dtype
                index = indices(*at[:-1])
                counted = tirx.Select(index < 0, index + size[0].astype(dtype), index)
                parts = [counted if one == axis else at[one].astype(dtype) for one in range(len(data))]
                chosen = parts[-1]
                for one, part in enumerate(parts[:-1]):
                    chosen = tirx.Select(at[-1] == one, part, chosen)
                return chosen

            return te.compute([*wanted, self.number(len(data))], element, name="coordinates")

        return relax.op.scatter_nd(
            inputs[0],
            # The shape of the updates, which is that of the indices, is what TVM compares with.
            self.emitted(builder, coordinates, inputs[1], self.shape(inputs[2]), [data[axis]]),
            inputs[2],
            "update" if reduction == "none" else reduction,
        )

    def top_k(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr:
        """Lower a TopK, of a computed number of elements by sorting all; those of `sorted=0` are sorted, too."""
        tirx, relax = self._tvm.tirx, self._tvm.relax
        data, shape = inputs[0], self.shape(inputs[0])
        axis = self.attribute(node, "axis", -1) % len(shape)
        known = self.known(node.input[1]) if len(node.input) > 1 else [self.number(self.attribute(node, "k", 1))]
        count = (known or self.read_sizes(builder, inputs[1]))[0]
        if not self.is_proven(count <= shape[axis]):
            self._require_equal(builder, count, tirx.max(tirx.min(count, shape[axis]), self.number(0)))
        largest, number = bool(self.attribute(node, "largest", 1)), self.value(count)
        if number:  # TVM takes all elements for none
            return relax.op.topk(data, number, axis, ret_type="both", largest=largest, dtype="int64")
        found = builder.emit(relax.op.topk(data, -1, axis, ret_type="both", largest=largest, dtype="int64"))
        parts = [builder.emit(relax.TupleGetItem(found, at)) for at in range(2)]
        return relax.Tuple([self._first(builder, part, count, axis) for part in parts])

    def grid_sample(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower a cubic GridSample of reflected images; None for others.

        TVM's importer writes a branch for each dimension of 16 elements, which LLVM compiles for 10 s, and divides by
        the sizes, which ends the process if one is 0.
        """
        mode, padding = (self.attribute(node, name, b"") for name in ("mode", "padding_mode"))
        if mode not in (b"cubic", b"bicubic") or padding != b"reflection":
            return None
        te, tirx = self._tvm.te, self._tvm.tirx
        # Images reflect at the middles of their first and last elements, or at the ends of these.
        end = 1 if self.attribute(node, "align_corners", 0) else 0

        def weights(part: Any) -> list[Any]:  # noqa: ANN401
            def outer(x: Any) -> Any:  # noqa: ANN401
                return ((5 - x) * x - 8) * x * 0.75 + 3

            def inner(x: Any) -> Any:  # noqa: ANN401
                return (1.25 * x - 2.25) * x * x + 1

            return [outer(part + 1), inner(part), inner(1 - part), outer(2 - part)]

        def sampled(image: Any, grid: Any) -> Any:  # noqa: ANN401
            shape, (batches, rows, columns, _) = image.shape, grid.shape

            def place(axis: int) -> Callable[..., Any]:
                size = tirx.Cast(image.dtype, shape[3 - axis])
                return lambda *at: (grid(*at, axis) + 1) * (size - end) / 2 + (end - 1) * 0.5

            places = [te.compute([batches, rows, columns], place(axis), name="place") for axis in (1, 0)]

            def element(n: Any, c: Any, *at: Any) -> Any:  # noqa: ANN401
                taps = []
                for found, size in zip(places, shape[2:], strict=True):
                    first, last = te.floor(found(n, *at)), 2 * size - 1 - end
                    period = tirx.max(last + 1 - end, self.number(1))
                    there = [tirx.floormod(tirx.Cast("int64", first) + step, period) for step in range(-1, 3)]
                    back = [tirx.min(one, last - one) for one in there]
                    taps.append([*zip(back, weights(found(n, *at) - first), strict=True)])
                total = sum(
                    weight * sum(other * image(n, c, row, column) for column, other in taps[1])
                    for row, weight in taps[0]
                )
                return tirx.if_then_else(tirx.all(*(size > 0 for size in shape[2:])), total, tirx.const(0, image.dtype))

            return te.compute([batches, shape[1], rows, columns], element, name="sampled")

        return self.emitted(builder, sampled, *inputs)

    def roi_align(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr:
        """Lower a RoiAlign: TVM's importer shifts half-pixel coordinates before it scales them."""
        relax = self._tvm.relax
        op, emit = relax.op, builder.emit
        dtype, count = str(inputs[1].ty.dtype), self.shape(inputs[1])[0]
        self._require(builder, inputs, 1, [count, self.number(4)])
        self._require(builder, inputs, 2, [count])
        data, regions = inputs[:2]
        mode = self.attribute(node, "coordinate_transformation_mode", b"half_pixel" if self.opset >= 16 else b"")
        is_aligned = mode == b"half_pixel"
        scaled = emit(op.multiply(regions, relax.const(self.attribute(node, "spatial_scale", 1.0), dtype)))
        scaled = emit(op.subtract(scaled, relax.const(0.5, dtype))) if is_aligned else scaled
        numbers = emit(op.astype(emit(op.expand_dims(inputs[2], 1)), dtype))
        return op.vision.roi_align(
            data,
            emit(op.concat([numbers, scaled], 1)),
            pooled_size=tuple(self.attribute(node, name, 1) for name in ("output_height", "output_width")),
            spatial_scale=1.0,
            sample_ratio=self.attribute(node, "sampling_ratio", 0),
            aligned=is_aligned,
            layout="NCHW",
            mode="avg",
        )

    # Recurrent networks

    def recurrent(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr:
        """Lower an LSTM, GRU or RNN of constant weights."""
        relax = self._tvm.relax
        op, emit = relax.op, builder.normalize
        names = [*node.input, *[""] * 8][:8]

        def weights(at: int) -> Array:
            return numpy_helper.to_array(self._constants[names[at]]) if names[at] else np.zeros(0)

        w, r, b, p = (weights(at) for at in (1, 2, 3, 7))
        rows = self.shape(inputs[0])[1]
        for at, wanted in (
            (4, [rows]),
            *((state, [self.number(len(w)), rows, self.number(r.shape[2])]) for state in (5, 6)),
        ):
            if names[at]:
                self._require(builder, inputs, at, wanted)
        given = [value if name else None for name, value in zip(names, [*inputs, *[None] * 8], strict=False)]
        dtype = str(inputs[0].ty.dtype)

        def wide(value: Expr) -> Expr:
            return value if dtype == "float32" else emit(op.astype(value, "float32"))

        data, lengths, states = wide(inputs[0]), given[4], given[5:7] if node.op_type == "LSTM" else given[5:6]
        lengths = None if lengths is None else check_lengths(builder, node.op_type, lengths, data)
        direction = self.attribute(node, "direction", b"forward")
        names_of = [one.decode() for one in self.attribute(node, "activations", [])]
        found: list[list[Expr]] = []
        for number in range(len(w)):
            each = len(names_of) // len(w)
            network = Network(
                node.op_type,
                w[number],
                r[number],
                b[number] if b.size else np.zeros(2 * len(w[number]), w.dtype),
                p[number] if p.size else None,
                node.op_type == "GRU" and bool(self.attribute(node, "linear_before_reset", 0)),
                number == 1 or direction == b"reverse",
                tuple(names_of[number * each : (number + 1) * each]),
                bool(self.attribute(node, "rounds_states", 0)),
            )
            at = relax.const(number, "int64")
            first = [None if state is None else emit(op.take(wide(state), at, axis=0)) for state in states]
            found.append(recurrent(builder, network, data, first, lengths))
        results = [
            emit(op.stack(values, axis=1 if number == 0 else 0))
            if len(values) > 1
            else emit(op.expand_dims(values[0], 1 if number == 0 else 0))
            for number, values in enumerate(zip(*found, strict=True))
        ]
        results = [one if dtype == "float32" else emit(op.astype(one, dtype)) for one in results[: len(node.output)]]
        return results[0] if len(node.output) == 1 else relax.Tuple(results)

    def segment_sum(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr:
        """Lower the sum of a slice of rows."""
        flags = attributes_of(node)
        return segment_sum(builder, inputs, keepdims=bool(flags["keepdims"]), is_mean=bool(flags["is_mean"]))

    def tree_ensemble(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr:
        """Lower the sums of a tree ensemble, and the labels of a classifier."""
        relax, attributes, dtype = self._tvm.relax, attributes_of(node), str(inputs[0].ty.dtype)
        ensemble = read_ensemble(node.op_type, attributes, dtype)
        sums, *label = tree_ensemble(builder, ensemble, inputs[0], classes_of(attributes))
        if node.op_type != "TreeEnsemble" and dtype != "float32":
            sums = builder.normalize(relax.op.astype(sums, "float32"))
        return relax.Tuple([*label, sums]) if label else sums


_Lowering: TypeAlias = Callable[[_SymbolicImport, Builder, NodeProto, "list[Expr]"], "Expr | None"]
# Whose values float32 holds.
_IN_FLOAT32 = frozenset({"float16", "float32", "int8", "int16", "uint8", "uint16"})

_LOWERED: dict[str, _Lowering] = {
    "Cast": _SymbolicImport.cast,
    "Col2Im": _SymbolicImport.col2im,
    "ConstantOfShape": _SymbolicImport.constant_of_shape,
    **dict.fromkeys(("Div", "Mod"), _SymbolicImport.divide),
    "DepthToSpace": _SymbolicImport.depth_to_space,
    "DynamicQuantizeLinear": _SymbolicImport.dynamic_quantization,
    "Expand": _SymbolicImport.expand,
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _SymbolicImport.recurrent),
    "GridSample": _SymbolicImport.grid_sample,
    "IsInf": _SymbolicImport.infinities,
    **dict.fromkeys(("Max", "Min"), _SymbolicImport.extremes),
    "NonMaxSuppression": _SymbolicImport.non_max_suppression,
    "PRelu": _SymbolicImport.rectify,
    "Pad": _SymbolicImport.pad,
    "Pow": _SymbolicImport.power,
    "Range": _SymbolicImport.range,
    "Reshape": _SymbolicImport.reshape,
    "Resize": _SymbolicImport.resize,
    "ReverseSequence": _SymbolicImport.reverse_sequence,
    "RoiAlign": _SymbolicImport.roi_align,
    "ScatterElements": _SymbolicImport.scatter_elements,
    SEGMENT_SUM: _SymbolicImport.segment_sum,
    "Mul": _SymbolicImport.keep_zeros,
    "Sign": _SymbolicImport.sign,
    "Slice": _SymbolicImport.slice,
    "SpaceToDepth": _SymbolicImport.space_to_depth,
    "Split": _SymbolicImport.split,
    "Tile": _SymbolicImport.tile,
    "TopK": _SymbolicImport.top_k,
    **dict.fromkeys(("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"), _SymbolicImport.tree_ensemble),
}


# Computations with sizes: functions of the elements of their operands


def _elementwise(compute: Callable[..., Size | None]) -> Callable[..., list[Size | None] | None]:
    def apply(context: _SymbolicImport, _node: NodeProto, operands: Sequence[list[Size]]) -> list[Size | None] | None:
        count = max(map(len, operands), default=0)
        if any(len(one) not in (1, count) for one in operands):
            return None
        columns = zip(*(one * count if len(one) == 1 else one for one in operands), strict=True)
        return [compute(context, *column) for column in columns]

    return apply


def _gather(context: _SymbolicImport, node: NodeProto, operands: Sequence[list[Size]]) -> list[Size] | None:
    data, places = operands[0], [context.value(one) for one in operands[1]]
    if context.rank(node.input[0]) != 1 or any(at is None or not -len(data) <= at < len(data) for at in places):
        return None
    return [data[at] for at in places if at is not None]


def _slice(context: _SymbolicImport, node: NodeProto, operands: Sequence[list[Size]]) -> list[Size] | None:
    data, *bounds = operands
    numbers = [[context.value(one) for one in bound] for bound in bounds]
    if context.rank(node.input[0]) != 1 or any(len(one) != 1 or one[0] is None for one in numbers):
        return None
    start, end = numbers[0][0], numbers[1][0]
    step = numbers[-1][0] if len(node.input) > 4 and node.input[4] else 1
    return data[start:end:step] if step is not None and step > 0 else None


def _concat(_context: _SymbolicImport, _node: NodeProto, operands: Sequence[list[Size]]) -> list[Size]:
    return [size for operand in operands for size in operand]


def _same(context: _SymbolicImport, node: NodeProto, operands: Sequence[list[Size]]) -> list[Size] | None:
    is_integer = all(not isinstance(one, bool) for one in operands[0])
    return operands[0] if is_integer and context._dtypes[node.output[0]] != TensorProto.BOOL else None


def _quotient(context: _SymbolicImport, first: Size, second: Size) -> Size | None:
    is_plain = context.is_proven(second > 0) and context.is_proven(first >= 0)
    return context._tvm.tirx.floordiv(first, second) if is_plain else None


def _equal(context: _SymbolicImport, first: Size, second: Size) -> bool | None:
    if context._are_equal(first, second):
        return True
    return False if context.is_proven(first < second) or context.is_proven(first > second) else None


def _less(context: _SymbolicImport, first: Size, second: Size) -> bool | None:
    return True if context.is_proven(first < second) else False if context.is_proven(first >= second) else None


def _product(context: _SymbolicImport, node: NodeProto, operands: Sequence[list[Size]]) -> list[Size] | None:
    return [context.product(operands[0])] if context.rank(node.input[0]) == 1 else None


_COMPUTED: dict[str, Callable[..., list[Any] | None]] = {
    "Add": _elementwise(lambda _, a, b: a + b),
    "Concat": _concat,
    "Div": _elementwise(_quotient),
    "Equal": _elementwise(_equal),
    "Gather": _gather,
    "Greater": _elementwise(lambda context, a, b: _less(context, b, a)),
    "Less": _elementwise(_less),
    "Max": _elementwise(lambda context, *sizes: reduce(context.most, sizes)),
    "Min": _elementwise(lambda context, *sizes: reduce(context.least, sizes)),
    "Mul": _elementwise(lambda _, a, b: a * b),
    "Neg": _elementwise(lambda _, a: -a),
    "ReduceProd": _product,
    "Shape": _same,
    "Size": _same,
    "Slice": _slice,
    "Sub": _elementwise(lambda _, a, b: a - b),
    "Where": _elementwise(lambda _, condition, a, b: a if condition else b),
    **dict.fromkeys(_SAME, _same),
}
