"""Operators of ONNX Runtime that are written as those of ONNX where no site takes them, against onnxruntime."""

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError, RunError

RANDOM = np.random.default_rng(0)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype("float32")


HEADS, WIDTH = 4, 32
X, Q, K, V, BIAS = floats(2, 5, 16), floats(2, 5, WIDTH), floats(2, 7, WIDTH), floats(2, 7, 24), floats(88)
WEIGHTS, ATTENTION_BIAS = floats(16, 96), floats(2, HEADS, 5, 5)
PAST = [floats(2, HEADS, 3, 8) for _ in range(2)]
LENGTHS = np.int32([3, 5])
KEYS = (np.arange(5) < LENGTHS[:, None]).astype("int32")
PAIRS = np.tril(np.ones((2, 5, 5), "int32"))
IDS, WORDS, PLACES = RANDOM.integers(0, 9, (2, 5)).astype("int32"), floats(9, 16), floats(12, 16)
COSINES, SINES = floats(2, 12, 4)
# The operator, its operands and results, attributes and version of ONNX's operator set.
CASES = {
    "keys of another length": ("MultiHeadAttention", [Q, K, V, BIAS], ["y"], {}, 17),
    "keys of another length, in order": ("MultiHeadAttention", [Q, K, V], ["y"], {"unidirectional": 1}, 17),
    "keys that are heads": ("MultiHeadAttention", [Q, *floats(2, 2, HEADS, 7, 8)], ["y"], {}, 17),
    "lengths": ("MultiHeadAttention", [Q, Q, Q, None, LENGTHS], ["y"], {}, 17),
    "masked keys": ("MultiHeadAttention", [Q, Q, Q, None, KEYS], ["y"], {"mask_filter_value": -3.0}, 12),
    "masked pairs": ("MultiHeadAttention", [Q, Q, Q, None, PAIRS], ["y"], {"scale": 0.3}, 17),
    "added bias": ("MultiHeadAttention", [Q, Q, Q, None, None, ATTENTION_BIAS], ["y"], {"unidirectional": 1}, 17),
    "a cache": ("MultiHeadAttention", [Q, Q, Q, None, None, None, *PAST], ["y", "k", "v"], {"unidirectional": 1}, 17),
    "weights": ("Attention", [X, WEIGHTS, floats(96)], ["y"], {}, 11),
    "weights and lengths": ("Attention", [X, WEIGHTS, floats(96), LENGTHS], ["y"], {"unidirectional": 1}, 17),
    "weights and a cache": ("Attention", [X, WEIGHTS, floats(96), None, np.stack(PAST)], ["y", "k"], {}, 21),
    "values of another size": ("Attention", [X, floats(16, 88), BIAS], ["y"], {"qkv_hidden_sizes": [32, 32, 24]}, 17),
    "embeddings": (
        "EmbedLayerNormalization",
        [IDS, KEYS, WORDS, PLACES, WORDS, *floats(2, 16), KEYS], ["y", "lengths", "sum"], {"epsilon": 1e-5}, 12,
    ),
    "embeddings at places": (
        "EmbedLayerNormalization",
        [IDS, None, WORDS, PLACES, None, *floats(2, 16), None, IDS], ["y", "lengths"], {}, 18,
    ),
    "rotations": ("RotaryEmbedding", [Q, IDS.astype("int64"), COSINES, SINES], ["y"], {}, 17),
    "rotations of heads in pairs": (
        "RotaryEmbedding", [PAST[0], IDS[:, :3].astype("int64"), COSINES, SINES], ["y"], {"interleaved": 1}, 12,
    ),
    "rotations of a part": (
        "RotaryEmbedding",
        [Q, np.int64([3]), COSINES[:, :2], SINES[:, :2]], ["y"], {"num_heads": 4, "rotary_embedding_dim": 4}, 17,
    ),
    "unit": ("Gelu", [X], ["y"], {}, 17),
    "unit with a bias": ("BiasGelu", [X, floats(16)], ["y"], {}, 17),
    "approximate unit": ("FastGelu", [X, floats(16)], ["y"], {}, 12),
    "quick unit": ("QuickGelu", [X], ["y"], {"alpha": 1.5}, 17),
    "transposed product": ("FusedMatMul", [Q, Q], ["y"], {"transB": 1, "alpha": 0.25}, 17),
    "norm": ("SkipLayerNormalization", [X, X, *floats(3, 16)], ["y", "", "", "sum"], {"epsilon": 1e-5}, 12),
    "norm without a bias": ("SkipLayerNormalization", [X, X, floats(16)], ["y"], {"epsilon": 1e-5}, 18),
    "norm of squares": ("SkipSimplifiedLayerNormalization", [X, X, *floats(2, 16)], ["y", "", "", "sum"], {}, 17),
}  # fmt: skip
SHARED, CACHE = [floats(2, 3, size) for size in (64, 32, 32)], [floats(2, 2, 7, 16) for _ in range(2)]
TURNS = [floats(16, 8) for _ in range(2)]
ONE_STEP = [value[:, :1] for value in SHARED]
CASES |= {
    f"shared keys, {name}": ("GroupQueryAttention", operands, ["y", "k", "v"], attributes, 17)
    for name, operands, attributes in (
        ("a prompt", [*SHARED, None, None, np.int32([2, 2]), np.int32(3)], {}),
        ("rotated in a large cache", [*SHARED, *CACHE, np.int32([2, 2]), np.int32(3), *TURNS], {"do_rotary": 1}),
        ("a step", [*ONE_STEP, *CACHE, np.int32([7, 5]), np.int32(8), *TURNS], {"do_rotary": 1, "softcap": 2.0}),
        ("a window", [*ONE_STEP, *CACHE, np.int32([7, 7]), np.int32(8)], {"local_window_size": 3, "scale": 0.5}),
        (
            "joined",
            [np.concatenate(ONE_STEP, 2), None, None, *CACHE, np.int32([3, 6]), np.int32(7), *TURNS],
            {"do_rotary": 1, "rotary_interleaved": 1},
        ),
    )
}


def model(name):
    """Return a model of one operation and its inputs, which are the operands of two batches."""
    kind, operands, results, attributes, opset = CASES[name]
    if kind in ("Attention", "MultiHeadAttention"):
        attributes = attributes | {"num_heads": HEADS}
    if kind == "GroupQueryAttention":
        attributes = attributes | {"num_heads": 4, "kv_num_heads": 2}
    values = {f"v{at}": value for at, value in enumerate(operands) if value is not None}
    node = helper.make_node(
        kind, ["" if value is None else f"v{at}" for at, value in enumerate(operands)], results, "node",
        domain="com.microsoft", **attributes,
    )  # fmt: skip
    is_data = {key: value.shape[:1] == (2,) for key, value in values.items()}
    inputs = [
        helper.make_tensor_value_info(key, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for key, value in values.items()
        if is_data[key]
    ]
    constants = [numpy_helper.from_array(value, key) for key, value in values.items() if not is_data[key]]
    outputs = [
        helper.make_tensor_value_info(one, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)
        for one, dtype in ((one, "int32" if one == "lengths" else "float32") for one in results if one)
    ]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(
        helper.make_graph([node], "one", inputs, outputs, constants), opset_imports=opsets, ir_version=8
    )
    return proto, {key: value for key, value in values.items() if is_data[key]}


@pytest.mark.parametrize("name", CASES)
def test_the_definition_computes_what_onnxruntime_does(name):
    proto, given = model(name)
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, given)
    found = tt.build(tt.IRModule.from_onnx(proto), "numpy").run(given)
    for value, wanted in zip(found.values(), expected, strict=True):
        assert value.dtype == wanted.dtype
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", ["llvm", "openvino"])
@pytest.mark.parametrize(
    ("name", "caches", "sizes"),
    [("a cache", ["v6", "v7"], (3, 0)), ("shared keys, a step", ["v3", "v4"], (7,))],
    ids=["heads", "shared"],
)
def test_attention_of_symbolic_sizes_runs_by_its_definition(name, caches, sizes, target):
    proto, given = model(name)
    for value in proto.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
        if value.name in caches:
            value.type.tensor_type.shape.dim[2].dim_param = "past"
    program = tt.build(tt.IRModule.from_onnx(proto), target)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    for past in sizes:
        for cache in caches:
            given[cache] = given[cache][:, :, :past]
        for value, wanted in zip(program.run(given).values(), session.run(None, given), strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)


def test_masks_without_a_definition_are_refused():
    """Three numbers for each batch and two more are lengths and starts, which only onnxruntime reads."""
    proto, _ = model("lengths")
    proto.graph.input[3].type.tensor_type.shape.dim[0].dim_value = 8
    with pytest.raises(InfeasibleError, match="know the domain"):
        tt.decompose(tt.IRModule.from_onnx(proto), "numpy")


def test_rotations_of_symbolic_width_are_refused():
    proto, _ = model("shared keys, a step")
    cosines = next(tensor for tensor in proto.graph.initializer if tensor.name == "v7")
    proto.graph.initializer.remove(cosines)
    proto.graph.input.append(helper.make_tensor_value_info("v7", cosines.data_type, [16, "half"]))
    with pytest.raises(InfeasibleError, match="know the domain"):
        tt.decompose(tt.IRModule.from_onnx(proto), "numpy")


def test_lengths_beyond_a_cache_are_errors():
    proto, given = model("shared keys, a step")
    with pytest.raises(RunError, match="out of bounds"):
        tt.build(tt.IRModule.from_onnx(proto), "numpy").run(given | {"v5": np.int32([7, 9])})
