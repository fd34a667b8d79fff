"""NonMaxSuppression on llvm, against onnxruntime."""

import numpy as np
import pytest
from onnx import parser

import tvmtarget as tt
from tvmtarget.errors import TvmTargetError

pytest.importorskip("tvm")
ort = pytest.importorskip("onnxruntime")

TEXT = """
    <ir_version: 8, opset_import: ["": 17]>
    g (float[{batch}, {boxes}, 4] boxes, float[{batch}, {classes}, {boxes}] scores, int64{most} most,
       float{most} overlap, float{most} least)
       => (int64[chosen, 3] y) {{ y = NonMaxSuppression <center_point_box: int = {centered}>
       ({operands}) }}"""
ALL = "boxes, scores, most, overlap, least"


def model(batch=2, boxes=40, classes=3, most="", centered=0, operands=ALL):
    text = TEXT.format(batch=batch, boxes=boxes, classes=classes, most=most, centered=centered, operands=operands)
    return parser.parse_model(text)


def values(batch=2, boxes=40, classes=3, most=5, overlap=0.3, least=0.2, shape=(), seed=0):
    """Return operands by name; scores of tenths have ties, and corners are in any order."""
    random = np.random.default_rng(seed)
    return {
        "boxes": random.random((batch, boxes, 4), dtype="float32"),
        "scores": random.integers(0, 10, (batch, classes, boxes)).astype("float32") / 10,
        "most": np.full(shape, most, "int64"),
        "overlap": np.full(shape, overlap, "float32"),
        "least": np.full(shape, least, "float32"),
    }


def expected(proto, given):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(proto.SerializeToString(), options).run(None, given)


@pytest.fixture(scope="module")
def symbolic():
    return tt.build(tt.IRModule.from_onnx(model("b", "n", "c")), "llvm")


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"overlap": 0.0},
        {"overlap": 1.0, "most": 100},
        {"most": 0},
        {"most": -1},
        {"least": 2.0},
        {"least": -1.0, "seed": 7},
        {"batch": 1, "boxes": 1, "classes": 1},
        {"batch": 1, "boxes": 300, "classes": 2, "most": 300, "seed": 3},
    ],
    ids=str,
)
def test_boxes_are_chosen_as_onnxruntime_chooses_them(symbolic, sizes):
    given = values(**sizes)
    np.testing.assert_array_equal(symbolic.run(given)["y"], expected(model("b", "n", "c"), given)[0])


@pytest.mark.parametrize("empty", ["batch", "boxes", "classes"])
def test_nothing_is_chosen_of_nothing(symbolic, empty):
    assert symbolic.run(values(**{empty: 0}))["y"].shape == (0, 3)


@pytest.mark.parametrize("operands", ["boxes, scores", "boxes, scores, most", 'boxes, scores, most, ""', ALL])
@pytest.mark.parametrize("centered", [0, 1])
def test_operands_may_be_absent(operands, centered):
    proto, given = model(centered=centered, most="[1]", operands=operands), values(shape=(1,))
    names = {name for name in proto.graph.node[0].input if name}
    kept = [value for value in proto.graph.input if value.name in names]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    given = {name: value for name, value in given.items() if name in names}
    actual = tt.build(tt.IRModule.from_onnx(proto), "llvm").run(given)["y"]
    np.testing.assert_array_equal(actual, expected(proto, given)[0])


def test_what_is_chosen_is_read_by_other_operators():
    proto = parser.parse_model(
        """
        <ir_version: 8, opset_import: ["": 17]>
        g (float[1, n, 4] boxes, float[1, c, n] scores) => (float[d, 4] found, float[d] best, int64[d] class)
        <int64 most = {3}, float overlap = {0.4}, float least = {0.1}, int64 one = {1}, int64 two = {2},
         int64[1] axis = {1}, int64[1] first = {0}>
        {
            rows = NonMaxSuppression(boxes, scores, most, overlap, least)
            box = Gather <axis: int = 1> (rows, two)
            class = Gather <axis: int = 1> (rows, one)
            all = Squeeze(boxes, first)
            found = Gather(all, box)
            each = Squeeze(scores, first)
            places0 = Unsqueeze(class, axis)
            places1 = Unsqueeze(box, axis)
            places = Concat <axis: int = 1> (places0, places1)
            best = GatherND(each, places)
        }"""
    )
    given = {name: value for name, value in values(batch=1).items() if name in ("boxes", "scores")}
    actual = tt.build(tt.IRModule.from_onnx(proto), "llvm").run(given)
    for name, value in zip(("found", "best", "class"), expected(proto, given), strict=True):
        np.testing.assert_array_equal(actual[name], value)


@pytest.mark.parametrize(
    ("target", "reason"), [("c", "as many rows as boxes are chosen"), ("cuda(host=llvm)", "runs on the host")]
)
def test_planned_memory_and_gpus_refuse_it(target, reason):
    with pytest.raises(TvmTargetError, match=reason):
        tt.decompose(tt.IRModule.from_onnx(model()), target)
