"""Timing of whole programs on random inputs: one program with the times of its functions, or several by turns."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from statistics import median, quantiles
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.building.executable import Executable
from tvmtarget.executors.protocol import CallEvent, Event
from tvmtarget.ir.types import TensorType, numpy_dtype
from tvmtarget.partition.plan import Plan

__all__ = [
    "Inputs",
    "error_of_median",
    "random_inputs",
    "run_alone",
    "run_by_turns",
    "seconds_of_turns",
    "symbolic_sizes",
]

Inputs: TypeAlias = "Mapping[str, np.ndarray[Any, Any]]"

SYMBOLIC_SIZE = 1  # of a symbolic dimension

ROUNDS = 9  # of turns
MORE = 3  # times as many turns at most, while other work on the machine makes ratios vary by more than:
STANDARD_ERROR = 0.01
SLOW = 0.5  # seconds; programs that take longer run fewer rounds
SLOW_ROUNDS = 5
TURN = 0.005  # seconds of a turn, with at most so many runs in a row:
MAX_IN_A_ROW = 50

LEAST_RUNS = 10  # of a program on its own, of which the fastest counts
MAX_RUNS = 100
SHORT, LONG = 0.1, 2.0  # seconds after which runs end once there are LEAST_RUNS, and after which they end anyway


def symbolic_sizes(plan: Plan) -> dict[str, int]:
    """Return the sizes that random inputs have in symbolic dimensions.

    Args:
        plan: the plan of the program.

    Returns:
        Sizes by the names of dimensions.
    """
    types = [param.type for param in plan.module.main.params]
    shapes = [type_.shape or () for type_ in types if isinstance(type_, TensorType)]
    return {dim: SYMBOLIC_SIZE for shape in shapes for dim in shape if isinstance(dim, str)}


def random_inputs(plan: Plan) -> Inputs | None:
    """Return random inputs for a program: normally distributed, or 0 and 1 for integers.

    Args:
        plan: the plan of the program.

    Returns:
        Arrays by the names of parameters; None if a parameter is no tensor of numbers.
    """
    random = np.random.default_rng(0)
    inputs: dict[str, np.ndarray[Any, Any]] = {}
    for param in plan.module.main.params:
        if not isinstance(param.type, TensorType) or param.type.shape is None or param.type.dtype == "string":
            return None
        shape = [dim if isinstance(dim, int) else SYMBOLIC_SIZE for dim in param.type.shape]
        is_integer = param.type.dtype.startswith(("int", "uint", "bool"))
        values = random.integers(0, 2, shape) if is_integer else random.standard_normal(shape)
        inputs[param.name] = np.asarray(values).astype(numpy_dtype(param.type.dtype))
    return inputs


def run_alone(program: Executable, inputs: Inputs) -> tuple[int, dict[str, int]]:
    """Run a program a few times.

    Args:
        program: the program.
        inputs: its inputs.

    Returns:
        Picoseconds of the fastest run, and of the fastest run of each function by name.
    """
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
    """Run several programs by turns, so that other load slows all of them down equally.

    Each turn is the fastest of a few runs in a row: at least two, because idle threads of one program spin into the
    next, and more if they are short.

    Args:
        programs: the programs.
        inputs: their inputs.
        rounds: the number of turns; slow programs get fewer.

    Returns:
        Picoseconds of each program in each round.
    """
    first = [_timed(program, inputs) for program in programs]
    least, most = _turns(max(first), rounds)
    counts = [max(2, min(MAX_IN_A_ROW, int(TURN * 1e12 / max(1, taken)))) for taken in first]
    costs: list[list[int]] = [[] for _ in programs]
    for turn in range(most):
        if turn >= least and all(_is_settled(each, costs[0]) for each in costs[1:]):
            break
        for each, program, count in zip(costs, programs, counts, strict=True):
            each.append(min(_timed(program, inputs) for _ in range(count)))
    return costs


def seconds_of_turns(costs: Sequence[float], rounds: int = ROUNDS) -> float:
    """Return how long `run_by_turns` takes at most, with a run before and two comparisons.

    Args:
        costs: picoseconds of a run of each program.
        rounds: the least number of turns.

    Returns:
        Seconds.
    """
    _, most = _turns(max(costs, default=0), rounds)
    return sum(3 * cost / 1e12 + most * max(TURN, 2 * cost / 1e12) for cost in costs)


def error_of_median(values: Sequence[float]) -> float:
    """Return the standard error of the median of measurements.

    Args:
        values: at least two measurements.

    Returns:
        The error in their unit; a few outliers do not change it.
    """
    low, _, high = quantiles(values, n=4)
    # Of a normal distribution, the quartiles are 1.35 deviations apart, and a median is 1.25 as wide as a mean.
    return 1.25 * (high - low) / 1.35 / math.sqrt(len(values))


def _turns(slowest: float, rounds: int) -> tuple[int, int]:
    """Return the least and the largest number of turns of programs, of which the slowest takes so many picoseconds."""
    return (rounds, MORE * rounds) if slowest < SLOW * 1e12 else (min(rounds, SLOW_ROUNDS),) * 2


def _is_settled(costs: Sequence[int], beside: Sequence[int]) -> bool:
    """Return whether the ratio of two programs is known: the standard error of its median over the turns is small."""
    ratios = [cost / max(1, other) for cost, other in zip(costs, beside, strict=True)]
    return error_of_median(ratios) <= STANDARD_ERROR * median(ratios)


def _timed(program: Executable, inputs: Inputs) -> int:
    begin = time.perf_counter_ns()
    program.run(inputs)
    return 1000 * (time.perf_counter_ns() - begin)
