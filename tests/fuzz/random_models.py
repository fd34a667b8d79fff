"""Random ONNX models of many operators, whose results on a target are compared with those of onnxruntime.

    python tests/fuzz/random_models.py TARGET [--count 100] [--seed 1]

The law: a target computes what onnxruntime computes, or refuses the model when it is read or partitioned. Where
dimensions of inputs are symbolic, the program runs with other sizes, too: what onnxruntime refuses then is an error,
and no result.

Each node is run by onnxruntime when it is added, so that models are valid and their values finite. Operators that are
not continuous only read tensors that are exact: inputs, multiples of 1/8, and what is made of them without rounding.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError, ModelError, RunError, TvmTargetError

Array: TypeAlias = np.ndarray[Any, Any]
Shape: TypeAlias = tuple[int, ...]

LARGEST = 20_000  # elements of a value
LARGEST_VALUE = 1e4
WITHIN = 1e-3  # of the largest value of a result


class RandomModel:
    """A model that grows by random operations.

    Args:
        seed: seeds the choices.
        symbolic: the share of dimensions of inputs that are symbolic.
    """

    def __init__(self, seed: int, symbolic: float = 0.0) -> None:
        self.random, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.opset = self.random.choice([17, 18, 21, 22])
        self.values: dict[str, Array] = {}
        self.exact: set[str] = set()
        self.inputs: dict[str, list[int | str]] = {}
        self.constants: dict[str, Array] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.symbolic = symbolic
        self.tensor(self.shape(1, 4))
        wanted, steps, weights = self.random.choice([1, 2, 3, 4, 6, 8]), *zip(*STEPS, strict=True)
        for _ in range(10 * wanted):
            if len(self.nodes) < wanted:
                self.random.choices(steps, weights)[0](self)

    def size(self) -> int:
        return self.random.choice([1, 1, 2, 3, 4, 5, 6, 8])

    def shape(self, least: int, most: int) -> Shape:
        return tuple(self.size() for _ in range(self.random.randint(least, most)))

    def data(self, shape: Shape, dtype: str) -> Array:
        if dtype == "bool":
            return self.numbers.random(shape) < 0.5
        whole = self.numbers.integers(0 if dtype.startswith("u") else -24, 25, shape)
        return (whole / 8 if dtype.startswith("float") else whole).astype(dtype)

    def tensor(self, shape: Shape, dtype: str = "float32") -> str:
        """Add an input or a constant."""
        data = self.data(shape, dtype)
        return self.constant(data) if self.nodes and self.random.random() < 0.35 else self.input(data)

    def input(self, data: Array) -> str:
        """Add an input, which may have symbolic dimensions."""
        name = f"x{len(self.values)}"
        dims = [f"{name}_{at}" if self.random.random() < self.symbolic else size for at, size in enumerate(data.shape)]
        self.inputs[name], self.values[name] = dims, data
        self.exact.add(name)
        return name

    def constant(self, data: Any) -> str:
        name = f"c{len(self.values)}"
        self.constants[name] = self.values[name] = np.asarray(data)
        self.exact.add(name)
        return name

    def pick(self, is_right: Callable[[Array], bool] = lambda _: True, *, exact: bool = False) -> str | None:
        """Return a value that is not a constant, rather a new one; None if there is none."""
        names = [
            name
            for name, value in self.values.items()
            if name not in self.constants and is_right(value) and (name in self.exact or not exact)
        ]
        return self.random.choice(names[-6:]) if names else None

    def add(
        self, kind: str, operands: Sequence[str], *, results: int = 1, exact: bool = False, **attributes: Any
    ) -> str | None:
        """Add a node if onnxruntime runs it; return its first result."""
        names = [f"v{len(self.values) + at}" for at in range(results)]
        node = helper.make_node(kind, operands, names, **attributes)
        given = {name: self.values[name] for name in operands if name}
        try:
            found = session(self._model([node], {name: [*one.shape] for name, one in given.items()}, names, {})).run(
                None, given
            )
        except Exception:  # onnxruntime's errors have no common class
            return None
        for value in found:
            is_float = value.dtype.kind == "f"
            if value.size > LARGEST or (is_float and not (np.abs(value) < LARGEST_VALUE).all()):
                return None
        self.nodes.append(node)
        self.values.update(zip(names, found, strict=True))
        if exact and self.exact.issuperset(given):
            self.exact.update(names)
        return names[0]

    def _model(
        self,
        nodes: Sequence[onnx.NodeProto],
        inputs: dict[str, list[Any]],
        results: Sequence[str],
        constants: dict[str, Array],
    ) -> onnx.ModelProto:
        def info(name: str, dims: Sequence[Any] | None) -> onnx.ValueInfoProto:
            value = self.values.get(name)
            if value is None:
                return helper.make_empty_tensor_value_info(name)
            return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), dims)

        dims = [[None] * self.values[name].ndim if name in self.values else None for name in results]
        graph = helper.make_graph(
            nodes,
            "g",
            [info(name, shape) for name, shape in inputs.items()],
            [info(name, shape) for name, shape in zip(results, dims, strict=True)],
            [numpy_helper.from_array(value, name) for name, value in constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)

    def model(self) -> tuple[onnx.ModelProto, dict[str, Array], dict[str, Array]]:
        """Return the model with all values that no node reads as results, its inputs, and the expected results."""
        used = {name for node in self.nodes for name in node.input}
        results = [name for node in self.nodes for name in node.output if name not in used]
        inputs = {name: dims for name, dims in self.inputs.items() if name in used}
        constants = {name: value for name, value in self.constants.items() if name in used}
        model = self._model(self.nodes, inputs, results, constants)
        return model, {name: self.values[name] for name in inputs}, {name: self.values[name] for name in results}

    def resized(self) -> Iterator[dict[str, Array]]:
        """Yield inputs of other sizes: all larger, then one of another size."""
        model = self.model()[1]
        for only in (None, *model):
            given = {}
            for name, value in model.items():
                grows = only in (None, name)
                sizes = tuple(
                    size if isinstance(dim, int) or not grows else size + 1 if only is None else self.size()
                    for dim, size in zip(self.inputs[name], value.shape, strict=True)
                )
                given[name] = np.resize(value, sizes).astype(value.dtype)
            yield given


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    # Its optimizer changes some results, and cannot write all models (1.31).
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def is_float(value: Array) -> bool:
    return value.dtype == "float32"


def beside(model: RandomModel, value: Array) -> str:
    """Return an operand that is broadcast to a value."""
    dims = [size if model.random.random() < 0.7 else 1 for size in value.shape]
    while dims and model.random.random() < 0.3:
        del dims[0]
    return model.tensor(tuple(dims), str(value.dtype))


UNARY = [
    *("Sigmoid", "Tanh", "Exp", "Erf", "Softplus", "Softsign", "Elu", "Selu"),
    *("LeakyRelu", "HardSigmoid", "Celu", "Sin", "Cos", "Sinh", "Cosh", "Atan"),
]
EXACT_UNARY = ["Neg", "Abs", "Relu", "Floor", "Ceil", "Round", "Sign", "Identity"]
NORMALIZATIONS = ["Softmax", "LogSoftmax", "LayerNormalization", "InstanceNormalization", "LpNormalization"]
MOVEMENTS = ["Transpose", "Reshape", "Reshape", "Flatten", "Unsqueeze", "Tile", "Expand", "Pad", "DepthToSpace"]


def unary(model: RandomModel) -> None:
    kinds = (
        "Sigmoid Tanh Exp Erf Softplus Softsign Elu Selu LeakyRelu HardSigmoid HardSwish Celu Sin Cos Sinh Cosh Atan"
    )
    kind, value = model.random.choice(kinds.split()), model.pick(is_float)
    if value:
        model.add(kind, [value])


def exact_unary(model: RandomModel) -> None:
    value = model.pick(is_float, exact=True)
    if value:
        model.add(model.random.choice(EXACT_UNARY), [value], exact=True)


def binary(model: RandomModel) -> None:
    kind = model.random.choice(["Add", "Sub", "Mul", "Max", "Min", "PRelu"])
    value = model.pick(is_float if kind == "PRelu" else lambda one: one.dtype.kind in "fi")
    if value:
        operands = [value, beside(model, model.values[value])]
        if kind != "PRelu":
            model.random.shuffle(operands)
        model.add(kind, operands, exact=kind != "PRelu")


def choice(model: RandomModel) -> None:
    value = model.pick(is_float, exact=True)
    if value:
        data = model.values[value]
        less = model.add(model.random.choice(["Less", "Greater", "Equal"]), [value, beside(model, data)], exact=True)
        if less:
            model.add("Where", [less, value, beside(model, data)], exact=True)


def cast(model: RandomModel) -> None:
    value = model.pick(exact=True)
    if value:
        to = model.random.choice([onnx.TensorProto.FLOAT, onnx.TensorProto.INT32, onnx.TensorProto.INT64])
        model.add("Cast", [value], exact=True, to=to)


def product(model: RandomModel) -> None:
    value = model.pick(lambda one: is_float(one) and one.ndim > 1)
    if value:
        *outer, _, columns = model.values[value].shape
        shapes = [(columns, model.size()), (*outer, columns, 3), (*[1] * len(outer), columns, 2), (columns,)]
        model.add("MatMul", [value, model.tensor(model.random.choice(shapes))])
        if not outer:
            model.add("Gemm", [value, model.tensor((4, columns)), model.tensor((4,))], transB=1, alpha=0.5)


def image(model: RandomModel) -> tuple[str, Shape]:
    value = model.pick(lambda one: is_float(one) and 3 <= one.ndim <= 5)
    if value is None or model.random.random() < 0.3:
        value = model.tensor((model.size(), model.size(), *(model.random.choice([3, 4, 5, 7]) for _ in range(2))))
    return value, model.values[value].shape


def windows(model: RandomModel, rank: int) -> dict[str, Any]:
    """Return random attributes of a convolution or pooling."""
    found: dict[str, Any] = {}
    if model.random.random() < 0.5:
        found["strides"] = [model.random.choice([1, 2, 3]) for _ in range(rank)]
    if model.random.random() < 0.3:
        found["dilations"] = [model.random.choice([1, 2]) for _ in range(rank)]
    if model.random.random() < 0.5:
        found["pads"] = [model.random.randint(0, 1) for _ in range(rank)] * 2
    elif model.random.random() < 0.3 and "dilations" not in found:
        found["auto_pad"] = model.random.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
    return found


def convolution(model: RandomModel) -> None:
    value, (_, channels, *spatial) = image(model)
    groups = model.random.choice([one for one in (1, 2, channels) if channels % one == 0])
    kernel = [model.random.choice([1, 2, 3]) for _ in spatial]
    if model.random.random() < 0.7:
        operands = [value, model.tensor((2 * groups, channels // groups, *kernel))]
        count = 2 * groups
        kind, attributes = "Conv", windows(model, len(spatial))
    else:
        operands = [value, model.tensor((channels, 2, *kernel))]
        count = 2 * groups
        kind, attributes = "ConvTranspose", {"strides": [model.random.choice([1, 2]) for _ in spatial]}
    if model.random.random() < 0.5:
        operands.append(model.tensor((count,)))
    model.add(kind, operands, group=groups, **attributes)


def pooling(model: RandomModel) -> None:
    value, (_, _, *spatial) = image(model)
    kind = model.random.choice(["MaxPool", "AveragePool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"])
    if kind.startswith("Global"):
        model.add(kind, [value])
        return
    attributes = windows(model, len(spatial)) | {"kernel_shape": [model.random.choice([2, 3]) for _ in spatial]}
    if model.opset < 19 and kind == "AveragePool":
        attributes.pop("dilations", None)
    if kind == "AveragePool":
        attributes["count_include_pad"] = model.random.randint(0, 1)
    model.add(kind, [value], exact=kind == "MaxPool", ceil_mode=model.random.randint(0, 1), **attributes)


def normalization(model: RandomModel) -> None:
    value = model.pick(lambda one: is_float(one) and one.ndim > 1)
    if not value:
        return
    shape = model.values[value].shape
    kind = model.random.choice(
        ["Softmax", "LogSoftmax", "LayerNormalization", "InstanceNormalization", "LpNormalization"]
    )
    operands, attributes = [value], {"axis": model.random.randrange(-len(shape), len(shape))}
    if kind == "LayerNormalization":
        operands += [model.tensor(shape[attributes["axis"] :]), model.tensor(shape[attributes["axis"] :])]
        attributes["epsilon"] = 0.1
    elif kind == "InstanceNormalization":
        operands += [model.tensor(shape[1:2]), model.tensor(shape[1:2])]
        attributes = {"epsilon": 0.1}
    model.add(kind, operands, **attributes)


def reduction(model: RandomModel) -> None:
    value = model.pick(lambda one: is_float(one) and one.ndim > 0)
    if not value:
        return
    rank = model.values[value].ndim
    axes = model.random.sample(range(rank), model.random.randint(1, rank))
    keeps = model.random.randint(0, 1)
    kind = "Reduce" + model.random.choice(["Sum", "Mean", "Max", "Min", "L1", "L2", "SumSquare", "LogSumExp"])
    exact = kind in ("ReduceSum", "ReduceMax", "ReduceMin")
    if model.opset < 18 and kind != "ReduceSum":
        model.add(kind, [value], exact=exact, keepdims=keeps, axes=axes)
    else:
        model.add(kind, [value, model.constant(np.array(axes))], exact=exact, keepdims=keeps)


def ranking(model: RandomModel) -> None:
    value = model.pick(lambda one: is_float(one) and one.ndim > 0, exact=True)
    if not value:
        return
    shape = model.values[value].shape
    axis = model.random.randrange(len(shape))
    kind = model.random.choice(["ArgMax", "ArgMin", "TopK", "CumSum"])
    if kind == "TopK":
        count = model.constant(np.array([model.random.randint(1, shape[axis])]))
        model.add(kind, [value, count], results=2, exact=True, axis=axis)
    elif kind == "CumSum":
        model.add(kind, [value, model.constant(np.array(axis))], exact=True, reverse=model.random.randint(0, 1))
    else:
        model.add(kind, [value], exact=True, axis=axis, keepdims=model.random.randint(0, 1))


def movement(model: RandomModel) -> None:
    """Transpose, reshape, repeat or pad."""
    value = model.pick(lambda one: one.ndim > 0)
    if not value:
        return
    data = model.values[value]
    kind = model.random.choice(
        ["Transpose", "Reshape", "Reshape", "Flatten", "Unsqueeze", "Tile", "Expand", "Pad", "DepthToSpace"]
    )
    attributes: dict[str, Any] = {}
    operands = [value]
    if kind == "Transpose":
        attributes["perm"] = model.random.sample(range(data.ndim), data.ndim)
    elif kind == "Reshape":
        rest, sizes = data.size, [1]
        while rest > 1:
            sizes.append(model.random.choice([one for one in range(2, rest + 1) if rest % one == 0]))
            rest //= sizes[-1]
        model.random.shuffle(sizes)
        sizes = sizes if model.random.random() < 0.5 else [-1, *sizes[1:]]
        operands.append(model.constant(np.array(sizes)))
    elif kind == "Unsqueeze":
        operands.append(model.constant(np.array([model.random.randint(0, data.ndim)])))
    elif kind == "Tile":
        operands.append(model.constant(np.array([model.random.choice([1, 1, 2]) for _ in data.shape])))
    elif kind == "Expand":
        operands.append(model.constant(np.array([2, *data.shape])))
    elif kind == "Pad":
        operands.append(model.constant(np.array([model.random.randint(0, 1) for _ in range(2 * data.ndim)])))
        attributes["mode"] = model.random.choice(["constant", "edge", "reflect"])
    elif kind == "DepthToSpace":
        operands = [model.tensor((model.size(), 8, 3, 2))]
        attributes = {"blocksize": 2, "mode": model.random.choice(["DCR", "CRD"])}
    model.add(kind, operands, exact=True, **attributes)


def joining(model: RandomModel) -> None:
    """Concatenate, split or slice."""
    value = model.pick(lambda one: one.ndim > 0 and max(one.shape) > 1)
    if not value:
        return
    data = model.values[value]
    axis = model.random.choice([at for at, size in enumerate(data.shape) if size > 1])
    kind, size = model.random.choice(["Concat", "Split", "Slice", "Slice"]), data.shape[axis]
    if kind == "Concat":
        other = model.tensor((*data.shape[:axis], model.size(), *data.shape[axis + 1 :]), str(data.dtype))
        model.add(kind, model.random.choice([[value, other], [other, value], [value, value]]), exact=True, axis=axis)
    elif kind == "Split":
        first = model.random.randint(1, size - 1)
        model.add(kind, [value, model.constant(np.array([first, size - first]))], results=2, exact=True, axis=axis)
    else:
        step = model.random.choice([1, 1, 2, -1])
        bounds = (
            (-1, -size - 1) if step < 0 else (model.random.randint(0, size - 1), model.random.choice([size, 2**31]))
        )
        operands = [model.constant(np.array([one])) for one in (*bounds, axis, step)]
        model.add(kind, [value, *operands], exact=True)


def choosing(model: RandomModel) -> None:
    """Gather or scatter."""
    value = model.pick(lambda one: one.ndim > 0 and one.dtype.kind in "fi")
    if not value:
        return
    data = model.values[value]
    axis = model.random.randrange(data.ndim)
    kind, size = model.random.choice(["Gather", "GatherElements", "GatherND", "ScatterND"]), data.shape[axis]
    attributes = {"axis": axis} if kind in ("Gather", "GatherElements") else {}
    shape = model.shape(0, 2) if kind == "Gather" else data.shape if attributes else (2, 1)
    if kind == "ScatterND":
        places = model.input(model.numbers.permutation(data.shape[0])[:2][:, None].astype("int64"))
        updates = model.tensor((len(model.values[places]), *data.shape[1:]), str(data.dtype))
        model.add(kind, [value, places, updates], exact=True)
    else:
        limit = size if attributes else data.shape[0]
        places = model.input(model.numbers.integers(-limit, limit, shape).astype("int64"))
        model.add(kind, [value, places], exact=True, **attributes)


def resizing(model: RandomModel) -> None:
    value, (count, channels, *spatial) = image(model)
    if len(spatial) != 2:
        return
    mode = model.random.choice(["nearest", "linear", "cubic"])
    coordinates = model.random.choice(["half_pixel", "asymmetric", "align_corners"])
    sizes = model.constant(np.array([count, channels, *(model.random.choice([2, 3, 6]) for _ in spatial)]))
    model.add("Resize", [value, "", "", sizes], mode=mode, coordinate_transformation_mode=coordinates)


def quantization(model: RandomModel) -> None:
    value = model.pick(lambda one: is_float(one) and one.ndim > 1, exact=True)
    if not value:
        return
    dtype = model.random.choice(["int8", "uint8"])
    scale, zero = model.constant(np.float32(0.125)), model.constant(np.array(3, dtype))
    quantized = model.add("QuantizeLinear", [value, scale, zero], exact=True)
    if quantized and model.random.random() < 0.5:
        model.add("DequantizeLinear", [quantized, scale, zero], exact=True)
    elif quantized:
        weights = model.constant(model.data((model.values[value].shape[-1], model.size()), "int8"))
        model.add("MatMulInteger", [quantized, weights, zero], exact=True)


def recurrence(model: RandomModel) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}
    kind, units = model.random.choice([*gates]), model.random.choice([1, 2, 4])
    direction = model.random.choice(["forward", "reverse", "bidirectional"])
    runs, rows = 2 if direction == "bidirectional" else 1, gates[kind] * units
    value = model.tensor((model.size(), model.size(), 3))
    shapes = ((runs, rows, 3), (runs, rows, units), (runs, 2 * rows))
    operands = [value, *(model.constant(model.data(shape, "float32")) for shape in shapes)]
    model.add(kind, operands, results=2, hidden_size=units, direction=direction)


STEPS: tuple[tuple[Callable[[RandomModel], None], int], ...] = (
    (unary, 6),
    (exact_unary, 4),
    (binary, 8),
    (choice, 3),
    (cast, 3),
    (product, 4),
    (convolution, 5),
    (pooling, 4),
    (normalization, 4),
    (reduction, 4),
    (ranking, 3),
    (movement, 8),
    (joining, 6),
    (choosing, 4),
    (resizing, 2),
    (quantization, 3),
    (recurrence, 1),
)


def difference(found: Array, expected: Array) -> str | None:
    """Return how two results differ."""
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        return f"{found.dtype}{found.shape}, not {expected.dtype}{expected.shape}"
    if expected.dtype.kind != "f":
        return None if (found == expected).all() else "other numbers"
    if not expected.size or not np.isfinite(expected).all():
        return None
    error = np.abs(found.astype("float64") - expected).max() / max(np.abs(expected).max(), 0.01)
    return None if error <= WITHIN else f"an error of {error:.2g}"


def problem_of(seed: int, target: str, symbolic: float) -> str | None:
    """Return how a target breaks the law for one model; None if it keeps it."""
    made = RandomModel(seed, symbolic)
    model, given, expected = made.model()
    if not made.nodes:
        return None
    try:
        program = tt.build(tt.IRModule.from_onnx(model), target)
    except (InfeasibleError, ModelError):
        return None
    except TvmTargetError as error:
        return f"{type(error).__name__} when it is built: {error}"
    runs = [(given, expected)]
    if symbolic:
        other = session(model)
        for one in made.resized():
            try:
                runs.append((one, dict(zip(expected, other.run(None, one), strict=True))))
            except Exception:
                runs.append((one, {}))
    for inputs, wanted in runs:
        shapes = {name: value.shape for name, value in inputs.items()}
        try:
            found = program.run(inputs)
        except RunError as error:
            if wanted and inputs is given:
                return f"RunError: {error}"
            continue
        if not wanted:
            return f"it computes something of {shapes}, which onnxruntime refuses"
        for name, value in wanted.items():
            problem = difference(np.asarray(found[name]), value)
            if problem:
                return f"{name} has {problem}, of {shapes}"
    return None


def failures(target: str, seeds: Sequence[int], symbolic: float = 0.0) -> Iterator[str]:
    """Yield the problems of models, each with its seed and operators."""
    for seed in seeds:
        problem = problem_of(seed, target, symbolic)
        if problem:
            kinds = [node.op_type for node in RandomModel(seed, symbolic).nodes]
            yield f"seed {seed} on {target}, {' '.join(kinds)}: {problem}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--symbolic", type=float, default=0.0, help="share of dimensions of inputs that are symbolic")
    options = parser.parse_args()
    count = 0
    for problem in failures(options.target, range(options.seed, options.seed + options.count), options.symbolic):
        print(problem, flush=True)
        count += 1
    sys.exit(f"{count} of {options.count} models fail" if count else 0)


if __name__ == "__main__":
    main()
