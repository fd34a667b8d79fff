"""Reader of ONNX models.

Schemas and shapes are ONNX's own: checker and shape inference run on a slim copy of the model, without the data of
large initializers, which stays where it is. Constant nodes become constants like initializers, so that one rule decides
whether an operand is constant. Sparse initializers become Constant nodes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import onnx
import onnx.inliner
from google.protobuf.message import DecodeError, EncodeError
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
)

from tvmtarget.errors import ModelError, ModelFileError, TvmTargetError, first_line, warn
from tvmtarget.ir.dim_aliases import dim_aliases, with_dim_aliases
from tvmtarget.ir.function import Attribute, Call, Constant, Function, Opaque, Value, calls_in, domain_of_op
from tvmtarget.ir.inference import infer_call, infer_shapes, with_contrib_types
from tvmtarget.ir.names import Names
from tvmtarget.ir.onnx.functions import instantiate_function
from tvmtarget.ir.onnx.metadata import read_graph_metadata, read_model_metadata
from tvmtarget.ir.onnx.tensors import constant_of, external_tensors, is_small, read_tensor, write_tensor
from tvmtarget.ir.onnx.types import check_model, dtype_name, read_type
from tvmtarget.ir.text.escaping import canonical_nan
from tvmtarget.ir.text.printer import MAX_DEPTH
from tvmtarget.ir.types import Dim, TensorType, Type
from tvmtarget.target.problems import shown
from tvmtarget.untrusted import check_limit, limit, read_bytes

__all__ = ["decode_model", "read_body", "read_model"]

# Exceptions of protobuf, checker, shape inference, inliner and numpy for models that are not valid.
_INVALID = (
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    DecodeError,
    EncodeError,
    ArithmeticError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


def read_model(source: str | Path | bytes | ModelProto, *, keep_functions: bool = False) -> tuple[Function, ...]:
    """Read a model.

    Args:
        source: path of a file, its bytes, or a loaded model.
        keep_functions: keep model-local functions instead of inlining them. Functions whose operator set versions
            differ from the model's are kept in any case, since ONNX cannot inline them.

    Returns:
        The function `main`, and the functions that it calls.

    Raises:
        ModelError: the model is malformed or not supported.
        ModelFileError: the file is not a model, or exceeds a limit for untrusted files.
    """
    model, folder, name = _load(source)
    try:
        return _read(model, folder, name, keep_functions=keep_functions)
    except TvmTargetError:
        raise
    except _INVALID as error:
        raise ModelError(f"{name} is not a valid ONNX model: {first_line(error)}") from error


def _read(model: ModelProto, folder: Path | None, name: str, *, keep_functions: bool) -> tuple[Function, ...]:
    _check_size(model, name)
    _check_opsets(model, name)
    # Checker and inference serialize the whole model; the slim one has no large data.
    slim = _slim(model)
    _fetch_external(slim, folder, name)
    # ONNX's inliner does not convert operators, so that such functions are inlined later by the IR.
    has_other_opsets = any(_has_other_opsets(model, function) for function in model.functions)
    try:
        _check(slim, name, apart=has_other_opsets)
    except onnx.checker.ValidationError as error:
        nodes = _sorted_nodes(slim.graph.node) if "topologically sorted" in str(error) else None
        if nodes is None:
            raise
        del slim.graph.node[:]
        slim.graph.node.extend(nodes)
        _check(slim, name, apart=has_other_opsets)
        warn(f"{name} lists operations before others that compute their operands; they are sorted")
    if slim.functions and not keep_functions and not has_other_opsets:
        slim = onnx.inliner.inline_local_functions(slim)
    _name_dims(slim.graph)
    graph = infer_shapes(slim).graph
    reader = _Reader(folder, name, slim.functions, _dims_of(_types_of(graph)))
    main = reader.function(graph, "main", {tensor.name: tensor for tensor in model.graph.initializer})
    # Calls of model-local functions become calls of the IR, so that versions of their domains matter for others only.
    local = {function.domain for function in model.functions}
    local -= set(map(domain_of_op, main.ops))
    opsets = tuple((domain, version) for domain, version in _opsets(model) if domain not in local)
    main = with_contrib_types(main.replace(opsets=opsets, attrs=(*read_model_metadata(model), *main.attrs)))
    return _with_computed_sizes(main, name), *reader.functions


def _with_computed_sizes(main: Function, name: str) -> Function:
    """Correct the sizes that a model states for its results, where its operations make others.

    Converters of LightGBM state a label of [1] for each batch, CatBoost a vector for a matrix of predictions. ONNX
    Runtime warns of such results, and returns them.
    """
    types, symbols = dict(main.types), {dim for param in main.params for dim in _sizes(param.type) or ()}
    results, constants = frozenset(main.results), {one.name: one.data for one in main.constants}
    wrong = []
    body = list(main.body)
    for at, call in enumerate(body):
        stated = {one.name: sizes for one in call.outputs if one.name in results and (sizes := _sizes(one.type))}
        is_classical = call.op.startswith("onnx.ai.onnx.ml::")  # whose ranks follow from the operator
        if not stated or not (is_classical or any(isinstance(dim, int) for dim in chain(*stated.values()))):
            continue
        values = {one: constants[one] for one in call.inputs if one in constants}
        found = infer_call(call, types, values, main.opsets)
        operands = [_sizes(types.get(one)) for one in call.inputs]
        outputs = []
        for output in call.outputs:
            sizes, type_ = stated.get(output.name), found.get(output.name)
            if sizes is not None and isinstance(type_, TensorType) and type_.shape is not None:
                is_kept = type_.shape in operands or (is_classical and len(type_.shape) != len(sizes))
                computed = replace(type_, shape=_certain_sizes(sizes, type_.shape, is_kept, symbols))
                if computed.shape != sizes:
                    wrong.append(f"{output.name!r}: {output.type}, computed is {computed}")
                    output = replace(output, type=computed)
            outputs.append(output)
        body[at] = replace(call, outputs=tuple(outputs))
    if not wrong:
        return main
    warn(f"{name} states wrong sizes of results, which are ignored: {'; '.join(wrong)}")
    return main.replace(body=tuple(body))


def _certain_sizes(
    stated: tuple[Dim, ...], computed: tuple[Dim, ...], is_kept: bool, symbols: Container[Dim]
) -> tuple[Dim, ...]:
    """Return stated sizes with those that certainly are others: dimensions of inputs, and those that are kept.

    Args:
        stated: the stated sizes.
        computed: those that ONNX infers.
        is_kept: whether these are the sizes of an operand, or another number of them than stated is certain.
        symbols: dimensions of the inputs.

    Returns:
        The sizes.
    """

    def is_certain(dim: Dim) -> bool:
        return dim in symbols or (is_kept and isinstance(dim, int))

    if len(stated) != len(computed):
        return computed if is_kept and all(map(is_certain, computed)) else stated
    pairs = zip(stated, computed, strict=True)
    return tuple(new if isinstance(old, int) and is_certain(new) else old for old, new in pairs)


def _sizes(type_: Type | None) -> tuple[Dim, ...] | None:
    return type_.shape if isinstance(type_, TensorType) else None


def _name_dims(graph: GraphProto) -> None:
    """Name the unnamed dimensions of the inputs, so that values computed from one input are known to fit together."""
    constants = {tensor.name for tensor in graph.initializer}
    taken = Names(
        dim.dim_param
        for value in (*graph.input, *graph.value_info, *graph.output)
        for dim in value.type.tensor_type.shape.dim
    )
    for value in graph.input:
        if value.name in constants:
            continue
        for position, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.WhichOneof("value") is None or (dim.HasField("dim_param") and not dim.dim_param):
                dim.dim_param = taken.fresh(re.sub(r"\W", "_", f"{value.name}_{position}"))


def read_body(graph: GraphProto) -> Function:
    """Read the graph of a model that this library wrote, with all constants in it.

    Args:
        graph: the graph.

    Returns:
        The function.
    """
    return _Reader(None, "the model").function(graph, graph.name, {one.name: one for one in graph.initializer})


def _opsets(proto: ModelProto | FunctionProto) -> tuple[tuple[str, int], ...]:
    return tuple(sorted({_domain(opset.domain): opset.version for opset in proto.opset_import}.items()))


def _domain(domain: str) -> str:
    # ONNX has two spellings of its own domain (ONNX, docs/IR.md); the IR keeps the empty one.
    return "" if domain == "ai.onnx" else domain


def _check_size(model: ModelProto, name: str) -> None:
    """Check depth and inlined size of a model before ONNX recurses into it or expands its functions.

    Functions that call others several times multiply: a small file can expand to any number of operations.
    """
    functions = {(one.domain, one.name, one.overload): one for one in model.functions}
    sizes: dict[tuple[str, str, str], int] = {}
    heights: dict[tuple[str, str, str], int] = {}
    # Iterative depth-first search, since recursion would overflow: the size of a function needs those of its callees.
    open_: dict[tuple[str, str, str], None] = {}
    waiting = list(functions)
    while waiting:
        key = waiting[-1]
        if key in sizes:
            waiting.pop()
            continue
        count, depth, called = _measure(functions[key].node, functions)
        check_limit("model-depth", depth, f"function {key[1]!r} of {name}", ModelFileError)
        if missing := [one for one in called if one not in sizes]:
            open_[key] = None
            if again := [one for one in missing if one in open_]:
                raise ModelFileError(f"function {again[0][1]!r} of {name} calls itself")
            waiting += missing
            continue
        sizes[key] = count + sum(times * sizes[one] for one, times in called.items())
        heights[key] = 1 + max((heights[one] for one in called), default=0)
        check_limit("model-operations", sizes[key], f"function {key[1]!r} of {name}", ModelFileError)
        check_limit("model-depth", heights[key], f"function {key[1]!r} of {name}", ModelFileError)
        open_.pop(key, None)
    count, depth, called = _measure(model.graph.node, functions)
    check_limit("model-depth", depth, name, ModelFileError)
    count += sum(times * sizes[one] for one, times in called.items())
    check_limit("model-operations", count, name, ModelFileError)


def _measure(
    nodes: Iterable[NodeProto], functions: Mapping[tuple[str, str, str], FunctionProto]
) -> tuple[int, int, Mapping[tuple[str, str, str], int]]:
    """Return the number of nodes, nested ones included, the depth of nesting, and how often each function is called."""
    count, depth, called = 0, 0, Counter[tuple[str, str, str]]()
    level = list(nodes)
    while level:
        depth += 1
        count += len(level)
        # The caller rejects the model for its depth, so that nothing below is counted.
        if depth > limit("model-depth"):
            break
        called.update(key for node in level if (key := (node.domain, node.op_type, node.overload)) in functions)
        bodies = (
            graph
            for node in level
            for attribute in node.attribute
            for graph in ((attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs)
        )
        level = [node for graph in bodies for node in graph.node]
    return count, depth, called


def _check_opsets(model: ModelProto, name: str) -> None:
    """Check that a model states one version of each operator set, and none that is newer than the installed ONNX."""
    for proto in (model, *model.functions):
        # Converters of scikit-learn state one version twice, which means the same as once.
        versions = {(_domain(opset.domain), opset.version) for opset in proto.opset_import}
        stated = sorted(domain for domain, _ in versions)
        _check_utf8(stated)
        twice = next((domain for domain in stated if stated.count(domain) > 1), None)
        if twice is not None:
            raise ModelError(f"{name} states two versions of operator set {twice or 'onnx'!r}")
        version, newest = dict(_opsets(proto)).get("", 1), onnx.defs.onnx_opset_version()
        if version > newest:
            known = f"onnx {onnx.__version__} knows them up to {newest}"
            raise ModelError(f"{name} uses version {version} of ONNX's operators, but the installed {known}")


def _has_other_opsets(model: ModelProto, function: FunctionProto) -> bool:
    """Return whether a function uses other versions of operator sets than its model."""
    stated = dict(_opsets(model))
    return any(stated.get(domain, version) != version for domain, version in _opsets(function))


def _check(slim: ModelProto, name: str, *, apart: bool) -> None:
    """Run ONNX's checker; with `apart` on each function alone, as it requires if their operator sets differ."""
    if not apart:
        check_model(slim)
        return
    alone = ModelProto()
    alone.CopyFrom(slim)
    alone.ClearField("functions")
    check_model(alone)
    for function in slim.functions:
        try:
            onnx.checker.check_function(function)
        except onnx.checker.ValidationError as error:
            raise ModelError(f"function {function.name!r} of {name} is not valid: {first_line(error)}") from error


def _load(source: str | Path | bytes | ModelProto) -> tuple[ModelProto, Path | None, str]:
    if isinstance(source, ModelProto):
        return source, None, "the model"
    if isinstance(source, bytes):
        return decode_model(source, "the model"), None, "the model"
    if not isinstance(source, str | Path) or not str(source):
        raise ModelError(f"a model is the path of an ONNX file, its bytes or an onnx.ModelProto, not {shown(source)}")
    path = Path(source)
    data = read_bytes(path, "model file", most="model-bytes", error=ModelFileError)
    return decode_model(data, repr(str(path))), path.parent, repr(str(path))


def decode_model(data: bytes, name: str) -> ModelProto:
    """Decode the bytes of a model.

    Args:
        data: the bytes.
        name: description of the model for errors.

    Returns:
        The model.

    Raises:
        ModelFileError: the bytes are not a model, or exceed a limit for untrusted files.
    """
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        fix = "write one with onnx.save or your framework's export"
        raise ModelFileError(f"{name} is not an ONNX model, is damaged or nested too deep; {fix}") from None
    if not model.ir_version or not model.HasField("graph") or not model.opset_import:
        raise ModelFileError(f"{name} is not an ONNX model: it has no graph or states no operator set")
    _check_size(model, name)
    return model


def _slim(model: ModelProto) -> ModelProto:
    """Copy a model without the data of large initializers, which become inputs of the same type."""
    # Before IR version 4 every initializer had to be an input too, which the slim copy does not keep.
    slim = ModelProto(ir_version=max(model.ir_version, 4))
    slim.opset_import.extend(model.opset_import)
    slim.functions.extend(model.functions)
    results = {(one.domain, one.name, one.overload): len(one.output) for one in model.functions}
    graph, source = slim.graph, model.graph
    graph.name = source.name or "graph"
    initialized = {tensor.name for tensor in source.initializer}
    graph.input.extend(value for value in source.input if value.name not in initialized)
    graph.output.extend(source.output)
    graph.node.extend(source.node)
    graph.sparse_initializer.extend(source.sparse_initializer)
    graph.doc_string = source.doc_string
    graph.metadata_props.extend(source.metadata_props)
    graph.quantization_annotation.extend(source.quantization_annotation)
    for node in graph.node if results else ():
        # Shape inference fails on calls that leave out the last results of a function.
        node.output.extend([""] * (results.get((node.domain, node.op_type, node.overload), 0) - len(node.output)))
    for tensor in source.initializer:
        if is_small(tensor):
            graph.initializer.append(tensor)
        else:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    graph.value_info.extend(source.value_info)
    return slim


def _sorted_nodes(nodes: Iterable[NodeProto]) -> list[NodeProto] | None:
    """Return copies of nodes, each behind those that compute what it reads; None if they are so, or cannot be.

    ONNX requires this order. Converters to float16 append casts of inputs at the end, which ONNX Runtime sorts.
    """
    import networkx  # takes 0.1 s, and most models are sorted

    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    makers = {name: at for at, node in enumerate(copies) for name in node.output if name}
    order = networkx.DiGraph()
    order.add_nodes_from(range(len(copies)))
    order.add_edges_from((makers[name], at) for at, node in enumerate(copies) for name in _reads(node) & makers.keys())
    if all(maker < at for maker, at in order.edges) or not networkx.is_directed_acyclic_graph(order):
        return None
    return [copies[at] for at in networkx.lexicographical_topological_sort(order)]


def _reads(node: NodeProto) -> set[str]:
    """Return the names that a node reads, with all in its bodies."""
    bodies = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return {*node.input}.union(
        *(_reads(inner) for body in bodies for inner in body.node),
        *({value.name for value in body.output} for body in bodies),
    )


def _fetch_external(slim: ModelProto, folder: Path | None, name: str) -> None:
    """Read external data of attributes, functions and nested graphs, which ONNX would look for where it runs."""
    for tensor in external_tensors(slim):
        tensor.CopyFrom(write_tensor(read_tensor(tensor, folder, name)))


def _sparse_constants(graph: GraphProto) -> Iterator[NodeProto]:
    """Yield a Constant node for each sparse initializer."""
    for sparse in graph.sparse_initializer:
        node = NodeProto(op_type="Constant", name=sparse.values.name, output=[sparse.values.name])
        attribute = node.attribute.add(name="sparse_value", type=AttributeProto.SPARSE_TENSOR)
        attribute.sparse_tensor.CopyFrom(sparse)
        yield node


class _Reader:
    """Reads the graphs of one model; operation names are unique over all of them.

    A model-local function has no types: `functions` holds an instance for each set of operand types and attributes.
    Dimensions that its operands do not have are others in each instance, and in each call of one.
    """

    def __init__(
        self, folder: Path | None, name: str, local: Iterable[FunctionProto] = (), dims: Iterable[str] = ()
    ) -> None:
        self._folder = folder
        self._name = name
        self._sources: set[str] = set()
        self._local = {(proto.domain, proto.name, proto.overload): proto for proto in local}
        self._names = Names(["main"])
        self._instances: dict[tuple[object, ...], str] = {}
        self._dims = Names(dims)
        self._computed: dict[str, tuple[str, ...]] = {}  # by instance, dimensions that its operands do not have
        self._depth = 0
        self.functions: list[Function] = []

    def function(self, graph: GraphProto, name: str, data: Mapping[str, TensorProto]) -> Function:
        """Read a graph; `data` holds the initializers with their elements (the graph may be a slim copy)."""
        types = {info.name: read_type(info.type) for info in (*graph.value_info, *graph.output, *graph.input)}
        _check_utf8(types, data)
        self._sources |= {node.name for node in graph.node if node.name} if name == "main" else set()
        taken: set[str] = set()
        params = tuple(Value(i.name, types[i.name]) for i in graph.input if i.name not in data)
        calls = [self._call(node, 0, types, taken) for node in _sparse_constants(graph)]
        names: list[str] = []
        constants = list(data.values())
        for index, node in enumerate(graph.node):
            tensor = constant_of(node)
            if tensor is None:
                calls.append(self._call(node, index, types, taken))
            else:
                constants.append(tensor)
            names.append(calls[-1].source if tensor is None else "")
        return Function(
            name=name,
            params=params,
            body=tuple(calls),
            results=tuple(output.name for output in graph.output),
            constants=tuple(self._constant(tensor) for tensor in constants),
            attrs=read_graph_metadata(graph, names, data.values()),
        )

    def _call(self, node: NodeProto, index: int, types: Mapping[str, Type], taken: set[str]) -> Call:
        attributes = (attribute.name for attribute in node.attribute)
        _check_utf8((node.name, node.op_type, node.domain, node.overload), node.input, node.output, attributes)
        proto = self._local.get((node.domain, node.op_type, node.overload))
        if proto is not None:
            return self._call_of_function(node, proto, types, self._source(node, index, taken))
        domain = _domain(node.domain)
        attrs: list[tuple[str, Attribute]] = []
        regions: list[tuple[str, Function]] = []
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                regions.append((attribute.name, self._region(attribute.g, attribute.name)))
            else:
                attrs.append((attribute.name, self._attribute(attribute)))
        if node.op_type == "Cast" and not domain:
            self._check_cast(node, types.get(node.output[0]), dict(attrs).get("to"))
        return Call(
            op=f"onnx.{domain}::{node.op_type}" if domain else f"onnx.{node.op_type}",
            inputs=tuple(node.input),
            outputs=tuple(Value(name, types.get(name)) for name in node.output),
            attrs=tuple(attrs),
            regions=tuple(regions),
            source=self._source(node, index, taken),
        )

    def _check_cast(self, node: NodeProto, stated: Type | None, to: object) -> None:
        """Check that a Cast makes what the model states: converters to float16 leave other types behind.

        ONNX's inference and checker accept this, and what follows is typed by the wrong one of the two.
        """
        made = dtype_name(to) if isinstance(to, int) else None
        if made is not None and isinstance(stated, TensorType) and stated.dtype != made:
            raise ModelError(
                f"{self._name} states type {stated} for {node.output[0]!r}, but Cast {node.name!r} makes {made}; "
                "correct the stated type or the attribute 'to'"
            )

    def _call_of_function(self, node: NodeProto, proto: FunctionProto, types: Mapping[str, Type], source: str) -> Call:
        arguments = tuple(types.get(name) for name in node.input)
        # Absent operands are part of the key: an instance has no parameters for them.
        key = (proto.domain, proto.name, proto.overload, arguments, *map(bool, node.input), *map(repr, node.attribute))
        dims: dict[str, str] = {}
        if key in self._instances:
            dims = {dim: self._dims.fresh(dim) for dim in self._computed[self._instances[key]]}
        else:
            self._instances[key] = self._names.fresh(proto.name)
            self.functions.append(self._instance(node, proto, arguments, self._instances[key]))
        names = [*node.output, *[""] * (len(proto.output) - len(node.output))]
        outputs = tuple(Value(name, types.get(name)) for name in names)
        call = Call(f"@{self._instances[key]}", tuple(filter(None, node.input)), outputs, source=source)
        return with_dim_aliases(call, dims)

    def _instance(self, node: NodeProto, proto: FunctionProto, types: Sequence[Type], name: str) -> Function:
        """Instantiate a model-local function for one call."""
        if len(node.input) > len(proto.input):
            raise ModelError(f"a call of function {proto.name!r} of {self._name} has more operands than it takes")
        if self._depth > MAX_DEPTH:
            raise ModelError(f"functions of {self._name} call each other deeper than {MAX_DEPTH}, {proto.name!r} too")
        model = instantiate_function(proto, node, types)
        model.functions.extend(self._local.values())
        model.opset_import.extend(onnx.helper.make_opsetid(domain, 1) for domain in _unstated_domains(model))
        try:
            graph = infer_shapes(model).graph
        except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
            raise ModelError(f"function {proto.name!r} of {self._name} is not valid: {first_line(error)}") from error
        local = {domain for domain, _, _ in self._local}
        opsets = tuple((domain, version) for domain, version in _opsets(proto) if domain not in local)
        given = _dims_of(value.type for value in graph.input)
        own = {dim: self._dims.fresh(dim) for dim in sorted(_dims_of(_types_of(graph)) - given)}
        for type_ in _types_of(graph):
            for dim in type_.tensor_type.shape.dim:
                if dim.dim_param in own:
                    dim.dim_param = own[dim.dim_param]
        # Instances nest as the calls do; MAX_DEPTH bounds the recursion.
        self._depth += 1
        function = self.function(graph, name, {})
        self._depth -= 1
        inner = [
            dim_aliases(call).get(dim, dim)
            for call in calls_in(function)
            if call.callee is not None
            for dim in self._computed[call.callee]
        ]
        self._computed[name] = tuple(sorted({*own.values(), *inner}))
        return function.replace(opsets=opsets)

    def _source(self, node: NodeProto, index: int, taken: set[str]) -> str:
        """Return the name of a node, or a unique one made of its operator and position."""
        name: str = node.name
        if not name or name in taken:
            stem = name or f"{node.op_type}_{index}"
            name = stem
            while name in self._sources or name in taken:
                index += 1
                name = f"{stem}_{index}"
            self._sources.add(name)
        taken.add(name)
        return name

    def _region(self, graph: GraphProto, name: str) -> Function:
        return self.function(graph, name, {tensor.name: tensor for tensor in graph.initializer})

    def _constant(self, tensor: TensorProto) -> Constant:
        return read_tensor(tensor, self._folder, self._name)

    def _attribute(self, attribute: AttributeProto) -> Attribute:
        """Read an attribute; types without a form in the IR, and empty lists other than of integers, become opaque."""
        match attribute.type:
            case AttributeProto.INT:
                number: int = attribute.i
                return number
            case AttributeProto.FLOAT:
                return canonical_nan(attribute.f)
            case AttributeProto.STRING:
                return _text(attribute.s)
            case AttributeProto.INTS:
                return tuple(attribute.ints)
            case AttributeProto.FLOATS if attribute.floats:
                return tuple(map(canonical_nan, attribute.floats))
            case AttributeProto.STRINGS if attribute.strings:
                texts = [_text(item) for item in attribute.strings]
                return tuple(texts) if all(isinstance(text, str) for text in texts) else tuple(attribute.strings)  # type: ignore[return-value]
            case AttributeProto.TENSOR:
                return self._constant(attribute.t)
            case AttributeProto.TENSORS if attribute.tensors:
                return tuple(self._constant(tensor) for tensor in attribute.tensors)
            case _:
                kind = AttributeProto.AttributeType.Name(attribute.type)
                return Opaque(kind, attribute.SerializeToString(deterministic=True))


def _regions_of(nodes: Iterable[NodeProto]) -> Iterator[GraphProto]:
    yield from (attribute.g for node in nodes for attribute in node.attribute if attribute.HasField("g"))


def _types_of(graph: GraphProto) -> Iterator[TypeProto]:
    """Yield the stated and inferred types of a graph and of its nested graphs."""
    yield from (value.type for value in (*graph.input, *graph.value_info, *graph.output))
    for region in _regions_of(graph.node):
        yield from _types_of(region)


def _dims_of(types: Iterable[TypeProto]) -> set[str]:
    return {dim.dim_param for type_ in types for dim in type_.tensor_type.shape.dim if dim.dim_param}


def _unstated_domains(model: ModelProto) -> list[str]:
    """Return the domains of model-local functions whose version the model does not state."""
    stated = {opset.domain for opset in model.opset_import}
    return sorted({function.domain for function in model.functions} - stated)


def _check_utf8(*names: Iterable[object]) -> None:
    """Check that names are UTF-8: protobuf returns others as bytes."""
    wrong = next((name for some in names for name in some if not isinstance(name, str)), None)
    if wrong is not None:
        raise ModelError(f"a name in the model is not UTF-8: {wrong!r:.80}")


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data
