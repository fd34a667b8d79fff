"""Modules back into ONNX: a function with all it calls becomes one checked, stand-alone model."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from tvmtarget.errors import ModelError
from tvmtarget.ir.function import COPY, Attribute, Call, Constant, Function, Opaque, Value
from tvmtarget.ir.inline import inline_calls
from tvmtarget.ir.onnx_types import check_model, write_type
from tvmtarget.ir.types import DTYPES, TensorType

__all__ = ["write_function", "write_graph"]

# Versions of the format, each with the last element type it has (onnx/onnx.in.proto).
_IR_VERSIONS = ((8, 16), (9, 20), (10, 22), (11, 23), (12, 24), (13, 26))


def write_function(function: Function, functions: Mapping[str, Function]) -> ModelProto:
    """Write a function as a model; calls of other functions are inlined, copies become Identity."""
    function, name = inline_calls(function, functions).function, function.name
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in function.opsets]
    model = ModelProto(ir_version=_ir_version(function), producer_name="tvmtarget")
    model.opset_import.extend(opsets)
    write_graph(function, model.graph)
    try:
        check_model(model)
    except onnx.checker.ValidationError as error:
        raise ModelError(f"function {name!r} does not make a valid ONNX model: {str(error).splitlines()[0]}") from error
    return model


def _ir_version(function: Function) -> int:
    """Return the oldest version of the format that has all element types of a function: runtimes refuse new ones."""
    numbers = [DTYPES[type_.dtype][0] for type_ in function.types.values() if isinstance(type_, TensorType)]
    newest = max(numbers, default=0)
    return next((version for version, number in _IR_VERSIONS if newest <= number), _IR_VERSIONS[-1][0])


def write_graph(function: Function, graph: GraphProto, *, is_nested: bool = False) -> None:
    """Write a function into a graph; values of a nested one need no types."""
    graph.name = function.name
    for value in function.params:
        _write_value(value, graph.input.add(), function, is_nested=is_nested)
    taken = {*function.constant_names, *(param.name for param in function.params)}
    results: list[str] = []
    for position, result in enumerate(function.results):
        results.append(f"{result}__out{position}" if result in taken and not is_nested else result)
        taken.add(result)
    returned = set(results)
    for constant in function.constants:
        graph.initializer.append(_write_tensor(constant))
    for call in function.body:
        graph.node.append(_write_call(call))
        for output in () if is_nested else call.outputs:
            if isinstance(output.type, TensorType) and output.name not in returned:
                graph.value_info.add(name=output.name).type.CopyFrom(write_type(output.type, what=output.name))
    for result, written in zip(function.results, results, strict=True):
        if written != result:
            graph.node.append(onnx.helper.make_node("Identity", [result], [written], name=written))
        _write_value(Value(written, function.types.get(result)), graph.output.add(), function, is_nested=is_nested)


def _write_value(value: Value, info: onnx.ValueInfoProto, function: Function, *, is_nested: bool) -> None:
    info.name = value.name
    if value.type is not None or not is_nested:
        info.type.CopyFrom(write_type(value.type, what=f"{value.name!r} of function {function.name!r}"))


def _write_tensor(constant: Constant) -> TensorProto:
    if constant.type.dtype == "string":
        values = [item.encode() if isinstance(item, str) else item for item in constant.data.ravel().tolist()]
        return onnx.helper.make_tensor(constant.name, TensorProto.STRING, constant.data.shape, values)
    tensor = numpy_helper.from_array(constant.data, constant.name)
    tensor.data_type = DTYPES[constant.type.dtype][0]
    return tensor


def _write_call(call: Call) -> NodeProto:
    if call.op == COPY:
        return onnx.helper.make_node("Identity", call.inputs, [call.outputs[0].name], name=call.source)
    domain, separator, op_type = call.op.removeprefix("onnx.").rpartition("::")
    if not call.op.startswith("onnx."):
        raise ModelError(f"op {call.source!r} is {call.op!r}, which is no operator of ONNX")
    node = NodeProto(op_type=op_type, name=call.source, domain=domain if separator else "")
    node.input.extend(call.inputs)
    node.output.extend(output.name for output in call.outputs)
    for name, value in call.attrs:
        node.attribute.append(_write_attribute(name, value))
    for name, region in call.regions:
        attribute = node.attribute.add()
        attribute.name, attribute.type = name, AttributeProto.GRAPH
        write_graph(region, attribute.g, is_nested=True)
    return node


def _write_attribute(name: str, value: Attribute) -> AttributeProto:
    attribute = AttributeProto(name=name)
    if isinstance(value, Opaque):
        attribute.ParseFromString(value.data)
    elif isinstance(value, Constant):
        attribute.type = AttributeProto.TENSOR
        attribute.t.CopyFrom(_write_tensor(value))
    elif isinstance(value, tuple) and value and isinstance(value[0], Constant):
        attribute.type = AttributeProto.TENSORS
        attribute.tensors.extend(_write_tensor(item) for item in value if isinstance(item, Constant))
    elif value == ():
        attribute.type = AttributeProto.INTS
    else:
        attribute = onnx.helper.make_attribute(name, value)
    return attribute
