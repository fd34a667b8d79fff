"""The executor protocol: open a driver program so that it can be run, and report what runs as events.

Executors are found by the entry-point group `tvmtarget.executors`, under the name of the executor kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from tvmtarget import plugins
from tvmtarget.errors import BackendError, did_you_mean
from tvmtarget.executors.driver_program import Driver, DriverProgram
from tvmtarget.target.node import Executor

__all__ = [
    "Array",
    "CallEvent",
    "CallLeaf",
    "CopyEvent",
    "CopyValue",
    "Event",
    "ProgramExecutor",
    "Record",
    "RunProgram",
    "Transfers",
    "executor_named",
]

GROUP = "tvmtarget.executors"

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True, slots=True)
class CallEvent:
    """A leaf function was called.

    `call` is the name of the call as in `Plan.subgraphs`; `duration_ns` is in nanoseconds.
    """

    function: str
    duration_ns: int
    call: str = ""


@dataclass(frozen=True, slots=True)
class CopyEvent:
    """A value was copied between the memories `src` and `dst`: `nbytes` bytes in `duration_ns` nanoseconds."""

    value: str
    src: str
    dst: str
    nbytes: int
    duration_ns: int


Event: TypeAlias = "CallEvent | CopyEvent"
Record: TypeAlias = "Callable[[Event], None]"

# Call a leaf function: its name, its inputs in order, and the name of the call; returns the results in order.
CallLeaf: TypeAlias = "Callable[[str, Sequence[Any], str], Sequence[Any]]"
# Copy a value between memories: the value, the source memory and the destination memory; returns the copy.
CopyValue: TypeAlias = "Callable[[Any, str, str], Any]"


class Transfers(Protocol):
    """Exchange values with other machines during one run; the two ends of a transfer have one `order`."""

    def send(self, to: str, order: int, values: Sequence[Any]) -> None:
        """Send the values of a transfer.

        Args:
            to: the machine that receives.
            order: number of the transfer in the program.
            values: one value, or none for a transfer that only orders effects.
        """
        ...

    def receive(self, from_: str, order: int) -> Sequence[Any]:
        """Wait for the values of a transfer.

        Args:
            from_: the machine that sends.
            order: number of the transfer in the program.

        Returns:
            The values that were sent: one or none.

        Raises:
            RunError: the machine is gone.
        """
        ...


class RunProgram(Protocol):
    """A program that is ready to run on this machine."""

    def __call__(
        self,
        inputs: Sequence[Any],
        record: Record | None = None,
        transfers: Transfers | None = None,
        *,
        entry: Driver | None = None,
    ) -> list[Any]:
        """Run once.

        Args:
            inputs: the values of the entry's parameters, in order.
            record: called with each leaf call and copy, as it happens.
            transfers: the other machines; required by the program of one machine of several.
            entry: a driver to run instead of the program's entry, such as one segment of it.

        Returns:
            The entry's results, in order.
        """
        ...


class ProgramExecutor(ABC):
    """Base class of executors.

    `honours` names the attributes of the executor kind that change what is executed; a build rejects a target that
    sets another one.
    """

    honours: frozenset[str] = frozenset()

    @abstractmethod
    def load(
        self,
        program: DriverProgram,
        constants: Mapping[str, Array],
        call_leaf: CallLeaf,
        copy_value: CopyValue,
        settings: Executor,
    ) -> RunProgram:
        """Open a driver program.

        Args:
            program: the drivers and the entry.
            constants: the constants that drivers read, by name.
            call_leaf: calls a compiled leaf function.
            copy_value: copies a value between two memories.
            settings: the executor node of the target, with its attributes.

        Returns:
            What runs the program.
        """


def executor_named(kind: str) -> ProgramExecutor:
    """Return the executor of a kind.

    Args:
        kind: an executor kind, such as `graph`.

    Returns:
        The object that is registered for the kind.

    Raises:
        BackendError: no package registers an executor for the kind, or what it registers is of another class.
    """
    known = plugins.names(GROUP)
    if kind not in known:
        raise BackendError(f"no executor {kind!r} is installed{did_you_mean(kind, known)}")
    executor = plugins.load(GROUP, kind)
    if not isinstance(executor, ProgramExecutor):
        raise BackendError(f"executor {kind!r} is {executor!r}, which does not derive from {ProgramExecutor.__name__}")
    return executor
