"""Tunable kernels of a leaf function: the tensor functions that TVM makes of it, with their choices and measurements.

A kernel is identified by what it computes (`ir/tensor_functions.py`), and by which arguments are constants. Only
functions with a reduction are tuned: by the choices of their register blocks, or by traces of MetaSchedule, which need
no such block. Symbolic sizes are measured at `OPEN_SIZE`. TVM is imported late and ships no types: its objects are Any,
under names that say what they are.
"""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.backends.protocol import Array, Kernel, Schedules, Space
from tvmtarget.backends.tvm.call_sites import Use, uses_of
from tvmtarget.backends.tvm.cpu_schedule import MAX_REJECTED, Scheduler, vector_unit
from tvmtarget.backends.tvm.register_tiling import Tile, VectorUnit
from tvmtarget.backends.tvm.schedule_space import Knobs, knobs_of, space, tile_of
from tvmtarget.backends.tvm.traces import TILES_FORMAT, TRACE_FORMAT, applied, program_of, propose
from tvmtarget.backends.tvm.vector_math import vectorisable
from tvmtarget.backends.tvm.wide_indices import register_pipeline
from tvmtarget.ir.tensor_functions import script_of, workload_body
from tvmtarget.target.keys import key_of

__all__ = [
    "CpuKernelRunner",
    "CpuKernelTuningContext",
    "TunedChoice",
    "TvmKernelTuningContext",
    "compiled",
    "cpu_default",
    "described",
    "identity",
    "kernel_of",
]


_NAMES = frozenset(knobs_of(Tile(0, 1)))

Target: TypeAlias = Any
Module: TypeAlias = Any
Function: TypeAlias = Any
Tensor: TypeAlias = Any

# Largest difference of results, in parts of the largest result, that another order of sums explains.
TOLERANCE = {"float16": 1e-2, "bfloat16": 5e-2, "float32": 1e-4, "float64": 1e-10}

OPEN_SIZE = 16

MIN_REPEAT_MS = 4  # that a measurement runs the kernel in a row
SLOW_PS = 50 * 10**9  # from which on one run is a measurement

_REDUCES = re.compile(r'T\.axis\.(reduce\(|remap\("[A-Z]*R)')


def kernel_of(name: str, function: Function, use: Use) -> Kernel | None:
    """Return the kernel of a tensor function.

    Args:
        name: name of the function.
        function: the function.
        use: how the module calls it.

    Returns:
        The kernel, or None if its sizes are computed or it reduces nothing.
    """
    kernel = described(name, function, use)
    return kernel if "shapes" in kernel.body and _REDUCES.search(kernel.text) else None


def described(name: str, function: Function, use: Use) -> Kernel:
    """Describe any tensor function as a kernel.

    A trace does not depend on which arguments are constants, so that those of the function alone are valid too.

    Args:
        name: name of the function.
        function: the function.
        use: how the module calls it.

    Returns:
        The kernel; its body has no `shapes` if its sizes are computed.
    """
    body = workload_body(function, use.constants)
    equivalents = {TRACE_FORMAT: workload_body(function)} if use.constants else {}
    called = re.sub(r"\d+(?=_|$)", "", name)
    return Kernel(called, body, script_of(function), max(1, use.calls), equivalents=equivalents)


def identity(scheduled: Function) -> str:
    """Return the digest of a scheduled function, independent of names.

    Args:
        scheduled: the function.

    Returns:
        `s1:` and a digest.
    """
    return key_of("s1", {"script": script_of(scheduled)})


def cpu_default(target: Target) -> Callable[[Function, Use], Function]:
    """Return a function that schedules functions for a CPU without tuning.

    Args:
        target: TVM's target of kind llvm.

    Returns:
        A function from a tensor function and its use to the scheduled function.
    """
    unit = vector_unit(target)
    return lambda function, use: Scheduler(function, unit, use).run()


class TunedChoice:
    """Chooses schedules of functions from the results of tuning.

    Args:
        schedules: the results of tuning.
        default: schedules a function without tuning.
    """

    def __init__(self, schedules: Schedules, default: Callable[[Function, Use], Function]) -> None:
        self._schedules = schedules
        self._default = default
        self._kernels: dict[str, Kernel] = {}

    def __call__(self, name: str, function: Function, use: Use) -> Sequence[Knobs] | str | None:
        """Return the schedule of a function: knobs of its register blocks, or a trace; None if there is none."""
        kernel = kernel_of(name, function, use)
        if kernel is None:
            return None
        from tvm.s_tir import ScheduleError

        with contextlib.suppress(ScheduleError):
            kernel = replace(kernel, default=identity(self._default(function, use)))
        self._kernels[name] = kernel
        for _ in range(MAX_REJECTED):
            found = self._schedules.find(kernel, TILES_FORMAT, TRACE_FORMAT)
            if found is None:
                return None
            format_, body = found
            choice = _read(body) if format_ == TILES_FORMAT else body if isinstance(body, str) else None
            if choice is not None:
                return choice
            self.reject(name, f"its body is not that of a candidate of format {format_!r}")
        return None

    def reject(self, name: str, reason: str) -> None:
        """Record that the schedule of a function does not fit it.

        Args:
            name: name of the function.
            reason: why it does not fit.
        """
        self._schedules.reject(self._kernels[name], reason)


def _read(body: object) -> list[Knobs] | None:
    """Return the knobs in the body of a candidate; None if it is malformed."""
    blocks = body.get("blocks") if isinstance(body, Mapping) else None
    if not isinstance(blocks, list | tuple) or not all(isinstance(block, Mapping) for block in blocks):
        return None
    whole = all(set(block) == _NAMES and all(type(v) is int for v in block.values()) for block in blocks)
    return list(blocks) if whole else None


class TvmKernelTuningContext(ABC):
    """Kernels of a module of tensor functions, with their spaces and expected results.

    Args:
        module: a TVM module of tensor functions.
        target: TVM's target.
        host: TVM's target for computing the expected results.
    """

    def __init__(self, module: Module, target: Target, host: Target) -> None:
        self.target = target
        self._spaces: dict[str, Space] = {}
        self._host = host
        self._functions: dict[str, tuple[Function, Use]] = {}
        self._references: dict[str, tuple[list[Array], dict[int, Array]]] = {}
        for name, function, use in functions_of(module):
            self._add(name, function, use)

    @property
    def spaces(self) -> Mapping[str, Space]:
        """Candidates of each kernel, by key."""
        return self._spaces

    def _add(self, name: str, function: Function, use: Use) -> None:
        kernel = kernel_of(name, function, use)
        if kernel is None:
            return
        known = self._spaces.get(kernel.key)
        if known is not None:
            both = replace(known.kernel, calls=known.kernel.calls + kernel.calls)
            self._spaces[kernel.key] = replace(known, kernel=both)
            return
        space = self._space(kernel, function, use)
        if space is not None:
            self._spaces[kernel.key] = space
            self._functions[kernel.key] = function, use

    @abstractmethod
    def _space(self, kernel: Kernel, function: Function, use: Use) -> Space | None:
        """Return a kernel with its default and its choices; None if it cannot be scheduled."""

    def propose(self, key: str, known: Sequence[tuple[str, int]], count: int, seed: int) -> list[str]:
        """Propose traces to measure, by MetaSchedule.

        Args:
            key: key of the kernel.
            known: measured traces with their costs in picoseconds.
            count: number of traces.
            seed: seed of the random choices.

        Returns:
            Traces; fewer than `count` if there are no more.
        """
        return propose(self._functions[key][0], self.target, known, count, seed)

    def program(self, key: str) -> Mapping[str, object]:
        """Return a kernel as a workload of MetaSchedule.

        Args:
            key: key of the kernel.

        Returns:
            The workload as JSON data.
        """
        return program_of(self._functions[key][0])

    def _reference(self, key: str) -> tuple[list[Array], dict[int, Array]]:
        """Return random inputs, and by position the results of the unscheduled kernel on the host."""
        import tvm

        if key not in self._references:
            function, _ = self._functions[key]
            random = np.random.default_rng(0)
            inputs = [random_input(random, param) for param in function.params]
            tensors = [tvm.runtime.tensor(array) for array in inputs]
            compiled(function, self._host)["main"](*tensors)
            after = [tensor.numpy() for tensor in tensors]
            written = {at: array for at, array in enumerate(after) if not np.array_equal(array, inputs[at])}
            self._references[key] = inputs, written
        return self._references[key]


class CpuKernelTuningContext(TvmKernelTuningContext):
    """Kernels of a module of tensor functions that `legal_passes` produced.

    Args:
        module: a TVM module of tensor functions.
        target: TVM's target of kind llvm.
        unit: the vector registers that schedules are for.
    """

    def __init__(self, module: Module, target: Target, unit: VectorUnit) -> None:
        self.unit = unit
        self._nests: dict[str, list[Any]] = {}
        super().__init__(module, target, target)

    def _space(self, kernel: Kernel, function: Function, use: Use) -> Space | None:
        scheduler = Scheduler(function, self.unit, use)
        try:
            kernel = replace(kernel, default=identity(scheduler.run()))
        except scheduler.tvm.s_tir.ScheduleError:
            return None
        self._nests[kernel.key] = [nest for nest, _ in scheduler.blocks]
        choices = tuple(space(nest, tile, self.unit) for nest, tile in scheduler.blocks)
        return Space(kernel, choices, tuple(knobs_of(tile) for _, tile in scheduler.blocks))

    def is_legal(self, key: str, choices: Sequence[Mapping[str, int]]) -> bool:
        """Return whether choices make register blocks that fit a kernel.

        Args:
            key: key of the kernel.
            choices: the choices for each register block.

        Returns:
            True if the kernel can be built with them.
        """
        nests = self._nests[key]
        return len(nests) == len(choices) and all(
            tile_of(nest, knobs, self.unit) is not None for nest, knobs in zip(nests, choices, strict=True)
        )

    def build(self, key: str, choices: Sequence[Mapping[str, int]] | str) -> CpuKernelRunner:
        """Schedule and compile a kernel.

        Args:
            key: key of the kernel.
            choices: the choices for each register block, or a trace.

        Returns:
            The kernel on this CPU.
        """
        function, use = self._functions[key]
        if isinstance(choices, str):
            return CpuKernelRunner(
                compiled(vectorisable(applied(function, choices)), self.target), *self._reference(key)
            )
        scheduler = Scheduler(function, self.unit, use, list(choices))
        entry = compiled(scheduler.run(), self.target)
        inputs, expected = self._reference(key)
        laid_out = [
            scheduler.layouts[at].apply(array) if at in scheduler.layouts else array for at, array in enumerate(inputs)
        ]
        return CpuKernelRunner(entry, laid_out, expected)


class CpuKernelRunner:
    """A compiled kernel with inputs and, by position, expected results.

    Args:
        built: the runtime module.
        inputs: values of all parameters.
        expected: expected values of parameters that are written, by position.
        device: TVM's device; None for the CPU.
    """

    def __init__(
        self,
        built: Any,  # noqa: ANN401
        inputs: Sequence[Array],
        expected: Mapping[int, Array],
        device: Any = None,  # noqa: ANN401
    ) -> None:
        import tvm

        self._device = device or tvm.cpu()
        self._built = built
        self._tensors: list[Tensor] = [tvm.runtime.tensor(array, self._device) for array in inputs]
        self._expected = expected

    def difference(self) -> str | None:
        """Run once and compare the results; another order of sums may differ by `TOLERANCE`.

        Returns:
            How they differ, or None.
        """
        self._built["main"](*self._tensors)
        for at, expected in self._expected.items():
            actual = self._tensors[at].numpy()
            if not np.issubdtype(expected.dtype, np.floating):
                if not np.array_equal(actual, expected):
                    return f"result {at} differs"
                continue
            scale = float(np.abs(expected).max()) or 1.0
            error = float(np.abs(actual.astype("float64") - expected.astype("float64")).max()) / scale
            if not error <= TOLERANCE.get(str(expected.dtype), 1e-4):
                return f"result {at} differs by {error:.1e} of its largest value"
        return None

    def time(self, repeats: int) -> list[int]:
        """Measure the run time; each measurement of a slow kernel is one run.

        Args:
            repeats: number of measurements.

        Returns:
            Picoseconds per run; fewer measurements for slow kernels.
        """
        once = self._measured(1, 0)[0]
        if once > SLOW_PS:
            return [once, *self._measured(max(1, repeats // 2), 0)]
        return self._measured(repeats, MIN_REPEAT_MS)

    def _measured(self, repeats: int, least_ms: int) -> list[int]:
        timer = self._built.mod.time_evaluator("main", self._device, number=1, repeat=repeats, min_repeat_ms=least_ms)
        return [round(seconds * 1e12) for seconds in timer(*self._tensors).results]


def compiled(function: Function, target: Target) -> Any:  # noqa: ANN401
    """Compile a scheduled function.

    Args:
        function: the function.
        target: TVM's target.

    Returns:
        A runtime module with the function `main`.
    """
    import tvm

    named = function.with_attr("global_symbol", "main")
    with tvm.transform.PassContext(opt_level=3):
        return tvm.compile(tvm.IRModule({"main": named}), target=target, tir_pipeline=register_pipeline())


def functions_of(module: Module) -> Iterator[tuple[str, Function, Use]]:
    """List the tensor functions of a module that can be scheduled.

    Args:
        module: a TVM module.

    Yields:
        Name, function and use.
    """
    from tvm.s_tir import SBlockRealize
    from tvm.tirx import PrimFunc

    uses = uses_of(module)
    for variable, function in module.functions_items():
        if isinstance(function, PrimFunc) and isinstance(function.body, SBlockRealize):
            yield variable.name_hint, function, uses.get(variable.name_hint, Use())


def random_input(random: np.random.Generator, param: Any) -> Array:  # noqa: ANN401
    """Return random values for a parameter.

    Floats are normally distributed, integers are 0 or 1, which are also valid indices.

    Args:
        random: the generator.
        param: a parameter of a tensor function.

    Returns:
        An array; symbolic sizes are `OPEN_SIZE`.
    """
    import tvm

    shape = [int(size) if isinstance(size, tvm.tirx.IntImm) else OPEN_SIZE for size in param.shape]
    dtype = str(param.dtype)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if "int" in dtype:
        return random.integers(0, 2, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)
