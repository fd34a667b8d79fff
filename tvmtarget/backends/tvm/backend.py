"""Apache TVM for llvm and cuda leaves: import ONNX through Relax, or Relax directly, and compile it to native code.

TVM's ONNX importer reads a static dimension of 0 as unknown, gives all unnamed dimensions one symbol, and parses the
names of symbols as expressions; `_prepared` rewrites the model so that none of this changes its meaning. Shapes
that are computed are imported by `onnx_import.py`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from tvmtarget.backends.expansion_builder import stated_axes
from tvmtarget.backends.float_accumulation import ACCUMULATING, accumulate_in_float32
from tvmtarget.backends.machine import native_code_mismatch
from tvmtarget.backends.operator_expansion import EXPANSIONS, RECURRENT_EXPANSIONS, expand_operators, value_types
from tvmtarget.backends.protocol import Ability, Array, Backend, CompileRequest, scratch_in
from tvmtarget.backends.tvm.compiled_module import (
    LIBRARY,
    LOCK,
    CompiledModule,
    CudaModule,
    check_address_space,
    generator_version,
    has_linker,
    import_tvm,
    load,
    place,
    quiet,
    tvm_version,
    within_limits,
)
from tvmtarget.backends.tvm.cpu_versions import LEVEL, has_versions, runs_level
from tvmtarget.backends.tvm.cuda import (
    capability,
    cuda_pipeline,
    cuda_target,
    fusing_passes,
    generating,
    gpu_mismatch,
    is_loaded,
)
from tvmtarget.backends.tvm.cuda_compiler import compiler_version
from tvmtarget.backends.tvm.isolated_compile import compile_isolated
from tvmtarget.backends.tvm.llvm_options import option_problems
from tvmtarget.backends.tvm.traces import TILES_FORMAT, TRACE_FORMAT
from tvmtarget.backends.tvm.wide_indices import register_pipeline
from tvmtarget.errors import BackendError, CompileError, TvmTargetError, raise_all, warn
from tvmtarget.human_units import counted
from tvmtarget.ir.dim_expressions import least_dim, symbols_of
from tvmtarget.ir.names import Names
from tvmtarget.ir.types import Dim
from tvmtarget.target.attributes import Value
from tvmtarget.target.cpu.isa import spell_for_llvm
from tvmtarget.target.cpu.triples import Triple
from tvmtarget.target.kinds import kind_of
from tvmtarget.target.tree import Target
from tvmtarget.toolchains.platforms import is_this_machine, triple_of

# A build whose code is in the compile cache does not compile: what only compiling needs is imported there.
if TYPE_CHECKING:
    from tvmtarget.backends.c.static_function import StaticFunction
    from tvmtarget.backends.tvm.gpu_kernels import GpuKernelTuningContext
    from tvmtarget.backends.tvm.kernels import CpuKernelTuningContext
    from tvmtarget.backends.tvm.register_tiling import VectorUnit

__all__ = ["BACKEND", "LoweredFunction", "generates"]

_T = TypeVar("_T")

# Results that are always or often not read, and that the importer does not make; see strategies.
_SPARE_RESULTS = frozenset({"BatchNormalization", "Dropout", "LayerNormalization", "MaxPool"})
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# Operators that sum over a dimension, besides those called Reduce...
_SUMS = frozenset({"ArgMax", "ArgMin", "Einsum", "Gemm", "MatMul", "MatMulInteger"})
# What TVM's importer or code generator computes in float32 and float64 only.
_NOT_IN_HALF = frozenset(
    {
        *("Acos", "Acosh", "AffineGrid", "Asin", "Asinh", "Atan", "Cosh", "Elu", "GridSample", "MaxRoiPool", "Mod"),
        *("RoiAlign", "Selu", "Sinh"),
    }
)
_ALLOCATION = "tirx.TVMBackendAllocWorkspace"  # what TVM's passes make of buffers that are too large for the stack

MEMORY_SAVINGS: Mapping[str, Mapping[str, Value]] = {"llvm": {"disable-winograd": True}}
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
            "disable-winograd",
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


def _is_tir(module: Any) -> bool:  # noqa: ANN401
    """Return whether a module of TVM has TIR functions only."""
    tirx = import_tvm().tirx
    return all(isinstance(function, tirx.PrimFunc) for function in module.functions.values())


def generates(kind: str) -> bool:
    """Return whether TVM has an external code generator for functions of Relax.

    Args:
        kind: a target kind.

    Returns:
        True if a function `relax.ext.KIND` is registered.
    """
    return import_tvm().get_global_func(f"relax.ext.{kind}", allow_missing=True) is not None


@dataclass(frozen=True)
class LoweredFunction:
    """A leaf function in the form that TVM's virtual machine executes, before native code is generated.

    Attributes:
        module: TVM's module of its Relax function and tensor functions.
        targets: TVM's targets of the tensor functions, as `VmLinker.add_module` takes them.
        is_tuple: whether it returns a tuple of its results, not the only one.
        never_empty: positions of the parameters that must have elements.
        weights: constants that it takes after its parameters.
    """

    module: Any
    targets: tuple[Any, ...]
    is_tuple: bool
    never_empty: frozenset[int]
    weights: tuple[Array, ...] = ()

    def on_device(self, number: int) -> LoweredFunction:
        """Return the function for a device other than the first of the virtual machine.

        Constants become parameters, as the virtual machine keeps all constants on its first device.

        Args:
            number: number of the device among those of the virtual machine.

        Returns:
            The function, which allocates its memory on the device.
        """
        from tvm_ffi import structural_map

        tvm = import_tvm()
        allocate, index = tvm.ir.Op.get("relax.vm.alloc_storage"), tvm.tirx.IntImm("int64", number)
        weights: dict[Any, Any] = {}

        def placed(call: Any) -> Any:  # noqa: ANN401
            if call.op != allocate:
                return call
            return tvm.ir.Call(call.op, [call.args[0], index, *call.args[2:]], call.attrs, call.ty_args, ret_ty=call.ty)

        def lifted(constant: Any) -> Any:  # noqa: ANN401
            if not hasattr(constant.value, "numpy"):  # an element type
                return constant
            if constant not in weights:
                weights[constant] = tvm.relax.Var(f"weight_{len(weights)}", constant.ty)
            return weights[constant]

        module = self.module.clone()
        for variable, function in self.module.functions_items():
            if isinstance(function, tvm.relax.Function):
                body = structural_map(function.body, [(tvm.ir.expr.GenericConst, lifted), (tvm.ir.Call, placed)])
                params = [*function.params, *weights.values()]
                module[variable] = tvm.relax.Function(params, body, function.ret_ty, function.is_pure, function.attrs)
        return replace(self, module=module, weights=tuple(constant.value.numpy() for constant in weights))


class _External(CompiledModule):
    """A module of an external code generator, whose functions exist in this process only."""

    def native_files(self) -> Mapping[str, bytes]:
        return {}


class _Tvm(Backend):
    name = "tvm"
    kinds = ("llvm", "cuda")
    supports = frozenset[Ability]({"device-memory", "keeps-inputs", "shared-code", "static", "tuning"})
    honours = HONOURS
    memory_savings = MEMORY_SAVINGS
    format = TILES_FORMAT
    trace_format = TRACE_FORMAT

    def version(self) -> str:
        return f"apache-tvm {tvm_version()}"

    def code_version(self, target: Target) -> str | None:
        if target.kind not in self.kinds or not has_linker():
            return None
        if "tvm" in sys.modules:
            raise_all(BackendError, [*_ignored_context(import_tvm())])
        if target.kind == "llvm":
            return generator_version()
        tvm = import_tvm()
        if not is_loaded(tvm):
            return None
        # Code without an arch is for the first GPU of this machine.
        arch = "" if "arch" in target.attrs or not tvm.cuda(0).exist else capability(tvm)
        return f"{generator_version()} {arch} {compiler_version()}"

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
        if request.target.kind not in self.kinds:
            return self._external(request)
        return _Compilation(request).result()

    def lower(self, request: CompileRequest, name: str) -> LoweredFunction:
        """Lower a leaf function for TVM's virtual machine, without generating native code; the caller holds the lock.

        Args:
            request: the function, which is no TIR code.
            name: the name of its entry in the lowered module, in place of `main`.

        Returns:
            The lowered function.

        Raises:
            BackendError: names the function and the reason.
        """
        tvm = import_tvm()
        never_empty = _never_empty(request)

        def lowered(fuses: bool) -> LoweredFunction:
            with quiet(), _imported(tvm, request, fuses=fuses) as (module, targets, pipeline):
                main = module["main"]
                del module["main"]
                module[name] = main.with_attr("global_symbol", name)
                fields = list(main.ret_ty.fields) if isinstance(main.ret_ty, tvm.ir.TupleType) else None
                # As when it runs alone: of one result that is a tuple, only a tuple of one tensor is unpacked.
                is_one = fields is None or (len(request.outputs) == 1 and not _is_one_tensor(tvm, fields))
                with targets[0]:
                    return LoweredFunction(pipeline(module), targets, not is_one, never_empty)

        with _named_errors(request):
            return _fused_if_possible(request, lowered)

    def static_function(self, request: CompileRequest, prefix: str) -> StaticFunction:
        """Lower a leaf function of kind c or llvm to kernels: C for the one, an object file of LLVM for the other."""
        tvm, kind = import_tvm(), request.target.kind
        place = f"function {request.name!r} of @{request.site or '.'}"
        if not request.is_relax:
            for value in request.model.graph.input:
                if any(not dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim):
                    raise BackendError(
                        f"{place}: the shape of {value.name!r} is not static; give the inputs static shapes"
                    )
        if kind not in ("c", "llvm"):
            raise BackendError(f"{place} is code for {kind}, which no program in C links")
        if request.is_relax and not request.is_trusted:
            raise BackendError(f"{place} is of Relax, and is compiled only if you trust who wrote it")
        if request.is_relax and self.is_code(request):
            raise BackendError(f"{place} is TIR code, which has no calls of kernels to plan")
        # On Cortex-M55, register tiles by LLVM 22 read addresses that no memory has; plain loops are right, and small.
        triple = triple_of(request.target)
        is_tiled = triple.os not in ("", "none")
        unit = _vector_unit_of_c(tvm, request.target) if is_tiled and kind == "c" else None
        # C compilers know the CPU; TVM does not have to.
        request = replace(request, target=Target("c") if kind == "c" else _linkable(request.target))

        def lowered() -> StaticFunction:
            from tvm.relax.backend.cpu_generic import pipeline

            from tvmtarget.backends.tvm.c_functions import CodeForm, lower_to_kernels
            from tvmtarget.backends.tvm.cpu_schedule import legal_passes, schedule_functions
            from tvmtarget.backends.tvm.exact_arithmetic import keep_arithmetic
            from tvmtarget.backends.tvm.nan_propagation import propagate_nan
            from tvmtarget.backends.tvm.quantized_constants import lift_quantized, read_quantized
            from tvmtarget.backends.tvm.vector_units import vector_unit

            with _imported(tvm, request, may_vary=False) as (module, (target,), _):
                module, quantized = lift_quantized(_with_empty_dimensions(tvm, module))
                passes = [*pipeline.library_dispatch_passes(target), *pipeline.legalize_passes(target)]
                vectors = unit
                if is_tiled and kind == "llvm":
                    vectors, passes = vector_unit(target), legal_passes(target, saves_memory=True)
                module = tvm.transform.Sequential(passes)(module)
                module, in_rows = read_quantized(module, quantized)
                unscheduled = in_rows
                if vectors is not None:
                    module, reasons = schedule_functions(module, vectors, uses_stack=False)
                    unscheduled = {name: one for name, one in in_rows.items() if name in reasons}
                for name, function in unscheduled.items():
                    module[name] = function
                module = keep_arithmetic(propagate_nan(module), is_llvm=False)  # checks are C for both
                form: CodeForm = "c" if kind == "c" else "object"
                return lower_to_kernels(module, target, request.name, prefix, form, triple.bits)

        with _named_errors(request):
            return within_limits(lowered)

    def is_code(self, request: CompileRequest) -> bool:
        """Return whether the entry of a trusted function of Relax is TIR code.

        Args:
            request: the function.

        Returns:
            True if it is no function of Relax.
        """
        return _is_tir(import_tvm().ir.load_json(request.source.decode()))

    def lower_module(self, module: Any, target: Any) -> Any:  # noqa: ANN401
        """Lower a module of Relax for TVM's virtual machine, by the pipeline of a CPU.

        Args:
            module: TVM's module.
            target: TVM's target of kind llvm.

        Returns:
            The lowered module.
        """
        from tvmtarget.backends.tvm.cpu_schedule import cpu_pipeline

        with target:
            return cpu_pipeline(target)(module)

    def tvm_target(self, leaf: Target) -> Any:  # noqa: ANN401
        """Return TVM's target of a leaf.

        Args:
            leaf: a target of kind llvm or cuda, with its host.

        Returns:
            TVM's target.

        Raises:
            BackendError: LLVM does not know the CPU.
        """
        return _target(import_tvm(), leaf)

    def _external(self, request: CompileRequest) -> CompiledModule:
        """Compile a function of Relax by an external code generator, with the attributes of the leaf as options."""
        tvm, kind = import_tvm(), request.target.kind
        if not generates(kind):
            raise BackendError(
                f"TVM has no code generator relax.ext.{kind} for function {request.name!r} of @{request.site or '.'}"
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
                f"relax.ext.{kind} cannot take function {request.name!r} of @{request.site or '.'}: {reason}"
            ) from error

    def tuning_context(self, request: CompileRequest) -> CpuKernelTuningContext | GpuKernelTuningContext:
        """Return the tensor functions of a leaf function."""
        from tvmtarget.backends.tvm.cpu_schedule import legal_passes
        from tvmtarget.backends.tvm.gpu_kernels import GpuKernelTuningContext
        from tvmtarget.backends.tvm.kernels import CpuKernelTuningContext
        from tvmtarget.backends.tvm.vector_units import vector_unit

        tvm = import_tvm()
        is_gpu = request.target.kind == "cuda"
        with LOCK, quiet():
            target, *fallback = _targets(tvm, request.target)
            passes = (
                fusing_passes(target)
                if is_gpu
                else legal_passes(target, saves_memory=_disables_winograd(request.target))
            )
            with target, tvm.transform.PassContext(opt_level=3):
                module = tvm.transform.Sequential(passes)(_module_of(tvm, request))
                if is_gpu:
                    return GpuKernelTuningContext(module, target)
                runs = fallback[0] if fallback and not runs_level(request.target) else target
                return CpuKernelTuningContext(module, runs, vector_unit(target))


class _Compilation:
    """The compilation of one leaf function, in this process or, of a source without trust, in one of its own."""

    def __init__(self, request: CompileRequest) -> None:
        self.tvm = import_tvm()
        self.request = request
        self.is_gpu = request.target.kind == "cuda"
        self.is_native = not self.is_gpu or is_loaded(self.tvm)
        self.never_empty = _never_empty(request)
        # Untrusted TIR is never read here: `compile_isolated` rejects it.
        is_read = request.is_relax and request.is_trusted
        self.whole = self.tvm.ir.load_json(request.source.decode()) if is_read else None
        self.is_tir = self.whole is not None and _is_tir(self.whole)
        self.scratch = dict(scratch_in(request.native))

    def result(self) -> CompiledModule:
        """Return the function with the native code of the request, or compile it."""
        request = self.request
        if LIBRARY in request.native and self.is_native:
            return self._opened(request.native[LIBRARY])
        raise_all(BackendError, [*_ignored_context(self.tvm)])
        if request.is_relax and not request.is_trusted:
            library = compile_isolated(request)
            if library is not None:
                return self._opened(library)
        with _named_errors(request):
            check_address_space()
            runs_here = request.target.kind == "llvm" and native_code_mismatch(request.target) is None
            if not self.is_tir and runs_here and has_linker():
                library = self._within_limits(is_library=True).native_files().get(LIBRARY)
                if library is not None:
                    return self._opened(library)
            return self._within_limits(is_library=False)

    def _opened(self, library: bytes) -> CompiledModule:
        loaded = self._program(load(library))
        loaded.library, loaded.kernel_scratch = library, self.scratch
        return loaded

    def _program(self, executable: Any) -> CompiledModule:  # noqa: ANN401
        if self.is_tir:
            from tvmtarget.backends.tvm.tir_programs import CudaTirModule, TirModule

            if self.is_gpu:
                return CudaTirModule(executable, self.whole, self.request, is_native=self.is_native)
            return TirModule(executable, self.whole, self.request)
        results = len(self.request.outputs)
        if self.is_gpu:
            return CudaModule(executable, self.never_empty, results, is_native=self.is_native)
        return CompiledModule(executable, self.never_empty, results, may_write=self.request.is_relax)

    def _within_limits(self, *, is_library: bool) -> CompiledModule:
        def attempt(fuses: bool) -> CompiledModule:
            return within_limits(partial(self._compiled, is_library=is_library, fuses=fuses))

        made = attempt(True) if self.is_tir or self.is_gpu else _fused_if_possible(self.request, attempt)
        made.kernel_scratch = self.scratch
        return made

    def _compiled(self, *, is_library: bool, fuses: bool) -> CompiledModule:
        tvm, request = self.tvm, self.request
        if self.is_tir:
            from tvmtarget.backends.tvm.tir_programs import build_tir

            target = _target(tvm, request.target)
            with generating(tvm, target) if self.is_gpu else target, tvm.transform.PassContext(opt_level=3):
                return self._program(build_tir(self.whole, target))
        imported = _imported(tvm, request, may_vary=is_library, fuses=fuses, scratch=self.scratch)
        with imported as (module, targets, pipeline):
            if not is_library:
                lowering = "default" if self.is_gpu else register_pipeline()
                return self._program(
                    tvm.compile(module, target=targets[0], relax_pipeline=pipeline, tir_pipeline=lowering)
                )
            from tvmtarget.backends.tvm.vm_linking import VmLinker

            linker = VmLinker(is_library=True)
            linker.add_module(pipeline(module), targets)
            return self._program(linker.link(targets[0]))


def _is_one_tensor(tvm: Any, fields: Sequence[Any]) -> bool:  # noqa: ANN401
    return len(fields) == 1 and isinstance(fields[0], tvm.relax.TensorType)


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

# Elements of a symbolic dimension that storage is planned for at most.
_MOST_PLANNED = 1 << 20


def _nodes(tvm: Any, module: Any) -> list[Any]:  # noqa: ANN401
    """Return the nodes of all functions of Relax in a module."""
    nodes: list[Any] = []
    for function in module.functions.values():
        if isinstance(function, tvm.relax.Function):
            tvm.relax.analysis.post_order_visit(function, nodes.append)
    return nodes


def _unsafe_passes(tvm: Any, nodes: Sequence[Any]) -> list[str]:  # noqa: ANN401
    """Return the passes of TVM 0.27 that a module with some nodes cannot have.

    `StaticPlanBlockMemory` reuses storage that a branch allocates for later tensors, even if the other branch ran. And
    where the size of a tensor is `min(n, 1000000000)`, as of the slices that tf2onnx writes, it allocates the bound.
    """
    sizes = (size for node in nodes if isinstance(node, tvm.ir.Call) for size in _sizes(node) or ())
    symbolic = (size for size in sizes if not isinstance(size, tvm.tirx.IntImm))
    analyzer = tvm.sym.Analyzer()
    bounds = (analyzer.const_int_bound(size).max_value for size in symbolic)
    is_unsafe = any(_MOST_PLANNED < bound < tvm.sym.ConstIntBound.POS_INF for bound in bounds)
    is_unsafe = is_unsafe or any(isinstance(node, tvm.relax.If) for node in nodes)
    return ["StaticPlanBlockMemory"] if is_unsafe else []


def _module_of(tvm: Any, request: CompileRequest) -> Any:  # noqa: ANN401
    # A build whose code is cached imports nothing.
    from tvmtarget.backends.tvm.index_checks import check_indices

    is_gpu = request.target.kind == "cuda"
    if request.is_relax:
        module = tvm.ir.load_json(request.source.decode())
    else:
        from tvmtarget.backends.tvm.onnx_import import import_onnx
        from tvmtarget.backends.tvm.quantized_moves import move_quantized

        prepared = _prepared(request.model, is_gpu=is_gpu)
        module = import_onnx(*prepared)
        if any(node.op_type == "QuantizeLinear" for node in prepared[0].graph.node):
            module = move_quantized(module)
    return module if is_gpu else check_indices(module)


def _is_symbolic(tvm: Any, module: Any) -> bool:  # noqa: ANN401
    """Return whether a parameter of a module has a symbolic dimension."""
    functions = (one for one in module.functions.values() if isinstance(one, tvm.relax.Function))
    shapes = (getattr(param.ty, "shape", None) for function in functions for param in function.params)
    sizes = (size for shape in shapes for size in getattr(shape, "values", None) or ())
    return any(not isinstance(size, tvm.tirx.IntImm) for size in sizes)


def _reduces_to_scalar(tvm: Any, nodes: Iterable[Any]) -> bool:  # noqa: ANN401
    """Return whether one of some nodes reduces a tensor of symbolic shape to a scalar.

    The LLVM of TVM 0.27 never ends at its level 3 where such a function, a maximum of float[n,96,7,7], is in one module
    with one that computes sizes; each alone takes 0.2 s, and both at level 2, too.
    """
    scalars = (node for node in nodes if isinstance(node, tvm.ir.Call) and _sizes(node) == [])
    sizes = (size for scalar in scalars for one in scalar.args for size in _sizes(one) or ())
    return any(not isinstance(size, tvm.tirx.IntImm) for size in sizes)


def _sizes(node: Any) -> list[Any] | None:  # noqa: ANN401
    """Return the dimensions of a tensor; None for anything else, and if they are not known."""
    sizes = getattr(getattr(getattr(node, "ty", None), "shape", None), "values", None)
    return None if sizes is None else list(sizes)


@contextlib.contextmanager
def _imported(
    tvm: Any,  # noqa: ANN401
    request: CompileRequest,
    *,
    may_vary: bool = True,
    fuses: bool = True,
    scratch: dict[str, int] | None = None,
) -> Iterator[tuple[Any, tuple[Any, ...], Any]]:
    """Import a leaf function, and enter the context in which it is compiled.

    Args:
        tvm: the module `tvm`.
        request: the function.
        may_vary: whether its code may have several versions.
        fuses: whether operations become one function where TVM can fuse them.
        scratch: gets the bytes that kernels allocate while they run, by kernel.

    Yields:
        TVM's module and targets (`_targets`), and the pipeline for Relax.
    """
    from tvmtarget.backends.tvm.cpu_schedule import PASS_CONFIG, cpu_pipeline
    from tvmtarget.backends.tvm.gpu_kernels import gpu_default
    from tvmtarget.backends.tvm.kernels import TunedChoice, cpu_default

    is_gpu = request.target.kind == "cuda"
    module = _module_of(tvm, request)
    nodes = _nodes(tvm, module)
    is_default = request.target.kind == "llvm" and "opt-level" not in request.target.attrs
    never_ends = is_default and _reduces_to_scalar(tvm, nodes)
    leaf = request.target.override({"opt-level": 2}) if never_ends else request.target
    targets = _targets(tvm, leaf) if may_vary else (_target(tvm, leaf),)
    target = targets[0]
    default = (gpu_default if is_gpu else cpu_default)(target)
    known = None if request.schedules is None else TunedChoice(request.schedules, default)
    pipeline = (
        cuda_pipeline(target, known)
        if is_gpu
        else cpu_pipeline(target, known, saves_memory=_disables_winograd(request.target))
    )
    config = PASS_CONFIG if not is_gpu and _is_symbolic(tvm, module) else {}
    instruments = [] if is_gpu or scratch is None else [_scratch_instrument(tvm, scratch)]
    disabled = [*_unsafe_passes(tvm, nodes), *(() if fuses else ("FuseOps", "FuseTIR", "RewriteDataflowReshape"))]
    context = tvm.transform.PassContext(opt_level=3, disabled_pass=disabled, config=config, instruments=instruments)
    with generating(tvm, target) if is_gpu else target, context:
        yield module, targets, pipeline


def _scratch_instrument(tvm: Any, scratch: dict[str, int]) -> Any:  # noqa: ANN401
    """Return an instrument that records what functions allocate, once all of it has a place on the stack or not."""

    class Scratch:
        def run_after_pass(self, module: Any, info: Any) -> None:  # noqa: ANN401
            if str(info.name) == "tirx.LowerTVMBuiltin":
                for name, function in module.functions.items():
                    nbytes = _allocated_bytes(tvm, function.body)
                    if nbytes:
                        scratch[name.name_hint] = max(nbytes, scratch.get(name.name_hint, 0))

    return tvm.ir.instrument.pass_instrument(Scratch)()


def _allocated_bytes(tvm: Any, body: Any) -> int:  # noqa: ANN401
    """Return how many bytes a lowered function allocates, once for each thread in loops that threads share."""
    from tvm_ffi import structural_walk

    loops: list[Any] = []
    structural_walk(body, (tvm.tirx.For, loops.append))
    shared = [loop.body for loop in loops if loop.kind == tvm.tirx.ForKind.PARALLEL]

    def stated(part: Any) -> int:  # noqa: ANN401
        calls: list[Any] = []
        structural_walk(part, (tvm.ir.Call, calls.append))
        sizes = [one.args[2] for one in calls if getattr(one.op, "name", "") == _ALLOCATION]
        return sum(int(size.value) for size in sizes if isinstance(size, tvm.tirx.IntImm))

    return stated(body) + (int(os.environ["TVM_NUM_THREADS"]) - 1) * sum(map(stated, shared))


def _fused_if_possible(request: CompileRequest, attempt: Callable[[bool], _T]) -> _T:
    """Compile with fused operations, or without, and a warning, where TVM cannot compile what it fuses.

    TVM 0.27 fuses some operations of symbolic sizes to functions on which its own passes fail.
    """
    try:
        return attempt(True)
    except TvmTargetError:
        raise
    except Exception as error:
        try:
            made = attempt(False)
        except Exception:
            raise error from None
        warn(f"tvm cannot compile the fused operations of {_place(request)}; they run one by one, which takes longer")
        return made


@contextlib.contextmanager
def _named_errors(request: CompileRequest) -> Iterator[None]:
    """Turn any error of the block into a `BackendError` that names the function."""
    try:
        yield
    except BackendError as error:
        problem = f"tvm cannot compile {_place(request)}: {error}"
        if isinstance(error, CompileError):
            raise CompileError(problem, function=request.name) from error
        raise BackendError(problem) from error
    except TvmTargetError:
        raise
    except Exception as error:
        raise CompileError(
            f"tvm cannot take {_place(request)}: {_reason(error)}; place its operations on another site (where, "
            "--where), or give the inputs static shapes (tt.specialize, --dim)",
            function=request.name,
        ) from error


def _place(request: CompileRequest) -> str:
    """Return what is compiled, with the operators of an ONNX model."""
    place = f"function {request.name!r} of @{request.site or '.'}"
    if request.is_relax:
        return place
    kinds = list(dict.fromkeys(node.op_type for node in request.model.graph.node))
    shown = ", ".join(kinds[:_MOST_KINDS]) + (
        f" and {len(kinds) - _MOST_KINDS} more" if len(kinds) > _MOST_KINDS else ""
    )
    return f"{place} ({counted(len(request.model.graph.node), 'op')}: {shown})"


_MOST_KINDS = 8


def _never_empty(request: CompileRequest) -> frozenset[int]:
    """Return the inputs that must not be empty, as what runs over their dimensions has no result then.

    On CPUs these are searches for places and means of integers; on GPUs all sums leave their results unwritten. The
    inputs are of symbolic shape; static shapes are checked when the program is partitioned. An input may be empty along
    a dimension that no sum runs over, such as a batch, or that is only a part of those: a cache that is extended before
    a sum.
    """
    if request.is_relax:
        return frozenset()
    graph = request.model.graph
    types = value_types(graph)
    sums = [node for node in graph.node if node.op_type in _SUMS or node.op_type.startswith("Reduce")]
    if request.target.kind != "cuda":
        sums = [node for node in sums if node.op_type.startswith("Arg") or _is_integer_mean(node, types)]
    if not sums:
        return frozenset()
    shapes = [_dims(value.type.tensor_type) for value in graph.input]
    lists = {name for node in sums if node.op_type.startswith("Reduce") for name in node.input[1:2]}
    axes = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer if one.name in lists}
    dims = {dim for node in sums for dim in _summed(node, types, axes)}
    symbols = {dim for shape in shapes for dim in shape if isinstance(dim, str)}
    is_known = all(symbols_of(dim) <= symbols for dim in dims if isinstance(dim, str))
    harmless: set[str] = set()
    # Symbols may be 0 at the same time, so that each one joins those before it. Sizes of operands come last: where a
    # cache and what is added to it are summed together, the cache may be empty.
    operands = {dim for node in sums for name in node.input if name in types for dim in _dims(types[name])}
    for one in sorted(symbols if is_known and None not in dims else (), key=lambda one: (one in operands, one)):
        if _may_be_empty({*harmless, one}, dims):
            harmless.add(one)
    needed = [any(not isinstance(dim, int) and dim not in harmless for dim in shape) for shape in shapes]
    checked = {dim for shape in shapes if harmless.isdisjoint(shape) for dim in shape if isinstance(dim, str)}
    return frozenset(
        index
        for index, shape in enumerate(shapes)
        if needed[index] and (harmless.isdisjoint(shape) or not {*shape} - harmless <= checked | {*_numbers(shape)})
    )


def _is_integer_mean(node: NodeProto, types: Mapping[str, TypeProto.Tensor]) -> bool:
    if node.op_type != "ReduceMean":
        return False
    return node.input[0] not in types or types[node.input[0]].elem_type in (TensorProto.INT64, TensorProto.UINT64)


def _summed(node: NodeProto, types: Mapping[str, TypeProto.Tensor], axes: Mapping[str, Array]) -> tuple[Dim, ...]:
    """Return the dimensions that a sum runs over: at least those, and None for an unknown one."""
    shapes = [_dims(types[name]) if name in types and types[name].HasField("shape") else None for name in node.input]
    attributes = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    places: Sequence[int] | None
    if node.op_type in ("Gemm", "MatMul", "MatMulInteger"):
        first, second = shapes[:2]
        is_vector = second is not None and len(second) == 1
        at = (0 if attributes.get("transA") else -1, -1 if is_vector or attributes.get("transB") else -2)
        both: list[Dim] = [shape[place] for shape, place in zip((first, second), at, strict=True) if shape is not None]
        known = [dim for dim in both if dim is not None]
        return (min(known, key=lambda dim: isinstance(dim, str), default=None),)
    if node.op_type.startswith("Arg"):
        places = [attributes.get("axis", 0)]
    elif node.op_type.startswith("Reduce"):
        places = stated_axes(node, axes.get) or None
    else:
        places = None
    if None in shapes[:1] or (places is None and None in shapes):
        return (None,)
    first = shapes[0] or ()
    if places is not None and all(-len(first) <= place < len(first) for place in places):
        return tuple(first[place] for place in places)
    return tuple(dim for shape in shapes for dim in shape or ())


def _may_be_empty(symbols: Set[str], dims: Iterable[Dim]) -> bool:
    """Return whether all dimensions have elements if some symbols are 0 and the others are not."""
    return all((least_dim(dim, 1, symbols) or 0) > 0 for dim in dims if symbols & symbols_of(dim))


def _numbers(shape: Iterable[Dim]) -> Iterator[int]:
    return (dim for dim in shape if isinstance(dim, int))


def _targets(tvm: Any, leaf: Target) -> tuple[Any, ...]:  # noqa: ANN401
    """Return TVM's targets of the versions of a leaf's code: that of its schedules, and that of any other machine."""
    if not has_versions(leaf):
        return (_target(tvm, leaf),)
    # Code for machines without AVX2 is as fast at level 2 of LLVM as at 3, and a build takes a tenth less time.
    other = leaf if "opt-level" in leaf.attrs else leaf.override({"opt-level": 2})
    return tuple(_target(tvm, one) for one in (leaf.override({"mcpu": LEVEL}), other))


# Names of ABIs that LLVM ignores, by architecture. TVM's tags of RISC-V state mfloat-abi, too.
_IGNORED_ABIS = {"x86": ("mfloat-abi", "mabi"), "aarch64": ("mfloat-abi",)}


def _target(tvm: Any, leaf: Target) -> Any:  # noqa: ANN401
    """Return TVM's target of a leaf, with the attributes that TVM has; `BackendError` for an mcpu that LLVM lacks."""
    theirs = {row.name for row in kind_of(leaf.kind).attributes if row.since != "tt1"}
    attributes = {name: value for name, value in spell_for_llvm(leaf.kind, leaf.attrs).items() if name in theirs}
    if leaf.kind == "cuda":
        host = leaf.host if isinstance(leaf.host, Target) and leaf.host.kind == "llvm" else Target("llvm")
        return cuda_target(tvm, attributes, _target(tvm, host))
    config = {name: list(value) if isinstance(value, tuple) else value for name, value in attributes.items()}
    # Without the attribute TVM passes floats in integer registers, of an `eabihf` triple too.
    abi = Triple.parse(str(config["mtriple"])).float_abi if "mtriple" in config else None
    if abi is not None:
        config.setdefault("mfloat-abi", abi)
    for name in _IGNORED_ABIS.get(triple_of(leaf).family, ()):
        if name in config:
            raise BackendError(f"{name} has no effect on {str(triple_of(leaf))!r}; remove it from {str(leaf)!r}")
    codegen = tvm.target.codegen
    mcpu, triple = config.get("mcpu"), config.get("mtriple", codegen.llvm_get_system_triple())
    if mcpu is not None and not codegen.llvm_is_valid_cpu(mcpu, triple):
        raise BackendError(f"LLVM knows no CPU {mcpu!r} for {triple!r}; change mcpu of {str(leaf)!r}")
    options = config.get("cl-opt")
    if isinstance(options, list):
        problems = option_problems(tvm, map(str, options))
        raise_all(BackendError, [f"{problem}; change cl-opt of {str(leaf)!r}" for problem in problems])
    return tvm.target.Target({"kind": leaf.kind, **config} | ({"keys": list(leaf.own_keys)} if leaf.own_keys else {}))


def _disables_winograd(leaf: Target) -> bool:
    return bool(leaf.attrs.get("disable-winograd"))


def _vector_unit_of_c(tvm: Any, leaf: Target) -> VectorUnit:  # noqa: ANN401
    """Return the vector registers of a CPU of kind c, whose compiler turns loops over lanes into vectors again."""
    from tvmtarget.backends.tvm.vector_units import vector_unit

    codegen, triple, mcpu = tvm.target.codegen, str(triple_of(leaf)), leaf.attrs.get("mcpu")
    known = {"mcpu": str(mcpu)} if mcpu is not None and codegen.llvm_is_valid_cpu(str(mcpu), triple) else {}
    return vector_unit(_target(tvm, _linkable(Target("llvm", {"mtriple": triple, **known}))))


def _with_empty_dimensions(tvm: Any, module: Any) -> Any:  # noqa: ANN401
    """Return a module of a function without symbolic shapes: `_name_symbols` made symbols of dimensions of size 0."""
    found: dict[Any, int] = {}
    for param in module["main"].params:
        shape = getattr(param.ty, "shape", None)
        sizes = [] if shape is None else getattr(shape, "values", shape)
        found |= {size: 0 for size in sizes if isinstance(size, tvm.tirx.Var)}
    return tvm.relax.transform.BindSymbolicVars(found, "main")(module) if found else module


# What compilers for Linux on RISC-V assume (RVA20; the profile of Debian's port riscv64), in LLVM's names.
_RISCV_LINUX = ("+m", "+a", "+f", "+d", "+c")


def _linkable(leaf: Target) -> Target:
    """Return a CPU with the triple and calling convention that C compilers for its platform use by default."""
    triple, attrs = triple_of(leaf), leaf.attrs
    added: dict[str, Value] = {}
    if "mtriple" not in attrs and not is_this_machine(triple):
        added["mtriple"] = str(triple)
    if triple.family == "arm" and triple.environment.endswith("hf") and "mfloat-abi" not in attrs:
        added["mfloat-abi"] = "hard"
    if triple.family == "riscv" and triple.os == "linux" and not {"mattr", "mcpu"} & set(attrs):
        added |= {"mattr": _RISCV_LINUX, "mabi": "lp64d" if triple.arch.startswith("riscv64") else "ilp32d"}
    return leaf.override(added) if added else leaf


def _prepared(
    model: ModelProto, *, is_gpu: bool = False
) -> tuple[ModelProto, dict[str, tuple[Dim, ...]], dict[str, int]]:
    """Copy a model into the form that TVM's importer reads correctly.

    Returns:
        The model, and the dimensions and element types of its values by name.
    """
    from tvmtarget.backends.tvm.segment_sums import SEGMENT_EXPANSIONS

    copy = ModelProto()
    copy.CopyFrom(model)
    _name_inputs(copy.graph)
    _separate_constants(copy.graph)
    opset = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)
    expansions = EXPANSIONS | (RECURRENT_EXPANSIONS if is_gpu else SEGMENT_EXPANSIONS)
    # What is between the steps of an expansion is in float32, too: squares, and sums before their logarithm.
    copy = accumulate_in_float32(copy, ACCUMULATING & expansions.keys())
    expand_operators(copy.graph, value_types(copy.graph), opset, expansions)
    # Sums that an expansion brings are accumulated in float32, too.
    copy = accumulate_in_float32(copy, ACCUMULATING | _NOT_IN_HALF)
    graph = copy.graph
    types = value_types(graph)
    shapes = {name: _dims(type_) for name, type_ in types.items() if type_.HasField("shape")}
    _name_symbols(graph)
    _cut_spare_results(graph)
    empty = {tensor.name for tensor in graph.initializer if 0 in tensor.dims}
    for node in graph.node:
        _drop_empty(node, empty)
    return copy, shapes, {name: type_.elem_type for name, type_ in types.items()}


def _dims(type_: TypeProto.Tensor) -> tuple[Dim, ...]:
    return tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in type_.shape.dim)


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


def _separate_constants(graph: GraphProto) -> None:
    """Let nodes read constants that are also results as initializers, as the importer knows what these hold."""
    returned = {value.name for value in graph.output}
    constants = {
        node.output[0]: node.attribute[0].t
        for node in graph.node
        if node.op_type == "Constant" and node.output[0] in returned and node.attribute[0].name == "value"
    }
    read = {name for node in graph.node for name in node.input}
    made = {name for node in graph.node for name in node.output}
    names = Names([*made, *(one.name for one in (*graph.input, *graph.initializer))])
    own_names = {name: names.fresh(name) for name in constants if name in read}
    for name, own in own_names.items():
        graph.initializer.add().CopyFrom(constants[name])
        graph.initializer[-1].name = own
    for node in graph.node:
        node.input[:] = [own_names.get(name, name) for name in node.input]


def _cut_spare_results(graph: GraphProto) -> None:
    """Remove unread results that the importer does not compute."""
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    for node in graph.node:
        while node.op_type in _SPARE_RESULTS and len(node.output) > 1 and node.output[-1] not in read:
            node.output.pop()


def _drop_empty(node: NodeProto, empty: set[str]) -> None:
    """Remove empty lists of a node, and operands of a Resize; `empty` are the initializers without elements."""
    for attribute in [attr for attr in node.attribute if attr.type == AttributeProto.INTS and not attr.ints]:
        node.attribute.remove(attribute)
    if node.op_type == "Resize":
        node.input[:] = [name if name not in empty else "" for name in node.input]


BACKEND = _Tvm()
