"""Apache TVM for llvm and cuda leaves: import ONNX through Relax, or Relax directly, and compile it to native code.

TVM's ONNX importer reads a static dimension of 0 as unknown, gives all unnamed dimensions one symbol, parses the names
of symbols as expressions, and represents shapes in a form that most operators do not accept; `_prepared` rewrites the
model so that none of this changes its meaning.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, numpy_helper

from tvmtarget.backends.machine import native_code_mismatch
from tvmtarget.backends.protocol import Ability, Backend, CompileRequest
from tvmtarget.backends.tvm.compiled_module import (
    LIBRARY,
    LOCK,
    CompiledModule,
    CudaModule,
    import_tvm,
    load,
    place,
    quiet,
)
from tvmtarget.backends.tvm.cpu_schedule import cpu_pipeline, legal_passes
from tvmtarget.backends.tvm.cuda import cuda_pipeline, cuda_target, fusing_passes, generating, gpu_mismatch, is_loaded
from tvmtarget.backends.tvm.gpu_kernels import GpuKernelTuningContext, gpu_default
from tvmtarget.backends.tvm.isolated_compile import compile_isolated
from tvmtarget.backends.tvm.kernels import FORMAT, CpuKernelTuningContext, TunedChoice, cpu_default
from tvmtarget.backends.tvm.tir_programs import CudaTirModule, TirModule, build_tir, is_code
from tvmtarget.backends.tvm.traces import TRACE_FORMAT
from tvmtarget.errors import BackendError, raise_all
from tvmtarget.target.cpu.isa import spell_for_llvm
from tvmtarget.target.kinds import kind_of
from tvmtarget.target.tree import Target

__all__ = ["BACKEND", "generates"]

# Results that are always or often not read, and that the importer does not make; see strategies.
_SPARE_RESULTS = frozenset({"BatchNormalization", "Dropout", "LayerNormalization", "MaxPool"})
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# Operators that sum over a dimension, besides those called Reduce...
_SUMS = frozenset({"ArgMax", "ArgMin", "Einsum", "Gemm", "MatMul", "MatMulInteger"})


# Attributes that change the code of TVM 0.27 (`src/target/llvm/llvm_instance.cc`, dlight's rules of schedules).
HONOURS = {
    "llvm": frozenset(
        {
            "mcpu",
            "mtriple",
            "mattr",
            "mfloat-abi",
            "mabi",
            "vector-width",
            "opt-level",
            "fast-math",
            "fast-math-nnan",
            "fast-math-ninf",
            "fast-math-nsz",
            "fast-math-arcp",
            "fast-math-contract",
            "fast-math-reassoc",
            "cl-opt",
        }
    ),
    "cuda": frozenset(
        {
            "arch",
            "from_device",
            "max_shared_memory_per_block",
            "max_threads_per_block",
            "max_num_threads",
            "thread_warp_size",
            "registers_per_block",
        }
    ),
}


def generates(kind: str) -> bool:
    """Return whether TVM has an external code generator for functions of Relax.

    Args:
        kind: a target kind.

    Returns:
        True if a function `relax.ext.KIND` is registered.
    """
    return import_tvm().get_global_func(f"relax.ext.{kind}", allow_missing=True) is not None


class _External(CompiledModule):
    """A module of an external code generator, whose functions exist in this process only."""

    def native_files(self) -> Mapping[str, bytes]:
        return {}


class _Tvm(Backend):
    name = "tvm"
    kinds = ("llvm", "cuda")
    supports = frozenset[Ability]({"device-memory", "shared-code", "tuning"})
    honours = HONOURS
    format = FORMAT
    trace_format = TRACE_FORMAT

    def version(self) -> str:
        return f"apache-tvm {import_tvm().__version__}"

    def unsupported_reason(self, target: Target, device: int = 0) -> str | None:
        if target.kind not in self.kinds:
            return None if generates(target.kind) else f"TVM has no code generator relax.ext.{target.kind}"
        return native_code_mismatch(target) if target.kind == "llvm" else gpu_mismatch(import_tvm(), target, device)

    def place(self, value: Any, target: Target, device: int) -> Any:  # noqa: ANN401
        """Return a value in the memory of a GPU; for a CPU it is a copy."""
        if target.kind == "cuda":
            return place(value, device)
        return value.copy() if isinstance(value, np.ndarray) else value

    def compile(self, request: CompileRequest) -> CompiledModule:
        tvm = import_tvm()
        if request.target.kind not in self.kinds:
            return self._external(request)
        never_empty = frozenset[int]() if request.is_relax else _never_empty(request.model.graph)
        is_gpu = request.target.kind == "cuda"
        is_native = not is_gpu or is_loaded(tvm)

        # Untrusted TIR is never read here: `compile_isolated` rejects it.
        whole = tvm.ir.load_json(request.source.decode()) if request.is_relax and request.is_trusted else None
        entry = whole["main"] if whole is not None and is_code(whole) else None

        def program(executable: Any) -> CompiledModule:  # noqa: ANN401
            if entry is not None and is_gpu:
                return CudaTirModule(executable, entry, is_native=is_native)
            if entry is not None:
                return TirModule(executable, entry)
            results = len(request.outputs)
            return (
                CudaModule(executable, never_empty, results, is_native=is_native)
                if is_gpu
                else CompiledModule(executable, never_empty, results)
            )

        if LIBRARY in request.native and is_native:
            return program(load(tvm, request.native[LIBRARY]))
        raise_all(BackendError, [*_ignored_context(tvm)])
        if request.is_relax and not request.is_trusted:
            library = compile_isolated(request)
            if library is not None:
                return program(load(tvm, library))
        try:
            with LOCK, quiet():
                target = _target(tvm, request.target)
                if entry is not None:
                    with generating(tvm, target) if is_gpu else target, tvm.transform.PassContext(opt_level=3):
                        return program(build_tir(whole, target))
                default = (gpu_default if is_gpu else cpu_default)(target)
                known = None if request.schedules is None else TunedChoice(request.schedules, default)
                pipeline = (cuda_pipeline if is_gpu else cpu_pipeline)(target, known)
                module = _imported(tvm, request)
                disabled = _NOT_IN_BRANCHES if _has_branches(tvm, module) else []
                context = tvm.transform.PassContext(opt_level=3, disabled_pass=disabled)
                with generating(tvm, target) if is_gpu else target, context:
                    return program(tvm.compile(module, target=target, relax_pipeline=pipeline))
        except BackendError as error:
            raise BackendError(f"tvm cannot compile function {request.name!r} of @{request.site}: {error}") from error
        except Exception as error:
            raise BackendError(
                f"tvm cannot take function {request.name!r} of @{request.site}: {_reason(error)}"
            ) from error

    def _external(self, request: CompileRequest) -> CompiledModule:
        """Compile a function of Relax by an external code generator, with the attributes of the leaf as options."""
        tvm, kind = import_tvm(), request.target.kind
        if not generates(kind):
            raise BackendError(
                f"TVM has no code generator relax.ext.{kind} for function {request.name!r} of @{request.site}"
            )
        host = (
            request.target.host
            if isinstance(request.target.host, Target) and request.target.host.kind == "llvm"
            else None
        )
        try:
            with LOCK, quiet():
                options = {kind: request.target.attrs.to_json()}
                module = tvm.relax.transform.RunCodegen(options)(tvm.ir.load_json(request.source.decode()))
                executable = tvm.compile(module, target=_target(tvm, host or Target("llvm")))
                return _External(executable, frozenset(), len(request.outputs))
        except Exception as error:
            reason = _reason(error)
            raise BackendError(
                f"relax.ext.{kind} cannot take function {request.name!r} of @{request.site}: {reason}"
            ) from error

    def tuning_context(self, request: CompileRequest) -> CpuKernelTuningContext | GpuKernelTuningContext:
        """Return the tensor functions of a leaf function."""
        tvm = import_tvm()
        is_gpu = request.target.kind == "cuda"
        with LOCK, quiet():
            target = _target(tvm, request.target)
            passes = (fusing_passes if is_gpu else legal_passes)(target)
            with target, tvm.transform.PassContext(opt_level=3):
                module = tvm.transform.Sequential(passes)(_imported(tvm, request))
                return GpuKernelTuningContext(module, target) if is_gpu else CpuKernelTuningContext(module, target)


def _ignored_context(tvm: Any) -> Iterator[str]:  # noqa: ANN401
    """Yield the options of a PassContext around a build, which the one inside would replace."""
    context = tvm.transform.PassContext.current()
    for name in ("config", "disabled_pass", "required_pass", "instruments"):
        if value := getattr(context, name):
            yield f"{name} {value} of the PassContext around would be ignored; build outside of it"


def _reason(error: Exception) -> str:
    """Return the first line of an error; of compilers of CUDA C++, which quote the code, that with the message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    messages = (line for line in lines if _COMPILER.search(line))
    return next(messages, lines[0] if lines else type(error).__name__)


_COMPILER = re.compile(r"^(?:nvcc fatal|nvrtc: error|ptxas (?:fatal|error)|[^#]*\berror)\s*:")

# TVM 0.27 reuses storage that a branch allocates for later tensors, even if the other branch ran.
_NOT_IN_BRANCHES = ["StaticPlanBlockMemory"]


def _has_branches(tvm: Any, module: Any) -> bool:  # noqa: ANN401
    found: list[bool] = []

    def visit(node: Any) -> None:  # noqa: ANN401
        found.append(isinstance(node, tvm.relax.If))

    for function in module.functions.values():
        if isinstance(function, tvm.relax.Function):
            tvm.relax.analysis.post_order_visit(function, visit)
    return any(found)


def _imported(tvm: Any, request: CompileRequest) -> Any:  # noqa: ANN401
    if request.is_relax:
        return tvm.ir.load_json(request.source.decode())
    return tvm.relax.frontend.onnx.from_onnx(_prepared(request.model), sanitize_input_names=False)


def _never_empty(graph: GraphProto) -> frozenset[int]:
    """Return the inputs that must not be empty, as sums over nothing leave their results unwritten.

    These are the inputs of symbolic shape; static shapes are checked when the program is partitioned.
    """
    if not any(node.op_type in _SUMS or node.op_type.startswith("Reduce") for node in graph.node):
        return frozenset()
    shapes = [value.type.tensor_type.shape.dim for value in graph.input]
    return frozenset(index for index, dims in enumerate(shapes) if any(not dim.HasField("dim_value") for dim in dims))


def _target(tvm: Any, leaf: Target) -> Any:  # noqa: ANN401
    """Return TVM's target of a leaf, with the attributes that TVM has; `BackendError` for an mcpu that LLVM lacks."""
    theirs = {row.name for row in kind_of(leaf.kind).attributes if row.since != "tt1"}
    attributes = {name: value for name, value in spell_for_llvm(leaf.kind, leaf.attrs).items() if name in theirs}
    if leaf.kind == "cuda":
        host = leaf.host if isinstance(leaf.host, Target) and leaf.host.kind == "llvm" else Target("llvm")
        return cuda_target(tvm, attributes, _target(tvm, host))
    config = {name: list(value) if isinstance(value, tuple) else value for name, value in attributes.items()}
    codegen = tvm.target.codegen
    mcpu, triple = config.get("mcpu"), config.get("mtriple", codegen.llvm_get_system_triple())
    if mcpu is not None and not codegen.llvm_is_valid_cpu(mcpu, triple):
        raise BackendError(f"LLVM knows no CPU {mcpu!r} for {triple!r}; change mcpu of {str(leaf)!r}")
    return tvm.target.Target({"kind": leaf.kind, **config} | ({"keys": list(leaf.keys)} if leaf.keys else {}))


def _prepared(model: ModelProto) -> ModelProto:
    """Copy a model into the form that TVM's importer reads correctly."""
    copy = ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    _name_symbols(graph)
    _name_inputs(graph)
    _cut_spare_results(graph)
    types = {info.name: info.type.tensor_type for info in (*graph.input, *graph.value_info, *graph.output)}
    empty = {tensor.name for tensor in graph.initializer if 0 in tensor.dims}
    nodes = [written for node in graph.node for written in _rewritten(node, types, empty)]
    del graph.node[:]
    graph.node.extend(nodes)
    return copy


def _name_symbols(graph: GraphProto) -> None:
    """Give each symbolic dimension of the inputs an identifier, and each unnamed one an identifier of its own."""
    symbols: dict[str, str] = {}
    for value in graph.input:
        for position, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.dim_value:
                name = dim.dim_param or f"{value.name}:{position}"
                dim.dim_param = symbols.setdefault(name, f"n{len(symbols)}")


def _name_inputs(graph: GraphProto) -> None:
    """Rename inputs whose names are no identifiers, as generated CUDA C++ contains them unchanged."""
    taken = {name for node in graph.node for name in (*node.input, *node.output)}
    names = (name for number in itertools.count() if (name := f"input_{number}") not in taken)
    renamed = {value.name: next(names) for value in graph.input if not _IDENTIFIER.fullmatch(value.name)}
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = renamed.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]


def _cut_spare_results(graph: GraphProto) -> None:
    """Remove unread results that the importer does not compute."""
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    for node in graph.node:
        while node.op_type in _SPARE_RESULTS and len(node.output) > 1 and node.output[-1] not in read:
            node.output.pop()


def _rewritten(node: NodeProto, types: Mapping[str, TypeProto.Tensor], empty: set[str]) -> Iterator[NodeProto]:
    """Yield the nodes that replace one; `empty` are the initializers without elements."""
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
    """Return the constant value of a Shape or Size of a static value; the strategy supports no other."""
    dims = [dim.dim_value for dim in types[node.input[0]].shape.dim]
    bounds = {attribute.name: attribute.i for attribute in node.attribute}
    shape = np.array(dims[slice(bounds.get("start", 0), bounds.get("end"))], "int64")
    value = shape if node.op_type == "Shape" else np.array(shape.prod(), "int64")
    return onnx.helper.make_node("Constant", [], node.output, value=numpy_helper.from_array(value))


def _is_int64_vector(type_: TypeProto.Tensor | None) -> bool:
    return type_ is not None and type_.elem_type == TensorProto.INT64 and len(type_.shape.dim) == 1


BACKEND = _Tvm()
