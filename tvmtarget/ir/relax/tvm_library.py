"""Late import of Apache TVM."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tvmtarget.errors import MissingExtraError, ModelError
from tvmtarget.garbage_collection import without_garbage_collection

__all__ = ["are_same", "checked_module", "is_tvm_module", "load_device", "the_tvm"]

# Libraries of the runtime; all but the first one register functions only.
_LIBRARIES = {"libtvm_runtime.so": ctypes.RTLD_GLOBAL, "libtvm_runtime_extra.so": ctypes.RTLD_LOCAL}


def the_tvm() -> Any:
    """Import TVM.

    Returns:
        The package `tvm`, with `tvm.relax` and `tvm.tirx`.

    Raises:
        MissingExtraError: TVM is not installed.
    """
    try:
        if "tvm" not in sys.modules:
            _import_first()
        import tvm
        import tvm.relax
        import tvm.tirx
    except ImportError as error:
        raise MissingExtraError("apache-tvm", "tvm") from error
    return tvm


def _import_first() -> None:
    """Import TVM for the first time, without what it does for nothing, a quarter of its time.

    TVM 0.27 looks for what `libtvm_runtime_extra.so` registers before it loads it. The error is caught, but the first
    error of a process reads the debug information of all libraries. Each of fifty modules lists all functions by their
    names, of which few are new.

    Raises:
        ImportError: TVM is not installed.
    """
    package = find_spec("tvm")
    if package is None:
        raise ImportError("no module named 'tvm'")
    from tvm_ffi import registry

    # As `tvm.libinfo.package_lib_paths` has it: an environment variable, a wheel, then a checkout.
    root, named = Path(str(package.origin)).parent, os.environ.get("TVM_LIBRARY_PATH")
    checkout = root.parent.parent
    for folder in (Path(named or root / "lib"), root / "lib", checkout / "build/lib", checkout / "lib"):
        if all((folder / name).is_file() for name in _LIBRARIES):
            with contextlib.suppress(OSError):
                for name, mode in _LIBRARIES.items():
                    ctypes.CDLL(str(folder / name), mode)
            break
    names: list[str] = []
    list_names = registry.list_global_func_names

    def known_names() -> list[str]:
        if registry.get_global_func("ffi.FunctionListGlobalNamesFunctor")()(-1) != len(names):
            names[:] = list_names()
        return names

    registry.list_global_func_names = known_names
    try:
        with without_garbage_collection():
            import tvm.relax
            import tvm.tirx  # noqa: F401
    finally:
        registry.list_global_func_names = list_names


def load_device(kind: str) -> None:
    """Load what TVM registers for a kind of device.

    Processes of tvmtarget's own import TVM without that (`python_process.py`). Nothing happens where it is loaded, and
    for kinds without it, such as `llvm`.

    Args:
        kind: the kind, such as `cuda`.
    """
    the_tvm()
    from tvm import backend

    with contextlib.suppress(ImportError):
        backend.load(kind)


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
