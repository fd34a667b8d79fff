"""What runs on a worker of Dask: it measures kernels in processes of its own, or says why this machine cannot.

These processes are kept open for the next question, until whoever asks closes them or the worker ends.
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

__all__ = ["Reply", "closed", "compared", "measured", "opening"]

_KEPT = 2  # leaf functions that a machine keeps open

_Value = TypeVar("_Value")

# The leaf functions that are open in this process, the last used last; one is asked at a time.
_OPEN: dict[tuple[object, ...], Worker] = {}
_ASKING = threading.Lock()


@dataclass(frozen=True)
class Reply(Generic[_Value]):
    """What a machine answers: a value, or why it cannot measure what it is asked to; and which machine it is.

    Or it has not the source of the leaf function, and must be asked again with it.
    """

    machine: str
    value: _Value | None = None
    refusal: str = ""
    lacks_source: bool = False


def opening(backend: str, part: CompileRequest, limits: Limits, session: str) -> dict[str, object]:
    """Return all that a worker needs to open a leaf function, and with which versions; `session` is who asks.

    The source, which may be large, need not be sent again to a worker that has it.
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


def measured(
    opened: Mapping[str, Any], seconds: float | None, key: str, choices: Choices, repeats: int, beside: Choices | None
) -> Reply[Outcome]:
    """Measure a candidate, and what is beside it, within some seconds."""

    def ask(worker: Worker) -> Outcome:
        return replace(worker.measure(key, choices, repeats, beside), env=environment())

    return _reply(opened, seconds, ask)


def compared(
    opened: Mapping[str, Any], seconds: float | None, key: str, candidates: Sequence[Choices], rounds: int
) -> Reply[list[Outcome]]:
    """Compare candidates within some seconds."""

    def ask(worker: Worker) -> list[Outcome]:
        return [replace(outcome, env=environment()) for outcome in worker.compare(key, candidates, rounds)]

    return _reply(opened, seconds, ask)


def closed(session: str) -> None:
    """End the processes of whoever asked."""
    for name in [name for name in _OPEN if name[0] == session]:
        _OPEN.pop(name).close()


def _reply(opened: Mapping[str, Any], seconds: float | None, ask: Callable[[Worker], _Value]) -> Reply[_Value]:
    until = None if seconds is None else time.monotonic() + seconds
    refusal = _refusal(opened)
    if refusal:
        return Reply(_machine(), refusal=refusal)
    with _ASKING:
        worker = _worker(opened)
        if worker is None:
            return Reply(_machine(), lacks_source=True)
        worker.until = until
        return Reply(_machine(), ask(worker))


def _refusal(opened: Mapping[str, Any]) -> str:
    """Say why this machine cannot measure what is opened, or would measure something else; nothing if it can."""
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
    return backend.refuses(target) or (_first(answer) if answer.truth is Truth.NO else "")


def _first(reason: Reason) -> str:
    """Return the innermost first thing that is not so."""
    inner = next((part for part in reason.parts if part.truth is Truth.NO), None)
    return reason.text if inner is None else _first(inner)


@cache
def _machine() -> str:
    """Return this machine as the target that it is."""
    return str(Target.detect())


def _worker(opened: Mapping[str, Any]) -> Worker | None:
    """Return what measures a leaf function; None if its source was not sent, and is not there from before."""
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
