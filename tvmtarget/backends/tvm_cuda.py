"""NVIDIA GPUs by Apache TVM: what of CUDA is on this machine, TVM's target of a cuda leaf, and how it is compiled.

TVM writes CUDA C++ anywhere. It makes machine code of that where its CUDA runtime is loaded, which needs NVIDIA's
driver; elsewhere a compiled function holds the source alone, and cannot run. TVM is imported late and ships no types:
its objects are Any, under names that say what they are.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from tvmtarget.backends.tvm_gpu_schedule import schedule_for_gpu
from tvmtarget.backends.tvm_schedule import Choose
from tvmtarget.errors import BackendError
from tvmtarget.target.attributes import Value
from tvmtarget.target.tree import Target

__all__ = ["capability", "cuda_pipeline", "cuda_target", "fusing_passes", "is_loaded", "refusal", "toolkit"]

Tvm: TypeAlias = Any
Module: TypeAlias = Any
Pass: TypeAlias = Any
TvmTarget: TypeAlias = Any

# What every GPU has since compute capability 3.0, and all that TVM's schedules may take: a block gets more shared
# memory only dynamically (CUDA C++ Programming Guide, technical specifications per compute capability).
STATIC_SHARED_MEMORY = 49152
THREADS_PER_BLOCK = 1024

_EXTRA = "pip install 'tvmtarget[cuda]'"

# TVM asks NVRTC for fast arithmetic, by which a denormal is 0, and divisions and roots are off.
_EXACT = "--ftz=false --prec-div=true --prec-sqrt=true"


def is_loaded(tvm: Tvm) -> bool:
    """Whether TVM's CUDA runtime is there; loaded now if it can be, as by then the libraries from wheels are found."""
    if tvm.get_global_func("device_api.cuda", allow_missing=True) is None:
        from tvm.base import _LOADED_LIBS

        with contextlib.suppress(OSError):
            for library in _wheel("lib").glob("libcudart.so.*"):
                ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
            found = Path(_LOADED_LIBS["tvm_runtime"]._name).resolve().parent / "libtvm_runtime_cuda.so"
            _LOADED_LIBS["tvm_runtime_cuda"] = ctypes.CDLL(str(found))
    return tvm.get_global_func("device_api.cuda", allow_missing=True) is not None


def refusal(tvm: Tvm, target: Target, device: int) -> str | None:
    """Return why a GPU, by its number, cannot run code for a cuda leaf, or None if it can."""
    if not is_loaded(tvm):
        return (
            f"there is no NVIDIA driver, or no CUDA runtime for {_version(tvm)}; "
            f"with a driver, {_EXTRA} brings the runtime"
        )
    count = next((number for number in range(64) if not tvm.cuda(number).exist), 64)
    if count == 0:
        return "there is no NVIDIA GPU here, or none that this process may use; nvidia-smi lists them"
    if device >= count:
        return f"it is NVIDIA GPU number {device}, and there {'is' if count == 1 else 'are'} {count} here, from 0"
    wanted, there = str(target.attrs.get("arch", "")), capability(tvm, device)
    if wanted and not _runs_on(wanted, there):
        return f"code for {wanted} does not run on a GPU of {there}"
    return None


def capability(tvm: Tvm, device: int = 0) -> str:
    """Return the compute capability of a GPU that is here, as compilers spell it: sm_90."""
    return f"sm_{str(tvm.cuda(device).compute_version).replace('.', '')}"


def _runs_on(wanted: str, there: str) -> bool:
    """Whether machine code for a compute capability runs on another: the same major one, and no later minor one.

    >>> _runs_on("sm_80", "sm_86"), _runs_on("sm_90a", "sm_90"), _runs_on("sm_86", "sm_80"), _runs_on("sm_80", "sm_90")
    (True, True, False, False)
    """
    said, here = (re.fullmatch(r"sm_(\d+)(\d)([af]?)", arch) for arch in (wanted, there))
    if said is None or here is None:
        return True  # a spelling of later chips; the driver has the last word
    if said[3] == "a":
        return said.groups()[:2] == here.groups()[:2]
    return said[1] == here[1] and said[2] <= here[2]


def cuda_target(tvm: Tvm, attributes: Mapping[str, Value], host: TvmTarget) -> TvmTarget:
    """Return TVM's target of a cuda leaf: limits that it does not state are those that all GPUs keep.

    Without an `arch` it is that of the GPU that is here.
    """
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
    """Return TVM's passes for GPUs that make tensor functions of operators and fuse them."""
    import tvm
    from tvm.relax.backend.cuda import pipeline

    transform = tvm.relax.transform
    fused = (transform.LegalizeOps, transform.AnnotateTIROpPattern, transform.FoldConstant)
    return [
        *pipeline.library_dispatch_passes(target),
        *(each() for each in (*fused, transform.FuseOps, transform.FuseTIR)),
    ]


def cuda_pipeline(target: TvmTarget, choose: Choose | None = None) -> Pass:
    """Return TVM's own pipeline for GPUs, with the schedules that `choose` knows before the default ones."""
    import tvm
    from tvm.relax.backend.cuda import pipeline

    def schedule(module: Module, _context: object) -> Module:
        return schedule_for_gpu(module, choose)

    passes = (
        *fusing_passes(target),
        tvm.transform.module_pass(schedule, opt_level=0, name="ScheduleForGpu"),
        *pipeline.dataflow_lower_passes(target),
        *pipeline.finalize_passes(target),
    )

    def run(module: Module, _context: object) -> Module:
        with target:
            return tvm.transform.Sequential(passes)(module)

    return tvm.transform.module_pass(run, opt_level=0, name="CudaPipeline")


@contextlib.contextmanager
def toolkit(tvm: Tvm) -> Iterator[None]:
    """Let TVM find a compiler of CUDA C++ while code is generated; `BackendError` says how to get one.

    What the user's environment says of it has the last word. Without TVM's CUDA runtime nothing is compiled.
    """
    found = _compiler() if is_loaded(tvm) else {}
    own = {name: value for name, value in found.items() if name not in os.environ}
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            os.environ.pop(name, None)


def _compiler() -> dict[str, str]:
    """Return the environment by which TVM compiles CUDA C++: with NVRTC, from a toolkit or wheels, else with nvcc."""
    home = next((path for path in _homes() if _headers(path)), None)
    nvcc = shutil.which("nvcc")
    if _has_bindings() and home is not None:
        options = " ".join((_EXACT, *(f"-I{path}" for path in _headers(home))))
        return {"CUDA_PATH": str(home), "TVM_CUDA_NVRTC_EXTRA_OPTS": options, "TVM_CUDA_NVCC_NO_FAST_MATH": "1"}
    if nvcc is None:
        raise BackendError(f"no compiler of CUDA C++ is here: {_EXTRA}, or put the nvcc of CUDA's toolkit on PATH")
    return {"TVM_CUDA_COMPILE_MODE": "nvcc", "TVM_CUDA_NVCC_NO_FAST_MATH": "1"}


def _homes() -> Iterator[Path]:
    """Yield where CUDA may be."""
    if "CUDA_PATH" in os.environ:
        yield Path(os.environ["CUDA_PATH"])
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        yield Path(nvcc).resolve().parents[1]
    yield Path("/usr/local/cuda")
    yield _wheel("include").parent


def _headers(home: Path) -> list[Path]:
    """Return the folders of the headers in an installation of CUDA, and of those of C++ for it; none if it has none."""
    return [
        folder
        for include in (home / "include", *sorted(home.glob("targets/*/include")))
        if (include / "cuda_runtime.h").exists()
        for folder in (include, include / "cccl")
    ]


def _has_bindings() -> bool:
    try:
        return find_spec("cuda.bindings.nvrtc") is not None
    except ModuleNotFoundError:
        return False


def _wheel(folder: str) -> Path:
    """Return a folder of NVIDIA's wheels of CUDA 13, which may not be there."""
    spec = find_spec("nvidia")
    roots = [] if spec is None else list(spec.submodule_search_locations or ())
    found = (Path(root) / "cu13" / folder for root in roots)
    return next((path for path in found if path.is_dir()), Path("nvidia") / "cu13" / folder)


def _version(tvm: Tvm) -> str:
    return f"apache-tvm {tvm.__version__}"
