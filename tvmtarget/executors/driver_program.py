"""The driver program: the calls and copies that remain of a decomposed module once its leaf functions are compiled.

It is stored as JSON in a saved program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
)

from tvmtarget.errors import ArtifactError
from tvmtarget.ir.control_flow import CONTROL_FLOW_FORMS
from tvmtarget.ir.function import COPY, RECV, SEND, Call, Function, reachable_functions
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.text.parser import parse_type
from tvmtarget.ir.types import TensorType, Type, rank_of

__all__ = [
    "Axis",
    "Block",
    "Control",
    "Driver",
    "DriverProgram",
    "FunctionSignature",
    "Signature",
    "Step",
    "constants_of",
]

SCHEMA = 2  # of the JSON form; version 1 has no signatures of functions, other versions are rejected


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Signature(_Data):
    """An input or output of the program.

    Attributes:
        name: name of the value.
        dtype: element type of a tensor; None for another value.
        shape: dimensions of a tensor; None for any rank.
        type: the type of another value, such as `sequence(float32[?])`; None for any value.
    """

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None
    type: str | None = None

    @field_validator("type")
    @classmethod
    def _check_type(cls, text: str | None) -> str | None:
        if text is not None:
            parse_type(text)
        return text

    @model_serializer(mode="wrap")
    def _without_absent_type(self, write: SerializerFunctionWrapHandler) -> dict[str, object]:
        # The form of tensors is that of files without types of other values.
        return {name: value for name, value in write(self).items() if name != "type" or value is not None}

    @classmethod
    def of(cls, name: str, type_: Type) -> Self:
        """Return the signature of a value.

        Args:
            name: name of the value.
            type_: its type.

        Returns:
            The signature.
        """
        if isinstance(type_, TensorType):
            return cls(name=name, dtype=type_.dtype, shape=type_.shape)
        return cls(name=name, dtype=None, shape=None, type=None if type_ is None else str(type_))

    def __str__(self) -> str:
        return str(TensorType(self.dtype, self.shape)) if self.dtype is not None else self.type or "any value"


class FunctionSignature(_Data):
    """The parameters and results of a function, in order."""

    inputs: tuple[Signature, ...]
    outputs: tuple[Signature, ...]

    @classmethod
    def of(cls, function: Function) -> Self:
        """Return the signature of a function.

        Args:
            function: a driver or a leaf function.

        Returns:
            The signature.
        """
        return cls(
            inputs=tuple(Signature.of(param.name, param.type) for param in function.params),
            outputs=tuple(Signature.of(name, function.types[name]) for name in function.results),
        )


class Step(_Data):
    """One of: a call of a function, a copy between memories, control flow, or one end of a transfer between machines.

    Attributes:
        call: the called function.
        name: name of the call, if it differs from the function's.
        control: the control flow.
        inputs: values that are read; '' for absent ones.
        outputs: values that are defined; '' for absent ones.
        src: memory that a copy reads.
        dst: memory that a copy writes.
        nbytes: size of a copy, None if its shape is symbolic.
        to: machine that a transfer goes to.
        from_: machine that a transfer comes from.
        order: number of a transfer among all transfers of the program; both ends have the same.
        free: values that are not read again.
        once: whether the result is the same in every run: a copy of a constant.
    """

    call: str | None = None
    name: str | None = None
    control: Control | None = None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    src: str | None = None
    dst: str | None = None
    nbytes: int | None = None
    to: str | None = None
    from_: str | None = None
    order: int | None = None
    free: tuple[str, ...] = ()
    once: bool = False


class Block(_Data):
    """Steps that run in order; those of a nested body can also read the values around it."""

    params: tuple[str, ...]
    results: tuple[str, ...]
    steps: tuple[Step, ...]

    def walk(self) -> Iterator[Step]:
        """List all steps.

        Yields:
            The steps in order, each followed by those of its nested bodies.
        """
        for step in self.steps:
            yield step
            for body in step.control.bodies if step.control is not None else ():
                yield from body.walk()


class Axis(_Data):
    """The axis along which a Scan slices or stacks a value, and whether it starts at the end."""

    axis: int = 0
    is_reversed: bool = False


class Control(_Data):
    """A branch, a loop or a scan.

    Attributes:
        kind: a `branch` runs the first body if its operand is true, else the second; `loop` and `scan` have one body.
            Operands of a loop are trip count, condition (both may be absent) and carried values; those of a scan are
            initial states and values to slice. Results are the carried values, then stacked values.
        op: name of the operation in the model, for messages.
        bodies: the nested bodies.
        cut: for each sliced operand, its axis.
        joined: for each stacked result, its axis.
        empty: for each stacked result, its signature, for when there are no slices.
        param_ranks: ranks of the body's parameters, None for unknown ones.
    """

    kind: Literal["branch", "loop", "scan"]
    op: str
    bodies: tuple[Block, ...]
    cut: tuple[Axis, ...] = ()
    joined: tuple[Axis, ...] = ()
    empty: tuple[Signature, ...] = ()
    param_ranks: tuple[int | None, ...] = ()


class Driver(Block):
    """The steps of one composite target; `path` is its node, `constants` are the constants that it reads."""

    path: str
    constants: tuple[str, ...] = ()


class DriverProgram(_Data):
    """All drivers of a program by function name, and the program's inputs and outputs.

    A program on a single leaf has no driver: its entry is the leaf's function.

    Attributes:
        schema_version: version of the JSON form.
        entry: the function that runs first.
        inputs: the program's inputs, in order.
        outputs: the program's outputs, in order, by their names in the user's model.
        drivers: the drivers by function name.
        signatures: parameters and results of drivers and leaf functions, by name; empty in files of version 1.
    """

    schema_version: int = SCHEMA
    entry: str
    inputs: tuple[Signature, ...]
    outputs: tuple[Signature, ...]
    drivers: dict[str, Driver]
    signatures: dict[str, FunctionSignature] = {}

    @classmethod
    def of(cls, module: IRModule) -> Self:
        """Return the driver program of a decomposed module.

        Args:
            module: a module whose functions have roles.

        Returns:
            The drivers that `main` runs.
        """
        main = module.main
        drivers = {f.name: _driver(f) for f in _reached(module) if f.attr("role") == "driver"}
        run = _run_by(main.name, drivers)
        return cls(
            entry=main.name,
            inputs=tuple(Signature.of(param.name, param.type) for param in main.params),
            outputs=tuple(Signature.of(_plain(name, main), main.types[name]) for name in main.results),
            drivers={name: driver for name, driver in drivers.items() if name in run},
            signatures={f.name: FunctionSignature.of(f) for f in _reached(module) if f.code is None},
        )

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Parse the JSON form.

        Args:
            data: what `write` returned.

        Returns:
            The program; `verify_program` checks what it means.

        Raises:
            ArtifactError: the data does not match the schema.
        """
        try:
            program = cls.model_validate_json(data)
        except ValidationError as error:
            problem = error.errors()[0]
            place = ".".join(map(str, problem["loc"]))
            raise ArtifactError(f"the driver program is damaged at {place or 'its start'}: {problem['msg']}") from error
        if program.schema_version not in (1, SCHEMA):
            raise ArtifactError(
                f"driver program schema {program.schema_version} is none that this version reads: 1 and {SCHEMA}"
            )
        return program

    def write(self) -> bytes:
        """Return the JSON form.

        Returns:
            UTF-8 text.
        """
        return self.model_dump_json(exclude_defaults=False).encode()


def constants_of(module: IRModule) -> Mapping[str, np.ndarray[Any, Any]]:
    """Return the constants that drivers read.

    Args:
        module: a decomposed module.

    Returns:
        Arrays by name.
    """
    return {
        constant.name: constant.data
        for function in _reached(module)
        if function.attr("role") == "driver"
        for constant in function.constants
    }


def _reached(module: IRModule) -> list[Function]:
    return [module[name] for name in reachable_functions(["main"], module.by_name)]


def _run_by(entry: str, drivers: Mapping[str, Driver]) -> set[str]:
    """Return what a driver runs: the functions of calls without results, which steps omit, are not among them."""
    run: set[str] = set()
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        if name not in run and name in drivers:
            waiting += [step.call for step in drivers[name].walk() if step.call is not None]
        run.add(name)
    return run


def _plain(name: str, function: Function) -> str:
    """Return the user's name of a result: that of the value from which it was copied home."""
    origin = {call.outputs[0].name: call.inputs[0] for call in function.body if call.op == COPY}
    while name in origin:
        name = origin[name]
    return name


def _driver(function: Function) -> Driver:
    path = function.constraint.path if function.constraint is not None else None
    constants = tuple(constant.name for constant in function.constants)
    return Driver(**_block(function), path=path or "", constants=constants)


def _block(body: Function) -> dict[str, Any]:
    """Return the fields of a block; it frees only values of its own, and omits calls without results and effects."""
    own = {name for name in body.types if name not in body.constant_names}
    steps: list[Step] = []
    needed = set(body.results)
    # Backwards, so that the first use met of a value is the last one: there it is freed.
    for call in reversed(body.body):
        if call.callee is not None and not call.outputs and not call.has_effect:
            continue
        outputs = tuple(output.name for output in call.outputs)
        touched = dict.fromkeys((*call.uses(), *outputs))
        free = tuple(name for name in touched if name in own and name not in needed)
        needed |= set(touched)
        once = call.op == COPY and call.inputs[0] in body.constant_names
        steps.append(_step(call, outputs, free, once=once))
    params = tuple(param.name for param in body.params)
    return {"params": params, "results": body.results, "steps": tuple(reversed(steps))}


def _step(call: Call, outputs: tuple[str, ...], free: tuple[str, ...], *, once: bool = False) -> Step:
    if call.op == COPY:
        src, dst = (str(call.attr(end)) for end in ("src", "dst"))
        type_ = call.outputs[0].type
        nbytes = type_.nbytes if isinstance(type_, TensorType) else None
        return Step(inputs=call.inputs, outputs=outputs, src=src, dst=dst, nbytes=nbytes, free=free, once=once)
    if call.op in (SEND, RECV):
        to, from_ = (None if call.attr(end) is None else str(call.attr(end)) for end in ("to", "from"))
        order = int(str(call.attr("order")))
        return Step(inputs=call.inputs, outputs=outputs, to=to, from_=from_, order=order, free=free)
    if call.regions:
        return Step(control=_control(call), inputs=call.inputs, outputs=outputs, free=free)
    name = None if call.source == call.callee else call.source
    return Step(call=call.callee, name=name, inputs=call.inputs, outputs=outputs, free=free)


def _control(call: Call) -> Control:
    form = CONTROL_FLOW_FORMS[call.op]
    regions = dict(call.regions)
    bodies = tuple(Block(**_block(regions[label])) for label in form.bodies)
    if form.kind == "branch":
        return Control(kind=form.kind, op=call.source, bodies=bodies)
    body = regions[form.bodies[0]]
    sliced = _count(call, "num_scan_inputs") if form.kind == "scan" else 0
    # ONNX: the operands of Loop begin with trip count and condition, those of Scan with the states.
    carried = len(call.inputs) - sliced - (2 if form.kind == "loop" else 0)
    joined = call.outputs[carried:]
    return Control(
        kind=form.kind,
        op=call.source,
        bodies=bodies,
        cut=_axes(call, "scan_input", sliced),
        joined=_axes(call, "scan_output", len(joined)),
        empty=tuple(Signature.of(output.name, output.type) for output in joined),
        param_ranks=tuple(rank_of(param.type) for param in body.params),
    )


def _count(call: Call, name: str) -> int:
    value = call.attr(name)
    return value if isinstance(value, int) else 0


def _axes(call: Call, stem: str, count: int) -> tuple[Axis, ...]:
    axes, ways = _numbers(call, f"{stem}_axes", count), _numbers(call, f"{stem}_directions", count)
    return tuple(Axis(axis=axis, is_reversed=bool(way)) for axis, way in zip(axes, ways, strict=True))


def _numbers(call: Call, name: str, count: int) -> list[int]:
    """Return a list attribute, extended with zeros to a length."""
    # ONNX, Scan: a missing axis is 0, and a missing direction is 0, which is forward.
    given = call.attr(name)
    stated = [value for value in given if isinstance(value, int)] if isinstance(given, tuple) else []
    return [*stated, *[0] * count][:count]
