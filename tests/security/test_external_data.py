"""Tensors whose data is in another file: only beside a model that was named by its path, never where we run."""

import hashlib
import os
import zipfile

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvmtarget as tt
from tvmtarget.errors import ArtifactError, ModelError
from tvmtarget.ir.function import Constant, Opaque
from tvmtarget.ir.types import TensorType


def outside(name="w", location="secret.bin"):
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def value(name):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [4])


def model(kind):
    """Return a model that adds a tensor of another file, which stands at some place of it."""
    add = helper.make_node("Add", ["x", "w"], ["y"], name="add")
    constant = helper.make_node("Constant", [], ["w"], value=outside())
    inputs, initializer, functions = [value("x")], [], []
    if kind == "initializer":
        nodes, initializer = [add], [outside()]
    elif kind == "attribute":
        nodes = [constant, add]
    elif kind == "nested":
        bodies = [
            helper.make_graph([helper.make_node("Identity", ["w"], ["r"])], name, [], [value("r")], [outside()])
            for name in ("then", "else")
        ]
        condition = helper.make_tensor("c", TensorProto.BOOL, [], [True])
        branch = helper.make_node("If", ["c"], ["i"], then_branch=bodies[0], else_branch=bodies[1])
        nodes, initializer = [branch, helper.make_node("Add", ["x", "i"], ["y"])], [condition]
    elif kind == "function":
        body = [constant, helper.make_node("Add", ["x", "w"], ["y"])]
        functions = [helper.make_function("own", "f", ["x"], ["y"], body, [helper.make_opsetid("", 17)])]
        nodes = [helper.make_node("f", ["x"], ["y"], domain="own")]
    else:
        sparse = onnx.SparseTensorProto(dims=[4])
        sparse.values.CopyFrom(outside())
        sparse.indices.CopyFrom(helper.make_tensor("i", TensorProto.INT64, [4], [0, 1, 2, 3]))
        nodes = [helper.make_node("Constant", [], ["w"], sparse_value=sparse), add]
    graph = helper.make_graph(nodes, "g", inputs, [value("y")], initializer)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)


@pytest.fixture
def secret(tmp_path, monkeypatch):
    """Work in a folder with a file that nobody may read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.bin").write_bytes(np.arange(4, dtype="float32").tobytes())
    return tmp_path


@pytest.mark.parametrize("kind", ["initializer", "attribute", "nested", "function", "sparse"])
@pytest.mark.parametrize("given", [lambda one: one, lambda one: one.SerializeToString()], ids=["model", "bytes"])
def test_models_without_a_folder_have_no_external_data(secret, kind, given):
    with pytest.raises(ModelError, match=r"is outside of the model, which has no folder"):
        tt.IRModule.from_onnx(given(model(kind)))


@pytest.mark.parametrize("kind", ["initializer", "attribute", "nested", "function"])
def test_external_data_at_any_place_of_a_model_file_is_read_from_its_folder(secret, monkeypatch, kind):
    (secret / "m.onnx").write_bytes(model(kind).SerializeToString())
    (secret / "else").mkdir()
    monkeypatch.chdir(secret / "else")
    exe = tt.build(tt.IRModule.from_onnx(secret / "m.onnx"), "numpy")
    np.testing.assert_array_equal(exe(np.zeros(4, "float32")), [0, 1, 2, 3])


@pytest.mark.parametrize("kind", ["initializer", "attribute", "nested", "function"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.mkdir(), lambda path: path.symlink_to("/dev/zero")])
def test_external_data_is_a_regular_file_of_the_folder(tmp_path, kind, make):
    (tmp_path / "m.onnx").write_bytes(model(kind).SerializeToString())
    make(tmp_path / "secret.bin")
    with pytest.raises(ModelError, match=r"is no regular file|outside the model's folder"):
        tt.IRModule.from_onnx(tmp_path / "m.onnx")


def rewritten(path, name, data):
    """Replace a member of a saved program, with its digest in the manifest."""
    import json

    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    manifest = json.loads(members["manifest.json"])
    members[name] = data
    manifest["files"][name] = hashlib.sha256(data).hexdigest()
    members["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(member, content)


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("kind", ["initializer", "attribute", "nested", "function", "sparse"])
@pytest.mark.parametrize("target", ["numpy", "onnxruntime", "llvm"])
def test_leaves_of_a_saved_program_have_no_external_data(secret, target, kind, trust):
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="r")], "g", [value("x")], [value("y")])
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    exe = tt.build(tt.IRModule.from_onnx(whole), target)
    exe.save("a.tta")
    member = f"leaves/{next(iter(exe.backends))}/source.onnx"
    rewritten("a.tta", member, model(kind).SerializeToString())
    with pytest.raises(ArtifactError, match=r"tensor 'w'.*is in another file") as caught:
        tt.load("a.tta", trust=trust)
    assert (caught.value.path, caught.value.member) == ("a.tta", member)


def test_attributes_of_a_module_have_no_external_data(secret):
    attribute = helper.make_attribute("sparse_value", onnx.SparseTensorProto(dims=[4]))
    attribute.sparse_tensor.values.CopyFrom(outside())
    call = {"op": "onnx.Constant", "outputs": [{"name": "y", "type": "float32[4]"}], "source": "c"}
    call["attrs"] = [["sparse_value", {"opaque": "SPARSE_TENSOR", "bytes": attribute.SerializeToString().hex()}]]
    main = {"name": "main", "results": ["y"], "body": [call], "opsets": [["", 17]]}
    module = tt.IRModule.from_json({"schema_version": 1, "functions": [main]})
    assert isinstance(module.main.body[0].attr("sparse_value"), Opaque)
    with pytest.raises(ModelError, match=r"attribute 'sparse_value' holds tensor 'w', whose data is in another file"):
        module.to_onnx()


@pytest.mark.parametrize("name", ["onnx.model", "onnx.graph"])
def test_notes_of_a_module_add_metadata_only(secret, name):
    """What a stranger puts there is merged into models that are compiled."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"], name="add")],
        "g",
        [value("x")],
        [value("y")],
        [helper.make_tensor("w", TensorProto.FLOAT, [4], [1, 2, 3, 4])],
    )
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    main = tt.IRModule.from_onnx(whole).main
    notes = onnx.GraphProto(initializer=[outside()], doc_string="said")
    notes.node.add(name="add", op_type="Sub", domain="evil").input.append("x")
    notes.sparse_initializer.add().values.CopyFrom(outside("z"))
    message = notes if name == "onnx.graph" else onnx.ModelProto(graph=notes, domain="said")
    data = np.frombuffer(message.SerializeToString(), np.uint8)
    noted = Constant(name, TensorType("uint8", data.shape), data)
    module = tt.IRModule((main.replace(attrs=((name, noted),)),))
    if name == "onnx.model":
        with pytest.raises(ModelError, match="is in another file"):
            module.to_onnx()
        return
    written = module.to_onnx()
    assert written.graph.doc_string == "said"
    assert [node.op_type for node in written.graph.node] == ["Add"]
    assert not written.graph.sparse_initializer
    assert not written.graph.initializer[0].external_data
    np.testing.assert_array_equal(tt.build(module, "onnxruntime")(np.zeros(4, "float32")), [1, 2, 3, 4])
