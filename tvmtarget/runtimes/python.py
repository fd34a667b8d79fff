"""The runtime `python`: run a program in the calling process."""

from __future__ import annotations

from tvmtarget.runtimes.protocol import Cluster, LocalEngine, ProgramRuntime
from tvmtarget.target.node import Runtime

__all__ = ["RUNTIME", "PythonRuntime"]


class PythonRuntime(ProgramRuntime):
    """Runs programs of one machine in this process; the kind has no attributes."""

    def engine(self, settings: Runtime, cluster: Cluster) -> LocalEngine:
        """Return an engine that calls the program.

        Args:
            settings: the runtime node; the kind has no attributes.
            cluster: the program.

        Returns:
            The engine.
        """
        return LocalEngine(cluster.run_here)


RUNTIME = PythonRuntime()
