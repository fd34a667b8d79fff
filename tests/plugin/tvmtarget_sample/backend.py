"""Operator support of the kind `probe`, and a backend that records every operation and copy that it runs.

It computes with ONNX Runtime where that is installed, else with the ONNX reference evaluator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from tvmtarget.backends.protocol import Ability, Backend, Compiled, CompileRequest, backend_named
from tvmtarget.support.strategy import Strategy

__all__ = ["BACKEND", "ProbeStrategy"]


class ProbeStrategy(Strategy):
    """Supports all operations on tensors."""


class _ProbeBackend(Backend):
    """Logs `("op", name, site, invocation)` and `("copy", src, dst, nbytes)` in the order in which they happen."""

    name = "probe"
    kinds = ("probe",)
    supports = frozenset[Ability]({"copy"})

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []

    def version(self) -> str:
        return "probe 0.1"

    def compile(self, request: CompileRequest) -> _Logged:
        by = "onnxruntime" if find_spec("onnxruntime") else "numpy"
        plain = replace(request, target=_leaf(by), native={}, schedules=None)
        return _Logged(self.log, request, backend_named(by).compile(plain))

    def copy(self, value: Any, src: str, dst: str) -> Any:
        self.log.append(("copy", src, dst, value.nbytes))
        return value.copy()


def _leaf(kind: str) -> Any:
    from tvmtarget import Target

    return Target(kind)


class _Logged(Compiled):
    def __init__(self, log: list[tuple[Any, ...]], request: CompileRequest, compiled: Any) -> None:
        self._log = log
        self._request = request
        self._compiled = compiled
        self._invocations = 0

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        self._log += [("op", op, self._request.site, self._invocations) for op in self._request.ops]
        self._invocations += 1
        return self._compiled.run(inputs)


BACKEND = _ProbeBackend()
