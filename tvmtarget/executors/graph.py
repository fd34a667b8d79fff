"""The graph executor: interpret the drivers of a program, step by step, one after the other."""

from __future__ import annotations

import time
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from tvmtarget.errors import RunError
from tvmtarget.executors.control import run_control
from tvmtarget.executors.program import Block, Driver, Program, Signature, Step
from tvmtarget.ir.types import dtype_of

__all__ = ["CallEvent", "CopyEvent", "Event", "GraphExecutor", "Transfers", "check_inputs"]

Array: TypeAlias = "np.ndarray[Any, Any]"
LeafCall: TypeAlias = Callable[[str, Sequence[Any], str], Sequence[Any]]
Copy: TypeAlias = Callable[[Any, str, str], Any]


@dataclass(frozen=True, slots=True)
class CallEvent:
    """A leaf function was called; it took so many nanoseconds. `call` is which of its calls it was (`Plan.regions`)."""

    function: str
    duration_ns: int
    call: str = ""


@dataclass(frozen=True, slots=True)
class CopyEvent:
    """A value was copied between memories; `nbytes` is what was moved."""

    value: str
    src: str
    dst: str
    nbytes: int
    duration_ns: int


Event: TypeAlias = "CallEvent | CopyEvent"


class Transfers(Protocol):
    """How one run of a machine's program reaches the other machines; values of one `order` belong together."""

    def send(self, to: str, order: int, values: Sequence[Any]) -> None:
        """Send the values of a transfer, one or none."""
        ...

    def receive(self, from_: str, order: int) -> Sequence[Any]:
        """Wait for the values of a transfer; `RunError` if the machine is gone."""
        ...


@dataclass(frozen=True, slots=True)
class _Trace:
    """Who is told of what happens, and the names of the calls that are under way, joined by `/`."""

    record: Callable[[Event], None]
    call: str = ""

    def inner(self, name: str) -> _Trace:
        return _Trace(self.record, f"{self.call}/{name}" if self.call else name)


class GraphExecutor:
    """Runs a program; leaf functions and copies are done by the functions it is given."""

    def __init__(self, program: Program, constants: Mapping[str, Array], call_leaf: LeafCall, copy: Copy) -> None:
        self._program = program
        self._constants = constants
        self._call_leaf = call_leaf
        self._copy = copy
        self._placed: dict[str, Any] = {}  # copies of constants, by their names, which are made at first use

    def run(
        self,
        inputs: Sequence[Any],
        record: Callable[[Event], None] | None = None,
        transfers: Transfers | None = None,
        *,
        entry: Driver | None = None,
    ) -> list[Any]:
        """Run the entry on its parameters in order; `record` is told of every leaf call and copy as it happens.

        The program of one machine of several needs `transfers`. Another `entry` is a part of that program.
        """
        driver = entry or self._program.drivers.get(self._program.entry)
        if driver is not None:
            return self._drive(driver, inputs, _Trace(record or (lambda _: None)), transfers)
        return self._function(self._program.entry, inputs, _Trace(record or (lambda _: None), self._program.entry))

    def _function(self, name: str, inputs: Sequence[Any], trace: _Trace) -> list[Any]:
        driver = self._program.drivers.get(name)
        if driver is None:
            begin = time.perf_counter_ns()
            results = list(self._call_leaf(name, inputs, trace.call))
            trace.record(CallEvent(name, time.perf_counter_ns() - begin, trace.call))
            return results
        return self._drive(driver, inputs, trace)

    def _drive(
        self,
        driver: Driver,
        inputs: Sequence[Any],
        trace: _Trace,
        transfers: Transfers | None = None,
    ) -> list[Any]:
        constants = {name: self._constants[name] for name in driver.constants}
        return self._block(driver, inputs, constants, trace, transfers)

    def _block(
        self,
        block: Block,
        inputs: Sequence[Any],
        around: Mapping[str, Any],
        trace: _Trace,
        transfers: Transfers | None,
    ) -> list[Any]:
        """Run the steps of a block; it sees the values around it and adds its own only for itself."""
        values: ChainMap[str, Any] = ChainMap(dict(zip(block.params, inputs, strict=True)), around)  # type: ignore[arg-type]
        for step in block.steps:
            arguments = [values[name] if name else None for name in step.inputs]
            results = self._step(step, arguments, values, trace, transfers)
            values.update((name, one) for name, one in zip(step.outputs, results, strict=True) if name)
            for name in step.free:
                values.pop(name, None)
        return [values[name] for name in block.results]

    def _step(
        self,
        step: Step,
        arguments: list[Any],
        values: Mapping[str, Any],
        trace: _Trace,
        transfers: Transfers | None,
    ) -> Sequence[Any]:
        if step.call is not None:
            return self._function(step.call, arguments, trace.inner(step.name or step.call))
        if step.order is not None:
            return _transfer(step, arguments, transfers)
        if step.control is not None:
            return run_control(
                step.control, arguments, lambda body, given: self._block(body, given, values, trace, transfers)
            )
        if not step.once:
            return [self._copied(step, arguments[0], trace)]
        if step.outputs[0] not in self._placed:
            self._placed[step.outputs[0]] = self._copied(step, arguments[0], trace)
        return [self._placed[step.outputs[0]]]

    def _copied(self, step: Step, value: Any, trace: _Trace) -> Any:  # noqa: ANN401
        src, dst = str(step.src), str(step.dst)
        begin = time.perf_counter_ns()
        copied = self._copy(value, src, dst)
        taken = time.perf_counter_ns() - begin
        trace.record(CopyEvent(step.inputs[0], src, dst, _nbytes(value), taken))
        return copied


def _transfer(step: Step, arguments: Sequence[Any], transfers: Transfers | None) -> list[Any]:
    if transfers is None or step.order is None:
        raise RunError("this is the program of one machine, which runs together with those of the others")
    if step.to is not None:
        transfers.send(step.to, step.order, arguments)
        return []
    return list(transfers.receive(str(step.from_), step.order))


def _nbytes(value: object) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    return sum(map(_nbytes, value)) if isinstance(value, list | tuple) else 0


def check_inputs(signatures: Sequence[Signature], given: Mapping[str, object]) -> list[Any]:
    """Return the inputs in the program's order; `RunError` lists all that are missing, unknown or do not fit."""
    names = [signature.name for signature in signatures]
    problems = [
        f"no input {name!r} in the program; it takes {', '.join(map(repr, names))}"
        for name in given
        if name not in names
    ]
    sizes: dict[str, tuple[int, str]] = {}
    values: list[Any] = []
    for signature in signatures:
        if signature.name not in given:
            problems.append(f"input {signature.name!r} is missing; it is {signature}")
            continue
        value = given[signature.name]
        if signature.dtype is not None:
            value = _as_array(value, signature.dtype)
            problems += _misfits(signature, value, sizes)
        values.append(value)
    if problems:
        raise RunError(*problems)
    return values


def _as_array(value: object, dtype: str) -> Array:
    """Take arrays as they are; numbers and lists of them become arrays of the type that is asked for."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, np.generic):
        return np.asarray(value)
    try:
        return np.asarray(value, dtype=object if dtype == "string" else dtype)
    except (TypeError, ValueError):
        return np.asarray(value, dtype=object)


def _misfits(signature: Signature, value: Array, sizes: dict[str, tuple[int, str]]) -> list[str]:
    name = signature.name
    dtype = dtype_of(value.dtype)
    if dtype != signature.dtype:
        return [f"input {name!r} is {dtype}, not {signature.dtype}; convert it with .astype({signature.dtype!r})"]
    if signature.shape is None:
        return []
    shown = "(" + ", ".join("?" if dim is None else str(dim) for dim in signature.shape) + ")"
    if len(value.shape) != len(signature.shape):
        return [f"input {name!r} has shape {value.shape}, not {shown}"]
    for size, dim in zip(value.shape, signature.shape, strict=True):
        if isinstance(dim, int) and dim != size:
            return [f"input {name!r} has shape {value.shape}, not {shown}"]
        if isinstance(dim, str):
            known, first = sizes.setdefault(dim, (size, name))
            if known != size:
                return [f"input {name!r} has {size} for {dim!r}, but input {first!r} has {known}"]
    return []
