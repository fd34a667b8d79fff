"""What runs on a Dask worker: it measures kernels in processes of its own, or returns why this machine cannot.

The processes stay open for the next request, until the client closes them or the worker ends.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Generic, TypeVar

from tvmtarget.autotune.log.environment import environment
from tvmtarget.autotune.search.measuring import Choices, Outcome, Worker
from tvmtarget.autotune.search.process import Limits
from tvmtarget.backends.protocol import CompileRequest, backend_named
from tvmtarget.errors import BackendError, MissingExtraError
from tvmtarget.target.constraints.reasons import Reason, Truth
from tvmtarget.target.tree import Target
from tvmtarget.version import __version__

__all__ = ["Reply", "close_session", "compare_on_worker", "leaf_description", "measure_on_worker"]

_KEPT = 2  # leaf functions that a machine keeps open

_Value = TypeVar("_Value")

# The leaf functions that are open in this process, the most recently used last; one is used at a time.
_OPEN: dict[tuple[object, ...], Worker] = {}
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Reply(Generic[_Value]):
    """The reply of a machine.

    Attributes:
        machine: the machine, as the text of its target.
        value: the result.
        refusal: why the machine cannot measure this.
        lacks_source: whether the source of the leaf function has to be sent again.
    """

    machine: str
    value: _Value | None = None
    refusal: str = ""
    lacks_source: bool = False


def leaf_description(backend: str, part: CompileRequest, limits: Limits, session: str) -> dict[str, object]:
    """Return what a worker needs to open a leaf function.

    Args:
        backend: the name of the backend.
        part: the leaf function.
        limits: the limits of a candidate.
        session: the client, whose processes are closed together.

    Returns:
        The description; its `source`, which may be large, is sent once to each worker.
    """
    return {
        "tvmtarget": __version__,
        "version": backend_named(backend).version(),
        "backend": backend,
        "name": part.name,
        "source": part.source,
        "digest": hashlib.sha256(part.source).hexdigest(),
        "site": part.site,
        "target": part.target.to_json(),
        "limits": limits,
        "session": session,
    }


def measure_on_worker(
    opened: Mapping[str, Any], seconds: float | None, key: str, choices: Choices, repeats: int, beside: Choices | None
) -> Reply[Outcome]:
    """Measure a candidate.

    Args:
        opened: the description of the leaf function.
        seconds: the time that is left, None without a limit.
        key: the key of the kernel.
        choices: the candidate.
        repeats: how often to time it.
        beside: a candidate to time by turns with it.

    Returns:
        The outcome, with the environment of this machine.
    """

    def action(worker: Worker) -> Outcome:
        return replace(worker.measure(key, choices, repeats, beside), env=environment())

    return _reply(opened, seconds, action)


def compare_on_worker(
    opened: Mapping[str, Any], seconds: float | None, key: str, candidates: Sequence[Choices], rounds: int
) -> Reply[list[Outcome]]:
    """Time candidates by turns.

    Args:
        opened: the description of the leaf function.
        seconds: the time that is left, None without a limit.
        key: the key of the kernel.
        candidates: the candidates.
        rounds: the number of turns.

    Returns:
        The outcomes, with the environment of this machine.
    """

    def action(worker: Worker) -> list[Outcome]:
        return [replace(outcome, env=environment()) for outcome in worker.compare(key, candidates, rounds)]

    return _reply(opened, seconds, action)


def close_session(session: str) -> None:
    """End the processes of a client.

    Args:
        session: the client.
    """
    for name in [name for name in _OPEN if name[0] == session]:
        _OPEN.pop(name).close()


def _reply(opened: Mapping[str, Any], seconds: float | None, action: Callable[[Worker], _Value]) -> Reply[_Value]:
    until = None if seconds is None else time.monotonic() + seconds
    refusal = _refusal(opened)
    if refusal:
        return Reply(_machine(), refusal=refusal)
    with _LOCK:
        worker = _worker(opened)
        if worker is None:
            return Reply(_machine(), lacks_source=True)
        worker.until = until
        return Reply(_machine(), action(worker))


def _refusal(opened: Mapping[str, Any]) -> str:
    """Return why this machine cannot measure a leaf function, or would measure something else; empty if it can."""
    if opened["tvmtarget"] != __version__:
        return f"it has tvmtarget {__version__}, not {opened['tvmtarget']}"
    try:
        backend = backend_named(opened["backend"])
        version = backend.version()
    except (BackendError, MissingExtraError) as error:
        return error.problems[0]
    if version != opened["version"]:
        return f"it has {version}, not {opened['version']}"
    target = Target.from_json(opened["target"])
    answer = Target.detect().why_not(target)
    return backend.unsupported_reason(target) or (_first(answer) if answer.truth is Truth.NO else "")


def _first(reason: Reason) -> str:
    """Return the first condition that is not met, at the innermost level."""
    inner = next((part for part in reason.parts if part.truth is Truth.NO), None)
    return reason.text if inner is None else _first(inner)


@cache
def _machine() -> str:
    """Return this machine as the text of its target."""
    return str(Target.detect())


def _worker(opened: Mapping[str, Any]) -> Worker | None:
    """Return the process of a leaf function; None if the source is neither sent nor known."""
    name = opened["session"], opened["backend"], opened["digest"], str(opened["target"]), opened["limits"]
    worker = _OPEN.pop(name, None)
    if worker is None:
        if "source" not in opened:
            return None
        part = CompileRequest(opened["name"], opened["source"], opened["site"], Target.from_json(opened["target"]))
        worker = Worker(opened["backend"], part, opened["limits"])
    _OPEN[name] = worker
    while len(_OPEN) > _KEPT:
        _OPEN.pop(next(iter(_OPEN))).close()
    return worker
