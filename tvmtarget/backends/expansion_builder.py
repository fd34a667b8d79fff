"""What expansions of operators share: a builder of nodes and constants, and readers of operands and attributes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, TypeProto, numpy_helper

from tvmtarget.ir.names import Names

__all__ = [
    "ExpansionBuilder",
    "attributes_of",
    "bodies_of",
    "dequantized_array",
    "nodes_in",
    "operands_of",
    "stated_axes",
    "value_names",
]

Array: TypeAlias = "np.ndarray[Any, Any]"


class ExpansionBuilder:
    """Collects nodes and constants.

    Args:
        graph: the graph that is expanded; constants are added to it.
        types: the types of its values by name.
        opset: the version of ONNX's operator set.

    Attributes:
        nodes: the nodes so far.
        types: the types of the values of the graph by name.
        opset: the version of ONNX's operator set.
        replaced: constants that nothing reads any more.
    """

    def __init__(self, graph: GraphProto, types: Mapping[str, TypeProto.Tensor], opset: int) -> None:
        self.nodes: list[NodeProto] = []
        self.opset = opset
        self.types = types
        self.replaced: set[str] = set()
        self._graph = graph
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._names = Names(name for node in graph.node for name in (*node.input, *node.output))
        for name in self._constants:
            self._names.add(name)

    def add(self, kind: str, inputs: Sequence[str], result: str | None = None, **attributes: Any) -> str:  # noqa: ANN401
        """Add an operation of ONNX with one result.

        Args:
            kind: the operator.
            inputs: names of the operands.
            result: name of the result; None for a new one.
            **attributes: its attributes.

        Returns:
            The name of the result.
        """
        name = result or self.fresh(f"{inputs[0]}:{kind}")
        self.nodes.append(onnx.helper.make_node(kind, inputs, [name], **attributes))
        return name

    def fresh(self, like: str) -> str:
        """Make a name that no value has.

        Args:
            like: the name, if it is free, or what it begins with.

        Returns:
            The name.
        """
        return self._names.fresh(like)

    def constant(self, array: Array | np.generic, like: str) -> str:
        """Add a constant.

        Args:
            array: its elements.
            like: the value that it belongs to.

        Returns:
            Its name.
        """
        name = self._names.fresh(f"{like}:constant")
        self._graph.initializer.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def array(self, name: str) -> Array | None:
        """Find the elements of a constant.

        Args:
            name: name of a value.

        Returns:
            The elements; None if the value is computed.
        """
        return numpy_helper.to_array(self._constants[name]) if name in self._constants else None

    def known(self, name: str) -> Array:
        """Find the elements of a value that operator support requires to be constant.

        Args:
            name: name of the value.

        Returns:
            The elements.
        """
        array = self.array(name)
        assert array is not None
        return array

    def maker(self, name: str) -> NodeProto | None:
        """Find the operation of the graph that computes a value.

        Args:
            name: name of the value.

        Returns:
            The operation; None if there is none.
        """
        return self._makers.get(name)

    @cached_property
    def _makers(self) -> dict[str, NodeProto]:
        return {name: node for node in self._graph.node for name in node.output}

    def is_of_sizes(self, name: str) -> bool:
        """Return whether a value of the graph follows from sizes and constants alone.

        Args:
            name: name of the value.

        Returns:
            False for what depends on data, and for what an expansion computes.
        """
        return name in self._of_sizes

    @cached_property
    def _of_sizes(self) -> frozenset[str]:
        found = {"", *self._constants}
        for node in self._graph.node:
            if node.op_type in ("Shape", "Size") or (not bodies_of(node) and found.issuperset(node.input)):
                found.update(node.output)
        return frozenset(found)

    def is_read_once(self, name: str) -> bool:
        """Return whether one operation reads a value of the graph, and only once.

        Args:
            name: name of the value.

        Returns:
            False for results of the graph, too.
        """
        return self._reads[name] == 1

    @cached_property
    def _reads(self) -> Counter[str]:
        """How often each value is read, by nested bodies too."""
        reads, graphs = Counter[str](), [self._graph]
        for graph in graphs:
            reads.update(value.name for value in graph.output)
            for node in graph.node:
                reads.update(node.input)
                graphs += bodies_of(node)
        return reads

    def rank(self, name: str) -> int:
        """Find the number of dimensions of a value of the graph.

        Args:
            name: name of the value.

        Returns:
            The number.
        """
        return len(self.types[name].shape.dim)

    def sizes(self, name: str) -> list[int]:
        """Find the sizes of a value of the graph.

        Args:
            name: name of the value.

        Returns:
            The sizes, 0 for one that is not known; none if the type is not known.
        """
        return [dim.dim_value for dim in self.types[name].shape.dim] if name in self.types else []

    def slice(self, name: str, start: int, end: int, axis: int) -> str:
        """Add a slice.

        Args:
            name: name of the value.
            start: the first element of the axis.
            end: the one behind the last.
            axis: the axis.

        Returns:
            The name of the part.
        """
        return self.add("Slice", [name, *(self.constant(np.array([each]), name) for each in (start, end, axis))])

    def pad(self, name: str, pads: Sequence[int]) -> str:
        """Add padding with zeros.

        Args:
            name: name of the value.
            pads: the numbers of elements before all dimensions, and those behind them.

        Returns:
            The name of the result.
        """
        if self.opset >= 11:
            return self.add("Pad", [name, self.constant(np.array(pads), name)])
        return self.add("Pad", [name], pads=[*pads])

    def reshape(self, name: str, shape: Sequence[int], result: str | None = None) -> str:
        """Add a Reshape.

        Args:
            name: name of the value.
            shape: the shape; at most one dimension may be -1.
            result: name of the result; None for a new one.

        Returns:
            The name of the result.
        """
        return self.add("Reshape", [name, self.constant(np.array(shape), name)], result)

    def along(
        self,
        kind: str,
        name: str,
        axes: Sequence[int],
        result: str | None = None,
        **attributes: Any,  # noqa: ANN401
    ) -> str:
        """Add an operation along some axes, as an attribute or operand by the operator set.

        Args:
            kind: a reduction, Squeeze or Unsqueeze; a reduction keeps its axes by default.
            name: the operand.
            axes: the axes; none for all that the operator takes then.
            result: name of the result; None for a new one.
            **attributes: other attributes.

        Returns:
            The name of the result.
        """
        if not axes:
            return self.add(kind, [name], result, **attributes)
        if self.opset >= (13 if kind in ("ReduceSum", "Squeeze", "Unsqueeze") else 18):
            return self.add(kind, [name, self.constant(np.array(axes, "int64"), name)], result, **attributes)
        return self.add(kind, [name], result, axes=[*axes], **attributes)

    def unsqueeze(self, name: str, axis: int) -> str:
        """Add a dimension of size 1.

        Args:
            name: name of the value.
            axis: the place of the dimension.

        Returns:
            The name of the result.
        """
        return self.along("Unsqueeze", name, [axis])

    def join(self, names: Sequence[str], axis: int) -> str:
        """Add a concatenation, unless there is one value only.

        Args:
            names: names of the values.
            axis: the axis.

        Returns:
            The name of the result.
        """
        return names[0] if len(names) == 1 else self.add("Concat", names, axis=axis)

    def dequantized(self, name: str, scale: str, zero: str, axis: int | None = None) -> str:
        """Dequantize a value.

        Constants stay quantized, for kernels that compute with integers, where DequantizeLinear states their scales.

        Args:
            name: name of the value.
            scale: name of its scales, a constant where the value is.
            zero: name of its zero points; '' for none.
            axis: the axis of several scales.

        Returns:
            The name of the floats.
        """
        array = self.array(name)
        if array is None:
            return self.add("DequantizeLinear", [name, scale, *([zero] if zero else [])])
        scales, zeros = self.known(scale), self.known(zero) if zero else None
        if scales.size == 1 and (zeros is None or zeros.size == 1):
            scalars = [self.constant(one.reshape(()), name) for one in (scales, zeros) if one is not None]
            return self.add("DequantizeLinear", [name, *scalars])
        is_along = axis is not None and scales.ndim == 1 and scales.size == array.shape[axis]
        if is_along and (zeros is None or zeros.shape == scales.shape):
            # TVM's importer reads the axis in versions before 13, too, which do not have it.
            operands = [name, scale, *([zero] if zero else [])]
            return self.add("DequantizeLinear", operands, axis=(axis or 0) % array.ndim)
        return self.constant(dequantized_array(array, scales, zeros, axis).astype(scales.dtype), name)

    def quantize(self, name: str, scale: str, zero: str, result: str) -> None:
        """Quantize a value.

        Args:
            name: name of the value.
            scale: name of the scale.
            zero: name of the zero point; '' for none.
            result: name of the result.
        """
        self.add("QuantizeLinear", [name, scale, *([zero] if zero else [])], result)

    def shifted(self, name: str, zero: str, *, is_row: bool) -> str:
        """Subtract zero points from an operand of a product.

        Args:
            name: name of the operand.
            zero: name of the zero points; '' for none.
            is_row: whether each row has a zero point of its own.

        Returns:
            The name of the difference.
        """
        array, shift = self.array(name), self.array(zero)
        if array is not None and shift is not None:
            wide, shift = array.astype("int16"), shift.astype("int16")
            return self.constant(wide - (shift[:, None] if is_row and shift.ndim == 1 else shift), name)
        if not zero:
            return name
        casts = [self.add("Cast", [each], to=TensorProto.INT16) for each in (name, zero)]
        if is_row and self.rank(zero) == 1:
            casts[1] = self.reshape(casts[1], [-1, 1])
        return self.add("Sub", casts)


def dequantized_array(
    array: Array, scales: Array, zeros: Array | None = None, axis: int | None = None, block: int = 0
) -> Array:
    """Compute the floats of quantized numbers.

    Args:
        array: the numbers.
        scales: a scale; or with an axis one for each place along it, or each block along it.
        zeros: the zero points, of the shape of the scales; None for zeros.
        axis: the axis of several scales, or of the blocks.
        block: how many numbers along the axis have one scale; 0 for scales of the whole array or of places.

    Returns:
        Float32, of the shape of the numbers.
    """
    each = [one.astype("float32") for one in (scales, np.zeros_like(scales) if zeros is None else zeros)]
    if block and axis is not None:
        each = [np.repeat(one, block, axis).take(range(array.shape[axis]), axis) for one in each]
    else:
        shape = [1] * array.ndim
        if scales.size > 1 and axis is not None:
            shape[axis] = -1
        each = [one.reshape(shape) for one in each]
    return np.asarray((array.astype("float32") - each[1]) * each[0])


def operands_of(node: NodeProto, count: int) -> list[str]:
    """List the operands of a node.

    Args:
        node: the node.
        count: how many operands it may have.

    Returns:
        Their names, '' for those that are absent.
    """
    return [*node.input, *[""] * count][:count]


def bodies_of(node: NodeProto) -> list[GraphProto]:
    """Return the bodies of a node, such as the branches of an If.

    Args:
        node: the node.

    Returns:
        The graphs that are its attributes, in order.
    """
    return [attribute.g for attribute in node.attribute if attribute.HasField("g")]


def nodes_in(graph: GraphProto) -> Iterator[NodeProto]:
    """Yield the nodes of a graph and of the bodies in it, each before those of its bodies.

    Args:
        graph: the graph.

    Yields:
        The nodes.
    """
    for node in graph.node:
        yield node
        for body in bodies_of(node):
            yield from nodes_in(body)


def value_names(graph: GraphProto) -> Iterator[str]:
    """Yield the names of the values of a graph and of the bodies in it.

    Args:
        graph: the graph.

    Yields:
        Names; one may occur several times.
    """
    yield from (value.name for value in (*graph.input, *graph.initializer))
    for node in graph.node:
        yield from (*node.input, *node.output)
        for body in bodies_of(node):
            yield from value_names(body)


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """Read the attributes of a node.

    Args:
        node: the node.

    Returns:
        Numbers, strings, sequences of these, and tensors as arrays, by name.
    """
    return {one.name: _plain(onnx.helper.get_attribute_value(one)) for one in node.attribute}


def stated_axes(node: NodeProto, elements: Callable[[str], Array | None]) -> list[int]:
    """Read the axes of a reduction, which are operand 1, or an attribute in old operator sets.

    Args:
        node: the node.
        elements: returns the elements of a constant by its name; None for other values.

    Returns:
        The axes; none if they are not stated, or are computed.
    """
    _, name = operands_of(node, 2)
    axes = elements(name) if name else None
    return list(attributes_of(node).get("axes", ())) if axes is None else list(map(int, axes.flat))


def _plain(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    is_texts = isinstance(value, list) and value and isinstance(value[0], bytes)
    return [one.decode() for one in value] if is_texts else value
