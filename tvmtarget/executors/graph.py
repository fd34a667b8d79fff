"""The graph executor: interpret the drivers of a program, step by step, one after the other."""

from __future__ import annotations

import time
from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

import numpy as np

from tvmtarget.errors import RunError, raise_all
from tvmtarget.executors.control_flow import run_control
from tvmtarget.executors.driver_program import Block, Driver, DriverProgram, Signature, Step
from tvmtarget.ir.types import dtype_of

__all__ = ["CallEvent", "CopyEvent", "Event", "GraphExecutor", "Transfers", "check_inputs", "check_outputs"]

Array: TypeAlias = "np.ndarray[Any, Any]"
LeafCall: TypeAlias = Callable[[str, Sequence[Any], str], Sequence[Any]]
Copy: TypeAlias = Callable[[Any, str, str], Any]

# Making the name of an element type takes longer than all else that is asked of an input.
_name_of = lru_cache(maxsize=256)(dtype_of)


@dataclass(frozen=True, slots=True)
class CallEvent:
    """Report that a leaf function was called; `call` names which of its calls it was (`Plan.subgraphs`)."""

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
Record: TypeAlias = "Callable[[Event], None] | None"


class Transfers(Protocol):
    """How one run of a machine's program reaches the other machines; values of one `order` belong together."""

    def send(self, to: str, order: int, values: Sequence[Any]) -> None:
        """Send the values of a transfer, one or none."""
        ...

    def receive(self, from_: str, order: int) -> Sequence[Any]:
        """Wait for the values of a transfer; `RunError` if the machine is gone."""
        ...


class GraphExecutor:
    """Runs a program; leaf functions and copies are done by the functions it is given."""

    def __init__(self, program: DriverProgram, constants: Mapping[str, Array], call_leaf: LeafCall, copy: Copy) -> None:
        self._program = program
        self._constants = constants
        self._call_leaf = call_leaf
        self._only = _only_call(program)
        self._copy = copy
        self._placed: dict[str, Any] = {}  # copies of constants, by their names, which are made at first use

    def run(
        self,
        inputs: Sequence[Any],
        record: Record = None,
        transfers: Transfers | None = None,
        *,
        entry: Driver | None = None,
    ) -> list[Any]:
        """Run the entry on its parameters in order; `record` is told of every leaf call and copy as it happens.

        The program of one machine of several needs `transfers`. Another `entry` is a part of that program.
        """
        if entry is None and self._only is not None:
            function, call = self._only
            return self._leaf(function, inputs, record, call)
        driver = entry or self._program.drivers[self._program.entry]
        return self._drive(driver, inputs, record, transfers)

    def _leaf(self, name: str, inputs: Sequence[Any], record: Record, call: str) -> list[Any]:
        if record is None:
            return list(self._call_leaf(name, inputs, call))
        begin = time.perf_counter_ns()
        results = list(self._call_leaf(name, inputs, call))
        record(CallEvent(name, time.perf_counter_ns() - begin, call))
        return results

    def _drive(
        self, driver: Driver, inputs: Sequence[Any], record: Record, transfers: Transfers | None = None
    ) -> list[Any]:
        values = {name: self._constants[name] for name in driver.constants}
        values.update(zip(driver.params, inputs, strict=True))
        return self._block(driver, values, record, transfers)

    def _block(
        self, block: Block, values: MutableMapping[str, Any], record: Record, transfers: Transfers | None
    ) -> list[Any]:
        """Run the steps of a block on values, to which it adds its own."""
        for step in block.steps:
            arguments = [values[name] if name else None for name in step.inputs]
            results = self._step(step, arguments, values, record, transfers)
            for name, one in zip(step.outputs, results, strict=True):
                if name:
                    values[name] = one
            for name in step.free:
                values.pop(name, None)
        return [values[name] for name in block.results]

    def _step(
        self,
        step: Step,
        arguments: list[Any],
        values: MutableMapping[str, Any],
        record: Record,
        transfers: Transfers | None,
    ) -> Sequence[Any]:
        if step.call is not None:
            call, driver = step.name or step.call, self._program.drivers.get(step.call)
            if driver is None:
                return self._leaf(step.call, arguments, record, call)
            return self._drive(driver, arguments, _inside(call, record))
        if step.order is not None:
            return _transfer(step, arguments, transfers)
        if step.control is not None:
            return run_control(
                step.control, arguments, lambda body, given: self._nested(body, given, values, record, transfers)
            )
        if not step.once:
            return [self._copied(step, arguments[0], record)]
        if step.outputs[0] not in self._placed:
            self._placed[step.outputs[0]] = self._copied(step, arguments[0], record)
        return [self._placed[step.outputs[0]]]

    def _copied(self, step: Step, value: Any, record: Record) -> Any:  # noqa: ANN401
        src, dst = str(step.src), str(step.dst)
        begin = time.perf_counter_ns()
        copied = self._copy(value, src, dst)
        if record is not None:
            taken = time.perf_counter_ns() - begin
            record(CopyEvent(step.inputs[0], src, dst, _nbytes(value), taken))
        return copied

    def _nested(
        self,
        body: Block,
        inputs: Sequence[Any],
        around: MutableMapping[str, Any],
        record: Record,
        transfers: Transfers | None,
    ) -> list[Any]:
        """Run a body of control flow: it sees the values around it, and adds its own only for itself."""
        own = dict(zip(body.params, inputs, strict=True))
        return self._block(body, ChainMap(own, around), record, transfers)


def _only_call(program: DriverProgram) -> tuple[str, str] | None:
    """Return the leaf function that is all there is to run, and the name of its call; None where there is more."""
    driver = program.drivers.get(program.entry)
    if driver is None:
        return program.entry, program.entry
    only = driver.steps[0] if len(driver.steps) == 1 else None
    if only is None or only.call is None or only.call in program.drivers:
        return None
    is_all = (only.inputs, only.outputs) == (driver.params, driver.results)
    return (only.call, only.name or only.call) if is_all else None


def _inside(call: str, record: Record) -> Record:
    """Return what tells of the calls that a driver makes, behind the name of the call of the driver."""
    if record is None:
        return None

    def tell(event: Event) -> None:
        record(replace(event, call=f"{call}/{event.call}") if isinstance(event, CallEvent) else event)

    return tell


def _transfer(step: Step, arguments: Sequence[Any], transfers: Transfers | None) -> list[Any]:
    if transfers is None or step.order is None:
        raise RunError("this is the program of one machine, which runs together with those of the others")
    if step.to is not None:
        transfers.send(step.to, step.order, arguments)
        return []
    return list(transfers.receive(str(step.from_), step.order))


def _nbytes(value: object) -> int:
    if isinstance(value, list | tuple):
        return sum(map(_nbytes, value))
    return int(getattr(value, "nbytes", 0))


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


def check_outputs(signatures: Sequence[Signature], values: Sequence[object]) -> None:
    """Raise `RunError` for results of other machines that are not what the program says of them."""
    if len(values) != len(signatures):
        raise RunError(f"{len(values)} results came back, and the program has {len(signatures)}")
    sizes: dict[str, tuple[int, str]] = {}
    problems: list[str] = []
    for signature, value in zip(signatures, values, strict=True):
        if signature.dtype is None:
            continue
        if type(value) is not np.ndarray:
            problems.append(f"result {signature.name!r} is of type {type(value).__name__}, not {signature}")
        else:
            problems += [problem.replace("input", "result", 1) for problem in _misfits(signature, value, sizes)]
    raise_all(RunError, problems)


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
    dtype = _name_of(value.dtype)
    if dtype != signature.dtype:
        return [f"input {name!r} is {dtype}, not {signature.dtype}; convert it with .astype({signature.dtype!r})"]
    if signature.shape is None or value.shape == signature.shape:
        return []
    if len(value.shape) != len(signature.shape):
        return [f"input {name!r} has shape {value.shape}, not {_shown(signature.shape)}"]
    for size, dim in zip(value.shape, signature.shape, strict=True):
        if size == dim:
            continue
        if isinstance(dim, int):
            return [f"input {name!r} has shape {value.shape}, not {_shown(signature.shape)}"]
        if isinstance(dim, str):
            known, first = sizes.setdefault(dim, (size, name))
            if known != size:
                return [f"input {name!r} has {size} for {dim!r}, but input {first!r} has {known}"]
    return []


def _shown(shape: Sequence[int | str | None]) -> str:
    return "(" + ", ".join("?" if dim is None else str(dim) for dim in shape) + ")"
