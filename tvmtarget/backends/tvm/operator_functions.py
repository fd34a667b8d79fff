"""Functions of TIR code that are called with tensors of the caller, on the device of the tensors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmtarget.backends.aligned import is_aligned
from tvmtarget.backends.tvm.compiled_module import import_tvm, reject_forks
from tvmtarget.errors import RunError

__all__ = ["OperatorFunction", "OperatorParameter", "parameters_of"]


@dataclass(frozen=True)
class OperatorParameter:
    """A parameter of a TIR function.

    Attributes:
        name: its name in the code.
        dtype: numpy's name of the element type.
        shape: sizes of the dimensions of a buffer, None where they are symbolic; None for a number.
        is_written: whether the function may write to the buffer.
        alignment: bytes of which the address of the buffer is a multiple.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None
    is_written: bool = False
    alignment: int = 1

    def __str__(self) -> str:
        shape = "" if self.shape is None else f"[{','.join('?' if dim is None else str(dim) for dim in self.shape)}]"
        return f"{self.name}: {self.dtype}{shape}{' (written)' if self.is_written else ''}"


def parameters_of(prim: Any) -> tuple[OperatorParameter, ...]:  # noqa: ANN401 - TVM ships no types
    """Return the parameters of a TIR function.

    Args:
        prim: the `tvm.tirx.PrimFunc`.

    Returns:
        The parameters, in order. A buffer counts as written if there is a store to it, or if its address is taken.
    """
    from tvm_ffi import structural_walk

    tvm = import_tvm()
    written: list[Any] = []

    def visit(call: Any) -> None:  # noqa: ANN401
        written.extend(one for one in call.args if type(one).__name__ == "Var")  # such as of `tirx.buffer_data`
        if getattr(call.op, "name", "") == "tirx.address_of":
            written.extend(one.buffer for one in call.args)

    def visit_block(block: Any) -> None:  # noqa: ANN401
        written.extend(region.source.buffer for region in block.match_buffers)

    structural_walk(
        prim.body,
        [
            (tvm.tirx.BufferStore, lambda store: written.append(store.buffer)),
            (tvm.ir.Call, visit),
            (tvm.s_tir.SBlock, visit_block),
        ],
    )
    return tuple(_parameter(param, is_written=any(map(param.same_as, written))) for param in prim.params)


def _parameter(param: Any, *, is_written: bool) -> OperatorParameter:  # noqa: ANN401
    name, dtype = str(param.name), str(param.ty.dtype)
    if type(param.ty).__name__ != "BufferType":
        return OperatorParameter(name, dtype, None)
    dims = [getattr(dim, "value", None) for dim in param.ty.shape]
    shape = tuple(None if dim is None else int(dim) for dim in dims)
    return OperatorParameter(name, dtype, shape, is_written, max(1, int(param.ty.data_alignment)))


class OperatorFunction:
    """A compiled function that writes its results into tensors of the caller.

    Tensors are arrays of numpy, or objects with DLPack's `__dlpack__`, such as those of PyTorch. They are not copied,
    except arrays of numpy that are not contiguous, or do not begin at a multiple of 64 bytes. The function runs on the
    device of its tensors: for a GPU, any of those that its code was compiled for.

    Args:
        name: name of the function.
        parameters: its parameters, in order.
        function: TVM's function.
        place: path of the leaf in errors.
    """

    def __init__(self, name: str, parameters: Sequence[OperatorParameter], function: Any, place: str) -> None:  # noqa: ANN401
        self.name = name
        self.parameters = tuple(parameters)
        self._function = function
        self._place = place

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.parameters))})"

    def __call__(self, *arguments: object) -> None:
        """Call the function; it returns when a CPU is done, or when the work of a GPU is queued.

        Args:
            *arguments: tensors for buffers, and numbers, in order.

        Raises:
            RunError: an argument has another type, shape or device, or an array is read-only and would be written.
        """
        if len(arguments) != len(self.parameters):
            raise RunError(f"{self!r} takes {len(self.parameters)} arguments, not {len(arguments)}")
        reject_forks()
        tvm = import_tvm()
        given: list[Any] = []
        copies: list[tuple[Any, Any]] = []
        for argument, parameter in zip(arguments, self.parameters, strict=True):
            given.append(self._argument(tvm, argument, parameter))
            if isinstance(argument, np.ndarray) and parameter.is_written and not is_aligned(argument):
                copies.append((argument, given[-1]))
        try:
            self._function(*given)
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise RunError(f"{self._place}: {' '.join(lines) or type(error).__name__}") from error
        for array, copy in copies:
            array[...] = copy.numpy()

    def _argument(self, tvm: Any, value: Any, parameter: OperatorParameter) -> Any:  # noqa: ANN401
        if parameter.shape is None:
            number = value.item() if isinstance(value, np.ndarray | np.generic) else value
            # TVM passes numbers as 64 bits, of which the function reads those of its own type.
            if isinstance(number, int) and (limits := _limits(parameter.dtype)) and number not in limits:
                raise RunError(f"{self._place}: {parameter.name!r} is {parameter.dtype}, which {number} does not fit")
            return number
        if isinstance(value, np.ndarray):
            if parameter.is_written and not value.flags.writeable:
                raise RunError(f"{self._place}: {parameter.name!r} is written, and its array is read-only")
            if not is_aligned(value):
                return tvm.runtime.tensor(value)
            # numpy gives read-only arrays away only to those who ask for the version of DLPack that says so.
            value = value if value.flags.writeable else value.__dlpack__(max_version=(1, 0))
        elif not hasattr(value, "__dlpack__"):
            raise RunError(f"{self._place}: {parameter.name!r} is a tensor, not {type(value).__name__}")
        try:
            return tvm.runtime.from_dlpack(value)
        except Exception as error:
            raise RunError(f"{self._place}: {parameter.name!r} cannot be read by DLPack: {error}") from error


def _limits(dtype: str) -> range | None:
    """Return the values of an integer type of C; None for other types."""
    form = re.fullmatch(r"(u?)int(8|16|32|64)", dtype)
    if form is None:
        return None
    bits, is_unsigned = int(form[2]), bool(form[1])
    return range(1 << bits) if is_unsigned else range(-(1 << bits - 1), 1 << bits - 1)
