"""Compiled programs: `Executable` runs and saves one, and `load` reads a saved one."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from tvmtarget.artifact import read_files, write_files
from tvmtarget.autotune.log.applied import Applied
from tvmtarget.backends.aligned import aligned
from tvmtarget.backends.machine import interpreter_mismatch
from tvmtarget.backends.protocol import Array, DeviceValue
from tvmtarget.building.leaf_function import CallFacts, LeafCall, LeafFacts, LeafFunction
from tvmtarget.errors import ArtifactError, MissingExtraError, RunError, TvmTargetError, raise_all
from tvmtarget.executors.driver_program import DriverProgram
from tvmtarget.executors.protocol import Event, RunProgram, executor_named
from tvmtarget.executors.signatures import check_inputs, check_outputs
from tvmtarget.executors.verify_driver import verify_program
from tvmtarget.files import temporary_folder
from tvmtarget.partition.machines.machine import Machines, is_distributed
from tvmtarget.runtimes.protocol import Cluster, Engine, WorkerEngine, WorkerGroup, runtime_named, unmatched_transfers
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import Target
from tvmtarget.untrusted import parse_json, read_arrays
from tvmtarget.version import __version__

__all__ = ["Executable", "load", "open_machine"]


def load(path: str | Path, *, trust: bool = False, scheduler: str | None = None, insecure: bool = False) -> Executable:
    """Read a saved program; nothing of it is executed before the first run.

    Without trust, each leaf function is compiled again from its source in the file, and only if the source holds
    nothing but operators of its code generator: TIR code, calls of functions of this process, and options of LLVM are
    errors. With trust, the native code in the file is used, and functions without native code are compiled whatever
    their source holds.

    Args:
        path: A file written by `Executable.save` or `tvmtarget compile`.
        trust: Whether the author of the file may run code on this machine as you.
        scheduler: The Dask scheduler on whose workers a program of runtime `dask` runs. A scheduler that the file names
            is used only with trust, or if it is this one.
        insecure: Accept a scheduler without TLS.

    Returns:
        The executable.

    Raises:
        ArtifactError: The file is damaged, or holds code that needs trust.
    """
    facts, files = read_files(Path(path))
    place = str(path)
    with _reading(place, "manifest.json"):
        manifest = _Manifest.model_validate_json(json.dumps(facts), strict=True)
        names = [leaf.function for leaf in manifest.leaves]
        if len(set(names)) < len(names):
            raise ValueError("it lists a function twice")
    with _reading(place, "target.json"):
        target = Target.from_json(parse_json(files["target.json"], "'target.json'"))
    with _reading(place, "constants.npz"):
        constants = read_arrays(io.BytesIO(files["constants.npz"]), "'constants.npz'")
    leaves: dict[str, LeafFunction] = {}
    for leaf in manifest.leaves:
        with _reading(place, "manifest.json"):
            leaves[leaf.function] = LeafFunction.read(leaf, files, trust=trust)
        with _reading(place, f"leaves/{leaf.function}/source.onnx"):
            leaves[leaf.function].check_source()
    raise_all(ArtifactError, [*_not_allowed_to_interpret(place, leaves, manifest.allow_interpreter)])
    programs: dict[str, DriverProgram] = {}
    for name, member in {"": "program.json", **{name: f"machines/{name}.json" for name in manifest.machines}}.items():
        with _reading(place, member):
            programs[name] = DriverProgram.read(files[member])
    program = programs.pop("")
    raise_all(ArtifactError, [f"{place!r} cannot run: {problem}" for problem in unmatched_transfers(programs)][:5])
    arities = {name: (len(leaf.request.inputs), len(leaf.request.outputs)) for name, leaf in leaves.items()}
    for name, part in {"": program, **programs}.items():
        whose = f"the program of machine {name!r} in {place!r}" if name else f"the program in {place!r}"
        with _reading(place, f"machines/{name}.json" if name else "program.json"):
            verify_program(part, arities, constants.keys(), tuple(programs), whose)
    with _reading(place, "manifest.json"):
        tuned = tuple(map(Applied.from_json, manifest.tuned))
        calls = tuple(map(LeafCall.read, manifest.leaves if manifest.calls is None else manifest.calls))
        runtime = target.runtime if trust else _safe_runtime(target.runtime, place, scheduler, insecure=insecure)
        return Executable(target, program, constants, leaves, manifest.name, tuned, programs, calls, runtime)


class _Manifest(BaseModel):
    """The manifest of a saved program, without the digests of its files; unknown fields are ignored."""

    model_config = ConfigDict(frozen=True)

    name: str
    leaves: tuple[LeafFacts, ...]
    calls: tuple[CallFacts, ...] | None = None  # None in files of older versions, which call each function once
    machines: tuple[str, ...] = ()
    tuned: tuple[dict[str, Any], ...] = ()
    allow_interpreter: bool = False


@contextmanager
def _reading(path: str, member: str) -> Iterator[None]:
    """Turn any error of the block, which reads a member of a saved program, into an `ArtifactError` that names both."""
    try:
        yield
    except MissingExtraError:
        raise
    except ArtifactError as error:
        if error.path:
            raise
        problems = error.problems if repr(path) in str(error) else [f"{path!r}: {text}" for text in error.problems]
        raise ArtifactError(*problems, path=path, member=member, offset=error.offset) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        problem = f"{path!r} is damaged: {member!r}, at {where or 'its start'}: {first['msg']}"
        raise ArtifactError(problem, path=path, member=member) from error
    except Exception as error:  # readers raise EOFError, KeyError, MemoryError, RecursionError, struct.error, ...
        reason = str(error) or type(error).__name__
        reason = f"it has no {error}" if type(error) is KeyError else reason
        raise ArtifactError(f"{path!r} is damaged: {member!r}: {reason}", path=path, member=member) from error


def _not_allowed_to_interpret(
    path: str, leaves: Mapping[str, LeafFunction], allow_interpreter: object
) -> Iterator[str]:
    """Yield an error message for each interpreted site of a program that was built without `allow_interpreter`."""
    for site in dict.fromkeys(leaf.request.site for leaf in leaves.values() if leaf.is_interpreted):
        if allow_interpreter is not True:
            yield f"{path!r} interprets @{site or '.'}, but was not built with allow_interpreter; build it again"


def _safe_runtime(runtime: Runtime | None, path: str, scheduler: str | None, *, insecure: bool) -> Runtime | str | None:
    """Return the runtime of an untrusted program with the user's scheduler, or the reason why it cannot run."""
    if runtime is None or runtime.kind != "dask":
        if scheduler is not None:
            raise ArtifactError(f"{path!r} does not run on a Dask cluster, so scheduler {scheduler!r} would be ignored")
        return runtime
    if scheduler is not None:
        return Runtime("dask", {**runtime.attrs, "address": scheduler, "insecure": insecure})
    if runtime["address"]:
        address = str(runtime["address"])
        return (
            f"{path!r} names a Dask scheduler, {address!r}, which would receive the inputs and could run code as you; "
            f"if it is yours, pass it: scheduler={address!r}, --scheduler {address}"
        )
    return Runtime("dask", {name: value for name, value in runtime.attrs.items() if name != "insecure"})


def open_machine(data: bytes) -> RunProgram:
    """Open a packed program on the machine of a cluster that runs it.

    Args:
        data: What `Executable` packed for the machine.

    Returns:
        A function that runs the program in this process.
    """
    with temporary_folder() as folder:
        path = folder / "machine"
        path.write_bytes(data)
        return load(path, trust=True).run_here


class Executable:
    """A compiled program: `exe.run({"input": x})`, or `exe(x)` with inputs in order.

    Args:
        target: The root of the resolved target.
        program: The drivers, and the signature of the entry.
        constants: Constants of the drivers by name.
        leaves: The leaf functions by name.
        name: The name of the program in saved files.
        tuned: Lookups in a tuning log for the whole program.
        machines: The programs of the machines of a cluster by path; empty unless the runtime is distributed.
        calls: The calls of leaf functions, in the order of the plan.
        runtime: The runtime, if it is not the target's own; or the reason why the program cannot run.
    """

    def __init__(
        self,
        target: Target,
        program: DriverProgram,
        constants: Mapping[str, Array],
        leaves: Mapping[str, LeafFunction],
        name: str = "default",
        tuned: Sequence[Applied] = (),
        machines: Mapping[str, DriverProgram] | None = None,
        calls: Sequence[LeafCall] = (),
        runtime: Runtime | str | None = None,
    ) -> None:
        self.target = target
        self.name = name
        self._tuned = tuple(tuned)
        self._program = program
        self._constants = {name: aligned(array) for name, array in constants.items()}
        self._leaves = dict(leaves)
        self._machines = dict(machines or {})
        self._calls = tuple(calls)
        topology = Topology(target)
        executor = target.executor or Executor("graph")
        self.run_here: RunProgram = executor_named(executor.kind).load(
            program, self._constants, self._call_leaf, self._copy, executor
        )
        self._engine = self._engine_of(runtime or target.runtime or Runtime("python"), topology)
        self._domains = {name: topology[leaf.request.site].domain for name, leaf in self._leaves.items()}
        self._in_memory = {self._domains[name]: leaf for name, leaf in self._leaves.items()}
        # Memories of CPUs: values there are arrays that every function of this process can read.
        self._shared = {leaf.domain for leaf in topology.leaves() if leaf.target.device == "cpu"}

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in order."""
        return tuple(signature.name for signature in self._program.inputs)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, in order."""
        return tuple(signature.name for signature in self._program.outputs)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on leaves that are interpreted for lack of a code generator."""
        return tuple(dict.fromkeys(leaf.note for leaf in self._leaves.values() if leaf.note))

    @property
    def tuned(self) -> tuple[Applied, ...]:
        """The lookups of the build in a tuning log, with their results; empty without a log."""
        return (*self._tuned, *(applied for leaf in self._leaves.values() for applied in leaf.tuned))

    @property
    def code(self) -> dict[str, LeafFunction]:
        """The leaf functions by the key of all that their code depends on, apart from the contents of a log."""
        return {leaf.key: leaf for leaf in self._leaves.values() if leaf.key}

    @property
    def backends(self) -> dict[str, str]:
        """The name of the backend of each leaf function."""
        return {name: leaf.backend.name for name, leaf in self._leaves.items()}

    def report(self) -> dict[str, Any]:
        """Return the backends, subgraphs, copies and tuned choices of the program, as JSON data."""
        return {
            "backends": sorted({leaf.backend.name for leaf in self._leaves.values()}),
            "subgraphs": [self._leaves[call.function].report(call) for call in self._calls],
            "copies": [
                {"driver": name, "value": step.inputs[0], "src": step.src, "dst": step.dst, "bytes": step.nbytes}
                for name, driver in self._program.drivers.items()
                for step in driver.walk()
                if step.call is None and step.control is None
            ],
        } | ({"tuned": [applied.to_json() for applied in self.tuned]} if self.tuned else {})

    def __call__(self, *inputs: object) -> Array | tuple[Array, ...]:
        """Run on inputs in order; return the output, or a tuple of several outputs."""
        if len(inputs) != len(self.inputs):
            raise RunError(
                f"{len(inputs)} inputs are given, and the program takes {len(self.inputs)}: {', '.join(self.inputs)}"
            )
        results = tuple(self.run(dict(zip(self.inputs, inputs, strict=True))).values())
        return results[0] if len(results) == 1 else results

    def run(self, inputs: Mapping[str, object], *, record: Callable[[Event], None] | None = None) -> dict[str, Array]:
        """Run the program.

        Args:
            inputs: Arrays by the name of the input.
            record: Called with each call of a leaf function and each copy, as it happens.

        Returns:
            Arrays by the name of the output, in the order of the program.

        Raises:
            RunError: Inputs have another name, type or shape, a leaf cannot run on this machine, or a function failed.
        """
        values = check_inputs(self._program.inputs, inputs)
        raise_all(RunError, self._foreign_hosts)
        results = self._engine.run(values, record)
        return self._outputs(results)

    @cached_property
    def _foreign_hosts(self) -> tuple[str, ...]:
        """Reasons why hosts of this program are not this machine.

        Hosts with leaf functions are left out: `LeafFunction.check` covers them.
        """
        if is_distributed(self.target):
            return ()
        topology, sites = Topology(self.target), {leaf.request.site for leaf in self._leaves.values()}
        nodes = dict.fromkeys(path for site in sorted(sites) for path in (*_composites_above(site), site))
        hosts = {topology[path].host: path for path in nodes if topology[path].host not in sites}
        reasons = {host: interpreter_mismatch(topology[host].target) for host in hosts}
        return tuple(
            f"@{hosts[host] or '.'} cannot run on this machine: its host is another machine: {reason}"
            for host, reason in reasons.items()
            if reason is not None
        )

    def _outputs(self, results: Sequence[Any]) -> dict[str, Array]:
        """Return results by name, after checking results of other machines against the signature."""
        here = list(map(_to_host, results))
        if self._machines:
            check_outputs(self._program.outputs, here)
        return dict(zip(self.outputs, here, strict=True))

    def stream(self, inputs: Iterable[Mapping[str, object]], *, depth: int = 8) -> Iterator[dict[str, Array]]:
        """Run on a sequence of inputs; machines of a cluster work on several at a time.

        Args:
            inputs: Arrays by name, for each run.
            depth: The most inputs in the pipeline at a time.

        Yields:
            The outputs by name, in the order of the inputs.

        Raises:
            RunError: As for `run`.
        """
        raise_all(RunError, self._foreign_hosts)
        # A generator: inputs may be endless, so each is checked only when the pipeline takes it.
        checked = (check_inputs(self._program.inputs, given) for given in inputs)
        yield from map(self._outputs, self._engine.stream(checked, depth))

    def close(self) -> None:
        """End the processes that a distributed runtime started; the next run starts new ones."""
        self._engine.close()

    def profile(self, inputs: Mapping[str, object]) -> tuple[Event, ...]:
        """Run once and return the events with their durations.

        Args:
            inputs: Arrays by the name of the input.

        Returns:
            Every call of a leaf function and every copy, in order, with durations in nanoseconds.
        """
        events: list[Event] = []
        self.run(inputs, record=events.append)
        return tuple(events)

    def save(self, path: str | Path) -> None:
        """Write the program into one file; a failed write leaves an existing file unchanged.

        Equal programs give equal bytes.

        Args:
            path: The file to write.

        Raises:
            ArtifactError: The file cannot be written.
        """
        self._save(Path(path), self._program, self._leaves, self._machines)

    def _engine_of(self, runtime: Runtime | str, topology: Topology) -> Engine:
        """Return the engine of a runtime; of the reason why there is none, one that raises it at the first run."""
        if isinstance(runtime, str):
            reason = runtime

            def reject() -> WorkerGroup:
                raise RunError(reason)

            return WorkerEngine(reject)
        if not self._machines and is_distributed(self.target):  # the packed program of one machine of a cluster
            runtime = Runtime("python")
        home = Machines(topology).home if self._machines else ""
        programs = self._machines or {home: self._program}
        return runtime_named(runtime.kind).engine(
            runtime, Cluster(home, programs, self.run_here, self._pack, open_machine)
        )

    def _pack(self, machine: str) -> bytes:
        """Return the bytes of a saved program with only the functions that one machine calls."""
        program = self._machines.get(machine, self._program)
        # The entry is a leaf function itself if the program has no driver.
        called = {step.call for driver in program.drivers.values() for step in driver.walk()} | {program.entry}
        with temporary_folder() as folder:
            path = folder / "machine"
            self._save(path, program, {name: leaf for name, leaf in self._leaves.items() if name in called}, {})
            return path.read_bytes()

    def _save(
        self,
        path: Path,
        program: DriverProgram,
        leaves: Mapping[str, LeafFunction],
        machines: Mapping[str, DriverProgram],
    ) -> None:
        buffer = io.BytesIO()
        np.savez(buffer, **self._constants)  # type: ignore[arg-type]
        files = {
            "target.json": json.dumps(self.target.to_json(), sort_keys=True).encode(),
            "program.json": program.write(),
            "constants.npz": buffer.getvalue(),
        }
        files |= {f"machines/{name}.json": part.write() for name, part in machines.items()}
        for name, leaf in leaves.items():
            files[f"leaves/{name}/source.onnx"] = leaf.request.source
            files |= {f"leaves/{name}/{file}": data for file, data in leaf.compiled.native_files().items()}
        write_files(
            path,
            files,
            name=self.name,
            version=__version__,
            tuned=[applied.to_json() for applied in self._tuned],
            allow_interpreter=any(leaf.is_interpreted for leaf in leaves.values()),
            calls=[call.describe() for call in self._calls if call.function in leaves],
            leaves=[leaf.describe() for leaf in leaves.values()],
            machines=list(machines),
        )

    def _call_leaf(self, name: str, inputs: Sequence[Any], call: str) -> Sequence[Any]:
        leaf = self._leaves[name]
        leaf.check()
        try:
            results = leaf.compiled.run_on(leaf.device, inputs)
            # Results in a memory that CPUs share are read by functions of other backends, which know arrays only.
            if "device-memory" in leaf.backend.supports and self._domains[name] in self._shared:
                return [*map(_to_host, results)]
            return results
        # Errors of this library name their cause already; the wrapping below is for those of backends.
        except TvmTargetError:
            raise
        except Exception as error:
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            # Identical subgraphs share one function; the failed call tells which of them to name.
            calls = (one for one in self._calls if one.function == name and one.call.rpartition("/")[2] == call)
            names = next((one.ops for one in calls), leaf.request.ops)
            ops = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            raise RunError(f"function {name!r} of @{leaf.request.site or '.'} ({ops}) failed: {reason}") from error

    def _copy(self, value: Any, src: str, dst: str) -> Any:  # noqa: ANN401
        """Copy a value into a memory domain, by the backend of a leaf there if it can, else within this process."""
        leaf, original = self._in_memory.get(dst), value
        value = _to_host(original)
        if leaf is not None and "device-memory" in leaf.backend.supports and dst not in self._shared:
            leaf.check()
            return leaf.backend.place(value, leaf.request.target, leaf.device)
        if leaf is not None and "copy" in leaf.backend.supports:
            return leaf.backend.copy(value, src, dst)
        # `_to_host` has copied a device value already; an array is copied here, so that two memories never share it.
        return value.copy() if isinstance(original, np.ndarray) else value


def _composites_above(site: str) -> Iterator[str]:
    """Yield the paths of the composites around a site, from the root."""
    names = site.split("/") if site else []
    yield from ("/".join(names[:count]) for count in range(len(names)))


def _to_host(value: Any) -> Any:  # noqa: ANN401
    """Copy a value from a device into an array of this process; arrays of this process are returned as they are."""
    if isinstance(value, list):
        return [_to_host(item) for item in value]
    return value.numpy() if not isinstance(value, np.ndarray) and isinstance(value, DeviceValue) else value
