"""Write the drivers of a program as functions of TVM's virtual machine (VM).

The instructions of the VM are calls, conditional jumps and jumps, so that a loop of the driver is a loop of the VM.
Functions that loops need, such as counting, slicing and stacking, are in `vm_loops.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from tvmtarget.backends.protocol import Array
from tvmtarget.backends.tvm.vm_linking import Label, Operand, Register, VmFunction
from tvmtarget.backends.tvm.vm_loops import LoopFunction
from tvmtarget.executors.driver_program import Block, Control, Driver, DriverProgram, Signature, Step
from tvmtarget.executors.memory_devices import CPU, Device, memory_devices
from tvmtarget.ir.types import dtype_of, numpy_dtype

__all__ = ["LeafEntry", "ValueKind", "VmDrivers", "Weight", "write_drivers"]


@dataclass(frozen=True, slots=True)
class ValueKind:
    """Element type and rank of a value of the driver, None if unknown, and the device that holds it."""

    dtype: str | None = None
    rank: int | None = None
    device: Device = None

    @classmethod
    def of(cls, signature: Signature, device: Device = None) -> ValueKind:
        """Return what a signature states of a value.

        Args:
            signature: the signature of a parameter or result.
            device: the device that holds the value.

        Returns:
            The element type, the rank and the device.
        """
        return cls(signature.dtype, None if signature.shape is None else len(signature.shape), device)


@dataclass(frozen=True, slots=True)
class Weight:
    """A constant in the memory of a device, copied there once for all runs."""

    array: Array = field(repr=False)
    device: Device


@dataclass(frozen=True, slots=True)
class LeafEntry:
    """How drivers call a leaf function in the executable.

    Attributes:
        name: its name in the executable.
        results: kinds of its results.
        is_tuple: whether it returns a tuple of its results, not the only one.
        never_empty: positions of the parameters that must have elements.
        device: the device that it runs on.
        weights: constants that it takes after its parameters.
    """

    name: str
    results: tuple[ValueKind, ...]
    is_tuple: bool = False
    never_empty: frozenset[int] = frozenset()
    device: Device = None
    weights: tuple[Weight, ...] = ()


@dataclass
class VmDrivers:
    """The functions of the drivers.

    Attributes:
        functions: the functions, callees first; the last one is `main`. It takes the inputs of the program, and the
            tuple that the function `weights` returns if there are weights.
        loop_functions: the functions that they call for their loops, by name.
        weights: the constants on devices.
        problems: what the VM cannot do, with the path of the driver.
    """

    functions: list[VmFunction] = field(default_factory=list)
    loop_functions: dict[str, LoopFunction] = field(default_factory=dict)
    weights: list[Weight] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def write_drivers(
    program: DriverProgram,
    constants: Mapping[str, Array],
    leaves: Mapping[str, LeafEntry],
) -> VmDrivers:
    """Write the drivers of a program; `main` takes its inputs, and returns its results.

    Args:
        program: the program.
        constants: the constants that drivers read, by name.
        leaves: the leaf functions by name.

    Returns:
        The functions, or what the VM cannot do.
    """
    writer = _ProgramWriter(program, constants, leaves, VmDrivers())
    inputs = [ValueKind.of(signature) for signature in program.inputs]
    driver = program.drivers.get(program.entry)
    if driver is None:  # a program on one leaf
        params = tuple(signature.name for signature in program.inputs)
        results = tuple(signature.name for signature in program.outputs)
        step = Step(call=program.entry, inputs=params, outputs=results)
        driver = Driver(path="", params=params, results=results, steps=(step,))
    writer.driver(driver, "main", inputs, is_home=True)
    if writer.written.weights:
        function = VmFunction("weights", [])
        function.finish([_placed(function, one.array, one.device) for one in writer.written.weights], is_tuple=True)
        writer.written.functions.insert(0, function)
    writer.written.problems[:] = dict.fromkeys(writer.written.problems)
    return writer.written


class _ProgramWriter:
    """Writes each driver once."""

    def __init__(
        self,
        program: DriverProgram,
        constants: Mapping[str, Array],
        leaves: Mapping[str, LeafEntry],
        written: VmDrivers,
    ) -> None:
        self.program = program
        self.constants = constants
        self.leaves = leaves
        self.devices = memory_devices(program, {name: leaf.device for name, leaf in leaves.items()})
        self.written = written
        self.weights: dict[tuple[int, Device], int] = {}
        self.results: dict[str, tuple[ValueKind, ...]] = {}
        # Of all drivers or of none, as it has to be known before they are written.
        copies = (step for driver in program.drivers.values() for step in driver.walk() if step.once)
        on_devices = any(self.devices.get(str(step.dst)) is not None for step in copies)
        self.has_weights = on_devices or any(leaf.weights for leaf in leaves.values())

    def driver(
        self, driver: Driver, name: str, inputs: Sequence[ValueKind], *, is_home: bool = False
    ) -> tuple[ValueKind, ...]:
        """Write a driver, unless it is written; return the kinds of its results.

        Args:
            driver: the driver.
            name: its name in the executable.
            inputs: kinds of its parameters.
            is_home: whether its results leave the executable, so that they are copied into this process's memory.
        """
        if name in self.results:
            return self.results[name]
        params = [*driver.params, *["weights"] * self.has_weights]
        function = VmFunction(name, params)
        values: dict[str, Operand] = {one: _constant(function, self.constants[one]) for one in driver.constants}
        values |= zip(driver.params, function.arguments(), strict=False)
        kinds = {one: _kind_of(self.constants[one]) for one in driver.constants}
        kinds |= zip(driver.params, inputs, strict=True)
        weights = function.arguments()[-1] if self.has_weights else None
        block = _BlockWriter(self, function, driver.path, values, kinds, weights)
        block.steps(driver.steps)
        results = [block.on(one, None) if is_home else block.register(one) for one in driver.results]
        function.finish(results, is_tuple=len(results) != 1)
        self.results[name] = tuple(block.kinds[one] for one in driver.results)
        self.written.functions.append(function)
        return self.results[name]

    def loop_function(self, function: LoopFunction) -> str:
        """Return the name of a function that a loop calls."""
        self.written.loop_functions[function.name] = function
        return function.name

    def weight(self, weight: Weight) -> int:
        """Return the number of a weight."""
        key = id(weight.array), weight.device
        if key not in self.weights:
            self.weights[key] = len(self.written.weights)
            self.written.weights.append(weight)
        return self.weights[key]


@dataclass
class _BlockWriter:
    """Writes steps that run in order; `values` and `kinds` are those around them too.

    `pinned` are registers that hold a value again in the next iteration of a loop, so that no other value may use them.
    """

    program: _ProgramWriter
    function: VmFunction
    path: str
    values: dict[str, Operand]
    kinds: dict[str, ValueKind]
    weights: Register | None = None
    pinned: frozenset[Register] = frozenset()

    def register(self, name: str) -> Register:
        """Return the register of a value; a constant is written into a new one."""
        value = self.values[name]
        return value if isinstance(value, Register) else self.function.copy(value)

    def on(self, name: str, device: Device) -> Register:
        """Return the register of a value on a device, to which it is copied if it is on another one."""
        kind = self.kinds[name]
        if kind.device == device:
            return self.register(name)
        if kind.dtype is None:
            self._problem(f"value {name!r}, which is no tensor, is read in another memory")
        return _placed(self.function, self.values[name], device)

    def steps(self, steps: Sequence[Step]) -> None:
        """Write steps, and free the values that are not read again."""
        for step in steps:
            self._step(step)
            for name in step.free:
                value = self.values.get(name)
                if isinstance(value, Register):
                    self.function.release(value, is_reused=value not in self.pinned)

    def _step(self, step: Step) -> None:
        if step.call is not None:
            self._call(step, step.call)
        elif step.control is not None:
            getattr(self, f"_{step.control.kind}")(step, step.control)
        elif step.src is not None:
            self._copy(step)
        else:
            self._problem("it transfers values between machines, and a VM runs on one")
            self._define(step, [self.function.register() for _ in step.outputs], [ValueKind()] * len(step.outputs))

    def _call(self, step: Step, called: str) -> None:
        leaf = self.program.leaves.get(called)
        if leaf is None:
            driver = self.program.program.drivers[called]
            kinds = self.program.driver(driver, called, [self.kinds[name] for name in step.inputs])
            operands = [self.values[name] for name in step.inputs]
            operands += [] if self.weights is None else [self.weights]
            self._results(step, self.function.call(called, *operands), kinds, is_tuple=len(kinds) != 1)
            return
        for position in sorted(leaf.never_empty):
            kind = self.kinds[step.inputs[position]]
            if kind.dtype is not None and kind.rank is not None:
                check = self.program.loop_function(LoopFunction("not_empty", kind.dtype, kind.rank))
                self.function.run(check, self.values[step.inputs[position]])
        operands = [self.values[name] for name in step.inputs]
        if leaf.device is not None:  # functions of devices of one kind share a memory, but not a device
            operands = [self.on(name, leaf.device) for name in step.inputs]
        operands += [self._weight(weight) for weight in leaf.weights]
        result = self.function.call(leaf.name, *operands)
        self._results(step, result, leaf.results, is_tuple=leaf.is_tuple)

    def _weight(self, weight: Weight) -> Register:
        return self.function.call("vm.builtin.tuple_getitem", self.weights or 0, self.program.weight(weight))

    def _results(self, step: Step, result: Register, kinds: Sequence[ValueKind], *, is_tuple: bool) -> None:
        """Define the results of a call: one value, or those of a tuple."""
        if not is_tuple:
            self._define(step, [result], kinds)
            return
        fields = [
            self.function.call("vm.builtin.tuple_getitem", result, number) if name else None
            for number, name in enumerate(step.outputs)
        ]
        self.function.release(result)
        self._define(step, fields, kinds)

    def _define(self, step: Step, registers: Sequence[Register | None], kinds: Sequence[ValueKind]) -> None:
        for name, register, kind in zip(step.outputs, registers, kinds, strict=True):
            if name and register is not None:
                self.values[name] = register
                self.kinds[name] = kind

    def _copy(self, step: Step) -> None:
        """Write a copy between memories; CPUs share theirs, and no function changes a value in place."""
        name, device = step.inputs[0], self.program.devices.get(str(step.dst))
        value = self.values[name]
        if step.once and device is not None and not isinstance(value, Register | int | tuple):
            copied = self._weight(Weight(value, device))
        else:
            copied = self.function.copy(value) if self.kinds[name].device == device else self.on(name, device)
        self._define(step, [copied], [replace(self.kinds[name], device=device)])

    def _branch(self, step: Step, control: Control) -> None:
        results = [self.function.register() for _ in step.outputs]
        otherwise, end = Label(), Label()
        self.function.jump_unless(self.scalar(step.inputs[0]), otherwise)
        kinds: list[list[ValueKind]] = []
        for body, after in zip(control.bodies, (end, None), strict=True):
            inner = self._inner(body, [], [])
            found = [inner.kinds[name] for name in body.results]
            # Both branches leave their results in the memory in which the first one does.
            devices = [kind.device for kind in (kinds[0] if kinds else found)]
            for name, device, into in zip(body.results, devices, results, strict=True):
                self.function.copy(inner.on(name, device), into)
            kinds.append(found)
            if after is not None:
                self.function.jump(after)
                self.function.place(otherwise)
        self.function.place(end)
        self._define(step, results, [_either(*both) for both in zip(*kinds, strict=True)])

    # ONNX, Loop: see `control_flow.py`, which the graph executor runs.
    def _loop(self, step: Step, control: Control) -> None:
        count, condition, *carried = step.inputs
        goes_on = self.function.copy(self.scalar(condition) if condition else _TRUE)
        limit = self.scalar(count) if count else None
        ranks = [rank or 0 for rank in control.param_ranks[:2]]

        def enter(number: Register, end: Label) -> list[tuple[Register, ValueKind]]:
            self.function.jump_unless(goes_on, end)
            if limit is not None:
                self._jump_unless_less(number, limit, end)
            given = [self._of_rank(value, rank) for value, rank in zip((number, goes_on), ranks, strict=True)]
            return list(zip(given, [ValueKind("int64", ranks[0]), ValueKind("bool", ranks[1])], strict=True))

        self._repeat(step, control, carried, enter, goes_on)

    # ONNX, Scan (since version 9): operands are states, then values to slice.
    def _scan(self, step: Step, control: Control) -> None:
        count = len(step.inputs) - len(control.cut)
        carried, given = step.inputs[:count], step.inputs[count:]
        cuts = []
        for name, axis in zip(given, control.cut, strict=True):
            kind = self.kinds[name]
            if kind.dtype is None or not kind.rank or kind.device is not None:
                self._problem(f"{control.op!r} slices {name!r}, whose rank is not known, or which is on a device")
                kind = ValueKind("float32", 1)
            cuts.append((str(kind.dtype), kind.rank or 1, axis.axis % (kind.rank or 1), axis.is_reversed))
        operands = [self.values[name] for name in given]
        # The lengths are one symbolic dimension of its parameters, so that the function rejects different ones.
        length = self.function.call(self.program.loop_function(LoopFunction("length", cuts=tuple(cuts))), *operands)
        length = self.function.call("vm.builtin.reshape", length, ())

        def enter(number: Register, end: Label) -> list[tuple[Register, ValueKind]]:
            self._jump_unless_less(number, length, end)
            names = [self.program.loop_function(LoopFunction("slice", *cut)) for cut in cuts]
            slices = [self.function.call(name, value, number) for name, value in zip(names, operands, strict=True)]
            return [(one, ValueKind(dtype, rank - 1)) for one, (dtype, rank, *_) in zip(slices, cuts, strict=True)]

        self._repeat(step, control, carried, enter)

    def _repeat(
        self,
        step: Step,
        control: Control,
        carried: Sequence[str],
        enter: Callable[[Register, Label], list[tuple[Register, ValueKind]]],
        goes_on: Register | None = None,
    ) -> None:
        """Write a loop or a scan.

        Args:
            step: the step.
            control: what it repeats.
            carried: the first values of the states.
            enter: writes what leaves the loop, and returns the parameters of the body that are not states.
            goes_on: register of the condition, of a loop.
        """
        function, body = self.function, control.bodies[0]
        number = function.copy(_ZERO)
        states = [(function.copy(self.values[name]), self.kinds[name]) for name in carried]
        stacks = [
            self._stack(axis.axis, empty, control, is_reversed=axis.is_reversed)
            for axis, empty in zip(control.joined, control.empty, strict=True)
        ]
        again, end = Label(), Label()
        function.place(again)
        given = enter(number, end)
        params = [*states, *given] if goes_on is None else [*given, *states]
        inner = self._inner(body, [register for register, _ in params], [kind for _, kind in params])
        changed = [*([] if goes_on is None else [goes_on]), *(register for register, _ in states)]
        after = body.results[len(changed) - len(states) : len(changed)]
        # A state stays in the memory in which it begins.
        moved = [inner.on(name, kind.device) for name, (_, kind) in zip(after, states, strict=True)]
        if goes_on is not None:
            moved = [inner.scalar(body.results[0]), *moved]
        for stack, name in zip(stacks, body.results[len(changed) :], strict=True):
            stack.push(number, inner.on(name, None))
        self._move(moved, changed)
        function.call(self.program.loop_function(LoopFunction("increment")), number, into=number)
        function.jump(again)
        function.place(end)
        kinds = [_either(kind, inner.kinds[name]) for (_, kind), name in zip(states, after, strict=True)]
        joined = [stack.join(number) for stack in stacks]
        self._define(
            step, [*(register for register, _ in states), *joined], [*kinds, *(stack.kind for stack in stacks)]
        )

    def _inner(self, body: Block, arguments: Sequence[Register], kinds: Sequence[ValueKind]) -> _BlockWriter:
        """Write the steps of a nested body, which reads the values around it."""
        inner = replace(
            self,
            values=self.values | dict(zip(body.params, arguments, strict=True)),
            kinds=self.kinds | dict(zip(body.params, kinds, strict=True)),
            pinned=self.pinned | frozenset(arguments),
        )
        inner.steps(body.steps)
        return inner

    def _move(self, values: Sequence[Register], into: Sequence[Register]) -> None:
        """Write values into registers at once: a value may be in one of these registers."""
        safe = [self.function.copy(value) if value in into else value for value in values]
        for value, register in zip(safe, into, strict=True):
            self.function.copy(value, register)

    def scalar(self, name: str) -> Register:
        """Return a condition or trip count without dimensions, in this process's memory."""
        value = self.on(name, None)
        return value if self.kinds[name].rank == 0 else self.function.call("vm.builtin.reshape", value, ())

    def _of_rank(self, scalar: Register, rank: int) -> Register:
        """Return the iteration number or the condition as the body declares it, in a register of its own."""
        if not rank:
            return self.function.copy(scalar)
        return self.function.call("vm.builtin.reshape", scalar, (1,) * rank)

    def _jump_unless_less(self, number: Register, limit: Register, end: Label) -> None:
        goes_on = self.function.call(self.program.loop_function(LoopFunction("less")), number, limit)
        self.function.jump_unless(goes_on, end)

    def _stack(self, axis: int, empty: Signature, control: Control, *, is_reversed: bool) -> _Stack:
        kind = ValueKind.of(empty)
        if kind.dtype is None or not kind.rank or kind.dtype == "string":
            self._problem(f"{control.op!r} stacks {empty.name!r}, whose type is {empty}, not one of tensors")
            kind = ValueKind("float32", 1)
        return _Stack(self, empty, str(kind.dtype), kind.rank or 1, axis % (kind.rank or 1), is_reversed=is_reversed)

    def _problem(self, text: str) -> None:
        self.program.written.problems.append(f"@{self.path or '.'}: {text}")


class _Stack:
    """The stacked slices of a result, in a tensor whose first dimension doubles when it is full."""

    def __init__(
        self, block: _BlockWriter, empty: Signature, dtype: str, rank: int, axis: int, *, is_reversed: bool
    ) -> None:
        self.kind = ValueKind(dtype, rank)
        self._block = block
        self._joined = LoopFunction("join", dtype, rank, axis, is_reversed)
        # Unknown dimensions of the result of no iterations are 0, as in onnxruntime.
        shape = [dim if isinstance(dim, int) else 0 for dim in empty.shape or (0,) * rank]
        shape[axis] = 0
        self._empty = _constant(block.function, np.zeros(shape, numpy_dtype(dtype)))
        self._buffer = block.function.copy(self._empty)

    def push(self, number: Register, value: Register) -> None:
        """Write the slice of an iteration."""
        function, buffer = self._block.function, self._buffer
        first, has_room, done = Label(), Label(), Label()
        function.jump_unless(self._less(_ZERO, number), first)
        function.jump_unless(function.call(self._name("is_full"), buffer, number), has_room)
        function.call(self._name("grow"), buffer, into=buffer)
        function.place(has_room)
        function.run(self._name("write"), buffer, number, value)
        function.jump(done)
        function.place(first)
        function.call(self._name("begin"), value, into=buffer)
        function.place(done)

    def join(self, number: Register) -> Register:
        """Return the stacked slices: their number is known now."""
        function, end = self._block.function, Label()
        result = function.copy(self._empty)
        function.jump_unless(self._less(_ZERO, number), end)
        shape = function.call("vm.builtin.tensor_to_shape", function.call("vm.builtin.reshape", number, (1,)))
        function.call(self._block.program.loop_function(self._joined), self._buffer, shape, into=result)
        function.place(end)
        return result

    def _less(self, one: Operand, other: Operand) -> Register:
        return self._block.function.call(self._block.program.loop_function(LoopFunction("less")), one, other)

    def _name(self, kind: Literal["is_full", "grow", "write", "begin"]) -> str:
        return self._block.program.loop_function(LoopFunction(kind, self._joined.dtype, self._joined.rank))


def _placed(function: VmFunction, value: Operand, device: Device) -> Register:
    """Copy a tensor to a device, or into this process's memory."""
    return function.call("vm.builtin.to_device", value, *(device or CPU))


def _constant(function: VmFunction, array: Array) -> Operand:
    """Return a constant; one without elements as a view of another, as TVM cannot store it (0.27)."""
    if array.size:
        return array
    return function.call("vm.builtin.reshape", np.zeros(1, array.dtype), array.shape)


_ZERO, _TRUE = np.array(0, "int64"), np.array(True)


def _kind_of(array: Array) -> ValueKind:
    return ValueKind(dtype_of(array.dtype), array.ndim)


def _either(one: ValueKind, other: ValueKind) -> ValueKind:
    """Return what is known of a value that is one of two."""
    return ValueKind(
        one.dtype if one.dtype == other.dtype else None,
        one.rank if one.rank == other.rank else None,
        one.device,
    )
