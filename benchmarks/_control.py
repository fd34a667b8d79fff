"""Graphs of `_graphs.py` with stretches of their operations put into branches and loops, nested in each other.

What is in a body reads values around it, and what is read outside comes out of it: as results of a branch, or as
values that a loop carries. All values are of one type, so that the programs run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks._graphs import KINDS_OF_ONE, KINDS_OF_TWO, Graph
from tvmtarget.ir.function import Call, Function, Value
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.types import TensorType, Type

__all__ = ["controlled"]

# Operations that a body takes at most, and how often one begins.
LONGEST, SHARE = 12, 0.1

_VALUE, _FLAG, _NUMBER = TensorType("float32", (8,)), TensorType("bool", ()), TensorType("int64", ())


def controlled(graph: Graph, rng: random.Random, depth: int = 2) -> IRModule:
    """Return a graph as a program with control flow nested to a depth; its inputs are `x`, `flag` and `trips`."""
    writer = _Writer(graph, rng)
    names = {-1: "x"}
    body = writer.body(range(len(graph)), names, depth)
    results = tuple(names[index] for index, readers in enumerate(writer.readers) if not readers)
    params = (Value("x", _VALUE), Value("flag", _FLAG), Value("trips", _NUMBER))
    return IRModule((Function("main", params, tuple(body), results, opsets=(("", 17),)),))


class _Writer:
    """Writes operations by their numbers; `names` say what the value of each is called where one is written."""

    def __init__(self, graph: Graph, rng: random.Random) -> None:
        self.graph = graph
        self.rng = rng
        self.count = 0
        self.readers: list[list[int]] = [[] for _ in graph]
        for index, (reads, _) in enumerate(graph):
            for before in reads:
                if before >= 0:
                    self.readers[before].append(index)

    def body(self, indices: Sequence[int], names: dict[int, str], depth: int) -> list[Call]:
        """Return the calls of some operations; what is read of them later is added to the names."""
        calls: list[Call] = []
        place = 0
        while place < len(indices):
            if depth and self.rng.random() < SHARE:
                inner = indices[place : place + self.rng.randint(1, LONGEST)]
                calls.append(self.rng.choice((self.branch, self.loop))(inner, names, depth - 1))
                place += len(inner)
            else:
                calls.append(self.plain(indices[place], names))
                place += 1
        return calls

    def plain(self, index: int, names: dict[int, str]) -> Call:
        reads, number = self.graph[index]
        kinds = KINDS_OF_TWO if len(reads) == 2 else KINDS_OF_ONE
        call = self.call(kinds[number % len(kinds)], tuple(names[before] for before in reads))
        names[index] = call.outputs[0].name
        return call

    def branch(self, inner: Sequence[int], names: dict[int, str], depth: int) -> Call:
        known = sorted(names.values())
        within = dict(names)
        then = self.body(inner, within, depth)
        leaving = self.leaving(inner)
        instead = [self.call("Neg", (self.rng.choice(known),)) for _ in leaving]
        regions = (
            ("then_branch", self.region("then", (), then, [within[index] for index in leaving])),
            ("else_branch", self.region("else", (), instead, [call.outputs[0].name for call in instead])),
        )
        return self.compound("If", ("flag",), regions, leaving, names)

    def loop(self, inner: Sequence[int], names: dict[int, str], depth: int) -> Call:
        leaving = self.leaving(inner)
        first = tuple(self.rng.choice(sorted(names.values())) for _ in leaving)
        states = [self.value() for _ in leaving]
        turn, goes_on = self.value(_NUMBER), self.value(_FLAG)
        within = {**names, -1: states[0].name}
        body = [self.call("Identity", (goes_on.name,), _FLAG), *self.body(inner, within, depth)]
        results = [body[0].outputs[0].name, *(within[index] for index in leaving)]
        regions = (("body", self.region("body", (turn, goes_on, *states), body, results)),)
        return self.compound("Loop", ("trips", "flag", *first), regions, leaving, names)

    def leaving(self, inner: Sequence[int]) -> list[int]:
        """Return the operations whose values are read elsewhere, or are results."""
        own = set(inner)
        return [index for index in inner if not self.readers[index] or not own.issuperset(self.readers[index])]

    def compound(
        self,
        kind: str,
        inputs: tuple[str, ...],
        regions: tuple[tuple[str, Function], ...],
        leaving: list[int],
        names: dict[int, str],
    ) -> Call:
        outputs = tuple(self.value() for _ in leaving)
        names.update((index, output.name) for index, output in zip(leaving, outputs, strict=True))
        return Call(f"onnx.{kind}", inputs, outputs, regions=regions, source=f"n{self.number()}")

    def region(self, name: str, params: tuple[Value, ...], body: list[Call], results: list[str]) -> Function:
        return Function(name, params, tuple(body), tuple(results))

    def call(self, kind: str, inputs: tuple[str, ...], type_: Type = _VALUE) -> Call:
        return Call(f"onnx.{kind}", inputs, (self.value(type_),), source=f"n{self.number()}")

    def value(self, type_: Type = _VALUE) -> Value:
        return Value(f"v{self.number()}", type_)

    def number(self) -> int:
        self.count += 1
        return self.count
