"""The engines of distributed runtimes."""

from __future__ import annotations

from tvmtarget.executors.cluster import Cluster, Engine
from tvmtarget.executors.dask import Dask
from tvmtarget.executors.processes import Processes
from tvmtarget.target.node import Runtime

__all__ = ["engine_of"]


def engine_of(runtime: Runtime, cluster: Cluster) -> Engine:
    """Return the engine of a distributed runtime; nothing is started before the first run."""
    return Dask(runtime, cluster) if runtime.kind == "dask" else Processes(cluster)
