"""Build and run programs of TIR functions only: a host function that may launch kernels of a device."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmtarget.backends.protocol import Array
from tvmtarget.backends.tvm.compiled_module import CompiledModule, DeviceArray, import_tvm, place

__all__ = ["CudaTirModule", "TirModule", "build_tir", "is_code"]


def is_code(module: Any) -> bool:  # noqa: ANN401 - TVM ships no types
    """Return whether a module of TVM has TIR functions only.

    Args:
        module: a TVM module.

    Returns:
        True if it has no functions of Relax.
    """
    tvm = import_tvm()
    return all(isinstance(function, tvm.tirx.PrimFunc) for function in module.functions.values())


def build_tir(module: Any, target: Any) -> Any:  # noqa: ANN401
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
        main: the TIR function, whose parameters that are no buffers are numbers.
    """

    def __init__(self, built: Any, main: Any) -> None:  # noqa: ANN401
        super().__init__(built, frozenset(), len(main.params))
        self._scalars = frozenset(
            place for place, param in enumerate(main.params) if type(param.ty).__name__ != "BufferType"
        )

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """Run on this CPU.

        Args:
            inputs: values of the parameters, in order.

        Returns:
            All buffers, in order.
        """
        tvm = import_tvm()
        given = [array.item() if at in self._scalars else tvm.runtime.tensor(array) for at, array in enumerate(inputs)]
        self._executable["main"](*given)
        results = [given[at].numpy() for at in range(len(given)) if at not in self._scalars]
        buffers = [array for at, array in enumerate(inputs) if at not in self._scalars]
        for array, result in zip(buffers, results, strict=True):
            if array.flags.writeable:
                array[...] = result
        return results


class CudaTirModule(TirModule):
    """A built module whose kernels run on a GPU, with its buffers in the GPU's memory."""

    def __init__(self, built: Any, main: Any, *, is_native: bool) -> None:  # noqa: ANN401
        super().__init__(built, main)
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
        self._executable["main"](*[one.tensor if isinstance(one, DeviceArray) else one for one in given])
        tvm.cuda(device).sync()
        results = [one for one in given if isinstance(one, DeviceArray)]
        for value, result in zip((v for at, v in enumerate(inputs) if at not in self._scalars), results, strict=True):
            if isinstance(value, np.ndarray) and value.flags.writeable:
                value[...] = result.numpy()
        return results

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
