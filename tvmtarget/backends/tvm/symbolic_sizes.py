"""Sizes of values as expressions, while a graph of ONNX becomes a function of Relax.

TVM is imported late and ships no types: its objects are Any, under names that say what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, TypeAlias

import onnx
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from tvmtarget.backends.tvm.compiled_module import LARGEST_SIZE, import_tvm
from tvmtarget.backends.tvm.tir_builder import OPAQUE
from tvmtarget.ir.types import Dim

__all__ = ["INTEGERS", "MOST_SIZES", "Shapes", "SymbolicSizes"]

Builder: TypeAlias = Any
Expr: TypeAlias = Any  # of Relax
Size: TypeAlias = Any  # an integer expression of TIR, or a bool that is known
Shapes: TypeAlias = "Mapping[str, tuple[Dim, ...]]"

MOST_SIZES = 64  # elements of a value that holds sizes
INTEGERS = {TensorProto.INT32: "int32", TensorProto.INT64: "int64", TensorProto.BOOL: "bool"}


class SymbolicSizes:
    """What is known of the sizes in a graph: expressions in symbols of the shapes of the inputs.

    Args:
        model: the model.
        shapes: dimensions by value, as the partitioner knows them.
        dtypes: ONNX's numbers of the element types, by value.
    """

    def __init__(self, model: ModelProto, shapes: Shapes, dtypes: Mapping[str, int]) -> None:
        self._tvm = import_tvm()
        self._shapes = shapes
        self._dtypes = dtypes
        self._proofs = self._tvm.sym.Analyzer()
        self._dims: dict[str, Size] | None = None
        self._sizes: dict[str, list[Size]] = {}
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}

    def bind(self, inputs: Mapping[str, Expr]) -> None:
        """Learn the symbols of the shapes of the inputs, once.

        Args:
            inputs: the inputs, by name.
        """
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

    def known(self, name: str) -> list[Size] | None:
        """Return the elements of a scalar or vector of integers.

        Args:
            name: name of the value.

        Returns:
            The elements as expressions; None if they are not known.
        """
        tensor = self._constants.get(name)
        if name not in self._sizes and tensor is not None and tensor.data_type in INTEGERS and len(tensor.dims) < 2:
            array = numpy_helper.to_array(tensor)
            if array.size <= MOST_SIZES:
                self._sizes[name] = [
                    bool(one) if array.dtype == bool else self.number(int(one)) for one in array.reshape(-1)
                ]
        return self._sizes.get(name)

    def number(self, value: int) -> Size:
        """Return a number as an expression.

        Args:
            value: the number.

        Returns:
            The expression, of int64.
        """
        return self._tvm.tirx.IntImm("int64", value)

    def value(self, size: Size) -> int | None:
        """Return the number that a size is.

        Args:
            size: the size.

        Returns:
            The number; None if it is symbolic.
        """
        return int(size.value) if isinstance(size, self._tvm.tirx.IntImm) else None

    def simple(self, size: Size) -> Size:
        """Return a size in a simpler form.

        Args:
            size: the size.

        Returns:
            An equal size.
        """
        return size if isinstance(size, bool) else self._proofs.simplify(size)

    def is_proven(self, condition: Size) -> bool:
        """Return whether a condition on sizes holds for all sizes.

        Args:
            condition: the condition.

        Returns:
            False also if that cannot be proven.
        """
        return condition if isinstance(condition, bool) else bool(self._proofs.can_prove(condition))

    def _are_equal(self, first: Size, second: Size) -> bool:
        return bool(self._proofs.can_prove_equal(first, second))

    def least(self, first: Size, second: Size) -> Size:
        """Return the smaller of two sizes.

        Args:
            first: a size.
            second: another one.

        Returns:
            One of them if it is known which, or an expression.
        """
        for less, more in ((first, second), (second, first)):
            if self.is_proven(less <= more):
                return less
        return self._tvm.tirx.min(first, second)

    def most(self, first: Size, second: Size) -> Size:
        """Return the larger of two sizes.

        Args:
            first: a size.
            second: another one.

        Returns:
            One of them if it is known which, or an expression.
        """
        for less, more in ((first, second), (second, first)):
            if self.is_proven(less <= more):
                return more
        return self._tvm.tirx.max(first, second)

    def product(self, sizes: Sequence[Size]) -> Size:
        """Return the product of sizes.

        Args:
            sizes: the sizes.

        Returns:
            Their product; 1 for none.
        """
        return self.simple(reduce(lambda a, b: a * b, sizes, self.number(1)))

    def dim(self, dim: Dim) -> Size | None:
        """Return the expression of a dimension of the partitioner.

        Args:
            dim: the dimension.

        Returns:
            The expression; None if nothing in the function has it.
        """
        return self.number(dim) if isinstance(dim, int) else (self._dims or {}).get(dim or "")

    def rank(self, name: str) -> int | None:
        """Return the number of dimensions of a value.

        Args:
            name: name of the value.

        Returns:
            The number; None if it is not known.
        """
        tensor = self._constants.get(name)
        shape = self._shapes.get(name) if tensor is None else tensor.dims
        return None if shape is None else len(shape)

    def attribute(self, node: NodeProto, name: str, default: Any) -> Any:  # noqa: ANN401
        """Return an attribute of a node.

        Args:
            node: the node.
            name: name of the attribute.
            default: what is returned if the node has none.

        Returns:
            Its value.
        """
        found = (onnx.helper.get_attribute_value(one) for one in node.attribute if one.name == name)
        return next(found, default)

    def _shape_of(self, value: Expr) -> list[Size] | None:
        values = getattr(getattr(value.ty, "shape", None), "values", None)
        return None if values is None else list(values)

    def shape(self, value: Expr) -> list[Size]:
        """Return the dimensions of a tensor, which are known for all values.

        Args:
            value: the tensor.

        Returns:
            The dimensions.

        Raises:
            ValueError: the dimensions are not known.
        """
        found = self._shape_of(value)
        if found is None:
            raise ValueError(f"the shape of {value.ty} is not known")
        return found

    def read_sizes(self, builder: Builder, tensor: Expr, least: int = 0) -> list[Size]:
        """Read sizes from a vector when the program runs.

        Args:
            builder: TVM's builder of Relax functions.
            tensor: the vector of integers.
            least: what each of them is at least.

        Returns:
            Its elements, as new symbols.

        Raises:
            ValueError: the number of sizes is not known.
        """
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
        """Return sizes as a tensor.

        Args:
            builder: TVM's builder of Relax functions.
            sizes: the sizes.
            dtype: type of the elements.
            is_scalar: whether there is one size, which becomes a scalar.

        Returns:
            A vector or scalar.
        """
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

        Args:
            builder: TVM's builder of Relax functions.
            compute: the function.
            *operands: its operands.

        Returns:
            The result.
        """
        call = builder.call_te(compute, *operands, primfunc_name_hint="computed")
        fields = call.args[1].fields
        if not len(fields) or any(not isinstance(one.ty, self._tvm.relax.TensorType) for one in fields):
            attributes = {"op_pattern": OPAQUE}
            call = builder.call_te(compute, *operands, primfunc_name_hint="computed", primfunc_attrs=attributes)
        return builder.emit(call)

    def _checked(self, builder: Builder, value: Expr, sizes: Sequence[Size], wanted: Sequence[Size]) -> Expr:
        """Return a value with other dimensions, after a check that these are equal to its own.

        A check by a symbol alone defines it for TVM's pass CanonicalizeTIRVariables, which then replaces the symbols of
        parameters. So the check compares with an expression, and a copy, which is fused with what reads it, has the
        dimensions.
        """
        te = self._tvm.te
        compared = [new if new is old else self._as_expression(new) for new, old in zip(wanted, sizes, strict=True)]
        checked = builder.match_cast(value, self._tvm.relax.TensorType(compared, value.ty.dtype))
        return self.emitted(
            builder, lambda operand: te.compute(wanted, lambda *indices: operand(*indices), name="checked"), checked
        )

    def _as_expression(self, size: Size) -> Size:
        """Return a size as an expression, if it is not a number: one that no proof simplifies to a symbol."""
        limit = self._tvm.tirx.IntImm("int64", 1 << 62)  # which no dimension exceeds
        return size if self.value(size) is not None else self._tvm.tirx.min(size, limit)

    def _require_equal(self, builder: Builder, size: Size, wanted: Size) -> None:
        """Check when the program runs that two sizes are equal, where this is not known."""
        if not self._are_equal(size, wanted):
            relax = self._tvm.relax
            builder.match_cast(builder.emit(relax.ShapeExpr([size])), relax.ShapeType([self._as_expression(wanted)]))
