"""What is checked in each run: sizes, indices and integers of which OpenVINO computes wrong results, and no errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.version_converter

from tvmtarget.backends.classical_expansion import TRAVERSED_TREES
from tvmtarget.backends.engine_packages import engine_package
from tvmtarget.backends.expansion_builder import attributes_of
from tvmtarget.backends.openvino.library import first_line
from tvmtarget.backends.operator_expansion import kind_of, value_types
from tvmtarget.backends.protocol import Array
from tvmtarget.errors import RunError
from tvmtarget.ir.dim_expressions import size_of, symbols_of
from tvmtarget.ir.function import Function
from tvmtarget.ir.onnx.reader import read_body
from tvmtarget.ir.resized_sizes import scales_at
from tvmtarget.ir.types import Dim
from tvmtarget.support.openvino_rules import (
    BY_FLOATS,
    EMPTY,
    EMPTY_IN_RUNS,
    EXACT,
    FAILS_EMPTY,
    MOVED_AS_FLOATS,
    SUMS_SINCE,
)

__all__ = [
    "FloatCheck",
    "IndexCheck",
    "dims_of_elements",
    "float_checks",
    "function_of_open_sizes",
    "index_checks",
    "scaled_dims",
    "size_problem",
    "slice_ends",
    "stated_dims",
    "values_read",
]

# Operators whose second operand holds indices along their axis, and those where it holds coordinates.
_ALONG_AXIS = frozenset({"Gather", "GatherElements", "ScatterElements"})
_COORDINATES = frozenset({"GatherND", "ScatterND"})


@dataclass(frozen=True)
class IndexCheck:
    """Indices of an operator, of which OpenVINO does not report all that are out of bounds.

    Attributes:
        node: name, kind and place of the operator.
        indices: name of the value.
        sizes: elements along each axis that they refer to, as numbers or expressions of dimensions of the inputs.
        constant: the indices, if they are known.
        are_lengths: whether they are numbers of elements, up to all.
        are_natural: whether negative ones are out of bounds; else they count from the end.
    """

    node: str
    indices: str
    sizes: tuple[int | str, ...]
    constant: Array | None = None
    are_lengths: bool = False
    are_natural: bool = False

    def require_within(self, indices: Array, sizes: Mapping[str, int]) -> None:
        """Raise an error for an index that is out of bounds.

        Args:
            indices: the value.
            sizes: the dimensions of the inputs of the run.

        Raises:
            RunError: there is one.
        """
        columns = [indices] if len(self.sizes) == 1 else np.moveaxis(indices, -1, 0)
        for column, size in zip(columns, self.sizes, strict=True):
            elements = size_of(size, sizes)
            if elements is None:
                continue
            least = 0 if self.are_lengths or self.are_natural else -elements
            most = elements if self.are_lengths else elements - 1
            wrong = column[(column < least) | (column > most)]
            if wrong.size and self.are_lengths:
                raise RunError(f"length {wrong[0]} of {self.node} is not one of up to {elements} elements")
            if wrong.size:
                raise RunError(f"index {wrong[0]} of {self.node} is out of bounds for {elements} elements")


@dataclass(frozen=True)
class FloatCheck:
    """Integers that OpenVINO computes with in float32, which is exact up to 2^24.

    Attributes:
        node: name, kind and place of the operator.
        kind: the operator.
        operands: names of the integers that are not constant; of a Pow, with its result.
    """

    node: str
    kind: str
    operands: tuple[str, ...]

    def require_exact(self, values: Mapping[str, Array]) -> None:
        """Raise an error for integers that float32 may not hold, nor sums or products of them.

        Args:
            values: the operands by name.

        Raises:
            RunError: there are such integers.
        """
        arrays = [np.abs(values[name].astype("float64")) for name in self.operands]
        if any(not array.size for array in arrays):
            return
        reached = [float(array.max()) for array in arrays]
        if max(reached) <= EXACT:
            match self.kind:
                case "ReduceL1" | "ReduceMean" | "ReduceSum":
                    reached.append(float(arrays[0].sum()))
                case "ReduceL2" | "ReduceSumSquare":
                    reached.append(float(np.square(arrays[0]).sum()))
                case "ReduceProd":
                    reached.append(float(np.maximum(arrays[0], 1).prod()))
                case "Pow":  # a larger one may have been rounded to this one
                    reached.append(reached[-1] + 1)
        if max(reached) > EXACT:
            dtype = values[self.operands[0]].dtype
            raise RunError(
                f"{self.node} of {', '.join(map(repr, self.operands))} reaches {max(reached):.0f}, and OpenVINO "
                f"computes {dtype} in float32; place its operations on another site"
            )


def float_checks(model: onnx.ModelProto, place: str) -> Iterator[FloatCheck]:
    """Yield what is to be checked in each run: integers that OpenVINO computes with in float32.

    Args:
        model: the model of a function.
        place: the leaf, for messages.

    Yields:
        A check for each operator.
    """
    graph, types = model.graph, value_types(model.graph)
    opset = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)
    wide = {name for name, one in types.items() if one.elem_type in (onnx.TensorProto.INT32, onnx.TensorProto.INT64)}
    wide.difference_update(tensor.name for tensor in graph.initializer)
    for node in graph.node:
        if node.op_type in BY_FLOATS | MOVED_AS_FLOATS and (node.op_type != "ReduceSum" or opset < SUMS_SINCE):
            read = [name for name in node.input if name in wide]
            ends = [name for name in node.output if name in wide and node.op_type == "Pow"]
            if read:
                yield FloatCheck(f"{node.name!r} ({node.op_type}) in {place}", node.op_type, (*read, *ends))


def function_of_open_sizes(model: onnx.ModelProto) -> Function | None:
    """Return a function whose sizes are to be checked in each run.

    Args:
        model: the model of the function.

    Returns:
        The function; None if all sizes of its inputs are known.
    """
    dims = (dim for value in model.graph.input for dim in value.type.tensor_type.shape.dim)
    if all(dim.HasField("dim_value") for dim in dims):
        return None
    opsets = tuple((one.domain, one.version) for one in model.opset_import)
    return read_body(model.graph).replace(opsets=opsets)


def size_problem(model: Any, inputs: Sequence[int | None], shapes: Sequence[tuple[int, ...]]) -> str | None:  # noqa: ANN401
    """Return what OpenVINO's inference says of the sizes of a run; None if they fit.

    It infers sizes while it runs, too, but broadcasts some that do not fit (2026.4).

    Args:
        model: the model that was compiled.
        inputs: of each input of the function, the number of that of the model; None if it lacks it.
        shapes: the shapes of the inputs of the function.

    Returns:
        The problem.
    """
    known, ports = model.clone(), {}
    for at, shape in zip(inputs, shapes, strict=True):
        if at is not None:
            ports[known.input(at)] = engine_package("openvino").PartialShape(shape)
    try:
        known.reshape(ports)
    except Exception as error:
        return f"sizes of inputs do not fit: {first_line(error)}"
    return None


def index_checks(graph: onnx.GraphProto, place: str) -> Iterator[IndexCheck]:
    """Yield what is to be checked in each run: indices that may be out of bounds.

    That is where they, or the sizes of what they refer to, are not known.
    Sizes that are neither static nor follow from those of inputs are not checked.

    Args:
        graph: the graph of the function.
        place: the leaf, for messages.

    Yields:
        A check for each operator.
    """
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    constants = {name: tuple(tensor.dims) for name, tensor in tensors.items()}
    given = [value for value in graph.input if value.name not in constants]
    shapes: dict[str, tuple[int | str, ...]] = {**constants}
    for value in (*graph.value_info, *graph.output, *given):
        if value.type.tensor_type.HasField("shape"):
            dims = value.type.tensor_type.shape.dim
            shapes[value.name] = tuple(one.dim_value if one.HasField("dim_value") else one.dim_param for one in dims)
    symbols = {dim for value in given for dim in shapes.get(value.name, ()) if isinstance(dim, str)}
    for node in graph.node:
        if node.op_type not in _ALONG_AXIS | _COORDINATES | {"ArrayFeatureExtractor", "ReverseSequence"}:
            continue
        data, indices = shapes.get(node.input[0]), shapes.get(node.input[1])
        attributes = {one.name: one.i for one in node.attribute}
        if data is None or indices is None:
            continue
        are_lengths, are_natural = node.op_type == "ReverseSequence", node.op_type == "ArrayFeatureExtractor"
        first, count = attributes.get("time_axis" if are_lengths else "axis", -1 if are_natural else 0), 1
        if node.op_type in _COORDINATES:
            first, last = attributes.get("batch_dims", 0), indices[-1]
            count = last if isinstance(last, int) else 0
        sizes = data[first % len(data) :][:count]
        known = tuple(size for size in sizes if isinstance(size, int) or (size and symbols_of(size) <= symbols))
        tensor = tensors.get(node.input[1])
        if len(known) == count > 0 and (tensor is None or not all(isinstance(size, int) for size in known)):
            constant = None if tensor is None else onnx.numpy_helper.to_array(tensor)
            name = f"{node.name!r} ({node.op_type}) in {place}"
            yield IndexCheck(name, node.input[1], known, constant, are_lengths, are_natural)


def stated_dims(type_: onnx.TypeProto.Tensor) -> list[Dim]:
    """Return the shape that a type of ONNX states.

    Args:
        type_: the type of a tensor.

    Returns:
        Sizes, names of dimensions, and None for those without either.
    """
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in type_.shape.dim]


def values_read(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the values that operations read; of CastLike, only the type of the second is read.

    Args:
        graph: a graph.

    Yields:
        Names, also those of results and of what nested graphs read.
    """
    yield from (value.name for value in graph.output)
    for node in graph.node:
        yield from node.input[:1] if node.op_type == "CastLike" else node.input
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from values_read(attribute.g)


def dims_of_elements(graph: onnx.GraphProto) -> tuple[tuple[int, int, str, str], ...]:
    """Find the symbolic dimensions that must not be 0.

    Args:
        graph: the graph of a function.

    Returns:
        Position of the input, axis, name of the dimension, and name and kind of an operation that needs elements.
    """
    types = value_types(graph)
    fails = any(
        node.op_type in FAILS_EMPTY or (node.op_type == "Flatten" and attributes_of(node).get("axis", 1) != 1)
        for node in graph.node
    )
    tested = (EMPTY if fails else EMPTY_IN_RUNS) | TRAVERSED_TREES.keys()
    needs: dict[str, str] = {}
    for node in graph.node:
        # Past keys may be none, but those of a run without any are those of the run before (2026.4).
        is_tested = kind_of(node) in tested
        if not is_tested or node.op_type == "Attention":
            for name in node.input[:3] if is_tested else (*node.input, *node.output):
                dims = types[name].shape.dim if name in types else ()
                needs |= {dim.dim_param: f"{node.name!r} ({node.op_type})" for dim in dims if dim.dim_param}
    constants = {tensor.name for tensor in graph.initializer}
    given = [value for value in graph.input if value.name not in constants]
    return tuple(
        (at, axis, dim.dim_param, needs[dim.dim_param])
        for at, value in enumerate(given)
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        if dim.dim_param in needs
    )


def scaled_dims(graph: onnx.GraphProto) -> Iterator[tuple[str, np.float32, str]]:
    """Find the symbolic dimensions that constants scale.

    Args:
        graph: the graph of a function.

    Yields:
        The dimension, the scale, and name and kind of the operation.
    """
    types = value_types(graph)
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type not in ("Resize", "Upsample") or node.input[0] not in types:
            continue
        attributes, operand = attributes_of(node), scales_at(node.input)
        tensor = None if operand is None else constants.get(node.input[operand])
        scales = attributes.get("scales", ()) if tensor is None else onnx.numpy_helper.to_array(tensor)
        dims = stated_dims(types[node.input[0]])
        for axis, scale in zip(attributes.get("axes", range(len(dims))), scales, strict=False):
            if -len(dims) <= axis < len(dims) and isinstance(dim := dims[axis], str):
                yield dim, np.float32(scale), f"{node.name!r} ({node.op_type})"


def slice_ends(graph: onnx.GraphProto) -> set[str]:
    """Find the inputs that say where slices begin and end, and nothing else.

    Args:
        graph: the graph of a function.

    Returns:
        Their names.
    """
    ends = {name for node in graph.node if node.op_type == "Slice" for name in node.input[1:3]}
    return ends - {
        name for node in graph.node for at, name in enumerate(node.input) if node.op_type != "Slice" or at not in (1, 2)
    } - {value.name for value in graph.output}  # fmt: skip
