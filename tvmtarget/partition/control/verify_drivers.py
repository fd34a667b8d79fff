"""What must hold of drivers: they read all that they are given, and copy only what they must, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tvmtarget.ir.function import COPY, Call, Function
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.op_aliases import is_named_op, op_aliases
from tvmtarget.partition.control.control_flow_ops import body_arguments, control_flow_form

__all__ = ["Path", "calls_in_order", "copies_are_needed", "values_are_exact"]

Path = tuple[tuple[str, str], ...]


def calls_in_order(module: IRModule, name: str) -> Iterator[tuple[Call, str, Path]]:
    """Yield all calls that a function leads to, in order, their names, and the nested bodies around them.

    Operations have the names that they are given where their function is called; a body is told by whose it is, and
    by its label.
    """
    yield from _calls_of(module, module[name], (), None)


def _calls_of(
    module: IRModule, body: Function, around: Path, names: Iterator[str] | None
) -> Iterator[tuple[Call, str, Path]]:
    for call in body.body:
        name = next(names, "") if names is not None and is_named_op(call, module.by_name) else call.source
        yield call, name, around
        if call.callee is not None:
            given = op_aliases(call)
            told = iter(given) if names is None and given is not None else names
            yield from _calls_of(module, module[call.callee], around, told)
        for label, region in call.regions:
            yield from _calls_of(module, region, (*around, (name, label)), names)


def values_are_exact(driver: Function, module: IRModule) -> Iterator[str]:
    """Every callee reads all its parameters, once each, and everything it returns is read."""
    read = Counter(_read(driver))
    for call in _calls(driver):
        if call.callee is None and call.op != COPY:
            continue
        for output in call.outputs:
            if not read[output.name]:
                yield f"nothing reads {output.name!r}, which {call.op!r} returns (function {driver.name!r})"
        if call.callee is None:
            continue
        callee = module[call.callee]
        used = set(_read(callee))
        unread = [param.name for param in callee.params if param.name not in used]
        if unread or len(set(call.inputs)) != len(call.inputs):
            yield f"function {callee.name!r} is given {unread or call.inputs}, which it does not need"


def _calls(body: Function) -> Iterator[Call]:
    for call in body.body:
        yield call
        for _, region in call.regions:
            yield from _calls(region)


def _read(body: Function) -> Iterator[str]:
    for call in _calls(body):
        yield from call.inputs
        for _, region in call.regions:
            yield from region.results
    yield from body.results


def copies_are_needed(driver: Function, home: str) -> Iterator[str]:
    """Copies are from where a value is to where it is not, once each, and outside of loops that do not change it.

    All operands and results of a call are in one memory, and all that crosses the border of a driver, or of a nested
    body that it runs, is in the driver's; but a value that a loop carries may be in another one all the way.
    """
    yield from _Copies(driver.name, home).body(driver, ())


@dataclass
class _Copies:
    """Walks a driver; a value is known by the memory it is in and by how many loops are around its origin."""

    driver: str
    home: str
    scopes: dict[str, str] = field(default_factory=dict)
    loops: dict[str, int] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    made: set[tuple[str, str]] = field(default_factory=set)

    def body(self, body: Function, loops: tuple[str, ...], carried: Mapping[int, str] | None = None) -> Iterator[str]:
        """Walk a body; `carried` are the memories of results that a loop carries."""
        for param in body.params:
            self._add(param.name, param.scope, loops)
        for constant in body.constants:
            self._add(constant.name, self.home, loops)
        for call in body.body:
            yield from self.call(call, loops)
        for place, result in enumerate(body.results):
            there, should = self.scopes.get(result, self.home), (carried or {}).get(place, self.home)
            if there != should:
                yield f"result {result!r} of {self.driver!r} is in {there!r}, not in {should!r}"

    def call(self, call: Call, loops: tuple[str, ...]) -> Iterator[str]:
        form, slots = control_flow_form(call), body_arguments(call)
        inside = (*loops, call.source) if form is not None and form.repeats else loops
        for _, region in call.regions:
            carried = {slot.result: region.params[slot.param].scope for slot in slots}
            params = {slot.param for slot in slots}
            for place, param in enumerate(region.params):
                if place not in params and param.scope != self.home:
                    yield f"parameter {param.name!r} of {self.driver!r} is in {param.scope!r}, not in {self.home!r}"
            yield from self.body(region, inside, carried)
            for slot in slots:
                ends = {self.scopes[call.inputs[slot.operand]], call.outputs[slot.output].scope}
                if ends != {carried[slot.result]}:
                    yield f"{call.op!r} carries {call.inputs[slot.operand]!r} from one memory to another"
        for output in call.outputs:
            self._add(output.name, output.scope, loops)
        yield from self._copy(call, loops) if call.op == COPY else self._operands(call)

    def _add(self, name: str, scope: str, loops: tuple[str, ...]) -> None:
        self.scopes[name] = scope
        self.loops[name] = len(loops)

    def _copy(self, call: Call, loops: tuple[str, ...]) -> Iterator[str]:
        source, copied = call.inputs[0], call.outputs[0]
        first = self.origin[copied.name] = self.origin.get(source, source)
        pair = (first, copied.scope)
        if pair in self.made or self.scopes[first] == copied.scope or self.scopes[source] != call.attr("src"):
            yield (
                f"copy of {source!r} to {copied.scope!r} is not needed, or not from where it is (in {self.driver!r})"
            )
        if self.loops[first] < len(loops):
            yield f"copy of {source!r} to {copied.scope!r} is made again in every run of {loops[-1]!r}"
        self.made.add(pair)

    def _operands(self, call: Call) -> Iterator[str]:
        slots = body_arguments(call) if call.regions else ()
        carried, returned = {slot.operand for slot in slots}, {slot.output for slot in slots}
        operands = [name for place, name in enumerate(call.inputs) if place not in carried]
        outputs = [output for place, output in enumerate(call.outputs) if place not in returned]
        domains = {self.scopes[name] for name in operands if name in self.scopes}
        domains |= {output.scope for output in outputs if output.name}
        domains |= {self.home} if call.regions else set()
        if len(domains) > 1:
            yield f"{call.op!r} mixes values in {', '.join(sorted(domains))} (function {self.driver!r})"
