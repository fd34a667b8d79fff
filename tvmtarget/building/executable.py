"""`Executable`: a compiled program, that runs and can be saved; `load` reads it back."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from tvmtarget.artifact import read_files, write_files
from tvmtarget.autotune.log.applied import Applied
from tvmtarget.backends.aligned import aligned
from tvmtarget.backends.machine import refuses_interpreter
from tvmtarget.backends.protocol import Array, Backend, Compiled, CompileRequest, FixedSchedules, backend_named
from tvmtarget.backends.sharing import device_index
from tvmtarget.errors import ArtifactError, MissingExtraError, RunError, TvmTargetError, raise_all
from tvmtarget.executors.driver_program import DriverProgram
from tvmtarget.executors.protocol import Event, RunProgram, executor_named
from tvmtarget.executors.signatures import check_inputs, check_outputs
from tvmtarget.executors.verify_driver import verify_program
from tvmtarget.files import temporary_folder
from tvmtarget.ir.onnx.reader import decode_model
from tvmtarget.ir.onnx.tensors import external_tensors
from tvmtarget.ir.traces import TRACE_FORMAT, trace_problem
from tvmtarget.partition.machines.machine import Machines, is_distributed
from tvmtarget.runtimes.protocol import Cluster, Engine, WorkerEngine, WorkerGroup, runtime_named, unmatched_transfers
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.problems import shown
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import Target
from tvmtarget.untrusted import parse_json, read_arrays
from tvmtarget.version import __version__

__all__ = ["Executable", "Leaf", "LeafCall", "load", "open_machine"]


def load(path: str | Path, *, trust: bool = False, scheduler: str | None = None, insecure: bool = False) -> Executable:
    """Read a saved program. Nothing of it is executed before the first run.

    With `trust`, you say that whoever wrote the file may run code on this machine as you: its native code is used, and
    the leaves that have none are compiled whatever they hold. Without, the leaves are compiled again, from the models
    that are saved beside it, and only if those hold nothing but operators of their code generator: code of TIR, calls
    of functions of this process and options of LLVM are refused.

    Args:
        path: a file that `Executable.save` or `tvmtarget compile` wrote.
        trust: whether whoever wrote the file may run code on this machine as you.
        scheduler: the Dask scheduler on whose workers a program of runtime `dask` runs. One that the file names is used
            only if it is trusted, or is this one.
        insecure: use that scheduler without TLS too.

    Raises:
        ArtifactError: the file is damaged, or holds what may only be used with trust.
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
    leaves: dict[str, Leaf] = {}
    for leaf in manifest.leaves:
        with _reading(place, "manifest.json"):
            leaves[leaf.function] = Leaf.read(leaf, files, trust=trust)
        with _reading(place, f"leaves/{leaf.function}/source.onnx"):
            _check_source(leaves[leaf.function].part)
    raise_all(ArtifactError, [*_not_allowed(place, leaves, manifest.allow_interpreter)])
    programs: dict[str, DriverProgram] = {}
    for name, member in {"": "program.json", **{name: f"machines/{name}.json" for name in manifest.machines}}.items():
        with _reading(place, member):
            programs[name] = DriverProgram.read(files[member])
    program = programs.pop("")
    raise_all(ArtifactError, [f"{place!r} cannot run: {problem}" for problem in unmatched_transfers(programs)][:5])
    arities = {name: (len(leaf.part.inputs), len(leaf.part.outputs)) for name, leaf in leaves.items()}
    for name, part in {"": program, **programs}.items():
        whose = f"the program of machine {name!r} in {place!r}" if name else f"the program in {place!r}"
        with _reading(place, f"machines/{name}.json" if name else "program.json"):
            verify_program(part, arities, constants.keys(), tuple(programs), whose)
    with _reading(place, "manifest.json"):
        tuned = tuple(map(Applied.from_json, manifest.tuned))
        calls = tuple(map(LeafCall.read, manifest.leaves if manifest.calls is None else manifest.calls))
        runtime = target.runtime if trust else _runtime_here(target.runtime, place, scheduler, insecure=insecure)
        return Executable(target, program, constants, leaves, manifest.name, tuned, programs, calls, runtime)


class _Facts(BaseModel):
    """Objects of a manifest; fields that this version does not know are left alone."""

    model_config = ConfigDict(frozen=True)


class _CallFacts(_Facts):
    function: str
    call: str | None = None
    ops: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class _LeafFacts(_CallFacts):
    site: str
    backend: str
    version: str
    note: str
    target: dict[str, Any]
    tuned: tuple[dict[str, Any], ...] = ()


class _Manifest(_Facts):
    """What the manifest of a saved program says beside the digests of its files."""

    name: str
    leaves: tuple[_LeafFacts, ...]
    calls: tuple[_CallFacts, ...] | None = None  # files of older versions have none: each function is called once
    machines: tuple[str, ...] = ()
    tuned: tuple[dict[str, Any], ...] = ()
    allow_interpreter: bool = False


@contextmanager
def _reading(path: str, member: str) -> Iterator[None]:
    """Turn what reading a member of a saved program raises into an `ArtifactError` that names both."""
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
    except Exception as error:  # of any reader: EOFError, KeyError, MemoryError, RecursionError, struct.error, ...
        reason = str(error) or type(error).__name__
        reason = f"it has no {error}" if type(error) is KeyError else reason
        raise ArtifactError(f"{path!r} is damaged: {member!r}: {reason}", path=path, member=member) from error


def _check_source(part: CompileRequest) -> None:
    """Raise an error for the model of a leaf that is not of its signature, or needs other files."""
    if part.is_relax:
        return
    model = decode_model(part.source, "it")
    tensor = next(external_tensors(model), None)
    if tensor is not None:
        raise ValueError(f"the data of tensor {tensor.name!r} lies in another file")
    initialized = {one.name for one in model.graph.initializer}
    inputs = [one.name for one in model.graph.input if one.name not in initialized]
    outputs = [one.name for one in model.graph.output]
    for what, found, stated in (("inputs", inputs, part.inputs), ("outputs", outputs, part.outputs)):
        if tuple(found) != stated:
            raise ValueError(f"its {what} are {shown(found)}, and the manifest says {shown(list(stated))}")


def _not_allowed(path: str, leaves: Mapping[str, Leaf], allow_interpreter: object) -> Iterator[str]:
    """Yield which leaves of a saved program are interpreted though it was not built to allow that."""
    for site in dict.fromkeys(leaf.part.site for leaf in leaves.values() if leaf.is_interpreted):
        if allow_interpreter is not True:
            yield f"{path!r} has @{site or '.'} interpreted, and was not built with allow_interpreter; build it again"


def _runtime_here(runtime: Runtime | None, path: str, scheduler: str | None, *, insecure: bool) -> Runtime | str | None:
    """Return the runtime of a saved program with the scheduler that its user names, or why it cannot run."""
    if runtime is None or runtime.kind != "dask":
        if scheduler is not None:
            raise ArtifactError(f"{path!r} runs on no Dask cluster, so that scheduler {scheduler!r} is of no use to it")
        return runtime
    if scheduler is not None:
        return Runtime("dask", {**runtime.attrs, "address": scheduler, "insecure": insecure})
    if runtime["address"]:
        address = str(runtime["address"])
        return (
            f"{path!r} names a Dask scheduler, {address!r}, which would get the inputs and may run code as you; if it "
            f"is yours, name it yourself: scheduler={address!r}, --scheduler {address}"
        )
    return Runtime("dask", {name: value for name, value in runtime.attrs.items() if name != "insecure"})


def open_machine(data: bytes) -> RunProgram:
    """Open what `Executable` packs for one machine of a cluster, where that machine is."""
    with temporary_folder() as folder:
        path = folder / "machine"
        path.write_bytes(data)
        return load(path, trust=True).run_here


@dataclass(frozen=True, slots=True)
class LeafCall:
    """One of the calls of a leaf function: its name behind those of the drivers around it, and what it does there."""

    function: str
    call: str
    ops: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def describe(self) -> dict[str, Any]:
        """Return it as data."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def read(cls, facts: _CallFacts) -> LeafCall:
        """Read what `describe` gave, or, from older files, what is said of the function of a single call."""
        return cls(facts.function, facts.call or facts.function, facts.ops, facts.inputs, facts.outputs)


@dataclass
class Leaf:
    """A leaf function: where it runs, who compiles it, and what came out, once that is needed.

    `note` is what must be told if the backend is not the one that the leaf's kind asks for; `tuned` is what a tuning
    log knew of its kernels. `key` is what its code depends on, '' where that is not known.
    """

    part: CompileRequest
    backend: Backend
    note: str = ""
    tuned: tuple[Applied, ...] = ()
    _compiled: Compiled | None = field(default=None, repr=False)
    key: str = ""

    @property
    def compiled(self) -> Compiled:
        """The compiled function; a loaded one is compiled, or its native code opened, at first use."""
        if self._compiled is None:
            self._compiled = self.backend.compile(self.part)
        return self._compiled

    @property
    def is_interpreted(self) -> bool:
        """Whether the backend stands in for the code generator that the leaf's kind names."""
        return self.part.target.kind not in self.backend.kinds

    @cached_property
    def refusal(self) -> str | None:
        """Why this machine cannot execute the function on the device that its site is, or None."""
        refuses_on = getattr(self.backend, "refuses_on", None)
        if refuses_on is None:
            return self.backend.refuses(self.part.target)
        return str(said) if (said := refuses_on(device_index(self.part.site), self.part.target)) else None

    def check(self) -> None:
        """Raise `RunError` if this machine cannot execute the function."""
        if self.refusal is not None:
            raise RunError(f"@{self.part.site or '.'} cannot run on this machine: {self.refusal}")

    def report(self, call: LeafCall) -> dict[str, Any]:
        """Return what ran where in one of its calls."""
        return {"site": self.part.site, **call.describe(), "backend": self.backend.name}

    def describe(self) -> dict[str, Any]:
        """Return what a manifest says of the function."""
        return {
            "site": self.part.site,
            "function": self.part.name,
            "ops": list(self.part.ops),
            "inputs": list(self.part.inputs),
            "outputs": list(self.part.outputs),
            "backend": self.backend.name,
            "version": self.backend.version(),
            "note": self.note,
            "tuned": [applied.to_json() for applied in self.tuned],
            "target": self.part.target.to_json(),
        }

    @classmethod
    def read(cls, facts: _LeafFacts, files: Mapping[str, bytes], *, trust: bool) -> Leaf:
        """Read one function of a saved program; native code by another version of its backend is left alone."""
        folder = f"leaves/{facts.function}/"
        native = {name.removeprefix(folder): data for name, data in files.items() if name.startswith(folder)}
        source = native.pop("source.onnx", None)
        if source is None:
            raise ValueError(f"'{folder}source.onnx' is not there")
        backend = backend_named(facts.backend)
        tuned = tuple(map(Applied.from_json, facts.tuned))
        for applied in tuned:
            problem = trace_problem(applied.body) if applied.is_used and applied.format == TRACE_FORMAT else None
            if problem is not None:
                name = f"kernel {applied.what} in function {facts.function!r}"
                raise ValueError(f"the schedule of {name} may not be applied: {problem}")
        bodies = {(one.key, one.format): one.body for one in tuned if one.is_used}
        target = Target.from_json(facts.target)
        if not trust:
            _check_options(target, facts.function)
        part = CompileRequest(
            name=facts.function,
            source=source,
            site=facts.site,
            target=target,
            ops=facts.ops,
            inputs=facts.inputs,
            outputs=facts.outputs,
            native=native if trust and backend.version() == facts.version else {},
            schedules=FixedSchedules(bodies) if bodies else None,
            is_trusted=trust,
        )
        return cls(part, backend, facts.note, tuned)


def _check_options(target: Target, function: str) -> None:
    """Raise `ValueError` for a leaf of a stranger with options of LLVM itself, some of which write files."""
    hosts = [target.host] if isinstance(target.host, Target) else []
    if any("cl-opt" in node.attrs for root in (target, *hosts) for _, node in root.walk()):
        raise ValueError(f"function {function!r} is compiled with options of LLVM (cl-opt), which only trust allows")


class Executable:
    """A compiled program: `exe.run({"input": x})`, or `exe(x)` with inputs in order.

    Where the runtime is distributed, `machines` are the programs of the machines of a cluster, by path; `runtime` is
    that which they run by, if it is not the target's, or why they cannot.
    """

    def __init__(
        self,
        target: Target,
        program: DriverProgram,
        constants: Mapping[str, Array],
        leaves: Mapping[str, Leaf],
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
        self._domains = {name: topology[leaf.part.site].domain for name, leaf in self._leaves.items()}
        self._in_memory = {self._domains[name]: leaf for name, leaf in self._leaves.items()}
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
        """What did not go as the target asks, a line each: leaves that are interpreted, and why."""
        return tuple(dict.fromkeys(leaf.note for leaf in self._leaves.values() if leaf.note))

    @property
    def tuned(self) -> tuple[Applied, ...]:
        """What the build asked a tuning log for, and from which tier the answers came; empty without a log."""
        return (*self._tuned, *(applied for leaf in self._leaves.values() for applied in leaf.tuned))

    @property
    def code(self) -> dict[str, Leaf]:
        """The leaf functions by what their code depends on, but for what a log had to say."""
        return {leaf.key: leaf for leaf in self._leaves.values() if leaf.key}

    @property
    def backends(self) -> dict[str, str]:
        """Which backend runs each leaf function."""
        return {name: leaf.backend.name for name, leaf in self._leaves.items()}

    def report(self) -> dict[str, Any]:
        """Return which backends run, the subgraphs (site, ops, inputs, outputs, ...) and the copies, as data."""
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
        """Run on inputs in order; return the output, or a tuple of them if there are several."""
        if len(inputs) != len(self.inputs):
            raise RunError(
                f"{len(inputs)} inputs are given, and the program takes {len(self.inputs)}: {', '.join(self.inputs)}"
            )
        results = tuple(self.run(dict(zip(self.inputs, inputs, strict=True))).values())
        return results[0] if len(results) == 1 else results

    def run(self, inputs: Mapping[str, object], *, record: Callable[[Event], None] | None = None) -> dict[str, Array]:
        """Run on inputs by name; return outputs by name.

        `record` is told of every call of a leaf function and every copy, as it happens. Raises `RunError` for
        inputs that do not fit and for leaves whose code this machine cannot execute.
        """
        values = check_inputs(self._program.inputs, inputs)
        raise_all(RunError, self._foreign_hosts)
        results = self._engine.run(values, record)
        return self._outputs(results)

    @cached_property
    def _foreign_hosts(self) -> tuple[str, ...]:
        """Why hosts that drive work from this process are other machines; one with work of its own says so itself."""
        if is_distributed(self.target):
            return ()
        topology, sites = Topology(self.target), {leaf.part.site for leaf in self._leaves.values()}
        driven = dict.fromkeys(path for site in sorted(sites) for path in (*_above(site), site))
        hosts = {topology[path].host: path for path in driven if topology[path].host not in sites}
        refusals = {host: refuses_interpreter(topology[host].target) for host in hosts}
        return tuple(
            f"@{hosts[host] or '.'} cannot run on this machine: its host is another machine: {refusal}"
            for host, refusal in refusals.items()
            if refusal is not None
        )

    def _outputs(self, results: Sequence[Any]) -> dict[str, Array]:
        """Return results by name; those that come from other machines are what the program says, or an error."""
        here = list(map(_here, results))
        if self._machines:
            check_outputs(self._program.outputs, here)
        return dict(zip(self.outputs, here, strict=True))

    def stream(self, inputs: Iterable[Mapping[str, object]], *, depth: int = 8) -> Iterator[dict[str, Array]]:
        """Run on inputs that follow each other; yield their outputs in order.

        On a cluster up to `depth` of them are under way at a time, each machine at another one.
        """
        raise_all(RunError, self._foreign_hosts)
        checked = (check_inputs(self._program.inputs, given) for given in inputs)
        yield from map(self._outputs, self._engine.stream(checked, depth))

    def close(self) -> None:
        """End the processes that a distributed runtime has started; the next run starts new ones."""
        self._engine.close()

    def profile(self, inputs: Mapping[str, object]) -> tuple[Event, ...]:
        """Run once and return every leaf call and copy in order, each with its duration in nanoseconds."""
        events: list[Event] = []
        self.run(inputs, record=events.append)
        return tuple(events)

    def save(self, path: str | Path) -> None:
        """Write the program into one file, whole or not at all; the same program makes the same bytes."""
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
        """Return a saved program that holds what one machine needs."""
        program = self._machines.get(machine, self._program)
        called = {step.call for driver in program.drivers.values() for step in driver.walk()} | {program.entry}
        with temporary_folder() as folder:
            path = folder / "machine"
            self._save(path, program, {name: leaf for name, leaf in self._leaves.items() if name in called}, {})
            return path.read_bytes()

    def _save(
        self, path: Path, program: DriverProgram, leaves: Mapping[str, Leaf], machines: Mapping[str, DriverProgram]
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
            files[f"leaves/{name}/source.onnx"] = leaf.part.source
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
            run_on = getattr(leaf.compiled, "run_on", None)
            if run_on is None:
                return leaf.compiled.run(inputs)
            results = run_on(device_index(leaf.part.site), inputs)
            return [*map(_here, results)] if self._domains[name] in self._shared else results
        except TvmTargetError:
            raise
        except Exception as error:
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            alike = (one for one in self._calls if one.function == name and one.call.rpartition("/")[2] == call)
            names = next((one.ops for one in alike), leaf.part.ops)
            ops = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            raise RunError(f"function {name!r} of @{leaf.part.site or '.'} ({ops}) failed: {reason}") from error

    def _copy(self, value: Any, src: str, dst: str) -> Any:  # noqa: ANN401
        """Copy into a memory: by the backend of a leaf there if that knows how, else within this process."""
        leaf, given = self._in_memory.get(dst), value
        value = _here(given)
        place = getattr(leaf.backend, "place", None) if leaf is not None else None
        if leaf is not None and place is not None and dst not in self._shared:
            leaf.check()
            return place(value, leaf.part.target, device_index(leaf.part.site))
        copy = getattr(leaf.backend, "copy", None) if leaf is not None else None
        if copy is not None:
            return copy(value, src, dst)
        return value.copy() if isinstance(given, np.ndarray) else value


def _above(site: str) -> Iterator[str]:
    """Yield the paths of the systems around a site, the root first."""
    names = site.split("/") if site else []
    yield from ("/".join(names[:count]) for count in range(len(names)))


def _here(value: Any) -> Any:  # noqa: ANN401
    """Return a value of a device's memory as an array of this process; others are here."""
    if isinstance(value, list):
        return [_here(item) for item in value]
    return value if isinstance(value, np.ndarray) or not hasattr(value, "numpy") else value.numpy()
