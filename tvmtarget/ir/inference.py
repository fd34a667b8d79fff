"""Type inference for functions, by ONNX's shape inference with bounded memory."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from math import floor, log2, prod
from typing import Any, TypeAlias

import numpy as np
import onnx

from tvmtarget.errors import ModelError, TvmTargetError, warn
from tvmtarget.ir.function import COPY, Call, Constant, Function, Value, domain_and_kind
from tvmtarget.ir.onnx.contrib_types import contrib_types
from tvmtarget.ir.onnx.graph import write_call, write_graph
from tvmtarget.ir.onnx.tensors import constant_of, write_tensor
from tvmtarget.ir.onnx.types import read_type, write_type
from tvmtarget.ir.resized_sizes import resized, scales_at
from tvmtarget.ir.symbolic_shapes import integers_of
from tvmtarget.ir.types import Dim, TensorType, Type, type_of_array
from tvmtarget.python_process import python_command, python_environment

__all__ = ["infer_call", "infer_shapes", "infer_types", "with_contrib_types"]

_FOREIGN = "tvmtarget.foreign"  # domain under which ONNX sees operators of other dialects; their stated types hold
_RESIZINGS = frozenset({"Resize", "Upsample"})
_POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
_CORRECTED = _RESIZINGS | _POOLS | {"Attention", "STFT"}
_ROUNDED = (
    22  # the first version of ONNX that leaves out windows which begin in padding, as engines do for all versions
)
# By places of a graph, of a node in it and, of scales, of an operand.
_Scales: TypeAlias = "dict[tuple[int, int, int], list[float]]"
_Results: TypeAlias = "dict[tuple[int, int], dict[str, Type]]"
_SMALL = 1024  # constants with at most this many elements are passed by value


def infer_shapes(model: onnx.ModelProto, *, check_type: bool = False, strict_mode: bool = False) -> onnx.ModelProto:
    """Run ONNX's shape inference, with data propagation where it takes bounded memory.

    Data propagation keeps a message for each element of each vector of known length, even if no element is known, so
    that a model of 100 bytes can exhaust memory. A model with long known vectors is inferred without it; one whose
    vector lengths are computed and could be long is inferred in a process with bounded memory. Sizes of what is resized
    by constant scales and of pools are rounded as engines round them, and results of `Attention` are as long as past
    and new keys, and have the features of its values.

    Args:
        model: the model; large initializers should be inputs.
        check_type: as for `onnx.shape_inference.infer_shapes`.
        strict_mode: as for `onnx.shape_inference.infer_shapes`.

    Returns:
        The model with inferred types. If the bounded process fails, computed shapes stay unknown and a warning is
        issued.

    Raises:
        onnx.shape_inference.InferenceError: as ONNX raises it.
    """
    infer = partial(_infer, check_type=check_type, strict_mode=strict_mode)
    if not any(node.op_type in _CORRECTED for graph in _graphs(model) for node in graph.node):
        return infer(model)
    corrections: tuple[_Scales, _Results] = ({}, {})
    for _ in range(_MOST_ROUNDS):
        inferred = infer(_corrected(model, *corrections))
        results = dict(chain(_results_of_attention(model, inferred), _results_of_pools(model, inferred)))
        needed = (dict(_exact_scales(model, inferred)), results)
        if needed == corrections:
            break
        corrections = needed
    _restore(inferred, model)
    return inferred


def _infer(model: onnx.ModelProto, *, check_type: bool, strict_mode: bool) -> onnx.ModelProto:
    infer = partial(onnx.shape_inference.infer_shapes, model, check_type, strict_mode)
    length, largest, is_computed = _vectors(onnx.shape_inference.infer_shapes(model))
    # Known lengths alone already exceed the limit.
    if length > _MOST_ELEMENTS:
        return infer(False)
    operators = Counter(node.op_type for graph in _graphs(model) for node in graph.node)
    # Products of n + 1 numbers below m, and sums of as many terms as there are additions, bound what is computed.
    bits = (1 + operators["Mul"] + operators["Pow"]) * log2(max(largest, 2))
    bits += log2(1 + operators["Add"] + operators["Sub"] + operators["Concat"])
    if not is_computed or bits <= log2(_MOST_ELEMENTS):
        return infer(True)
    inferred = _in_bounded_process(model, check_type=check_type, strict_mode=strict_mode)
    if inferred is None:
        warn("shapes that the model computes are not known: propagating them takes more than 2 GiB or 30 s")
    return infer(False) if inferred is None else inferred


_MOST_ELEMENTS = 1 << 21  # about 500 MB of messages
# Operators that can produce vectors of a computed length.
_SHAPED_BY_VALUES = frozenset(
    {"ConstantOfShape", "Expand", "OneHot", "Pad", "Range", "Repeat", "Reshape", "Resize", "Tile"}
)


def _vectors(inferred: onnx.ModelProto) -> tuple[int, int, bool]:
    """Measure the vectors of a model that was inferred without data propagation.

    Returns:
        Total length of vectors of known length, the largest integer in the model, and whether vectors of a computed
        length are produced.
    """
    length, largest, is_computed = 0, 1, False
    for graph in _graphs(inferred):
        shapes: dict[str, list[int]] = {}
        for info in (*graph.input, *graph.value_info, *graph.output):
            if info.type.tensor_type.HasField("shape"):
                shapes[info.name] = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        length += sum(shape[0] for shape in shapes.values() if len(shape) == 1)
        largest = max([largest, *(dim for shape in shapes.values() for dim in shape)])
        tensors = [*graph.initializer]
        for node in graph.node:
            made = (shapes.get(name) for name in node.output if name)
            is_computed |= node.op_type in _SHAPED_BY_VALUES and any(shape is None or shape == [0] for shape in made)
            for attribute in node.attribute:
                tensors += [attribute.t] if attribute.HasField("t") else []
                largest = max([largest, abs(attribute.i), *map(abs, attribute.ints)])
        for tensor in tensors:
            if tensor.data_type in (onnx.TensorProto.INT32, onnx.TensorProto.INT64) and prod(tensor.dims) <= _SMALL:
                values = onnx.numpy_helper.to_array(tensor)
                largest = max([largest, *(abs(int(value)) for value in values.flat)])
    return length, largest, is_computed


def _graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Yield the graph of a model and all that are nested in it."""
    waiting = [model.graph]
    while waiting:
        graph = waiting.pop()
        yield graph
        for attribute in (attribute for node in graph.node for attribute in node.attribute):
            waiting += [attribute.g] if attribute.HasField("g") else []
            waiting += attribute.graphs


_MOST_ROUNDS = 16  # of operations that read what others return
_LARGEST_SCALE = 1 << 20
_ADDED = "tvmtarget.scales"  # prefix of names


def _exact_scales(
    model: onnx.ModelProto, inferred: onnx.ModelProto
) -> Iterator[tuple[tuple[int, int, int], list[float]]]:
    """Yield the resizings by scales for which ONNX infers other sizes than engines return.

    Args:
        model: the model.
        inferred: the model with inferred types.

    Yields:
        Places of the graph, of the node in it and of the operand, and scales for which ONNX infers the sizes that
        engines return.
    """
    for place, (graph, known) in enumerate(zip(_graphs(model), _graphs(inferred), strict=True)):
        resizings = [
            (at, one, scales)
            for at, one in enumerate(graph.node)
            if one.op_type in _RESIZINGS and (scales := scales_at(one.input)) is not None
        ]
        if not resizings:
            continue
        constants = {one.name: one for one in (*graph.initializer, *filter(None, map(constant_of, graph.node)))}
        types = {one.name: read_type(one.type) for one in (*known.input, *known.value_info, *known.output)}
        for at, node, operand in resizings:
            scales = constants.get(node.input[operand])
            if scales is not None:
                factors = onnx.numpy_helper.to_array(scales).reshape(-1).tolist()
                axes = next((one.ints for one in node.attribute if one.name == "axes"), range(len(factors)))
                exact = _exact_factors(types.get(node.input[0]), factors, axes)
                if exact != factors:
                    yield (place, at, operand), exact


def _exact_factors(type_: Type, factors: Sequence[float], axes: Iterable[int]) -> list[float]:
    """Return scales whose exact products with sizes, rounded down, are the sizes that engines return."""
    exact = list(factors)
    shape = type_.shape if isinstance(type_, TensorType) else None
    for at, (axis, factor) in enumerate(zip(axes, factors, strict=False)):
        size = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
        # Scales of a file may be anything.
        if (
            isinstance(size, int)
            and size
            and 0 < factor < _LARGEST_SCALE
            and floor(size * factor) != resized(size, factor)
        ):
            exact[at] = (resized(size, factor) + 0.5) / size
    return exact


def _results_of_attention(
    model: onnx.ModelProto, inferred: onnx.ModelProto
) -> Iterator[tuple[tuple[int, int], dict[str, Type]]]:
    """Yield places of a graph and of an `Attention` in it whose types ONNX infers wrongly, and those of its results."""
    types: dict[str, Type] = {}
    for place, graph in enumerate(_graphs(inferred)):
        types |= {one.name: read_type(one.type) for one in (*graph.input, *graph.value_info, *graph.output)}
        for at, node in enumerate(graph.node):
            if node.op_type == "Attention" and node.domain in ("", "ai.onnx"):
                heads = {one.name: one.i for one in node.attribute if one.name.endswith("_num_heads")}
                found = _types_of_attention(node.input, node.output, types, heads)
                if found:
                    yield (place, at), {name: types.get(name) for name in node.output if name} | found


def _types_of_attention(
    inputs: Sequence[str], outputs: Sequence[str], types: Mapping[str, Type], heads: Mapping[str, object]
) -> dict[str, Type]:
    """Return the types of results of an `Attention` that ONNX (1.23) infers wrongly.

    Of values of symbolic features it infers results without features, and of a symbolic number of keys products without
    columns. It infers no rank for keys and values if the past has a symbolic length, and leaves the past out of the
    products then, and where no keys are returned.
    """
    operands = [types.get(name) for name in (*inputs, *[""] * 6)]
    queries, keys, values, _, past, past_values = (one if isinstance(one, TensorType) else None for one in operands[:6])
    query_shape, key_shape, value_shape, past_shape = (
        one.shape or () if one else () for one in (queries, keys, values, past)
    )
    found: dict[str, Type] = {}
    number = count if isinstance(count := heads.get("q_num_heads"), int) else None
    if queries is not None and len(query_shape) == len(value_shape) == 3 and not isinstance(value_shape[2], int):
        features = value_shape[2] if number == heads.get("kv_num_heads") else None
        found[outputs[0]] = replace(queries, shape=(*query_shape[:2], features))
    length = key_shape[-2] if len(key_shape) in (3, 4) else None
    if len(past_shape) == 4 and len(key_shape) in (3, 4):
        old = past_shape[2]
        length = length + old if isinstance(length, int) and isinstance(old, int) else None
        for name, one in zip(outputs[1:3], (past, past_values), strict=False):
            if one is not None and one.shape is not None and len(one.shape) == 4:
                found[name] = replace(one, shape=(*one.shape[:2], length, one.shape[3]))
    if len(outputs) > 3 and queries is not None and len(query_shape) in (3, 4) and len(key_shape) in (3, 4):
        rows = query_shape[:3] if len(query_shape) == 4 else (query_shape[0], number, query_shape[1])
        found[outputs[3]] = replace(queries, shape=(*rows, length))
    return {name: type_ for name, type_ in found.items() if name}


def _results_of_pools(
    model: onnx.ModelProto, inferred: onnx.ModelProto
) -> Iterator[tuple[tuple[int, int], dict[str, Type]]]:
    """Yield places of a graph and of a pool in it for which ONNX infers other sizes than engines return, and its types.

    Before version 22, ONNX also counts windows that begin in padding where sizes are rounded up (`ceil_mode`).
    """
    version = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), _ROUNDED)
    if version >= _ROUNDED:
        return
    for place, (graph, known) in enumerate(zip(_graphs(model), _graphs(inferred), strict=True)):
        pools = [(at, one) for at, one in enumerate(graph.node) if one.op_type in _POOLS and _is_rounded_up(one)]
        types = {one.name: one.type for one in (*known.input, *known.value_info, *known.output)} if pools else {}
        for at, node in pools:
            if not types.get(node.input[0], onnx.TypeProto()).tensor_type.HasField("shape"):
                continue
            operand = {node.input[0]: types[node.input[0]]}
            schemas = (onnx.defs.get_schema(node.op_type, one) for one in (version, _ROUNDED))
            try:
                was, is_now = (onnx.shape_inference.infer_node_outputs(one, node, operand) for one in schemas)
            except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
                continue  # the inference of the model says so, if it is strict
            if was != is_now:
                yield (place, at), {name: read_type(type_) for name, type_ in is_now.items()}


def _is_rounded_up(node: onnx.NodeProto) -> bool:
    return node.domain in ("", "ai.onnx") and any(one.name == "ceil_mode" and one.i for one in node.attribute)


def _corrected(model: onnx.ModelProto, scales: _Scales, results: _Results) -> onnx.ModelProto:
    """Return a model with other scales, and with operations of an unknown domain whose results have stated types."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for graph in _graphs(changed):
        for node in graph.node:
            _state_sides(node)
    if results and all(one.domain != _FOREIGN for one in changed.opset_import):
        changed.opset_import.append(onnx.helper.make_opsetid(_FOREIGN, 1))
    graphs = list(_graphs(changed))
    for (place, at, operand), factors in scales.items():
        node, name = graphs[place].node[at], f"{_ADDED}_{place}_{at}"
        node.input[operand] = name
        graphs[place].initializer.append(onnx.numpy_helper.from_array(np.array(factors, "float32"), name))
    for (place, at), types in results.items():
        graph, node = graphs[place], graphs[place].node[at]
        node.domain = _FOREIGN
        stated = {one.name: one for one in (*graph.value_info, *graph.output)}
        for name, type_ in types.items():
            if name not in stated:
                stated[name] = graph.value_info.add(name=name)
            # What a file states of a pool is what ONNX inferred when the file was written.
            is_open = node.op_type in _POOLS or not stated[name].type.tensor_type.HasField("shape")
            if type_ is not None and is_open:
                stated[name].type.CopyFrom(write_type(type_, what=name))
    return changed


def _state_sides(node: onnx.NodeProto) -> None:
    """State the default of `onesided` of an STFT, 1; ONNX (1.23) takes 0 where it is not stated."""
    if node.op_type == "STFT" and all(one.name != "onesided" for one in node.attribute):
        node.attribute.append(onnx.helper.make_attribute("onesided", 1))


def _restore(inferred: onnx.ModelProto, model: onnx.ModelProto) -> None:
    for graph, source in zip(_graphs(inferred), _graphs(model), strict=True):
        for node, original in zip(graph.node, source.node, strict=True):
            if original.op_type in _CORRECTED:
                node.CopyFrom(original)
        kept = [one for one in graph.initializer if not one.name.startswith(_ADDED)]
        del graph.initializer[:]
        graph.initializer.extend(kept)
    del inferred.opset_import[:]
    inferred.opset_import.extend(model.opset_import)


_BOUNDED = """
import resource, sys
import onnx
data = sys.stdin.buffer.read()
resource.setrlimit(resource.RLIMIT_AS, (2 * 2**30 + 8 * len(data),) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
check_type, strict_mode = map(int, sys.argv[1:])
model = onnx.load_from_string(data)
try:
    inferred = onnx.shape_inference.infer_shapes(model, bool(check_type), bool(strict_mode), True)
except onnx.shape_inference.InferenceError as error:
    sys.stdout.buffer.write(str(error).encode())
    sys.exit(3)
sys.stdout.buffer.write(inferred.SerializeToString())
"""
_REJECTED = 3  # exit status when ONNX rejects the model


def _in_bounded_process(model: onnx.ModelProto, *, check_type: bool, strict_mode: bool) -> onnx.ModelProto | None:
    """Infer shapes with data propagation in a process limited to 2 GiB and 30 s; return None if that is not enough.

    The limit is of processor time, so that what is inferred does not depend on what else runs.
    """
    command = python_command("-c", _BOUNDED, str(int(check_type)), str(int(strict_mode)))
    environment = python_environment(OPENBLAS_NUM_THREADS="1")  # each thread reserves address space
    data = model.SerializeToString()
    try:
        done = subprocess.run(command, input=data, capture_output=True, env=environment, check=True, timeout=600)
    except subprocess.CalledProcessError as error:
        if error.returncode == _REJECTED:
            raise onnx.shape_inference.InferenceError(error.stdout.decode(errors="replace")) from None
        return None
    except subprocess.TimeoutExpired:
        return None
    return onnx.load_from_string(done.stdout)


def infer_types(function: Function, functions: Mapping[str, Function] | None = None) -> Function:
    """Infer the types of results that are not stated.

    Args:
        function: the function; operators of other dialects keep their stated types.
        functions: functions that it calls, whose results have types.

    Returns:
        The function with types filled in.

    Raises:
        ModelError: ONNX rejects an operation.
    """
    body = tuple(_with_signature(call, functions or {}) for call in function.body)
    small = tuple(one for one in function.constants if one.data.size <= _SMALL)
    large = tuple(Value(one.name, one.type) for one in function.constants if one.data.size > _SMALL)
    model = onnx.ModelProto(ir_version=10)
    domains = {_FOREIGN: 1} | dict(function.opsets)
    model.opset_import.extend(onnx.helper.make_opsetid(domain, version) for domain, version in domains.items())
    # Operators of other dialects become operators of an unknown domain, which inference skips.
    shown = tuple(_shown_to_onnx(call) for call in body)
    write_graph(
        function.replace(params=(*function.params, *large), constants=small, body=shown), model.graph, is_nested=True
    )
    try:
        inferred = infer_shapes(model, check_type=True, strict_mode=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        reason = next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), "unknown reason")
        raise ModelError(f"function {function.name!r} does not fit together: {reason}") from error
    graph = inferred.graph
    found: dict[str, Type] = {info.name: read_type(info.type) for info in (*graph.value_info, *graph.output)}
    return with_contrib_types(function.replace(body=tuple(_typed(call, found) for call in body)))


def with_contrib_types(function: Function) -> Function:
    """Infer types that ONNX does not infer, and those of what is computed from them.

    Args:
        function: the function, whose other types are inferred already.

    Returns:
        The function with types filled in; nested bodies stay as they are.
    """
    if not any(call.op.startswith(_CONTRIB) and any(map(_is_open, call.outputs)) for call in function.body):
        return function
    types = dict(function.types)
    values = {one.name: one.data for one in function.constants}
    body = []
    for call in function.body:
        if any(map(_is_open, call.outputs)):
            if call.regions:
                call = _with_nested_types(function, call, types)
            found = infer_call(call, types, values, function.opsets)
            outputs = (
                replace(one, type=found.get(one.name, one.type)) if _is_open(one) else one for one in call.outputs
            )
            call = replace(call, outputs=tuple(outputs))
            types |= {one.name: one.type for one in call.outputs}
        body.append(call)
    return function.replace(body=tuple(body))


def _with_nested_types(function: Function, call: Call, types: Mapping[str, Type]) -> Call:
    """Infer the types of the results and of the bodies of an operation, whose operands ONNX did not know."""

    def inferred(part: Function) -> Function:
        read = part.captures()
        constants = tuple(one for one in function.constants if one.name in read)
        known = {one.name for one in constants}
        around = (Value(name, types.get(name)) for name in read if name not in known)
        closed = part.replace(
            params=(*part.params, *around), constants=(*part.constants, *constants), opsets=function.opsets
        )
        try:
            typed = infer_types(closed)
        except ModelError:  # it keeps what is stated
            return part
        # Dimensions that ONNX names anew may have names that it gave to others in the rest of the model.
        stated = {dim for type_ in closed.types.values() if isinstance(type_, TensorType) for dim in type_.shape or ()}
        return part.replace(body=tuple(_with_dims(one, stated) for one in typed.body))

    (call,) = inferred(function.replace(params=(), constants=(), body=(call,), results=())).body
    return replace(call, regions=tuple((label, inferred(body)) for label, body in call.regions))


def _with_dims(call: Call, known: Collection[Dim]) -> Call:
    """Return an operation whose results have no other named dimensions than known ones."""

    def limited(value: Value) -> Value:
        if not isinstance(value.type, TensorType) or value.type.shape is None:
            return value
        shape = tuple(dim if isinstance(dim, int) or dim in known else None for dim in value.type.shape)
        return replace(value, type=TensorType(value.type.dtype, shape))

    return replace(call, outputs=tuple(map(limited, call.outputs)))


def _is_open(value: Value) -> bool:
    """Return whether the type of a value is not known, or only its element type is."""
    return bool(value.name) and (
        value.type is None or (isinstance(value.type, TensorType) and value.type.shape is None)
    )


_CONTRIB = (
    *("onnx.com.microsoft::", "onnx.ai.onnx.ml::", "onnx.SimplifiedLayerNormalization"),
    *("onnx.GroupNormalization", "onnx.STFT"),
)


def infer_call(
    call: Call,
    types: Mapping[str, Type],
    values: Mapping[str, np.ndarray[Any, Any]],
    opsets: Iterable[tuple[str, int]],
) -> dict[str, Type]:
    """Infer the types of the results of one operation.

    Args:
        call: the operation.
        types: types of values by name.
        values: values that are known, by name.
        opsets: operator set versions by domain.

    Returns:
        Types by name; none for an operation that ONNX cannot infer, and for one with nested bodies.
    """
    own: dict[str, Type] = {}
    if call.op.startswith(_CONTRIB):
        operands = [type_ if isinstance(type_ := types.get(name), TensorType) else None for name in call.inputs]
        pairs = zip(call.outputs, contrib_types(call, operands), strict=False)
        own = {output.name: type_ for output, type_ in pairs if output.name and type_ is not None}
        # Of a signal of known length, ONNX counts the frames.
        if (own and call.op != "onnx.STFT") or "com.microsoft" in call.op:
            return own
    if call.regions or not call.op.startswith("onnx."):
        return {}
    domain, kind = domain_and_kind(call.op)
    names = [name for name in call.inputs if name]
    operand = scales_at(call.inputs) if kind in _RESIZINGS else None
    if operand is not None and (scales := call.inputs[operand]) in values:
        axes = integers_of(call, "axes", range(values[scales].size))
        factors = _exact_factors(types.get(call.inputs[0]), values[scales].reshape(-1).tolist(), axes)
        values = {**values, scales: np.array(factors, "float32")}
    try:
        imports = [onnx.helper.make_opsetid(name, version) for name, version in opsets]
        operand_types = {name: write_type(types.get(name), what=name) for name in names}
        data = {
            name: write_tensor(Constant(name, type_of_array(value, types.get(name)), value))
            for name in names
            if (value := values.get(name)) is not None and value.size <= _SMALL
        }
        node = write_call(call, write_tensor)
        version = max(dict(opsets).get(domain, 0), _ROUNDED if _is_rounded_up(node) else 0)
        schema = onnx.defs.get_schema(kind, version, domain)
        _state_sides(node)
        found = onnx.shape_inference.infer_node_outputs(schema, node, operand_types, data, opset_imports=imports)
        inferred = {name: read_type(type_) for name, type_ in found.items()}
        if call.op == "onnx.Attention":
            outputs = [output.name for output in call.outputs]
            inferred |= _types_of_attention(call.inputs, outputs, types, dict(call.attrs))
        if call.op == "onnx.Dropout" and call.outputs[1:]:
            kept, mask = (inferred.get(output.name) for output in call.outputs)
            # Before version 12, ONNX infers no shape of the mask.
            if isinstance(kept, TensorType) and isinstance(mask, TensorType):
                inferred[call.outputs[1].name] = TensorType(mask.dtype, kept.shape)
        known = {name: type_ for name, type_ in inferred.items() if not _is_open(Value(name, type_))} if own else {}
        return inferred | own | known
    # An operator or type that ONNX cannot infer keeps what is stated.
    except (
        TvmTargetError,
        onnx.checker.ValidationError,
        onnx.defs.SchemaError,
        onnx.shape_inference.InferenceError,
        RuntimeError,
        TypeError,
        ValueError,
    ):
        return own


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
