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
from functools import partial, reduce
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from tvmtarget.backends.expansion_builder import attributes_of
from tvmtarget.backends.protocol import Array
from tvmtarget.backends.tvm.compiled_module import LARGEST_SIZE, import_tvm
from tvmtarget.backends.tvm.index_checks import check_divisors, check_lengths
from tvmtarget.backends.tvm.non_max_suppression import non_max_suppression
from tvmtarget.backends.tvm.recurrent import Network, recurrent
from tvmtarget.backends.tvm.tir_builder import OPAQUE
from tvmtarget.backends.tvm.tree_ensembles import tree_ensemble
from tvmtarget.ir.symbolic_shapes import BROADCASTING, SLICE_END
from tvmtarget.ir.types import Dim
from tvmtarget.support.tree_ensembles import classes_of, read_ensemble

__all__ = ["Shapes", "import_onnx"]

Module: TypeAlias = Any
Builder: TypeAlias = Any
Expr: TypeAlias = Any  # of Relax
Size: TypeAlias = Any  # an integer expression of TIR, or a bool that is known
Shapes: TypeAlias = "Mapping[str, tuple[Dim, ...]]"

_MOST_SIZES = 64
_INTEGERS = {TensorProto.INT32: "int32", TensorProto.INT64: "int64", TensorProto.BOOL: "bool"}
_WINDOWS = frozenset({"AveragePool", "Conv", "LpPool", "MaxPool"})
# The operand whose shape says how many columns or channels the first one has.
_WEIGHTED = {
    **dict.fromkeys(("BatchNormalization", "Conv", "ConvInteger", "ConvTranspose", "Gemm", "InstanceNormalization"), 1),
    **dict.fromkeys(("GRU", "LSTM", "MatMul", "MatMulInteger", "RNN"), 1),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul"), 3),
}
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

    opset = next((one.version for one in copy.opset_import if one.domain in ("", "ai.onnx")), 1)
    return Importer({}, "float32", sanitize=False).from_onnx(copy.graph, opset)


class _SymbolicImport:
    """What is known of the sizes in a graph while it is imported."""

    def __init__(self, model: ModelProto, shapes: Shapes, dtypes: Mapping[str, int]) -> None:
        self._tvm = import_tvm()
        self._nodes = model.graph.node
        self._shapes = shapes
        self._dtypes = dtypes
        self._read = {name for node in model.graph.node for name in node.input}
        self._proofs = self._tvm.sym.Analyzer()
        self._dims: dict[str, Size] | None = None
        self._sizes: dict[str, list[Size]] = {}
        # Dimensions that two of operands make together, with those two, and all that they are made of.
        self._joined: list[tuple[Size, tuple[Size, Size], list[Size]]] = []
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}

    def bind(self, inputs: Mapping[str, Expr]) -> None:
        """Learn the symbols of the shapes of the inputs, once."""
        if self._dims is not None:
            return
        self._dims = {}
        for name, value in inputs.items():
            sizes = self._shape_of(value) if hasattr(value, "ty") else None
            for dim, size in zip(self._shapes.get(name, ()), sizes or (), strict=False):
                if isinstance(size, self._tvm.tirx.Var):
                    self._proofs.bind(size, self._tvm.ir.Range(0, LARGEST_SIZE))
                if isinstance(dim, str):
                    self._dims.setdefault(dim, size)

    def converted(
        self, builder: Builder, number: int, inputs: list[Expr], default: Callable[[Sequence[Expr]], Expr]
    ) -> Expr:
        """Return the results of a node."""
        node = self._nodes[number]
        sizes = self._computed(node, inputs)
        if sizes is not None:
            self._sizes[node.output[0]] = sizes
            return self._tensor(builder, node.output[0], sizes)
        if node.op_type in _WINDOWS:
            inputs[0] = self._wide_enough(builder, node, inputs)
        if node.op_type == "MatMul" or node.op_type in BROADCASTING:
            inputs[:] = self._broadcast(builder, inputs, 2 * (node.op_type == "MatMul"))
        if node.op_type in _WEIGHTED:
            inputs[0] = self._with_inner_size(builder, node, inputs)
        lower = _LOWERED.get(node.op_type)
        found = None if lower is None else lower(self, builder, node, inputs)
        found = default(inputs) if found is None else builder.normalize(found)
        if isinstance(found.ty, self._tvm.relax.ShapeType):  # a concatenation of constants
            found = self.vector(builder, list(found.values))
        return self._aligned(builder, node, found)

    # Sizes that are expressions

    def known(self, name: str) -> list[Size] | None:
        """Return the elements of a scalar or vector of integers; None if they are not known."""
        tensor = self._constants.get(name)
        if name not in self._sizes and tensor is not None and tensor.data_type in _INTEGERS and len(tensor.dims) < 2:
            array = numpy_helper.to_array(tensor)
            if array.size <= _MOST_SIZES:
                self._sizes[name] = [
                    bool(one) if array.dtype == bool else self.number(int(one)) for one in array.reshape(-1)
                ]
        return self._sizes.get(name)

    def number(self, value: int) -> Size:
        """Return a number as an expression."""
        return self._tvm.tirx.IntImm("int64", value)

    def value(self, size: Size) -> int | None:
        """Return the number that a size is; None if it is symbolic."""
        return int(size.value) if isinstance(size, self._tvm.tirx.IntImm) else None

    def simple(self, size: Size) -> Size:
        """Return a size in a simpler form."""
        return size if isinstance(size, bool) else self._proofs.simplify(size)

    def is_proven(self, condition: Size) -> bool:
        """Return whether a condition on sizes holds for all sizes."""
        return condition if isinstance(condition, bool) else bool(self._proofs.can_prove(condition))

    def least(self, first: Size, second: Size) -> Size:
        """Return the smaller of two sizes."""
        for less, more in ((first, second), (second, first)):
            if self.is_proven(less <= more):
                return less
        return self._tvm.tirx.min(first, second)

    def most(self, first: Size, second: Size) -> Size:
        """Return the larger of two sizes."""
        for less, more in ((first, second), (second, first)):
            if self.is_proven(less <= more):
                return more
        return self._tvm.tirx.max(first, second)

    def product(self, sizes: Sequence[Size]) -> Size:
        """Return the product of sizes."""
        return self.simple(reduce(lambda a, b: a * b, sizes, self.number(1)))

    def dim(self, dim: Dim) -> Size | None:
        """Return the expression of a dimension of the partitioner; None if nothing in the function has it."""
        return self.number(dim) if isinstance(dim, int) else (self._dims or {}).get(dim or "")

    def rank(self, name: str) -> int | None:
        """Return the number of dimensions of a value, None if it is not known."""
        tensor = self._constants.get(name)
        shape = self._shapes.get(name) if tensor is None else tensor.dims
        return None if shape is None else len(shape)

    def attribute(self, node: NodeProto, name: str, default: Any) -> Any:  # noqa: ANN401
        """Return an attribute of a node."""
        found = (onnx.helper.get_attribute_value(one) for one in node.attribute if one.name == name)
        return next(found, default)

    def _shape_of(self, value: Expr) -> list[Size] | None:
        values = getattr(getattr(value.ty, "shape", None), "values", None)
        return None if values is None else list(values)

    def shape(self, value: Expr) -> list[Size]:
        """Return the dimensions of a tensor, which are known for all values."""
        found = self._shape_of(value)
        if found is None:
            raise ValueError(f"the shape of {value.ty} is not known")
        return found

    def _tensor(self, builder: Builder, name: str, sizes: Sequence[Size]) -> Expr:
        """Return sizes as a tensor."""
        relax = self._tvm.relax
        dtype = _INTEGERS[self._dtypes[name]]
        values = [size if isinstance(size, bool) else self.value(size) for size in sizes]
        rank = self.rank(name)
        if None not in values:
            return relax.const(np.array(values, dtype).reshape(() if rank == 0 else (-1,)), dtype)
        return self.vector(builder, sizes, dtype, is_scalar=rank == 0)

    def _computed(self, node: NodeProto, inputs: Sequence[Expr]) -> list[Size] | None:
        """Return the elements of the result of a computation with sizes; None if it is none, or they are not known."""
        if len(node.output) != 1 or self._dtypes.get(node.output[0]) not in _INTEGERS:
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
        if found is None or len(found) > _MOST_SIZES or (rank == 0 and len(found) != 1):
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

    def _checked(self, builder: Builder, value: Expr, sizes: Sequence[Size], wanted: Sequence[Size]) -> Expr:
        """Return a value with other dimensions, after a check that these are equal to its own.

        A check by a symbol alone defines it for TVM's pass CanonicalizeTIRVariables, which then replaces the symbols of
        parameters. So the check compares with an expression, and a copy, which is fused with what reads it, has the
        dimensions.
        """
        te, tirx = self._tvm.te, self._tvm.tirx
        limit = tirx.IntImm("int64", 1 << 62)  # which no dimension exceeds, and no proof knows
        compared = [
            new if new is old or self.value(new) is not None else tirx.min(new, limit)
            for new, old in zip(wanted, sizes, strict=True)
        ]
        checked = builder.match_cast(value, self._tvm.relax.TensorType(compared, value.ty.dtype))
        return self.emitted(
            builder, lambda operand: te.compute(wanted, lambda *indices: operand(*indices), name="checked"), checked
        )

    def _are_equal(self, first: Size, second: Size) -> bool:
        return bool(self._proofs.can_prove_equal(first, second))

    def _wide_enough(self, builder: Builder, node: NodeProto, inputs: Sequence[Expr]) -> Expr:
        """Return the data of a convolution or pooling, after a check that the window fits into it.

        The partitioner relies on results with elements.
        """
        tirx, data = self._tvm.tirx, inputs[0]
        shape, rank = self.shape(data), len(self.shape(data)) - 2
        if self.attribute(node, "auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
            return data
        kernel = self.attribute(node, "kernel_shape", None) or [
            self.value(size) or 1 for size in self.shape(inputs[1])[2:]
        ]
        dilations = self.attribute(node, "dilations", [1] * rank)
        pads = self.attribute(node, "pads", [0] * (2 * rank))
        wanted = list(shape)
        for at in range(rank):
            least = self.number(max(1, (kernel[at] - 1) * dilations[at] + 1 - pads[at] - pads[at + rank]))
            if not self.is_proven(shape[at + 2] >= least):
                wanted[at + 2] = tirx.max(shape[at + 2], least)
        if all(new is old for new, old in zip(wanted, shape, strict=True)):
            return data
        return builder.match_cast(data, self._tvm.relax.TensorType(wanted, data.ty.dtype))

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

    def _with_inner_size(self, builder: Builder, node: NodeProto, inputs: Sequence[Expr]) -> Expr:
        """Return the first operand, after a check that it has as many columns or channels as its weights take.

        The code that TVM makes reads as many, whether there are.
        """
        kind, data = node.op_type, inputs[0]
        shape, weights = self.shape(data), self.shape(inputs[_WEIGHTED[kind]])
        axis = 1
        if kind == "Gemm":
            axis = 0 if self.attribute(node, "transA", 0) else 1
            size = weights[1 if self.attribute(node, "transB", 0) else 0]
        elif kind in ("MatMul", "MatMulInteger", "QLinearMatMul"):
            axis, size = len(shape) - 1, weights[-2:][0]
        elif kind in ("GRU", "LSTM", "RNN"):
            axis, size = 2, weights[2]
        elif kind in ("Conv", "ConvInteger", "QLinearConv"):
            size = self.simple(weights[1] * self.attribute(node, "group", 1))
        else:
            size = weights[0]
        if self._are_equal(shape[axis], size):
            return data
        return self._checked(builder, data, shape, [*shape[:axis], size, *shape[axis + 1 :]])

    # Operators whose shapes are computed

    def read_sizes(self, builder: Builder, tensor: Expr, least: int = 0) -> list[Size]:
        """Return the elements of a vector of sizes that is computed when the program runs, as new symbols."""
        tvm, relax = self._tvm, self._tvm.relax
        count = self.value(self.shape(tensor)[0])
        if count is None:
            raise ValueError("the number of sizes is not known")
        if str(tensor.ty.dtype) != "int64":
            tensor = builder.normalize(relax.op.astype(tensor, "int64"))
        shape = builder.emit(relax.op.tensor_to_shape(tensor))
        sizes = [tvm.tirx.Var(f"size_{at}", "int64") for at in range(count)]
        for size in sizes:
            self._proofs.bind(size, tvm.ir.Range(least, LARGEST_SIZE))
        builder.match_cast(shape, relax.ShapeType(sizes))
        return sizes

    def vector(self, builder: Builder, sizes: Sequence[Size], dtype: str = "int64", *, is_scalar: bool = False) -> Expr:
        """Return sizes as a vector, or one as a scalar."""
        tvm = self._tvm

        def listed(values: Sequence[Size]) -> Any:  # noqa: ANN401
            def element(*indices: Any) -> Any:  # noqa: ANN401
                found = values[-1]
                for number in reversed(range(len(values) - 1)):
                    found = tvm.tirx.Select(indices[0] == number, values[number], found)
                return found.astype(dtype)

            return tvm.te.compute(() if is_scalar else (len(values),), element, name="sizes")

        return self.emitted(builder, listed, list(sizes))

    def emitted(self, builder: Builder, compute: Callable[..., Any], *operands: Expr | list[Size]) -> Expr:
        """Return what a function of TE computes of tensors and lists of sizes.

        TVM's fusion fails on functions that take symbols besides tensors, and on those of no tensors that are fused
        twice with different sizes: these are marked to be not fused.
        """
        call = builder.call_te(compute, *operands, primfunc_name_hint="computed")
        fields = call.args[1].fields
        if not len(fields) or any(not isinstance(one.ty, self._tvm.relax.TensorType) for one in fields):
            attributes = {"op_pattern": OPAQUE}
            call = builder.call_te(compute, *operands, primfunc_name_hint="computed", primfunc_attrs=attributes)
        return builder.emit(call)

    def reshape(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower a Reshape to computed sizes; None for one to constant sizes."""
        if node.input[1] in self._constants:
            return None
        data, shape = inputs[0], self.shape(inputs[0])
        wanted, copies = self.known(node.input[1]), not self.attribute(node, "allowzero", 0)
        if wanted is None:
            wanted = self.read_sizes(builder, self._resolved(builder, inputs[1], shape, copies=copies))
        elif copies:
            wanted = [shape[at] if self.value(one) == 0 else one for at, one in enumerate(wanted)]
        if any(self.value(one) == -1 for one in wanted):
            at = next(at for at, one in enumerate(wanted) if self.value(one) == -1)
            others = self.product([*wanted[:at], *wanted[at + 1 :]])
            # Where others are 0, there is no quotient, and the process would end.
            quotient = self._tvm.tirx.floordiv(self.product(shape), self.most(others, self.number(1)))
            wanted = [*wanted[:at], self.simple(quotient), *wanted[at + 1 :]]
        return self._tvm.relax.op.reshape(data, self._tvm.relax.ShapeExpr(wanted))

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
                sizes.append(old)  # a number other than 1 stays, as the partitioner has made sure
            else:
                open_axes.add(axis)
                is_one = old == one
                sizes.append(tirx.Select(is_one, new, tirx.Select(new == one, old, new)))
                fits = tirx.Select(tirx.any(is_one, new == one), new, old)
                builder.match_cast(builder.emit(relax.ShapeExpr([new])), relax.ShapeType([fits]))
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

    def constant_of_shape(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower a ConstantOfShape of computed sizes; None for one of constant sizes."""
        if node.input[0] in self._constants:
            return None
        sizes = self.known(node.input[0]) or self.read_sizes(builder, inputs[0])
        tensor = self.attribute(node, "value", None)
        value = np.zeros(1, "float32") if tensor is None else numpy_helper.to_array(tensor)
        constant = self._tvm.relax.const(value.reshape(()), str(value.dtype))
        return self._tvm.relax.op.full(self._tvm.relax.ShapeExpr(sizes), constant, str(value.dtype))

    def range(self, builder: Builder, node: NodeProto, _inputs: list[Expr]) -> Expr | None:
        """Lower a Range of known sizes; None for others, whose length TVM's importer computes when the program runs."""
        tvm, dtype = self._tvm, _INTEGERS.get(self._dtypes.get(node.output[0], 0))
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

    def _is_number(self, name: str) -> bool:
        return all(self.value(one) is not None for one in self.known(name) or [])

    def concat(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> None:
        """Check when the program runs that operands of a Concat fit together, where this is not known."""
        relax = self._tvm.relax
        if not all(isinstance(value.ty, relax.TensorType) for value in inputs):
            return
        shapes = [self.shape(value) for value in inputs]
        axis = self.attribute(node, "axis", 0) % max(1, len(shapes[0]))
        common = [
            next((one for one in dims if self.value(one) is not None), dims[0]) for dims in zip(*shapes, strict=True)
        ]
        for number, shape in enumerate(shapes):
            wanted = [*common[:axis], shape[axis], *common[axis + 1 :]]
            if not all(map(self._proofs.can_prove_equal, shape, wanted)):
                dtype = str(inputs[number].ty.dtype)
                # TVM would substitute a size by an expression of itself, without end, if it knew both.
                unknown = builder.match_cast(inputs[number], relax.TensorType(dtype=dtype, ndim=len(shape)))
                inputs[number] = builder.match_cast(unknown, relax.TensorType(relax.ShapeExpr(wanted), dtype))

    def slice(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower a Slice with constant axes and steps of 1 or more; None for one of a static shape by constants."""
        tvm = self._tvm
        names = [*node.input, "", ""][:5]
        data, shape = inputs[0], self.shape(inputs[0])
        is_static = all(self.value(size) is not None for size in shape)
        if is_static and all(name in self._constants for name in names[1:3]):
            return None
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
            starts = [self._bound(start, shape[at]) for start, at in zip(starts, places, strict=True)]
            ends = [self._bound(end, shape[at]) for end, at in zip(ends, places, strict=True)]
            floordiv, zero = tvm.tirx.floordiv, self.number(0)
            counts = [
                self.simple(self.most(self.simple(floordiv(end - start + (step - 1), step)), zero))
                for start, end, step in zip(starts, ends, steps, strict=True)
            ]
        sizes = list(shape)
        for at, size in zip(places, counts, strict=True):
            sizes[at] = size

        def sliced(operand: Any, first: Any) -> Any:  # noqa: ANN401
            def element(*indices: Any) -> Any:  # noqa: ANN401
                moved = list(indices)
                for number, at in enumerate(places):
                    moved[at] = first[number] + indices[at] * steps[number]
                return operand(*moved)

            return tvm.te.compute(sizes, element, name="slice")

        return self.emitted(builder, sliced, data, starts if tensor is None else tensor)

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

    def einsum(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> None:
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

    def elements(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> None:
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

    def gather_nd(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> None:
        """Check that the batches of a GatherND are as many as those of its data."""
        count = self.attribute(node, "batch_dims", 0)
        self._require(builder, inputs, 1, [*self.shape(inputs[0])[:count], *self.shape(inputs[1])[count:]])

    def grid_sample(self, builder: Builder, _node: NodeProto, inputs: list[Expr]) -> None:
        """Check that the grids of a GridSample are as many as its data."""
        self._require(builder, inputs, 1, [self.shape(inputs[0])[0], *self.shape(inputs[1])[1:]])

    def divide(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower a division by integers that only a run knows; None for one by constants or floats.

        The least number divided by -1 would kill the process, too: it is negated, as all numbers are.
        """
        data, by = inputs
        dtype = str(by.ty.dtype)
        if "int" not in dtype or node.input[1] in self._constants:
            return None
        op, emit = self._tvm.relax.op, builder.normalize
        by = check_divisors(builder, node.op_type, by)
        if dtype.startswith("uint"):
            inputs[1] = by
            return None
        one, minus = (self._tvm.relax.const(value, dtype) for value in (1, -1))
        is_minus = emit(op.equal(by, minus))
        inputs[1] = emit(op.where(is_minus, one, by))
        if node.op_type == "Mod":
            return None
        return op.where(is_minus, emit(op.negative(data)), emit(op.divide(data, inputs[1])))

    def squeeze(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> None:
        """Check that the dimensions that a Squeeze removes are 1."""
        axes = self.known(node.input[1]) if len(node.input) > 1 and node.input[1] else None
        listed = self.attribute(node, "axes", []) if axes is None else [self.value(axis) or 0 for axis in axes]
        wanted = self.shape(inputs[0])
        for axis in listed:
            wanted[axis] = self.number(1)
        self._require(builder, inputs, 0, wanted)

    def reverse_sequence(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr:
        """Lower a ReverseSequence, whose lengths are checked where indices are."""
        steps, rows = self.attribute(node, "time_axis", 0), self.attribute(node, "batch_axis", 1)
        self._require(builder, inputs, 1, [self.shape(inputs[0])[rows]])
        return self._tvm.relax.op.reverse_sequence(*inputs, seq_axis=steps, batch_axis=rows)

    def scatter_nd(self, builder: Builder, _node: NodeProto, inputs: list[Expr]) -> None:
        """Check that there is one update for each place of a ScatterND."""
        data, places, _ = map(self.shape, inputs)
        self._require(builder, inputs, 2, [*places[:-1], *data[self.value(places[-1]) or 0 :]])

    def _require(self, builder: Builder, inputs: list[Expr], at: int, wanted: Sequence[Size]) -> None:
        """Check when the program runs that an operand has wanted dimensions, where this is not known."""
        shape = self.shape(inputs[at])
        if not all(map(self._are_equal, shape, wanted)):
            inputs[at] = self._checked(builder, inputs[at], shape, wanted)

    def pad(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower a Pad by computed numbers of elements; None for constant ones, which TVM's importer lowers."""
        tvm, relax = self._tvm, self._tvm.relax
        names = [*node.input, *[""] * 4][:4]
        if not names[1] or names[1] in self._constants:
            return None
        data, rank = inputs[0], len(self.shape(inputs[0]))
        given = self.known(names[1])
        if given is not None and all(self.value(one) is not None for one in given):
            inputs[1] = relax.const(np.array([self.value(one) for one in given], "int64"), "int64")
            return None
        given = given or self.read_sizes(builder, inputs[1], least=-LARGEST_SIZE)
        axes = self.known(names[3]) if names[3] else [self.number(at) for at in range(rank)]
        places = [(self.value(axis) or 0) % rank for axis in axes or []]
        mode = self.attribute(node, "mode", b"constant").decode()
        if mode != "constant":  # which has no elements to repeat in an empty tensor
            data = self._not_empty(builder, data, places)
        before, after = given[: len(places)], given[len(places) :]
        sizes = self.shape(data)
        for at, first, last in zip(places, before, after, strict=True):
            sizes[at] = self.simple(self.most(sizes[at] + first + last, self.number(0)))
        constant = numpy_helper.to_array(self._constants[names[2]]).item() if names[2] else 0

        def padded(operand: Any, first: Any) -> Any:  # noqa: ANN401
            def element(*indices: Any) -> Any:  # noqa: ANN401
                moved, within = list(indices), []
                for number, at in enumerate(places):
                    place, size = indices[at] - first[number], operand.shape[at]
                    moved[at] = self._padding(mode, place, size)
                    within += [place >= 0, place < size]
                if mode != "constant" or not within:
                    return operand(*moved)
                return tvm.tirx.if_then_else(
                    tvm.tirx.all(*within), operand(*moved), tvm.tirx.const(constant, operand.dtype)
                )

            return tvm.te.compute(sizes, element, name="pad")

        return self.emitted(builder, padded, data, before)

    def _padding(self, mode: str, place: Size, size: Size) -> Size:
        """Return which element of a dimension stands at a place, which may be outside of it."""
        tirx = self._tvm.tirx
        if mode == "edge":
            return tirx.max(tirx.min(place, size - 1), self.number(0))
        if mode == "reflect":  # there and back, as often as needed
            period = tirx.max(2 * (size - 1), self.number(1))
            at = tirx.floormod(place, period)
            return tirx.min(at, tirx.max(2 * (size - 1) - at, self.number(0)))
        return place

    def _not_empty(self, builder: Builder, data: Expr, axes: Sequence[int]) -> Expr:
        """Return a tensor after a check that some of its dimensions have elements."""
        shape = self.shape(data)
        one = self.number(1)
        wanted = [
            self._tvm.tirx.max(size, one) if at in axes and not self.is_proven(size >= one) else size
            for at, size in enumerate(shape)
        ]
        if all(new is old for new, old in zip(wanted, shape, strict=True)):
            return data
        return builder.match_cast(data, self._tvm.relax.TensorType(wanted, data.ty.dtype))

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
        """Lower a Resize of symbolic dimensions, or by scales that give no whole sizes; None for others."""
        relax = self._tvm.relax
        names = [*node.input, *[""] * 4][:4]
        data, shape = inputs[0], self.shape(inputs[0])
        factors = None
        if names[2] in self._constants and numpy_helper.to_array(self._constants[names[2]]).size:
            factors = [float(one) for one in numpy_helper.to_array(self._constants[names[2]])]
            after = self._scaled(builder, shape, factors)
        else:
            after = self.known(names[3]) or self.read_sizes(builder, inputs[3])
        if all(self.value(size) is not None for size in (*shape[2:], *after[2:])) and self._are_whole(shape, factors):
            if names[3]:  # which the importer reads only the spatial sizes of
                inputs[3] = relax.const(np.array([1, 1, *map(self.value, after[2:])], "int64"), "int64")
            return None
        return self.emitted(builder, self._resized(node, factors), data, list(after[2:]))

    def _scaled(self, builder: Builder, shape: Sequence[Size], factors: Sequence[float]) -> list[Size]:
        """Return sizes times factors, rounded down as in float32."""
        relax = self._tvm.relax
        op, emit = relax.op, builder.normalize

        def scaled(size: Size, factor: float) -> Size | None:
            value = self.value(size)
            if value is not None:
                return self.number(int(np.float32(value) * np.float32(factor)))
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

    def _resized(self, node: NodeProto, factors: Sequence[float] | None) -> Callable[[Any, Sequence[Size]], Any]:
        """Return what resizes the dimensions behind the second: to their nearest elements, linearly, or cubically."""
        te, tirx = self._tvm.te, self._tvm.tirx
        mode = self.attribute(node, "coordinate_transformation_mode", b"half_pixel").decode()
        nearest = self.attribute(node, "nearest_mode", b"round_prefer_floor").decode()
        method = self.attribute(node, "mode", b"nearest").decode()
        coefficient = float(self.attribute(node, "cubic_coeff_a", -0.75))
        excludes = bool(self.attribute(node, "exclude_outside", 0))

        def real(value: float) -> Any:  # noqa: ANN401
            return tirx.const(value, "float32")

        def coordinate(at: Size, axis: int, before: Size, after: Size) -> Any:  # noqa: ANN401
            old, new = (size.astype("float32") for size in (before, after))
            scale, place = new / old if factors is None else real(factors[axis]), at.astype("float32")
            if mode == "align_corners":
                return tirx.Select(after > 1, place * (old - real(1)) / tirx.max(new - real(1), real(1)), real(0))
            if mode == "asymmetric":
                return place / scale
            middle = (place + real(0.5)) / scale - real(0.5)
            return tirx.Select(after > 1, middle, real(0)) if mode == "pytorch_half_pixel" else middle

        def within(place: Any, size: Size) -> Any:  # noqa: ANN401
            return tirx.max(tirx.min(place, size - 1), self.number(0))

        def rounded(place: Any) -> Any:  # noqa: ANN401
            if nearest == "round_prefer_ceil":
                return tirx.floor(place + real(0.5))
            if nearest == "round_prefer_floor":
                return tirx.ceil(place - real(0.5))
            return tirx.floor(place) if nearest == "floor" else tirx.ceil(place)

        def cubic(past: Any, first: Size, size: Size) -> list[Any]:  # noqa: ANN401
            """Return the weights of four elements (Keys, "Cubic Convolution Interpolation", 1981)."""

            def near(at: Any) -> Any:  # noqa: ANN401
                return (real(coefficient + 2) * at - real(coefficient + 3)) * at * at + real(1)

            def far(at: Any) -> Any:  # noqa: ANN401
                inner = (real(coefficient) * at - real(5 * coefficient)) * at + real(8 * coefficient)
                return inner * at - real(4 * coefficient)

            weights = [far(past + real(1)), near(past), near(real(1) - past), far(real(2) - past)]
            if not excludes:
                return weights
            inside = [
                tirx.Select(tirx.all(first + step >= 0, first + step < size), weight, real(0))
                for step, weight in zip(range(-1, 3), weights, strict=True)
            ]
            total = inside[0] + inside[1] + inside[2] + inside[3]
            return [weight / total for weight in inside]

        def compute(operand: Any, spatial: Sequence[Size]) -> Any:  # noqa: ANN401
            before, after = operand.shape, [*operand.shape[:2], *spatial]
            wide = "float32" if str(operand.dtype) == "float16" else str(operand.dtype)

            def interpolated(indices: Sequence[Size], found: list[Size]) -> Any:  # noqa: ANN401
                axis = len(found)
                if axis == len(after):
                    return operand(*found).astype(wide)
                place = coordinate(indices[axis], axis, before[axis], after[axis])
                if method == "nearest":
                    return interpolated(indices, [*found, within(rounded(place).astype("int64"), before[axis])])
                if method == "cubic":
                    first = tirx.floor(place).astype("int64")
                    weights = cubic(place - tirx.floor(place), first, before[axis])
                    each = [
                        interpolated(indices, [*found, within(first + step, before[axis])]) * weight.astype(wide)
                        for step, weight in zip(range(-1, 3), weights, strict=True)
                    ]
                    return each[0] + each[1] + each[2] + each[3]
                place = tirx.max(tirx.min(place, (before[axis] - 1).astype("float32")), real(0))
                low = tirx.floor(place)
                first = low.astype("int64")
                weight = (place - low).astype(wide)
                sides = [interpolated(indices, [*found, within(first + step, before[axis])]) for step in (0, 1)]
                return sides[0] * (tirx.const(1, wide) - weight) + sides[1] * weight

            def element(*indices: Size) -> Any:  # noqa: ANN401
                return interpolated(indices, list(indices[:2])).astype(operand.dtype)

            return te.compute(after, element, name="resize")

        return compute

    def non_max_suppression(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr:
        """Lower a NonMaxSuppression; its result has as many rows as boxes are chosen when the program runs."""
        relax = self._tvm.relax
        names = [*node.input, *[""] * 5][:5]
        boxes, scores = inputs[:2]
        batch, count, _ = self.shape(boxes)
        wanted = [batch, self.shape(scores)[1], count]
        if not all(map(self._are_equal, self.shape(scores), wanted)):
            unknown = builder.match_cast(scores, relax.TensorType(dtype="float32", ndim=3))
            scores = builder.match_cast(unknown, relax.TensorType(relax.ShapeExpr(wanted), "float32"))

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

    def top_k(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr | None:
        """Lower a TopK of a computed number of elements: sort all; None for a constant number."""
        tirx, relax = self._tvm.tirx, self._tvm.relax
        if len(node.input) < 2 or node.input[1] in self._constants:
            return None
        data, known = inputs[0], self.known(node.input[1])
        if known is not None and self.value(known[0]) is not None:
            inputs[1] = relax.const(np.array([self.value(known[0])], "int64"), "int64")
            return None
        shape = self.shape(data)
        axis = self.attribute(node, "axis", -1) % len(shape)
        count = (known or self.read_sizes(builder, inputs[1]))[0]
        if not self.is_proven(count <= shape[axis]):
            within = tirx.max(tirx.min(count, shape[axis]), self.number(0))
            builder.match_cast(builder.emit(relax.ShapeExpr([count])), relax.ShapeType([within]))
        largest = bool(self.attribute(node, "largest", 1))
        found = builder.emit(relax.op.topk(data, -1, axis, ret_type="both", largest=largest, dtype="int64"))
        parts = [builder.emit(relax.TupleGetItem(found, at)) for at in range(2)]
        return relax.Tuple([self._first(builder, part, count, axis) for part in parts])

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

    def tree_ensemble(self, builder: Builder, node: NodeProto, inputs: list[Expr]) -> Expr:
        """Lower the sums of a tree ensemble, and the labels of a classifier."""
        relax, attributes, dtype = self._tvm.relax, attributes_of(node), str(inputs[0].ty.dtype)
        ensemble = read_ensemble(node.op_type, attributes, dtype)
        sums, *label = tree_ensemble(builder, ensemble, inputs[0], classes_of(attributes))
        if node.op_type != "TreeEnsemble" and dtype != "float32":
            sums = builder.normalize(relax.op.astype(sums, "float32"))
        return relax.Tuple([*label, sums]) if label else sums


_Lowering: TypeAlias = Callable[[_SymbolicImport, Builder, NodeProto, "list[Expr]"], "Expr | None"]
_LOWERED: dict[str, _Lowering] = {
    "Concat": _SymbolicImport.concat,
    "ConstantOfShape": _SymbolicImport.constant_of_shape,
    **dict.fromkeys(("Div", "Mod"), _SymbolicImport.divide),
    "Einsum": _SymbolicImport.einsum,
    "Expand": _SymbolicImport.expand,
    "GatherElements": _SymbolicImport.elements,
    "GatherND": _SymbolicImport.gather_nd,
    "GridSample": _SymbolicImport.grid_sample,
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _SymbolicImport.recurrent),
    "NonMaxSuppression": _SymbolicImport.non_max_suppression,
    "Pad": _SymbolicImport.pad,
    "Range": _SymbolicImport.range,
    "Reshape": _SymbolicImport.reshape,
    "Resize": _SymbolicImport.resize,
    "ReverseSequence": _SymbolicImport.reverse_sequence,
    "ScatterElements": _SymbolicImport.elements,
    "ScatterND": _SymbolicImport.scatter_nd,
    "Slice": _SymbolicImport.slice,
    "Squeeze": _SymbolicImport.squeeze,
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
