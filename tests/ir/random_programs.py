"""Random valid ONNX models that run: elementwise operations, reshapes, If, Loop and Scan with captures.

Values are float32 tensors of one shape, so that any fits anywhere; numbers stay small. Names are of all kinds.
"""

from __future__ import annotations

import random

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

__all__ = ["inputs_of_program", "random_program"]

SHAPE = (2, 3)
_UNARY = ("Relu", "Tanh", "Sigmoid", "Neg", "Abs", "Identity", "Softsign")
_BINARY = ("Add", "Sub", "Mul", "Max", "Min")
_STEMS = ("v", "conv:0", "a b", 'q"uote', "naïve", "漢字", "new\nline", "x/y.z", "-", "return", "0")


def random_program(seed: int, *, size: int = 12, depth: int = 2, opset: int = 17) -> ModelProto:
    """Return a model of `size` operations with bodies nested up to `depth`; the same seed gives the same model."""
    return _Program(seed, opset).model(size, depth)


def inputs_of_program(model: ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random inputs of a random program."""
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        kind = value.type.tensor_type.elem_type
        wide = rng.uniform(-2, 2, SHAPE).astype("float32")
        found[value.name] = np.array(bool(rng.integers(2))) if kind == TensorProto.BOOL else wide
    return found


class _Program:
    def __init__(self, seed: int, opset: int) -> None:
        self.rng = random.Random(seed)
        self.opset = opset
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"{self.rng.choice(_STEMS)}{self.count}"

    def model(self, size: int, depth: int) -> ModelProto:
        symbolic = self.rng.random() < 0.3
        shape = ("batch", SHAPE[1]) if symbolic else SHAPE
        inputs = [helper.make_tensor_value_info(self.name(), TensorProto.FLOAT, shape) for _ in range(2)]
        conditions = [helper.make_tensor_value_info(self.name(), TensorProto.BOOL, []) for _ in range(2)]
        known = [value.name for value in inputs]
        self.conditions = [value.name for value in conditions]
        body = self.graph("main", known, size, depth, results=self.rng.randint(1, 3))
        for value in (*inputs, *conditions):
            body.input.append(value)
        model = helper.make_model(body, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        if self.rng.random() < 0.3:
            helper.set_model_props(model, {"seed": str(self.count)})
        return model

    def graph(self, name: str, outer: list[str], size: int, depth: int, *, results: int) -> GraphProto:
        """Return a graph whose operations read what is around it and each other; its results are its own."""
        known, nodes, own = list(outer), [], []
        constants = [
            numpy_helper.from_array(np.full(SHAPE, self.rng.uniform(-1, 1), "float32"), self.name())
            for _ in range(self.rng.randint(0, 2))
        ]
        known += [constant.name for constant in constants]
        for _ in range(max(1, size)):
            made = self.node(known, depth)
            nodes += made
            fresh = list(made[-1].output)[-1:] if made[-1].op_type == "Scan" else list(made[-1].output)
            known += fresh
            own += fresh
        chosen = list(dict.fromkeys(self.rng.choice(own[-4:]) for _ in range(results)))
        while len(chosen) < results:
            nodes.append(self.made("Identity", [self.rng.choice(known)]))
            chosen.append(nodes[-1].output[0])
        outputs = [helper.make_tensor_value_info(result, TensorProto.FLOAT, None) for result in chosen]
        return helper.make_graph(nodes, name, [], outputs, constants)

    def made(self, op: str, inputs: list[str], outputs: int = 1, **attributes: object) -> NodeProto:
        name = self.rng.choice(["", self.name()])
        return helper.make_node(op, inputs, [self.name() for _ in range(outputs)], name=name, **attributes)

    def constant(self, data: object) -> NodeProto:
        return self.made("Constant", [], value=numpy_helper.from_array(np.asarray(data)))

    def node(self, known: list[str], depth: int) -> list[NodeProto]:
        """Return an operation, the last of the nodes, with those that make its constants."""
        draw = self.rng.random()
        if depth and draw < 0.1:
            return [self.branch(known, depth)]
        if depth and draw < 0.2:
            return self.loop(known, depth)
        if depth and draw < 0.27:
            return self.scan(known)
        if draw < 0.35 and self.opset >= 11:
            low = self.constant(np.float32(-1))
            return [low, self.made("Clip", [self.rng.choice(known), low.output[0], ""][: self.rng.choice([2, 3])])]
        if draw < 0.42:
            return [self.made("Dropout", [self.rng.choice(known)])]
        if draw < 0.7:
            return [self.made(self.rng.choice(_UNARY), [self.rng.choice(known)])]
        return [self.made(self.rng.choice(_BINARY), [self.rng.choice(known), self.rng.choice(known)])]

    def branch(self, known: list[str], depth: int) -> NodeProto:
        size, results = self.rng.randint(1, 4), self.rng.randint(1, 2)
        then, other = (self.graph(label, known, size, depth - 1, results=results) for label in ("then", "else"))
        return self.made("If", [self.rng.choice(self.conditions)], results, then_branch=then, else_branch=other)

    def loop(self, known: list[str], depth: int) -> list[NodeProto]:
        """Return a Loop that carries one value, with a condition or without, and stops after a few turns."""
        turns = self.constant(np.int64(self.rng.randint(0, 3)))
        step, go, carried = self.name(), self.name(), self.name()
        body = self.graph("body", [*known, carried], self.rng.randint(1, 4), depth - 1, results=1)
        more = self.made("Identity", [go])
        body.node.append(more)
        result = body.output[0]
        del body.output[:]
        body.output.append(helper.make_tensor_value_info(more.output[0], TensorProto.BOOL, []))
        body.output.append(result)
        body.input.append(helper.make_tensor_value_info(step, TensorProto.INT64, []))
        body.input.append(helper.make_tensor_value_info(go, TensorProto.BOOL, []))
        body.input.append(helper.make_tensor_value_info(carried, TensorProto.FLOAT, None))
        condition = self.rng.choice(["", *self.conditions])
        return [turns, self.made("Loop", [turns.output[0], condition, self.rng.choice(known)], body=body)]

    def scan(self, known: list[str]) -> list[NodeProto]:
        """Return a Scan over the rows of a value, whose body adds up what it has seen."""
        state, row = self.name(), self.name()
        total = helper.make_node("Add", [state, row], [self.name()])
        out = helper.make_node(self.rng.choice(_UNARY), [total.output[0]], [self.name()])
        first = helper.make_node("ReduceSum", [self.rng.choice(known)], [self.name()], keepdims=0)
        kept = helper.make_node("Mul", [total.output[0], first.output[0]], [self.name()])
        mild = helper.make_node("Tanh", kept.output, [self.name()])
        body = helper.make_graph(
            [total, out, first, kept, mild],
            "row",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [SHAPE[1]]) for name in (state, row)],
            [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, [SHAPE[1]]) for node in (mild, out)],
        )
        start = self.constant(np.zeros(SHAPE[1], "float32"))
        return [start, self.made("Scan", [start.output[0], self.rng.choice(known)], 2, body=body, num_scan_inputs=1)]
