"""Compile the CUDA C++ that Apache TVM writes: by NVRTC, from wheels or a toolkit, else by nvcc.

TVM requests fast arithmetic, in which a power of a negative number is NaN and tanh has 11 bits; here it is off. The
preamble of the code is that of TVM 0.27, python/tvm/support/nvcc.py.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from tvmtarget.errors import BackendError

__all__ = ["EXTRA", "compiler_version", "compiling", "cuda_home", "machine_code", "wheel"]

Tvm: TypeAlias = Any

EXTRA = "pip install 'tvmtarget[cuda]'"

_CALLBACK = "tvm_callback_cuda_compile"

_PREAMBLE = """\
#include <cuda/std/cstdint>
#include <cuda/std/limits>
using cuda::std::int8_t;
using cuda::std::int16_t;
using cuda::std::int32_t;
using cuda::std::int64_t;
using cuda::std::uint8_t;
using cuda::std::uint16_t;
using cuda::std::uint32_t;
using cuda::std::uint64_t;
#ifndef INFINITY
#define INFINITY (::cuda::std::numeric_limits<float>::infinity())
#endif
"""


@contextlib.contextmanager
def compiling(tvm: Tvm, arch: str) -> Iterator[None]:
    """Replace TVM's compiler of CUDA C++ by ours, unless the user set TVM_CUDA_COMPILE_MODE.

    Args:
        tvm: the module `tvm`.
        arch: compute capability, such as `sm_90`.

    Yields:
        Nothing.

    Raises:
        BackendError: no compiler is installed.
    """
    from tvm_ffi import register_global_func

    if "TVM_CUDA_COMPILE_MODE" in os.environ:
        yield
        return
    compiler, theirs = _compiler(arch), tvm.get_global_func(_CALLBACK)
    register_global_func(_CALLBACK, compiler, override=True)
    try:
        yield
    finally:
        register_global_func(_CALLBACK, theirs, override=True)


def compiler_version() -> str:
    """Return what machine code depends on besides the CUDA C++ and its arch.

    Returns:
        The installation of CUDA that compiles it, with the time of its headers, the version of NVRTC's bindings, and
        TVM's variables.
    """
    home = cuda_home()
    headers = [] if home is None else [int((path / "cuda_runtime.h").stat().st_mtime) for path in _headers(home)[:1]]
    bindings = version("cuda-bindings") if _has_bindings() else ""
    variables = [os.environ.get(name, "") for name in ("TVM_CUDA_COMPILE_MODE", "TVM_CUDA_NVCC_NO_FAST_MATH")]
    return repr((str(home), headers, bindings, shutil.which("nvcc"), variables))


def machine_code(code: str, arch: str, home: Path) -> bytes:
    """Compile CUDA C++ by NVRTC.

    Args:
        code: the source.
        arch: compute capability, such as `sm_90`.
        home: an installation of CUDA, for its headers.

    Returns:
        A cubin.

    Raises:
        BackendError: the code does not compile.
    """
    from cuda.bindings import nvrtc

    options = [
        f"--gpu-architecture={arch}",
        "--device-int128",
        "-default-device",
        *(f"-I{at}" for at in _headers(home)),
    ]
    text = _PREAMBLE + "\n".join(line for line in code.splitlines() if line.strip() != "#include <cuda.h>")
    status, program = nvrtc.nvrtcCreateProgram(text.encode(), b"kernels.cu", 0, None, None)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise BackendError(f"NVRTC makes no program: {status.name}")
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BackendError(_log(nvrtc, program))
        result = bytearray(nvrtc.nvrtcGetCUBINSize(program)[1])
        nvrtc.nvrtcGetCUBIN(program, result)
        return bytes(result)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _log(nvrtc: Any, program: Any) -> str:  # noqa: ANN401
    text = bytearray(nvrtc.nvrtcGetProgramLogSize(program)[1])
    nvrtc.nvrtcGetProgramLog(program, text)
    return text.rstrip(b"\0").decode(errors="replace")


def _compiler(arch: str) -> Callable[[str], bytes]:
    home = cuda_home()
    if home is not None and _has_bindings():
        return lambda code: machine_code(code, arch, home)
    if shutil.which("nvcc") is None:
        raise BackendError(f"no compiler of CUDA C++ is here: {EXTRA}, or put the nvcc of CUDA's toolkit on PATH")
    return _by_nvcc


def _by_nvcc(code: str) -> bytes:
    """Compile for the current target by the nvcc on the PATH, without fast arithmetic."""
    from tvm.support.nvcc import compile_cuda

    os.environ.setdefault("TVM_CUDA_NVCC_NO_FAST_MATH", "1")
    return bytes(compile_cuda(code, target_format="fatbin", compiler="nvcc"))


def cuda_home() -> Path | None:
    """Return an installation of CUDA that has headers: a toolkit, else NVIDIA's wheels.

    Returns:
        Its folder, or None.
    """
    return next((path for path in _homes() if _headers(path)), None)


def _homes() -> Iterator[Path]:
    if "CUDA_PATH" in os.environ:
        yield Path(os.environ["CUDA_PATH"])
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        yield Path(nvcc).resolve().parents[1]
    yield Path("/usr/local/cuda")
    yield wheel("include").parent


def _headers(home: Path) -> list[Path]:
    """Return the folders of an installation's CUDA headers, and of the C++ headers for them; none if it has none."""
    return [
        folder
        for include in (home / "include", *sorted(home.glob("targets/*/include")))
        if (include / "cuda_runtime.h").exists()
        for folder in (include, include / "cccl")
    ]


def wheel(folder: str) -> Path:
    """Return a folder of NVIDIA's wheels of CUDA 13.

    Args:
        folder: name of the folder, such as `include`.

    Returns:
        Its path, which may not exist.
    """
    spec = find_spec("nvidia")
    roots = [] if spec is None else list(spec.submodule_search_locations or ())
    found = (Path(root) / "cu13" / folder for root in roots)
    return next((path for path in found if path.is_dir()), Path("nvidia") / "cu13" / folder)


def _has_bindings() -> bool:
    try:
        return find_spec("cuda.bindings.nvrtc") is not None
    except ModuleNotFoundError:
        return False
