"""Writer of functions as ONNX graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from tvmtarget.errors import ModelError, did_you_mean, first_line
from tvmtarget.ir.function import COPY, Attribute, Call, Constant, Function, Opaque, Value, domain_and_kind
from tvmtarget.ir.onnx.metadata import write_graph_metadata
from tvmtarget.ir.onnx.tensors import external_tensors, write_tensor
from tvmtarget.ir.onnx.types import write_type
from tvmtarget.ir.types import TensorType

__all__ = ["WriteTensor", "output_names", "write_call", "write_graph"]

WriteTensor: TypeAlias = "Callable[[Constant], TensorProto]"


def write_graph(
    function: Function, graph: GraphProto, *, is_nested: bool = False, tensor: WriteTensor = write_tensor
) -> None:
    """Write a function into a graph.

    ONNX requires results to be results of nodes. A constant that is returned is written as a Constant node; a returned
    parameter of the outermost graph, a value of an enclosing graph, and a repeated result are copied by Identity.

    Args:
        function: the function; calls of functions must be inlined.
        graph: graph to fill.
        is_nested: whether this is the body of an operation, whose values need no types.
        tensor: writes a constant.

    Raises:
        ModelError: a value has no type, or an operation or attribute has no form in ONNX.
    """
    graph.name = function.name
    for value in function.params:
        _write_value(value, graph.input.add(), function, is_nested=is_nested)
    results = _results(function, is_nested=is_nested)
    returned = set(results)
    for constant in function.constants:
        if constant.name in returned:
            graph.node.append(_write_constant(constant, tensor))
        else:
            graph.initializer.append(tensor(constant))
    for call in function.body:
        graph.node.append(write_call(call, tensor))
        for output in call.outputs:
            if isinstance(output.type, TensorType) and output.name not in returned:
                graph.value_info.add(name=output.name).type.CopyFrom(write_type(output.type, what=output.name))
    for result, written in zip(function.results, results, strict=True):
        # ONNX allows neither an input nor an outer value as an output.
        if written != result:
            graph.node.append(onnx.helper.make_node("Identity", [result], [written], name=written))
        _write_value(Value(written, function.types.get(result)), graph.output.add(), function, is_nested=is_nested)
    write_graph_metadata(function, graph)


def _results(function: Function, *, is_nested: bool) -> list[str]:
    outer = {result for result in function.results if result not in function.types}
    if is_nested:
        return output_names(function.results, outer, f"__{function.name}_out")
    return output_names(function.results, outer.union(param.name for param in function.params))


def output_names(results: Sequence[str], taken: Iterable[str], suffix: str = "__out") -> list[str]:
    """Return the names of results in ONNX; a result that must be copied gets a new name.

    Args:
        results: the results of a function.
        taken: values that no output can be, such as the inputs; and neither can a result that is one already.
        suffix: what a new name has between the name of the result and its number.

    Returns:
        A name for each result.
    """
    known = set(taken)
    names: list[str] = []
    for position, result in enumerate(results):
        names.append(f"{result}{suffix}{position}" if result in known else result)
        known.add(result)
    return names


def _write_value(value: Value, info: onnx.ValueInfoProto, function: Function, *, is_nested: bool) -> None:
    info.name = value.name
    if value.type is not None or not is_nested:
        what = f"{value.name!r} of function {function.name!r}"
        if value.type is None:
            raise ModelError(f"the type of {what} is not known{_why(value.name, function)}")
        info.type.CopyFrom(write_type(value.type, what=what))


def _why(name: str, function: Function) -> str:
    """Return the end of an error message: why ONNX could not type a value, and what to do."""
    call = next((call for call in function.body for output in call.outputs if output.name == name), None)
    kind, version = "" if call is None else call.op.removeprefix("onnx."), dict(function.opsets).get("", 1)
    if call is not None and kind != call.op and "." not in kind and not onnx.defs.has(kind, version):
        known = [schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain]
        near = did_you_mean(kind, known)
        return f": version {version} of ONNX has no operator {kind!r} (op {call.source!r}){near}"
    source = "" if call is None else f": op {call.source!r} ({call.op}) yields what ONNX's shape inference cannot type"
    return f"{source}; state it with with_types(module, {{{name!r}: 'float32[...]'}})"


def _write_constant(constant: Constant, tensor: WriteTensor) -> NodeProto:
    node = NodeProto(op_type="Constant", output=[constant.name])
    node.attribute.add(name="value", type=AttributeProto.TENSOR).t.CopyFrom(tensor(constant))
    return node


def write_call(call: Call, tensor: WriteTensor) -> NodeProto:
    """Write an operation.

    Args:
        call: the operation.
        tensor: writes a constant.

    Returns:
        The node.

    Raises:
        ModelError: the operation or an attribute has no form in ONNX.
    """
    if call.op == COPY:
        return onnx.helper.make_node("Identity", call.inputs, [call.outputs[0].name], name=call.source)
    if not call.op.startswith("onnx."):
        raise ModelError(f"op {call.source!r} is {call.op!r}, which is not an ONNX operator")
    domain, kind = domain_and_kind(call.op)
    node = NodeProto(op_type=kind, name=call.source, domain=domain)
    node.input.extend(call.inputs)
    node.output.extend(output.name for output in call.outputs)
    for name, value in call.attrs:
        node.attribute.append(_write_attribute(name, value, tensor))
    for name, region in call.regions:
        attribute = node.attribute.add()
        attribute.name, attribute.type = name, AttributeProto.GRAPH
        write_graph(region, attribute.g, is_nested=True, tensor=tensor)
    return node


def _write_attribute(name: str, value: Attribute, tensor: WriteTensor) -> AttributeProto:
    attribute = AttributeProto(name=name)
    if isinstance(value, Opaque):
        try:
            attribute.ParseFromString(value.data)
        except DecodeError as error:
            raise ModelError(f"attribute {name!r} is not in the encoding of ONNX: {first_line(error)}") from error
        if tensor_ := next(external_tensors(attribute), None):
            raise ModelError(f"attribute {name!r} holds tensor {tensor_.name!r}, whose data is in another file")
    elif isinstance(value, Constant):
        attribute.type = AttributeProto.TENSOR
        attribute.t.CopyFrom(tensor(value))
    elif isinstance(value, tuple) and value and isinstance(value[0], Constant):
        attribute.type = AttributeProto.TENSORS
        attribute.tensors.extend(tensor(item) for item in value if isinstance(item, Constant))
    # The reader keeps empty lists of other types as opaque, so that this one is of integers.
    elif value == ():
        attribute.type = AttributeProto.INTS
    else:
        attribute = onnx.helper.make_attribute(name, value)
    return attribute
