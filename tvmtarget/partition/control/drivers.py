"""Write drivers: the calls of a host function, with all copies between memories that they need.

A value is copied once for each memory that needs it: in the innermost region that contains all its uses there, before
the first of them, but outside of every loop in which the value does not change (loop-invariant code motion). It takes
the fastest route for its size (`memory_graph.py`). Constants that a driver passes to functions are copied once for all
runs. A loop-carried value is in the driver's memory, or in the memory where the body computes it if that takes fewer
copies.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TypeAlias

from tvmtarget.ir.control_flow import BodyArgument, body_arguments
from tvmtarget.ir.function import COPY, Call, Function, Value
from tvmtarget.ir.names import Names
from tvmtarget.ir.types import Type
from tvmtarget.partition.control.control_flow_ops import DEFAULT_TRIP_COUNT
from tvmtarget.partition.costs.memory_graph import MemoryGraph

__all__ = ["DriverBlock", "DriverStep", "WrittenCopy", "WrittenDriver", "write_driver"]

# Copies that a loop-carried value in another memory than the driver's adds outside the loop: before and after it.
COPIES_AROUND_LOOP = 2


@dataclass(frozen=True, slots=True, eq=False)
class DriverStep:
    """One call of a driver.

    Attributes:
        call: the call, or an operation with regions that the driver runs.
        domain: memory domain of its operands and results. Loop-carried values may be in another one.
        blocks: steps of the regions of the operation.
    """

    call: Call
    domain: str
    blocks: tuple[DriverBlock, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class DriverBlock:
    """The steps of a driver, or of a region that it runs.

    Parameters and results are in the driver's memory, except for loop-carried values.

    Attributes:
        label: label of the region; '' for the driver itself.
        params: names of the parameters.
        results: names of the results.
        steps: steps in execution order.
        repeats: whether the block may run more than once for one run of the block around it.
        runs: expected number of runs for one run of the program.
    """

    label: str
    params: tuple[str, ...]
    results: tuple[str, ...]
    steps: tuple[DriverStep, ...]
    repeats: bool = False
    runs: Fraction = Fraction(1)

    def used(self) -> Iterator[str]:
        """List all operands and results, also of inner blocks.

        Yields:
            Names of values, in order of use.
        """
        for step in self.steps:
            yield from step.call.inputs
            for block in step.blocks:
                yield from block.used()
        yield from self.results


@dataclass(frozen=True, slots=True)
class WrittenCopy:
    """A copy that a driver makes.

    Attributes:
        value: name of the value.
        src: memory domain to copy from.
        dst: memory domain to copy to.
        runs: expected number of times for one run of the program; 0 for a constant, which is copied once for all runs.
    """

    value: str
    src: str
    dst: str
    runs: Fraction


@dataclass(frozen=True, slots=True)
class WrittenDriver:
    """A finished driver.

    Attributes:
        body: calls and copies.
        results: names of the results in the driver's memory.
        copies: copies in order.
    """

    body: tuple[Call, ...]
    results: tuple[str, ...]
    copies: tuple[WrittenCopy, ...]


def write_driver(
    block: DriverBlock,
    home: str,
    constants: Container[str],
    types: Callable[[str], Type],
    names: Names,
    memory_graph: MemoryGraph,
    domains: Container[str],
) -> WrittenDriver:
    """Write the steps of a driver with all copies that they need.

    Args:
        block: steps of the driver.
        home: memory domain of the driver.
        constants: names of constants, which the driver holds in its memory.
        types: returns the type of a value by name.
        names: names of values in use; names of copies are added.
        memory_graph: memories and the links between them.
        domains: memory domains of the target, in which the program may require loop-carried values.

    Returns:
        The body, results and copies of the driver.
    """
    writer = _Writer(home, constants, types, names, memory_graph, domains)
    writer.choose_carried_domains(block)
    writer.define_values(block, 0)
    writer.collect_uses(block, ())
    for name in block.results:
        writer.use(name, home, ((block, len(block.steps)),))
    writer.place_copies()
    body = writer.write(block)
    return WrittenDriver(body, tuple(writer.name_in(name, home) for name in block.results), tuple(writer.copies))


# Steps that lead to a use: for each block around it, the block and the position in it.
_Path: TypeAlias = tuple[tuple[DriverBlock, int], ...]


@dataclass
class _Writer:
    """Writes one driver; the phases run in the order of `write_driver`."""

    home: str
    constants: Container[str]
    types: Callable[[str], Type]
    names: Names
    memory_graph: MemoryGraph
    domains: Container[str]
    # Depth of the block that defines each value, and the domain that it is defined in.
    definitions: dict[str, tuple[int, str]] = field(default_factory=dict)
    # Domains of loop-carried values that are not in the driver's. Steps and blocks are keys by identity (`eq=False`),
    # because equal ones can occur at several positions.
    carried: dict[DriverStep, dict[BodyArgument, str]] = field(default_factory=dict)
    # By value and a domain where it is not defined: the domain to copy it from, and paths to its uses there.
    uses: dict[tuple[str, str], tuple[str, list[_Path]]] = field(default_factory=dict)
    # Copies to make before a step: value, domain to copy from, and domain to copy to.
    placed: dict[tuple[DriverBlock, int], list[tuple[str, str, str]]] = field(default_factory=dict)
    # Name of the copy of a value in a domain.
    copied: dict[tuple[str, str], str] = field(default_factory=dict)
    copies: list[WrittenCopy] = field(default_factory=list)

    def choose_carried_domains(self, block: DriverBlock) -> None:
        """Choose the domains of loop-carried values, inner loops first."""
        for step in block.steps:
            for body in step.blocks:
                self.choose_carried_domains(body)
                # A block that never runs has no ratio to take, so the default trip count applies.
                iterations = body.runs / block.runs if block.runs else Fraction(DEFAULT_TRIP_COUNT)
                found = {
                    argument: self._required_domain(step.call, argument)
                    or self._cheapest_domain(body, argument, iterations)
                    for argument in body_arguments(step.call)
                }
                self.carried[step] = {argument: domain for argument, domain in found.items() if domain != self.home}

    def define_values(self, block: DriverBlock, depth: int, carried: Mapping[int, str] | None = None) -> None:
        """Record the definition of each value; `carried` are the domains of parameters not in the driver's memory."""
        in_other_domains = carried or {}
        self.definitions |= {
            name: (depth, in_other_domains.get(number, self.home)) for number, name in enumerate(block.params)
        }
        for step in block.steps:
            if not step.blocks:
                definition = depth, step.domain
                for output in step.call.outputs:
                    self.definitions[output.name] = definition
                continue
            outputs = zip(step.call.outputs, self._output_domains(step), strict=True)
            self.definitions |= {output.name: (depth, domain) for output, domain in outputs}
            for inner in step.blocks:
                params = {argument.param: domain for argument, domain in self.carried.get(step, {}).items()}
                self.define_values(inner, depth + 1, params)

    def collect_uses(self, block: DriverBlock, path: _Path) -> None:
        """Record which values are used in which domains; `path` leads to the block."""
        definitions, constants, home = self.definitions, self.constants, self.home
        for position, step in enumerate(block.steps):
            if not step.blocks:
                domain = step.domain
                for name in step.call.inputs:
                    src = home if name in constants else definitions[name][1] if name else domain
                    if src != domain:
                        self._use_from(src, name, domain, (*path, (block, position)))
                continue
            for name, domain in zip(step.call.inputs, self._operand_domains(step), strict=True):
                self.use(name, domain, (*path, (block, position)))
            for inner in step.blocks:
                self.collect_uses(inner, (*path, (block, position)))
                for name, domain in zip(inner.results, self._result_domains(step, inner), strict=True):
                    self.use(name, domain, (*path, (block, position), (inner, len(inner.steps))))

    def _required_domain(self, call: Call, argument: BodyArgument) -> str:
        """Return the domain in which the program requires a loop-carried value; '' if it requires none."""
        ((_, body),) = call.regions
        required = body.params[argument.param].scope or call.outputs[argument.output].scope
        return required if required in self.domains else ""

    def _cheapest_domain(self, body: DriverBlock, argument: BodyArgument, iterations: Fraction) -> str:
        """Return the domain of a loop-carried value with the fewest copies: the driver's or that of its result."""
        made = {
            output.name: domain
            for step in body.steps
            for output, domain in zip(step.call.outputs, self._output_domains(step), strict=True)
        }
        result = body.results[argument.result]
        there = made.get(result, self.home)
        # Count copies per iteration for both choices: a carried value in the driver's memory is copied to every other
        # domain that uses it, and the result back; one in `there` is copied to all domains but that one.
        used_in = set(self._domains_of_uses(body, body.params[argument.param]))
        is_home = body.results.count(result) > 1 or self.home in self._domains_of_uses(body, result)
        copies_saved = len(used_in - {self.home}) + (not is_home) - len(used_in - {there})
        return there if there != self.home and copies_saved * iterations > COPIES_AROUND_LOOP else self.home

    def _domains_of_uses(self, block: DriverBlock, name: str) -> Iterator[str]:
        """Yield the domains in which steps of a block and of inner blocks use a value; its own results do not count."""
        for step in block.steps:
            operands = zip(step.call.inputs, self._operand_domains(step), strict=True)
            yield from (domain for operand, domain in operands if operand == name)
            for inner in step.blocks:
                yield from self._domains_of_uses(inner, name)
                results = zip(inner.results, self._result_domains(step, inner), strict=True)
                yield from (domain for result, domain in results if result == name)

    def _operand_domains(self, step: DriverStep) -> list[str]:
        """Return the domain of each operand of a step."""
        if not step.blocks:
            return [step.domain] * len(step.call.inputs)
        carried = {argument.operand: domain for argument, domain in self.carried.get(step, {}).items()}
        return [carried.get(number, step.domain) for number in range(len(step.call.inputs))]

    def _output_domains(self, step: DriverStep) -> list[str]:
        """Return the domain of each result of a step."""
        if not step.blocks:
            return [step.domain] * len(step.call.outputs)
        carried = {argument.output: domain for argument, domain in self.carried.get(step, {}).items()}
        return [carried.get(number, step.domain) for number in range(len(step.call.outputs))]

    def _result_domains(self, step: DriverStep, body: DriverBlock) -> list[str]:
        """Return the domain of each result of a region."""
        carried = {argument.result: domain for argument, domain in self.carried.get(step, {}).items()}
        return [carried.get(number, self.home) for number in range(len(body.results))]

    def use(self, name: str, domain: str, path: _Path) -> None:
        """Record that a value is used in a domain."""
        src = self.definition_of(name)[1] if name else domain
        if src != domain:
            self._use_from(src, name, domain, path)

    def _use_from(self, src: str, name: str, domain: str, path: _Path) -> None:
        """Record that a value is used in a domain, and so in all domains on the route from where it is defined."""
        known = self.uses.get((name, domain))
        # Uses in the driver itself come in order, so that the first one counts.
        if known is not None and len(known[1][-1]) == 1:
            return
        route = self.memory_graph.route(src, domain, self.memory_graph.nbytes(self.types(name)))
        for stop in (*route.stops, domain):
            known = self.uses.get((name, stop))
            if known is None:
                self.uses[name, stop] = src, [path]
            elif len(known[1][-1]) > 1:
                known[1].append(path)
            src = stop

    def place_copies(self) -> None:
        """Choose the step before which each copy is made."""
        for (name, domain), (src, paths) in self.uses.items():
            place = paths[0][0] if len(paths[0]) == 1 else self._place(self.definition_of(name)[0], paths)
            self.placed.setdefault(place, []).append((name, src, domain))

    def _place(self, depth: int, paths: list[_Path]) -> tuple[DriverBlock, int]:
        """Return the step before which to copy a value that is defined at some depth."""
        deepest, shortest = depth, min(map(len, paths))
        # Descend to the lowest common ancestor of all uses in the tree of blocks.
        while deepest + 1 < shortest and all(path[deepest + 1][0] is paths[0][deepest + 1][0] for path in paths):
            deepest += 1
        # Stay outside the outermost loop below the definition: the value does not change in it.
        looped = (level - 1 for level in range(depth + 1, deepest + 1) if paths[0][level][0].repeats)
        level = next(looped, deepest)
        return paths[0][level][0], min(path[level][1] for path in paths)

    def write(self, block: DriverBlock) -> tuple[Call, ...]:
        """Return the calls of a block with copies."""
        body: list[Call] = []
        for position, step in enumerate(block.steps):
            if (block, position) in self.placed:
                body += self._copies(block, position)
            if not step.blocks:
                body.append(self._plain(step))
                continue
            inputs = tuple(map(self.name_in, step.call.inputs, self._operand_domains(step)))
            domains = zip(step.call.outputs, self._output_domains(step), strict=True)
            outputs = tuple(replace(output, scope=domain) for output, domain in domains)
            regions = tuple(
                self._region(step, inner, region)
                for inner, (_, region) in zip(step.blocks, step.call.regions, strict=True)
            )
            body.append(replace(step.call, inputs=inputs, outputs=outputs, regions=regions))
        body += self._copies(block, len(block.steps))
        return tuple(body)

    def _plain(self, step: DriverStep) -> Call:
        """Return the call of a step without blocks, with operands and results in its domain."""
        call, domain, copied = step.call, step.domain, self.copied
        inputs = tuple([copied.get((name, domain), name) for name in call.inputs])
        outputs = tuple([Value(output.name, output.type, domain) for output in call.outputs])
        return Call(call.op, inputs, outputs, call.attrs, (), call.constraint, call.source, call.has_effect)

    def _region(self, step: DriverStep, block: DriverBlock, region: Function) -> tuple[str, Function]:
        body = self.write(block)
        results = tuple(map(self.name_in, block.results, self._result_domains(step, block)))
        params = tuple(Value(param.name, param.type, self.definitions[param.name][1]) for param in region.params)
        return block.label, region.replace(params=params, body=body, results=results, constants=())

    def _copies(self, block: DriverBlock, position: int) -> list[Call]:
        calls: list[Call] = []
        types, constants = self.types, self.constants
        for name, src, domain in self.placed.get((block, position), ()):
            source = self.name_in(name, src)
            copy = self.copied[name, domain] = self.names.fresh(f"{name}.copy")
            self.copies.append(WrittenCopy(name, src, domain, Fraction(0) if name in constants else block.runs))
            outputs, attrs = (Value(copy, types(name), domain),), (("src", src), ("dst", domain))
            calls.append(Call(COPY, (source,), outputs, attrs, source=f"copy {name}"))
        return calls

    def name_in(self, name: str, domain: str) -> str:
        """Return the name of a value, or of its copy, in a domain."""
        return self.copied.get((name, domain), name)

    def definition_of(self, name: str) -> tuple[int, str]:
        """Return the depth of the block that defines a value, and its domain; constants belong to the driver."""
        return (0, self.home) if name in self.constants else self.definitions[name]
