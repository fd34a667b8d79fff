"""Build and run programs of TIR functions only: a host function that may launch kernels of a device."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tvmtarget.backends.protocol import Array, CompileRequest, backend_named
from tvmtarget.backends.tvm.compiled_module import LIBRARY, CompiledModule, DeviceArray, import_tvm, place, reject_forks
from tvmtarget.backends.tvm.operator_functions import OperatorFunction, OperatorParameter, parameters_of
from tvmtarget.backends.tvm.operator_library import export_operators
from tvmtarget.errors import ArtifactError
from tvmtarget.files import atomic_write

__all__ = ["CudaTirModule", "TirModule", "build_tir"]


def build_tir(module: Any, target: Any) -> Any:  # noqa: ANN401 - TVM ships no types
    """Build TIR functions that have targets.

    `tvm.tirx.build` (0.27) would bind and split them again: its BindTarget gives kernels a host, so that
    SplitHostDevice extracts a kernel from each kernel.

    Args:
        module: a TVM module of TIR functions.
        target: TVM's target, with its host.

    Returns:
        A runtime module.
    """
    tvm, steps = import_tvm(), importlib.import_module("tvm.tirx.build")
    pipeline, finish_host, finish_device = tvm.tirx.get_default_tir_pipeline(target)
    host, devices = steps.split_host_device_mods(pipeline(module))
    finished = {one: finish_device()(device) for one, device in devices.items()}
    return steps.tir_to_runtime(finish_host()(host), finished, target.host or target)


class TirModule(CompiledModule):
    """A built module whose `main` writes to its buffers.

    `run` returns all buffers as they are afterwards, and also writes them to the given arrays that are writeable.

    Args:
        built: the runtime module.
        module: the module of TIR functions, with an entry `main`; parameters that are no buffers are numbers.
        request: the module with its target.
    """

    def __init__(self, built: Any, module: Any, request: CompileRequest) -> None:  # noqa: ANN401
        main = module[request.name]
        super().__init__(built, frozenset(), len(main.params))
        self._entry = str(main.attrs["global_symbol"])
        self._module = module
        self._request = request
        self._scalars = frozenset(
            place for place, param in enumerate(main.params) if type(param.ty).__name__ != "BufferType"
        )

    @cached_property
    def _parameters(self) -> dict[str, tuple[OperatorParameter, ...]]:
        """The parameters of the functions that can be called from outside, by name."""
        return {
            str(function.attrs["global_symbol"]): parameters_of(function)
            for _, function in self._module.functions_items()
            # Kernels of a device, and of another CPU, are called by host code only.
            if function.attrs.get("global_symbol") and int(function.attrs.get("calling_conv", 0)) in (0, 1)
        }

    def functions(self) -> Mapping[str, OperatorFunction]:
        """Return the public functions, which take tensors of the caller.

        Returns:
            The functions by name.
        """
        place = f"@{self._request.site or '.'}"
        return {
            name: OperatorFunction(name, parameters, self._executable[name], place)
            for name, parameters in self._parameters.items()
        }

    def export(self, path: Path) -> None:
        """Write a library for programs in C and other languages, and its header.

        Args:
            path: the library, a shared one or an object file (`.o`); the header is beside it, `ops.h` for `libops.so`.
        """
        if self._executable.kind != "llvm":  # opened from a saved program, whose library has no object files
            backend_named("tvm").compile(replace(self._request, native={})).export(path)
        else:
            export_operators(path, self._parameters, self._executable, self._request.target)

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """Run on this CPU.

        Args:
            inputs: values of the parameters, in order.

        Returns:
            All buffers, in order.
        """
        reject_forks()
        tvm = import_tvm()
        given = [array.item() if at in self._scalars else tvm.runtime.tensor(array) for at, array in enumerate(inputs)]
        self._executable[self._entry](*given)
        results = [given[at].numpy() for at in range(len(given)) if at not in self._scalars]
        buffers = [array for at, array in enumerate(inputs) if at not in self._scalars]
        for array, result in zip(buffers, results, strict=True):
            if array.flags.writeable:
                array[...] = result
        return results


class CudaTirModule(TirModule):
    """A built module whose kernels run on a GPU, with its buffers in the GPU's memory."""

    def __init__(self, built: Any, module: Any, request: CompileRequest, *, is_native: bool) -> None:  # noqa: ANN401
        super().__init__(built, module, request)
        self._is_native = is_native

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """Run on the first GPU.

        Args:
            inputs: values of the parameters, in order.

        Returns:
            All buffers, in order, in this process.
        """
        return [result.numpy() for result in self.run_on(0, inputs)]

    def run_on(self, device: int, inputs: Sequence[Array | DeviceArray]) -> Sequence[DeviceArray]:
        """Run on a GPU, and wait until it is done.

        Args:
            device: number of the GPU.
            inputs: arrays, or values of a GPU's memory, in order.

        Returns:
            All buffers, in order, in the GPU's memory.
        """
        tvm = import_tvm()
        given: list[Any] = []
        for at, value in enumerate(inputs):
            here = value.numpy() if isinstance(value, DeviceArray) else value
            given.append(here.item() if at in self._scalars else place(value, device))
        self._executable[self._entry](*[one.tensor if isinstance(one, DeviceArray) else one for one in given])
        tvm.cuda(device).sync()
        results = [one for one in given if isinstance(one, DeviceArray)]
        for value, result in zip((v for at, v in enumerate(inputs) if at not in self._scalars), results, strict=True):
            if isinstance(value, np.ndarray) and value.flags.writeable:
                value[...] = result.numpy()
        return results

    def export(self, path: Path) -> None:
        """Write a shared library for programs that load it by the runtime of TVM.

        Args:
            path: the library.

        Raises:
            ArtifactError: there is no machine code for the kernels, or no linker.
        """
        files = self.native_files()
        if not files:
            raise ArtifactError(f"{path}: the kernels are not compiled to machine code here; see the extra 'cuda'")
        with atomic_write(path) as file:
            file.write(files[LIBRARY])

    def source(self) -> str:
        """Return the CUDA C++ of all kernels.

        Returns:
            The code; empty if there are no kernels.
        """
        return "".join(module.inspect_source() for module in self._executable.imports if module.kind == "cuda")

    def native_files(self) -> dict[str, bytes]:
        """Link a shared library.

        Returns:
            The library; empty if there is no machine code.
        """
        return dict(super().native_files()) if self._is_native else {}
