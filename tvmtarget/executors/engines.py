"""The engines of distributed runtimes."""

from __future__ import annotations

from tvmtarget.executors.cluster import Cluster, Engine
from tvmtarget.executors.dask import DaskCrew
from tvmtarget.executors.processes import ProcessCrew
from tvmtarget.target.node import Runtime

__all__ = ["engine_of"]


def engine_of(runtime: Runtime, cluster: Cluster) -> Engine:
    """Return the engine of a distributed runtime; nothing is started before the first run."""
    if runtime.kind == "dask":
        return Engine(lambda: DaskCrew(runtime, cluster))
    return Engine(lambda: ProcessCrew(cluster))
