"""Operators that ONNX or this package defines by functions of other operators, written as these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import onnx
import onnx.shape_inference
from onnx import FunctionProto

from tvmtarget.errors import ModelError
from tvmtarget.ir.dim_expressions import symbols_of
from tvmtarget.ir.function import Call, Function
from tvmtarget.ir.inference import infer_shapes
from tvmtarget.ir.inline import rename_values
from tvmtarget.ir.onnx.antialiased_resize import antialiased_resize
from tvmtarget.ir.onnx.contrib_definitions import CONTRIB_DEFINITIONS
from tvmtarget.ir.onnx.functions import instantiate_function
from tvmtarget.ir.onnx.graph import write_call
from tvmtarget.ir.onnx.opset_versions import convert_opsets
from tvmtarget.ir.onnx.reader import read_body
from tvmtarget.ir.onnx.same_padding import padded_convolution, padded_maxima
from tvmtarget.ir.onnx.tensors import write_tensor
from tvmtarget.ir.onnx.types import write_type
from tvmtarget.ir.types import TensorType, Type

__all__ = ["definition", "has_definition"]

# Definitions of this package.
_OWN = {
    **CONTRIB_DEFINITIONS,
    "onnx.Conv": padded_convolution,
    "onnx.MaxPool": padded_maxima,
    "onnx.Resize": antialiased_resize,
}


def has_definition(op: str, opset: int) -> bool:
    """Return whether ONNX, or this package, defines an operator by a function.

    Args:
        op: the operator with its dialect, such as `onnx.Attention`.
        opset: the version of ONNX's operator set.

    Returns:
        True if it does, for the types of some operands at least.
    """
    schema = _schema(op, opset)
    return op in _OWN or (schema is not None and bool(_versions(schema, opset)))


def definition(call: Call, types: Mapping[str, Type], opset: int, fresh: Callable[[str], str]) -> Function | None:
    """Return the operations that define an operation.

    Args:
        call: the operation.
        types: the types of the values around it, by name.
        opset: the version of ONNX's operator set.
        fresh: makes names that no value has.

    Returns:
        A body that reads the values around it, and returns the results in order; None if ONNX has no definition for
        the types of the operands.
    """
    if not has_definition(call.op, opset) or call.regions:
        return None
    operands = [_named(types.get(name), fresh) if name else None for name in call.inputs]
    if any(name and one is None for name, one in zip(call.inputs, operands, strict=True)):
        return None
    define = _OWN.get(call.op)
    if define is None:
        found = _function(call, operands, opset)
    else:
        function = define(call, operands, opset)
        found = None if function is None else (function, write_call(call, write_tensor))
    if found is None:
        return None
    proto, node = found
    try:
        model = instantiate_function(proto, node, operands)
        body = read_body(infer_shapes(model, check_type=True, strict_mode=True).graph)
        body = body.replace(opsets=tuple((one.domain, one.version) for one in proto.opset_import))
        body = convert_opsets(body, {"": opset})
    except (ModelError, onnx.shape_inference.InferenceError):
        return None
    if any(one.regions for one in body.body):
        return None
    operand_of = dict(zip((one.name for one in body.params), filter(None, call.inputs), strict=True))
    body = rename_values(body, {name: operand_of.get(name) or fresh(f"{call.source}/{name}") for name in body.types})
    dims = (dim for one in operands if one is not None for dim in one.shape or () if dim is not None)
    symbols = frozenset[str]().union(*map(symbols_of, dims))
    results, calls = body.results[: len(call.outputs)], list[Call]()
    read = {name for name, output in zip(results, call.outputs, strict=False) if output.name}
    for at, one in reversed([*enumerate(body.body)]):
        if not read.isdisjoint(output.name for output in one.outputs):
            read.update(one.inputs)
            outputs = tuple(replace(output, type=_outside(output.type, symbols)) for output in one.outputs)
            calls.append(replace(one, outputs=outputs, source=f"{call.source}/{one.kind}_{at}"))
    constants = tuple(one for one in body.constants if one.name in read)
    return body.replace(params=(), body=tuple(reversed(calls)), constants=constants, results=results)


def _named(type_: Type, fresh: Callable[[str], str]) -> TensorType | None:
    """Return the type of a tensor with names for dimensions of which nothing is known; None for anything else."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return None
    return replace(type_, shape=tuple(fresh("dim") if dim is None else dim for dim in type_.shape))


def _outside(type_: Type, symbols: frozenset[str]) -> Type:
    """Return a type without dimensions that have names inside a definition only."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return type_
    return replace(type_, shape=tuple(dim if symbols_of(dim) <= symbols else None for dim in type_.shape))


def _function(
    call: Call, operands: Sequence[TensorType | None], opset: int
) -> tuple[FunctionProto, onnx.NodeProto] | None:
    """Return ONNX's function for an operation, and the operation with all attributes; None if there is none."""
    schema = _schema(call.op, opset)
    if schema is None:
        return None
    version = _versions(schema, opset)[-1]
    node = write_call(call, write_tensor)
    stated = {attribute.name for attribute in node.attribute}
    # Functions refer to attributes that have defaults.
    defaults = (one.default_value for name, one in schema.attributes.items() if name not in stated)
    node.attribute.extend(default for default in defaults if default.name)
    if version in schema.context_dependent_function_opset_versions:
        types = (onnx.TypeProto() if one is None else write_type(one, what="an operand") for one in operands)
        data = schema.get_context_dependent_function_with_opset_version(
            version, node.SerializeToString(), [one.SerializeToString() for one in types]
        )
    else:
        data = schema.get_function_with_opset_version(version)
    return (FunctionProto.FromString(data), node) if data else None


def _schema(op: str, opset: int) -> onnx.defs.OpSchema | None:
    """Return the schema of an operator of ONNX's own domain; None if there is none."""
    if not op.startswith("onnx.") or "::" in op:
        return None
    try:
        return onnx.defs.get_schema(op.removeprefix("onnx."), opset, "")
    except onnx.defs.SchemaError:
        return None


def _versions(schema: onnx.defs.OpSchema, opset: int) -> list[int]:
    """Return the versions of the operator set that definitions of an operator are written in, up to one."""
    versions = {*schema.function_opset_versions, *schema.context_dependent_function_opset_versions}
    return sorted(one for one in versions if one <= opset)
