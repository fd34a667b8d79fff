"""Provenance of values, and differences between trees."""

import pickle

import pytest
from hypothesis import given
from trees import trees

from tvmtarget import Target
from tvmtarget.errors import UnknownNameError
from tvmtarget.tags.registry import default_registry

TEXT = "nvidia/jetson-nano(cpu/num-cores=2,executor=aot)"


@pytest.mark.parametrize(
    ("path", "origin"),
    [
        ("", "tag nvidia/jetson-nano in nvidia.toml"),
        ("gpu", "tag nvidia/jetson-nano in nvidia.toml"),
        ("gpu/arch", "tag nvidia/jetson-nano in nvidia.toml"),
        ("cuda/arch", "tag nvidia/jetson-nano in nvidia.toml"),
        ("memory", "tag nvidia/jetson-nano in nvidia.toml"),
        ("cpu/num_cores", f"text '{TEXT}'"),
        ("executor", f"text '{TEXT}'"),
        ("executor/unpacked-api", "default of executor 'aot'"),
        ("gpu/max_num_threads", "default of kind 'cuda'"),
    ],
)
def test_a_value_of_a_tag_with_overrides_comes_from_the_layer_that_gave_it(path, origin):
    assert str(Target.parse(TEXT).origin(path)) == origin


def test_an_override_is_the_origin_of_what_it_changes_and_of_nothing_else():
    changed = Target.parse(TEXT).override({"gpu/arch": "sm_62", "executor/unpacked-api": True})
    assert changed.origin("gpu/arch").layer == "override"
    assert changed.origin("executor/unpacked-api").layer == "override"
    assert changed.origin("executor").layer == "text"
    assert changed.origin("gpu/registers_per_block").layer == "tag"


def test_an_override_with_an_equal_value_is_its_origin():
    assert Target.parse("arm/rasp4b").override({"cpu/num-cores": 4}).origin("cpu/num-cores").layer == "override"


def test_every_path_with_an_origin_is_in_the_tree():
    tree = Target.parse(TEXT)
    for path in ("", "gpu", "gpu/arch", "gpu/max_num_threads", "executor", "executor/unpacked-api", "host", "memory"):
        assert path in tree
    for path in ("npu", "gpu/mcpu", "gpu/nothing", "runtime", "executor/nothing", 5, "gpu/host/nothing"):
        assert path not in tree
    assert "unpacked-api" in tree.executor
    assert "workspace-byte-alignment" not in tree.executor


def test_values_set_by_a_program_come_from_code():
    assert Target("llvm", {"num-cores": 2}).origin("num-cores").to_json() == {"layer": "code"}


def test_resolve_is_the_origin_of_what_it_fills_in():
    tree = Target.parse("aws/c5.large").resolve()
    assert str(tree.origin("executor")) == "default of a whole tree"
    assert tree.origin("cpu/mcpu").detail == "aws/c5 in aws.ec2.toml"


def test_merge_keeps_the_origins_of_both():
    merged = Target.parse("llvm(num-cores=4,mcpu=cortex-a72)").merge(Target.from_json({"kind": "llvm", "num-cores": 2}))
    assert [merged.origin(name).layer for name in ("mcpu", "num-cores")] == ["text", "json"]


def test_a_part_keeps_the_origin_of_what_it_inherits():
    part = Target.parse(TEXT).part("gpu")
    assert part.origin("executor").layer == "text"
    assert part.origin("arch").layer == "tag"
    assert part.origin("host/num-cores").layer == "text"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gpu/mcpu", "'mcpu' is not stated; stated are: arch, max_shared_memory_per_block, max_threads_per_block, "),
        ("gpu/arhc", "kind 'cuda' has no attribute 'arhc'; did you mean 'arch'?"),
        ("runtime/system-lib", "'runtime' is not stated"),
        ("executor/interface", "kind 'aot' has no attribute 'interface'"),
        ("npu/arch", "no node 'npu' in target 'nvidia/jetson-nano'; did you mean 'gpu' or 'cpu'?"),
    ],
)
def test_a_path_that_states_nothing_has_no_origin(path, message):
    with pytest.raises(UnknownNameError) as error:
        Target.parse(TEXT).origin(path)
    assert message in str(error.value)


def test_origins_are_beside_the_tree():
    tree = Target.parse(TEXT)
    same = Target.from_json(tree.to_json())
    assert (same, same.digest, hash(same), str(same)) == (tree, tree.digest, hash(tree), str(tree))
    assert pickle.loads(pickle.dumps(tree)).origin("cpu/num-cores") == tree.origin("cpu/num-cores")


def test_overrides_do_not_change_the_tree_of_a_tag():
    tags = default_registry()
    Target.parse(TEXT)
    assert tags["nvidia/jetson-nano"].origin("cpu/num-cores").layer == "tag"


@pytest.mark.parametrize(
    ("left", "right", "lines"),
    [
        ("llvm", "llvm(opt-level=3)", ["+ opt-level: 3"]),
        ("llvm(num-cores=4)", "llvm(num-cores=8)", ["~ num-cores: 4 -> 8"]),
        ("llvm", "cuda", ["~ the root: llvm -> cuda"]),
        ("[a=llvm,b=cuda]", "[b=cuda,a=llvm]", ["~ targets: a+b -> b+a"]),
        ("[a=llvm,b=cuda]", "[a=llvm,c=cuda]", ["- b: cuda", "+ c: cuda"]),
        ("[a=llvm,b=cuda(arch=sm_53)]", "[a=llvm,b=rocm]", ["~ b: cuda(arch=sm_53) -> rocm"]),
        ("llvm(executor=aot)", "llvm(executor=aot(unpacked-api=true))", ["+ executor/unpacked-api: true"]),
        ("llvm(executor=aot)", "llvm", ["- executor: aot"]),
        ("cuda(host=c)", "cuda(host=c(mcpu=cortex-m4))", ["+ host/mcpu: cortex-m4"]),
        ("llvm", "llvm(executor=graph,runtime=python)", []),
    ],
)
def test_differences_are_reported_by_path(left, right, lines):
    assert str(Target.parse(left).diff(Target.parse(right))).splitlines() == lines


def test_differences_are_data():
    found = Target.parse("llvm(num-cores=4)").diff(Target.parse("llvm(num-cores=8,opt-level=1)"))
    assert found.to_json() == [{"path": "num-cores", "left": 4, "right": 8}, {"path": "opt-level", "right": 1}]


@given(trees, trees)
def test_nothing_differs_exactly_if_trees_are_equal(left, right):
    assert (not left.diff(right)) == (left == right)
    assert not left.diff(left)
