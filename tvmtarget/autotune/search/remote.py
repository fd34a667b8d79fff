"""Measurement on other machines: workers of Dask, each with one measurement at a time.

The machines should be equal, and match the target. One that does not, or that has other versions, is not used again;
if none is left, the error has all reasons. If a worker is lost, another one measures its candidate. Dask is imported
only when it is needed.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar

from tvmtarget.autotune.search.candidates import as_json
from tvmtarget.autotune.search.dask_worker import (
    Reply,
    close_session,
    compare_on_worker,
    leaf_description,
    measure_on_worker,
)
from tvmtarget.autotune.search.measuring import Choices, Outcome, Worker
from tvmtarget.autotune.search.process import Limits, LostError
from tvmtarget.backends.protocol import CompileRequest
from tvmtarget.errors import BackendError, MissingExtraError, RunError, first_line
from tvmtarget.runtimes.dask import connected

__all__ = ["RemoteWorker", "Remotes"]

_POLL = 0.5  # seconds between checks that a worker is still there
_CONNECT = 5  # seconds to wait for the scheduler
_PATIENCE = 30.0  # seconds to wait without any worker, in which a cluster manager may restart one
_LATE = 2.0  # seconds after the deadline by which a worker should have answered
_CLOSING = 5.0  # seconds that disconnecting may take
_LOSSES = 3  # workers lost over one candidate, which is no coincidence then

_Value = TypeVar("_Value")


class Remotes:
    """The workers of a Dask scheduler.

    Args:
        address: the scheduler, such as `tls://10.0.0.1:8786`.
        insecure: allow a scheduler without TLS.

    Raises:
        MissingExtraError: Dask is not installed.
        RunError: no scheduler answers at the address, or it has no workers.
    """

    def __init__(self, address: str, *, insecure: bool = False) -> None:
        try:
            import distributed
        except ImportError as error:
            raise MissingExtraError("distributed", "dask") from error
        try:
            self._client: Any = connected(distributed, address, insecure=insecure, seconds=_CONNECT)
        except OSError as error:
            raise RunError(f"no Dask scheduler answers at {address!r}: {error}") from error
        self.session = uuid.uuid4().hex
        self._address = address
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._refused: dict[tuple[str, str], str] = {}  # reasons by address and target
        self._sent: set[tuple[str, str]] = set()  # leaf functions, by address and digest of the source
        self._machine = ""  # the one that measured first
        self._is_over = threading.Event()
        self._known: set[str] = set()
        self._refreshed_at = -math.inf  # a time of the monotonic clock
        self._last_seen = time.monotonic()  # when there was a worker
        self._refresh()
        if not self._known:
            self.close()
            raise RunError(f"the Dask scheduler at {address!r} has no workers; start one with: dask worker {address}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End our measuring processes, and disconnect; the workers stay."""
        self.stop()
        leaving = threading.Thread(target=self._leave, daemon=True)
        leaving.start()
        leaving.join(_CLOSING)

    def stop(self) -> None:
        """Cancel all measurements that are waited for."""
        self._is_over.set()

    @property
    def size(self) -> int:
        """How many measurements can run at a time."""
        return max(1, len(self._known - {address for address, _ in self._refused}))

    def run(self, measure: Callable[..., Reply[_Value]], *arguments: Any, until: float | None = None) -> _Value:  # noqa: ANN401
        """Run a measurement on a free machine.

        Args:
            measure: a function of `dask_worker`.
            *arguments: its arguments; the seconds until `until` are inserted as the second one.
            until: a time of the monotonic clock at which the measurement is cancelled.

        Returns:
            The value of the reply.

        Raises:
            LostError: the time is up, or machines are lost again and again over this measurement.
            BackendError: all machines refuse to measure it.
            RunError: no machine is left.
        """
        first, *others = arguments
        what = str(first.get("target")) if isinstance(first, Mapping) else ""
        losses = 0
        while losses < _LOSSES:
            address = self._acquire(what, until)
            left = None if until is None else max(0.0, until - time.monotonic())
            reply = None
            try:
                future = self._submit(address, measure, self._description_for(address, first), left, *others)
                reply = None if future is None else self._wait(future, address, until)
            finally:
                self._release(address, is_lost=reply is None)
            if reply is None:
                losses += 1
            elif reply.lacks_source:
                self._sent.discard((address, first["digest"]))
            elif self._accepts(address, what, reply):
                return reply.value  # type: ignore[return-value]  # there is one where nothing was refused
        raise LostError("measure", "infra")

    def _check_workers(self) -> None:
        """Raise an error if no machine is left, and none can be expected."""
        status = self._client.status
        if status == "closed" or time.monotonic() - self._last_seen >= _PATIENCE:
            gone = f"no measuring machine is left at {self._address!r}, and none came in {_PATIENCE:.0f} seconds"
            silent = f"the Dask scheduler at {self._address!r} does not answer any more"
            raise RunError(gone if status == "running" else silent)

    def _submit(self, address: str, measure: Callable[..., Reply[_Value]], *arguments: Any) -> Any:  # noqa: ANN401
        """Send a measurement to a machine; None if the connection to the scheduler is lost."""
        options = {"workers": [address], "allow_other_workers": False, "pure": False, "retries": 0}
        try:
            return self._client.submit(measure, *arguments, **options)
        except Exception:  # Dask raises various errors for a lost connection
            return None

    def _description_for(self, address: str, first: Any) -> Any:  # noqa: ANN401
        """Return the description of a leaf function, without its source if the machine has that."""
        if not isinstance(first, Mapping) or "source" not in first:
            return first
        name = address, first["digest"]
        if name in self._sent:
            return {key: value for key, value in first.items() if key != "source"}
        self._sent.add(name)
        return first

    def _accepts(self, address: str, what: str, reply: Reply[_Value]) -> bool:
        """Whether a reply is valid; if not, its machine is not used for that target again."""
        with self._lock:
            refusal = reply.refusal
            if not refusal and reply.machine not in ("", self._machine or reply.machine):
                refusal = f"it is {reply.machine}, and the others are {self._machine}"
            if refusal:
                self._refused[address, what] = refusal
            else:
                self._machine = self._machine or reply.machine
            return not refusal

    def _acquire(self, what: str, until: float | None) -> str:
        """Return a free machine, waiting for one; new machines are used too."""
        while True:
            if self._is_over.is_set() or (until is not None and time.monotonic() >= until):
                raise LostError("wait", "cancelled")
            with self._lock:
                self._refresh()
                refused = {address: why for (address, which), why in sorted(self._refused.items()) if which == what}
                usable = self._known - refused.keys()
                free = sorted(usable - self._busy)
                if free:
                    self._busy.add(free[0])
                    return free[0]
                if self._known and not usable:
                    raise BackendError(*(f"{address} cannot measure this: {why}" for address, why in refused.items()))
                self._check_workers()
            time.sleep(_POLL / 5)

    def _release(self, address: str, *, is_lost: bool = False) -> None:
        with self._lock:
            self._busy.discard(address)
            if is_lost:
                self._known.discard(address)

    def _wait(self, future: Any, address: str, until: float | None) -> Reply[Any] | None:  # noqa: ANN401 - Dask ships no types
        """Wait for a reply; None if the machine was lost. An error on a machine counts as its refusal."""
        end = math.inf if until is None else until + _LATE
        while not future.done():
            if self._is_over.is_set() or time.monotonic() >= end:
                future.cancel()
                raise LostError("measure", "cancelled")
            with suppress(Exception):  # an error of the measurement stays in the future
                future.exception(timeout=_POLL)
            if not future.done() and not self._is_there(address):
                future.cancel()
                return None
        if future.status == "finished":
            reply = future.result()
            return reply if _is_reply(reply) else Reply("", refusal="it answers with something else than a measurement")
        error = future.exception()
        if future.status != "error" or _is_loss(error):
            return None
        return Reply("", refusal=f"{type(error).__name__}: {first_line(error)}")

    def _is_there(self, address: str) -> bool:
        with self._lock:
            self._refresh()
            return address in self._known

    def _refresh(self) -> None:
        """Update the set of workers, at most every `_POLL` seconds; it is empty while the scheduler is silent."""
        now = time.monotonic()
        if now - self._refreshed_at < _POLL:
            return
        self._known = set()
        with suppress(Exception):
            # `scheduler_info` has no workers at times; Dask itself refreshes it like this.
            self._known = set(self._client.sync(self._client.scheduler.ncores, callback_timeout=_CONNECT))
        self._refreshed_at = time.monotonic()
        if self._known:
            self._last_seen = now

    def _leave(self) -> None:
        with suppress(Exception):  # a lost worker has nothing to close
            self._client.run(close_session, self.session, on_error="ignore")
        with suppress(Exception):
            self._client.close()


def _is_reply(reply: object) -> bool:
    """Whether an object from a machine is a reply of this version, with valid outcomes."""
    if type(reply) is not Reply or not all(isinstance(text, str) for text in (reply.machine, reply.refusal)):
        return False
    outcomes = reply.value if isinstance(reply.value, list) else [reply.value]
    return reply.value is None or all(type(one) is not Outcome or one.is_plain for one in outcomes)


def _is_loss(error: BaseException) -> bool:
    from distributed import KilledWorker

    return isinstance(error, KilledWorker)


class RemoteWorker(Worker):
    """A worker that opens kernels on this machine, and measures them on others."""

    def __init__(self, backend: str, part: CompileRequest, limits: Limits, remotes: Remotes) -> None:
        super().__init__(backend, part, limits)
        self._remotes = remotes
        self._opened = leaf_description(backend, part, limits, remotes.session)

    def measure(self, key: str, choices: Choices, repeats: int = 3, beside: Choices | None = None) -> Outcome:
        """Build, check and time a candidate on a machine.

        Args:
            key: the key of the kernel.
            choices: the candidate.
            repeats: how often to time it.
            beside: a candidate to time by turns with it.

        Returns:
            The outcome.
        """
        other = None if beside is None else as_json(beside)
        try:
            return self._remotes.run(
                measure_on_worker, self._opened, key, as_json(choices), repeats, other, until=self.until
            )
        except LostError as error:
            return Outcome(error.status, why=str(error))

    def compare(self, key: str, candidates: Sequence[Choices], rounds: int) -> list[Outcome]:
        """Time candidates by turns, all on one machine.

        Args:
            key: the key of the kernel.
            candidates: the candidates.
            rounds: the number of turns.

        Returns:
            An outcome for each; none if the time is up.
        """
        listed = list(map(as_json, candidates))
        try:
            return self._remotes.run(compare_on_worker, self._opened, key, listed, rounds, until=self.until)
        except LostError:
            return []
