"""Verify a driver program that was read from a file, as strictly as a module."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tvmtarget.errors import ArtifactError
from tvmtarget.executors.driver_program import Block, Control, DriverProgram, Step
from tvmtarget.untrusted import check_limit

__all__ = ["verify_program"]


def verify_program(
    program: DriverProgram,
    leaves: Mapping[str, tuple[int, int]],
    constants: Collection[str],
    machines: Collection[str],
    what: str,
) -> None:
    """Verify a driver program.

    Args:
        program: the program.
        leaves: numbers of parameters and results of each leaf function, by name.
        constants: names of the stored constants.
        machines: names of the machines that transfers may name; empty to allow any.
        what: description of the program, for messages.

    Raises:
        ArtifactError: a name that nothing defines, a value that is defined twice or read after it was freed, a call
            with a wrong number of values, drivers that call each other in a cycle, or that run more steps than the
            limit `model-operations`.
    """
    signatures = dict(leaves)
    for name, driver in program.drivers.items():
        if name in leaves:
            raise ArtifactError(f"{what} is damaged: {name!r} is a driver and a leaf function")
        signatures[name] = (len(driver.params), len(driver.results))
    if program.entry not in signatures:
        raise ArtifactError(f"{what} is damaged: no function is its entry, {program.entry!r}")
    given = (len(program.inputs), len(program.outputs))
    if signatures[program.entry] != given:
        raise ArtifactError(
            f"{what} is damaged: entry {program.entry!r} has {signatures[program.entry]} parameters and results, and "
            f"the program {given}"
        )
    _check_calls(program, what)
    for name, driver in program.drivers.items():
        place = f"{what} is damaged: driver {name!r}"
        if unknown := sorted(set(driver.constants) - set(constants)):
            raise ArtifactError(f"{place} has the constant {unknown[0]!r}, which is not in the file")
        problem = next(_problems(driver, {*driver.constants}, signatures, machines), None)
        if problem is not None:
            raise ArtifactError(f"{place} {problem}")


def _check_calls(program: DriverProgram, what: str) -> None:
    """Reject cycles of drivers, and too many steps; the steps of a called driver count at each call."""
    # Depth-first search without recursion, as a file may nest calls deeper than Python's stack.
    sizes: dict[str, int] = {}
    open_: set[str] = set()
    waiting = list(program.drivers)
    while waiting:
        name = waiting[-1]
        if name in sizes:
            waiting.pop()
            continue
        steps = list(program.drivers[name].walk())
        called = [step.call for step in steps if step.call in program.drivers]
        if missing := [str(one) for one in called if one not in sizes]:
            open_.add(name)
            if again := sorted(open_.intersection(missing)):
                raise ArtifactError(f"{what} is damaged: driver {again[0]!r} calls itself")
            waiting += missing
            continue
        open_.discard(name)
        sizes[name] = len(steps) + sum(sizes[str(one)] for one in called)
        check_limit("model-operations", sizes[name], f"driver {name!r} of {what}", ArtifactError)


def _problems(
    block: Block,
    around: set[str],
    signatures: Mapping[str, tuple[int, int]],
    machines: Collection[str],
) -> Iterator[str]:
    """Yield what is wrong in a block that can also read the values `around` it."""
    own = set(block.params)
    if len(own) != len(block.params) or own & around:
        yield "has a parameter that is defined twice"
    for number, step in enumerate(block.steps):
        place = f"at step {number}"
        for name in step.inputs:
            if name and name not in own and name not in around:
                yield f"{place} reads {name!r}, which is not defined there, or was freed"
        yield from (f"{place} {problem}" for problem in _problems_of_step(step, signatures, machines))
        if step.control is not None:
            for body in step.control.bodies:
                yield from _problems(body, around | own, signatures, machines)
        for name in filter(None, step.outputs):
            if name in own or name in around:
                yield f"{place} defines {name!r} again"
            own.add(name)
        for name in step.free:
            if name not in own:
                yield f"{place} frees {name!r}, which is not its own"
            own.discard(name)
    for name in block.results:
        if name not in own and name not in around:
            yield f"returns {name!r}, which is not defined at its end"


def _problems_of_step(
    step: Step, signatures: Mapping[str, tuple[int, int]], machines: Collection[str]
) -> Iterator[str]:
    given = (len(step.inputs), len(step.outputs))
    # A step is exactly one of four kinds, which the schema alone does not enforce.
    kinds = [step.call is not None, step.control is not None, step.order is not None, step.src is not None]
    if sum(kinds) != 1:
        yield "is not one of a call, control flow, a transfer and a copy"
    elif step.call is not None:
        if step.call not in signatures:
            yield f"calls {step.call!r}, which is no function of the program"
        elif signatures[step.call] != given:
            yield f"calls {step.call!r} with {given} values and results, which has {signatures[step.call]}"
    elif step.control is not None:
        yield from _problems_of_control(step.control, *given)
    elif step.order is not None:
        other = step.to if step.from_ is None else step.from_
        if (step.to is None) == (step.from_ is None) or (machines and other not in machines):
            yield f"is a transfer to {step.to!r} from {step.from_!r}, of which one is to be another machine"
        elif given[step.to is not None]:
            yield "is a transfer with values at both ends"
    elif given != (1, 1) or not step.inputs[0] or not step.outputs[0] or step.dst is None:
        yield "is a copy of other than one value to one memory"


def _problems_of_control(control: Control, given: int, made: int) -> Iterator[str]:
    """Yield wrong numbers of operands, of bodies, of their parameters and of their results."""
    joined, cut = len(control.joined), len(control.cut)
    carried = made - joined
    # Operands, bodies, and parameters and results of a body, from the definitions of If, Loop and Scan in ONNX.
    expected = {
        "branch": (1, 2, 0, made),
        "loop": (2 + carried, 1, 2 + carried, 1 + made),
        "scan": (carried + cut, 1, carried + cut, made),
    }[control.kind]
    operands, bodies, params, results = expected
    axes = {len(control.empty), joined}
    if given != operands or len(control.bodies) != bodies or carried < 0 or len(axes) != 1:
        found = f"{given} operands and {len(control.bodies)} bodies"
        yield f"has {found}, and a {control.kind} of it {operands} and {bodies}"
    for body in control.bodies:
        if (len(body.params), len(body.results)) != (params, results):
            found = f"{len(body.params)} parameters and {len(body.results)} results"
            yield f"has a body of {found}, not {params} and {results}"
    if control.kind == "loop" and len(control.param_ranks) != params:
        yield "has ranks of other parameters than its body's"
