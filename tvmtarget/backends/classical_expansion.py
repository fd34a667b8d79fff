"""Operators of ai.onnx.ml on numbers, written as operators of ONNX.

Of a tree ensemble, one without post-transform remains (`tree_ensembles`), or its trees are walked by gathering nodes.
Labels are found as ONNX Runtime finds them. Strings and maps are no tensors of numbers, and stay with other code
generators.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import NodeProto, TensorProto

from tvmtarget.backends.expansion_builder import ExpansionBuilder, attributes_of, operands_of
from tvmtarget.support.classical_rules import label_tables
from tvmtarget.support.tree_ensembles import Ensemble, classes_of, read_ensemble

__all__ = ["CLASSICAL_EXPANSIONS", "TRAVERSED_TREES", "TREES_SINCE"]

Array: TypeAlias = "np.ndarray[Any, Any]"

_SCALE = 2.0**64  # times the smallest number is a normal one
_ALMOST_ZERO = 1e-7  # what SOFTMAX_ZERO counts as zero


# Scores and labels


def _floats(builder: ExpansionBuilder, name: str) -> str:
    """Return a value as float32."""
    if builder.types[name].elem_type == TensorProto.FLOAT:
        return name
    return builder.add("Cast", [name], to=TensorProto.FLOAT)


def _scores(builder: ExpansionBuilder, name: str, post_transform: str, result: str) -> None:
    """Add a post-transform of several scores of a row."""
    add, dtype = builder.add, np.float32
    if post_transform == "LOGISTIC":
        add("Sigmoid", [name], result)
    elif post_transform == "SOFTMAX":
        add("Softmax", [name], result, axis=1)
    elif post_transform == "SOFTMAX_ZERO":
        # Scores of zero have no part in the sum.
        largest = builder.along("ReduceMax", name, [-1])
        powers = add("Exp", [add("Sub", [name, largest])])
        is_large = add("Greater", [add("Abs", [name]), builder.constant(np.array(_ALMOST_ZERO, dtype), name)])
        total = builder.along(
            "ReduceSum", add("Where", [is_large, powers, builder.constant(np.array(0, dtype), name)]), [-1]
        )
        small = add("Mul", [name, add("Exp", [add("Neg", [largest])])])
        add("Div", [add("Where", [is_large, powers, small]), total], result)
    else:
        add("Identity", [name], result)


def _chosen(builder: ExpansionBuilder, labels: Sequence[int], index: str, result: str) -> None:
    """Add the labels at some indices, of which there is one for each row."""
    builder.add("Gather", [builder.constant(np.array(labels, np.int64), index), index], result, axis=0)


def _best(builder: ExpansionBuilder, labels: Sequence[int], scores: str, result: str) -> None:
    """Add the labels of the largest scores."""
    _chosen(builder, labels, builder.add("ArgMax", [scores], axis=1, keepdims=0), result)


def _above(builder: ExpansionBuilder, labels: Sequence[int], score: str, bound: float, result: str) -> None:
    """Add the second label of two where a score exceeds a bound, else the first."""
    is_second = builder.add("Greater", [score, builder.constant(np.array(bound, np.float32), score)])
    index = builder.reshape(builder.add("Cast", [is_second], to=TensorProto.INT64), [-1])
    _chosen(builder, labels, index, result)


def _results(builder: ExpansionBuilder, node: NodeProto) -> list[str]:
    """Return the names of the label and of the scores of a classifier."""
    return [name or builder.fresh(f"{node.input[0]}:{node.op_type}") for name in [*node.output, ""][:2]]


# Tree ensembles


def _plain(builder: ExpansionBuilder, node: NodeProto, data: str, sums: str, label: str, _ensemble: Ensemble) -> None:
    """Add the ensemble itself, without post-transform."""
    plain = onnx.helper.make_node(node.op_type, [data], [label, sums] if label else [sums], domain=node.domain)
    plain.attribute.extend(attribute for attribute in node.attribute if attribute.name != "post_transform")
    builder.nodes.append(plain)


def _traversed(
    builder: ExpansionBuilder, node: NodeProto, data: str, sums: str, label: str, ensemble: Ensemble
) -> None:
    """Walk all trees at once, level by level, by gathering the nodes; a leaf is its own child.

    Source: Nakandala et al., "A Tensor Compiler for Unified Machine Learning Prediction Serving" (OSDI 2020), which
    names this strategy TreeTraversal.
    """
    add, columns = builder.add, builder.types[node.input[0]].shape.dim[-1].dim_value
    # The rules require this, too, but the source in a saved program is compiled without them.
    if int(ensemble.features.max(initial=0)) >= columns:
        most = int(ensemble.features.max())
        raise ValueError(f"an ensemble compares column {most}, and its input is known to have {columns}")
    other, less, *missing = (np.ascontiguousarray(column) for column in ensemble.children.T)
    # OpenVINO takes subnormal constants as zero, and `x < 0` compares with one: both sides are scaled.
    is_subnormal = np.abs(ensemble.thresholds) < np.finfo(ensemble.thresholds.dtype).tiny
    scales = np.where(is_subnormal, _SCALE, 1).astype(ensemble.thresholds.dtype)
    thresholds = ensemble.thresholds * scales
    tables = {"features": ensemble.features, "thresholds": thresholds, "other": other, "less": less}
    if (is_subnormal & (ensemble.thresholds != 0)).any():
        tables["scales"] = scales
    if missing:
        tables["missing"] = missing[0]
    names = {name: builder.constant(table, data) for name, table in tables.items()}
    at = ""
    for _ in range(max(1, int(ensemble.depths.max(initial=0)))):
        if at:
            found = {name: add("Gather", [table, at], axis=0) for name, table in names.items()}
            value = add("GatherElements", [data, found["features"]], axis=1)
        else:
            found = {name: builder.constant(table[ensemble.roots], data) for name, table in tables.items()}
            value = add("Gather", [data, found["features"]], axis=1)
        if "scales" in tables:
            value = add("Mul", [value, found["scales"]])
        at = add("Where", [add("LessOrEqual", [value, found["thresholds"]]), found["less"], found["other"]])
        if missing:
            at = add("Where", [add("IsNaN", [value]), found["missing"], at])
    _aggregated(builder, at, ensemble, sums)
    if label and ensemble.is_binary:
        # Sums of weights that are not negative are probabilities.
        bound = 0.5 if (ensemble.weights >= 0).all() else 0.0
        _above(builder, classes_of(attributes_of(node)), sums, bound, label)
    elif label and ensemble.by_second:
        second = builder.add("Gather", [sums, builder.constant(np.array([1]), sums)], axis=1)
        _above(builder, classes_of(attributes_of(node)), second, 0.0, label)
    elif label:
        _best(builder, classes_of(attributes_of(node)), sums, label)


def _aggregated(builder: ExpansionBuilder, leaves: str, ensemble: Ensemble, result: str) -> None:
    """Add the aggregate of the weights of the leaves that each row reaches, one of each tree."""
    add, dtype, targets = builder.add, ensemble.weights.dtype, ensemble.targets
    info = np.finfo(dtype)
    nothing = {"MIN": info.max, "MAX": info.min}.get(ensemble.aggregate, 0.0)
    weights = np.full((len(ensemble.features), targets), nothing, dtype)
    weights[np.repeat(np.arange(len(weights)), np.diff(ensemble.first)), ensemble.weighted] = ensemble.weights
    kind = {"MIN": "ReduceMin", "MAX": "ReduceMax"}.get(ensemble.aggregate, "ReduceSum")
    if targets == 1:
        found = builder.along(kind, add("Gather", [builder.constant(weights[:, 0], leaves), leaves], axis=0), [-1])
    else:
        found = add("Gather", [builder.constant(weights, leaves), leaves], axis=0)
        found = builder.along(kind, found, [1], keepdims=0)
    if ensemble.aggregate == "AVERAGE":
        found = add("Div", [found, builder.constant(np.array(len(ensemble.roots), dtype), leaves)])
    add("Add", [found, builder.constant(ensemble.base, leaves)], result)


_Sums: TypeAlias = Callable[[ExpansionBuilder, NodeProto, str, str, str, Ensemble], None]


def _sums(builder: ExpansionBuilder, node: NodeProto, add_sums: _Sums, label: str = "") -> tuple[str, Ensemble]:
    """Add an ensemble without post-transform; return the name of its sums, and the ensemble."""
    (x,) = operands_of(node, 1)
    dtype = "float64" if builder.types[x].elem_type == TensorProto.DOUBLE else "float32"
    ensemble = read_ensemble(node.op_type, attributes_of(node), dtype)
    data, name = x if dtype == "float64" else _floats(builder, x), builder.fresh(f"{x}:sums")
    add_sums(builder, node, data, name, label, ensemble)
    return name, ensemble


def _tree_regressor(add_sums: _Sums, builder: ExpansionBuilder, node: NodeProto) -> None:
    sums, ensemble = _sums(builder, node, add_sums)
    _scores(builder, sums, ensemble.post_transform, node.output[0])


def _tree_classifier(add_sums: _Sums, builder: ExpansionBuilder, node: NodeProto) -> None:
    label, scores = _results(builder, node)
    sums, ensemble = _sums(builder, node, add_sums, label)
    if not ensemble.is_binary:
        _scores(builder, sums, ensemble.post_transform, scores)
        return
    # The sums are those of the second class.
    second = builder.add("Sigmoid", [sums]) if ensemble.post_transform == "LOGISTIC" else sums
    if ensemble.post_transform == "LOGISTIC" or not (ensemble.weights >= 0).all():
        first = builder.add("Neg", [sums])
        first = builder.add("Sigmoid", [first]) if ensemble.post_transform == "LOGISTIC" else first
    else:
        first = builder.add("Sub", [builder.constant(np.float32(1), sums), sums])
    builder.add("Concat", [first, second], scores, axis=1)


# Linear models and support vectors


def _linear(builder: ExpansionBuilder, x: str, coefficients: Array, intercepts: Array) -> str:
    """Return products with rows of coefficients, and intercepts."""
    weights = builder.constant(coefficients.reshape(max(1, len(intercepts)), -1).T.astype(np.float32), x)
    product = builder.add("MatMul", [_floats(builder, x), weights])
    return builder.add("Add", [product, builder.constant(intercepts.astype(np.float32), x)])


def _linear_regressor(builder: ExpansionBuilder, node: NodeProto) -> None:
    attributes = attributes_of(node)
    targets = attributes.get("targets", 1)
    intercepts = np.asarray(attributes.get("intercepts") or [0.0] * targets)
    found = _linear(builder, node.input[0], np.asarray(attributes["coefficients"]), intercepts)
    _scores(builder, found, attributes.get("post_transform", "NONE"), node.output[0])


def _linear_classifier(builder: ExpansionBuilder, node: NodeProto) -> None:
    attributes = attributes_of(node)
    labels, intercepts = classes_of(attributes), np.asarray(attributes["intercepts"])
    found = _linear(builder, node.input[0], np.asarray(attributes["coefficients"]), intercepts)
    post_transform = attributes.get("post_transform", "NONE")
    label, scores = _results(builder, node)
    if len(intercepts) > 1:
        _best(builder, labels, found, label)
        _scores(builder, found, post_transform, scores)
        return
    _above(builder, labels, found, 0.0, label)
    second = builder.add("Sigmoid", [found]) if post_transform == "LOGISTIC" else found
    first = builder.add("Sub", [builder.constant(np.array(1, np.float32), found), second])
    builder.add("Concat", [first, second], scores, axis=1)


def _kernels(builder: ExpansionBuilder, x: str, attributes: dict[str, Any], vectors: Array) -> str:
    """Return the kernel of each row with each support vector."""
    add, data = builder.add, _floats(builder, x)
    gamma, constant, degree = (np.float32(one) for one in [*attributes.get("kernel_params", []), 0, 0, 0][:3])
    kernel = attributes.get("kernel_type", "LINEAR")
    if kernel == "RBF":
        # Distances are not taken apart into products, which would cancel.
        rows = builder.reshape(data, [-1, 1, vectors.shape[1]])
        difference = add("Sub", [rows, builder.constant(vectors[None], x)])
        distance = builder.along("ReduceSum", add("Mul", [difference, difference]), [-1])
        power = add("Mul", [builder.reshape(distance, [-1, len(vectors)]), builder.constant(-gamma, x)])
        return add("Exp", [power])
    product = add("MatMul", [data, builder.constant(vectors.T, x)])
    if kernel == "LINEAR":
        return product
    scaled = add("Add", [add("Mul", [product, builder.constant(gamma, x)]), builder.constant(constant, x)])
    if kernel == "SIGMOID":
        return add("Tanh", [scaled])
    power = scaled
    for _ in range(int(degree) - 1):
        power = add("Mul", [power, scaled])
    return power


def _support_vectors(attributes: dict[str, Any], count: int) -> Array:
    return np.asarray(attributes["support_vectors"], np.float32).reshape(count, -1)


def _svm_regressor(builder: ExpansionBuilder, node: NodeProto) -> None:
    attributes, x = attributes_of(node), node.input[0]
    coefficients = np.asarray(attributes["coefficients"], np.float32)
    count = attributes.get("n_supports", 0)
    kernels = _kernels(builder, x, attributes, _support_vectors(attributes, count)) if count else _floats(builder, x)
    product = builder.add("MatMul", [kernels, builder.constant(coefficients.reshape(-1, 1), x)])
    rho = builder.constant(np.float32(attributes["rho"][0]), x)
    is_one_class = bool(attributes.get("one_class", 0))
    total = builder.add("Add", [product, rho], None if is_one_class else node.output[0])
    if is_one_class:
        zero, one = (builder.constant(np.float32(value), x) for value in (0, 1))
        is_inside = builder.add("Greater", [total, zero])
        builder.add("Where", [is_inside, one, builder.constant(np.float32(-1), x)], node.output[0])


def _svm_classifier(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write a classifier that compares each pair of classes; the label is of the class that wins most pairs."""
    attributes, x, add = attributes_of(node), node.input[0], builder.add
    labels, sizes = classes_of(attributes), attributes["vectors_per_class"]
    count = sum(sizes)
    starts = [0, *itertools.accumulate(sizes)]
    coefficients = np.asarray(attributes["coefficients"], np.float32).reshape(len(sizes) - 1, count)
    pairs = list(itertools.combinations(range(len(sizes)), 2))
    weights = np.zeros((count, len(pairs)), np.float32)
    votes = np.zeros((2, len(pairs), len(sizes)), np.float32)
    for at, (first, second) in enumerate(pairs):
        for one, row in ((first, second - 1), (second, first)):
            part = slice(starts[one], starts[one + 1])
            weights[part, at] = coefficients[row, part]
        votes[0, at, first] = votes[1, at, second] = 1
    kernels = _kernels(builder, x, attributes, _support_vectors(attributes, count))
    product = add("MatMul", [kernels, builder.constant(weights, x)])
    found = add("Add", [product, builder.constant(np.asarray(attributes["rho"][: len(pairs)], np.float32), x)])
    label, scores = _results(builder, node)
    wins = add("Cast", [add("Greater", [found, builder.constant(np.float32(0), x)])], to=TensorProto.FLOAT)
    losses = add("Sub", [builder.constant(np.float32(1), x), wins])
    sums = [add("MatMul", [one, builder.constant(table, x)]) for one, table in zip((wins, losses), votes, strict=True)]
    _best(builder, labels, add("Add", sums), label)
    if len(pairs) == 1:
        found = add("Concat", [add("Neg", [found]), found], axis=1)
    _scores(builder, found, attributes.get("post_transform", "NONE"), scores)


# Preparation of features


def _scaler(builder: ExpansionBuilder, node: NodeProto) -> None:
    attributes, x = attributes_of(node), node.input[0]
    is_double = builder.types[x].elem_type == TensorProto.DOUBLE
    dtype = np.float64 if is_double else np.float32
    offset, scale = (builder.constant(np.asarray(attributes[name], dtype), x) for name in ("offset", "scale"))
    moved = builder.add("Sub", [x if is_double else _floats(builder, x), offset])
    scaled = builder.add("Mul", [moved, scale], None if is_double else node.output[0])
    if is_double:
        builder.add("Cast", [scaled], node.output[0], to=TensorProto.FLOAT)


def _normalizer(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write a division of each row by its norm; rows of norm 0 stay."""
    x, norm, add = _floats(builder, node.input[0]), attributes_of(node).get("norm", "MAX"), builder.add
    if norm == "MAX":
        total = builder.along("ReduceMax", x, [-1])
    elif norm == "L1":
        total = builder.along("ReduceSum", add("Abs", [x]), [-1])
    else:
        total = add("Sqrt", [builder.along("ReduceSum", add("Mul", [x, x]), [-1])])
    zero, one = (builder.constant(np.float32(value), x) for value in (0, 1))
    add("Div", [x, add("Where", [add("Equal", [total, zero]), one, total])], node.output[0])


def _binarizer(builder: ExpansionBuilder, node: NodeProto) -> None:
    threshold = builder.constant(np.float32(attributes_of(node).get("threshold", 0.0)), node.input[0])
    is_above = builder.add("Greater", [node.input[0], threshold])
    builder.add("Cast", [is_above], node.output[0], to=TensorProto.FLOAT)


def _imputer(builder: ExpansionBuilder, node: NodeProto) -> None:
    attributes, x = attributes_of(node), node.input[0]
    is_float = builder.types[x].elem_type == TensorProto.FLOAT
    kind, dtype = ("float", np.float32) if is_float else ("int64", np.int64)
    values = builder.constant(np.asarray(attributes[f"imputed_value_{kind}s"], dtype), x)
    replaced = attributes.get(f"replaced_value_{kind}", 0)
    is_missing = (
        builder.add("IsNaN", [x])
        if replaced != replaced
        else builder.add("Equal", [x, builder.constant(dtype(replaced), x)])
    )
    builder.add("Where", [is_missing, values, x], node.output[0])


def _as_rows(builder: ExpansionBuilder, original: str, name: str) -> str:
    """Return a value whose vectors are one row."""
    return builder.reshape(name, [1, -1]) if builder.rank(original) == 1 else name


def _feature_extractor(builder: ExpansionBuilder, node: NodeProto) -> None:
    x, indices = operands_of(node, 2)
    axis, indices = max(1, builder.rank(x) - 1), builder.reshape(indices, [-1])
    if builder.array(node.input[1]) is None:  # Gather counts negative ones from the end; constants have been checked
        zero, most = (builder.constant(np.array([one]), indices) for one in (0, np.iinfo(np.int64).max))
        indices = builder.add("Where", [builder.add("Less", [indices, zero]), most, indices])
    builder.add("Gather", [_as_rows(builder, x, x), indices], node.output[0], axis=axis)


def _feature_vectorizer(builder: ExpansionBuilder, node: NodeProto) -> None:
    parts = [_as_rows(builder, name, _floats(builder, name)) for name in node.input]
    builder.add("Concat", parts, node.output[0], axis=1)


def _one_hot_encoder(builder: ExpansionBuilder, node: NodeProto) -> None:
    x, categories = node.input[0], np.asarray(attributes_of(node)["cats_int64s"], np.int64)
    whole = x if builder.types[x].elem_type == TensorProto.INT64 else builder.add("Cast", [x], to=TensorProto.INT64)
    is_category = builder.add("Equal", [_as_columns(builder, whole, builder.rank(x)), builder.constant(categories, x)])
    builder.add("Cast", [is_category], node.output[0], to=TensorProto.FLOAT)


def _as_columns(builder: ExpansionBuilder, name: str, rank: int) -> str:
    """Return a value of a rank with one more dimension at its end."""
    if builder.opset >= 13:
        return builder.add("Unsqueeze", [name, builder.constant(np.array([rank]), name)])
    return builder.add("Unsqueeze", [name], axes=[rank])


def _label_encoder(builder: ExpansionBuilder, node: NodeProto) -> None:
    """Write a comparison with all keys, which makes the position of a value, or 0 for the default."""
    x, add = node.input[0], builder.add
    keys, values, default = label_tables(attributes_of(node))
    found = add("Equal", [_as_columns(builder, x, builder.rank(x)), builder.constant(keys, x)])
    places = builder.constant(np.arange(1, len(keys) + 1, dtype=np.float32), x)
    place = builder.along("ReduceSum", add("Mul", [add("Cast", [found], to=TensorProto.FLOAT), places]), [-1])
    index = add("Cast", [place], to=TensorProto.INT64)
    rank = builder.rank(x)
    if builder.opset >= 13:
        index = add("Squeeze", [index, builder.constant(np.array([rank]), x)])
    else:
        index = add("Squeeze", [index], axes=[rank])
    add("Gather", [builder.constant(np.concatenate([default, values]), x), index], node.output[0], axis=0)


def _trees(add_sums: _Sums) -> dict[str, Callable[[ExpansionBuilder, NodeProto], None]]:
    """Return the expansions of ensembles, by what adds their sums and labels."""
    return {
        "ai.onnx.ml::TreeEnsemble": partial(_tree_regressor, add_sums),
        "ai.onnx.ml::TreeEnsembleClassifier": partial(_tree_classifier, add_sums),
        "ai.onnx.ml::TreeEnsembleRegressor": partial(_tree_regressor, add_sums),
    }


CLASSICAL_EXPANSIONS: dict[str, Callable[[ExpansionBuilder, NodeProto], None]] = {
    f"ai.onnx.ml::{kind}": expand
    for kind, expand in {
        "ArrayFeatureExtractor": _feature_extractor,
        "Binarizer": _binarizer,
        "FeatureVectorizer": _feature_vectorizer,
        "Imputer": _imputer,
        "LabelEncoder": _label_encoder,
        "LinearClassifier": _linear_classifier,
        "LinearRegressor": _linear_regressor,
        "Normalizer": _normalizer,
        "OneHotEncoder": _one_hot_encoder,
        "SVMClassifier": _svm_classifier,
        "SVMRegressor": _svm_regressor,
        "Scaler": _scaler,
    }.items()
} | _trees(_plain)

# Ensembles of trees by operators of ONNX alone, as of this version.
TREES_SINCE = 12
TRAVERSED_TREES = _trees(_traversed)
