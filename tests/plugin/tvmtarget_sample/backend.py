"""What the kind `probe` takes, and the backend that writes down every op and copy it runs.

It computes with ONNX Runtime where that is installed, else with the ONNX reference evaluator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from tvmtarget.backends.protocol import CompileRequest, backend_named
from tvmtarget.support.strategy import Strategy

__all__ = ["BACKEND", "ProbeStrategy"]


class ProbeStrategy(Strategy):
    """Takes everything with tensors."""


class _ProbeBackend:
    """Logs `("op", name, site, invocation)` and `("copy", src, dst, nbytes)` in the order in which they happen."""

    name = "probe"
    kinds = ("probe",)

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []

    def version(self) -> str:
        return "probe 0.1"

    def refuses(self, target: object) -> str | None:
        return None

    def compile(self, part: CompileRequest) -> _Logged:
        by = "onnxruntime" if find_spec("onnxruntime") else "numpy"
        plain = CompileRequest(part.name, part.source, part.site, _leaf(by), part.ops, part.inputs, part.outputs)
        return _Logged(self.log, part, backend_named(by).compile(plain))

    def copy(self, value: Any, src: str, dst: str) -> Any:
        self.log.append(("copy", src, dst, value.nbytes))
        return value.copy()


def _leaf(kind: str) -> Any:
    from tvmtarget import Target

    return Target(kind)


class _Logged:
    def __init__(self, log: list[tuple[Any, ...]], part: CompileRequest, compiled: Any) -> None:
        self._log = log
        self._part = part
        self._compiled = compiled
        self._invocations = 0

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        self._log += [("op", op, self._part.site, self._invocations) for op in self._part.ops]
        self._invocations += 1
        return self._compiled.run(inputs)

    def native_files(self) -> Mapping[str, bytes]:
        return {}


BACKEND = _ProbeBackend()
