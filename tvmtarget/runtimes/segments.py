"""Segments of a machine's program: the steps between two transfers, which run without the other machines."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeAlias

from tvmtarget.executors.driver_program import Driver, DriverProgram, Step

__all__ = ["Segment", "split_segments"]


Segment: TypeAlias = "Driver | Step"


def split_segments(program: DriverProgram) -> Iterator[Segment]:
    """Split the entry driver of a program at its transfers.

    Args:
        program: the program of one machine.

    Yields:
        In order: each transfer, and for the steps between two transfers a driver. Its parameters are the values that it
        reads from earlier segments, its results those that later ones read. A first driver without steps returns the
        constants that are sent or returned as they are.
    """
    driver = _entry(program)
    groups: list[list[Step]] = [[]]
    for step in driver.steps:
        groups += [[step], []] if step.order is not None else []
        if step.order is None:
            groups[-1].append(step)
    needed, constants = set(driver.results), frozenset(driver.constants)
    segments: list[Segment] = []
    for group in filter(None, reversed(groups)):
        is_transfer = group[0].order is not None
        segments.append(group[0] if is_transfer else _segment(driver.path, constants, group, needed))
        needed.update(name for step in group for name in _reads(step))
    sent = [name for step in driver.steps if step.order is not None for name in step.inputs]
    as_they_are = tuple(name for name in dict.fromkeys((*sent, *driver.results)) if name in constants)
    if as_they_are:
        yield Driver(path=driver.path, params=(), results=as_they_are, steps=(), constants=as_they_are)
    yield from reversed(segments)


def _reads(step: Step) -> list[str]:
    """List the values that a step reads, also those that its nested bodies read from around them."""
    names = [name for name in step.inputs if name]
    for body in step.control.bodies if step.control is not None else ():
        own = {*body.params, *(name for inner in body.steps for name in inner.outputs)}
        used = [name for inner in body.steps for name in _reads(inner)]
        names += [name for name in (*used, *body.results) if name not in own]
    return names


def _entry(program: DriverProgram) -> Driver:
    """Return the entry driver; if the entry is a leaf function, a driver that calls it."""
    if program.entry in program.drivers:
        return program.drivers[program.entry]
    params, results = (tuple(value.name for value in values) for values in (program.inputs, program.outputs))
    only = Step(call=program.entry, inputs=params, outputs=results)
    return Driver(path="", params=params, results=results, steps=(only,))


def _segment(path: str, constants: Collection[str], steps: list[Step], read_later: Collection[str]) -> Driver:
    made = dict.fromkeys(name for step in steps for name in step.outputs)
    read = dict.fromkeys(name for step in steps for name in _reads(step) if name not in made)
    return Driver(
        path=path,
        params=tuple(name for name in read if name not in constants),
        results=tuple(name for name in made if name in read_later),
        steps=tuple(step.model_validate(step.model_dump() | {"free": ()}) for step in steps),
        constants=tuple(name for name in read if name in constants),
    )
