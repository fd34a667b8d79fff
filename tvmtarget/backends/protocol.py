"""What a backend is: it takes a leaf function as an ONNX model and returns something that runs it.

Backends are found by the entry-point group `tvmtarget.backends`. One that needs an optional package imports it
late and raises `MissingExtraError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import onnx

from tvmtarget import plugins
from tvmtarget.errors import BackendError, MissingExtraError, did_you_mean
from tvmtarget.target.tree import Target

__all__ = ["Array", "Backend", "Compiled", "Part", "backend_named", "backends"]

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class Part:
    """One leaf function to compile: its name, the ONNX model of it, the site, and the leaf with all it inherits.

    `ops` are the names of its operations in the user's model, in the order of the model's nodes; `inputs` and
    `outputs` are the names of the values there. `native` holds compiled files of a saved program that is trusted.
    """

    name: str
    source: bytes
    site: str
    target: Target
    ops: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    native: Mapping[str, bytes] = field(default_factory=dict)

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The function as an ONNX model."""
        return onnx.load_from_string(self.source)


@runtime_checkable
class Compiled(Protocol):
    """A compiled leaf function."""

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """Run on the function's parameters in order; return its results in order."""
        ...

    def native_files(self) -> Mapping[str, bytes]:
        """Return what a saved program should hold besides the source, by file name; empty if nothing."""
        ...


@runtime_checkable
class Backend(Protocol):
    """A code generator for the leaves of some kinds.

    A backend may also have `copy(array, src, dst)`, called for a copy into a memory in which it has a leaf.
    """

    name: str
    kinds: tuple[str, ...]

    def version(self) -> str:
        """Return the version of what generates the code; `MissingExtraError` if it is not installed."""
        ...

    def refuses(self, target: Target) -> str | None:
        """Return why code for a leaf cannot run on this machine, or None if it can."""
        ...

    def compile(self, part: Part) -> Compiled:
        """Compile a leaf function; `BackendError` names the function and the reason."""
        ...


def backend_named(name: str) -> Backend:
    """Return a backend by name; `BackendError` with the nearest names if there is none."""
    known = plugins.names("tvmtarget.backends")
    if name not in known:
        raise BackendError(f"no backend {name!r} is installed{did_you_mean(name, known)}")
    backend = plugins.load("tvmtarget.backends", name)
    if not isinstance(backend, Backend):
        raise BackendError(f"backend {name!r} is {backend!r}, which is no tvmtarget backend")
    return backend


def backends(kind: str) -> tuple[tuple[Backend, MissingExtraError | None], ...]:
    """List the backends for a target kind, each with the error that says what it lacks, if it lacks anything."""
    found: list[tuple[Backend, MissingExtraError | None]] = []
    for name in plugins.names("tvmtarget.backends"):
        backend = backend_named(name)
        if kind in backend.kinds:
            try:
                backend.version()
                found.append((backend, None))
            except MissingExtraError as error:
                found.append((backend, error))
    return tuple(found)
