"""`run` on models whose outputs are texts, sequences and maps."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tvmtarget.cli.main import main

pytest.importorskip("onnxruntime", reason="pip install 'tvmtarget[onnxruntime]'")


@pytest.fixture
def classifier(tmp_path):
    """A classifier with labels of text and a map of scores for each row, and its inputs."""
    linear = helper.make_node(
        "LinearClassifier",
        ["x"],
        ["label", "scores"],
        domain="ai.onnx.ml",
        coefficients=[1.0, -1.0, -1.0, 1.0],
        intercepts=[0.0, 0.0],
        classlabels_strings=["left", "right"],
    )
    maps = helper.make_node("ZipMap", ["scores"], ["maps"], domain="ai.onnx.ml", classlabels_strings=["left", "right"])
    by_label = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    graph = helper.make_graph(
        [linear, maps],
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 2])],
        [
            helper.make_tensor_value_info("label", TensorProto.STRING, [3]),
            helper.make_value_info("maps", helper.make_sequence_type_proto(by_label)),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    path, inputs = tmp_path / "classifier.onnx", tmp_path / "x.npz"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    np.savez(inputs, x=np.array([[1, 2], [3, 1], [0, 5]], "float32"))
    return [str(path), "-i", str(inputs)]


@pytest.mark.parametrize("target", ["onnxruntime", "numpy", "[a=onnxruntime,b=numpy](host=@b)"])
def test_texts_and_maps_are_compared_and_described(classifier, target, capsys):
    assert main(["run", *classifier, "-t", target, "--check"]) == 0
    out = capsys.readouterr().out
    assert "output label: " in out
    assert "output maps: list of 3" in out
    assert main(["run", *classifier, "-t", target, "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["check"]["agrees"] is True


def test_maps_are_not_written_but_reported(classifier, tmp_path, capsys):
    output = tmp_path / "out.npz"
    assert main(["run", *classifier, "-t", "onnxruntime", "--check", "-o", str(output)]) == 1
    printed = capsys.readouterr()
    assert "largest difference from the unpartitioned model" in printed.out
    assert "output 'maps' is not a tensor, and an .npz file holds only these; omit --output" in printed.err
    assert not output.exists()


def test_texts_are_written_without_pickles(classifier, tmp_path, capsys):
    model = onnx.load(classifier[0])
    del model.graph.node[1], model.graph.output[1]
    onnx.save(model, classifier[0])
    output = tmp_path / "out.npz"
    assert main(["run", *classifier, "-t", "onnxruntime", "--check", "-o", str(output)]) == 0
    with np.load(output, allow_pickle=False) as found:
        assert found["label"].tolist() == ["right", "left", "right"]


def test_a_loss_of_digits_that_the_reference_shares_is_seen_in_float64(tmp_path, capsys):
    number = TensorProto.FLOAT
    constant = helper.make_node("Constant", [], ["big"], value_floats=[30000.0])
    narrow = helper.make_node("Cast", ["x"], ["n"], to=number)
    nodes = [
        constant,
        narrow,
        helper.make_node("Add", ["n", "big"], ["a"]),
        helper.make_node("Sub", ["a", "big"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]), helper.make_tensor_value_info("y", number, [2])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    path, inputs = str(tmp_path / "m.onnx"), str(tmp_path / "x.npz")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    np.savez(inputs, x=np.float32([0.001, 3e-4]))
    job = ["run", path, "-i", inputs, "-t", "numpy", "--check"]
    assert main(job) == 0
    assert main([*job, "--float64"]) == 1
    assert "run by numpy in float64: 0.00" in capsys.readouterr().out


def test_float64_is_of_a_check(classifier, capsys):
    assert main(["run", *classifier, "-t", "numpy", "--float64"]) == 2
    assert capsys.readouterr().err == "error: --float64 needs --check\n"
    assert main(["run", *classifier, "-t", "numpy", "--check", "--float64"]) == 0


def test_outputs_of_half_precision_are_compared_as_halves(tmp_path):
    half = TensorProto.FLOAT16
    nodes = [helper.make_node("Cast", ["x"], ["h0"], to=half)]
    for layer in range(8):  # numpy rounds between the operations that onnxruntime computes in float32
        nodes.append(helper.make_node("MatMul", [f"h{layer}", "w"], [f"m{layer}"]))
        nodes.append(helper.make_node("Tanh", [f"m{layer}"], [f"h{layer + 1}"]))
    nodes.append(helper.make_node("Cast", ["h8"], ["y"], to=TensorProto.FLOAT))
    random = np.random.default_rng(0)
    weights = onnx.numpy_helper.from_array((random.standard_normal((64, 64)) / 4).astype("float16"), "w")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 64]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "halves", ends[:1], ends[1:], [weights])
    path, inputs = str(tmp_path / "halves.onnx"), str(tmp_path / "x.npz")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    np.savez(inputs, x=random.standard_normal((4, 64), dtype="float32"))
    assert main(["run", path, "-i", inputs, "-t", "numpy", "--check", "--float64"]) == 0
    assert main(["run", path, "-i", inputs, "-t", "numpy", "--check", "--rtol", "1e-3", "--atol", "1e-4"]) == 1
    file = str(tmp_path / "halves.tta")
    assert main(["compile", path, "-t", "onnxruntime", "-o", file, "--self-test-input", inputs]) == 0
    assert main(["run", file, "--self-test"]) == 0
    assert main(["run", file, "--self-test", "--rtol", "1e-3", "--atol", "1e-4"]) == 1


def test_a_model_without_inputs_runs_without_a_file_of_them(tmp_path, capsys):
    nodes = [helper.make_node("Constant", [], ["y"], value_floats=[1.0, 2.0])]
    ends = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])]
    path, file = str(tmp_path / "constant.onnx"), str(tmp_path / "constant.tta")
    graph = helper.make_graph(nodes, "g", [], ends)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    assert main(["run", path, "-t", "numpy", "--check"]) == 0
    assert main(["compile", path, "-t", "numpy", "-o", file]) == 0
    assert main(["run", file]) == 0
    assert "output y: float32[2]" in capsys.readouterr().out


def test_inputs_that_are_not_given_are_named(classifier, capsys):
    assert main(["run", classifier[0], "-t", "numpy"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: pass inputs by --input")
    assert error.count("must have values") == 1
