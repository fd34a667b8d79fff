"""Verify drivers: every argument is read, and every copy is necessary and made once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from tvmtarget.ir.control_flow import body_arguments, control_flow_form
from tvmtarget.ir.function import CODE, COPY, Call, Function
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.op_aliases import is_named_op, op_aliases

__all__ = ["Path", "calls_in_order", "copies_are_needed", "values_are_exact"]

# The regions around a call, the outermost first: name of the operation, and label of the region.
Path = tuple[tuple[str, str], ...]


def calls_in_order(module: IRModule, name: str) -> Iterator[tuple[Call, str, Path]]:
    """List all calls that a function leads to, directly or through its callees.

    Args:
        module: partitioned module.
        name: name of the function to start at.

    Yields:
        Calls in execution order, with their name in the original program, and the path of regions around them.
    """
    yield from _calls_of(module, module[name], (), None)


def _calls_of(
    module: IRModule, body: Function, around: Path, names: Iterator[str] | None
) -> Iterator[tuple[Call, str, Path]]:
    if body.calls is body.body and not any(op[:1] == "@" or op in (COPY, CODE) for op in body.ops):
        # Most calls are operations of leaf functions, which lead to no others.
        yield from ((call, call.source if names is None else next(names, ""), around) for call in body.body)
        return
    for call in body.body:
        name = next(names, "") if names is not None and is_named_op(call, module.by_name) else call.source
        yield call, name, around
        callee = call.callee
        if callee is not None:
            # A call of a shared function lists the names of its operations; the outermost call counts.
            aliases = op_aliases(call)
            inner = iter(aliases) if names is None and aliases is not None else names
            yield from _calls_of(module, module[callee], around, inner)
        for label, region in call.regions:
            yield from _calls_of(module, region, (*around, (name, label)), names)


def values_are_exact(driver: Function, module: IRModule) -> Iterator[str]:
    """Check that callees get what they read, in its memory, and return what is read.

    Args:
        driver: the driver.
        module: partitioned module.

    Yields:
        Descriptions of violations.
    """
    read = frozenset(_read(driver))
    read_by: dict[str, frozenset[str]] = {}  # of callees, which many calls may share
    for call in driver.calls:
        name = call.callee
        if name is None and call.op != COPY:
            continue
        for output in call.outputs:
            if output.name not in read:
                yield f"nothing reads {output.name!r}, which {call.op!r} returns (function {driver.name!r})"
        if name is None:
            continue
        callee = module[name]
        if name not in read_by:
            read_by[name] = frozenset(_read(callee))
        unread = [param.name for param in callee.params if param.name not in read_by[name]]
        if unread or len(set(call.inputs)) != len(call.inputs):
            yield f"function {callee.name!r} is given {unread or call.inputs}, which it does not need"
        # Operands and results of a call are in one memory (`copies_are_needed`).
        domains = {param.scope for param in callee.params}.union(
            [output.scope for output in call.outputs if output.name]
        )
        if len(domains) > 1:
            yield f"function {callee.name!r} is called with values in other memories than it reads: {sorted(domains)}"


def _read(body: Function) -> Iterable[str]:
    if body.calls is body.body:
        return chain(chain.from_iterable([call.inputs for call in body.body]), body.results)
    return _read_with_regions(body)


def _read_with_regions(body: Function) -> Iterator[str]:
    for call in body.calls:
        yield from call.inputs
        for _, region in call.regions:
            yield from region.results
    yield from body.results


def copies_are_needed(driver: Function, home: str) -> Iterator[str]:
    """Check that copies are necessary, made once, and outside of invariant loops.

    All operands and results of a call must be in one memory, and all values at the boundary of the driver, or of a
    region that it runs, in the driver's. A loop-carried value may be in another memory, but in a single one.

    Args:
        driver: the driver.
        home: its memory domain.

    Yields:
        Descriptions of violations.
    """
    yield from _Copies(driver.name, home).body(driver, ())


@dataclass
class _Copies:
    """Walk over a driver that records the memory of each value, and the number of loops around its definition."""

    driver: str
    home: str
    scopes: dict[str, str] = field(default_factory=dict)
    loops: dict[str, int] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    made: set[tuple[str, str]] = field(default_factory=set)

    def body(self, body: Function, loops: tuple[str, ...], carried: Mapping[int, str] | None = None) -> Iterator[str]:
        """Walk over a body; `carried` are the memories of loop-carried results, by position."""
        for param in body.params:
            self._add(param.name, param.scope, loops)
        for constant in body.constants:
            self._add(constant.name, self.home, loops)
        scopes, depths, depth = self.scopes, self.loops, len(loops)
        for call in body.body:
            if call.regions:
                yield from self.call(call, loops)
                continue
            is_copy = call.op == COPY
            if not is_copy:
                domains = {scopes[name] for name in call.inputs if name in scopes}
                domains.update([output.scope for output in call.outputs if output.name])
                if len(domains) > 1:
                    yield self._mixes(call, domains)
            for output in call.outputs:
                if output.name:
                    scopes[output.name], depths[output.name] = output.scope, depth
            if is_copy:
                yield from self._copy(call, loops)
        for position, result in enumerate(body.results):
            actual, expected = self.scopes.get(result, self.home), (carried or {}).get(position, self.home)
            if actual != expected:
                yield f"result {result!r} of {self.driver!r} is in {actual!r}, not in {expected!r}"

    def call(self, call: Call, loops: tuple[str, ...]) -> Iterator[str]:
        form, arguments = control_flow_form(call), body_arguments(call)
        inside = (*loops, call.source) if form is not None and form.repeats else loops
        for _, region in call.regions:
            carried = {argument.result: region.params[argument.param].scope for argument in arguments}
            params = {argument.param for argument in arguments}
            for position, param in enumerate(region.params):
                if position not in params and param.scope != self.home:
                    yield f"parameter {param.name!r} of {self.driver!r} is in {param.scope!r}, not in {self.home!r}"
            yield from self.body(region, inside, carried)
            for argument in arguments:
                ends = {self.scopes[call.inputs[argument.operand]], call.outputs[argument.output].scope}
                if ends != {carried[argument.result]}:
                    yield f"{call.op!r} carries {call.inputs[argument.operand]!r} from one memory to another"
        for output in call.outputs:
            self._add(output.name, output.scope, loops)
        yield from self._copy(call, loops) if call.op == COPY else self._operands(call)

    def _add(self, name: str, scope: str, loops: tuple[str, ...]) -> None:
        if name:
            self.scopes[name] = scope
            self.loops[name] = len(loops)

    def _copy(self, call: Call, loops: tuple[str, ...]) -> list[str]:
        source, copied = call.inputs[0], call.outputs[0]
        problems, scopes = [], self.scopes
        first = self.origin[copied.name] = self.origin.get(source, source)
        pair = (first, copied.scope)
        if pair in self.made or scopes[first] == copied.scope or scopes[source] != call.attr("src"):
            problems.append(
                f"copy of {source!r} to {copied.scope!r} is not needed, or not from where it is (in {self.driver!r})"
            )
        if copied.scope != call.attr("dst"):
            problems.append(f"copy of {source!r} to {copied.scope!r} states {call.attr('dst')!r} (in {self.driver!r})")
        # Defined outside of a loop, but copied inside of it: the copy is not hoisted.
        if self.loops[first] < len(loops):
            problems.append(f"copy of {source!r} to {copied.scope!r} is made again in every run of {loops[-1]!r}")
        self.made.add(pair)
        return problems

    def _operands(self, call: Call) -> Iterator[str]:
        arguments = body_arguments(call)
        carried, returned = {argument.operand for argument in arguments}, {argument.output for argument in arguments}
        operands = [name for position, name in enumerate(call.inputs) if position not in carried]
        outputs = [output for position, output in enumerate(call.outputs) if position not in returned]
        domains = {self.scopes[name] for name in operands if name in self.scopes}
        domains |= {output.scope for output in outputs if output.name}
        domains.add(self.home)
        if len(domains) > 1:
            yield self._mixes(call, domains)

    def _mixes(self, call: Call, domains: Collection[str]) -> str:
        return f"{call.op!r} mixes values in {', '.join(sorted(domains))} (function {self.driver!r})"
