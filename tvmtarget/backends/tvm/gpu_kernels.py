"""The tensor functions of a leaf function on a GPU, to be tuned: by traces of MetaSchedule, beside TVM's default rules.

What a kernel should return is what the host's code computes. TVM is imported late and ships no types: its objects are
Any, under names that say what they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from tvmtarget.backends.protocol import Kernel, Space
from tvmtarget.backends.tvm.call_sites import Use
from tvmtarget.backends.tvm.cuda import generating
from tvmtarget.backends.tvm.gpu_schedule import default_schedule
from tvmtarget.backends.tvm.kernels import CpuKernelRunner, TvmKernelTuningContext, compiled, identity
from tvmtarget.backends.tvm.traces import applied

__all__ = ["GpuKernelRunner", "GpuKernelTuningContext", "gpu_default"]

Target: TypeAlias = Any
Module: TypeAlias = Any
Function: TypeAlias = Any


def gpu_default(target: Target) -> Callable[[Function, Use], Function]:
    """Return a function that schedules functions for a GPU without tuning.

    Args:
        target: TVM's target.

    Returns:
        A function from a tensor function and its use to the scheduled function.
    """

    def schedule(function: Function, _use: Use) -> Function:
        with target:
            return default_schedule(function)

    return schedule


class GpuKernelTuningContext(TvmKernelTuningContext):
    """Kernels of a module of tensor functions that `fusing_passes` produced; they have no register blocks."""

    def __init__(self, module: Module, target: Target) -> None:
        self._default = gpu_default(target)
        super().__init__(module, target, target.host)

    def _space(self, kernel: Kernel, function: Function, use: Use) -> Space:
        return Space(replace(kernel, default=identity(self._default(function, use))), (), ())

    def is_legal(self, key: str, choices: Sequence[Mapping[str, int]]) -> bool:
        """Return whether choices fit a kernel.

        Args:
            key: key of the kernel.
            choices: the choices for each register block.

        Returns:
            True if there are none, as kernels of GPUs have no register blocks.
        """
        return key in self.spaces and not choices

    def build(self, key: str, choices: Sequence[Mapping[str, int]] | str) -> GpuKernelRunner:
        """Schedule and compile a kernel.

        Args:
            key: key of the kernel.
            choices: a trace; anything else stands for the default rules.

        Returns:
            The kernel on the first GPU.
        """
        import tvm

        function, use = self._functions[key]
        scheduled = applied(function, choices) if isinstance(choices, str) else self._default(function, use)
        with generating(tvm, self.target):
            built = compiled(scheduled, self.target)
        return GpuKernelRunner(built, *self._reference(key), tvm.cuda(0))


class GpuKernelRunner(CpuKernelRunner):
    """A compiled kernel on the first GPU, with inputs and expected results."""

    def difference(self) -> str | None:
        """Run once and compare the results.

        Returns:
            How they differ, or None.
        """
        try:
            return super().difference()
        except Exception:
            self._end_if_lost()
            raise

    def time(self, repeats: int) -> list[int]:
        """Measure the run time.

        Args:
            repeats: number of measurements.

        Returns:
            Picoseconds per run, one for each measurement.
        """
        try:
            return super().time(repeats)
        except Exception:
            self._end_if_lost()
            raise

    def _end_if_lost(self) -> None:
        """Abort this process, which exists to measure, if the GPU is lost, as after a fault of a kernel."""
        try:
            self._device.sync()
        except Exception:
            os.abort()
