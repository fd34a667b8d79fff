"""NVIDIA GPUs through Apache TVM: the CUDA runtime of this machine, TVM's target of a cuda leaf, and its pipeline.

TVM writes CUDA C++ on any machine. It compiles that where its CUDA runtime is loaded, which needs NVIDIA's driver;
elsewhere a compiled function holds the source alone, and cannot run. TVM is imported late and ships no types: its
objects are Any, under names that say what they are.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tvmtarget.backends.tvm.cuda_compiler import EXTRA, compiling, wheel
from tvmtarget.ir.relax.tvm_library import load_device
from tvmtarget.target.attributes import Value
from tvmtarget.target.gpu_archs import runs_machine_code
from tvmtarget.target.tree import Target

if TYPE_CHECKING:
    from tvmtarget.backends.tvm.cpu_schedule import Choose

__all__ = ["capability", "cuda_pipeline", "cuda_target", "fusing_passes", "generating", "gpu_mismatch", "is_loaded"]

Tvm: TypeAlias = Any
Module: TypeAlias = Any
Pass: TypeAlias = Any
TvmTarget: TypeAlias = Any

# What every GPU has since compute capability 3.0, and all that TVM's schedules may take: a block gets more shared
# memory only dynamically (CUDA C++ Programming Guide, technical specifications per compute capability).
STATIC_SHARED_MEMORY = 49152
THREADS_PER_BLOCK = 1024


def is_loaded(tvm: Tvm) -> bool:
    """Load TVM's CUDA runtime if it is installed.

    The libraries of NVIDIA's wheels are loaded first, as TVM does not find them there.

    Args:
        tvm: the module `tvm`.

    Returns:
        Whether it is loaded.
    """
    load_device("cuda")
    if tvm.get_global_func("device_api.cuda", allow_missing=True) is None:
        from tvm.base import _LOADED_LIBS

        with contextlib.suppress(OSError):
            for library in wheel("lib").glob("libcudart.so.*"):
                ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
            found = Path(_LOADED_LIBS["tvm_runtime"]._name).resolve().parent / "libtvm_runtime_cuda.so"
            _LOADED_LIBS["tvm_runtime_cuda"] = ctypes.CDLL(str(found))
    return tvm.get_global_func("device_api.cuda", allow_missing=True) is not None


def gpu_mismatch(tvm: Tvm, target: Target, device: int) -> str | None:
    """Return why a GPU cannot run code for a cuda leaf.

    Args:
        tvm: the module `tvm`.
        target: the leaf.
        device: number of the GPU.

    Returns:
        The reason, or None if it can.
    """
    if not is_loaded(tvm):
        return (
            f"there is no NVIDIA driver, or no CUDA runtime for {_version(tvm)}; "
            f"with a driver, {EXTRA} brings the runtime"
        )
    count = next((number for number in range(64) if not tvm.cuda(number).exist), 64)
    if count == 0:
        return "there is no NVIDIA GPU here, or none that this process may use; nvidia-smi lists them"
    if device >= count:
        return f"it is NVIDIA GPU number {device}, and there {'is' if count == 1 else 'are'} {count} here, from 0"
    arch, there = str(target.attrs.get("arch", "")), capability(tvm, device)
    if arch and not runs_machine_code(there, arch):
        return f"code for {arch} does not run on a GPU of {there}"
    return None


def capability(tvm: Tvm, device: int = 0) -> str:
    """Return the compute capability of a GPU of this machine.

    Args:
        tvm: the module `tvm`.
        device: number of the GPU.

    Returns:
        In the spelling of compilers: `sm_90`.
    """
    return f"sm_{str(tvm.cuda(device).compute_version).replace('.', '')}"


def cuda_target(tvm: Tvm, attributes: Mapping[str, Value], host: TvmTarget) -> TvmTarget:
    """Return TVM's target of a cuda leaf.

    Args:
        tvm: the module `tvm`.
        attributes: attributes of the leaf. Limits that are not stated are those of all GPUs; `arch` is that of
            the first GPU of this machine.
        host: TVM's target of the host.

    Returns:
        The target.
    """
    load_device("cuda")
    config = {name: list(value) if isinstance(value, tuple) else value for name, value in attributes.items()}
    if "arch" not in config and is_loaded(tvm) and tvm.cuda(0).exist:
        config["arch"] = capability(tvm)
    threads = min(int(str(config.get("max_threads_per_block", THREADS_PER_BLOCK))), THREADS_PER_BLOCK)
    shared = int(str(config.get("max_shared_memory_per_block", STATIC_SHARED_MEMORY)))
    config["max_threads_per_block"] = threads
    config["max_num_threads"] = min(int(str(config.get("max_num_threads", threads))), threads)
    config["max_shared_memory_per_block"] = min(shared, STATIC_SHARED_MEMORY)
    return tvm.target.Target({"kind": "cuda", **config}, host)


def fusing_passes(target: TvmTarget) -> list[Pass]:
    """Return TVM's passes for GPUs that lower operators to tensor functions and fuse these.

    Args:
        target: TVM's target.

    Returns:
        Passes, in order.
    """
    import tvm
    from tvm.relax.backend.cuda import pipeline

    transform = tvm.relax.transform
    fused = (transform.LegalizeOps, transform.AnnotateTIROpPattern, transform.FoldConstant)
    return [
        *pipeline.library_dispatch_passes(target),
        *(each() for each in (*fused, transform.FuseOps, transform.FuseTIR)),
    ]


def cuda_pipeline(target: TvmTarget, choose: Choose | None = None) -> Pass:
    """Return TVM's pipeline for GPUs with chosen schedules.

    Args:
        target: TVM's target.
        choose: chooses the schedules of functions; None for the default rules.

    Returns:
        A pass for `tvm.compile(..., relax_pipeline=...)`.
    """
    from tvm.relax.backend.cuda import pipeline

    from tvmtarget.backends.tvm.cpu_schedule import scheduling
    from tvmtarget.backends.tvm.gpu_schedule import schedule_for_gpu

    return scheduling(target, fusing_passes(target), lambda module: schedule_for_gpu(module, choose), pipeline)


@contextlib.contextmanager
def generating(tvm: Tvm, target: TvmTarget) -> Iterator[None]:
    """Enter a target while code is generated.

    CUDA C++ is compiled by `cuda_compiler` if TVM's CUDA runtime is loaded.

    Args:
        tvm: the module `tvm`.
        target: TVM's target.

    Yields:
        Nothing.
    """
    compilers = compiling(tvm, str(target.attrs["arch"])) if is_loaded(tvm) else contextlib.nullcontext()
    with target, compilers:
        yield


def _version(tvm: Tvm) -> str:
    return f"apache-tvm {tvm.__version__}"
