"""The graph executor: interpret the drivers of a program, one step after the other."""

from __future__ import annotations

import time
from collections import ChainMap
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtarget.errors import ArtifactError, RunError, first_line, warn
from tvmtarget.executors.control_flow import run_control
from tvmtarget.executors.driver_program import Block, Driver, Step
from tvmtarget.executors.protocol import (
    ABILITIES,
    CallEvent,
    CompiledSystem,
    CopyEvent,
    Event,
    ProgramExecutor,
    Record,
    System,
    Transfers,
)

if TYPE_CHECKING:
    from tvmtarget.executors.vm import LoopDrivers
    from tvmtarget.ir.types import Dim

__all__ = ["EXECUTOR", "GraphExecutor"]


class GraphExecutor(ProgramExecutor):
    """Interprets programs of executor kind `graph`."""

    supports = {
        "python": ABILITIES,
        "cpp": frozenset({"control-flow", "dynamic-shapes", "device-memory"}),
    }

    def unsupported_reasons(self, system: System) -> Iterator[str]:
        """List why a system cannot be interpreted.

        Args:
            system: the system.

        Yields:
            A sentence for each reason, with the path of the leaf or driver.
        """
        yield from super().unsupported_reasons(system)
        if system.convention == "cpp":
            # Imported late: other programs do without the code generator of TVM.
            from tvmtarget.executors.graph_cpp import graph_cpp_reasons

            yield from graph_cpp_reasons(system)

    def compile(self, system: System) -> CompiledSystem:
        """Return an interpreter of a system, in Python, or in C++ for the convention `cpp`.

        Args:
            system: the system; the kind has no attributes to honour.

        Returns:
            What runs the system.
        """
        if system.convention == "cpp":
            from tvmtarget.executors.graph_cpp import GraphCppSystem

            return GraphCppSystem(system)
        return _Interpreter(system)


EXECUTOR = GraphExecutor()


class _Interpreter(CompiledSystem):
    """A program with the functions that call leaves and nested systems, and copy values."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._program = system.program
        self._constants = system.constants
        self._systems = system.systems
        self._leaves = system.leaves
        self._call_leaf = system.call_leaf
        self._call_system = system.call_system
        self._copy_value = system.copy_value
        self._only_call = _only_call(system)
        self._copied_constants: dict[str, Any] = {}  # by the name of the copy; filled at first use
        self._loop_drivers = _loop_drivers(system)

    def run(self, inputs: Sequence[Any], record: Record | None = None) -> list[Any]:
        # Calls inside of drivers of the VM are not observed.
        if self._loop_drivers is None or record is not None:
            return self.run_machine(inputs, record)
        try:
            return list(self._loop_drivers.run(inputs))
        except Exception as error:  # of TVM, which raises any
            # The interpreter names the operation that failed. Where it does not fail, it is used from now on.
            results = self.run_machine(inputs)
            self._loop_drivers = None
            place = f"@{self._system.path or '.'}"
            warn(f"native code of the loops of {place} failed; they are interpreted from now on: {first_line(error)}")
            return results

    def export(self, path: Path) -> None:
        if self._only_call is None:
            raise ArtifactError(
                f"{path}: executor 'graph' exports programs that are one leaf function; build for executor=aot, or "
                "save the program instead"
            )
        leaf = self._leaves[self._only_call[0]]
        if leaf.request.is_relax:
            leaf.compiled.export(path)
        else:
            # Imported late: other programs do without the generator of C.
            from tvmtarget.executors.aot import export_library

            export_library(self._system, path)

    def run_machine(
        self,
        inputs: Sequence[Any],
        record: Record | None = None,
        transfers: Transfers | None = None,
        *,
        entry: Driver | None = None,
    ) -> list[Any]:
        if entry is None and self._only_call is not None:  # most programs on one leaf: skip the interpreter
            function, call = self._only_call
            return self._run_leaf(function, inputs, record, call)
        driver = entry or self._program.drivers[self._program.entry]
        sizes = self._sizes(driver, inputs) if self._symbolic_shapes else {}
        return self._run_driver(driver, inputs, sizes, record, transfers)

    @cached_property
    def _symbolic_shapes(self) -> dict[str, tuple[Dim, ...]]:
        """The shapes of the program's inputs that have symbolic dimensions, by name."""
        shapes = {one.name: one.shape or () for one in self._program.inputs}
        return {name: shape for name, shape in shapes.items() if any(isinstance(dim, str) for dim in shape)}

    def _sizes(self, driver: Driver, inputs: Sequence[Any]) -> dict[str, int]:
        """Return the sizes of the symbolic dimensions of inputs."""
        return {
            dim: size
            for name, value in zip(driver.params, inputs, strict=True)
            for dim, size in zip(self._symbolic_shapes.get(name, ()), getattr(value, "shape", ()), strict=False)
            if isinstance(dim, str)
        }

    def _run_leaf(self, name: str, inputs: Sequence[Any], record: Record | None, call: str) -> list[Any]:
        if record is None:
            return list(self._call_leaf(name, inputs, call))
        begin = time.perf_counter_ns()
        results = list(self._call_leaf(name, inputs, call))
        record(CallEvent(name, time.perf_counter_ns() - begin, call))
        return results

    def _run_driver(
        self,
        driver: Driver,
        inputs: Sequence[Any],
        sizes: Mapping[str, int],
        record: Record | None,
        transfers: Transfers | None = None,
    ) -> list[Any]:
        values = {name: self._constants[name] for name in driver.constants}
        values.update(zip(driver.params, inputs, strict=True))
        return self._run_block(driver, values, sizes, record, transfers)

    def _run_block(
        self,
        block: Block,
        values: MutableMapping[str, Any],
        sizes: Mapping[str, int],
        record: Record | None,
        transfers: Transfers | None,
    ) -> list[Any]:
        """Run the steps of a block; add their results to `values`, and remove those that are not read again."""
        for step in block.steps:
            arguments = [values[name] if name else None for name in step.inputs]
            results = self._run_step(step, arguments, values, sizes, record, transfers)
            for name, result in zip(step.outputs, results, strict=True):
                if name:
                    values[name] = result
            for name in step.free:  # keeps the memory of a long run small
                values.pop(name, None)
        return [values[name] for name in block.results]

    def _run_step(
        self,
        step: Step,
        arguments: list[Any],
        values: MutableMapping[str, Any],
        sizes: Mapping[str, int],
        record: Record | None,
        transfers: Transfers | None,
    ) -> Sequence[Any]:
        if step.call is not None:
            call, driver = step.name or step.call, self._program.drivers.get(step.call)
            if step.call in self._systems:
                return self._call_system(step.call, arguments, _with_prefix(call, record, step.call))
            if driver is None:
                return self._run_leaf(step.call, arguments, record, call)
            # Inner drivers run on one machine, so that they have no transfers.
            return self._run_driver(driver, arguments, sizes, _with_prefix(call, record))
        if step.order is not None:
            return _transfer(step, arguments, transfers)
        if step.control is not None:

            def run_body(body: Block, inputs: Sequence[Any]) -> list[Any]:
                # A body reads the values around it; its own values end with it.
                own = dict(zip(body.params, inputs, strict=True))
                return self._run_block(body, ChainMap(own, values), sizes, record, transfers)

            return run_control(step.control, arguments, sizes, run_body)
        # Copies of constants are made once per program, as weights would dominate the time of each run.
        if not step.once:
            return [self._copy(step, arguments[0], record)]
        if step.outputs[0] not in self._copied_constants:
            self._copied_constants[step.outputs[0]] = self._copy(step, arguments[0], record)
        return [self._copied_constants[step.outputs[0]]]

    def _copy(self, step: Step, value: Any, record: Record | None) -> Any:  # noqa: ANN401
        src, dst = str(step.src), str(step.dst)
        begin = time.perf_counter_ns()
        copied = self._copy_value(value, src, dst)
        if record is not None:
            duration = time.perf_counter_ns() - begin
            record(CopyEvent(step.inputs[0], src, dst, _nbytes(value), duration))
        return copied


def _loop_drivers(system: System) -> LoopDrivers | None:
    """Return the drivers as native code if they have loops, and call code of TVM for this CPU only."""
    steps = (step for driver in system.program.drivers.values() for step in driver.walk())
    if all(step.control is None or step.control.kind == "branch" for step in steps):
        return None
    # Imported late: other programs do without the code generator of TVM.
    from tvmtarget.executors.vm import LoopDrivers

    return LoopDrivers.of(system)


def _only_call(system: System) -> tuple[str, str] | None:
    """Return the leaf function and the name of its call if a program is nothing but that call, else None."""
    program = system.program
    driver = program.drivers.get(program.entry)
    if driver is None:
        return program.entry, program.entry
    only = driver.steps[0] if len(driver.steps) == 1 else None
    if only is None or only.call is None or only.call in program.drivers or only.call in system.systems:
        return None
    is_all = (only.inputs, only.outputs) == (driver.params, driver.results)
    return (only.call, only.name or only.call) if is_all else None


def _with_prefix(call: str, record: Record | None, system: str = "") -> Record | None:
    """Return a `record` that puts the name of a driver's call before the names of the calls inside it.

    A call of the function `system` is the call itself: that of a system on one leaf, or of one that reports no others.
    """
    if record is None:
        return None

    def record_inner(event: Event) -> None:
        if isinstance(event, CallEvent):
            event = replace(event, call=call if event.function == system else f"{call}/{event.call}")
        record(event)

    return record_inner


def _transfer(step: Step, arguments: Sequence[Any], transfers: Transfers | None) -> list[Any]:
    if transfers is None or step.order is None:
        raise RunError("this is the program of one machine, which runs together with those of the others")
    if step.to is not None:
        transfers.send(step.to, step.order, arguments)
        return []
    return list(transfers.receive(str(step.from_), step.order))


def _nbytes(value: object) -> int:
    """Return the size of an array, of a device array, or of all arrays of a sequence; 0 for other values."""
    if isinstance(value, list | tuple):
        return sum(map(_nbytes, value))
    return int(getattr(value, "nbytes", 0))
