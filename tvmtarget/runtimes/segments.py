"""The program of a machine cut where it sends and receives: what lies between runs without the other machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from tvmtarget.executors.driver_program import Driver, DriverProgram, Step

__all__ = ["Part", "parts_of"]


Part: TypeAlias = "Driver | Step"


def parts_of(program: DriverProgram) -> Iterator[Part]:
    """Yield the driver of a program in parts, in order: transfers, and drivers of what lies between them.

    Such a driver's parameters are the values that it reads from before, its results those that are read after it.
    """
    driver = _entry(program)
    groups: list[list[Step]] = [[]]
    for step in driver.steps:
        groups += [[step], []] if step.order is not None else []
        if step.order is None:
            groups[-1].append(step)
    groups = [group for group in groups if group]
    needed = set(driver.results)
    after: list[set[str]] = []
    for group in reversed(groups):
        after.append(set(needed))
        needed.update(name for step in group for name in _read(step))
    for group, read_later in zip(groups, reversed(after), strict=True):
        yield group[0] if group[0].order is not None else _part(driver, group, read_later)


def _read(step: Step) -> list[str]:
    """List the values that a step reads, also those that its nested bodies take from around them."""
    names = [name for name in step.inputs if name]
    for body in step.control.bodies if step.control is not None else ():
        own = {*body.params, *(name for inner in body.steps for name in inner.outputs)}
        used = [name for inner in body.steps for name in _read(inner)]
        names += [name for name in (*used, *body.results) if name not in own]
    return names


def _entry(program: DriverProgram) -> Driver:
    """Return the driver that a program begins with; one that calls the function where that is a leaf's."""
    if program.entry in program.drivers:
        return program.drivers[program.entry]
    params, results = (tuple(value.name for value in values) for values in (program.inputs, program.outputs))
    only = Step(call=program.entry, inputs=params, outputs=results)
    return Driver(path="", params=params, results=results, steps=(only,))


def _part(driver: Driver, steps: list[Step], read_later: set[str]) -> Driver:
    made = dict.fromkeys(name for step in steps for name in step.outputs)
    inside = {*made, *driver.constants}
    return Driver(
        path=driver.path,
        params=tuple(dict.fromkeys(name for step in steps for name in _read(step) if name not in inside)),
        results=tuple(name for name in made if name in read_later),
        steps=tuple(step.model_validate(step.model_dump() | {"free": ()}) for step in steps),
        constants=driver.constants,
    )
