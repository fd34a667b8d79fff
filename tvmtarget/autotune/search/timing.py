"""Runs of whole programs on made-up inputs: one by one with what their functions take, or several by turns."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.building.executable import Executable
from tvmtarget.executors.protocol import CallEvent, Event
from tvmtarget.ir.types import TensorType
from tvmtarget.partition.plan import Plan

__all__ = ["Inputs", "made_up_inputs", "open_sizes", "run_alone", "run_by_turns", "seconds_of_turns"]

Inputs: TypeAlias = "Mapping[str, np.ndarray[Any, Any]]"

OPEN_SIZE = 1  # of a dimension without a number

ROUNDS = 9  # by turns
SLOW = 0.5  # seconds a run from which on fewer rounds do
SLOW_ROUNDS = 5
TURN = 0.005  # seconds of a turn, if that is not more runs in a row than this
MAX_IN_A_ROW = 50

LEAST_RUNS = 5  # alone, of which the fastest counts
MAX_RUNS = 100
SHORT, LONG = 0.05, 2.0  # seconds after which a program is not run more often, and after which not even that often


def open_sizes(plan: Plan) -> dict[str, int]:
    """Return the sizes of the made-up inputs in dimensions without a number, by the names of these."""
    types = [param.type for param in plan.module.main.params]
    shapes = [type_.shape or () for type_ in types if isinstance(type_, TensorType)]
    return {dim: OPEN_SIZE for shape in shapes for dim in shape if isinstance(dim, str)}


def made_up_inputs(plan: Plan) -> Inputs | None:
    """Return inputs for a program, normal or small whole numbers; None if it takes something that is no tensor."""
    random = np.random.default_rng(0)
    inputs: dict[str, np.ndarray[Any, Any]] = {}
    for param in plan.module.main.params:
        if not isinstance(param.type, TensorType) or param.type.shape is None or param.type.dtype == "string":
            return None
        shape = [dim if isinstance(dim, int) else OPEN_SIZE for dim in param.type.shape]
        if param.type.dtype.startswith(("int", "uint", "bool")):
            inputs[param.name] = random.integers(0, 2, shape).astype(param.type.dtype)
        else:
            inputs[param.name] = random.standard_normal(shape).astype(param.type.dtype)
    return inputs


def run_alone(program: Executable, inputs: Inputs) -> tuple[int, dict[str, int]]:
    """Run a few times; return picoseconds of the whole and of each function, of each the fastest."""
    program.run(inputs)
    cost, functions = 0, dict[str, int]()
    started = time.monotonic()
    for number in range(MAX_RUNS):
        if number and time.monotonic() - started > (SHORT if number >= LEAST_RUNS else LONG):
            break
        events: list[Event] = []
        begin = time.perf_counter_ns()
        program.run(inputs, record=events.append)
        taken = 1000 * (time.perf_counter_ns() - begin)
        cost = min(cost or taken, taken)
        for event in events:
            if isinstance(event, CallEvent):
                before = functions.get(event.function, 1000 * event.duration_ns)
                functions[event.function] = min(before, 1000 * event.duration_ns)
    return cost, functions


def run_by_turns(programs: Sequence[Executable], inputs: Inputs, rounds: int = ROUNDS) -> list[list[int]]:
    """Return picoseconds of each program in each round, the least of a few runs.

    There are two in a row at least, as idle threads of one program spin into the next, and more of short ones.
    """
    first = [_timed(program, inputs) for program in programs]
    turns = rounds if max(first) < SLOW * 1e12 else min(rounds, SLOW_ROUNDS)
    counts = [max(2, min(MAX_IN_A_ROW, int(TURN * 1e12 / max(1, taken)))) for taken in first]
    costs: list[list[int]] = [[] for _ in programs]
    for _ in range(turns):
        for each, program, count in zip(costs, programs, counts, strict=True):
            each.append(min(_timed(program, inputs) for _ in range(count)))
    return costs


def seconds_of_turns(costs: Sequence[float], rounds: int = ROUNDS) -> float:
    """Return how long programs run by turns, by picoseconds of each, with a run before and two to compare results."""
    turns = rounds if max(costs, default=0) < SLOW * 1e12 else min(rounds, SLOW_ROUNDS)
    return sum(3 * cost / 1e12 + turns * max(TURN, 2 * cost / 1e12) for cost in costs)


def _timed(program: Executable, inputs: Inputs) -> int:
    begin = time.perf_counter_ns()
    program.run(inputs)
    return 1000 * (time.perf_counter_ns() - begin)
