"""Random programs with nested control flow that run: If, Loop and Scan, over each other, with captures."""

from __future__ import annotations

import random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["SHAPE", "inputs_for", "random_program"]

SHAPE = (3,)
_UNARY = ("Tanh", "Neg", "Abs", "Sigmoid")
_BINARY = ("Add", "Sub", "Mul", "Max")


class _Writer:
    """Writes graphs of values of one shape; `values` are all that can be read, `flags` truth values."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.count = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def body(self, size: int, depth: int, values: list[str], flags: list[str]) -> list[onnx.NodeProto]:
        """Return operations; what they compute is added to the values."""
        nodes: list[onnx.NodeProto] = []
        for _ in range(size):
            makers = [self.plain] * 4 + ([self.branch, self.loop, self.scan] if depth else [])
            nodes += self.rng.choice(makers)(depth, values, flags)
        return nodes

    def plain(self, depth: int, values: list[str], flags: list[str]) -> list[onnx.NodeProto]:
        name = self.name("v")
        if self.rng.random() < 0.2:
            nodes = [
                helper.make_node("ReduceSum", [self.rng.choice(values)], [f"{name}s"], name=f"{name}s", keepdims=0),
                helper.make_node("Less", [f"{name}s", "zero"], [name], name=name),
            ]
            flags.append(name)
            return nodes
        one, other = self.rng.choice(values), self.rng.choice(values)
        op = self.rng.choice(_UNARY + _BINARY)
        node = helper.make_node(op, [one] if op in _UNARY else [one, other], [name], name=name)
        values.append(name)
        return [node]

    def branch(self, depth: int, values: list[str], flags: list[str]) -> list[onnx.NodeProto]:
        name, count = self.name("if"), self.rng.randint(1, 2)
        graphs = {}
        for label in ("then_branch", "else_branch"):
            inner, inner_flags = list(values), list(flags)
            nodes = self.body(self.rng.randint(0, 3), depth - 1, inner, inner_flags)
            initializers, results = [], []
            for _ in range(count):
                result = self.name("r")
                if self.rng.random() < 0.2:
                    array = np.full(SHAPE, self.rng.random(), "float32")
                    initializers.append(numpy_helper.from_array(array, result))
                else:
                    nodes.append(helper.make_node("Identity", [self.rng.choice(inner[-4:])], [result], name=result))
                results.append(result)
            graphs[label] = helper.make_graph(nodes, label, [], [_tensor(one) for one in results], initializers)
        outputs = [f"{name}_{k}" for k in range(count)]
        values += outputs
        # Not of a constant, as onnxruntime 1.31 fails to inline some of these.
        flag = self.rng.choice([flag for flag in flags if flag != "yes"])
        return [helper.make_node("If", [flag], outputs, name=name, **graphs)]

    def loop(self, depth: int, values: list[str], flags: list[str]) -> list[onnx.NodeProto]:
        name, carried = self.name("loop"), self.rng.randint(1, 2)
        states = [self.name("c") for _ in range(carried)]
        flag, number = self.name("g"), self.name("n")
        inner, inner_flags = [*values, *states], [*flags, flag]
        nodes = self.body(self.rng.randint(1, 3), depth - 1, inner, inner_flags)
        goes_on = self.name("on")
        stop = self.rng.random() < 0.3
        operands = [number, "limit"] if stop else [flag]
        nodes.append(helper.make_node("Less" if stop else "Identity", operands, [goes_on], name=goes_on))
        results = [self.name("r") for _ in range(carried + 1)]
        nodes += (helper.make_node("Tanh", [self.rng.choice(inner[-4:])], [one], name=one) for one in results)
        graph = helper.make_graph(
            nodes,
            "body",
            [_scalar(number, TensorProto.INT64), _scalar(flag, TensorProto.BOOL), *map(_tensor, states)],
            [_scalar(goes_on, TensorProto.BOOL), *map(_tensor, results)],
        )
        outputs = [f"{name}_{k}" for k in range(carried)]
        stacked = f"{name}_s"
        condition = self.rng.choice(["", "yes", self.rng.choice(flags)])
        operands = ["trips", condition, *self.rng.choices(values, k=carried)]
        total = self.name("v")
        values += [*outputs, total]
        axes = helper.make_node("ReduceSum", [stacked, "first"], [total], name=total, keepdims=0)
        return [helper.make_node("Loop", operands, [*outputs, stacked], name=name, body=graph), axes]

    def scan(self, depth: int, values: list[str], flags: list[str]) -> list[onnx.NodeProto]:
        name, state, part = self.name("scan"), self.name("c"), self.name("e")
        inner = [*values, state, part]
        nodes = self.body(self.rng.randint(1, 3), depth - 1, inner, list(flags))
        results = [self.name("r"), self.name("r")]
        nodes += (helper.make_node("Tanh", [self.rng.choice(inner[-4:])], [one], name=one) for one in results)
        graph = helper.make_graph(nodes, "body", [_tensor(state), _tensor(part)], list(map(_tensor, results)))
        backwards = {f"scan_{what}": [self.rng.randint(0, 1)] for what in ("input_directions", "output_directions")}
        backwards["scan_output_axes"] = [self.rng.randint(0, 1)]
        outputs, total = [f"{name}_0", f"{name}_s"], self.name("v")
        axis = "first" if backwards["scan_output_axes"][0] == 0 else "second"
        values_in = [self.rng.choice(values), "rows"]
        values += [outputs[0], total]
        reduced = helper.make_node("ReduceSum", [outputs[1], axis], [total], name=total, keepdims=0)
        ways = {"num_scan_inputs": 1, **backwards}
        return [helper.make_node("Scan", values_in, outputs, name=name, body=graph, **ways), reduced]


def _tensor(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE)


def _scalar(name: str, dtype: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, ())


def random_program(size: int, seed: int, depth: int = 2) -> onnx.ModelProto:
    """Return a model of float32 values of one shape, with control flow nested as deep as is said."""
    writer = _Writer(seed)
    values, flags = ["x", "y"], ["p", "yes"]
    nodes = writer.body(size, depth, values, flags)
    results = [f"out{k}" for k in range(2)]
    last = zip(values[-2:], results, strict=True)
    nodes += (helper.make_node("Neg", [value], [one], name=one) for value, one in last)
    constants = {
        "zero": np.float32(0),
        "yes": np.bool_(True),
        "limit": np.int64(1),
        "first": np.array([0]),
        "second": np.array([1]),
    }
    graph = helper.make_graph(
        nodes,
        "random",
        [
            _tensor("x"),
            _tensor("y"),
            helper.make_tensor_value_info("rows", TensorProto.FLOAT, (2, *SHAPE)),
            _scalar("p", TensorProto.BOOL),
            _scalar("trips", TensorProto.INT64),
        ],
        list(map(_tensor, results)),
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def inputs_for(seed: int, trips: int) -> dict[str, np.ndarray]:
    """Return inputs of a random program; loops run `trips` times at most."""
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=SHAPE).astype("float32"),
        "y": rng.normal(size=SHAPE).astype("float32"),
        "rows": rng.normal(size=(2, *SHAPE)).astype("float32"),
        "p": np.asarray(bool(rng.integers(2))),
        "trips": np.asarray(trips, "int64"),
    }
