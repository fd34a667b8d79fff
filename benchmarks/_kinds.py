"""Small models of kinds that the networks which come with onnx have none of, with random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

__all__ = ["KINDS", "Model"]

OPSET = 18


@dataclass
class Model:
    """A graph that is being made: its nodes, its constants, and its inputs with values for them."""

    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def input(self, *shape: int, below: int = 0) -> str:
        """Return the name of a new input: normal float32, or whole numbers below a limit."""
        values = self.random.integers(0, below, shape) if below else self.random.standard_normal(shape, dtype="float32")
        name = f"x{len(self.inputs)}"
        self.inputs[name] = values
        return name

    def constant(self, values: object, dtype: str = "float32") -> str:
        """Return the name of a new constant."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def weights(self, *shape: int) -> str:
        """Return the name of new weights, scaled so that values neither grow nor vanish."""
        terms = shape[0] if len(shape) < 3 else np.prod(shape[1:])
        return self.constant(self.random.standard_normal(shape) / np.sqrt(terms))

    def op(self, kind: str, *reads: str, **attributes: object) -> str:
        """Return the name of the result of a new node."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, reads, [name], **attributes))
        return name

    def done(self, *results: str) -> onnx.ModelProto:
        """Return the model."""
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in self.inputs.items()
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in results]
        graph = helper.make_graph(self.nodes, "kind", inputs, outputs, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
        return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _convolution(model: Model, x: str, channels: tuple[int, int], kernel: int, **options: int) -> str:
    """Return a 2-d convolution of so many channels to so many, padded so that its size stays or is halved."""
    group, stride, dilation = (options.get(name, 1) for name in ("group", "stride", "dilation"))
    weights = model.weights(channels[1], channels[0] // group, kernel, kernel)
    pads = [dilation * (kernel - 1) // 2] * 4
    bias = model.weights(channels[1])
    attributes = {"group": group, "strides": [stride] * 2, "dilations": [dilation] * 2, "pads": pads}
    return model.op("Conv", x, weights, bias, **attributes)


def _separable(model: Model) -> str:
    """As in MobileNet: depthwise and pointwise convolutions by turns."""
    x, channels = model.op("Relu", _convolution(model, model.input(1, 3, 160, 160), (3, 16), 3, stride=2)), 16
    for wider, stride in ((24, 1), (48, 2), (48, 1), (96, 2), (96, 1), (192, 2), (192, 1)):
        x = model.op("Relu", _convolution(model, x, (channels, channels), 3, group=channels, stride=stride))
        x, channels = model.op("Relu", _convolution(model, x, (channels, wider), 1)), wider
    return x


def _depthwise(model: Model) -> str:
    """Depthwise convolutions of 5 x 5."""
    x = model.input(1, 96, 56, 56)
    for stride in (1, 2, 1, 2):
        x = _convolution(model, x, (96, 96), 5, group=96, stride=stride)
    return x


def _excited(model: Model) -> str:
    """Squeeze and excitation with hardswish."""
    x = model.op("HardSwish", model.input(1, 128, 28, 28))
    for _ in range(2):
        scale = _convolution(model, model.op("GlobalAveragePool", x), (128, 16), 1)
        scale = _convolution(model, model.op("Relu", scale), (16, 128), 1)
        x = model.op("Mul", x, model.op("Sigmoid", scale))
    return x


def _grouped(model: Model) -> str:
    """Grouped and dilated convolutions."""
    x = model.input(1, 64, 40, 40)
    for kernel, group, dilation in ((3, 8, 1), (1, 4, 1), (3, 1, 2), (3, 2, 4)):
        x = _convolution(model, x, (64, 64), kernel, group=group, dilation=dilation)
    return x


def _pyramid(model: Model) -> tuple[str, ...]:
    """A spatial pyramid, as in the heads of DeepLab: wide dilations, and one weight, over the same data."""
    x = model.op("Relu", _convolution(model, model.input(1, 256, 33, 33), (256, 256), 3, dilation=2))
    return _convolution(model, x, (256, 128), 1), *(
        _convolution(model, x, (256, 128), 3, dilation=dilation) for dilation in (12, 24, 36)
    )


def _pointwise(model: Model) -> str:
    """Convolutions of 1 x 1 that take many channels of large images to fewer, as a detector's neck does."""
    return _convolution(model, model.op("Relu", model.input(1, 2048, 25, 42)), (2048, 256), 1)


def _generator(model: Model) -> str:
    """Transposed convolutions, as in generators of images."""
    x = model.input(1, 64, 16, 16)
    for before, after in ((64, 48), (48, 32)):
        weights = model.weights(before, after, 4, 4)
        x = model.op("Tanh", model.op("ConvTranspose", x, weights, strides=[2, 2], pads=[1] * 4))
    return x


def _transposed(model: Model, channels: tuple[int, int], sizes: Sequence[int], kernel: int, step: int) -> str:
    """A transposed convolution that makes each of its sizes as many times as long as its steps are."""
    axes, pad = len(sizes), (kernel - step) // 2
    weights = model.weights(*channels, *[kernel] * axes)
    x = model.input(1, channels[0], *sizes)
    return model.op("ConvTranspose", x, weights, strides=[step] * axes, pads=[pad] * 2 * axes)


def _sound(model: Model) -> str:
    """Dilated convolutions over time, with gates."""
    x = model.input(1, 32, 1000)
    for step in (1, 2, 4, 8):
        options = {"dilations": [step], "pads": [step, 0]}
        gate = model.op("Sigmoid", model.op("Conv", x, model.weights(32, 32, 2), **options))
        value = model.op("Tanh", model.op("Conv", x, model.weights(32, 32, 2), **options))
        x = model.op("Add", x, model.op("Conv", model.op("Mul", gate, value), model.weights(32, 32, 1)))
    return x


def _volume(model: Model) -> str:
    """Convolutions of volumes."""
    x = model.input(1, 8, 16, 28, 28)
    for channels in (8, 16):
        x = model.op("Relu", model.op("Conv", x, model.weights(16, channels, 3, 3, 3), pads=[1] * 6))
    return x


def _linear(model: Model, x: str, inner: int, columns: int) -> str:
    return model.op("Add", model.op("MatMul", x, model.weights(inner, columns)), model.weights(columns))


def _attention(model: Model, x: str, shape: tuple[int, int, int], heads: int, mask: str = "") -> str:
    """Return attention over tokens; a shape is (batch, tokens, width)."""
    batch, tokens, width = shape
    split = model.constant([batch, tokens, heads, width // heads], "int64")

    def projected(order: list[int]) -> str:
        return model.op("Transpose", model.op("Reshape", _linear(model, x, width, width), split), perm=order)

    query, keys, values = (projected(order) for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
    scores = model.op("Mul", model.op("MatMul", query, keys), model.constant((width // heads) ** -0.5))
    if mask:
        scores = model.op("Where", mask, scores, model.constant(-1e9))
    mixed = model.op("MatMul", model.op("Softmax", scores, axis=-1), values)
    joined = model.op("Reshape", model.op("Transpose", mixed, perm=[0, 2, 1, 3]), model.constant(shape, "int64"))
    return _linear(model, joined, width, width)


def _gelu(model: Model, x: str) -> str:
    tail = model.op("Add", model.op("Erf", model.op("Mul", x, model.constant(2**-0.5))), model.constant(1))
    return model.op("Mul", model.op("Mul", x, model.constant(0.5)), tail)


def _layers(model: Model, x: str, shape: tuple[int, int, int], heads: int, mask: str = "") -> str:
    """Return two layers of a transformer."""
    width = shape[-1]

    def normalised(x: str) -> str:
        return model.op("LayerNormalization", x, model.constant(np.ones(width)), model.weights(width))

    for _ in range(2):
        x = normalised(model.op("Add", x, _attention(model, x, shape, heads, mask)))
        wide = _gelu(model, _linear(model, x, width, 4 * width))
        x = normalised(model.op("Add", x, _linear(model, wide, 4 * width, width)))
    return x


def _encoder(model: Model) -> str:
    """An encoder of text: embeddings, attention, GELU, layer normalization."""
    x = model.op("Gather", model.weights(500, 192), model.input(1, 64, below=500))
    return _layers(model, x, (1, 64, 192), 3)


def _decoder(model: Model) -> str:
    """A decoder of text, with a mask and a vocabulary."""
    x = model.op("Gather", model.weights(500, 128), model.input(1, 64, below=500))
    mask = model.constant(np.tril(np.ones((64, 64))), "bool")
    return model.op("MatMul", _layers(model, x, (1, 64, 128), 4, mask), model.weights(128, 500))


def _perceptron(model: Model, batch: int) -> str:
    """Three layers of 1024."""
    x = model.input(batch, 784)
    for inner, columns in ((784, 1024), (1024, 1024)):
        x = model.op("Relu", model.op("Gemm", x, model.weights(inner, columns), model.weights(columns)))
    return model.op("Softmax", model.op("Gemm", x, model.weights(1024, 10), model.weights(10)), axis=-1)


def _activations(model: Model) -> str:
    """Swish, GELU and softplus, one after the other."""
    x = model.input(1, 64, 56, 56)
    x = _gelu(model, model.op("Mul", x, model.op("Sigmoid", x)))
    return model.op("Softplus", x)


def _norms(model: Model) -> str:
    """Softmax over each axis, and normalization of instances."""
    x = model.input(4, 64, 28, 28)
    for axis in (1, 2, 3):
        x = model.op("Softmax", x, axis=axis)
    return model.op("InstanceNormalization", x, model.weights(64), model.weights(64))


def _reductions(model: Model) -> tuple[str, ...]:
    """Reductions over each axis and over several."""
    x = model.input(64, 64, 80)
    axes = ([0], [1], [2], [1, 2], [0, 2], [0, 1, 2])
    kinds = ("ReduceMean", "ReduceMax", "ReduceL2", "ReduceSum", "ReduceLogSumExp", "ReduceMean")
    return tuple(
        model.op(kind, x, model.constant(over, "int64"), keepdims=0) for kind, over in zip(kinds, axes, strict=True)
    )


def _pools(model: Model) -> tuple[str, ...]:
    """Pooling by windows and as a whole, and resizing."""
    x = model.input(1, 64, 56, 56)
    options = {"kernel_shape": [3, 3], "pads": [1] * 4}
    small = model.op("MaxPool", x, strides=[2, 2], **options)
    large = model.op("Resize", small, "", model.constant([1, 1, 2, 2]), mode="linear")
    return model.op("AveragePool", large, **options), model.op("GlobalAveragePool", x)


_MAKERS: dict[str, Callable[[Model], str | tuple[str, ...]]] = {
    "separable": _separable,
    "depthwise": _depthwise,
    "excited": _excited,
    "grouped": _grouped,
    "pyramid": _pyramid,
    "pointwise": _pointwise,
    "generator": _generator,
    "transposed_2": lambda model: _transposed(model, (512, 256), (28, 28), 2, 2),
    "transposed_8": lambda model: _transposed(model, (512, 256), (100,), 16, 8),
    "transposed_32": lambda model: _transposed(model, (21, 21), (14, 14), 64, 32),
    "sound": _sound,
    "volume": _volume,
    "encoder": _encoder,
    "decoder": _decoder,
    "perceptron": lambda model: _perceptron(model, 1),
    "perceptron_64": lambda model: _perceptron(model, 64),
    "activations": _activations,
    "norms": _norms,
    "reductions": _reductions,
    "pools": _pools,
}


def _maker(
    make: Callable[[Model], str | tuple[str, ...]],
) -> Callable[[], tuple[onnx.ModelProto, dict[str, np.ndarray]]]:
    def made() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        model = Model()
        results = make(model)
        return model.done(*((results,) if isinstance(results, str) else results)), model.inputs

    return made


# By name: what makes a model and values for its inputs.
KINDS: Mapping[str, Callable[[], tuple[onnx.ModelProto, dict[str, np.ndarray]]]] = {
    name: _maker(make) for name, make in _MAKERS.items()
}
