"""Apache TVM for llvm leaves: the function's ONNX model through Relax, or Relax as it is, into native code.

TVM's ONNX importer reads a static dimension of 0 as unknown, gives all unnamed dimensions one symbol, parses the
names of symbols as expressions, and has a form of its own for shapes that most operators do not take; `_prepared`
writes the model so that none of that changes its meaning. Importing and compiling share global state in TVM and are
kept under one lock.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, numpy_helper

from tvmtarget.backends.aligned import is_aligned
from tvmtarget.backends.machine import processors, refuses_native
from tvmtarget.backends.protocol import Array, Part
from tvmtarget.backends.tvm_kernels import FORMAT, KernelWorkshop, TunedChoice
from tvmtarget.backends.tvm_schedule import cpu_pipeline, legal_passes
from tvmtarget.backends.tvm_traces import TRACE_FORMAT
from tvmtarget.errors import BackendError, MissingExtraError
from tvmtarget.target.kinds import kind_of
from tvmtarget.target.tree import Target

__all__ = ["BACKEND"]

_LIBRARY = "lib.so"
_LOCK = threading.Lock()
# Results that are always or often not read, and that the importer does not make; see strategies.
_SPARE_RESULTS = frozenset({"BatchNormalization", "Dropout", "LayerNormalization", "MaxPool"})
# Operators that sum over a dimension, besides those called Reduce...
_SUMS = frozenset({"ArgMax", "ArgMin", "Einsum", "Gemm", "MatMul", "MatMulInteger"})


def _tvm() -> Any:  # noqa: ANN401 - TVM ships no types
    # TVM reads these once. By itself it takes half of the processors for hyper-threads of the others, and binds its
    # threads to processors; the caller's, which works too, is not bound, and often shares one with another of them:
    # convolutions of SqueezeNet take 580 us so and 335 us unbound, on two processors.
    os.environ.setdefault("TVM_NUM_THREADS", str(processors()))
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    try:
        import tvm
        import tvm.relax.frontend.onnx
    except ImportError as error:
        raise MissingExtraError("apache-tvm", "tvm") from error
    return tvm


class _Tvm:
    name = "tvm"
    kinds = ("llvm",)
    shares_code = True
    format = FORMAT
    trace_format = TRACE_FORMAT

    def version(self) -> str:
        return f"apache-tvm {_tvm().__version__}"

    def refuses(self, target: Target) -> str | None:
        return refuses_native(target)

    def compile(self, part: Part) -> _Program:
        tvm = _tvm()
        never_empty = frozenset[int]() if part.is_relax else _never_empty(part.model.graph)
        if _LIBRARY in part.native:
            return _Program(_load(tvm, part.native[_LIBRARY]), never_empty)
        try:
            with _LOCK, _quiet():
                target = _target(tvm, part.target)
                known = None if part.schedules is None else TunedChoice(part.schedules, target)
                pipeline = cpu_pipeline(target, known)
                module = _imported(tvm, part)
                disabled = _NOT_IN_BRANCHES if _has_branches(tvm, module) else []
                with tvm.transform.PassContext(opt_level=3, disabled_pass=disabled):
                    executable = tvm.compile(module, target=target, relax_pipeline=pipeline)
                return _Program(executable, never_empty)
        except BackendError:
            raise
        except Exception as error:
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise BackendError(f"tvm cannot take function {part.name!r} of @{part.site}: {reason}") from error

    def workshop(self, part: Part) -> KernelWorkshop:
        """Return the tensor functions of a leaf function, to be tuned."""
        tvm = _tvm()
        with _LOCK, _quiet():
            target = _target(tvm, part.target)
            with target, tvm.transform.PassContext(opt_level=3):
                module = tvm.transform.Sequential(legal_passes(target))(_imported(tvm, part))
            return KernelWorkshop(module, target)


# TVM 0.27 gives storage that a branch allocates to tensors behind it, also where the other branch ran.
_NOT_IN_BRANCHES = ["StaticPlanBlockMemory"]


def _has_branches(tvm: Any, module: Any) -> bool:  # noqa: ANN401
    found: list[bool] = []

    def visit(node: Any) -> None:  # noqa: ANN401
        found.append(isinstance(node, tvm.relax.If))

    for function in module.functions.values():
        if isinstance(function, tvm.relax.Function):
            tvm.relax.analysis.post_order_visit(function, visit)
    return any(found)


def _imported(tvm: Any, part: Part) -> Any:  # noqa: ANN401
    if part.is_relax:
        return tvm.ir.load_json(part.source.decode())
    return tvm.relax.frontend.onnx.from_onnx(_prepared(part.model), sanitize_input_names=False)


def _never_empty(graph: GraphProto) -> frozenset[int]:
    """Return the inputs of open shape of a graph that sums: the code for sums over nothing writes nothing.

    Of a static shape that is known, and refused, when the program is divided.
    """
    if not any(node.op_type in _SUMS or node.op_type.startswith("Reduce") for node in graph.node):
        return frozenset()
    shapes = [value.type.tensor_type.shape.dim for value in graph.input]
    return frozenset(index for index, dims in enumerate(shapes) if any(not dim.HasField("dim_value") for dim in dims))


def _target(tvm: Any, leaf: Target) -> Any:  # noqa: ANN401
    """Return TVM's target of a leaf, with the attributes TVM has; an mcpu that LLVM does not know is an error."""
    theirs = {row.name for row in kind_of(leaf.kind).attributes if row.since != "tt1"}
    config = {
        name: list(value) if isinstance(value, tuple) else value for name, value in leaf.attrs.items() if name in theirs
    }
    codegen = tvm.target.codegen
    mcpu, triple = config.get("mcpu"), config.get("mtriple", codegen.llvm_get_system_triple())
    if mcpu is not None and not codegen.llvm_is_valid_cpu(mcpu, triple):
        raise BackendError(f"LLVM knows no CPU {mcpu!r} for {triple!r}; change mcpu of {str(leaf)!r}")
    return tvm.target.Target({"kind": leaf.kind, **config} | ({"keys": list(leaf.keys)} if leaf.keys else {}))


class _Program:
    """An executable with a virtual machine of its own for each thread, as one machine serves one thread.

    `never_empty` are the inputs, by position, that must have elements.
    """

    def __init__(self, executable: Any, never_empty: frozenset[int]) -> None:  # noqa: ANN401
        self._executable = executable
        self._never_empty = never_empty
        self._local = threading.local()

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        for position in sorted(self._never_empty):
            if not inputs[position].size:
                shape = inputs[position].shape
                raise BackendError(
                    f"input {position} has shape {shape}, and tvm would leave sums over nothing unwritten"
                )
        tvm = _tvm()
        machine = getattr(self._local, "machine", None)
        if machine is None:
            machine = self._local.machine = tvm.relax.VirtualMachine(self._executable, tvm.cpu())
        return _arrays(machine["main"](*[_tensor(tvm, array) for array in inputs]))

    def native_files(self) -> Mapping[str, bytes]:
        """Link a shared library if this machine has a compiler; without one, only the source is saved."""
        with tempfile.TemporaryDirectory() as folder, _LOCK, _quiet():
            path = Path(folder) / _LIBRARY
            try:
                self._executable.export_library(str(path))
            except (AttributeError, OSError, RuntimeError, TypeError, ValueError):
                return {}
            return {_LIBRARY: path.read_bytes()}


def _tensor(tvm: Any, array: Array) -> Any:  # noqa: ANN401
    """Return an array as a tensor of TVM; what nobody writes to, as weights, is not copied if it lies as TVM wants it.

    To copy weights for every run takes half as long as what is computed with them.
    """
    if array.flags.writeable or not array.size or not is_aligned(array):
        return tvm.runtime.tensor(array)
    try:
        return tvm.runtime.from_dlpack(array.__dlpack__(max_version=(1, 0)))
    except (BufferError, TypeError):  # an element type that DLPack has not, or a numpy that says nothing of writing
        return tvm.runtime.tensor(array)


def _arrays(result: Any) -> list[Array]:  # noqa: ANN401
    """Flatten what a machine returns; results are copied, as they may share memory with inputs or constants."""
    if hasattr(result, "numpy"):
        return [result.numpy()]
    if type(result).__name__ == "Shape":
        return [np.array(list(result), "int64")]
    return [array for item in result for array in _arrays(item)]


def _load(tvm: Any, library: bytes) -> Any:  # noqa: ANN401
    with tempfile.TemporaryDirectory() as folder, _LOCK, _quiet():
        path = Path(folder) / _LIBRARY
        path.write_bytes(library)
        return tvm.runtime.load_module(str(path))


def _prepared(model: ModelProto) -> ModelProto:
    """Copy a model into the form that TVM's importer reads right."""
    copy = ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    _name_symbols(graph)
    _cut_spare_results(graph)
    types = {info.name: info.type.tensor_type for info in (*graph.input, *graph.value_info, *graph.output)}
    empty = {tensor.name for tensor in graph.initializer if 0 in tensor.dims}
    nodes = [written for node in graph.node for written in _rewritten(node, types, empty)]
    del graph.node[:]
    graph.node.extend(nodes)
    return copy


def _name_symbols(graph: GraphProto) -> None:
    """Give every dimension of the inputs without a number a plain name, and those without a name one of their own."""
    symbols: dict[str, str] = {}
    for value in graph.input:
        for position, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.dim_value:
                name = dim.dim_param or f"{value.name}:{position}"
                dim.dim_param = symbols.setdefault(name, f"n{len(symbols)}")


def _cut_spare_results(graph: GraphProto) -> None:
    """Remove results that nothing reads where the importer does not make them."""
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    for node in graph.node:
        while node.op_type in _SPARE_RESULTS and len(node.output) > 1 and node.output[-1] not in read:
            node.output.pop()


def _rewritten(node: NodeProto, types: Mapping[str, TypeProto.Tensor], empty: set[str]) -> Iterator[NodeProto]:
    """Yield the nodes to write for one; `types` are those of values, `empty` the initializers without elements."""
    for attribute in [attr for attr in node.attribute if attr.type == AttributeProto.INTS and not attr.ints]:
        node.attribute.remove(attribute)
    if node.op_type in ("Shape", "Size"):
        yield _constant(node, types)
    elif node.op_type == "Resize":
        node.input[:] = [name if name not in empty else "" for name in node.input]
        yield node
    elif node.op_type == "Concat" and _is_int64_vector(types.get(node.output[0])):
        # A concatenation of constants comes out as a shape; a cast makes a tensor of it again.
        whole, node.output[0] = node.output[0], f"{node.output[0]}:shape"
        yield node
        yield onnx.helper.make_node("Cast", [node.output[0]], [whole], to=TensorProto.INT64)
    else:
        yield node


def _constant(node: NodeProto, types: Mapping[str, TypeProto.Tensor]) -> NodeProto:
    """Return the constant that a Shape or Size of a static value is; the strategy takes no other."""
    dims = [dim.dim_value for dim in types[node.input[0]].shape.dim]
    bounds = {attribute.name: attribute.i for attribute in node.attribute}
    shape = np.array(dims[slice(bounds.get("start", 0), bounds.get("end"))], "int64")
    value = shape if node.op_type == "Shape" else np.array(shape.prod(), "int64")
    return onnx.helper.make_node("Constant", [], node.output, value=numpy_helper.from_array(value))


def _is_int64_vector(type_: TypeProto.Tensor | None) -> bool:
    return type_ is not None and type_.elem_type == TensorProto.INT64 and len(type_.shape.dim) == 1


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Python warnings and prints, and what TVM's C++ writes to the error stream without a switch."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        sys.stderr.flush()
        saved, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nothing, 2)
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            os.close(nothing)


BACKEND = _Tvm()
