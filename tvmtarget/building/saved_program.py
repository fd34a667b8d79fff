"""Describe a saved program, and whether this machine can run it; nothing of the file is compiled, opened or run.

Each leaf function gets a verdict:

    fits        its native code runs here or through a runner, or its code generator takes no time to compile it
    recompile   this machine can run it, but has to compile the source first, with the reason
    cannot      this machine cannot run it, with the reason

The facts are those of the manifest: the target of each leaf (triple, CPU and features, architecture of a GPU), its code
generator and version, and whether native code is stored. Native code is used only with trust; without it, each leaf is
compiled again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tvmtarget.artifact import read_files
from tvmtarget.backends.machine import foreign_hosts, interpreter_mismatch
from tvmtarget.backends.protocol import backend_named
from tvmtarget.backends.sharing import device_index
from tvmtarget.building.leaf_function import LeafFacts
from tvmtarget.building.manifest import Manifest, reading
from tvmtarget.building.systems import SystemFacts, executor_of_path, system_of_path
from tvmtarget.errors import BackendError, MissingExtraError, RunError, TargetError
from tvmtarget.executors.protocol import ProgramExecutor, executor_named
from tvmtarget.target.argument_types import check_arguments
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import Target
from tvmtarget.toolchains.runners import is_local, runner_for
from tvmtarget.untrusted import parse_json

__all__ = ["MachineFit", "SavedProgram", "Verdict", "inspect"]

Verdict: TypeAlias = Literal["fits", "recompile", "cannot"]
_ORDER: tuple[Verdict, ...] = ("fits", "recompile", "cannot")


@dataclass(frozen=True)
class MachineFit:
    """Whether this machine can run a leaf function.

    Attributes:
        function: The name of the function.
        site: The path of its leaf.
        backend: Its code generator, with the version that compiled it.
        native_bytes: Bytes of native code in the file.
        verdict: `fits`, `recompile` or `cannot`.
        reason: Why it does not fit; empty if it does.
        runner: The command that runs it on another machine, such as QEMU's; empty if this process does.
    """

    function: str
    site: str
    backend: str
    native_bytes: int
    verdict: Verdict
    reason: str = ""
    runner: str = ""

    def __str__(self) -> str:
        by = f" through runner {self.runner!r}" if self.runner else ""
        return f"@{self.site or '.'} {self.function}: {self.verdict}{by}" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True)
class SavedProgram:
    """What the manifest of a saved program says.

    Attributes:
        name: The name of the program.
        target: The root of its target.
        leaves: Its leaf functions, and whether this machine can run them.
        hosts: Why hosts that drive leaves are not this machine, by path.
        machines: Paths of the machines of a cluster.
        self_test: What computed the outputs of its self-test; empty if it has none.
        files: Bytes of each file by name.
    """

    name: str
    target: Target
    leaves: tuple[MachineFit, ...]
    hosts: Mapping[str, str]
    machines: tuple[str, ...]
    self_test: str
    files: Mapping[str, int]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all leaves and hosts."""
        verdicts = [leaf.verdict for leaf in self.leaves] + ["cannot" for _ in self.hosts]
        return max(verdicts, key=_ORDER.index, default="fits")

    def to_json(self) -> dict[str, Any]:
        """Return all fields and the verdict, as JSON data."""
        return {
            "name": self.name,
            "target": self.target.to_json(),
            "verdict": self.verdict,
            "leaves": [asdict(leaf) for leaf in self.leaves],
            "hosts": dict(self.hosts),
            "machines": list(self.machines),
            "self_test": self.self_test,
            "files": dict(self.files),
        }


@check_arguments
def inspect(path: str | Path) -> SavedProgram:
    """Describe a saved program, and whether this machine can run it.

    No native code is opened.

    Args:
        path: A file written by `Executable.save` or `tvmtarget compile`.

    Returns:
        The description; `leaves` has a verdict for each leaf function, with the reason.

    Raises:
        ArtifactError: The file is damaged.
    """
    facts, files = read_files(Path(path))
    place = str(path)
    with reading(place, "manifest.json"):
        manifest = Manifest.read(facts)
    with reading(place, "target.json"):
        target = Target.from_json(parse_json(files["target.json"], "'target.json'"))
        topology = Topology(target)
    sizes = {name: len(data) for name, data in files.items()}
    with reading(place, "manifest.json"):
        leaves = tuple(_fit(leaf, topology, manifest.systems, sizes) for leaf in manifest.leaves)
    hosts = {} if manifest.machines else foreign_hosts(topology, _called_sites(manifest, topology))
    return SavedProgram(
        name=manifest.name,
        target=target,
        leaves=leaves,
        hosts={host: reason for host, (_, reason) in hosts.items()},
        machines=manifest.machines,
        self_test=manifest.self_test,
        files=sizes,
    )


def _called_sites(manifest: Manifest, topology: Topology) -> set[str]:
    """Return the sites whose functions this process calls; others are part of the artifacts of their systems."""
    sites = {leaf.site for leaf in manifest.leaves}
    with suppress(BackendError):  # an executor that is not installed: its leaves cannot run
        return {site for site in sites if not _executor(topology, system_of_path(topology, site)).has_runner}
    return sites


def _executor(topology: Topology, path: str) -> ProgramExecutor:
    return executor_named(executor_of_path(topology, path).kind)


def _fit(leaf: LeafFacts, topology: Topology, systems: tuple[SystemFacts, ...], sizes: Mapping[str, int]) -> MachineFit:
    folder = f"leaves/{leaf.function}/"
    native = sum(size for name, size in sizes.items() if name.startswith(folder) and name != f"{folder}source.onnx")
    path = system_of_path(topology, leaf.site)
    system = next((one for one in systems if one.path == path), None)
    reason, runner = _cannot_run(leaf, topology, path)
    verdict: Verdict = "fits" if reason is None else "cannot"
    if reason is None:
        reason = _must_compile(leaf, has_native=native > 0, system=system)
        verdict = "fits" if reason is None else "recompile"
    by = leaf.version or leaf.backend
    return MachineFit(leaf.function, leaf.site, by, native, verdict, reason or "", runner)


def _cannot_run(leaf: LeafFacts, topology: Topology, system: str) -> tuple[str | None, str]:
    """Return why a leaf function of a system cannot run, compiled again or not; and the runner of another machine."""
    target = Target.from_json(leaf.target)
    try:
        backend = backend_named(leaf.backend)
        backend.version()
        # A program of the whole system runs on the machine of its host, other functions on that of their leaf.
        is_program = _executor(topology, system).has_runner
        host = topology[topology[system].host].target
        machine = host if is_program else target if "runner" in backend.supports else None
        if machine is not None and not is_local(machine):
            return None, str(runner_for(machine))
    except (MissingExtraError, BackendError, RunError, TargetError) as error:
        return str(error), ""
    if target.kind not in backend.kinds and leaf.backend == "numpy":
        return interpreter_mismatch(target), ""
    return backend.unsupported_reason(target, device_index(leaf.site)), ""


def _must_compile(leaf: LeafFacts, *, has_native: bool, system: SystemFacts | None) -> str | None:
    """Return why a function that can run here has to be compiled first."""
    backend, target = backend_named(leaf.backend), Target.from_json(leaf.target)
    if backend.version() != leaf.version:
        return f"{leaf.version} compiled it, and {backend.version()} is installed"
    if system is not None:  # its code is part of the system's artifact
        version = executor_named(system.executor).version()
        if version != system.version:
            return f"version {system.version} of executor {system.executor!r} made it, and {version} is installed"
        return None
    if not has_native and backend.code_version(target) is not None:
        return "the file has no native code for it"
    return None
