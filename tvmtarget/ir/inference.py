"""Types of values that are not stated, as ONNX's shape inference finds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx

from tvmtarget.errors import ModelError
from tvmtarget.ir.function import COPY, Call, Function, Value
from tvmtarget.ir.onnx_graph import write_graph
from tvmtarget.ir.onnx_types import read_type
from tvmtarget.ir.types import Type

__all__ = ["infer_types"]

_FOREIGN = "tvmtarget.foreign"  # the domain of operators that ONNX does not know; what is stated of their results holds
_SMALL = 1024  # elements of constants that inference may look at


def infer_types(function: Function, functions: Mapping[str, Function] | None = None) -> Function:
    """Return a function with the types of results of its operations filled in where they were not stated.

    `functions` are those it calls: their results have types. `ModelError` says which operation ONNX refuses.
    """
    body = tuple(_with_signature(call, functions or {}) for call in function.body)
    small = tuple(one for one in function.constants if one.data.size <= _SMALL)
    large = tuple(Value(one.name, one.type) for one in function.constants if one.data.size > _SMALL)
    model = onnx.ModelProto(ir_version=10)
    domains = {_FOREIGN: 1} | dict(function.opsets)
    model.opset_import.extend(onnx.helper.make_opsetid(domain, version) for domain, version in domains.items())
    shown = tuple(_shown_to_onnx(call) for call in body)
    write_graph(
        function.replace(params=(*function.params, *large), constants=small, body=shown), model.graph, is_nested=True
    )
    try:
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        reason = next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), "unknown reason")
        raise ModelError(f"function {function.name!r} does not fit together: {reason}") from error
    graph = inferred.graph
    found: dict[str, Type] = {info.name: read_type(info.type) for info in (*graph.value_info, *graph.output)}
    return function.replace(body=tuple(_typed(call, found) for call in body))


def _with_signature(call: Call, functions: Mapping[str, Function]) -> Call:
    callee = functions.get(call.callee or "")
    if callee is None:
        return call
    types = [callee.types.get(result) for result in callee.results]
    outputs = (replace(out, type=out.type or type_) for out, type_ in zip(call.outputs, types, strict=False))
    return replace(call, outputs=tuple(outputs))


def _shown_to_onnx(call: Call) -> Call:
    is_known = call.op.startswith("onnx.") or call.op == COPY
    return call if is_known else Call(f"onnx.{_FOREIGN}::Call", call.inputs, call.outputs)


def _typed(call: Call, found: Mapping[str, Type]) -> Call:
    if all(output.type is not None for output in call.outputs):
        return call
    outputs = (replace(out, type=found.get(out.name)) if out.type is None else out for out in call.outputs)
    return replace(call, outputs=tuple(outputs))
