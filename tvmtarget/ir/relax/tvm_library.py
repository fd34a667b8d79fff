"""Apache TVM, imported when it is first needed."""

from __future__ import annotations

from typing import Any

from tvmtarget.errors import MissingExtraError, ModelError

__all__ = ["are_same", "checked_module", "is_tvm_module", "the_tvm"]


def the_tvm() -> Any:
    """Return the package; `MissingExtraError` where it is not installed."""
    try:
        import tvm
        import tvm.relax
        import tvm.tirx
    except ImportError as error:
        raise MissingExtraError("apache-tvm", "tvm") from error
    return tvm


def are_same(one: Any, other: Any) -> bool:
    """Whether two values of TVM are structurally equal; a free variable equals only itself."""
    import tvm_ffi

    return bool(one.same_as(other)) or bool(tvm_ffi.structural_equal(one, other))


def is_tvm_module(value: object) -> bool:
    """Whether a value is TVM's IRModule; TVM is not imported to find out."""
    kind = type(value)
    return kind.__name__ == "IRModule" and kind.__module__.partition(".")[0] == "tvm"


def checked_module(value: object) -> Any:
    """Return a module of TVM as it is; `ModelError` for anything else."""
    if not is_tvm_module(value):
        raise ModelError(f"{type(value).__name__} is no tvm.IRModule; pass one, or use from_onnx for ONNX")
    return value
