"""The engines of distributed runtimes."""

from __future__ import annotations

from typing import NoReturn

from tvmtarget.errors import RunError
from tvmtarget.runtimes.dask import DaskWorkerGroup
from tvmtarget.runtimes.processes import ProcessWorkerGroup
from tvmtarget.runtimes.protocol import Cluster, Engine
from tvmtarget.target.node import Runtime

__all__ = ["engine_of"]


def engine_of(runtime: Runtime | str, cluster: Cluster) -> Engine:
    """Return the engine of a distributed runtime, or one that says why there is none; nothing starts before a run."""
    if isinstance(runtime, str):
        return Engine(lambda: _refuse(runtime))
    if runtime.kind == "dask":
        return Engine(lambda: DaskWorkerGroup(runtime, cluster))
    return Engine(lambda: ProcessWorkerGroup(cluster))


def _refuse(reason: str) -> NoReturn:
    raise RunError(reason)
