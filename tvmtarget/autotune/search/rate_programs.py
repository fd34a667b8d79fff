"""The small programs that measure rates of leaves: convolutions, products, and operators between convolutions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = [
    "CACHE_FLUSH_BYTES",
    "CALL",
    "COLD",
    "DTYPE",
    "LARGE_ONE",
    "LARGE_PASSED",
    "LARGE_TWO",
    "MOVING",
    "NEEDED",
    "ONE",
    "PASSED",
    "TWO",
    "USUAL",
    "Sample",
    "identity",
    "programs",
    "samples",
]

DTYPE = "float32"
OPSET = 17
CHANNELS, SIZE, LARGE = 64, 28, 112
DRAWN = 1 << 16  # random weights
POOL = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}

# Programs by name: a call of next to nothing, reading and writing, one and two convolutions, and the same on more.
CALL, MOVING, ONE, TWO = "call", "moving", "one convolution", "two convolutions"
LARGE_ONE, LARGE_TWO = "one large convolution", "two large convolutions"
# Bytes of the values between these convolutions.
PASSED, LARGE_PASSED = (4 * CHANNELS * size**2 for size in (SIZE, LARGE))
# The one that says how fast sums of products usually are, and all that rates are not measured without.
USUAL = "window 1"
NEEDED = frozenset((CALL, MOVING, ONE, TWO, LARGE_ONE, LARGE_TWO, USUAL))


@dataclass(frozen=True, slots=True)
class _Layer:
    """`count` square convolutions, one after the other; `given` is the number of input channels, if it differs."""

    count: int
    channels: int
    size: int
    kernel: int
    groups: int = 1
    given: int = 0
    stride: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of the weights of one."""
        return 4 * self.channels * (self.given or self.channels) // self.groups * self.kernel**2


# Convolutions by form (`FORMS`), by operations at a position of the result (`Work.size`), as networks for images of
# 224 x 224 have them: with more channels, images are smaller. All of a program take a few milliseconds at most, so that
# there are runs which nothing else on the machine interrupts.
LAYERS: Mapping[str, tuple[_Layer, ...]] = {
    "window": (_Layer(2, 32, 56, 3), _Layer(1, 64, 56, 3), _Layer(1, 128, 28, 3), _Layer(1, 256, 14, 3)),
    "strided": (_Layer(1, 64, 56, 3, stride=2), _Layer(1, 256, 28, 3, stride=2)),
    "pointwise": (_Layer(4, 32, 56, 1), _Layer(4, 128, 28, 1), _Layer(1, 256, 28, 1), _Layer(1, 512, 14, 1)),
    "depthwise": (_Layer(4, 128, 14, 3, groups=128), _Layer(4, 128, 56, 3, groups=128)),
    "grouped": (_Layer(4, 128, 14, 1, groups=4), _Layer(4, 256, 28, 1, groups=4), _Layer(1, 384, 13, 3, groups=2)),
    "shallow": (_Layer(1, 32, 224, 3, given=3, stride=2), _Layer(1, 64, 224, 7, given=3, stride=2)),
}


def _named(what: str, number: int) -> str:
    return f"{what} {number}"


# Programs of convolutions with many weights run on cold caches: in a network they read the weights from memory, and
# longest those that are transformed for Winograd's algorithm. Warm, 256 filters of 3 x 3 on 256 channels of 14 x 14
# take llvm 1.5 ms and onnxruntime 2.6 ms on a Zen 3; cold 2.1 and 2.7.
COLD_FROM = 1 << 16  # bytes of weights of one convolution
COLD = frozenset(
    _named(form, number)
    for form, layers in LAYERS.items()
    for number, layer in enumerate(layers)
    if layer.nbytes >= COLD_FROM
)
CACHE_FLUSH_BYTES = 1 << 26  # bytes, more than the caches of most processors

# Products of some rows with square matrices, one after the other: how many, rows, and the side. Those of one row are
# more than a cache holds, as in a network that is run again.
PRODUCTS: Mapping[str, tuple[tuple[int, int, int], ...]] = {
    "Gemm": ((12, 1, 1024), (3, 1, 2048), (1, 1, 4096)),
    "MatMul": ((4, 32, 256), (1, 128, 768)),
}
# Operators that are measured between two convolutions, and their attributes.
BETWEEN: Mapping[str, Mapping[str, object]] = {
    "Relu": {},
    "Sigmoid": {},
    "BatchNormalization": {},
    "Add": {},
    "MaxPool": POOL,
    "AveragePool": POOL,
    "LRN": {"size": 5},
    "Transpose": {"perm": [0, 1, 3, 2]},
}


@dataclass(frozen=True, slots=True)
class Sample:
    """What says how fast an operator is: what a program takes longer than another one."""

    op: str
    form: str | None
    program: str
    without: str


def samples() -> Iterator[Sample]:
    """Yield the measurements of operators.

    Yields:
        Samples, those of one operator and form together, smaller ones first.
    """
    for form, layers in LAYERS.items():
        yield from (Sample("Conv", form, _named(form, number), CALL) for number in range(len(layers)))
    for op, sides in PRODUCTS.items():
        yield from (Sample(op, None, _named(op, number), CALL) for number in range(len(sides)))
    yield from (Sample(op, None, op, TWO) for op in BETWEEN)


def identity() -> str:
    """Return a digest that differs if the programs do.

    Returns:
        Hexadecimal digits.
    """
    spec = (
        DTYPE,
        OPSET,
        CHANNELS,
        SIZE,
        LARGE,
        POOL,
        dict(LAYERS),
        COLD_FROM,
        CACHE_FLUSH_BYTES,
        dict(PRODUCTS),
        dict(BETWEEN),
    )
    return hashlib.sha256(repr(spec).encode()).hexdigest()[:32]


def programs() -> Iterator[Mapping[str, onnx.ModelProto]]:
    """Yield the programs in groups that are compared with each other.

    Yields:
        Programs by name, made only when they are needed, as some are large.
    """
    yield {CALL: _model([2, 2], [helper.make_node("Relu", ["x"], ["y"])]), MOVING: _elementwise()}
    one, two = (_Layer(count, CHANNELS, SIZE, 1) for count in (1, 2))
    yield {ONE: _convolutions(one), TWO: _convolutions(two)} | {op: _convolutions(two, op) for op in BETWEEN}
    yield {name: _convolutions(_Layer(count, CHANNELS, LARGE, 1)) for count, name in ((1, LARGE_ONE), (2, LARGE_TWO))}
    for form, layers in LAYERS.items():
        yield {_named(form, number): _convolutions(layer) for number, layer in enumerate(layers)}
    for op, sides in PRODUCTS.items():
        yield {_named(op, number): _products(op, *size) for number, size in enumerate(sides)}


def _elementwise() -> onnx.ModelProto:
    """Return alternating pools and additions, which no code generator fuses into one loop."""
    nodes, last = [], "x"
    for number in range(3):
        nodes.append(helper.make_node("MaxPool", [last], [f"pool{number}"], **POOL))
        nodes.append(helper.make_node("Add", [f"pool{number}", "x"], [f"add{number}"]))
        last = f"add{number}"
    return _model([1, CHANNELS, 2 * SIZE, 2 * SIZE], nodes)


def _convolutions(layer: _Layer, between: str | None = None) -> onnx.ModelProto:
    """Return convolutions one after the other, with an operator before each but the first."""
    given = layer.given or layer.channels
    shape = (layer.channels, given // layer.groups, layer.kernel, layer.kernel)
    weights = [_weights(f"w{number}", *shape) for number in range(layer.count)]
    beside = ["x"] if between == "Add" else []
    if between == "BatchNormalization":
        beside = [f"p{number}" for number in range(4)]
        weights += [numpy_helper.from_array(np.ones(layer.channels, DTYPE), name) for name in beside]
    attrs = {"group": layer.groups, "pads": [layer.kernel // 2] * 4, "strides": [layer.stride] * 2}
    nodes, last = [], "x"
    for number in range(layer.count):
        if number and between is not None:
            nodes.append(helper.make_node(between, [last, *beside], [f"op{number}"], **BETWEEN[between]))
            last = f"op{number}"
        nodes.append(helper.make_node("Conv", [last, f"w{number}"], [f"conv{number}"], **attrs))
        last = f"conv{number}"
    return _model([1, given, layer.size, layer.size], nodes, weights)


def _products(op: str, count: int, rows: int, side: int) -> onnx.ModelProto:
    """Return products one after the other; `Gemm` has transposed weights, as exporters write it."""
    turned = {"transB": 1} if op == "Gemm" else {}
    ends = ["x", *(f"y{number}" for number in range(count))]
    nodes = [
        helper.make_node(op, [given, f"w{number}"], [made], **turned)
        for number, (given, made) in enumerate(pairwise(ends))
    ]
    return _model([rows, side], nodes, [_weights(f"w{number}", side, side) for number in range(count)])


def _weights(name: str, *shape: int) -> onnx.TensorProto:
    """Return random weights, which repeat: to draw all those of the programs would take seconds."""
    values = np.random.default_rng(0).standard_normal(DRAWN) / np.sqrt(np.prod(shape[1:]))
    return numpy_helper.from_array(np.resize(values.astype(DTYPE), shape), name)


def _model(
    shape: list[int], nodes: Sequence[onnx.NodeProto], weights: Sequence[onnx.TensorProto] = ()
) -> onnx.ModelProto:
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, given)
        for name, given in (("x", shape), (nodes[-1].output[0], None))
    ]
    graph = helper.make_graph(nodes, "rates", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
