"""The tensor functions of a leaf function on a GPU, to be tuned: by traces of MetaSchedule, beside TVM's default rules.

What a kernel should return is what the host's code computes. TVM is imported late and ships no types: its objects are
Any, under names that say what they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.backends.protocol import Array, Space
from tvmtarget.backends.tvm_cuda import generating
from tvmtarget.backends.tvm_gpu_schedule import default_schedule
from tvmtarget.backends.tvm_kernels import KernelBench, functions_of, identity, kernel_of, random_input
from tvmtarget.backends.tvm_traces import applied, program_of, propose
from tvmtarget.backends.tvm_uses import Use

__all__ = ["GpuBench", "GpuWorkshop", "gpu_default"]

Target: TypeAlias = Any
Module: TypeAlias = Any
Function: TypeAlias = Any


def gpu_default(target: Target) -> Callable[[Function, Use], Function]:
    """Return what schedules functions for a GPU without tuning."""

    def schedule(function: Function, _use: Use) -> Function:
        with target:
            return default_schedule(function)

    return schedule


class GpuWorkshop:
    """The kernels of a module of tensor functions, which `fusing_passes` made; there are no register blocks."""

    def __init__(self, module: Module, target: Target) -> None:
        self.target = target
        self.spaces: dict[str, Space] = {}
        self._default = gpu_default(target)
        self._functions: dict[str, Function] = {}
        self._references: dict[str, tuple[list[Array], dict[int, Array]]] = {}
        for name, function, use in functions_of(module):
            kernel = kernel_of(name, function, use)
            if kernel is None:
                continue
            known = self.spaces.get(kernel.key)
            if known is not None:
                both = replace(known.kernel, calls=known.kernel.calls + kernel.calls)
                self.spaces[kernel.key] = replace(known, kernel=both)
                continue
            kernel = replace(kernel, default=identity(self._default(function, use)))
            self.spaces[kernel.key] = Space(kernel, (), ())
            self._functions[kernel.key] = function

    def is_legal(self, key: str, choices: Sequence[Mapping[str, int]]) -> bool:
        """Whether choices are those of no register block."""
        return key in self.spaces and not choices

    def propose(self, key: str, known: Sequence[tuple[str, int]], count: int, seed: int) -> list[str]:
        """Return traces of MetaSchedule for a kernel."""
        return propose(self._functions[key], self.target, known, count, seed)

    def program(self, key: str) -> Mapping[str, object]:
        """Return a kernel as a workload of MetaSchedule."""
        return program_of(self._functions[key])

    def build(self, key: str, choices: Sequence[Mapping[str, int]] | str) -> GpuBench:
        """Schedule and compile a kernel, by a trace or by the default rules."""
        import tvm

        function = self._functions[key]
        scheduled = applied(function, choices) if isinstance(choices, str) else self._default(function, Use())
        with generating(tvm, self.target):
            built = _compiled(scheduled, self.target)
        return GpuBench(built, *self._reference(key), tvm.cuda(0))

    def _reference(self, key: str) -> tuple[list[Array], dict[int, Array]]:
        """Return random inputs, and what the kernel as TVM wrote it makes of them on the host: results by position."""
        import tvm

        if key not in self._references:
            function = self._functions[key]
            random = np.random.default_rng(0)
            inputs = [random_input(random, param) for param in function.params]
            tensors = [tvm.runtime.tensor(array) for array in inputs]
            _compiled(function, self.target.host)["main"](*tensors)
            after = [tensor.numpy() for tensor in tensors]
            written = {at: array for at, array in enumerate(after) if not np.array_equal(array, inputs[at])}
            self._references[key] = inputs, written
        return self._references[key]


class GpuBench(KernelBench):
    """A compiled kernel on the first GPU, with inputs and expected results."""

    def difference(self) -> str | None:
        """Run once and compare."""
        try:
            return super().difference()
        except Exception:
            self._end_if_lost()
            raise

    def time(self, repeats: int) -> list[int]:
        """Return picoseconds a run, so many times."""
        try:
            return super().time(repeats)
        except Exception:
            self._end_if_lost()
            raise

    def _end_if_lost(self) -> None:
        """End this process, which exists to measure, if it lost the GPU, as by a fault of a kernel."""
        try:
            self._device.sync()
        except Exception:
            os.abort()


def _compiled(function: Function, target: Target) -> Any:  # noqa: ANN401
    import tvm

    named = function.with_attr("global_symbol", "main")
    with tvm.transform.PassContext(opt_level=3):
        return tvm.compile(tvm.IRModule({"main": named}), target=target)
