"""The systems of a program: the root, and each function of a node with an executor or runtime of its own.

A driver program holds the drivers of all nodes. It is split where a driver calls a function of a node that belongs to
another system; each part is compiled by the executor of its node, and called by the part around it as one function.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict

from tvmtarget.backends.protocol import Array
from tvmtarget.building.leaf_function import LeafFunction
from tvmtarget.compile_cache import CompileCache
from tvmtarget.errors import BackendError
from tvmtarget.executors.driver_program import Driver, DriverProgram, FunctionSignature, Signature, Step
from tvmtarget.executors.protocol import (
    CallEvent,
    CallLeaf,
    CallSystem,
    CompiledSystem,
    CopyValue,
    Event,
    Record,
    System,
    executor_named,
)
from tvmtarget.runtimes.protocol import Cluster, Engine, runtime_named
from tvmtarget.target.executor_compatibility import effective_pair
from tvmtarget.target.kinds import find_kind
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import Target

__all__ = ["SystemFacts", "SystemFunction", "Systems", "executor_of_path", "system_of_path"]


class SystemFacts(BaseModel):
    """A system in the manifest of a saved program."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    function: str
    path: str
    executor: str
    version: str


def system_of_path(topology: Topology, path: str) -> str:
    """Return the path of the system that a node belongs to.

    Args:
        topology: The sites of a resolved target.
        path: The path of a node.

    Returns:
        The path of the nearest node, from this one outwards, with an executor or runtime of its own; else the root's.
    """
    names = path.split("/") if path else []
    for count in range(len(names), 0, -1):
        node = topology["/".join(names[:count])].target
        if node.executor is not None or node.runtime is not None:
            return "/".join(names[:count])
    return ""


def executor_of_path(topology: Topology, path: str) -> Executor:
    """Return the executor of a system.

    Args:
        topology: The sites of a resolved target.
        path: The path of a system.

    Returns:
        Its own executor, or that of the nearest node around it.
    """
    return effective_pair(_nodes_above(topology, path))[0]


def _nodes_above(topology: Topology, path: str) -> list[Target]:
    names = path.split("/") if path else []
    return [topology["/".join(names[:count])].target for count in range(len(names) + 1)]


def _inner_runtime(runtime: Runtime) -> Runtime:
    """Return the runtime of a nested system that inherits one; each machine of a distributed one is a process."""
    kind = find_kind(runtime.kind, "runtime")
    return Runtime("python") if kind is not None and kind.is_distributed else runtime


@dataclass(frozen=True)
class Systems:
    """Splits the driver program of an executable into systems.

    Attributes:
        topology: The sites of the target.
        leaves: All leaf functions by name.
        constants: All constants of drivers by name.
        call_leaf: Calls a compiled leaf function.
        call_system: Calls a nested system.
        copy_value: Copies a value between memories.
        runtime: The runtime of the root, if it is not the target's own.
        native: The files of a saved program that may be used, by the function of the system.
        module_name: The name of the program, as users gave it.
        cache: The compile cache, or None.
    """

    topology: Topology
    leaves: Mapping[str, LeafFunction]
    constants: Mapping[str, Array]
    call_leaf: CallLeaf
    call_system: CallSystem
    copy_value: CopyValue
    runtime: Runtime | None = None
    native: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    module_name: str = "default"
    cache: CompileCache | None = None

    def root(self, program: DriverProgram) -> System:
        """Return the system of the root, with the nested ones in it.

        Args:
            program: A driver program with the drivers of all nodes: the whole program, or that of one machine.

        Returns:
            The system.
        """
        if self._path(program.entry, program) and program.entry not in program.drivers:
            program = _with_driver(program)
        signature = FunctionSignature(inputs=program.inputs, outputs=program.outputs)
        return self._system(program.entry, "", signature, program)

    def _path(self, name: str, program: DriverProgram) -> str:
        driver = program.drivers.get(name)
        return system_of_path(self.topology, self.leaves[name].request.site if driver is None else driver.path)

    def _system(self, name: str, path: str, signature: FunctionSignature, whole: DriverProgram) -> System:
        drivers: dict[str, Driver] = {}
        leaves: dict[str, LeafFunction] = {}
        nested: dict[str, System] = {}
        waiting = [name]
        while waiting:
            callee = waiting.pop()
            if callee in drivers or callee in leaves or callee in nested:
                continue
            if callee != name and self._path(callee, whole) != path:
                nested[callee] = self._system(callee, self._path(callee, whole), self._signature(callee, whole), whole)
            elif callee in whole.drivers:
                drivers[callee] = whole.drivers[callee]
                waiting += [step.call for step in reversed([*drivers[callee].walk()]) if step.call is not None]
            else:
                leaves[callee] = self.leaves[callee]
        inside = (*drivers, *leaves, *nested)
        executor, runtime = effective_pair(_nodes_above(self.topology, path))
        runtime = _inner_runtime(runtime) if path else self.runtime or runtime
        read = {constant for driver in drivers.values() for constant in driver.constants}
        return System(
            path=path,
            name=name,
            target=self.topology[path].target,
            host=self.topology[self.topology[path].host].target,
            executor=executor,
            runtime=runtime,
            convention=runtime_named(runtime.kind).convention,
            program=DriverProgram(
                entry=name,
                inputs=signature.inputs,
                outputs=signature.outputs,
                drivers=drivers,
                signatures={one: whole.signatures[one] for one in inside if one in whole.signatures},
            ),
            constants={one: array for one, array in self.constants.items() if one in read},
            leaves=leaves,
            systems=nested,
            call_leaf=self.call_leaf,
            call_system=self.call_system,
            copy_value=self.copy_value,
            native=self.native.get(name, {}),
            module_name=f"{self.module_name}_{name}" if path else self.module_name,
            cache=self.cache,
        )

    def _signature(self, name: str, whole: DriverProgram) -> FunctionSignature:
        """Return the signature of a function; of files of older versions, names alone."""
        if name in whole.signatures:
            return whole.signatures[name]
        if name in whole.drivers:
            names = whole.drivers[name].params, whole.drivers[name].results
        else:
            names = self.leaves[name].request.inputs, self.leaves[name].request.outputs
        inputs, outputs = (tuple(Signature(name=one, dtype=None, shape=None) for one in some) for some in names)
        return FunctionSignature(inputs=inputs, outputs=outputs)


def _with_driver(program: DriverProgram) -> DriverProgram:
    """Return a program whose entry is a driver of the root that calls the former entry, a nested system."""
    params, results = (tuple(value.name for value in values) for values in (program.inputs, program.outputs))
    # Results of a step are new values: an identity function may return a parameter under its own name.
    made = tuple(f"{name}.result" for name in results)
    step = Step(call=program.entry, inputs=params, outputs=made)
    driver = Driver(path="", params=params, results=made, steps=(step,))
    name = f"{program.entry}.driver"
    return DriverProgram(
        entry=name,
        inputs=program.inputs,
        outputs=program.outputs,
        drivers={name: driver, **program.drivers},
        signatures=program.signatures,
    )


class SystemFunction:
    """A system of an executable, and its artifact, which is compiled when it is first needed.

    Args:
        system: The system.
    """

    def __init__(self, system: System) -> None:
        self.system = system
        self.executor = executor_named(system.executor.kind)
        self._compiled: CompiledSystem | None = None
        self._compiling = threading.Lock()

    @property
    def compiled(self) -> CompiledSystem:
        """The artifact."""
        if self._compiled is None:
            with self._compiling:
                if self._compiled is None:
                    self._compiled = self.executor.compile(self.system)
        return self._compiled

    def run(self, inputs: Sequence[Any], record: Record | None = None) -> list[Any]:
        """Run the artifact once.

        Args:
            inputs: The values of the entry's parameters, in order.
            record: Called with each leaf call and copy, or with one call of the system if the artifact reports none.

        Returns:
            The results, in order.
        """
        if record is None:
            return self.compiled.run(inputs, None)
        events: list[Event] = []
        begin = time.perf_counter_ns()
        results = self.compiled.run(inputs, events.append)
        duration = time.perf_counter_ns() - begin
        if not any(isinstance(event, CallEvent) for event in events):
            events.append(CallEvent(self.system.name, duration, self.system.name))
        for event in events:
            record(event)
        return results

    @cached_property
    def engine(self) -> Engine:
        """The engine of the runtime of a nested system."""
        system = self.system
        cluster = Cluster(system.path, {system.path: system.program}, self.run, _refuse, _refuse)
        return runtime_named(system.runtime.kind).engine(system.runtime, cluster)

    def reasons(self) -> Iterator[str]:
        """Yield the reasons why the executor cannot compile the system."""
        yield from self.executor.unsupported_reasons(self.system)

    def report(self) -> dict[str, Any]:
        """Return who compiles and who calls the system, as JSON data."""
        system = self.system
        artifact = {} if self._compiled is None else dict(self._compiled.report())
        return {
            "path": system.path,
            "function": system.name,
            "executor": str(system.executor),
            "runtime": str(system.runtime),
            "leaves": list(system.leaves),
            "systems": list(system.systems),
        } | ({"artifact": artifact} if artifact else {})

    def describe(self) -> dict[str, Any]:
        """Return the system's entry in the manifest of a saved program."""
        system = self.system
        return SystemFacts(
            function=system.name, path=system.path, executor=system.executor.kind, version=self.executor.version()
        ).model_dump()

    def close(self) -> None:
        """End the processes that the artifact or its engine started."""
        if "engine" in self.__dict__:
            self.engine.close()
        if self._compiled is not None:
            self._compiled.close()


def _refuse(_machine: object) -> NoReturn:
    raise BackendError("a nested system runs on the machine of the system around it")
