"""Models for tests: real architectures with random weights, small graphs, random graphs."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from effort import examples
from onnx import ModelProto, TensorProto, helper, numpy_helper, shape_inference

__all__ = ["DIGITS", "LIGHT", "beginning", "light", "random_graph", "small"]

EXAMPLES = Path(__file__).parents[1] / "examples"
DIGITS = EXAMPLES / "digits.onnx"

_LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
_LARGE = {"vgg19", "zfnet512"}  # 0.9 GB of weights, and no operator that bvlc_alexnet lacks
LIGHT = tuple(
    name
    for name in sorted(path.stem.removeprefix("light_") for path in _LIGHT.glob("*.onnx"))
    if name not in _LARGE or examples(0, 1)
)


@cache
def light(name: str) -> ModelProto:
    """Return one of the onnx package's light models, its weights (ConstantOfShape nodes) made random initializers.

    Weights are scaled by their fan-in, so that activations neither vanish nor explode; vectors (biases, scales,
    variances) are positive.
    """
    model = onnx.load(_LIGHT / f"light_{name}.onnx")
    graph = model.graph
    rng = np.random.default_rng(0)
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    made = [node for node in graph.node if node.op_type == "ConstantOfShape" and node.input[0] in shapes]
    for node in made:
        shape = tuple(int(dim) for dim in shapes[node.input[0]])
        fan_in = max(1, int(np.prod(shape[1:])))
        if len(shape) > 1:
            array = rng.standard_normal(shape, "float32") * np.float32(np.sqrt(2 / fan_in))
        else:
            array = rng.uniform(0.5, 1.5, shape).astype("float32")
        graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
        graph.node.remove(node)
    used = {name for node in graph.node for name in node.input}
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in used]:
        graph.initializer.remove(tensor)
    for value in [value for value in graph.input if value.name not in used]:
        graph.input.remove(value)
    return model


def beginning(model: ModelProto, least: int) -> ModelProto:
    """Return the first nodes of a model, at least so many, up to a value that is all that later nodes read of them."""
    graph, unread = model.graph, set[str]()
    for count, node in enumerate(graph.node, 1):
        unread = {*(unread - set(node.input)), *node.output[:1]}
        later = {name for other in graph.node[count:] for name in other.input} if count >= least else set()
        before = {name for other in graph.node[:count] for name in other.output}
        if count >= least and later & before == unread and len(unread) == 1:
            break
    types = {value.name: value for value in shape_inference.infer_shapes(model).graph.value_info}
    found = ModelProto()
    found.CopyFrom(model)
    del found.graph.node[count:], found.graph.output[:], found.graph.input[:], found.graph.initializer[:]
    found.graph.output.append(types[unread.pop()])
    used = {name for node in found.graph.node for name in node.input}
    found.graph.input.extend(value for value in graph.input if value.name in used)
    found.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in used)
    return found


def inputs_of(model: ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random float32 inputs for a model of static shape."""
    rng = np.random.default_rng(seed)
    initialized = {tensor.name for tensor in model.graph.initializer}
    return {
        value.name: rng.normal(size=[dim.dim_value for dim in value.type.tensor_type.shape.dim]).astype("float32")
        for value in model.graph.input
        if value.name not in initialized
    }


def small(*nodes: onnx.NodeProto, inputs=("x",), outputs=("y",), shape=(2, 3), opset=17, **constants) -> ModelProto:
    """Return a model of nodes with float32 inputs and results as ONNX infers; `constants` are its initializers."""
    model = helper.make_model(
        helper.make_graph(
            list(nodes),
            "small",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in inputs],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
    )
    if all(node.domain in ("", "ai.onnx") for node in nodes):
        open_results = ModelProto()
        open_results.CopyFrom(model)
        del open_results.graph.output[:]
        inferred = onnx.shape_inference.infer_shapes(open_results).graph.value_info
        types = {info.name: info.type.tensor_type.elem_type for info in inferred}
        for output in model.graph.output:
            output.type.tensor_type.elem_type = types.get(output.name) or TensorProto.FLOAT
    return model


_UNARY = ("Relu", "Tanh", "Abs", "Neg", "Sigmoid")


def random_graph(size: int, seed: int, *, outputs: int = 2, reach: int = 6) -> ModelProto:
    """Return a random acyclic graph of `size` elementwise operations, each reading one or two of the last values."""
    rng = random.Random(seed)
    values, nodes = ["x"], []
    for index in range(size):
        recent = values[-reach:]
        if rng.random() < 0.5:
            nodes.append(helper.make_node(rng.choice(_UNARY), [rng.choice(recent)], [f"v{index}"], name=f"n{index}"))
        else:
            pair = [rng.choice(recent), rng.choice(recent)]
            op = rng.choice(("Add", "Mul", "Sub"))
            nodes.append(helper.make_node(op, pair, [f"v{index}"], name=f"n{index}"))
        values.append(f"v{index}")
    read = {name for node in nodes for name in node.input}
    ends = [name for name in values[1:] if name not in read]
    results = dict.fromkeys([*ends, *rng.sample(values[1:], min(outputs, size))])
    return small(*nodes, outputs=tuple(results))
