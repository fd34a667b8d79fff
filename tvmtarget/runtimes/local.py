"""The runtimes of one machine: `python`, `cpp` and `crt`.

All call the artifact of the root in this process; they differ in the language that executors compile it for. What is
deployed without this library is what an executor exports.
"""

from __future__ import annotations

from tvmtarget.runtimes.protocol import Cluster, LocalEngine, ProgramRuntime
from tvmtarget.target.node import Runtime

__all__ = ["CPP", "CRT", "PYTHON", "LocalRuntime"]


class LocalRuntime(ProgramRuntime):
    """Calls artifacts in this process.

    Args:
        convention: the runtime kind that executors compile for.
        honours: attributes of the kind that executors honour.
    """

    def __init__(self, convention: str, honours: frozenset[str] = frozenset()) -> None:
        self.convention = convention
        self.honours = honours

    def engine(self, settings: Runtime, cluster: Cluster) -> LocalEngine:
        """Return an engine that calls the artifact.

        Args:
            settings: the runtime node.
            cluster: the program.

        Returns:
            The engine.
        """
        return LocalEngine(cluster.run_here)


PYTHON = LocalRuntime("python")
CPP = LocalRuntime("cpp")
CRT = LocalRuntime("crt", frozenset({"system-lib"}))  # the executor writes the table of functions
