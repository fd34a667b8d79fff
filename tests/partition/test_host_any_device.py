"""REQUIREMENTS N1, API: operator functions are built for any device of a kind, not for a site."""

import numpy as np
import pytest
from models import DIGITS, small
from onnx import helper

import tvmtarget as tt
from tvmtarget.backends.protocol import backend_named
from tvmtarget.backends.sharing import code_key, device_index, function_key
from tvmtarget.building.leaf_function import LeafFunction

RELU = small(helper.make_node("Relu", ["x"], ["y"], name="relu"))
X = {"x": np.linspace(-1, 1, 6, dtype="float32").reshape(2, 3)}

# Two operations that are identical, and a copy between them so that each is a function of its own.
TWO = small(
    helper.make_node("Relu", ["x"], ["a"], name="one"),
    helper.make_node("Neg", ["a"], ["b"], name="between"),
    helper.make_node("Relu", ["b"], ["y"], name="two"),
)


def leaves_of(executable: tt.Executable) -> dict[str, LeafFunction]:
    return executable._leaves


@pytest.mark.parametrize("kind", ["onnxruntime", "llvm"])
def test_two_devices_of_a_kind_share_one_compiled_leaf(kind):
    pytest.importorskip({"onnxruntime": "onnxruntime", "llvm": "tvm"}[kind])
    target = f"[gpu={kind}(count=2),cpu=numpy](host=@cpu)"
    where = {"one": "@gpu.0", "two": "@gpu.1", "between": "@cpu"}
    built = tt.build(tt.IRModule.from_onnx(TWO), target, where=where)
    by_site = {leaf.request.site: leaf for leaf in leaves_of(built).values()}
    assert sorted(by_site) == ["cpu", "gpu.0", "gpu.1"]
    assert by_site["gpu.0"].compiled is by_site["gpu.1"].compiled
    assert by_site["gpu.0"].request.target == by_site["gpu.1"].request.target
    np.testing.assert_array_equal(built.run(X)["y"], np.maximum(-np.maximum(X["x"], 0), 0))


def test_an_operator_function_is_built_by_the_same_call_as_a_whole_program():
    """API: one argument type for building at the level of graphs and of operators."""
    operator = tt.IRModule.from_onnx(RELU)
    alone, placed = (
        tt.build(operator, "onnxruntime"),
        tt.build(operator, "[a=numpy,b=onnxruntime(count=2)]", where={"relu": "@b.1"}),
    )
    for built in (alone, placed):
        np.testing.assert_array_equal(built.run(X)["y"], np.maximum(X["x"], 0))
    (one,), (other,) = (tuple(leaves_of(built).values()) for built in (alone, placed))
    assert one.request.target.codegen_key == other.request.target.codegen_key
    assert (one.request.target.name, other.request.target.name, other.request.target.count) == (None, None, 1)


def test_the_key_of_code_holds_neither_names_nor_sites():
    backend = backend_named("onnxruntime")
    target = "[gpu=onnxruntime(count=2),npu=onnxruntime,cpu=numpy](host=@cpu)"
    keys = set()
    for site, model in (("gpu.0", RELU), ("gpu.1", RELU), ("npu", tt.IRModule.from_onnx(RELU))):
        module = model if isinstance(model, tt.IRModule) else tt.IRModule.from_onnx(model)
        plan = tt.decompose(module, target, where={"relu": f"@{site}"})
        (subgraph,) = plan.subgraphs
        function = function_key(plan.module[subgraph.function], plan.module.by_name)
        keys.add(code_key(function, plan.topology[site].target.replace(name=None, count=1), backend))
    (key,) = keys
    assert not any(word in key for word in ("gpu", "npu", "main", "relu"))
    assert code_key(function_key(tt.IRModule.from_onnx(RELU).main, {}), tt.Target("llvm"), sharing_nothing()) is None


def sharing_nothing():
    return pytest.importorskip("tvmtarget_sample.backend", reason="pip install ./tests/plugin").BACKEND


def test_functions_of_other_structure_or_other_targets_share_nothing():
    module = tt.IRModule.from_onnx(DIGITS)
    built = tt.build(module, "[a=numpy,b=onnxruntime]", where={"op:Relu": "@b"})
    relus = [leaf for leaf in leaves_of(built).values() if leaf.request.site == "b"]
    assert len({id(leaf.compiled) for leaf in relus}) == len(
        {leaf.request.model.graph.input[0].type.SerializeToString() for leaf in relus}
    )
    both = tt.build(
        tt.IRModule.from_onnx(TWO), "[a=onnxruntime,b=numpy]", where={"one": "@a", "between": "@b", "two": "@b"}
    )
    assert len({id(leaf.compiled) for leaf in leaves_of(both).values()}) == len(leaves_of(both))


def test_the_executor_passes_the_number_of_the_device(monkeypatch):
    sample = pytest.importorskip("tvmtarget_sample.backend", reason="pip install ./tests/plugin")
    devices = []

    def run_on(self, device, inputs):
        devices.append((device, id(self)))
        return self.run(inputs)

    monkeypatch.setattr(sample._Logged, "run_on", run_on)
    monkeypatch.setattr(type(sample.BACKEND), "supports", frozenset({"copy", "shared-code"}))
    where = {"one": "@npu.0", "two": "@npu.1", "between": "@cpu"}
    built = tt.build(tt.IRModule.from_onnx(TWO), "[npu=probe(count=2),cpu=numpy](host=@cpu)", where=where)
    built.run(X)
    assert [device for device, _ in devices] == [0, 1]
    assert len({compiled for _, compiled in devices}) == 1


@pytest.mark.parametrize(
    ("site", "index"), [("", 0), ("gpu", 0), ("gpu.0", 0), ("gpu.11", 11), ("node.3/gpu", 0), ("node.3/gpu.1", 1)]
)
def test_the_number_of_a_device_is_its_own(site, index):
    assert device_index(site) == index


def test_tir_for_any_gpu_names_no_device():
    """TVM's compiled functions take the device of their tensors; two sites of a kind get the same code for CUDA."""
    tvm = pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")
    import tir_modules

    from tvmtarget.target.topology import Topology

    topology = Topology(tt.Target.parse("[gpu=cuda(arch=sm_80,count=2),cpu=llvm](host=@cpu)").resolve())
    sources = []
    for path in ("gpu.0", "gpu.1"):
        alone = topology[path].target.replace(name=None, count=1, host=tt.Target("llvm"))
        assert alone.codegen_key == tt.Target.parse("cuda(arch=sm_80,host=llvm)").codegen_key
        bound = tt.bind_targets(tir_modules.Scale, alone)
        built = tvm.tirx.build(bound, target=tvm.target.Target({"kind": "cuda", "arch": "sm_80"}, host="llvm"))
        sources.append(built.imports[0].inspect_source())
    assert sources[0] == sources[1]
    assert "main_kernel" in sources[0]
