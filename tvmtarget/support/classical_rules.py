"""Operator support of Apache TVM for ai.onnx.ml, whose operators its backend writes as operators of ONNX.

Source: ONNX's definitions, and ONNX Runtime for what they leave open. What ONNX Runtime and ONNX's reference evaluator
compute differently, and neither as the definition says, is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from tvmtarget.ir.function import Constant
from tvmtarget.ir.types import Dim
from tvmtarget.support.op import Op, Reject, reject
from tvmtarget.support.strategy import Rule
from tvmtarget.support.tree_ensembles import POST_TRANSFORMS, Ensemble, classes_of, read_ensemble

__all__ = ["CLASSICAL", "check_tree", "ensemble_of", "label_tables"]

Array: TypeAlias = "np.ndarray[Any, Any]"

_FLOAT32 = frozenset({"float32"})
_NUMBERS = frozenset({"float32", "float64", "int32", "int64"})
_POST_TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")


def _attributes(op: Op) -> dict[str, Any]:
    return {name: value.data if isinstance(value, Constant) else value for name, value in op.call.attrs}


def _columns(op: Op) -> Dim:
    tensor = op.tensor(0)
    shape = None if tensor is None else tensor.shape
    return shape[-1] if shape else None


def _check_rows(op: Op) -> Reject | None:
    """Require a matrix with a known number of columns."""
    tensor = op.tensor(0)
    if tensor is None or tensor.shape is None:
        return None
    if len(tensor.shape) != 2:
        return reject(
            "RANK", f"it supports {op.kind} of matrices, and {op.operand(0)!r} is {tensor}", hint="reshape it"
        )
    if isinstance(tensor.shape[1], int):
        return None
    message = f"the number of columns of {op.operand(0)!r}, {tensor}, is not known"
    return reject("SHAPE_DYNAMIC", message, hint="give the second dimension of the input a number")


def _check_lengths(*names: str) -> Callable[[Op], Reject | None]:
    """Return a check that attributes have one element, or one for each column, and are of one length."""

    def check(op: Op) -> Reject | None:
        lengths = {len(value) if isinstance(value := op.attr(name), tuple) else 0 for name in names}
        if len(lengths) == 1 and lengths <= {1, _columns(op)}:
            return None
        written = " and ".join(names)
        return reject("ATTR", f"{written} of {op.kind} need one element, or one for each of {_columns(op)} columns")

    return check


def ensemble_of(op: Op) -> Ensemble:
    """Read the ensemble of trees of an operation.

    Args:
        op: the operation.

    Returns:
        Its tables.

    Raises:
        ValueError: the attributes describe no ensemble.
    """
    tensor = op.tensor(0)
    dtype = "float64" if tensor is not None and tensor.dtype == "float64" else "float32"
    return read_ensemble(op.call.kind, _attributes(op), dtype)


def check_tree(op: Op) -> Reject | None:
    """Require trees that engines agree on.

    Args:
        op: an ensemble of trees.

    Returns:
        None if they do, else why not.
    """
    kind, columns = op.call.kind, _columns(op)
    try:
        ensemble = ensemble_of(op)
    except ValueError as error:
        return reject("ATTR", f"it does not support this {kind}: {error}")
    if isinstance(columns, int) and int(ensemble.features.max(initial=0)) >= columns:
        message = f"{kind} compares column {int(ensemble.features.max())}, and {op.operand(0)!r} has {columns}"
        return reject("ATTR", message)
    is_classifier = kind == "TreeEnsembleClassifier"
    if (
        ensemble.sparse is not None
        and not ensemble.is_binary
        and (is_classifier or ensemble.aggregate in ("MIN", "MAX"))
    ):
        what = "class" if is_classifier else "target"
        message = f"some leaves of {kind} have no weight of {what} {ensemble.sparse}, so that it may have no score"
        return reject("ATTR", message, hint="write weights of 0")
    if is_classifier and not ensemble.is_binary and ensemble.targets < 2:
        return reject("ATTR", f"it supports {kind} of two or more classes, not {ensemble.targets}")
    return _check_post_transform(op, 2 if ensemble.is_binary else ensemble.targets, is_binary=ensemble.is_binary)


def _check_post_transform(op: Op, scores: int, *, is_binary: bool = False) -> Reject | None:
    """Require a post-transform that engines agree on.

    ONNX Runtime applies none to a single target, and SOFTMAX not to two classes with one score.
    """
    post_transform = op.attr("post_transform") or "NONE"
    if isinstance(post_transform, int):
        post_transform = POST_TRANSFORMS[post_transform]
    allowed = ("NONE",) if scores == 1 else ("NONE", "LOGISTIC") if is_binary else _POST_TRANSFORMS
    if post_transform in allowed:
        return None
    message = f"it does not support {op.kind} with post_transform={post_transform!r} of {scores} score"
    hint = f"set it to {' or '.join(allowed)}, and write the transform as operations behind"
    return reject("ATTR", message + "s" * (scores > 1), hint=hint)


def _check_regressor(op: Op) -> Reject | None:
    attributes = _attributes(op)
    targets = int(attributes.get("targets", 1))
    sizes = len(attributes.get("coefficients", ())), len(attributes.get("intercepts", ())) or targets
    if sizes != (targets * int(str(_columns(op))), targets):
        return reject("ATTR", f"coefficients and intercepts do not fit {targets} targets of {_columns(op)} columns")
    return _check_post_transform(op, targets)


def _check_linear_classifier(op: Op) -> Reject | None:
    attributes = _attributes(op)
    labels, scores = len(classes_of(attributes)), len(attributes.get("intercepts", ()))
    if len(attributes.get("coefficients", ())) != scores * int(str(_columns(op))) or not scores:
        return reject("ATTR", f"coefficients and intercepts do not fit {_columns(op)} columns")
    if labels != max(2, scores):
        return reject("ATTR", f"it supports one score for each label, and there are {scores} for {labels}")
    return _check_post_transform(op, labels, is_binary=scores == 1)


def _check_kernel(op: Op, vectors: int) -> Reject | None:
    attributes = _attributes(op)
    kernel, parameters = attributes.get("kernel_type", "LINEAR"), attributes.get("kernel_params", ())
    if kernel not in ("LINEAR", "POLY", "RBF", "SIGMOID") or (kernel != "LINEAR" and len(parameters) != 3):
        return reject("ATTR", f"it does not support {op.kind} with {kernel!r} and parameters {parameters}")
    if kernel == "POLY" and parameters[2] not in range(1, 17):
        return reject("ATTR", f"it raises to whole powers from 1 to 16, not {parameters[2]}")
    if len(attributes.get("support_vectors", ())) != vectors * int(str(_columns(op))):
        return reject("ATTR", f"support_vectors are not {vectors} of {_columns(op)} columns")
    return None


def _check_svm_regressor(op: Op) -> Reject | None:
    attributes = _attributes(op)
    count = int(attributes.get("n_supports", 0))
    if len(attributes.get("coefficients", ())) != (count or _columns(op)) or not attributes.get("rho"):
        return reject("ATTR", "coefficients are not one for each support vector, or rho is missing")
    return (_check_kernel(op, count) if count else None) or _check_post_transform(op, 1)


def _check_svm_classifier(op: Op) -> Reject | None:
    attributes = _attributes(op)
    if attributes.get("prob_a"):
        return reject("ATTR", f"it computes no probabilities of {op.kind}", hint="leave out prob_a and prob_b")
    sizes = attributes.get("vectors_per_class", ())
    labels, count = len(classes_of(attributes)), sum(sizes)
    if not sizes or count < 1 or min(sizes) < 0:
        return reject("ATTR", f"it supports {op.kind} of support vectors only", hint="use LinearClassifier")
    pairs = labels * (labels - 1) // 2
    if len(sizes) != labels or labels < 2 or len(attributes.get("coefficients", ())) != (labels - 1) * count:
        return reject("ATTR", "coefficients or vectors_per_class do not fit the labels")
    if len(attributes.get("rho", ())) < pairs:
        return reject("ATTR", f"rho has no element for each of {pairs} pairs of classes")
    return _check_kernel(op, count) or _check_post_transform(op, max(2, pairs), is_binary=labels == 2)


def _check_normalizer(op: Op) -> Reject | None:
    tensor = op.tensor(0)
    rank = 0 if tensor is None or tensor.shape is None else len(tensor.shape)
    if rank in (1, 2):
        return None
    return reject("RANK", f"it supports {op.kind} of 1 or 2 dimensions, not {rank}", hint="reshape it")


def _check_imputer(op: Op) -> Reject | None:
    tensor = op.tensor(0)
    kind = "int64" if tensor is not None and tensor.dtype == "int64" else "float"
    return _check_lengths(f"imputed_value_{kind}s")(op)


def _check_extractor(op: Op) -> Reject | None:
    indices, columns = op.constant(1), _columns(op)
    if indices is None or not isinstance(columns, int) or ((indices >= 0) & (indices < columns)).all():
        return None
    return reject("RULE", f"{op.operand(1)!r} has indices out of {columns} columns")


def _check_vectorizer(op: Op) -> Reject | None:
    for index, name in enumerate(op.call.inputs):
        tensor = op.tensor(index)
        shape = None if tensor is None else tensor.shape
        wanted = op.attr("inputdimensions")
        if tensor is None or tensor.dtype not in _NUMBERS:
            return reject("DTYPE", f"it does not support {op.kind} on {tensor}", hint="cast to float32")
        if shape is None or len(shape) not in (1, 2) or not isinstance(wanted, tuple) or len(wanted) <= index:
            return reject("RANK", f"it supports {op.kind} of vectors and matrices, and {name!r} is {tensor}")
        if shape[-1] != wanted[index]:
            return reject("ATTR", f"inputdimensions says {wanted[index]!r} columns of {name!r}, which is {tensor}")
    return None


def label_tables(attributes: Mapping[str, Any]) -> tuple[Array, Array, Array]:
    """Return the tables of a LabelEncoder from numbers to numbers.

    Args:
        attributes: its attributes.

    Returns:
        Keys, their values, and the value of all others as a vector.

    Raises:
        ValueError: the attributes are not a table of numbers.
    """
    found: dict[str, Array] = {}
    for side in ("keys", "values"):
        kinds = {f"{side}_floats": np.float32, f"{side}_int64s": np.int64, f"{side}_tensor": None}
        given = [(attributes[name], dtype) for name, dtype in kinds.items() if np.size(attributes.get(name, ()))]
        if len(given) != 1:
            raise ValueError(f"it has no {side} that are numbers")
        found[side] = np.asarray(given[0][0], given[0][1]).reshape(-1)
    keys, values = found["keys"], found["values"]
    if len(keys) != len(values) or len(np.unique(keys)) < len(keys):
        raise ValueError("a key is twice, or has no value")
    if keys.dtype.kind not in "iuf" or values.dtype.kind not in "iuf":
        raise ValueError("its keys or values are no numbers")
    if np.isnan(keys).any():
        raise ValueError("a key is NaN, which equals itself since version 4 of the operators only")
    if np.size(attributes.get("values_tensor", ())):
        default = attributes.get("default_tensor")
        default = np.zeros(1, values.dtype) if default is None else np.asarray(default, values.dtype).reshape(-1)
    elif values.dtype == np.float32:
        default = np.array([attributes.get("default_float", -0.0)], values.dtype)
    else:
        default = np.array([attributes.get("default_int64", -1)], values.dtype)
    return keys, values, default


def _check_labels(op: Op) -> Reject | None:
    tensor = op.tensor(0)
    try:
        keys, _, _ = label_tables(_attributes(op))
    except ValueError as error:
        return reject("ATTR", f"it does not support this {op.kind}: {error}")
    if tensor is not None and tensor.dtype != str(keys.dtype):
        return reject("DTYPE", f"keys of {op.kind} are {keys.dtype}, and {op.operand(0)!r} is {tensor}")
    return None


_TREE = Rule(dtypes=_NUMBERS, checks=(_check_rows, check_tree))

CLASSICAL: dict[str, Rule] = {
    f"ai.onnx.ml::{kind}": rule
    for kind, rule in {
        "ArrayFeatureExtractor": Rule(dtypes=_NUMBERS, checks=(_check_extractor,)),
        "Binarizer": Rule(dtypes=_FLOAT32),
        "FeatureVectorizer": Rule(checks=(_check_vectorizer,)),
        "Imputer": Rule(dtypes=frozenset({"float32", "int64"}), checks=(_check_rows, _check_imputer)),
        "LabelEncoder": Rule(dtypes=_NUMBERS, checks=(_check_labels,)),
        "LinearClassifier": Rule(dtypes=_NUMBERS, checks=(_check_rows, _check_linear_classifier)),
        "LinearRegressor": Rule(dtypes=_NUMBERS, checks=(_check_rows, _check_regressor)),
        "Normalizer": Rule(dtypes=_NUMBERS, checks=(_check_normalizer,)),
        "OneHotEncoder": Rule(dtypes=_NUMBERS, attrs={"zeros": (1,), "cats_strings": ()}),
        "SVMClassifier": Rule(dtypes=_NUMBERS, checks=(_check_rows, _check_svm_classifier)),
        "SVMRegressor": Rule(dtypes=_NUMBERS, checks=(_check_rows, _check_svm_regressor)),
        "Scaler": Rule(dtypes=_NUMBERS, checks=(_check_lengths("offset", "scale"),)),
        "TreeEnsemble": Rule(dtypes=frozenset({"float32", "float64"}), checks=(_check_rows, check_tree)),
        "TreeEnsembleClassifier": _TREE,
        "TreeEnsembleRegressor": _TREE,
    }.items()
}
