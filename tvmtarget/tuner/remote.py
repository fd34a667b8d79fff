"""Measuring on other machines: workers of Dask, each with one measurement at a time.

The machines should be equal, and what the target says. A worker that is lost takes no candidate with it: what it was
measuring is measured by another one. Dask is imported late.
"""

from __future__ import annotations

import queue
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any, Protocol, Self, TypeVar

from tvmtarget.backends.protocol import Part, backend_named
from tvmtarget.errors import MissingExtraError, RunError
from tvmtarget.target.tree import Target
from tvmtarget.tuner.measuring import Choices, Outcome, Worker
from tvmtarget.tuner.process import Limits
from tvmtarget.tuner.search import as_json
from tvmtarget.tuning.environment import environment

__all__ = ["RemoteWorker", "Remotes"]

_ADDRESS = re.compile(r"inproc://\S+|[a-z]+://\S+:[0-9]+")
_POLL = 1.0  # seconds after which it is looked whether a worker is still there
_CONNECT = 5  # seconds to wait for the scheduler
_KEPT = 2  # leaf functions that a machine keeps open

_Result = TypeVar("_Result", covariant=True)


class _Measure(Protocol[_Result]):
    """A function of this module: of a worker process, and of what is to be measured."""

    def __call__(self, opened: Mapping[str, Any], key: str, what: Any, count: int) -> _Result: ...  # noqa: ANN401


class Remotes:
    """The workers of a Dask scheduler, such as `tcp://10.0.0.1:8786`; `size` is how many are there."""

    def __init__(self, address: str) -> None:
        try:
            import distributed
        except ImportError as error:
            raise MissingExtraError("distributed", "dask") from error
        if not _ADDRESS.fullmatch(address):
            raise RunError(f"{address!r} is no address of a Dask scheduler, such as 'tcp://10.0.0.1:8786'")
        connect: Any = distributed.Client
        try:
            self._client: Any = connect(address, timeout=_CONNECT, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise RunError(f"no Dask scheduler answers at {address!r}: {error}") from error
        self._address = address
        self._free: queue.Queue[str] = queue.Queue()
        self._known: set[str] = set()
        self._refresh()
        if not self._known:
            self.close()
            raise RunError(f"the Dask scheduler at {address!r} has no workers; start one with: dask worker {address}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect; the workers stay."""
        self._client.close()

    @property
    def size(self) -> int:
        """How many measurements may go on at a time."""
        return max(1, len(self._known))

    def run(self, measure: _Measure[_Result], opened: Mapping[str, Any], key: str, what: object, count: int) -> _Result:
        """Run a measurement on a machine that has nothing else to do; `RunError` if none is left."""
        while True:
            address = self._next()
            future: Any = self._client.submit(
                measure, opened, key, what, count, workers=[address], allow_other_workers=False, pure=False, retries=0
            )
            if self._wait(future, address):
                self._free.put(address)
                result: _Result = future.result()
                return result
            future.cancel()
            self._known.discard(address)

    def _next(self) -> str:
        """Return a machine that is free, waiting for one; those that came are taken in, those that left are not."""
        while True:
            self._refresh()
            try:
                address = self._free.get(timeout=_POLL)
            except queue.Empty:
                if not self._known:
                    raise RunError(f"no measuring machine is left at {self._address!r}") from None
                continue
            if address in self._workers():
                return address
            self._known.discard(address)

    def _wait(self, future: Any, address: str) -> bool:  # noqa: ANN401 - Dask ships no types
        """Wait for a result; return whether there is one, and the machine was not lost over it."""
        while not future.done():
            try:
                future.exception(timeout=_POLL)
            except TimeoutError:
                if address not in self._workers():
                    return False
            except Exception:
                return False
        return str(future.status) in ("finished", "error") and not _is_lost(future)

    def _workers(self) -> set[str]:
        try:
            return set(self._client.nthreads())  # `scheduler_info` has at times no workers: Dask refreshes it so
        except OSError as error:
            raise RunError(f"the Dask scheduler at {self._address!r} is gone: {error}") from error

    def _refresh(self) -> None:
        for address in sorted(self._workers() - self._known):
            self._known.add(address)
            self._free.put(address)


def _is_lost(future: Any) -> bool:  # noqa: ANN401
    from distributed import KilledWorker

    return future.status == "error" and isinstance(future.exception(), KilledWorker)


class RemoteWorker(Worker):
    """A worker that knows the kernels here, and measures them there."""

    def __init__(self, backend: str, part: Part, limits: Limits, remotes: Remotes) -> None:
        super().__init__(backend, part, limits)
        self._remotes = remotes
        self._opened = {
            "backend": backend,
            "name": part.name,
            "source": part.source,
            "site": part.site,
            "target": part.target.to_json(),
            "limits": astuple(limits),
        }

    def measure(self, key: str, choices: Choices, repeats: int = 3, beside: Choices | None = None) -> Outcome:
        """Build, check and time a candidate on some machine, by turns with another."""
        both = as_json(choices), None if beside is None else as_json(beside)
        return self._remotes.run(measured, self._opened, key, both, repeats)

    def compare(self, key: str, candidates: Sequence[Choices], rounds: int) -> list[Outcome]:
        """Time candidates by turns, all on one machine."""
        return self._remotes.run(compared, self._opened, key, list(map(as_json, candidates)), rounds)


# The leaf functions that are open in this process of a Dask worker, the last used last; they end with it.
_OPEN: dict[tuple[object, ...], Worker] = {}


def measured(opened: Mapping[str, Any], key: str, what: Any, count: int) -> Outcome:  # noqa: ANN401
    """Measure a candidate, and what is beside it, in a process of this machine."""
    choices, beside = what
    refusal = backend_named(opened["backend"]).refuses(Target.from_json(opened["target"]))
    if refusal is not None:
        return Outcome("infra_error", why=f"cannot run on the measuring machine: {refusal}", env=environment())
    return replace(_worker(opened).measure(key, choices, count, beside), env=environment())


def compared(opened: Mapping[str, Any], key: str, what: Any, count: int) -> list[Outcome]:  # noqa: ANN401
    """Compare candidates in a process of this machine."""
    return [replace(outcome, env=environment()) for outcome in _worker(opened).compare(key, what, count)]


def _worker(opened: Mapping[str, Any]) -> Worker:
    name = opened["backend"], opened["source"], str(opened["target"]), *opened["limits"]
    worker = _OPEN.pop(name, None)
    if worker is None:
        part = Part(opened["name"], opened["source"], opened["site"], Target.from_json(opened["target"]))
        worker = Worker(opened["backend"], part, Limits(*opened["limits"]))
    _OPEN[name] = worker
    while len(_OPEN) > _KEPT:
        _OPEN.pop(next(iter(_OPEN))).close()
    return worker
