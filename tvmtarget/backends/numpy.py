"""The interpreter: ONNX's reference evaluator, for leaves of kind numpy, and for others if that is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx

from tvmtarget.backends.float_accumulation import accumulate_in_float32
from tvmtarget.backends.machine import interpreter_mismatch
from tvmtarget.backends.protocol import Ability, Array, Backend, Compiled, CompileRequest
from tvmtarget.errors import BackendError, first_line
from tvmtarget.target.tree import Target

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

__all__ = ["BACKEND"]

# The evaluator is wrong on several operators as older versions defined them, so models are converted up to this one.
_LEAST_OPSET = 17


class _Numpy(Backend):
    name = "numpy"
    kinds = ("numpy",)
    supports = frozenset[Ability]({"shared-code"})
    # Of another kind, the interpreter honours what a processor has and what code may, but need not, do.
    honours = {
        "numpy": frozenset[str](),
        "llvm": frozenset(
            {"mcpu", "mtriple", "mattr", "vector-width", "opt-level", "mabi", "mfloat-abi", "fast-math"}
            | {f"fast-math-{name}" for name in ("nnan", "ninf", "nsz", "arcp", "contract", "reassoc")}
        ),
        "c": frozenset({"mcpu", "march"}),
        "onnxruntime": frozenset({"intra-op-threads", "intra-op-spinning", "optimization-level"}),
    }

    def version(self) -> str:
        return f"onnx {onnx.__version__}"

    def unsupported_reason(self, target: Target, device: int = 0) -> str | None:
        return interpreter_mismatch(target)

    def compile(self, request: CompileRequest) -> _Interpreted:
        # The evaluator has a module for each operator, which leaves of other kinds do not need.
        from onnx.reference import ReferenceEvaluator

        from tvmtarget.backends.reference_fixes import FIXES

        try:
            return _Interpreted(ReferenceEvaluator(accumulate_in_float32(_converted(request.model)), new_ops=FIXES))
        except Exception as error:
            raise BackendError(f"numpy cannot take function {request.name!r}: {first_line(error)}") from error


def _converted(model: onnx.ModelProto) -> onnx.ModelProto:
    version = next((opset.version for opset in model.opset_import if opset.domain == ""), _LEAST_OPSET)
    return model if version >= _LEAST_OPSET else onnx.version_converter.convert_version(model, _LEAST_OPSET)


class _Interpreted(Compiled):
    def __init__(self, evaluator: ReferenceEvaluator) -> None:
        self._evaluator = evaluator

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        named = dict(zip(self._evaluator.input_names, inputs, strict=True))
        results: Sequence[Array] = self._evaluator.run(None, named)
        return results


BACKEND = _Numpy()
