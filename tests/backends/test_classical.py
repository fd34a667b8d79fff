"""Operators of ai.onnx.ml on llvm, against onnxruntime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import tvmtarget as tt

pytest.importorskip("tvm")

NAN = float("nan")
VECTORS = {"support_vectors": [1.0, 2.0, -1.0, 0.5, 0.0, 0.2], "kernel_params": [0.2, 0.1, 3.0]}
KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
TWO, THREE = {"classlabels_ints": [5, -7]}, {"classlabels_ints": [5, -7, 9]}
ONE_SCORE = {"coefficients": [0.5, -0.2], "intercepts": [0.1]}
TWO_SCORES = {"coefficients": [0.5, -0.2, 0.1, 0.3], "intercepts": [0.1, -0.2]}
SVM = {"coefficients": [0.5, -0.3, 0.2], "rho": [0.05], "n_supports": 3, **VECTORS}
PAIR = {"coefficients": [0.5, -0.3, 0.2], "rho": [-0.05], "vectors_per_class": [1, 2], **VECTORS, **TWO}
PAIRS = {"coefficients": [0.5, -0.3, 0.2, 0.1, 0.3, -0.9], "rho": [0.05, 0.1, -0.2], "vectors_per_class": [1, 1, 1]}
LABELS = {"keys_int64s": [3, -2], "values_floats": [1.5, 2.5], "default_float": -9.0}

# Operators with the operands that they read and their attributes.
CASES = [
    *(("LinearRegressor", "x", {**ONE_SCORE, "targets": 1}), ("LinearRegressor", "x", {"coefficients": [0.5, -0.2]})),
    *(("LinearRegressor", "x", {**TWO_SCORES, "targets": 2, "post_transform": one}) for one in ("LOGISTIC", "SOFTMAX")),
    *(("LinearClassifier", "x", {**ONE_SCORE, **TWO, "post_transform": one}) for one in ("NONE", "LOGISTIC")),
    *(("LinearClassifier", "x", {**TWO_SCORES, **TWO, "post_transform": one}) for one in ("NONE", "SOFTMAX_ZERO")),
    ("LinearClassifier", "whole", {**TWO_SCORES, **TWO}),
    *(("SVMRegressor", "x", {**SVM, "kernel_type": kernel}) for kernel in KERNELS),
    ("SVMRegressor", "x", {**SVM, "kernel_type": "RBF", "one_class": 1, "rho": [-0.1]}),
    ("SVMRegressor", "x", {"coefficients": [0.5, -0.3], "rho": [0.05], **VECTORS, "kernel_type": "LINEAR"}),
    *(("SVMClassifier", "x", {**PAIR, "kernel_type": kernel}) for kernel in KERNELS),
    ("SVMClassifier", "x", {**PAIR, "post_transform": "LOGISTIC", "kernel_type": "RBF"}),
    *(
        ("SVMClassifier", "x", {**PAIRS, **VECTORS, **THREE, "kernel_type": "RBF", "post_transform": one})
        for one in ("NONE", "SOFTMAX")
    ),
    *(("Normalizer", "x", {"norm": norm}) for norm in ("MAX", "L1", "L2")),
    *(("Normalizer", name, {"norm": "L2"}) for name in ("wide", "whole", "row")),
    *(("Scaler", name, {"offset": [0.5, 1.0], "scale": [2.0, 3.0]}) for name in ("x", "wide", "whole", "row")),
    ("Scaler", "x", {"offset": [0.5], "scale": [2.0]}),
    ("Binarizer", "x", {"threshold": 0.25}),
    ("Imputer", "missing", {"imputed_value_floats": [7.0, 8.0], "replaced_value_float": NAN}),
    ("Imputer", "x", {"imputed_value_floats": [7.0], "replaced_value_float": 0.0}),
    ("Imputer", "whole", {"imputed_value_int64s": [7, 8], "replaced_value_int64": 3}),
    ("ArrayFeatureExtractor", "x index", {}),
    ("ArrayFeatureExtractor", "row index", {}),
    ("ArrayFeatureExtractor", "cube index", {}),
    ("FeatureVectorizer", "x missing", {"inputdimensions": [2, 2]}),
    *(("OneHotEncoder", name, {"cats_int64s": [0, 3, -2]}) for name in ("whole", "x", "row")),
    ("LabelEncoder", "whole", LABELS),
    ("LabelEncoder", "whole", {"keys_int64s": [3, -2], "values_int64s": [4, 5]}),
    ("LabelEncoder", "missing", {"keys_floats": [0.0, 3.0], "values_int64s": [4, 5], "default_int64": 6}),
]
ROWS = [[-1.0, 2.0], [3.0, 0.5], [0.0, 0.0], [-2.0, -2.5]]
INPUTS = {
    "x": np.array(ROWS, "float32"),
    "wide": np.array(ROWS, "float64"),
    "whole": np.array([[3, 1], [-2, 0], [3, 3], [0, 0]], "int64"),
    "row": np.array([3.0, -2.0], "float32"),
    "missing": np.array([[NAN, 2.0], [3.0, NAN], [0.0, 0.0], [1.0, 1.0]], "float32"),
    "cube": np.arange(12, dtype="float32").reshape(2, 3, 2),
    "index": np.array([[1, 0, 1]], "int64"),
}


def model(cases, *, batch, inputs=INPUTS):
    """Return a model with the cases beside each other."""
    nodes, results = [], []
    for number, (kind, operands, attributes) in enumerate(cases):
        names = [f"{kind}{number}", *[f"{kind}{number}:scores"] * ("Classifier" in kind)]
        nodes.append(helper.make_node(kind, operands.split(), names, domain="ai.onnx.ml", **attributes))
        is_text = "classlabels_strings" in attributes or "values_strings" in attributes
        is_whole = len(names) == 2 or "values_int64s" in attributes or "imputed_value_int64s" in attributes
        first = onnx.TensorProto.STRING if is_text else onnx.TensorProto.INT64 if is_whole else onnx.TensorProto.FLOAT
        elems = (first, onnx.TensorProto.FLOAT)
        results += [helper.make_tensor_value_info(*pair, None) for pair in zip(names, elems, strict=False)]
    read = {name for _, operands, _ in cases for name in operands.split()}
    values = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(array.dtype),
            [batch or array.shape[0], 2] if array.ndim == 2 and name != "index" else array.shape,
        )
        for name, array in inputs.items()
        if name in read
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph(nodes, "classical", values, results)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def check(proto, inputs, target="llvm"):
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = {one.name: inputs[one.name] for one in session.get_inputs()}
    wanted = session.run(None, inputs)
    found = tt.build(tt.IRModule.from_onnx(proto), target).run(inputs)
    for result, array in zip(proto.graph.output, wanted, strict=True):
        assert found[result.name].dtype == array.dtype, result.name
        np.testing.assert_allclose(found[result.name], array, rtol=1e-5, atol=1e-6, err_msg=result.name)


@pytest.mark.parametrize("half", [0, 1])
def test_classical_operators_compute_what_onnxruntime_computes(half):
    check(model(CASES[half::2], batch="n"), INPUTS)


def test_generated_c_has_classical_operators():
    kinds = {kind: (kind, operands, attributes) for kind, operands, attributes in CASES}
    check(model(kinds.values(), batch=None), INPUTS, "c")


def test_classical_operators_take_no_rows():
    empty = {name: array[:0] if name in ("x", "missing", "whole") else array for name, array in INPUTS.items()}
    cases = [case for case in CASES if case[1] in ("x", "missing", "whole")]
    check(model(list({kind: (kind, *rest) for kind, *rest in cases}.values()), batch="n"), empty)


@pytest.mark.parametrize(
    ("kind", "operand", "attributes", "reason"),
    [
        ("LinearClassifier", "x", {**ONE_SCORE, **TWO, "post_transform": "SOFTMAX"}, "set it to NONE or LOGISTIC"),
        ("LinearClassifier", "x", {**TWO_SCORES, **THREE}, "one score for each label, and there are 2 for 3"),
        ("LinearClassifier", "x", {**TWO_SCORES, "classlabels_strings": ["a", "b"]}, "a leaf for texts, such as"),
        ("LinearRegressor", "x", {**ONE_SCORE, "targets": 2}, "do not fit 2 targets of 2 columns"),
        ("SVMClassifier", "x", {**PAIR, "prob_a": [1.0], "prob_b": [0.0]}, "leave out prob_a and prob_b"),
        ("SVMClassifier", "x", {"coefficients": [1.0] * 4, "rho": [0.0], **TWO}, "use LinearClassifier"),
        ("SVMRegressor", "x", {**SVM, "kernel_type": "POLY", "kernel_params": [1.0, 0.0, 2.5]}, "whole powers"),
        ("Normalizer", "cube", {"norm": "L1"}, "1 or 2 dimensions"),
        ("Scaler", "x", {"offset": [0.0], "scale": [1.0, 2.0]}, "one for each of 2 columns"),
        ("Binarizer", "wide", {}, "cast to float32"),
        ("Imputer", "x", {"imputed_value_floats": [1.0] * 3}, "one for each of 2 columns"),
        ("FeatureVectorizer", "x", {"inputdimensions": [3]}, "inputdimensions says 3 columns of 'x'"),
        ("OneHotEncoder", "whole", {"cats_int64s": [0], "zeros": 0}, "zeros=0"),
        ("LabelEncoder", "whole", {"keys_int64s": [1], "values_strings": ["a"]}, "string"),
        ("LabelEncoder", "whole", {"keys_int64s": [1, 1], "values_int64s": [2, 3]}, "a key is twice"),
        ("LabelEncoder", "x", {"keys_floats": [NAN], "values_int64s": [2]}, "a key is NaN"),
        ("LabelEncoder", "x", LABELS, "keys of ai.onnx.ml::LabelEncoder are int64"),
    ],
)
def test_forms_without_one_meaning_are_refused_with_the_fix(kind, operand, attributes, reason):
    with pytest.raises(tt.TvmTargetError, match=reason):
        tt.decompose(tt.IRModule.from_onnx(model([(kind, operand, attributes)], batch="n")), "llvm")


@pytest.mark.parametrize(
    ("kind", "operand", "attributes"),
    [
        ("LinearClassifier", "x", {**ONE_SCORE, **TWO}),
        ("LinearRegressor", "x", {**TWO_SCORES, "targets": 2, "post_transform": "SOFTMAX"}),
        ("Normalizer", "x", {"norm": "MAX"}),
        ("Normalizer", "wide", {"norm": "L2"}),
        ("OneHotEncoder", "x", {"cats_int64s": [0]}),
        ("SVMClassifier", "x", {**PAIR, "kernel_type": "RBF", "prob_a": [1.0], "prob_b": [0.0]}),
        ("Scaler", "whole", {"offset": [0.0], "scale": [0.5]}),
    ],
)
def test_numpy_refuses_what_it_computes_otherwise(kind, operand, attributes):
    with pytest.raises(tt.TvmTargetError, match=f"it (makes other|does not support).*{kind}"):
        tt.decompose(tt.IRModule.from_onnx(model([(kind, operand, attributes)], batch="n")), "numpy")


def test_numpy_computes_other_forms_as_onnxruntime_does():
    refused = {"LinearClassifier", "Normalizer", "OneHotEncoder", "Scaler"}
    cases = [one for one in CASES if one[1] == "x" and one[0] not in refused and "post_transform" not in one[2]]
    usual = [one for one in cases if one[0] != "LinearRegressor" or "intercepts" in one[2]]
    check(model(usual, batch="n"), INPUTS, "numpy")
