"""Compiled programs: `Executable` runs and saves one, and `load` reads a saved one."""

from __future__ import annotations

import io
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtarget import plugins
from tvmtarget.artifact import folder_reader, read_files, write_files
from tvmtarget.autotune.log.applied import Applied
from tvmtarget.backends.aligned import aligned
from tvmtarget.backends.machine import foreign_hosts, is_any_x86
from tvmtarget.backends.protocol import Array, DeviceValue
from tvmtarget.building.leaf_function import LeafCall, LeafFunction
from tvmtarget.building.manifest import Manifest, reading
from tvmtarget.building.systems import SystemFacts, SystemFunction, Systems
from tvmtarget.compile_cache import CompileCache
from tvmtarget.errors import (
    ArgumentError,
    ArtifactError,
    RunError,
    TargetError,
    TvmTargetError,
    did_you_mean,
    first_line,
    raise_all,
)
from tvmtarget.executors.driver_program import DriverProgram
from tvmtarget.executors.protocol import Event, Record, RunProgram, System, executor_named
from tvmtarget.executors.signatures import check_inputs, check_outputs, check_results, dtypes_of
from tvmtarget.executors.verify_driver import verify_program
from tvmtarget.files import temporary_folder, write_arrays
from tvmtarget.partition.machines.machine import Machines, is_distributed
from tvmtarget.partition.machines.stream_simulation import STREAM_DEPTH
from tvmtarget.partition.plan import Plan
from tvmtarget.runtimes.protocol import Cluster, Engine, WorkerEngine, WorkerGroup, runtime_named, unmatched_transfers
from tvmtarget.target.argument_types import check_arguments, check_methods
from tvmtarget.target.node import Runtime
from tvmtarget.target.problems import shown
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import Target
from tvmtarget.untrusted import parse_json, read_arrays
from tvmtarget.version import __version__

if TYPE_CHECKING:
    from tvmtarget.building.self_test import SelfTest
    from tvmtarget.partition.reports.explain import Explanation

__all__ = ["Executable", "load", "open_machine"]


@check_arguments
def load(path: str | Path, *, trust: bool = False, scheduler: str | None = None, insecure: bool = False) -> Executable:
    """Read a saved program; nothing of it is executed before the first run.

    Without trust, each leaf function is compiled again from its source in the file, and only if the source holds
    nothing but operators of its code generator: TIR code, calls of functions of this process, and options of LLVM are
    errors. With trust, the native code in the file is used, and functions without native code are compiled from
    any source.

    Args:
        path: A file written by `Executable.save` or `tvmtarget compile`.
        trust: Whether the author of the file may run code on this machine as you.
        scheduler: The Dask scheduler on whose workers a program of runtime `dask` runs. A scheduler that the file names
            is used only with trust, or if it is this one.
        insecure: Accept a scheduler without TLS.

    Returns:
        The executable.

    Raises:
        ArtifactError: The file is damaged, or holds code that needs trust; or `scheduler` or `insecure` has no effect.
    """
    facts, files = read_files(Path(path))
    place = str(path)
    with reading(place, "manifest.json"):
        manifest = Manifest.read(facts)
    with reading(place, "target.json"):
        target = Target.from_json(parse_json(files["target.json"], "'target.json'"))
    with reading(place, "constants.npz"):
        constants = read_arrays(io.BytesIO(files["constants.npz"]), "'constants.npz'")
    leaves: dict[str, LeafFunction] = {}
    folder = folder_reader(files)
    for leaf in manifest.leaves:
        with reading(place, "manifest.json"):
            leaves[leaf.function] = LeafFunction.read(leaf, folder(f"leaves/{leaf.function}/"), trust=trust)
        with reading(place, f"leaves/{leaf.function}/source.onnx"):
            leaves[leaf.function].check_source()
    raise_all(ArtifactError, [*_not_allowed_to_interpret(place, leaves, manifest.allow_interpreter)])
    programs: dict[str, DriverProgram] = {}
    for name, member in {"": "program.json", **{name: f"machines/{name}.json" for name in manifest.machines}}.items():
        with reading(place, member):
            programs[name] = DriverProgram.read(files[member])
    program = programs.pop("")
    raise_all(ArtifactError, [f"{place!r} cannot run: {problem}" for problem in unmatched_transfers(programs)][:5])
    arities = {name: (len(leaf.request.inputs), len(leaf.request.outputs)) for name, leaf in leaves.items()}
    for name, part in {"": program, **programs}.items():
        whose = f"the program of machine {name!r} in {place!r}" if name else f"the program in {place!r}"
        with reading(place, f"machines/{name}.json" if name else "program.json"):
            verify_program(part, arities, constants.keys(), tuple(programs), whose)
    with reading(place, "manifest.json"):
        native = {system.function: _native_of(system, folder) for system in manifest.systems} if trust else {}
        tuned = tuple(map(Applied.from_json, manifest.tuned))
        calls = tuple(map(LeafCall.read, manifest.leaves if manifest.calls is None else manifest.calls))
        runtime = _runtime(target.runtime, place, scheduler, trust=trust, insecure=insecure)
        loaded = Executable(
            target,
            program,
            constants,
            leaves,
            manifest.name,
            tuned,
            programs,
            calls,
            runtime,
            native,
            replicas=_replicas_of(manifest, target, place),
        )
    raise_all(ArtifactError, [f"{place!r} cannot run: {reason}" for reason in loaded.unsupported_reasons()])
    if manifest.self_test:
        from tvmtarget.building.self_test import SelfTest

        with reading(place, "self-test"):
            loaded.self_test = SelfTest.read(files, manifest.self_test, manifest.self_test_halves)
    return loaded


def _replicas_of(manifest: Manifest, target: Target, place: str) -> dict[str, tuple[str, ...]]:
    """Return the machines that take turns, by the path of the first of them, if such machines are there."""
    if not manifest.replicas:
        return {}
    machines = dict.fromkeys(machine.path for machine in Machines(Topology(target)))
    listed = [path for group in manifest.replicas.values() for path in group]
    unknown = [path for path in listed if path not in machines][:5]
    problems = [f"it has no machine {path!r}{did_you_mean(path, machines)}" for path in unknown]
    for first, group in manifest.replicas.items():
        if group[:1] != (first,) or first not in manifest.machines:
            problems.append(f"machine {first!r} is not the first of its replicas, which has a program")
        problems += [f"replica {path!r} has a program of its own" for path in group[1:] if path in manifest.machines]
    problems += [
        f"machine {path!r} takes turns with two others" for path, count in Counter(listed).items() if count > 1
    ]
    raise_all(ArtifactError, [f"{place!r} is damaged: 'manifest.json': {problem}" for problem in problems[:5]])
    return dict(manifest.replicas)


def _native_of(facts: SystemFacts, folder: Callable[[str], dict[str, bytes]]) -> dict[str, bytes]:
    """Return the stored files of a system, if the installed executor is of the version that wrote them."""
    is_usable = executor_named(facts.executor).version() == facts.version
    return folder(f"systems/{facts.function}/") if is_usable else {}


def _not_allowed_to_interpret(
    path: str, leaves: Mapping[str, LeafFunction], allow_interpreter: object
) -> Iterator[str]:
    """Yield an error message for each interpreted site of a program that was built without `allow_interpreter`."""
    for site in dict.fromkeys(leaf.request.site for leaf in leaves.values() if leaf.is_interpreted):
        if allow_interpreter is not True:
            yield f"{path!r} interprets @{site or '.'}, but was not built with allow_interpreter; build it again"


def _runtime(
    runtime: Runtime | None, path: str, scheduler: str | None, *, trust: bool, insecure: bool
) -> Runtime | str | None:
    """Return the runtime of a saved program with the user's scheduler, or the reason why it cannot run."""
    if insecure and scheduler is None:
        raise ArtifactError("insecure (--insecure) has no effect without a scheduler; pass scheduler (--scheduler)")
    if runtime is None or runtime.kind != "dask":
        if scheduler is not None:
            raise ArtifactError(f"{path!r} does not run on a Dask cluster, so scheduler {scheduler!r} would be ignored")
        return runtime
    if scheduler is not None:
        return Runtime("dask", {**runtime.attrs, "address": scheduler, "insecure": insecure})
    if trust:
        return runtime
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
        return load(path, trust=True).root.compiled.run_machine


@check_methods("__init__", "run")
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
        native: The files of systems of a saved program that may be used, by the function of the system.
        cache: The compile cache of what systems compile, or None.
        replicas: The machines that run a program by turns, by the path of the first of them.

    Attributes:
        self_test: Reference inputs and outputs, which `save` stores; None if there are none.
        plan: The plan that was built, without operations that a code generator refused; None of a loaded program.
    """

    self_test: SelfTest | None = None
    plan: Plan | None = None

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
        native: Mapping[str, Mapping[str, bytes]] | None = None,
        cache: CompileCache | None = None,
        replicas: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.target = target
        self.name = name
        self._tuned = tuple(tuned)
        self._program = program
        self._constants = {name: aligned(array) for name, array in constants.items()}
        self._leaves = dict(leaves)
        self._machines = dict(machines or {})
        self._replicas = dict(replicas or {})
        self._calls = tuple(calls)
        topology = self._topology = Topology(target)
        self._systems_of = Systems(
            topology=topology,
            leaves=self._leaves,
            constants=self._constants,
            call_leaf=self._call_leaf,
            call_system=self._call_system,
            copy_value=self._copy,
            runtime=runtime if isinstance(runtime, Runtime) else None,
            native=native or {},
            module_name=name,
            cache=cache,
        )
        self.systems = {name: SystemFunction(one) for name, one in _nested(self._systems_of.root(program))}
        self.root = next(reversed(self.systems.values()))
        self._engine = self._engine_of(runtime or target.runtime or Runtime("python"), topology)
        self._domains = {name: topology[leaf.request.site].domain for name, leaf in self._leaves.items()}
        self._stated_results = {
            name: (one.outputs, dtypes_of(one.outputs)) for name, one in program.signatures.items() if name in leaves
        }
        self._read_only = {name for name, leaf in leaves.items() if "keeps-inputs" not in leaf.backend.supports}
        self._in_memory = {self._domains[name]: self._leaves[name] for name in self.called_leaves}
        # Memories of CPUs: values there are arrays that every function of this process can read.
        self._shared = {leaf.domain for leaf in topology.leaves() if leaf.target.device == "cpu"}

    def __getstate__(self) -> object:
        raise ArgumentError(
            "an executable is not copied or pickled; write it with exe.save(path), and read it with "
            "tvmtarget.load(path)"
        )

    def __repr__(self) -> str:
        inputs, outputs = (
            ", ".join(f"{one.name}: {one}" for one in signatures)
            for signatures in (self._program.inputs, self._program.outputs)
        )
        return f"<Executable {self.name!r}: ({inputs}) -> ({outputs})>"

    @cached_property
    def called_leaves(self) -> tuple[str, ...]:
        """The leaf functions that executors call; the code of others is part of the artifacts of their systems."""
        return tuple(name for one in self.systems.values() if one.executor.calls_leaves for name in one.system.leaves)

    def unsupported_reasons(self) -> tuple[str, ...]:
        """Return why the executors of the systems cannot compile them; nothing is compiled.

        Returns:
            Sentences with the paths of leaves and drivers.
        """
        systems = dict(self.systems)
        reasons: list[str] = []
        if is_distributed(self.target):
            # Machines run the parts of the root; the whole of it runs nowhere.
            root = systems.pop(self.root.system.name)
            if "transfers" not in root.executor.supports.get(root.system.convention, ()):
                pair = f"executor {root.system.executor.kind!r} on runtime {root.system.runtime.kind!r}"
                reasons.append(f"@. cannot be built: {pair} does not run programs of several machines (transfers)")
            for machine in self._machines.values():
                reasons += SystemFunction(self._systems_of.root(machine)).reasons()
        for system in systems.values():
            reasons += system.reasons()
        return tuple(dict.fromkeys(reasons))

    def compile_systems(self) -> None:
        """Compile all systems, nested ones first; else each is compiled when it first runs."""
        for system in self.systems.values():
            system.compiled  # noqa: B018 - compiles

    def export(self, path: str | Path, system: str = "") -> None:
        """Write what a user deploys of a system: a shared library, a C project, or another form.

        Args:
            path: The file or folder to write.
            system: The path of the system, or the name of its function; the root by default.

        Raises:
            ArtifactError: The executor of the system exports nothing, the system is not one function, or the file
                cannot be written.
        """
        found = [one for name, one in self.systems.items() if system in (name, one.system.path)]
        if len(found) != 1:
            known = ", ".join(f"{name!r} (@{one.system.path or '.'})" for name, one in self.systems.items())
            problem = f"{system!r} names {len(found)} systems" if found else f"there is no system {system!r}"
            raise ArtifactError(f"{problem}; name the function of one: {known}")
        try:
            found[0].compiled.export(Path(path))
        except OSError as error:
            raise ArtifactError(f"{str(path)!r} cannot be written: {error.strerror or error}") from error

    @property
    def functions(self) -> Mapping[str, Callable[..., None]]:
        """Functions of TIR code by name; they write their results into tensors of the caller.

        A tensor is an array of numpy, or an object with DLPack's `__dlpack__`; a function runs on the device of its
        tensors, of the kind that it was built for. There are none of programs of operations, nor of several leaves.

        Raises:
            RunError: This machine cannot run the code.
        """
        leaf = self._leaves.get(self._program.entry)
        if leaf is None:
            return {}
        leaf.check()
        return leaf.compiled.functions()

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
        """Notes on leaves that are interpreted for lack of a code generator, and the hints."""
        return (*dict.fromkeys(leaf.note for leaf in self._leaves.values() if leaf.note), *self.hints)

    @property
    def hints(self) -> tuple[str, ...]:
        """What would make the program faster on this machine: executor `aot` makes one version of code."""
        systems = [one.system for one in self.systems.values() if one.system.executor.kind == "aot"]
        requests = [leaf.request for system in systems for leaf in system.leaves.values()]
        sites = ", ".join(sorted({f"@{one.site or '.'}" for one in requests if is_any_x86(one.target)}))
        if not sites:
            return ()
        return (
            f"{sites}: llvm without mcpu is code for any x86-64, with SSE2 only, for executor aot; other executors add "
            "code with AVX2, which often takes half the time or less: write 'llvm -mcpu=x86-64-v3', or build for "
            "Target.detect() ('native' on the command line)",
        )

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
        """Return backends, systems, subgraphs, copies and tuned choices, as JSON data."""
        return {
            "backends": sorted({leaf.backend.name for leaf in self._leaves.values()}),
            "systems": [system.report() for system in self.systems.values()],
            "subgraphs": [self._leaves[call.function].report(call) for call in self._calls],
            "copies": [
                {"driver": name, "value": step.inputs[0], "src": step.src, "dst": step.dst, "bytes": step.nbytes}
                for name, driver in self._program.drivers.items()
                for step in driver.walk()
                if step.call is None and step.control is None
            ],
        } | ({"tuned": [applied.to_json() for applied in self.tuned]} if self.tuned else {})

    def explain(self, op: str) -> Explanation:
        """Say why an operation runs where it does, and what runs it inside the function of its leaf.

        Args:
            op: The name of an operation.

        Returns:
            The explanation of the plan that was built, which prints as lines.

        Raises:
            TargetError: The program was loaded, and has no plan.
            UnknownNameError: There is no such operation.
        """
        if self.plan is None:
            raise TargetError("a loaded program has no plan; explain the operation where the program is built")
        found = self.plan.explain(op)
        reports = (self._leaves[call.function].report(call) for call in self._calls if op in call.ops)
        engines = [name for report in reports for name, ops in report.get("ran_by", {}).items() if op in ops]
        return replace(found, ran_by=engines[0] if engines else "")

    def __call__(self, *inputs: object) -> Array | tuple[Array, ...]:
        """Run on inputs in order; return the output, or a tuple of several outputs."""
        if len(inputs) == 1 and isinstance(inputs[0], Mapping) and all(one.dtype for one in self._program.inputs):
            raise RunError("inputs by name are passed to run, as in exe.run({'input': x}); a call takes them in order")
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
        if record is not None and not callable(record):  # `check_arguments` would double the time of a short run
            raise ArgumentError(f"record of Executable.run is a function or None, not {shown(record)}")
        values = check_inputs(self._program.inputs, inputs)
        raise_all(RunError, self._foreign_hosts)
        return self._outputs(self._engine.run(values, record), values)

    @cached_property
    def _foreign_hosts(self) -> tuple[str, ...]:
        """Reasons why hosts of this program are not this machine.

        Hosts with leaf functions are left out: `LeafFunction.check` covers them.
        """
        if is_distributed(self.target):
            return ()
        sites = {self._leaves[name].request.site for name in self.called_leaves}
        return tuple(
            f"@{path or '.'} cannot run on this machine: its host is another machine: {reason}"
            for path, reason in foreign_hosts(self._topology, sites).values()
        )

    @cached_property
    def _makes_results(self) -> bool:
        """Whether each result is a new array: no driver returns an input, a constant, or one value twice as it is."""
        if self._machines:  # values that Dask transfers may be read-only
            return False
        driver = self._program.drivers.get(self._program.entry)
        if driver is None:
            return self._read_only.isdisjoint(self._leaves)
        makers = self._leaves.keys() - self._read_only  # code of others may return views of its inputs
        steps = [one for one in driver.steps if one.call in makers or (one.src is not None and not one.once)]
        made = {name for step in steps for name in step.outputs}
        return made.issuperset(driver.results) and len(set(driver.results)) == len(driver.results)

    def _outputs(self, results: Sequence[Any], inputs: Sequence[Any]) -> dict[str, Array]:
        """Return results by name, after checking results of other machines against the signature."""
        here = list(map(_to_host, results))
        if self._machines:
            check_outputs(self._program.outputs, here)
        # The caller may change arrays and lists in place.
        if not self._makes_results:
            owners = {_owner(array) for value in inputs for array in _arrays_in(value)}
            here = [_with_own_arrays(value, owners) for value in here]
        return dict(zip(self.outputs, here, strict=True))

    def stream(
        self, inputs: Iterable[Mapping[str, object]], *, depth: int = STREAM_DEPTH
    ) -> Iterator[dict[str, Array]]:
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
        if depth < 1:
            raise RunError(f"depth is {depth!r}; it is the number of inputs in the pipeline, at least 1")
        # A generator: inputs may be endless, so each is checked only when the pipeline takes it.
        running: deque[list[Any]] = deque()

        def checked() -> Iterator[list[Any]]:
            for given in inputs:
                running.append(check_inputs(self._program.inputs, given))
                yield running[-1]

        for results in self._engine.stream(checked(), depth):
            yield self._outputs(results, running.popleft())

    def close(self) -> None:
        """End the processes that runtimes and artifacts started; the next run starts new ones."""
        self._engine.close()
        for system in self.systems.values():
            system.close()

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
            ArtifactError: The file cannot be written, or `self_test` has values other than tensors of numbers.
        """
        self._save(Path(path), self._program, self._leaves, self._machines, self.self_test)

    def _engine_of(self, runtime: Runtime | str, topology: Topology) -> Engine:
        """Return the engine of a runtime; of the reason why there is none, one that raises it at the first run."""
        if isinstance(runtime, str):
            reason = runtime

            def reject() -> WorkerGroup:
                raise RunError(reason)

            return WorkerEngine(reject)
        if not self._machines and is_distributed(self.target):  # the packed program of one machine of a cluster
            runtime = Runtime("python")
        cluster = Cluster("", {"": self._program}, self.root.run, self._pack, open_machine)
        if self._machines:
            machines = Machines(topology)
            paths = tuple(machine.path for machine in machines)
            cluster = replace(
                cluster,
                home=machines.home,
                programs=self._machines,
                replicas=self._replicas,
                machines=paths,
                modules=tuple(plugins.registering_modules({*self._registered_kinds()})),
            )
        return runtime_named(runtime.kind).engine(runtime, cluster)

    def _registered_kinds(self) -> Iterator[str]:
        """Yield the kinds for which this program registered what runs them: other processes do not know it."""
        for leaf in self._leaves.values():
            if plugins.is_registered("tvmtarget.backends", leaf.backend.name):
                yield leaf.request.target.kind
        for _, node in self.target.walk():
            if node.executor is not None and plugins.is_registered("tvmtarget.executors", node.executor.kind):
                yield node.executor.kind

    def _pack(self, machine: str) -> bytes:
        """Return the bytes of a saved program with only the functions that one machine calls."""
        program = self._machines.get(machine, self._program)
        systems = [one for _, one in _nested(self._systems_of.root(program))]
        called = {name for system in systems for name in system.leaves}
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
        self_test: SelfTest | None = None,
    ) -> None:
        buffer = io.BytesIO()
        write_arrays(buffer, self._constants)
        files = {
            "target.json": json.dumps(self.target.to_json(), sort_keys=True).encode(),
            "program.json": program.write(),
            "constants.npz": buffer.getvalue(),
        }
        files |= {f"machines/{name}.json": part.write() for name, part in machines.items()}
        for name, leaf in leaves.items():
            files[f"leaves/{name}/source.onnx"] = leaf.request.source
            if name in self.called_leaves:
                files |= {f"leaves/{name}/{file}": data for file, data in leaf.code.native_files().items()}
        files |= {} if self_test is None else self_test.files()
        stored: list[dict[str, Any]] = []
        for name, system in self.systems.items():
            # A machine gets the systems whose leaves it has; the root's own has another program there.
            if not leaves.keys() >= system.system.leaves.keys() or (
                system is self.root and program is not self._program
            ):
                continue
            artifact = system.compiled.files()
            files |= {f"systems/{name}/{file}": data for file, data in artifact.items()}
            stored += [system.describe()] if artifact else []
        # Files without replicas or a self-test stay as they were.
        additions: dict[str, Any] = {"replicas": self._replicas} if machines and self._replicas else {}
        if self_test is not None:
            additions |= {"self_test": self_test.reference, "self_test_halves": dict(self_test.halves)}
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
            systems=stored,
            **additions,
        )

    def _call_system(self, name: str, inputs: Sequence[Any], record: Record | None) -> Sequence[Any]:
        return self.systems[name].engine.run(inputs, record)

    def _call_leaf(self, name: str, inputs: Sequence[Any], call: str) -> Sequence[Any]:
        leaf = self._leaves[name]
        leaf.check()
        # A value that code of a plugin writes into may be read again, and inputs are the caller's.
        inputs = [*map(_read_only, inputs)] if name in self._read_only else inputs
        try:
            results = leaf.compiled.run_on(leaf.device, inputs)
            if (stated := self._stated_results.get(name)) is not None:
                results = check_results(stated[0], results, stated[1])
            # Results in a memory that CPUs share are read by functions of other backends, which know arrays only.
            if "device-memory" in leaf.backend.supports and self._domains[name] in self._shared:
                return [*map(_to_host, results)]
            return results
        # Errors of this library name their cause already; the wrapping below is for those of backends.
        except TvmTargetError:
            raise
        except Exception as error:
            # Identical subgraphs share one function; the one of the failed call is named.
            calls = (one for one in self._calls if one.function == name and one.call.rpartition("/")[2] == call)
            names = next((one.ops for one in calls), leaf.request.ops)
            ops = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            place = f"{name!r} of @{leaf.request.site or '.'} ({ops})"
            raise RunError(f"function {place} failed: {first_line(error)}") from error

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


def _nested(system: System) -> Iterator[tuple[str, System]]:
    """Yield the systems inside one, each after those inside it, and the system itself as the last one."""
    found: dict[str, System] = {}
    for inner in system.systems.values():
        found |= _nested(inner)
    yield from found.items()
    yield system.name, system


def _read_only(value: Any) -> Any:  # noqa: ANN401
    """Return read-only views of the arrays of a value."""
    if isinstance(value, list):
        return [_read_only(item) for item in value]
    if not isinstance(value, np.ndarray):
        return value
    view = value.view()
    view.flags.writeable = False
    return view


def _arrays_in(value: Any) -> Iterator[Array]:  # noqa: ANN401
    """Yield the arrays of a value, at every depth."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _arrays_in(item)


def _with_own_arrays(value: Any, owners: set[int]) -> Any:  # noqa: ANN401
    """Return a value with copies of its lists, its maps, and its arrays that are read-only or of known owners.

    The owners of its other arrays are added to the known ones.
    """
    if isinstance(value, list):
        return [_with_own_arrays(item, owners) for item in value]
    if isinstance(value, dict):
        return {key: _with_own_arrays(item, owners) for key, item in value.items()}
    if not isinstance(value, np.ndarray):
        return value
    is_shared = _owner(value) in owners or not value.flags.writeable
    owners.add(_owner(value))
    return value.copy() if is_shared else value


def _owner(array: Array) -> int:
    """Return the identity of what holds the memory of an array: another one if it is a view."""
    return id(array if array.base is None else array.base)


def _to_host(value: Any) -> Any:  # noqa: ANN401
    """Copy a value from a device into an array of this process; arrays of this process are returned as they are."""
    if isinstance(value, list):
        return [_to_host(item) for item in value]
    return value.numpy() if not isinstance(value, np.ndarray) and isinstance(value, DeviceValue) else value
