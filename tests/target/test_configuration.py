"""The flat views over a tree: CompilationConfig (TVM's M0) and VirtualDevice."""

import pytest

import tvmtarget as tt
from tvmtarget.errors import Problem, TargetError, UnknownNameError
from tvmtarget.target.configuration import CompilationConfig
from tvmtarget.target.virtual_device import VirtualDevice

parse = tt.Target.parse


def test_a_tree_is_viewed_by_its_leaves():
    """REQUIREMENTS M0: CompilationConfig as a derived view, `from_target`."""
    config = CompilationConfig.from_target("nvidia/jetson-nano")
    assert [target.kind for target in config.targets] == ["cuda", "llvm"]
    assert config.host_target["mcpu"] == "cortex-a57"
    assert all(target.host == config.host_target for target in config.primitive_targets)
    assert config.losses == ("memory of @.", "name 'gpu' of @gpu", "name 'cpu' of @cpu")


@pytest.mark.parametrize(
    "text",
    [
        "cuda",
        "llvm(num-cores=4)",
        "cuda(host=llvm(num-cores=2))",
        "[cuda,llvm](executor=aot,runtime=crt(system-lib=true))",
        "[cuda](host=c)",
    ],
)
def test_a_configuration_converts_back_to_an_equal_tree(text):
    tree = parse(text)
    back = CompilationConfig.from_target(tree).to_target()
    again = CompilationConfig.from_target(back)
    assert again == CompilationConfig.from_target(tree).replace(losses=again.losses)


@pytest.mark.parametrize(
    ("targets", "host"),
    [
        (["cuda(host=llvm(num-cores=2))", "llvm(num-cores=2)"], "llvm(num-cores=2)"),
        (["cuda", "c(mcpu=cortex-m4)"], "c(mcpu=cortex-m4)"),
        (["cuda"], "llvm"),
    ],
)
def test_the_host_is_found_by_rules_a_b_and_c(targets, host):
    assert CompilationConfig(targets=targets).host_target == parse(host)


def test_the_default_device_is_found_by_rules_d_e_and_f():
    both = ["cuda", "llvm"]
    assert (
        CompilationConfig(targets=both, fallback_device="cuda").default_primitive_virtual_device.device_type == "cuda"
    )
    assert CompilationConfig(targets=["cuda"]).default_primitive_virtual_device.device_type == "cuda"
    assert CompilationConfig(targets=both).default_primitive_virtual_device.device_type == "cpu"
    with pytest.raises(TargetError, match="no target is of device type 'metal'; there are: cpu, cuda"):
        CompilationConfig(targets=both, fallback_device="metal").default_primitive_virtual_device  # noqa: B018


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[a=cuda,b=cuda,cpu=llvm]", "two targets are of kind 'cuda', which a configuration cannot tell apart"),
        ("[gpu=cuda(count=4),cpu=llvm]", "a configuration cannot express this: @gpu has 4 replicas"),
        ("[soc=[cpu=c](executor=aot),cpu=llvm]", "@soc is a system with an executor or runtime of its own"),
        ("[a=[gpu=cuda](host=c),cpu=llvm]", "a configuration has one host, and this tree has: c, llvm"),
    ],
)
def test_a_tree_that_a_configuration_cannot_express_is_rejected_with_the_reason(text, reason):
    with pytest.raises(TargetError) as caught:
        CompilationConfig.from_target(text)
    assert reason in str(caught.value)


def test_hosts_that_disagree_are_an_error_where_tvm_silently_overrides():
    with pytest.raises(
        TargetError, match=r"target 'cuda' has the host 'llvm\(num-cores=2\)', and the configuration 'c'"
    ):
        CompilationConfig(target_host="c", targets=["cuda(host=llvm(num-cores=2))"])


def test_an_empty_configuration_is_refused():
    with pytest.raises(TargetError, match="needs at least one target"):
        CompilationConfig()


def test_targets_are_found_by_device_type_and_kind():
    config = CompilationConfig(targets=["cuda(arch=sm_80)", "llvm"])
    assert config.find_primitive_target_for_kind("cuda")["arch"] == "sm_80"
    assert config.find_primitive_target_for_kind("c") is None
    with pytest.raises(UnknownNameError, match="unknown kind 'cudda'; did you mean 'cuda'"):
        config.find_primitive_target_for_kind("cudda")
    assert config.optional_homogeneous_target is None
    assert CompilationConfig(targets=["llvm"]).optional_homogeneous_target == parse("llvm")
    assert config.canonical_target(parse("cuda(arch=sm_80)")).host == config.host_target
    filled = config.canonical_virtual_device(VirtualDevice(device_type="cuda"))
    assert filled.target == config.primitive_targets[0]


def test_parameters_are_linked_if_the_executor_does_so():
    """TVM ignores `link-params=false` for aot; here it is effective."""
    for text, links in (
        ("graph", False),
        ("graph(link-params=true)", True),
        ("aot", True),
        ("aot(link-params=false)", False),
    ):
        assert CompilationConfig.from_target(f"llvm(executor={text})").should_link_params is links


def test_making_a_configuration_of_its_own_targets_changes_nothing():
    config = CompilationConfig(targets=["cuda", "llvm"])
    assert CompilationConfig(config.host_target, config.primitive_targets).primitive_targets == config.primitive_targets


def test_devices_join_by_value():
    cuda = VirtualDevice.for_target(parse("cuda(arch=sm_80)"))
    same = VirtualDevice.for_target(parse("cuda(arch=sm_80)"))
    assert cuda.join(same) == cuda
    assert cuda.join(VirtualDevice.for_target(parse("cuda(arch=sm_90)"))) is None
    assert cuda.join(VirtualDevice(memory_scope="global")).is_fully_constrained
    assert VirtualDevice(device_type="cpu").join(VirtualDevice(virtual_device_id=1)) == VirtualDevice(
        device_type="cpu", virtual_device_id=1
    )
    assert VirtualDevice(device_type="cpu").join(VirtualDevice(target=parse("cuda"))) is None
    assert VirtualDevice().is_fully_unconstrained


def test_defaults_fill_unknown_fields_but_never_with_a_target_of_another_type():
    cuda = VirtualDevice.for_target(parse("cuda"))
    assert VirtualDevice().default(cuda) == cuda
    filled = VirtualDevice(device_type="cpu").default(cuda)
    assert filled == VirtualDevice(device_type="cpu", virtual_device_id=0)


def test_a_target_of_another_device_type_is_refused():
    with pytest.raises(TargetError, match="target 'cuda' is of device type 'cuda', not 'cpu'"):
        VirtualDevice(device_type="cpu", target=parse("cuda"))


def test_devices_become_constraints():
    assert str(VirtualDevice.for_target(parse("cuda(arch=sm_80)")).to_constraint()) == "cuda(arch=sm_80)"
    assert str(VirtualDevice(device_type="cuda").to_constraint()) == "cuda"
    assert VirtualDevice().to_constraint() is None


def test_a_map_by_device_type_is_read_as_its_targets():
    by_name = tt.CompilationConfig(targets={"cuda": "cuda -arch=sm_80", "cpu": "llvm"})
    assert by_name == tt.CompilationConfig(targets=["cuda -arch=sm_80", "llvm"])
    assert tt.CompilationConfig(targets={2: "cuda -arch=sm_80", 1: "llvm"}) == by_name
    assert tt.CompilationConfig.from_json({"targets": {"cuda": "cuda -arch=sm_80", "cpu": "llvm"}}) == by_name


def test_a_key_of_such_a_map_is_the_device_type_of_its_target():
    with pytest.raises(TargetError, match="target 'llvm' is of device type 'cpu', not 'cuda' as in its key") as found:
        tt.CompilationConfig(targets={"cuda": "llvm"})
    assert [one.loc for one in found.value.problems if isinstance(one, Problem)] == [("targets", "cuda")]
    with pytest.raises(tt.TvmTargetError, match=r"'cud'.*did you mean 'cuda'"):
        tt.CompilationConfig(targets={"cud": "cuda"})
