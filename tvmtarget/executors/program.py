"""The driver program: what is left of a decomposed module once its leaves are compiled. JSON in an artifact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from tvmtarget.errors import ArtifactError
from tvmtarget.ir.function import COPY, RECV, SEND, Call, Function
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.types import TensorType, Type

__all__ = ["Driver", "Program", "Signature", "Step", "constants_of"]

SCHEMA = 1


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Signature(_Data):
    """A value at the border of the program: dtype None means anything, shape None any rank."""

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None

    @classmethod
    def of(cls, name: str, type_: Type) -> Self:
        """Describe a value of that type."""
        if isinstance(type_, TensorType):
            return cls(name=name, dtype=type_.dtype, shape=type_.shape)
        return cls(name=name, dtype=None, shape=None)

    def __str__(self) -> str:
        return str(TensorType(self.dtype, self.shape)) if self.dtype is not None else "any value"


class Step(_Data):
    """A call of a function, a copy from memory `src` to memory `dst`, or one end of a transfer between machines.

    `nbytes` is the size of what is copied, None where its shape is open; `free` are values not read again. A transfer
    goes `to` a machine or comes `from_` one, and `order` is its place among all transfers of the program.
    """

    call: str | None = None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    src: str | None = None
    dst: str | None = None
    nbytes: int | None = None
    to: str | None = None
    from_: str | None = None
    order: int | None = None
    free: tuple[str, ...] = ()


class Driver(_Data):
    """The steps of one system; `path` is its node."""

    path: str
    params: tuple[str, ...]
    results: tuple[str, ...]
    steps: tuple[Step, ...]
    constants: tuple[str, ...] = ()


class Program(_Data):
    """All drivers of a program by function name, and its border.

    A program on a single leaf has no driver: its entry is the leaf's function.
    """

    schema_version: int = SCHEMA
    entry: str
    inputs: tuple[Signature, ...]
    outputs: tuple[Signature, ...]
    drivers: dict[str, Driver]

    @classmethod
    def of(cls, module: IRModule) -> Self:
        """Read the drivers of a decomposed module."""
        main = module.main
        return cls(
            entry=main.name,
            inputs=tuple(Signature.of(param.name, param.type) for param in main.params),
            outputs=tuple(Signature.of(_plain(name, main), main.types[name]) for name in main.results),
            drivers={f.name: _driver(f) for f in _reachable(module) if f.attr("role") == "driver"},
        )

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Read the JSON form; `ArtifactError` if it is not one."""
        try:
            program = cls.model_validate_json(data)
        except ValidationError as error:
            problem = error.errors()[0]
            place = ".".join(map(str, problem["loc"]))
            raise ArtifactError(f"the driver program is damaged at {place or 'its start'}: {problem['msg']}") from error
        if program.schema_version != SCHEMA:
            raise ArtifactError(
                f"driver program schema {program.schema_version} is not {SCHEMA}, which this version reads"
            )
        return program

    def write(self) -> bytes:
        """Return the JSON form."""
        return self.model_dump_json(exclude_defaults=False).encode()


def constants_of(module: IRModule) -> Mapping[str, np.ndarray[Any, Any]]:
    """Return the constants that drivers return as they are, by name."""
    return {
        constant.name: constant.data
        for function in _reachable(module)
        if function.attr("role") == "driver"
        for constant in function.constants
    }


def _reachable(module: IRModule) -> list[Function]:
    found: dict[str, Function] = {}
    waiting = ["main"]
    while waiting:
        function = module[waiting.pop()]
        if function.name not in found:
            found[function.name] = function
            waiting += [call.callee for call in function.body if call.callee is not None]
    return list(found.values())


def _plain(name: str, function: Function) -> str:
    """Return the name that a result has in the user's model: that of the value which was copied home."""
    origin = {call.outputs[0].name: call.inputs[0] for call in function.body if call.op == COPY}
    while name in origin:
        name = origin[name]
    return name


def _driver(function: Function) -> Driver:
    steps: list[Step] = []
    needed = {*function.results, *(constant.name for constant in function.constants)}
    for call in reversed(function.body):
        touched = dict.fromkeys((*call.inputs, *(output.name for output in call.outputs)))
        free = tuple(name for name in touched if name not in needed)
        needed |= set(touched)
        steps.append(_step(call, free))
    path = function.constraint.path if function.constraint is not None else None
    return Driver(
        path=path or "",
        params=tuple(param.name for param in function.params),
        results=function.results,
        steps=tuple(reversed(steps)),
        constants=tuple(constant.name for constant in function.constants),
    )


def _step(call: Call, free: tuple[str, ...]) -> Step:
    outputs = tuple(output.name for output in call.outputs)
    if call.op == COPY:
        src, dst = (str(call.attr(end)) for end in ("src", "dst"))
        type_ = call.outputs[0].type
        nbytes = type_.nbytes if isinstance(type_, TensorType) else None
        return Step(inputs=call.inputs, outputs=outputs, src=src, dst=dst, nbytes=nbytes, free=free)
    if call.op in (SEND, RECV):
        to, from_ = (None if call.attr(end) is None else str(call.attr(end)) for end in ("to", "from"))
        order = int(str(call.attr("order")))
        return Step(inputs=call.inputs, outputs=outputs, to=to, from_=from_, order=order, free=free)
    return Step(call=call.callee, inputs=call.inputs, outputs=outputs, free=free)
