"""OpenVINO on CPUs, GPUs and NPUs of Intel and Arm, for leaves of kind openvino."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx

from tvmtarget.backends.engine_packages import engine_package
from tvmtarget.backends.machine import processors, saturates_products
from tvmtarget.backends.openvino.corrections import correct
from tvmtarget.backends.openvino.expansions import expanded, is_low_precision
from tvmtarget.backends.openvino.library import core, first_line, run_to_end
from tvmtarget.backends.openvino.run_checks import (
    FloatCheck,
    IndexCheck,
    dims_of_elements,
    float_checks,
    function_of_open_sizes,
    index_checks,
    scaled_dims,
    size_problem,
    slice_ends,
    stated_dims,
    values_read,
)
from tvmtarget.backends.protocol import Ability, Array, Backend, Compiled, CompileRequest
from tvmtarget.errors import BackendError, CompileError, RunError
from tvmtarget.ir.dim_expressions import size_of
from tvmtarget.ir.function import Function
from tvmtarget.ir.size_requirements import RunSizes
from tvmtarget.python_process import fork_problem, never_free_in_forks
from tvmtarget.support.openvino_rules import rounded_up
from tvmtarget.target.attributes import Value
from tvmtarget.target.tree import Target

__all__ = ["BACKEND"]

# Attributes that are set if they differ from their default, with the property of OpenVINO.
_COUNTS = {"inference-num-threads": "INFERENCE_NUM_THREADS", "num-streams": "NUM_STREAMS"}
_INT32 = np.iinfo("int32")


class _OpenVino(Backend):
    name = "openvino"
    kinds = ("openvino",)
    supports = frozenset[Ability]({"keeps-inputs", "shared-code"})
    honours = {
        "openvino": frozenset(
            {"device-name", "inference-num-threads", "num-streams", "inference-precision", "cache-dir"}
        )
    }

    def version(self) -> str:
        return f"openvino {engine_package('openvino').__version__}"

    def unsupported_reason(self, target: Target, device: int = 0) -> str | None:
        name, here = str(target["device-name"]), core().available_devices
        if name in here or any(one.startswith(f"{name}.") for one in here):
            return None
        return f"OpenVINO finds no device {name!r} here; it finds {', '.join(here)}; set device-name to one of these"

    def settings(self, target: Target) -> Mapping[str, Sequence[Value]]:
        if target["device-name"] != "CPU":
            return {}
        counts = {1, processors()} | {2**power for power in range(1, 7) if 2**power < processors()}
        return {"inference-num-threads": tuple(sorted(counts))}

    def compile(self, request: CompileRequest) -> _Program:
        ov, place = engine_package("openvino"), f"@{request.site or '.'}"
        reason = self.unsupported_reason(request.target)
        if reason is not None:
            raise BackendError(f"openvino cannot take function {request.name!r} of {place}: {reason}")
        target = request.target
        # By default OpenVINO computes in the fastest type of the processor, and reports no difference.
        precision = str(target["inference-precision"])
        properties: dict[str, object] = {"INFERENCE_PRECISION_HINT": getattr(ov.Type, _TYPES[precision])}
        properties["PERFORMANCE_HINT"] = "LATENCY"
        if "DYNAMIC_QUANTIZATION_GROUP_SIZE" in core().get_property(target["device-name"], "SUPPORTED_PROPERTIES"):
            # In products with dequantized weights, it would round the other operand to 8 bits.
            properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
        if target["device-name"] == "CPU":
            # Threads of several functions, or programs, would be pinned to the same processors.
            properties["ENABLE_CPU_PINNING"] = False
        stated = {name: int(str(target[name])) for name in _COUNTS if target[name]}
        properties |= {_COUNTS[name]: count for name, count in stated.items()}
        if target["cache-dir"]:
            properties["CACHE_DIR"] = _cache_folder(str(target["cache-dir"]), place)
        try:
            is_cpu = target["device-name"] == "CPU"
            low_precision = not is_cpu or (not saturates_products() and is_low_precision(request.model.graph))
            if not low_precision:
                properties["LP_TRANSFORMS_MODE"] = "NO"  # quantized operators are computed in floats
            checks = tuple(index_checks(request.model.graph, place))
            floats = tuple(float_checks(request.model, place))
            not_empty = dims_of_elements(request.model.graph)
            scaled = tuple(scaled_dims(request.model.graph))
            function = function_of_open_sizes(request.model)
            request = replace(request, source=expanded(request, low_precision=low_precision))
            indices = (check.indices for check in checks if check.constant is None)
            operands = (name for check in floats for name in check.operands)
            model = core().read_model(request.source_with((*indices, *operands)))
            correct(model)
            compile_model = partial(core().compile_model, model, str(target["device-name"]), properties)
            compiled = compile_model()
            found: dict[str, object] = {name: compiled.get_property(_COUNTS[name]) for name in stated}
            given = compiled.get_property("INFERENCE_PRECISION_HINT")
        except Exception as error:
            raise CompileError(
                f"openvino cannot take function {request.name!r} of {place}: {first_line(error)}; place its "
                "operations on another site (where, --where)",
                function=request.name,
            ) from error
        used: dict[str, object] = {name: one for name, one in _TYPES.items() if getattr(ov.Type, one) == given}
        requested: dict[str, object] = {**stated, "inference-precision": precision}
        found["inference-precision"] = next(iter(used), given)
        for name, value in requested.items():
            if found[name] != value:
                raise BackendError(
                    f"{name} {value} of {place} cannot be honoured: OpenVINO uses {found[name]} on this machine; "
                    f"remove it (--unset {f'{request.site}/{name}'.lstrip('/')})"
                )
        return _Program(compiled, compile_model, model, request, checks, floats, not_empty, scaled, function)


def _cache_folder(path: str, place: str) -> str:
    """Make the folder of `cache-dir`; where it cannot be written, OpenVINO would store nothing, and say so nowhere."""
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BackendError(f"cache-dir {path!r} of {place} cannot be written: {reason}; name another folder") from error
    return path


_TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


class _Program(Compiled):
    def __init__(
        self,
        compiled: Any,  # noqa: ANN401
        compile_model: Callable[[], Any],
        model: Any,  # noqa: ANN401
        request: CompileRequest,
        checks: Sequence[IndexCheck],
        floats: Sequence[FloatCheck],
        not_empty: Sequence[tuple[int, int, str, str]],
        scaled: Sequence[tuple[str, np.float32, str]],
        function: Function | None,
    ) -> None:
        self._compiled: Any = compiled  # None after a run that failed
        self._compile_model = compile_model
        self._place = f"@{request.site or '.'}"
        self._process = os.getpid()
        # A request serves one thread at a time.
        self._idle: list[Any] = []
        self._lock = threading.Lock()
        graph = request.model.graph
        initialized = {tensor.name for tensor in graph.initializer}
        self._names = [value.name for value in graph.input if value.name not in initialized]
        # Compiling keeps the order of inputs and results, but not all of their names.
        given = [port.get_names() for port in model.inputs]
        results = [port.get_names() for port in model.outputs]
        # An input that is a result too has lost its name, but is in its place if no input is left out.
        is_complete = len(given) == len(self._names)
        self._inputs = [at if is_complete else _position(given, name) for at, name in enumerate(self._names)]
        self._outputs = [_position(results, value.name) for value in graph.output]
        self._float_checks = floats
        names = {name for one in floats for name in one.operands}
        self._operands = {name: _position(results, name) for name in names.difference(self._names)}
        self._ends = slice_ends(graph)
        self._not_empty = not_empty
        self._scaled = scaled
        self._dims = [stated_dims(value.type.tensor_type) for value in graph.input if value.name not in initialized]
        self._results = [value.type.tensor_type for value in graph.output]
        read = set(values_read(graph))
        ignored = [n for n, at in zip(self._names, self._inputs, strict=True) if at is None and n in read]
        if ignored or None in (*self._outputs, *self._operands.values()) or len(compiled.inputs) != len(given):
            what = f"its result depends on {ignored[0]!r}, which OpenVINO ignores" if ignored else "values are lost"
            raise BackendError(f"openvino cannot take function {request.name!r} of {self._place}: {what}")
        # Known indices and inputs are checked before a run, which may end the process, and computed ones after it.
        unknown = [one for one in checks if one.constant is None]
        self._known_indices = [(one, one.constant) for one in checks if one.constant is not None]
        self._checks_before = [(one, self._names.index(one.indices)) for one in unknown if one.indices in self._names]
        computed = [(one, _position(results, one.indices)) for one in unknown if one.indices not in self._names]
        self._checks_after = [(one, at) for one, at in computed if at is not None]
        self._sizes = None if function is None else RunSizes(function, partial(size_problem, model, self._inputs))
        never_free_in_forks(compiled)

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        if self._process != os.getpid():
            raise RunError(fork_problem(f"OpenVINO compiled {self._place}", self._process))
        import openvino as ov  # it is there, and each run looks it up

        arrays = [self._checked(name, array) for name, array in zip(self._names, inputs, strict=True)]
        sizes = self._sizes_of([array.shape for array in arrays])
        if (empty := self._results_of_empty_inputs(arrays, sizes)) is not None:
            return empty
        self._check_before(arrays, sizes)
        with self._lock:
            if self._compiled is None:
                self._compiled = self._compile_model()
                never_free_in_forks(self._compiled)
            compiled = self._compiled
            request = self._idle.pop() if self._idle else compiled.create_infer_request()
        # A tensor that shares memory does not keep its array alive: `arrays` does, until the run has ended.
        for position, array in zip(self._inputs, arrays, strict=True):
            if position is not None:
                tensor = ov.Tensor(array, shared_memory=array.flags.writeable)
                request.set_input_tensor(position, tensor)
        try:
            run_to_end(request)
        except Exception as error:
            # Some of its nodes have the shapes of this run now, and later runs would return these.
            with self._lock:
                if self._compiled is compiled:
                    self._compiled = None
                    self._idle.clear()
            raise RunError(f"openvino fails in {self._place}: {first_line(error)}") from error
        results = [request.get_output_tensor(position).data.copy() for position in self._outputs]
        try:
            for check, result in self._checks_after:
                check.require_within(request.get_output_tensor(result).data, sizes)
            computed = {name: request.get_output_tensor(at).data for name, at in self._operands.items()}
            for float_check in self._float_checks:
                float_check.require_exact({**dict(zip(self._names, arrays, strict=True)), **computed})
        finally:
            with self._lock:
                if self._compiled is compiled:
                    self._idle.append(request)
        return results

    def _results_of_empty_inputs(self, arrays: Sequence[Array], sizes: Mapping[str, int]) -> Sequence[Array] | None:
        """Return the results of inputs with no elements, where OpenVINO computes others than ONNX; None elsewhere."""
        for at, axis, dim, node in self._not_empty:
            if not arrays[at].shape[axis]:
                if (results := self._results_of_nothing(sizes)) is not None:
                    return results
                raise RunError(
                    f"{dim} of input {self._names[at]!r} of {self._place} is 0, and OpenVINO does not compute {node} "
                    "of no elements as ONNX defines it; place its operations on another site"
                )
        return None

    def _check_before(self, arrays: Sequence[Array], sizes: Mapping[str, int]) -> None:
        """Raise a RunError for sizes and indices with which OpenVINO would compute something else than ONNX."""
        if self._sizes is not None and (problem := self._sizes.problem([array.shape for array in arrays])):
            raise RunError(f"{problem} ({self._place})")
        for dim, scale, node in self._scaled:
            size = size_of(dim, sizes)
            if size is not None and rounded_up(np.array([size]), scale).size:
                raise RunError(
                    f"{dim} of {self._place} is {size}, and OpenVINO rounds {size} * {scale!s} up in {node}; place its "
                    "operations on another site"
                )
        for check, constant in self._known_indices:
            check.require_within(constant, sizes)
        for check, given in self._checks_before:
            check.require_within(arrays[given], sizes)

    def _sizes_of(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """Return the sizes of the symbolic dimensions of the inputs."""
        sizes: dict[str, int] = {}
        for dims, shape in zip(self._dims, shapes, strict=True):
            sizes |= {dim: size for dim, size in zip(dims, shape, strict=False) if isinstance(dim, str)}
        return sizes

    def _results_of_nothing(self, sizes: Mapping[str, int]) -> list[Array] | None:
        """Return the results if none of them has elements, such as those of an empty batch; else None."""
        results = []
        for type_ in self._results:
            found = [size_of(dim, sizes) for dim in stated_dims(type_)]
            known = [size for size in found if size is not None and size >= 0]
            if 0 not in known or len(known) < len(found):
                return None
            results.append(np.empty(known, onnx.helper.tensor_dtype_to_np_dtype(type_.elem_type)))
        return results

    def _checked(self, name: str, array: Array) -> Array:
        """Return an input as a contiguous array whose integers fit into the 32 bits that OpenVINO computes with."""
        if name in self._ends:  # beyond all elements in either case
            array = np.clip(array, _INT32.min, _INT32.max)
        if array.dtype == np.int64 and array.size:
            least, most = int(array.min()), int(array.max())
            if least < _INT32.min or most > _INT32.max:
                value = least if least < _INT32.min else most
                raise RunError(
                    f"input {name!r} of {self._place} holds {value}, and OpenVINO computes int64 in 32 bits; place its "
                    "operations on another site"
                )
        # OpenVINO knows one of numpy's two names for integers of 64 bits, and ONNX Runtime returns the other.
        return np.asarray(array, order="C").view(array.dtype.str)


def _position(names: Sequence[Collection[str]], name: str) -> int | None:
    return next((position for position, known in enumerate(names) if name in known), None)


BACKEND = _OpenVino()
