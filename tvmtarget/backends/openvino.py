"""OpenVINO on CPUs, GPUs and NPUs of Intel and Arm, for leaves of kind openvino."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx

from tvmtarget.backends.machine import processors, saturates_products
from tvmtarget.backends.protocol import Ability, Array, Backend, Compiled, CompileRequest
from tvmtarget.errors import BackendError, MissingExtraError, RunError
from tvmtarget.python_process import never_free_in_forks
from tvmtarget.target.attributes import Value
from tvmtarget.target.tree import Target

__all__ = ["BACKEND"]

# Attributes that are set if they differ from their default, with the property of OpenVINO.
_COUNTS = {"inference-num-threads": "INFERENCE_NUM_THREADS", "num-streams": "NUM_STREAMS"}
_INT32 = np.iinfo("int32")


def _openvino() -> Any:  # noqa: ANN401 - the package ships no types
    try:
        import openvino
    except ImportError as error:
        raise MissingExtraError("openvino", "openvino") from error
    return openvino


@cache
def _core() -> Any:  # noqa: ANN401
    return _openvino().Core()


class _OpenVino(Backend):
    name = "openvino"
    kinds = ("openvino",)
    supports = frozenset[Ability]({"shared-code"})
    honours = {
        "openvino": frozenset(
            {"device-name", "inference-num-threads", "num-streams", "inference-precision", "cache-dir"}
        )
    }

    def version(self) -> str:
        return f"openvino {_openvino().__version__}"

    def unsupported_reason(self, target: Target, device: int = 0) -> str | None:
        name, here = str(target["device-name"]), _core().available_devices
        if name in here or any(one.startswith(f"{name}.") for one in here):
            return None
        return f"OpenVINO finds no device {name!r} here; it finds {', '.join(here)}; set device-name to one of these"

    def settings(self, target: Target) -> Mapping[str, Sequence[Value]]:
        if target["device-name"] != "CPU":
            return {}
        counts = {1, processors()} | {2**power for power in range(1, 7) if 2**power < processors()}
        return {"inference-num-threads": tuple(sorted(counts))}

    def compile(self, request: CompileRequest) -> _Program:
        ov, place = _openvino(), f"@{request.site or '.'}"
        reason = self.unsupported_reason(request.target)
        if reason is not None:
            raise BackendError(f"openvino cannot take function {request.name!r} of {place}: {reason}")
        target = request.target
        # By default OpenVINO computes in the fastest type of the processor, and reports no difference.
        precision = str(target["inference-precision"])
        properties: dict[str, object] = {"INFERENCE_PRECISION_HINT": getattr(ov.Type, _TYPES[precision])}
        properties["PERFORMANCE_HINT"] = "LATENCY"
        if target["device-name"] == "CPU":
            # Threads of several functions, or programs, would be pinned to the same processors.
            properties["ENABLE_CPU_PINNING"] = False
            if saturates_products():
                properties["LP_TRANSFORMS_MODE"] = "NO"  # quantized operators are computed in floats
        stated = {name: int(str(target[name])) for name in _COUNTS if target[name]}
        properties |= {_COUNTS[name]: count for name, count in stated.items()}
        if target["cache-dir"]:
            properties["CACHE_DIR"] = str(target["cache-dir"])
        checks = tuple(_index_checks(request.model.graph, place))
        try:
            model = _core().read_model(request.source_with(check.indices for check in checks))
            compiled = _core().compile_model(model, str(target["device-name"]), properties)
            found: dict[str, object] = {name: compiled.get_property(_COUNTS[name]) for name in stated}
            given = compiled.get_property("INFERENCE_PRECISION_HINT")
        except Exception as error:
            raise BackendError(
                f"openvino cannot take function {request.name!r} of {place}: {_first_line(error)}"
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
        return _Program(compiled, model, request, checks)


_TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


# Operators whose second operand holds indices along their axis, and those where it holds coordinates.
_ALONG_AXIS = frozenset({"Gather", "GatherElements", "ScatterElements"})
_COORDINATES = frozenset({"GatherND", "ScatterND"})


@dataclass(frozen=True)
class _IndexCheck:
    """Indices of an operator, of which OpenVINO does not report all that are out of bounds.

    Attributes:
        node: name, kind and place of the operator.
        indices: name of the value.
        sizes: elements along each axis that they refer to: a number, or an input by position and its axis.
    """

    node: str
    indices: str
    sizes: tuple[int | tuple[int, int], ...]

    def require_within(self, indices: Array, inputs: Sequence[Array]) -> None:
        """Raise an error for an index that is out of bounds.

        Args:
            indices: the value.
            inputs: the inputs of the run.
        """
        columns = [indices] if len(self.sizes) == 1 else np.moveaxis(indices, -1, 0)
        for column, size in zip(columns, self.sizes, strict=True):
            elements = size if isinstance(size, int) else inputs[size[0]].shape[size[1]]
            wrong = column[(column < -elements) | (column >= elements)]
            if wrong.size:
                raise RunError(f"index {wrong[0]} of {self.node} is out of bounds for {elements} elements")


def _index_checks(graph: onnx.GraphProto, place: str) -> Iterator[_IndexCheck]:
    """Yield what is to be checked in each run: indices that are no constants, of values whose sizes are known."""
    constants = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    given = [value for value in graph.input if value.name not in constants]
    shapes: dict[str, tuple[int | str, ...]] = {**constants}
    for value in (*graph.value_info, *graph.output, *given):
        if value.type.tensor_type.HasField("shape"):
            dims = value.type.tensor_type.shape.dim
            shapes[value.name] = tuple(one.dim_value if one.HasField("dim_value") else one.dim_param for one in dims)
    places: dict[str, tuple[int, int]] = {}
    for position, value in enumerate(given):
        for axis, dim in enumerate(shapes.get(value.name, ())):
            if isinstance(dim, str) and dim:  # others have no name
                places.setdefault(dim, (position, axis))
    for node in graph.node:
        if node.op_type not in _ALONG_AXIS | _COORDINATES or node.input[1] in constants:
            continue
        data, indices = shapes.get(node.input[0]), shapes.get(node.input[1])
        attributes = {one.name: one.i for one in node.attribute}
        if data is None or indices is None:
            continue
        first, count = attributes.get("axis", 0), 1
        if node.op_type in _COORDINATES:
            first, last = attributes.get("batch_dims", 0), indices[-1]
            count = last if isinstance(last, int) else 0
        sizes = [size if isinstance(size, int) else places.get(size) for size in data[first % len(data) :]]
        known = tuple(size for size in sizes[:count] if size is not None)
        if len(known) == count > 0:
            yield _IndexCheck(f"{node.name!r} ({node.op_type}) in {place}", node.input[1], known)


class _Program(Compiled):
    def __init__(
        self,
        compiled: Any,  # noqa: ANN401
        model: Any,  # noqa: ANN401
        request: CompileRequest,
        checks: Sequence[_IndexCheck],
    ) -> None:
        self._compiled = compiled
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
        read = set(_read(graph))
        ignored = [n for n, at in zip(self._names, self._inputs, strict=True) if at is None and n in read]
        if ignored or None in self._outputs or len(compiled.inputs) != len(given):
            what = f"its result depends on {ignored[0]!r}, which OpenVINO ignores" if ignored else "values are lost"
            raise BackendError(f"openvino cannot take function {request.name!r} of {self._place}: {what}")
        # Indices that are inputs are checked before a run, which may end the process, and computed ones after it.
        self._checks_before = [(one, self._names.index(one.indices)) for one in checks if one.indices in self._names]
        computed = [(one, _position(results, one.indices)) for one in checks if one.indices not in self._names]
        self._checks_after = [(one, at) for one, at in computed if at is not None]
        never_free_in_forks(compiled)

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        if self._process != os.getpid():
            raise RunError(
                f"OpenVINO compiled {self._place} in process {self._process}, and this is a fork of it, which has none "
                "of its threads; start processes with multiprocessing.get_context('spawn')"
            )
        ov = _openvino()
        arrays = [self._checked(name, array) for name, array in zip(self._names, inputs, strict=True)]
        for check, given in self._checks_before:
            check.require_within(arrays[given], arrays)
        with self._lock:
            request = self._idle.pop() if self._idle else self._compiled.create_infer_request()
        try:
            # A tensor that shares memory does not keep its array alive: `arrays` does, until the run has ended.
            for position, array in zip(self._inputs, arrays, strict=True):
                if position is not None:
                    tensor = ov.Tensor(array, shared_memory=array.flags.writeable)
                    request.set_input_tensor(position, tensor)
            try:
                request.infer()
            except Exception as error:
                raise RunError(f"openvino fails in {self._place}: {_first_line(error)}") from error
            for check, result in self._checks_after:
                check.require_within(request.get_output_tensor(result).data, arrays)
            return [request.get_output_tensor(position).data.copy() for position in self._outputs]
        finally:
            with self._lock:
                self._idle.append(request)

    def _checked(self, name: str, array: Array) -> Array:
        """Return an input as a contiguous array whose integers fit into the 32 bits that OpenVINO computes with."""
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


def _read(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the values that operations read; of CastLike, only the type of the second is read."""
    yield from (value.name for value in graph.output)
    for node in graph.node:
        yield from node.input[:1] if node.op_type == "CastLike" else node.input
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _read(attribute.g)


def _first_line(error: Exception) -> str:
    """Return what an error of OpenVINO says, in one line, without where in its sources it was raised."""
    lines = [re.sub(r"Check '.*' failed at \S+", "", line).strip() for line in str(error).splitlines()]
    places = ("Exception from", "While validating", "FrontEnd API failed", "Errors during ONNX translation")
    said = [line for line in lines if line and not line.startswith(places)]
    return ": ".join(said[:2]) or type(error).__name__


BACKEND = _OpenVino()
