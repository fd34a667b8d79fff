"""Late import of Apache TVM."""

from __future__ import annotations

from typing import Any

from tvmtarget.errors import MissingExtraError, ModelError
from tvmtarget.garbage_collection import without_garbage_collection

__all__ = ["are_same", "checked_module", "is_tvm_module", "the_tvm"]


def the_tvm() -> Any:
    """Import TVM.

    Returns:
        The package `tvm`, with `tvm.relax` and `tvm.tirx`.

    Raises:
        MissingExtraError: TVM is not installed.
    """
    try:
        with without_garbage_collection():
            import tvm
            import tvm.relax
            import tvm.tirx
    except ImportError as error:
        raise MissingExtraError("apache-tvm", "tvm") from error
    return tvm


def are_same(one: Any, other: Any) -> bool:
    """Return whether two values of TVM are structurally equal.

    Args:
        one: a value.
        other: another value.

    Returns:
        True if they are the same object or structurally equal; a free variable equals only itself.
    """
    import tvm_ffi

    return bool(one.same_as(other)) or bool(tvm_ffi.structural_equal(one, other))


def is_tvm_module(value: object) -> bool:
    """Return whether a value is TVM's IRModule, without importing TVM.

    Args:
        value: any value.

    Returns:
        True for a `tvm.IRModule`.
    """
    kind = type(value)
    return kind.__name__ == "IRModule" and kind.__module__.partition(".")[0] == "tvm"


def is_tvm_function(value: object) -> bool:
    """Return whether a value is a TIR function of TVM, without importing TVM.

    Args:
        value: any value.

    Returns:
        True for a `tvm.tirx.PrimFunc`.
    """
    kind = type(value)
    return kind.__name__ == "PrimFunc" and kind.__module__.partition(".")[0] == "tvm"


def tvm_module_of(function: Any) -> Any:
    """Return a module of TVM with one public TIR function.

    Args:
        function: the `tvm.tirx.PrimFunc`.

    Returns:
        The `tvm.IRModule`; a function without a symbol is called `main`.
    """
    name = str(function.attrs.get("global_symbol") or "main")
    return the_tvm().IRModule({name: function.with_attr("global_symbol", name)})


def checked_module(value: object) -> Any:
    """Check that a value is a module of TVM.

    Args:
        value: any value.

    Returns:
        The module.

    Raises:
        ModelError: the value is of another type.
    """
    if not is_tvm_module(value):
        raise ModelError(f"{type(value).__name__} is not a tvm.IRModule; pass one, or use from_onnx for ONNX")
    return value
