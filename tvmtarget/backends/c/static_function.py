"""Functions whose values all have static shapes: calls of kernels on buffers that are planned before the first run.

A code generator for C lowers a leaf function to this form; the executor `aot` joins those of a whole system into one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeAlias

import numpy as np

from tvmtarget.backends.protocol import Array

__all__ = ["C_TYPES", "CopyTensor", "Kernel", "KernelCall", "StaticFunction", "StaticStep", "Tensor"]

# Element types of values in generated C; bool has one byte there as in numpy (C99 7.16 on every ABI that GCC serves).
C_TYPES: Mapping[str, str] = {
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float32": "float",
    "float64": "double",
    "bool": "bool",
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """The type of a value: its element type by numpy's name, and the sizes of its dimensions."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Kernel:
    """A C function `int32_t NAME(const T *reads..., T *writes..., T *workspaces...)` that returns 0, or an error code.

    A kernel that runs on a device takes its context, `void *device`, as the last parameter.

    Attributes:
        symbol: its name.
        reads: the values that it reads, in order.
        writes: the values that it writes completely, in order.
        workspaces: the buffers that it needs while it runs, in order.
        device: kind of the device on which it runs, such as `ethos-u`, which names the hooks around it; empty for the
            CPU.
    """

    symbol: str
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    workspaces: tuple[Tensor, ...] = ()
    device: str = ""

    @property
    def prototype(self) -> str:
        """The declaration in C, without a semicolon; parameters are `p0`, `p1` and so on."""
        types = [f"const {C_TYPES[one.dtype]} *" for one in self.reads]
        types += [f"{C_TYPES[one.dtype]} *" for one in (*self.writes, *self.workspaces)]
        params = [f"{type_}restrict p{number}" for number, type_ in enumerate(types)]
        params += ["void *device"] if self.device else []
        return f"int32_t {self.symbol}({', '.join(params) or 'void'})"


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A call of a kernel; `path` is the leaf that it belongs to, for messages and reports."""

    kernel: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    path: str = ""


@dataclass(frozen=True, slots=True)
class CopyTensor:
    """A copy of the value `source` into the new value `target`; into the named memory if one is stated."""

    source: str
    target: str
    memory: str = ""


StaticStep: TypeAlias = "KernelCall | CopyTensor"


@dataclass(frozen=True)
class StaticFunction:
    """A function on values of static shape.

    Attributes:
        inputs: names of the parameters, in order.
        outputs: names of the results, in order; any values, also parameters, constants, and the same one twice.
        tensors: the types of all values by name.
        constants: the values that are known, by name.
        steps: the calls and copies, in order. Each value is written once.
        kernels: the called kernels by symbol.
        code: the code of the kernels by file name: C sources, headers and object files.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: Mapping[str, Tensor]
    constants: Mapping[str, Array]
    steps: tuple[StaticStep, ...]
    kernels: Mapping[str, Kernel]
    code: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def renamed(self, names: Mapping[str, str]) -> StaticFunction:
        """Return the function with other names of values.

        Args:
            names: new names by name; other values keep theirs.

        Returns:
            The function.
        """

        def new(some: Sequence[str]) -> tuple[str, ...]:
            return tuple(names.get(one, one) for one in some)

        def step(one: StaticStep) -> StaticStep:
            if isinstance(one, CopyTensor):
                return replace(one, source=new([one.source])[0], target=new([one.target])[0])
            return replace(one, reads=new(one.reads), writes=new(one.writes))

        return replace(
            self,
            inputs=new(self.inputs),
            outputs=new(self.outputs),
            tensors={names.get(name, name): tensor for name, tensor in self.tensors.items()},
            constants={names.get(name, name): array for name, array in self.constants.items()},
            steps=tuple(map(step, self.steps)),
        )
