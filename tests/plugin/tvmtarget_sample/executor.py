"""The executor `straight`: print the driver of a system as Python source ahead of time, and call that.

It compiles drivers without control flow and without nested systems. The source is the artifact: a saved program stores
it, and `export` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tvmtarget.executors.driver_program import Driver
from tvmtarget.executors.protocol import CompiledSystem, ProgramExecutor, Record, System
from tvmtarget.target.kinds import Attribute, Kind

__all__ = ["EXECUTOR", "KINDS"]

# Not among the kinds of the package's entry points, as the library's tests list all executor kinds.
KINDS = (
    Kind(
        name="straight",
        role="executor",
        attributes=(
            Attribute(name="greeting", type="str", class_="none", default="", doc="what each run prints first"),
            Attribute(name="colour", type="str", class_="none", doc="not honoured"),
        ),
        doc="Python source without loops",
    ),
)


class StraightExecutor(ProgramExecutor):
    """Compiles drivers to Python source."""

    honours = frozenset({"greeting"})
    supports = {"python": frozenset({"dynamic-shapes"})}

    def version(self) -> str:
        return "0.1"

    def unsupported_reasons(self, system: System) -> Iterator[str]:
        yield from super().unsupported_reasons(system)
        for leaf in system.leaves.values():
            if leaf.request.target.kind == "probe":
                yield f"@{leaf.request.site} cannot be built: executor 'straight' does not call leaves of kind 'probe'"

    def compile(self, system: System) -> _Straight:
        stored = system.native.get("driver.py")
        return _Straight(system, _source(system) if stored is None else stored.decode())


class _Straight(CompiledSystem):
    def __init__(self, system: System, source: str) -> None:
        self._source = source
        self._greeting = system.executor["greeting"]
        names: dict[str, Any] = {"call": system.call_leaf, "copy": system.copy_value, "constants": system.constants}
        exec(source, names)
        self._run = names["run"]

    def run(self, inputs: Sequence[Any], record: Record | None = None) -> list[Any]:
        if self._greeting:
            print(self._greeting)
        return list(self._run(*inputs))

    def files(self) -> Mapping[str, bytes]:
        return {"driver.py": self._source.encode()}

    def export(self, path: Path) -> None:
        path.write_text(self._source, encoding="utf-8")


def _source(system: System) -> str:
    drivers = system.program.drivers
    lines = [line for name, driver in drivers.items() for line in _function(name, driver)]
    entry = "functions[entry](*inputs)" if drivers else "call(entry, inputs, entry)"
    first, last = ["functions = {}", f"entry = {system.program.entry!r}"], [f"run = lambda *inputs: {entry}", ""]
    return "\n".join([*first, *lines, *last])


def _function(name: str, driver: Driver) -> Iterator[str]:
    yield "def function(*inputs):"
    yield f"    v = {{name: constants[name] for name in {driver.constants!r}}}"
    yield f"    v.update(zip({driver.params!r}, inputs))"
    for step in driver.steps:
        values = f"[v[name] for name in {step.inputs!r}]"
        if step.call is None:
            result = f"[copy(*{values}, {step.src!r}, {step.dst!r})]"
        else:
            result = (
                f"functions[{step.call!r}](*{values}) if {step.call!r} in functions else "
                f"call({step.call!r}, {values}, {step.name or step.call!r})"
            )
        yield f"    v.update(zip({step.outputs!r}, {result}))"
    yield f"    return [v[name] for name in {driver.results!r}]"
    yield f"functions[{name!r}] = function"


EXECUTOR = StraightExecutor()
