"""The cases of TVM's own tests of configurations and virtual devices (v0.18), written for this library.

Those that end otherwise here are listed in docs/tvm.md, under "Differences on purpose".
"""

import pytest

from tvmtarget import CompilationConfig, Target, VirtualDevice
from tvmtarget.errors import TargetError, UnknownNameError
from tvmtarget.target import kinds
from tvmtarget.target.kinds import Kind

parse = Target.parse

CUDA, CPU, HOST = "nvidia/tesla-p40", "llvm(mtriple=aarch64-linux-gnu,mcpu=cortex-a72)", "llvm"


@pytest.fixture
def external(monkeypatch):
    """Two external code generators for CUDA, as TVM's tests register them."""
    known = {name: kinds.kind_of(name) for name in kinds.kind_names()}
    known |= {name: Kind(name=name, device="cuda", is_external=True) for name in ("ext1", "ext2")}
    table = kinds._table
    monkeypatch.setattr(kinds, "_table", lambda role: known if role == "target" else table(role))


def config(*targets, **options):
    return CompilationConfig(targets=targets, **options)


def with_host(text, host=HOST):
    return parse(text).replace(host=parse(host))


def test_rules_a_and_f():
    found = config(with_host(CUDA), with_host(CPU))
    assert found.host_target == parse(HOST)
    assert found.host_virtual_device == VirtualDevice(device_type="cpu", virtual_device_id=0, target=HOST)
    assert found.primitive_targets == (with_host(CUDA), with_host(CPU))
    assert found.default_primitive_virtual_device == VirtualDevice(
        device_type="cpu", virtual_device_id=0, target=with_host(CPU)
    )
    assert found.optional_homogeneous_target is None


def test_a_second_host_is_an_error_where_tvm_replaces_it():
    with pytest.raises(TargetError, match="target 'llvm' has the host 'ext_dev', and the configuration 'llvm'"):
        config(with_host(CUDA), with_host(CPU, "ext_dev"))


def test_rules_a_and_e():
    found = config(with_host(CUDA))
    assert (found.host_target, found.primitive_targets) == (parse(HOST), (with_host(CUDA),))
    assert found.default_primitive_virtual_device.target == found.optional_homogeneous_target == with_host(CUDA)
    assert found.default_primitive_virtual_device.device_type == "cuda"


@pytest.mark.parametrize("fallback", ["cuda", 2])
def test_rules_b_and_d(fallback):
    found = config(CUDA, CPU, fallback_device=fallback)
    assert (found.host_target, found.host_virtual_device.device_type) == (parse(CPU), "cpu")
    assert found.primitive_targets == (with_host(CUDA, CPU), with_host(CPU, CPU))
    assert found.default_primitive_virtual_device.target == with_host(CUDA, CPU)


def test_rules_c_and_e():
    found = config(CUDA)
    assert found.host_target == parse("llvm")
    assert found.primitive_targets == (with_host(CUDA),)


def test_external_code_generators_come_before_or_after_the_target_that_they_support(external):
    behind = config(CUDA, "ext1", "ext2", target_host=HOST)
    assert [one.kind for one in behind.primitive_targets] == ["cuda", "ext1", "ext2"]
    before = config("ext1", "ext2", CUDA, target_host=HOST)
    assert [one.kind for one in before.primitive_targets] == ["ext1", "ext2", "cuda"]
    assert before.find_primitive_target_for_device("cuda").kind == "cuda"
    assert before.default_primitive_virtual_device.target.kind == "cuda"
    assert CompilationConfig.from_target(before.to_target()) == before
    with pytest.raises(TargetError, match=r"'cuda' is between external code generators \(ext1, cuda, ext2\)"):
        config("ext1", CUDA, "ext2", target_host=HOST)


def test_one_external_code_generator_is_enough_and_two_need_a_target(external):
    assert config("ext1", target_host=HOST).find_primitive_target_for_kind("ext1").kind == "ext1"
    with pytest.raises(TargetError, match="targets ext1, ext2 are all for device type 'cuda'; one must not be ext"):
        config("ext1", "ext2", target_host=HOST)


@pytest.mark.parametrize(
    ("targets", "options", "problem"),
    [
        ((CUDA, CUDA), {}, "two targets are of kind 'cuda'"),
        ((), {}, "needs at least one target"),
        ((CUDA,), {"fallback_device": "metal"}, "no target is of device type 'metal'; there are: cuda; work"),
        ((CUDA, "ext_dev"), {}, "no target is of device type 'cpu'; there are: cuda, ext_dev; work"),
        ((CUDA,), {"fallback_device": 0}, "unknown device type 0"),
        ((CUDA,), {"fallback_device": -1}, "unknown device type -1"),
        ((CUDA,), {"fallback_device": ""}, "unknown device type ''"),
        ((CUDA,), {"fallback_device": "cudda"}, "unknown device type 'cudda'; did you mean 'cuda'"),
        ((CUDA,), {"target_host": "cuda"}, "host 'cuda' is a kind that drives no other device"),
        (("cuda(host=metal)",), {}, "host 'metal' is a kind that drives no other device"),
        (("cuda(host=@cpu)", "llvm"), {}, "host '@cpu' of target 'cuda' names a node of a tree"),
        ((CUDA,), {"target_host": "llvm(host=c)"}, "host 'llvm' has the host 'c', but a host drives itself"),
        (("[cuda,llvm]",), {}, "is one device, not 'composite'; view it with from_target"),
        (("cuda(count=2)",), {}, "is one device, and 'cuda' has count 2"),
        (("llvm(executor=aot)",), {"executor": "vm"}, "'llvm' has the executor 'aot', and the configuration 'vm'"),
        (("cuda(runtime=crt)", "llvm(runtime=cpp)"), {}, "'llvm' has the runtime 'cpp', and target 'cuda' 'crt'"),
        (("llvm",), {"executor": "aot", "runtime": "python"}, "'aot' does not run on runtime 'python'"),
        (("zz",), {}, "unknown kind 'zz'"),
    ],
)  # fmt: skip
def test_wrong_configurations_are_rejected_when_they_are_made(targets, options, problem):
    with pytest.raises((TargetError, UnknownNameError), match=problem):
        config(*targets, **options)


M0 = [
    config(with_host("cuda(arch=sm_80)"), with_host(CPU)),
    config(with_host("cuda(arch=sm_80)"), with_host(CPU), executor="aot", runtime={"kind": "crt", "system-lib": True}),
    config("cuda", CPU),
    config("cuda", "metal", fallback_device="metal"),
    config("llvm(executor=aot)", "cuda"),
    config(CPU, target_host="c(mcpu=cortex-m4)"),
    config("hexagon", "cuda", fallback_device="cuda"),
    config("cuda(name=gpu)", "llvm(num-cores=4)", target_host="llvm(num-cores=4)"),
    config("cuda(host=llvm(num-cores=2))", "onnxruntime"),
    config("onnxruntime", "llvm"),
    config("c", "cuda", target_host="llvm(num-cores=2)"),
    config('cuda(memory=[{"name":"hbm","bytes":85899345920}])', "llvm"),
    config("llvm(target_device_type=2)", "c"),
]


@pytest.mark.parametrize("one", M0, ids=str)
def test_every_configuration_converts_to_a_tree_and_back(one):
    """REQUIREMENTS M0. Making one of its own targets changes nothing, as in TVM."""
    back = CompilationConfig.from_target(one.to_target(), fallback_device=one.fallback_device)
    assert back == one
    assert [target.kind for target in back.targets] == [target.kind for target in one.targets]
    again = CompilationConfig(
        one.host_target, one.primitive_targets, one.executor, one.runtime, fallback_device=one.fallback_device
    )
    assert again == one
    assert one.replace() == one


def test_a_tree_without_a_cpu_falls_back_to_its_first_leaf():
    found = CompilationConfig.from_target("[gpu=cuda,npu=ext_dev](host=llvm)")
    assert found.fallback_device == found.default_primitive_virtual_device.device_type == "cuda"


def test_queries_find_targets_by_device_and_kind():
    found = M0[0]
    assert found.find_primitive_target_for_device("cpu") == found.find_primitive_target_for_device(1) == with_host(CPU)
    with pytest.raises(TargetError, match="no target is of device type 'metal'; there are: cpu, cuda"):
        found.find_primitive_target_for_device("metal")
    assert found.find_primitive_target_for_kind("cuda") == with_host("cuda(arch=sm_80)")
    assert found.find_primitive_target_for_kind("cutlass") is None


def test_equal_targets_are_replaced_by_those_of_the_configuration():
    found = M0[0]
    assert found.canonical_target(with_host("cuda(arch=sm_80)")) is not None
    assert found.canonical_target(parse("llvm")) == found.host_target
    assert found.canonical_target(with_host(CPU)).host == found.host_target
    for other in ("cuda(max_num_threads=7)", "cuda(arch=sm_80,host=c)"):
        assert found.canonical_target(parse(other)) == parse(other)


def test_targets_of_devices_are_replaced_by_those_of_the_configuration():
    found = M0[0]
    assert found.canonical_virtual_device(VirtualDevice(device_type="cpu")).target == with_host(CPU)
    assert found.canonical_virtual_device(VirtualDevice(device_type=2)).target == with_host("cuda(arch=sm_80)")
    for alone in (VirtualDevice(memory_scope="scope"), VirtualDevice()):
        assert found.canonical_virtual_device(alone) == alone
    with pytest.raises(TargetError, match="no target is of device type 'metal'"):
        found.canonical_virtual_device(VirtualDevice(device_type="metal"))


def test_a_target_may_be_of_another_device_type_than_its_kind():
    """TVM since v0.10: `target_device_type`, by DLPack's number."""
    moved = parse("llvm(target_device_type=2)")
    assert (moved.device, moved.resolve().device) == ("cuda", "cuda")
    assert VirtualDevice.for_target(moved).device_type == "cuda"
    with pytest.raises(TargetError, match="is of device type 'cuda', not 'cpu'"):
        VirtualDevice(device_type="cpu", target=moved)
    found = config(moved, "c")
    assert found.find_primitive_target_for_device("cuda").kind == "llvm"
    assert found.find_primitive_target_for_device("cpu").kind == "c"
    with pytest.raises(TargetError, match=r"'target_device_type' of kind 'llvm' is 1 or 2 .* not 99"):
        parse("llvm(target_device_type=99)")


def test_virtual_devices_join():
    cuda = parse("cuda")
    scoped = VirtualDevice(device_type="cuda", target=cuda, memory_scope="global")
    third = VirtualDevice(device_type="cuda", virtual_device_id=3)
    whole = VirtualDevice(device_type="cuda", virtual_device_id=3, target=cuda, memory_scope="global")
    assert third.join(scoped) == scoped.join(third) == VirtualDevice().join(whole) == whole
    assert third.join(VirtualDevice(device_type="cpu")) is None
    assert third.join(third.replace(virtual_device_id=4)) is None
    assert whole.join(whole.replace(memory_scope="local")) is None
    assert (
        VirtualDevice(device_type="cuda", memory_scope="global").default(whole.replace(memory_scope="local")) == whole
    )
    assert whole.join(VirtualDevice(target="cuda")) == whole  # TVM compares targets by address


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"device_type": "cpu:?"}, "unknown device type 'cpu:\\?'"),
        ({"device_type": "cpu:0"}, "unknown device type 'cpu:0'"),
        ({"device_type": ""}, "unknown device type ''"),
        ({"device_type": "CUDA"}, "unknown device type 'CUDA'"),
        ({"device_type": 5}, "unknown device type 5"),
        ({"device_type": True}, "unknown device type True"),
        ({"device_type": 2.0}, "unknown device type 2.0"),
        ({"device_type": ["cpu"]}, r"unknown device type \['cpu'\]"),
        ({"virtual_device_id": -1}, "'virtual_device_id' of a virtual device is at least 0, not -1"),
        ({"virtual_device_id": True}, "is a whole number, not True"),
        ({"virtual_device_id": 2**70}, "is at most"),
        ({"memory_scope": "glo bal"}, "'glo bal' is no memory scope"),
        ({"memory_scope": None}, "'memory_scope' of a virtual device is text"),
        ({"target": "cuda", "device_type": "cpu"}, "is of device type 'cuda', not 'cpu'"),
        ({"target": 1}, "a target is"),
    ],
)
def test_malformed_virtual_devices_are_rejected(fields, problem):
    with pytest.raises(TargetError, match=problem):
        VirtualDevice(**fields)


def test_a_target_of_an_unknown_kind_has_a_device_type_of_its_own():
    target = Target.from_json({"kind": "npu"})
    assert VirtualDevice.for_target(target).device_type == "npu"


@pytest.mark.parametrize("given", [{"targets": ["cuda(host=cuda)"]}, {"target_host": "cuda", "targets": ["cuda"]}])
def test_a_gpu_that_drives_itself_is_rejected(given):
    with pytest.raises(TargetError, match="host 'cuda' is a kind that drives no other device"):
        CompilationConfig(**given)
