"""Bytes that a plan needs in each memory: weights, and values that are there at the same time.

A plan is run step by step, as its drivers run it. A value is in the memory of the site that computes it from then on
until the last operation there has read it, or until it was copied to where it is read; what a function reads and
returns stays until its call ends, what an iteration of a loop gets until it ends, and a copy until the last call that
reads it ends. A result that a loop stacks is there while it runs. Copies in other memories on the way count there. The
driver's memory has the inputs of the program from the beginning, and its results until the end. Values inside a
function count too, in the order of its operations: a code generator that fuses operations needs less, one with scratch
memory of its own more.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Literal, TypeAlias

import numpy as np

from tvmtarget.errors import InfeasibleError
from tvmtarget.human_units import bytes_text, counted
from tvmtarget.ir.control_flow import body_arguments, control_flow_form
from tvmtarget.ir.function import COPY, Call, Constant, Function, Value
from tvmtarget.ir.types import TensorType, Type
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.dataflow import Ints
from tvmtarget.partition.decomposition import Decomposition
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.partition.placement.memory_capacity import capacities
from tvmtarget.target.topology import Topology

__all__ = [
    "MemoryUse",
    "bytes_around",
    "check_signature",
    "fits_memories",
    "full_memories",
    "memory_uses",
    "too_large_ops",
]

_MOST_NAMED = 4


@dataclass(frozen=True)
class MemoryUse:
    """What a plan needs of one memory that has a limit.

    Attributes:
        memory: the memory domain.
        limit: bytes that it holds.
        weights: bytes of the constants that operations there read, functions return, or drivers pass, each once.
        values: the most bytes of values that are there at the same time.
        op: the operation that runs then, in this memory or another one; '' if none does.
        copied: the value that is copied then; '' if none is.
        live: these values, with their bytes, the largest first.
        crowded: operations there, by number, that run while more is there than the memory holds, or made values that
            are there at such times while others run or copy.
        passing: operations elsewhere, by number, between which values are copied through the memory at such times.
        unknown: values of unknown size, which are not counted.
        during: the most bytes of values that are there during each call of a function there, by the path of the call.
        passed: bytes of weights that only drivers need there, which pass them to functions.
    """

    memory: str
    limit: int
    weights: int
    values: int
    op: str
    copied: str = ""
    live: tuple[tuple[str, int], ...] = ()
    crowded: tuple[int, ...] = ()
    passing: tuple[int, ...] = ()
    unknown: tuple[str, ...] = ()
    during: tuple[tuple[str, int], ...] = ()
    passed: int = 0

    @property
    def missing(self) -> int:
        """Bytes by which the memory is too small; 0 if it is not."""
        return max(0, self.weights + self.values - self.limit)

    def __str__(self) -> str:
        unknown = f"{counted(len(self.unknown), 'value')} of unknown size"
        values = f"at most {bytes_text(self.values)} of values at a time"
        # With all of unknown size, a peak of 0 bytes would look like one that is known.
        used = unknown if self.unknown and not self.values else f"{values}, and {unknown}" if self.unknown else values
        return f"memory {self.memory!r} of {bytes_text(self.limit)}: {bytes_text(self.weights)} of weights, {used}"

    def to_json(self) -> dict[str, object]:
        """Return bytes, and what runs or is copied at the peak, as data."""
        facts: dict[str, object] = {"memory": self.memory, "limit": self.limit, "weights": self.weights}
        copied = {"copied": self.copied} if self.copied else {}
        return facts | {"values": self.values, "op": self.op, **copied, "unknown": len(self.unknown)}

    def problem(self) -> str:
        """Return a message that the memory is too small, and for what."""
        copying = f"while {self.copied!r} is copied" if self.copied else "before any op"
        then, listed = f"when {self.op!r} runs" if self.op else copying, _listed(self.live)
        kept = f", keep {bytes_text(self.passed)} of weights in functions (`constants='bind'`)" if self.passed else ""
        return (
            f"memory {self.memory!r} holds {bytes_text(self.limit)}, but in the best plan found ops need "
            f"{bytes_text(self.weights + self.values)}, {bytes_text(self.missing)} too many: "
            f"{bytes_text(self.weights)} of weights, and {bytes_text(self.values)} of values {then}: {listed}; "
            f"allow more ops elsewhere{kept}, or state a larger memory"
        )


def memory_uses(plan: Decomposition) -> tuple[MemoryUse, ...]:
    """Return what a plan needs of the memories that have a limit.

    Args:
        plan: the plan; with costs, their `symbolic_hints` give sizes to symbolic dimensions.

    Returns:
        An entry for each memory with a limit that something is in: those first that leaves work in, in this order.
    """
    limits = _limits(plan.topology, plan.estimates)
    if not limits:
        return ()
    run = _Run(plan)
    return tuple(run.use(domain, limits[domain]) for domain in run.domains() if domain in limits)


def full_memories(plan: Decomposition) -> tuple[MemoryUse, ...]:
    """Return what a plan needs of the memories that are too small for it.

    Args:
        plan: the plan.

    Returns:
        The entries of `memory_uses` that miss bytes.
    """
    return tuple(use for use in memory_uses(plan) if use.missing)


def fits_memories(plan: Decomposition) -> bool:
    """Return whether the memories hold what a plan needs of them.

    Args:
        plan: the plan.

    Returns:
        False if one is too small.
    """
    return not full_memories(plan)


def bytes_around(program: FlatProgram, estimates: Estimates | None, index: int) -> int:
    """Return the bytes of the values that an operation reads and makes.

    Args:
        program: the flat program.
        estimates: the costs, which may state sizes of symbolic dimensions.
        index: the operation, by number.

    Returns:
        Their sum, without constants and values of unknown size.
    """
    call = program.body[index]
    names = {*call.inputs, *(value.name for value in call.outputs)} - program.constants.keys() - {""}
    return sum(_nbytes(program.types.get(name), estimates) or 0 for name in names)


def too_large_ops(program: FlatProgram, estimates: Estimates | None) -> dict[tuple[int, str], str]:
    """Return the operations that are too large for memories even if they run alone.

    Operands and results are there at the same time, beside the weights.

    Args:
        program: the flat program.
        estimates: the costs, which may state capacities, and sizes of symbolic dimensions.

    Returns:
        Reasons by operation number and path of the leaf.
    """
    limits = _limits(program.topology, estimates)
    leaves = [(leaf.path, leaf.domain) for leaf in program.topology.leaves() if leaf.domain in limits]
    if not leaves:
        return {}
    typed = program.wiring.type_numbers
    of_type = [_nbytes(type_, estimates) or 0 for type_ in typed.types]
    sizes = {name: of_type[number] for name, number in typed.numbers.items()}
    whole = sum(sizes.values()) + sum(constant.data.nbytes for constant in program.constants.values())
    # Every plan checks this, also those that answer questions; mostly each memory holds the whole program.
    if whole <= min(limits[domain] for _, domain in leaves):
        return {}
    found = {}
    for index, call in enumerate(program.body):
        if call.regions:
            continue
        values = weights = 0
        for name in {*call.inputs, *(value.name for value in call.outputs)} - {""}:
            if name in program.constants:
                weights += program.constants[name].data.nbytes
                continue
            values += sizes.get(name, 0)
        for path, domain in leaves:
            limit = limits[domain]
            # Weights that alone are too large have messages of their own (`memory_capacity.py`).
            if values > limit or (values and weights <= limit < values + weights):
                beside = f", beside {bytes_text(weights)} of weights" if values <= limit else ""
                found[index, path] = (
                    f"memory {domain!r} of {bytes_text(limit)} is too small for its operands and results of "
                    f"{bytes_text(values)}{beside}"
                )
    return found


def check_signature(plan: Decomposition) -> None:
    """Check that the memory of the driver holds the inputs and results of the program.

    Args:
        plan: a plan.

    Raises:
        InfeasibleError: if it does not.
    """
    program, estimates, home = plan.program, plan.estimates, plan.topology.home("")
    limit = _limits(plan.topology, estimates).get(home)
    names = dict.fromkeys((*(param.name for param in program.function.params), *program.function.results))
    sizes = {name: _nbytes(program.types.get(name), estimates) or 0 for name in names if name not in program.constants}
    needed, listed = sum(sizes.values()), _listed(sorted(sizes.items(), key=lambda one: -one[1]))
    if limit is not None and needed > limit:
        raise InfeasibleError(
            f"memory {home!r} holds {bytes_text(limit)}, but the inputs and results of the program take "
            f"{bytes_text(needed)} there, {bytes_text(needed - limit)} too many: {listed}; state a larger memory"
        )


def _limits(topology: Topology, estimates: Estimates | None) -> Mapping[str, int]:
    """Return the bytes that memories hold, by domain; the costs may state others than the target."""
    return capacities(topology, {} if estimates is None else estimates.capacities())


def _listed(sizes: Iterable[tuple[str, int]]) -> str:
    """Name the first values, with their bytes."""
    return ", ".join(f"{name!r} ({bytes_text(size)})" for name, size in islice(sizes, _MOST_NAMED))


def _nbytes(type_: Type | None, estimates: Estimates | None) -> int | None:
    """Return the bytes of a value; 0 of one that is no tensor, None if unknown."""
    if not isinstance(type_, TensorType):
        return None if type_ is None else 0
    return type_.nbytes if estimates is None else estimates.nbytes(type_)


@dataclass(slots=True)
class _Buffer:
    """A value in a memory, with the first and the last step of a run that need it there; `size` is None if unknown.

    `op` is the operation that makes it, by number, if the function of a leaf runs that operation.
    """

    name: str
    size: int | None
    begin: int
    end: int
    op: int | None = None


# What a name stands for in a function; None for a constant of the function, or an operand that is absent.
_Held: TypeAlias = "_Buffer | Constant | None"


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of a run: an operation, by number, or the copy of a value; for neither, the start of the program.

    `call` is the path of the call in which a leaf runs the operation; it is empty for what a driver runs.
    """

    domain: str
    op: int | None = None
    call: str = ""
    copied: str = ""


class _Run:
    """One run of a partitioned module, step by step as its drivers and leaves make it.

    Each nested body runs once, before its owner, whether the function of a leaf or a driver runs it.
    """

    def __init__(self, plan: Decomposition) -> None:
        self.plan, self.program = plan, plan.program
        self._functions = {function.name: function for function in plan.outlined.functions}
        self._subgraphs, self._driven = iter(plan.subgraphs), iter(plan.outlined.driven)
        home = plan.topology.home("")
        self.steps = [_Step(home)]
        # By memory: what is there at some time, and operations by number of the step.
        self.buffers: dict[str, list[_Buffer]] = {}
        self.ops: dict[str, dict[int, int]] = {}
        self.returned: dict[str, set[str]] = {}  # names of constants that functions of leaves and bodies return there
        self.passed: dict[str, dict[str, Constant]] = {}  # constants that drivers read or copy there, by name
        self.lifted: set[str] = set()  # names of those that are operands of functions
        main = self._functions[plan.program.function.name]
        arguments = [self._buffer(param.name, home, self._size(param), 0) for param in main.params]
        results = self._call(main, arguments)
        self._use((*arguments, *results))

    def _size(self, value: Value) -> int | None:
        return _nbytes(value.type, self.plan.estimates)

    def _buffer(self, name: str, domain: str, size: int | None, begin: int, op: int | None = None) -> _Buffer:
        buffer = _Buffer(name, size, begin, begin, op)
        self.buffers.setdefault(domain, []).append(buffer)
        return buffer

    def _use(self, buffers: Iterable[_Held]) -> None:
        """Have values in their memories until the last step so far."""
        last = len(self.steps) - 1
        for buffer in buffers:
            if isinstance(buffer, _Buffer):
                buffer.end = last

    def _return(self, domain: str, names: Iterable[str]) -> None:
        if found := self.program.constants.keys() & names:
            self.returned.setdefault(domain, set()).update(found)

    def _pass(self, domain: str, constant: Constant) -> Constant:
        self.passed.setdefault(domain, {})[constant.name] = constant
        return constant

    def _call(self, function: Function, arguments: Sequence[_Held]) -> list[_Held]:
        """Run a function: arguments and results are there until it ends."""
        if function.attr("role") == "driver":
            held = dict(zip((param.name for param in function.params), arguments, strict=True))
            site = function.site_constraint
            home = self.plan.topology.home("" if site is None else site.path or "")
            held |= {constant.name: self._pass(home, constant) for constant in function.constants}
            self._drive(function.body, home, held)
            names = function.results
        else:
            record = next(self._subgraphs)
            self.lifted.update(constant.name for constant in arguments if isinstance(constant, Constant))
            held, domain = dict(zip(record.inputs, arguments, strict=True)), self.plan.topology[record.site].domain
            self._compute(record.calls, domain, record.call, held)
            names = record.outputs
            self._return(domain, names)
        results = [held.get(name) for name in names]
        self._use((*arguments, *results))
        return results

    def _drive(self, body: Iterable[Call], home: str, held: dict[str, _Held]) -> None:
        """Run the calls of a driver, or of a body that it runs; `held` are the values by their names there."""
        for call in body:
            if call.op == COPY:
                source, copy, dst = held.get(call.inputs[0]), call.outputs[0].name, str(call.attr("dst"))
                if isinstance(source, Constant):
                    held[copy] = self._pass(dst, source)
                elif source is not None:
                    self.steps.append(_Step(dst, copied=source.name))
                    self._use([source])
                    held[copy] = self._buffer(source.name, dst, source.size, len(self.steps) - 1)
            elif call.callee is not None:
                results = self._call(self._functions[call.callee], [held.get(name) for name in call.inputs])
                held |= zip((output.name for output in call.outputs), results, strict=True)
            else:
                op, first = next(self._driven).call, len(self.steps)
                for _, region in call.regions:
                    params = self._enter(region.params, home, held)
                    self._drive(region.body, home, held)
                    self._use((*params, *map(held.get, region.results)))
                self._finish(op, home, "", call, held, first)

    def _compute(self, calls: Iterable[int], domain: str, path: str, held: dict[str, _Held]) -> None:
        """Run operations of a leaf's function, or of a body that it runs; `held` are the values by name."""
        for op in calls:
            first = len(self.steps)
            for scope in self.program.bodies.get(op, ()):
                params = self._enter(scope.function.params, domain, held)
                self._compute(scope.calls, domain, path, held)
                self._use((*params, *map(held.get, scope.function.results)))
                self._return(domain, scope.function.results)
            self._finish(op, domain, path, self.program.body[op], held, first)

    def _enter(self, params: Iterable[Value], domain: str, held: dict[str, _Held]) -> list[_Buffer]:
        """Return the parameters of a body from its first step on, in a memory if they are in no other one."""
        first = len(self.steps)
        found = [self._buffer(param.name, param.scope or domain, self._size(param), first) for param in params]
        held |= {buffer.name: buffer for buffer in found}
        return found

    def _finish(self, op: int, domain: str, path: str, call: Call, held: dict[str, _Held], first: int) -> None:
        """Run an operation after its bodies, which begin with the step `first`.

        What bodies read from around them is there until the last one ends, and a result that loops stack from the first
        one on.
        """
        number = len(self.steps)
        self.steps.append(_Step(domain, op, path))
        self.ops.setdefault(domain, {})[number] = op
        self._use(map(held.get, call.uses() if call.regions else call.inputs))
        for output in filter(attrgetter("name"), call.outputs):
            memory, maker = (domain, op) if path else (output.scope or domain, None)
            held[output.name] = self._buffer(output.name, memory, self._size(output), number, maker)
        form = control_flow_form(call) if call.regions else None
        if form is not None and form.repeats:
            carried = {argument.output for argument in body_arguments(call)}
            for place, output in enumerate(call.outputs):
                buffer = held.get(output.name)
                if place not in carried and isinstance(buffer, _Buffer):
                    buffer.begin = first

    def domains(self) -> dict[str, None]:
        """Return the memories that something is in, those first that leaves work in, in this order."""
        working = (step.domain for step in self.steps if step.call)
        return dict.fromkeys((*working, *self.buffers, *self.returned, *self.passed))

    def use(self, domain: str, limit: int) -> MemoryUse:
        """Return what is needed of one memory."""
        program, here, buffers = self.program, self.ops.get(domain, {}), self.buffers.get(domain, ())
        known = [buffer for buffer in buffers if buffer.size]
        read = {name for op in here.values() for name in program.body[op].inputs} & program.constants.keys()
        read |= self.returned.get(domain, set())
        passed = {name: one.data.nbytes for name, one in self.passed.get(domain, {}).items() if name not in read}
        weights = sum(program.constants[name].data.nbytes for name in read) + sum(passed.values())
        # A sum grows only where something begins. Operations there come first, which messages name of equal sums.
        elsewhere = sorted({0, *(buffer.begin for buffer in known)} - here.keys())
        numbers = [*here, *elsewhere]
        loads = _sums(known, numbers)
        peak = max(range(len(numbers)), key=loads.__getitem__)
        at = self.steps[numbers[peak]]
        live = [(one.name, one.size or 0) for one in known if one.begin <= numbers[peak] <= one.end]
        during: dict[str, int] = {}
        for number, load in zip(here, loads, strict=False):
            if call := self.steps[number].call:
                during[call] = max(load, during.get(call, 0))
        full = sorted(number for number, load in zip(numbers, loads, strict=True) if weights + load > limit)
        running = [here[number] for number in full if self.steps[number].call and number in here]
        waiting = [number for number in full if number not in here]
        made = [one for one in known if bisect_left(waiting, one.begin) < bisect_right(waiting, one.end)]
        return MemoryUse(
            memory=domain,
            limit=limit,
            weights=weights,
            values=loads[peak],
            op="" if at.op is None else program.body[at.op].source,
            copied=at.copied,
            live=tuple(sorted(live, key=lambda one: -one[1])),
            crowded=tuple(dict.fromkeys((*running, *(one.op for one in made if one.op is not None)))),
            passing=self._elsewhere(here, (one.name for one in made if one.op is None)),
            unknown=tuple(dict.fromkeys(one.name for one in buffers if one.size is None)),
            during=tuple(during.items()),
            passed=sum(nbytes for name, nbytes in passed.items() if name in self.lifted),
        )

    def _elsewhere(self, here: Mapping[int, int], names: Iterable[str]) -> tuple[int, ...]:
        """Return the operations that make or read some values, without those that run in a memory."""
        program = self.program
        found = (
            index
            for name in dict.fromkeys(names)
            for index in (program.producer.get(name), *program.consumers.get(name, ()))
            if index is not None and index not in program.bodies
        )
        inside = {*here.values()}
        return tuple(index for index in dict.fromkeys(found) if index not in inside)


def _sums(buffers: Sequence[_Buffer], steps: Sequence[int]) -> list[int]:
    """Return the bytes of the values that are there in some steps."""
    sizes = np.array([one.size for one in buffers], dtype=np.int64)

    def sums(ends: Sequence[int], side: Literal["left", "right"]) -> Ints:
        """Return the bytes of the values whose end is before a step, or at it."""
        order = np.argsort(np.array(ends, dtype=np.int64))
        total = np.concatenate([[0], np.cumsum(sizes[order])])
        return np.asarray(total[np.searchsorted(np.array(ends, dtype=np.int64)[order], steps, side)])

    begun, ended = sums([one.begin for one in buffers], "right"), sums([one.end for one in buffers], "left")
    return [int(load) for load in (begun - ended).tolist()]
