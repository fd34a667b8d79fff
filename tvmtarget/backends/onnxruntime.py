"""ONNX Runtime on the CPU, for leaves of kind onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvmtarget.backends.machine import processors
from tvmtarget.backends.protocol import Ability, Array, Backend, Compiled, CompileRequest
from tvmtarget.errors import BackendError, CompileError, MissingExtraError
from tvmtarget.python_process import never_free_in_forks
from tvmtarget.target.attributes import Value
from tvmtarget.target.tree import Target

__all__ = ["BACKEND"]

_LEVELS = {0: "ORT_DISABLE_ALL", 1: "ORT_ENABLE_BASIC", 2: "ORT_ENABLE_EXTENDED", 99: "ORT_ENABLE_ALL"}
_ERRORS_ONLY = 3


def _onnxruntime() -> Any:  # noqa: ANN401 - the package ships no types
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("onnxruntime", "onnxruntime") from error
    return onnxruntime


class _OnnxRuntime(Backend):
    name = "onnxruntime"
    kinds = ("onnxruntime",)
    supports = frozenset[Ability]({"shared-code"})
    honours = {"onnxruntime": frozenset({"intra-op-threads", "intra-op-spinning", "optimization-level"})}

    def version(self) -> str:
        return f"onnxruntime {_onnxruntime().__version__}"

    def settings(self, target: Target) -> Mapping[str, Sequence[Value]]:
        counts = {1, processors()} | {2**power for power in range(1, 7) if 2**power < processors()}
        return {"intra-op-threads": tuple(sorted(counts)), "optimization-level": (1, 2)}

    def compile(self, request: CompileRequest) -> _Session:
        ort = _onnxruntime()
        options = ort.SessionOptions()
        options.log_severity_level = _ERRORS_ONLY
        level = request.target["optimization-level"]
        if level not in _LEVELS:
            raise BackendError(f"optimization-level {level!r} of @{request.site or '.'} is not one of 0, 1, 2, 99")
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, _LEVELS[int(str(level))])
        options.intra_op_num_threads = int(str(request.target["intra-op-threads"]))
        # Each session has threads of its own. Busy ones would compete with those of other functions for the processors.
        # One pool of a process is no alternative in Python: once it exists, onnxruntime (1.31) refuses all sessions
        # with threads of their own, those of other libraries too, and a fork has none of its threads.
        spinning = "1" if request.target["intra-op-spinning"] else "0"
        options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
        try:
            return _Session(lambda: ort.InferenceSession(request.source, options, providers=["CPUExecutionProvider"]))
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise CompileError(
                f"onnxruntime cannot take function {request.name!r} of @{request.site or '.'}: {reason}; place its "
                "operations on another site (where, --where)",
                function=request.name,
            ) from error


class _Session(Compiled):
    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._session = self._made()
        self._names = [node.name for node in self._session.get_inputs()]

    def _made(self) -> Any:  # noqa: ANN401
        self._process = os.getpid()
        session = self._make()
        never_free_in_forks(session)
        return session

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        if self._process != os.getpid():  # a fork has none of the threads of a session
            self._session = self._made()
        results: Sequence[Array] = self._session.run(None, dict(zip(self._names, inputs, strict=True)))
        return results


BACKEND = _OnnxRuntime()
