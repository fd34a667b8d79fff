"""Bytes of values that a partitioned program without control flow has in each memory, counted apart from the library.

The program is run call by call. A value is in a memory from the call or copy that makes it until the last one that
reads it there; what a function reads and returns until its call ends; inputs and results of the program until its end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tvmtarget.ir.function import COPY, Function
from tvmtarget.ir.types import TensorType, Type
from tvmtarget.partition.plan import Plan

__all__ = ["peaks"]


@dataclass
class _Held:
    """A value in a memory, with its bytes and the first and last moment of its being there."""

    memory: str
    nbytes: int
    begin: int
    end: int


def peaks(plan: Plan) -> dict[str, int]:
    """Return the most bytes of values that are in each memory at a time, by memory domain."""
    run = _Run(plan)
    main = plan.module.main
    memory = run.memory_of(main)
    run.call(main, [run.make(memory, value.type) for value in main.params])
    changes: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for held in run.made:
        changes[held.memory] += [(held.begin, 0, held.nbytes), (held.end, 1, -held.nbytes)]
    most = {}
    for memory, events in changes.items():
        total = most[memory] = 0
        for _, _, change in sorted(events):
            total += change
            most[memory] = max(most[memory], total)
    return most


class _Run:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.functions = {function.name: function for function in plan.module}
        self.made: list[_Held] = []
        self.now = 0

    def memory_of(self, function: Function) -> str:
        topology = self.plan.topology
        if function.attr("role") == "driver":
            site = function.site_constraint
            return topology.home("" if site is None else site.path or "")
        site = function.constraint
        return topology.home("") if site is None or not site.path else topology[site.path].domain

    def make(self, memory: str, type_: Type | None) -> _Held:
        assert isinstance(type_, TensorType)
        held = _Held(memory, type_.nbytes or 0, self.now, self.now)
        self.made.append(held)
        return held

    def call(self, function: Function, arguments: Sequence[_Held]) -> list[_Held]:
        memory = self.memory_of(function)
        held = dict(zip((value.name for value in function.params), arguments, strict=True))
        for call in function.body:
            operands = [held[name] for name in call.inputs]
            if call.callee is not None:
                results = self.call(self.functions[call.callee], operands)
            else:
                self.now += 1
                place = str(call.attr("dst")) if call.op == COPY else memory
                results = [self.make(place, value.type) for value in call.outputs]
            for operand in operands:
                operand.end = self.now
            held |= zip((value.name for value in call.outputs), results, strict=True)
        returned = [held[name] for name in function.results]
        for value in (*arguments, *returned):
            value.end = self.now
        return returned
