"""ONNX Runtime on the CPU, or by another of its execution providers, for leaves of kind onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import onnx
from onnx import GraphProto, NodeProto, TensorProto, TensorShapeProto, TypeProto, helper

from tvmtarget.backends.engine_packages import engine_package
from tvmtarget.backends.expansion_builder import attributes_of, bodies_of, nodes_in, stated_axes, value_names
from tvmtarget.backends.machine import processors
from tvmtarget.backends.onnxruntime_provider import CPU, Provider, assigned
from tvmtarget.backends.operator_expansion import value_types
from tvmtarget.backends.protocol import Ability, Array, Backend, Compiled, CompileRequest
from tvmtarget.errors import BackendError, CompileError, RunError
from tvmtarget.human_units import counted
from tvmtarget.ir.dim_expressions import size_of, symbols_of
from tvmtarget.ir.names import Names
from tvmtarget.python_process import never_free_in_forks
from tvmtarget.support.onnxruntime_rules import ENDED_BY_NOTHING
from tvmtarget.target.attributes import Value
from tvmtarget.target.tree import Target

__all__ = ["BACKEND"]

_LEVELS = {0: "ORT_DISABLE_ALL", 1: "ORT_ENABLE_BASIC", 2: "ORT_ENABLE_EXTENDED", 99: "ORT_ENABLE_ALL"}
_ERRORS_ONLY = 3
_FATAL_ONLY = 4


class _OnnxRuntime(Backend):
    name = "onnxruntime"
    kinds = ("onnxruntime",)
    supports = frozenset[Ability]({"keeps-inputs", "shared-code"})
    honours = {
        "onnxruntime": frozenset(
            {
                "intra-op-threads",
                "intra-op-spinning",
                "optimization-level",
                "provider",
                "provider-device",
                "provider-library",
                "provider-options",
                "cpu-fallback",
            }
        )
    }

    def version(self) -> str:
        return f"onnxruntime {engine_package('onnxruntime').__version__}"

    def unsupported_reason(self, target: Target, device: int = 0) -> str | None:
        try:
            return Provider.of(target).problem(engine_package("onnxruntime"))
        except ValueError as error:
            return str(error)

    def settings(self, target: Target) -> Mapping[str, Sequence[Value]]:
        counts = {1, processors()} | {2**power for power in range(1, 7) if 2**power < processors()}
        return {"intra-op-threads": tuple(sorted(counts)), "optimization-level": (1, 2)}

    def compile(self, request: CompileRequest) -> _Session:
        ort, place = engine_package("onnxruntime"), f"@{request.site or '.'}"
        level = request.target["optimization-level"]
        if level not in _LEVELS:
            raise BackendError(f"optimization-level {level!r} of {place} is not one of 0, 1, 2, 99")
        try:
            provider = Provider.of(request.target)
            if not request.is_trusted and (provider.library or provider.options):
                raise ValueError("provider-library and provider-options of a file need trust (trust=True)")
            make = _Maker(ort, request.target, provider, _skipped(request.model.graph) if provider.is_cpu else ())
            make.providers(ort.SessionOptions())  # errors of the provider are reported apart from those of the program
        except ValueError as error:
            raise BackendError(f"onnxruntime cannot take function {request.name!r} of {place}: {error}") from error
        try:
            source = request.source_with(_overwritten(request.model.graph))
            session = _Session(
                partial(make, _guarded(source, request.model.graph) if provider.is_cpu else source), request
            )
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise CompileError(
                f"onnxruntime cannot take function {request.name!r} of {place}: {reason}; place its "
                "operations on another site (where, --where)",
                function=request.name,
            ) from error
        if not provider.is_cpu and not provider.allows_cpu:
            _check_assignment(session, make, request)
        return session


@dataclass(frozen=True)
class _Maker:
    """Makes sessions for a leaf.

    Attributes:
        ort: the package.
        target: the leaf.
        provider: its execution provider.
        skipped: optimizers of the package that do not run.
    """

    ort: Any
    target: Target
    provider: Provider
    skipped: Sequence[str]

    def __call__(self, source: bytes) -> Any:  # noqa: ANN401
        options = self.ort.SessionOptions()
        options.log_severity_level = _ERRORS_ONLY if self.provider.is_cpu else _FATAL_ONLY
        level = _LEVELS[int(str(self.target["optimization-level"]))]
        options.graph_optimization_level = getattr(self.ort.GraphOptimizationLevel, level)
        options.intra_op_num_threads = int(str(self.target["intra-op-threads"]))
        # Each session has threads of its own. Busy ones would compete with those of other functions for the processors.
        # One pool of a process is no alternative in Python: once it exists, onnxruntime (1.31) refuses all sessions
        # with threads of their own, those of other libraries too, and a fork has none of its threads.
        spinning = "1" if self.target["intra-op-spinning"] else "0"
        options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        # It would replace two quantizations of a value by one of another scale, whose results differ (1.31).
        options.add_session_config_entry("session.disable_double_qdq_remover", "1")
        # By default, a product with dequantized weights of 4 bits rounds its other operand to int8 (1.31); 1 does not.
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        providers = self.providers(options)
        # Without the last argument, a session whose provider fails runs on the CPU, after a line on standard output.
        make = partial(self.ort.InferenceSession, source, options, providers=providers or None, enable_fallback=0)
        try:
            return make(disabled_optimizers=[*self.skipped])
        except Exception as error:
            # Moving int8 operands of a DequantizeLinear, it writes an invalid QuantizeLinear since version 21 (1.31).
            if "y_zero_point" not in str(error):
                raise
            return make(disabled_optimizers=[*self.skipped, "QDQPropagationTransformer"])

    def providers(self, options: Any) -> list[Any]:  # noqa: ANN401
        return self.provider.add_to(options, self.ort)


def _overwritten(graph: GraphProto) -> list[str]:
    """Return the operands of normalizers, which these do not overwrite if they are results of the model.

    In place, the normalizer of onnxruntime (1.31) squares its operand first and reads the signs from the squares.
    """
    return sorted({node.input[0] for node in graph.node if node.op_type == "Normalizer"})


def _skipped(graph: GraphProto) -> Sequence[str]:
    """Return the optimizers that cannot run on the CPU for a graph."""
    values = (*graph.input, *graph.value_info, *graph.output)
    types = {*(value.type.tensor_type.elem_type for value in values), *(one.data_type for one in graph.initializer)}
    # onnxruntime (1.31) ends the process where it fuses a transposition of batches into a product of float16.
    skipped = ["MatmulTransposeFusion"] if TensorProto.FLOAT16 in types else []
    # It moves transposes to where a cubic Resize has channels behind the sizes, which has no kernel (1.31).
    if any(node.op_type == "Resize" and attributes_of(node).get("mode") == "cubic" for node in nodes_in(graph)):
        skipped.append("TransposeOptimizer_CPUExecutionProvider")
    # It takes zeros around a pool's operand for padding of the pool, which has no values, and for more than it allows.
    padded: set[str] = set()
    for node in nodes_in(graph):
        if node.op_type == "Pad" or (node.op_type == "Identity" and node.input[0] in padded):
            padded.add(node.output[0])
        elif node.op_type in ("AveragePool", "MaxPool") and node.input[0] in padded:
            return [*skipped, "Pad_Fusion"]
    return skipped


class _Session(Compiled):
    def __init__(self, make: Callable[[], Any], request: CompileRequest) -> None:
        self._make = make
        self._ops = request.ops
        self._place = f"@{request.site or '.'}"
        self._dims = [(value.name, _dims(value.type.tensor_type)) for value in request.model.graph.input]
        self._not_zero = _not_zero(request.model.graph)
        self._session = self._made()
        self._names = [node.name for node in self._session.get_inputs()]
        self._results = [node.name for node in self._session.get_outputs()][: len(request.outputs)]

    def _made(self) -> Any:  # noqa: ANN401
        self._process = os.getpid()
        session = self._make()
        never_free_in_forks(session)
        return session

    @property
    def providers(self) -> list[str]:
        """The providers of the session."""
        return list(self._session.get_providers())

    def ran_by(self) -> Sequence[str]:
        if not hasattr(self._session, "get_provider_graph_assignment_info"):
            return ()
        by_node = dict(assigned(self._session))
        return [by_node.get(op, "") for op in self._ops]

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        if self._process != os.getpid():  # a fork has none of the threads of a session
            self._session = self._made()
        if self._not_zero:
            self._require_elements(dict(zip(self._names, inputs, strict=True)))
        results: Sequence[Array] = self._session.run(self._results, dict(zip(self._names, inputs, strict=True)))
        return results

    def _require_elements(self, inputs: Mapping[str, Array]) -> None:
        given = ((dims, inputs[name].shape) for name, dims in self._dims if dims and name in inputs)
        sizes = {dim: size for dims, shape in given for dim, size in zip(dims, shape, strict=False)}
        for dim, node in self._not_zero:
            if size_of(dim, sizes) == 0:
                raise RunError(
                    f"{dim} is 0 in {self._place}, and onnxruntime does not compute {node} of no elements; place its "
                    "operations on another site"
                )


def _dims(type_: TypeProto.Tensor) -> list[str]:
    return [dim.dim_param for dim in type_.shape.dim]


def _not_zero(graph: GraphProto) -> list[tuple[str, str]]:
    """Return the symbolic dimensions that must not be 0, each with the operation that then fails or is wrong."""
    nodes = [node for node in graph.node if node.op_type in {*ENDED_BY_NOTHING, *_PRODUCTS, "Scan"}]
    types = value_types(graph) if nodes else {}
    found = []
    for node in nodes:
        shapes = [list(types[name].shape.dim) if name in types else [] for name in node.input]
        dims = [dim.dim_param for dim in _dims_with_elements(node, shapes)]
        found += [(dim, f"{node.name!r} ({node.op_type})") for dim in dims if dim]
    return found


# Operations whose sum of no products is not 0, or whose shape is wrong (1.31).
_PRODUCTS = ("MatMul", "MatMulInteger", "QLinearMatMul")


def _dims_with_elements(
    node: NodeProto, shapes: Sequence[Sequence[TensorShapeProto.Dimension]]
) -> Sequence[TensorShapeProto.Dimension]:
    """Return the dimensions of the operands of a node that must not be 0."""
    first = shapes[0] if shapes else ()
    if node.op_type == "Scan":
        # The last operand is one that it reads step by step.
        axes = attributes_of(node).get("scan_input_axes", (0,))[-1:]
        return [shapes[-1][axis] for axis in axes] if shapes[-1] else ()
    if node.op_type in ENDED_BY_NOTHING:
        rank, axes = ENDED_BY_NOTHING[node.op_type]
        return [first[axis] for axis in axes] if len(first) == rank else ()
    if node.op_type == "MatMul":
        # The result has the batches of the first operand.
        batches = first[:-2], shapes[1][:-2]
        return first[-1:] if all(batches) and batches[0] != batches[1] else ()
    return first[-1:]


_Types: TypeAlias = Mapping[str, TypeProto.Tensor]
_Constants: TypeAlias = Mapping[str, TensorProto]


_FIRST_WHERE = 9  # the version of ONNX that added Where


def _guarded(source: bytes, graph: GraphProto) -> bytes:
    """Return the model of a graph whose recurrent networks of computed sizes run only if they have elements.

    Without, they end the process. The sizes that follow from those of the inputs are checked before each run. `beta` of
    a Gemm that may have no terms is an operation of its own, reductions of what may be empty count axes from 0, slices
    that may be empty are compared with one more element, an Einsum of what may be empty runs only if it is not, blocks
    of texts are gathered by GatherND, and what loops collect of texts are copies.
    """
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in nodes_in(graph):
        constants |= {tensor.name: tensor for body in bodies_of(node) for tensor in body.initializer}
    graphs = [graph, *(body for node in nodes_in(graph) for body in bodies_of(node))]
    values = [value for one in graphs for value in (*one.input, *one.value_info, *one.output)]
    dtypes = {value.type.tensor_type.elem_type for value in values} | {one.data_type for one in constants.values()}
    has_texts = TensorProto.STRING in dtypes
    if not any(
        node.op_type in ("Einsum", "GRU", "LSTM", "Unique")
        or _has_factor(node)
        or (node.op_type in ("Gather", "Identity") and has_texts)
        or min(_reduced_axes(node, constants), default=0) < 0
        for node in nodes_in(graph)
    ):
        return source
    model = onnx.load_from_string(source)
    names = Names(value_names(model.graph))
    version = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)
    is_changed = _rewrite(model.graph, {}, constants, names, _checked_dims(model.graph), version)
    return bytes(model.SerializeToString()) if is_changed else source


def _checked_dims(graph: GraphProto) -> frozenset[str]:
    return frozenset(dim for value in graph.input for dim in _dims(value.type.tensor_type))


def _rewrite(
    graph: GraphProto, outer: _Types, constants: _Constants, names: Names, checked: frozenset[str], version: int
) -> bool:
    """Replace nodes of a graph and of its nested bodies by what ONNX Runtime computes right; return whether any are."""
    types = {**outer, **value_types(graph)}
    nodes: list[NodeProto] = []
    is_changed = False
    for node in graph.node:
        for body in bodies_of(node):
            # Sizes of what a body computes are not checked before a run.
            is_changed |= _rewrite(body, types, constants, names, frozenset(), version)
        instead = (
            _guarded_network(node, types, names, checked)
            or _scaled_bias(node, types, names)
            or _forward_reduction(node, types, constants, names)
            or _longer_slices(node, types, names)
            or _guarded_einsum(node, types, names)
            or _texts_of_blocks(node, types, names)
            or (_copied_texts(node, types, names) if outer and version >= _FIRST_WHERE else [])
        )
        is_changed |= bool(instead)
        nodes += instead or [node]
    if is_changed:
        del graph.node[:]
        graph.node.extend(nodes)
    return is_changed


def _guarded_network(node: NodeProto, types: _Types, names: Names, checked: frozenset[str]) -> list[NodeProto]:
    """Return nodes that run a recurrent network of computed sizes only if it has elements; none for other nodes."""
    is_network = node.op_type in ("GRU", "LSTM") and node.domain in ("", "ai.onnx")
    axes = [axis for axis in ENDED_BY_NOTHING[node.op_type][1] if axis < 2] if is_network else []  # steps and samples
    dims = types[node.input[0]].shape.dim if axes and node.input[0] in types else ()
    if not axes or (len(dims) == 3 and all(_is_checked(dims[axis], checked) for axis in axes)):
        return []
    return _if_not_empty(node, axes, _element_type(node, types), names)


def _scaled_bias(node: NodeProto, types: _Types, names: Names) -> list[NodeProto]:
    """Return nodes that multiply what a Gemm of an open number of terms adds before it; none for other nodes.

    Where there are no terms, it is added without its factor `beta` (1.31).
    """
    if not _has_factor(node):
        return []
    attributes = attributes_of(node)
    terms = [
        types[name].shape.dim[1 - at if attributes.get(flag) else at].dim_value
        for name, flag, at in ((node.input[0], "transA", 1), (node.input[1], "transB", 0))
        if name in types and len(types[name].shape.dim) == 2
    ]
    if any(terms):
        return []
    factor, scaled = (names.fresh(f"{node.input[2]}:{what}") for what in ("factor", "scaled"))
    value = helper.make_tensor("", _element_type(node, types), [], [attributes.pop("beta")])
    return [
        helper.make_node("Constant", [], [factor], value=value),
        helper.make_node("Mul", [node.input[2], factor], [scaled]),
        helper.make_node("Gemm", [*node.input[:2], scaled], node.output, name=node.name, **attributes),
    ]


def _has_factor(node: NodeProto) -> bool:
    """Whether a node is a Gemm that multiplies what it adds."""
    is_gemm = node.op_type == "Gemm" and node.domain in ("", "ai.onnx")
    return is_gemm and any(node.input[2:]) and attributes_of(node).get("beta", 1.0) != 1


def _forward_reduction(node: NodeProto, types: _Types, constants: _Constants, names: Names) -> list[NodeProto]:
    """Return nodes that reduce what may be empty along axes counted from the first; none for other nodes.

    Along axes counted from the last, they return their operand if it is empty (1.31).
    """
    axes = _reduced_axes(node, constants)
    if min(axes, default=0) >= 0 or node.input[0] not in types or not types[node.input[0]].HasField("shape"):
        return []
    dims = types[node.input[0]].shape.dim
    if all(dim.dim_value > 0 for dim in dims):
        return []
    forward = [axis % len(dims) for axis in axes]
    attributes = attributes_of(node)
    added = []
    inputs = list(node.input)
    if "axis" in attributes:
        attributes["axis"] = forward[0]
    elif "axes" in attributes:
        attributes["axes"] = forward
    else:
        inputs[1] = names.fresh(f"{inputs[1]}:forward")
        value = helper.make_tensor("", TensorProto.INT64, [len(forward)], forward)
        added.append(helper.make_node("Constant", [], inputs[1:], value=value))
    return [*added, helper.make_node(node.op_type, inputs, node.output, name=node.name, **attributes)]


def _longer_slices(node: NodeProto, types: _Types, names: Names) -> list[NodeProto]:
    """Return nodes that find different slices which may have no elements; none for other nodes.

    Slices without elements end the process (1.31), so that each gets one more, of 0.
    """
    attributes = attributes_of(node)
    type_ = types.get(node.input[0]) if node.op_type == "Unique" and "axis" in attributes else None
    if type_ is None or not type_.HasField("shape"):
        return []
    dims = type_.shape.dim
    axis = attributes["axis"] % len(dims)
    places = [at for at, dim in enumerate(dims) if at != axis and dim.dim_value <= 0]
    if not places:
        return []
    nodes: list[NodeProto] = []

    def add(kind: str, inputs: Sequence[str], **settings: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [names.fresh(f"{node.input[0]}:{kind}")], **settings))
        return str(nodes[-1].output[0])

    def constant(numbers: Sequence[int]) -> str:
        return add("Constant", [], value=helper.make_tensor("", TensorProto.INT64, [len(numbers)], numbers))

    pads = [0] * len(dims) + [int(at in places) for at in range(len(dims))]
    longer = NodeProto()
    longer.CopyFrom(node)
    longer.input[0] = add("Pad", [node.input[0], constant(pads)])
    longer.output[0] = names.fresh(node.output[0])
    axes = constant(places)
    sizes = add("Gather", [add("Shape", node.input), axes])
    bounds = [constant([0] * len(places)), sizes, axes]
    return [*nodes, longer, helper.make_node("Slice", [longer.output[0], *bounds], node.output[:1])]


def _guarded_einsum(node: NodeProto, types: _Types, names: Names) -> list[NodeProto]:
    """Return nodes that compute an Einsum of what may be empty only if it is not; none for other nodes.

    Where it transposes one of several operands without elements, it ends the process (1.31).
    """
    if node.op_type != "Einsum" or len(node.input) < 2 or any(name not in types for name in node.input):
        return []
    shapes = [types[name].shape.dim for name in node.input]
    if all(dim.dim_value > 0 for shape in shapes for dim in shape):
        return []
    terms, arrow, result = attributes_of(node)["equation"].replace(" ", "").partition("->")
    found: dict[str, list[tuple[str, int]]] = {}  # operands and axes of each label
    ellipsis: tuple[str, ...] = ()
    for term, name, shape in zip(terms.split(","), node.input, shapes, strict=True):
        before, dots, after = term.partition("...")
        if dots:
            ellipsis = tuple(f"...{at}" for at in range(len(shape) - len(before) - len(after)))
        for axis, label in enumerate((*before, *(ellipsis if dots else ()), *after)):
            found.setdefault(label, []).append((name, axis))
    if not arrow:
        letters = terms.replace("...", "")
        result = "..." + "".join(sorted(letter for letter in letters.replace(",", "") if letters.count(letter) == 1))
    before, dots, after = result.partition("...")
    instead: list[NodeProto] = []

    def add(nodes: list[NodeProto], kind: str, inputs: Sequence[str], **settings: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [names.fresh(f"{node.output[0]}:{kind}")], **settings))
        return str(nodes[-1].output[0])

    def constant(nodes: list[NodeProto], values: Sequence[int]) -> str:
        return add(nodes, "Constant", [], value=helper.make_tensor("", TensorProto.INT64, [len(values)], values))

    guard: list[NodeProto] = []
    counts = [add(guard, "Size", [name]) for name in node.input]
    is_empty = add(guard, "Equal", [add(guard, "Min", counts), constant(guard, [0])])
    size_of_shape = {name: add(instead, "Shape", [name]) for name in set(node.input)}
    sizes = []
    for label in (*before, *(ellipsis if dots else ()), *after):
        given = [add(instead, "Gather", [size_of_shape[name], constant(instead, [at])]) for name, at in found[label]]
        # One of 1 is broadcast, also to one of 0.
        least = add(instead, "Min", [*given, constant(instead, [1])])
        sizes.append(add(instead, "Mul", [add(instead, "Max", given), least]))
    size = add(instead, "Concat", sizes, axis=0) if sizes else constant(instead, [])
    zero = helper.make_tensor("", _element_type(node, types), [1], [0])
    return [*guard, _unless(is_empty, node, instead, [add(instead, "ConstantOfShape", [size], value=zero)], names)]


def _texts_of_blocks(node: NodeProto, types: _Types, names: Names) -> list[NodeProto]:
    """Return nodes that gather texts along another axis than the last; none for other nodes.

    A Gather copies the first text of each block only, and leaves the others empty (1.31).
    """
    given = [types.get(name) for name in node.input] if node.op_type == "Gather" else []
    if len(given) != 2 or given[0] is None or given[0].elem_type != TensorProto.STRING:
        return []
    rank, places = (len(one.shape.dim) if one is not None else 0 for one in given)
    axis = attributes_of(node).get("axis", 0) % rank
    if axis == rank - 1:
        return []
    nodes: list[NodeProto] = []

    def add(kind: str, inputs: Sequence[str], **settings: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [names.fresh(f"{node.output[0]}:{kind}")], **settings))
        return str(nodes[-1].output[0])

    shape = helper.make_tensor("", TensorProto.INT64, [places + 1], [0] * places + [1])  # 0 keeps a dimension
    indices = add("Cast", [add("Reshape", [node.input[1], add("Constant", [], value=shape)])], to=TensorProto.INT64)
    others = [one for one in range(rank) if one != axis]
    found = add("GatherND", [add("Transpose", node.input[:1], perm=[axis, *others]), indices])
    order = [*range(places, places + axis), *range(places), *range(places + axis, places + rank - 1)]
    return [*nodes, helper.make_node("Transpose", [found], node.output, name=node.name, perm=order)]


def _copied_texts(node: NodeProto, types: _Types, names: Names) -> list[NodeProto]:
    """Return nodes that copy texts in a nested body; none for other nodes.

    A Loop or Scan that collects the results of an Identity leaves none in the value that it reads (1.31).
    """
    is_identity = node.op_type == "Identity" and node.domain in ("", "ai.onnx")
    if not is_identity or node.input[0] not in types or types[node.input[0]].elem_type != TensorProto.STRING:
        return []
    true = names.fresh(f"{node.output[0]}:true")
    value = helper.make_tensor("", TensorProto.BOOL, [], [True])
    return [
        helper.make_node("Constant", [], [true], value=value),
        helper.make_node("Where", [true, node.input[0], node.input[0]], node.output, name=node.name),
    ]


def _reduced_axes(node: NodeProto, constants: _Constants) -> list[int]:
    """Return the axes that a node reduces, as far as they are known."""
    if node.domain not in ("", "ai.onnx") or not node.op_type.startswith(("Arg", "Reduce")):
        return []
    if node.op_type.startswith("Arg"):
        return [attributes_of(node).get("axis", 0)]
    return stated_axes(node, lambda name: onnx.numpy_helper.to_array(constants[name]) if name in constants else None)


def _is_checked(dim: TensorShapeProto.Dimension, checked: frozenset[str]) -> bool:
    symbols = symbols_of(dim.dim_param) if dim.dim_param else frozenset()
    return dim.dim_value > 0 or (bool(symbols) and symbols <= checked)


def _element_type(node: NodeProto, types: _Types) -> int:
    """Return the element type of an operation: that of the first of its operands whose type is known."""
    return next((int(types[name].elem_type) for name in node.input[:4] if name in types), int(TensorProto.FLOAT))


def _if_not_empty(node: NodeProto, axes: Sequence[int], element_type: int, names: Names) -> list[NodeProto]:
    """Return an If of which one branch is a recurrent network, and the other what that returns of nothing.

    That are results without elements, and the states of before.
    """
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    directions = 2 if attributes.get("direction") == b"bidirectional" else 1
    before: list[NodeProto] = []
    nothing: list[NodeProto] = []

    def add(nodes: list[NodeProto], kind: str, inputs: Sequence[str], **settings: object) -> str:
        name = names.fresh(f"{node.input[0]}:{kind}")
        nodes.append(helper.make_node(kind, inputs, [name], **settings))
        return name

    def constant(nodes: list[NodeProto], values: Sequence[int]) -> str:
        return add(nodes, "Constant", [], value=helper.make_tensor("", TensorProto.INT64, [len(values)], values))

    shape = add(before, "Shape", [node.input[0]])
    count = add(before, "ReduceProd", [add(before, "Gather", [shape, constant(before, axes)])], keepdims=1)
    is_empty = add(before, "Equal", [count, constant(before, [0])])
    steps, batch = (add(nothing, "Gather", [shape, constant(nothing, [axis])]) for axis in (0, 1))
    fixed = [constant(nothing, [size]) for size in (directions, attributes["hidden_size"])]
    zero = helper.make_tensor("", element_type, [1], [0])
    results = []
    for at, output in enumerate(node.output):
        if not output:
            continue
        state = node.input[4 + at] if at and 4 + at < len(node.input) else ""
        if state:
            results.append(add(nothing, "Identity", [state]))
        else:
            sizes = [fixed[0], batch, fixed[1]] if at else [steps, fixed[0], batch, fixed[1]]
            size = add(nothing, "Concat", sizes, axis=0)
            results.append(add(nothing, "ConstantOfShape", [size], value=zero))
    return [*before, _unless(is_empty, node, nothing, results, names)]


def _unless(
    condition: str, node: NodeProto, instead: Sequence[NodeProto], results: Sequence[str], names: Names
) -> NodeProto:
    """Return an If that computes a node unless a condition holds, where it computes other nodes with these results."""
    copy = NodeProto()
    copy.CopyFrom(node)
    for at, output in enumerate(node.output):
        copy.output[at] = names.fresh(output) if output else ""
    then_branch, else_branch = (
        helper.make_graph(nodes, "branch", [], [helper.make_empty_tensor_value_info(name) for name in returned])
        for nodes, returned in ((instead, results), ([copy], filter(None, copy.output)))
    )
    outputs = [output for output in node.output if output]
    return helper.make_node("If", [condition], outputs, then_branch=then_branch, else_branch=else_branch)


def _check_assignment(session: _Session, make: _Maker, request: CompileRequest) -> None:
    """Raise an error if another provider than that of the leaf runs operations of a function."""
    place, stated = f"@{request.site or '.'}", make.provider.stated
    name = make.provider.name(make.ort)
    if name not in session.providers:
        raise BackendError(
            f"onnxruntime cannot take function {request.name!r} of {place}: provider {stated!r} does not start; its "
            "libraries, such as those of the device's driver, are missing"
        )
    refused = [number for number, ran in enumerate(session.ran_by()) if ran == CPU]
    if not refused:
        return
    # Some providers take all of a function or nothing, so that each operation is tried alone.
    alone = [number for number in refused if not _is_taken(make, request, number, name)] if len(refused) > 1 else []
    refused = alone or refused
    ops = [request.ops[number] for number in refused]
    listed = ", ".join(ops[:3]) + (", ..." if len(ops) > 3 else "")
    raise CompileError(
        f"provider {stated!r} of onnxruntime refuses {counted(len(ops), 'op')} of function {request.name!r} of "
        f"{place}: {listed}; place them on another site (where, --where), or set cpu-fallback=true",
        function=request.name,
        refused={request.name: dict.fromkeys(refused, f"provider {stated!r} of onnxruntime refuses it")},
    )


def _is_taken(make: _Maker, request: CompileRequest, number: int, provider: str) -> bool:
    """Return whether a provider takes one operation of a function alone; False too if that cannot be tried."""
    model = request.model
    node = next((node for node in model.graph.node if node.name == request.ops[number]), None)
    types = {value.name: value for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)}
    if node is None or any(output and output not in types for output in node.output):
        return False
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    read = dict.fromkeys(name for name in node.input if name)
    given = [types[name] for name in read if name not in constants and name in types]
    graph = helper.make_graph(
        [node],
        "one",
        given,
        [types[name] for name in node.output if name],
        [constants[n] for n in read if n in constants],
    )
    alone = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, graph=graph)
    try:
        found = dict(assigned(make(alone.SerializeToString())))
    except Exception:
        return False
    return found.get(node.name, provider) == provider


BACKEND = _OnnxRuntime()
