"""Tree ensembles on llvm, c and openvino, against onnxruntime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import tvmtarget as tt
from tvmtarget.artifact import read_files, write_files
from tvmtarget.backends.expansion_builder import attributes_of
from tvmtarget.support.tree_ensembles import read_ensemble

pytest.importorskip("tvm")

COLUMNS = 3
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
SPLITS = (-np.inf, -1.5, -0.0, 0.0, 1e-45, 0.1, 2.0, 3.0, np.inf)
NUMBERS = np.array([*SPLITS, np.nan, *(np.nextafter(np.float32(one), np.float32(9)) for one in SPLITS)], "float32")


def rows(rng, count, dtype="float32"):
    return rng.choice(NUMBERS, (count, COLUMNS)).astype(dtype)


def trees(rng, *, count=3, depth=3, modes=("BRANCH_LEQ",), ids=(0,), missing=True, weights=None):
    """Return attributes of random trees, as versions 1 to 3 write them; each leaf has a weight of each of `ids`."""
    names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    nodes = {f"nodes_{name}": [] for name in (*names, "missing_value_tracks_true")}
    leaves = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}

    def grow(tree, level):
        number = sum(one == tree for one in nodes["nodes_treeids"])
        is_leaf = level == depth or (level > 0 and rng.random() < 0.2)
        mode = "LEAF" if is_leaf else str(rng.choice(modes))
        row = (tree, number, int(rng.integers(COLUMNS)), float(rng.choice(SPLITS)), mode, 0, 0, int(rng.integers(2)))
        for name, value in zip(nodes, row, strict=True):
            nodes[name].append(value)
        place = len(nodes["nodes_treeids"]) - 1
        if is_leaf:
            for target in ids:
                weight = float(rng.uniform(*(weights or (-1, 1))))
                for name, value in zip(leaves, (tree, number, target, weight), strict=True):
                    leaves[name].append(value)
        else:
            nodes["nodes_truenodeids"][place] = grow(tree, level + 1)
            nodes["nodes_falsenodeids"][place] = grow(tree, level + 1)
        return number

    for tree in range(count):
        grow(tree, 0)
    if not missing:
        del nodes["nodes_missing_value_tracks_true"]
    return nodes, leaves


def regressor(rng, *, targets=1, **options):
    extra = {
        name: options.pop(name) for name in ("aggregate_function", "base_values", "post_transform") if name in options
    }
    nodes, leaves = trees(rng, ids=tuple(range(targets)), **options)
    written = {f"target_{name}": values for name, values in leaves.items()}
    return "TreeEnsembleRegressor", {**nodes, **written, "n_targets": targets, **extra}


def classifier(rng, *, labels, post_transform="NONE", base_values=None, **options):
    ids = (0,) if len(labels) == 2 else tuple(range(len(labels)))
    nodes, leaves = trees(rng, ids=ids, **options)
    written = {f"class_{name}": values for name, values in leaves.items()}
    base = {} if base_values is None else {"base_values": base_values}
    extra = {"classlabels_int64s": labels, "post_transform": post_transform}
    return "TreeEnsembleClassifier", {**nodes, **written, **extra, **base}


def ensemble(rng, *, targets=1, dtype="float32", **options):
    """Return an ensemble of version 5, whose branches may also compare with several members."""
    nodes, leaves = trees(rng, ids=(0,), **options)
    count = len(nodes["nodes_modes"])
    branches = [at for at in range(count) if nodes["nodes_modes"][at] != "LEAF"]
    place = {(nodes["nodes_treeids"][at], nodes["nodes_nodeids"][at]): at for at in range(count)}
    weight = dict(zip(zip(leaves["treeids"], leaves["nodeids"], strict=True), leaves["weights"], strict=True))
    order, members = list(weight), []
    codes = (*MODES, "BRANCH_MEMBER")
    found = {name: [] for name in ("truenodeids", "falsenodeids", "trueleafs", "falseleafs")}
    for at in branches:
        tree = nodes["nodes_treeids"][at]
        for side in ("true", "false"):
            child = (tree, nodes[f"nodes_{side}nodeids"][at])
            is_leaf = nodes["nodes_modes"][place[child]] == "LEAF"
            found[f"{side}nodeids"].append(order.index(child) if is_leaf else branches.index(place[child]))
            found[f"{side}leafs"].append(int(is_leaf))
        if nodes["nodes_modes"][at] == "BRANCH_MEMBER":
            members += [*rng.choice([1.0, 2.0, 3.0, 30.0], rng.integers(1, 4), replace=False), np.nan]
    roots = [branches.index(place[tree, 0]) for tree in sorted(set(nodes["nodes_treeids"]))]
    tensor = {
        "nodes_splits": np.array([nodes["nodes_values"][at] for at in branches], dtype),
        "nodes_modes": np.array([codes.index(nodes["nodes_modes"][at]) for at in branches], "uint8"),
        "leaf_weights": np.array([weight[pair] for pair in order], dtype),
        **({"membership_values": np.array(members, dtype)} if members else {}),
    }
    attributes = {
        **{f"nodes_{name}": values for name, values in found.items()},
        **{name: numpy_helper.from_array(value) for name, value in tensor.items()},
        "nodes_featureids": [nodes["nodes_featureids"][at] for at in branches],
        "tree_roots": roots,
        "leaf_targetids": [int(rng.integers(targets)) for _ in order],
        "n_targets": targets,
    }
    if "nodes_missing_value_tracks_true" in nodes:
        attributes["nodes_missing_value_tracks_true"] = [
            nodes["nodes_missing_value_tracks_true"][at] for at in branches
        ]
    return "TreeEnsemble", attributes


def model(kind, attributes, *, dtype="float32", batch="n"):
    is_classifier = kind == "TreeEnsembleClassifier"
    names = ["label", "scores"] if is_classifier else ["scores"]
    node = helper.make_node(kind, ["x"], names, domain="ai.onnx.ml", name="trees", **attributes)
    result = dtype if kind == "TreeEnsemble" else "float32"
    elem = {"label": onnx.TensorProto.INT64, "scores": helper.np_dtype_to_tensor_dtype(np.dtype(result))}
    x = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [batch, COLUMNS])
    graph = helper.make_graph(
        [node], "trees", [x], [helper.make_tensor_value_info(one, elem[one], None) for one in names]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 5 if kind == "TreeEnsemble" else 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def wanted(proto, x):
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip((one.name for one in proto.graph.output), session.run(None, {"x": x}), strict=True))


def walked(proto, x):
    """Return the sums of an ensemble from its tables."""
    (node,) = proto.graph.node
    dtype = "float64" if x.dtype == np.float64 else "float32"
    e = read_ensemble(node.op_type, attributes_of(node), dtype)
    result = np.zeros((len(x), e.targets), dtype)
    for row, values in enumerate(x.astype(dtype)):
        for at, depth in zip(e.roots, e.depths, strict=True):
            for _ in range(depth):
                value = values[e.features[at]]
                side = int(value <= e.thresholds[at]) + 2 * int(np.isnan(value) and e.children.shape[1] == 4)
                at = e.children[at, side]
            for one in range(e.first[at], e.first[at + 1]):
                result[row, e.weighted[one]] += e.weights[one]
    return result + e.base


@pytest.fixture(params=["llvm", "openvino"])
def target(request):
    if request.param == "openvino":
        pytest.importorskip("openvino")
    return request.param


def check(proto, x, target="llvm", **options):
    found = tt.build(tt.IRModule.from_onnx(proto), target, **options).run({"x": x})
    for name, array in wanted(proto, x).items():
        assert found[name].dtype == array.dtype
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.fixture
def rng():
    return np.random.default_rng(3)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["float32", "float64"]), st.booleans(), st.booleans())
def test_tables_of_trees_lead_to_the_leaves_of_onnxruntime(seed, dtype, missing, is_listed):
    rng = np.random.default_rng(seed)
    if is_listed:
        proto = model(
            *ensemble(rng, modes=(*MODES, "BRANCH_MEMBER"), missing=missing, targets=2, dtype=dtype), dtype=dtype
        )
    else:
        proto = model(*regressor(rng, modes=MODES, missing=missing, targets=2), dtype=dtype)
    x = rows(rng, 20, dtype)
    np.testing.assert_allclose(walked(proto, x), wanted(proto, x)["scores"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_trees_compare_every_mode_and_missing_values(rng, dtype, target):
    proto = model(*regressor(rng, count=20, depth=5, modes=MODES, base_values=[0.5]), dtype=dtype)
    if target == "openvino" and dtype == "float64":
        with pytest.raises(tt.TvmTargetError, match="it does not support float64"):
            tt.build(tt.IRModule.from_onnx(proto), target)
        return
    check(proto, rows(rng, 200, dtype), target)


@pytest.mark.parametrize("opset", [None, 9])
def test_trees_of_models_of_old_or_no_operator_sets_run(rng, target, opset):
    proto = model(*classifier(rng, labels=[4, 2]))
    if opset is None:
        del proto.opset_import[0]
    else:
        proto.opset_import[0].version = opset
    check(proto, rows(rng, 9), target)


def test_trees_deeper_than_openvino_takes_are_refused():
    pytest.importorskip("openvino")
    depth = 257
    nodes = {f"nodes_{name}": [] for name in ("truenodeids", "falsenodeids")}
    for level in range(depth):
        nodes["nodes_truenodeids"].append(depth + level)
        nodes["nodes_falsenodeids"].append(level + 1 if level < depth - 1 else 2 * depth)
    leaves = range(depth, 2 * depth + 1)
    proto = model(
        "TreeEnsembleRegressor",
        {
            **{name: values + [0] * len(leaves) for name, values in nodes.items()},
            **{f"nodes_{name}": [0] * (2 * depth + 1) for name in ("treeids", "featureids")},
            "nodes_nodeids": list(range(2 * depth + 1)),
            "nodes_values": [float(level) for level in range(depth)] + [0.0] * len(leaves),
            "nodes_modes": ["BRANCH_LEQ"] * depth + ["LEAF"] * len(leaves),
            **{f"target_{name}": [0] * len(leaves) for name in ("treeids", "ids")},
            "target_nodeids": list(leaves),
            "target_weights": [1.0] * len(leaves),
        },
    )
    with pytest.raises(tt.TvmTargetError, match="trees of at most 256 comparisons, and one has 257"):
        tt.decompose(tt.IRModule.from_onnx(proto), "openvino")


@pytest.mark.parametrize("aggregate", ["AVERAGE", "MIN", "MAX"])
def test_trees_are_aggregated(rng, target, aggregate):
    attributes = regressor(rng, count=9, targets=2, aggregate_function=aggregate, base_values=[0.5, -1.0])
    check(model(*attributes), rows(rng, 5), target)


@pytest.mark.parametrize("count", [0, 1, 64, 65])
def test_rows_may_be_any_number(rng, target, count):
    check(model(*regressor(rng, count=1)), rows(rng, count), target)


def test_a_tree_may_be_one_leaf(rng, target):
    check(model(*regressor(rng, depth=0, count=2), batch=3), rows(rng, 3), target)


@pytest.mark.parametrize("post_transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
def test_classes_have_scores_and_the_best_is_the_label(rng, target, post_transform):
    attributes = classifier(rng, labels=[5, -7, 9], post_transform=post_transform, base_values=[0.1, 0.2, 0.0])
    check(model(*attributes), rows(rng, 40), target)


@pytest.mark.parametrize("post_transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("weights", [(-1, 1), (0, 0.3)])
def test_one_of_two_classes_has_weights(rng, target, weights, post_transform):
    attributes = classifier(rng, labels=[4, 2], weights=weights, post_transform=post_transform, base_values=[0.1])
    check(model(*attributes), rows(rng, 40), target)


def test_trees_take_whole_numbers(rng, target):
    check(model(*classifier(rng, labels=[0, 1, 2]), dtype="int64"), rng.integers(-3, 4, (9, COLUMNS)), target)


def test_lists_of_branches_and_of_leaves_are_trees(rng, target):
    attributes = ensemble(rng, count=9, depth=5, modes=(*MODES, "BRANCH_MEMBER"), targets=2)
    check(model(*attributes), rows(rng, 30), target)


def test_generated_c_has_trees_too(rng):
    check(model(*regressor(rng, count=9, modes=MODES), batch=5), rows(rng, 5), "c")


def test_a_map_of_scores_is_made_beside_the_trees(rng):
    kind, attributes = classifier(rng, labels=[0, 1, 2])
    proto = model(kind, attributes)
    del proto.graph.output[1]
    maps = helper.make_node("ZipMap", ["scores"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2])
    proto.graph.node.append(maps)
    value = helper.make_map_type_proto(
        onnx.TensorProto.INT64, helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    )
    proto.graph.output.append(helper.make_value_info("maps", helper.make_sequence_type_proto(value)))
    module, x = tt.IRModule.from_onnx(proto), rows(rng, 4)
    with pytest.raises(tt.TvmTargetError, match="no maps; give it a leaf such as onnxruntime"):
        tt.decompose(module, "llvm")
    exe = tt.build(module, "[cpu=llvm,ort=onnxruntime](host=@cpu)", where={"trees": "cpu"})
    found, expected = exe.run({"x": x}), wanted(proto, x)
    assert (found["label"] == expected["label"]).all()
    assert [set(one) for one in found["maps"]] == [{0, 1, 2}] * 4
    for one, other in zip(found["maps"], expected["maps"], strict=True):
        np.testing.assert_allclose(list(one.values()), list(other.values()), rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"nodes_truenodeids": [0]}, "not of one length"),
        ({"nodes_modes": ["BRANCH_IN"]}, "a mode is 'BRANCH_IN'"),
        ({"nodes_featureids": [7]}, "compares column 7, and 'x' has 3"),
        ({"nodes_truenodeids": [9]}, "has no node that a branch leads to"),
        ({"nodes_truenodeids": [0], "nodes_falsenodeids": [0]}, "a tree has a cycle"),
        ({"nodes_values": [np.nan]}, "a branch compares with NaN"),
        ({"target_ids": [4]}, "a weight is of target 4, and there are 1"),
        ({"base_values": [1.0, 2.0]}, "base_values has 2 elements"),
        ({"n_targets": 1 << 40}, "it has 1099511627776 targets"),
        ({"post_transform": "LOGISTIC"}, "post_transform='LOGISTIC' of 1 score"),
    ],
)
def test_trees_that_do_not_fit_together_are_refused(change, reason):
    attributes = {
        **{f"nodes_{name}": [0, 0, 0] for name in ("treeids", "featureids")},
        "nodes_nodeids": [0, 1, 2],
        "nodes_values": [0.0] * 3,
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        **{f"target_{name}": [0, 0] for name in ("treeids", "ids")},
        "target_nodeids": [1, 2],
        "target_weights": [1.0, 2.0],
    }
    is_short = reason == "not of one length"
    changed = {
        name: values
        if is_short or not isinstance(values, list) or name not in attributes
        else values + attributes[name][len(values) :]
        for name, values in change.items()
    }
    with pytest.raises(tt.TvmTargetError, match=reason):
        tt.decompose(tt.IRModule.from_onnx(model("TreeEnsembleRegressor", {**attributes, **changed})), "llvm")


@pytest.mark.parametrize(
    ("labels", "ids", "reason"),
    [
        ([0, 1], (1,), "weights of the second one only"),
        ([3, 7], (0, 1), "not 0 and 1"),
        ([0, 1, 2], (0, 1), "no weight of class 2"),
        ([3], (0,), "two or more"),
    ],
)
def test_classes_whose_labels_engines_choose_differently_are_refused(rng, labels, ids, reason):
    nodes, leaves = trees(rng, ids=ids)
    written = {f"class_{name}": values for name, values in leaves.items()}
    proto = model("TreeEnsembleClassifier", {**nodes, **written, "classlabels_int64s": labels})
    with pytest.raises(tt.TvmTargetError, match=reason):
        tt.decompose(tt.IRModule.from_onnx(proto), "llvm")


@pytest.mark.parametrize(("dtype", "is_negated"), [("float32", True), ("float32", False), ("float64", True)])
@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_weights_of_both_of_two_classes_give_the_label_of_the_sign_of_the_second(rng, target, dtype, post, is_negated):
    """CatBoost writes each weight and its negation."""
    nodes, leaves = trees(rng, count=20, ids=(0, 1))
    if is_negated:
        leaves["weights"][1::2] = [-one for one in leaves["weights"][::2]]
    written = {f"class_{name}": values for name, values in leaves.items()}
    extra = {"classlabels_int64s": [0, 1], "post_transform": post}
    proto = model("TreeEnsembleClassifier", {**nodes, **written, **extra}, dtype=dtype)
    if target == "openvino" and dtype == "float64":
        return
    check(proto, rows(rng, 200, dtype), target)


def test_a_saved_program_whose_trees_read_past_their_input_is_refused(rng, tmp_path, target):
    """Untrusted programs are compiled from the source in the file, which anybody may have changed."""
    kind, attributes = regressor(rng)
    exe = tt.build(tt.IRModule.from_onnx(model(kind, attributes)), target)
    exe.save(tmp_path / "trees.tta")
    facts, files = read_files(tmp_path / "trees.tta")
    (name,) = (name for name in files if name.endswith("source.onnx"))
    changed = onnx.load_from_string(files[name])
    (features,) = (one for node in changed.graph.node for one in node.attribute if one.name == "nodes_featureids")
    features.ints[0] = 10**6
    files[name] = changed.SerializeToString()
    rest = {key: value for key, value in facts.items() if key not in ("files", "format", "schema")}
    write_files(tmp_path / "changed.tta", files, **rest)
    with pytest.raises(tt.TvmTargetError, match="compares column 1000000, and its input is known to have 3"):
        tt.load(tmp_path / "changed.tta")(rows(rng, 4))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("aggregate", [0, 1, 2, 3])
def test_numpy_computes_trees_by_their_tables(rng, aggregate, dtype):
    kind, attributes = ensemble(rng, modes=(*MODES, "BRANCH_MEMBER"), missing=True, targets=1, dtype=dtype)
    members = numpy_helper.to_array(attributes["membership_values"]).copy()
    members[0] = 0  # which ends a list in the evaluator
    attributes |= {"membership_values": numpy_helper.from_array(members), "aggregate_function": aggregate}
    proto, x = model(kind, attributes, dtype=dtype), rows(rng, 30, dtype)
    x[:10] = rng.integers(0, 3, (10, COLUMNS))
    check(proto, x, "numpy")


@pytest.mark.parametrize("post_transform", [1, 2])
def test_transforms_by_number_are_refused_where_engines_compute_others(rng, post_transform):
    kind, attributes = ensemble(rng, targets=2)
    program = tt.IRModule.from_onnx(model(kind, {**attributes, "post_transform": post_transform}))
    message = f"it computes another post_transform than {post_transform} of ai.onnx.ml::TreeEnsemble; set it to 0"
    with pytest.raises(tt.TvmTargetError, match=message):
        tt.decompose(program, "onnxruntime")
    with pytest.raises(tt.TvmTargetError, match=f"post_transform={post_transform}, only with 0"):
        tt.decompose(program, "numpy")
    x = rows(rng, 9)
    sums = walked(model(kind, attributes), x)
    scores = np.exp(sums) / np.exp(sums).sum(1, keepdims=True) if post_transform == 1 else 1 / (1 + np.exp(-sums))
    np.testing.assert_allclose(tt.build(program, "llvm")(x), scores, rtol=1e-5, atol=1e-6)
