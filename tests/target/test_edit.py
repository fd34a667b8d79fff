"""Overrides, merging, unsetting, and parts of trees."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmtarget import Target
from tvmtarget.errors import TargetError, UnknownNameError

BOARD = "[gpu=cuda(arch=sm_53),cpu=llvm(mcpu=cortex-a57,+neon,num-cores=4)](host=@cpu)"


def board():
    return Target.parse(BOARD)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"cpu/num-cores": 8}, "[gpu=cuda(arch=sm_53),cpu=llvm(mcpu=cortex-a57,+neon,num-cores=8)](host=@cpu)"),
        ({"llvm/num_cores": "8"}, "[gpu=cuda(arch=sm_53),cpu=llvm(mcpu=cortex-a57,+neon,num-cores=8)](host=@cpu)"),
        ({"host/num-cores": 8}, "[gpu=cuda(arch=sm_53),cpu=llvm(mcpu=cortex-a57,+neon,num-cores=8)](host=@cpu)"),
        ({"gpu/host/num-cores": 8}, "[gpu=cuda(arch=sm_53),cpu=llvm(mcpu=cortex-a57,+neon,num-cores=8)](host=@cpu)"),
        ({"cpu/+": ["-neon", "+crc"]}, "[gpu=cuda(arch=sm_53),cpu=llvm(mcpu=cortex-a57,-neon,+crc,num-cores=4)]"),
        ({"cpu/mattr": ["+crc"]}, "[gpu=cuda(arch=sm_53),cpu=llvm(mcpu=cortex-a57,+neon,+crc,num-cores=4)]"),
        ({"cpu/libs": ["cblas"], "cpu/libs ": 1}, None),
        ({"count": 2, "keys": ["gpu"]}, BOARD[:-1] + ",count=2,keys=gpu)"),
        ({"gpu/count": 2}, "[gpu=cuda(arch=sm_53,count=2),cpu=llvm(mcpu=cortex-a57,+neon,num-cores=4)]"),
        ({"executor": "aot"}, BOARD[:-1] + ",executor=aot)"),
        ({"executor": {"kind": "aot", "unpacked-api": True}}, BOARD[:-1] + ",executor=aot(unpacked-api=true))"),
        ({"executor": "aot", "executor/unpacked-api": 1}, BOARD[:-1] + ",executor=aot(unpacked-api=true))"),
        ({"runtime": "crt", "runtime/system_lib": "1"}, BOARD[:-1] + ",runtime=crt(system-lib=true))"),
        ({"gpu/executor": "vm"}, "[gpu=cuda(arch=sm_53,executor=vm),cpu=llvm(mcpu=cortex-a57,+neon,num-cores=4)]"),
        ({"host": "llvm(num-cores=2)"}, BOARD.replace("host=@cpu", "host=llvm(num-cores=2)")),
        ({"host": "c", "host/mcpu": "cortex-m55"}, BOARD.replace("host=@cpu", "host=c(mcpu=cortex-m55)")),
        ({"gpu/host": {"kind": "c"}}, "[gpu=cuda(arch=sm_53,host=c),cpu=llvm(mcpu=cortex-a57,+neon,num-cores=4)]"),
        ({"cpu": {"num-cores": 8}}, "[gpu=cuda(arch=sm_53),cpu=llvm(mcpu=cortex-a57,+neon,num-cores=8)]"),
        ({"cpu": "llvm(-neon)"}, "[gpu=cuda(arch=sm_53),cpu=llvm(mcpu=cortex-a57,-neon,num-cores=4)]"),
        ({"gpu": "rocm"}, "[gpu=rocm,cpu=llvm(mcpu=cortex-a57,+neon,num-cores=4)]"),
        ({"memory": [{"name": "dram"}]}, BOARD[:-1] + ',memory=[{"name":"dram"}])'),
    ],
)
def test_overrides_by_path(changes, expected):
    if expected is None:
        with pytest.raises(UnknownNameError):
            board().override(changes)
    else:
        assert board().override(changes) == Target.parse(expected)


def test_overrides_are_applied_in_order():
    changed = board().override({"gpu": "rocm", "gpu/model": "x"})
    assert changed.at("gpu")["model"] == "x"
    with pytest.raises(UnknownNameError):
        board().override({"gpu/arch": "sm_62", "gpu": "rocm", "gpu/max_shared": 1})


@pytest.mark.parametrize(
    ("one", "other", "merged"),
    [
        ("llvm(num-cores=4)", "llvm(num-cores=8)", "llvm(num-cores=8)"),
        ("llvm(num-cores=4)", "config/aot", "llvm(num-cores=4,executor=aot,runtime=cpp)"),
        ("[a=llvm,b=cuda]", "[a=composite(model=x)]", "[a=llvm(model=x),b=cuda]"),
        ("composite(executor=vm)", "llvm", "llvm"),
        ("llvm(num-cores=4)", "llvm(model=x)", "llvm(num-cores=4,model=x)"),
        ("llvm(+neon,+crc)", "llvm(-neon)", "llvm(-neon,+crc)"),
        ("llvm", "cuda(arch=sm_53)", "cuda(arch=sm_53)"),
        ("llvm(executor=aot)", "llvm(runtime=crt)", "llvm(executor=aot,runtime=crt)"),
        ("[a=llvm(num-cores=4),b=cuda]", "[b=cuda(arch=sm_53),c=c]", "[a=llvm(num-cores=4),b=cuda(arch=sm_53),c=c]"),
        ("[a=llvm(num-cores=4)]", "[a=cuda]", "[a=cuda]"),
        ("[a=[x=llvm,y=cuda]]", "[a=[y=cuda(count=2)]]", "[a=[x=llvm,y=cuda(count=2)]]"),
    ],
)
def test_merging_overrides_values_of_the_first_tree(one, other, merged):
    assert Target.parse(one).merge(Target.parse(other)) == Target.parse(merged)


def test_merging_another_kind_keeps_the_name():
    assert Target("llvm", name="x").merge(Target("cuda")).name == "x"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("cpu/num-cores", "[gpu=cuda(arch=sm_53),cpu=llvm(mcpu=cortex-a57,+neon)](host=@cpu)"),
        ("cpu/num_cores", "[gpu=cuda(arch=sm_53),cpu=llvm(mcpu=cortex-a57,+neon)](host=@cpu)"),
        ("host", "[gpu=cuda(arch=sm_53),cpu=llvm(mcpu=cortex-a57,+neon,num-cores=4)]"),
        ("cpu/mattr", "[gpu=cuda(arch=sm_53),cpu=llvm(mcpu=cortex-a57,num-cores=4)](host=@cpu)"),
    ],
)
def test_stated_values_can_be_unset(path, expected):
    assert str(board().unset(path)) == str(Target.parse(expected))


def test_attributes_of_an_executor_can_be_unset():
    micro = Target.parse("[n=c](executor=aot(unpacked-api=true,interface-api=c),runtime=crt)")
    assert str(micro.unset("executor/unpacked_api").executor) == "aot(interface-api=c)"
    assert str(micro.override({"n/runtime": "crt(system-lib=true)"}).unset("n/runtime/system-lib").at("n")) == (
        "c(name=n,runtime=crt)"
    )
    with pytest.raises(UnknownNameError, match="'executor/link-params' is not set; set are: interface-api, unpacked"):
        micro.unset("executor/link-params")
    with pytest.raises(UnknownNameError, match="'n/executor/link-params' is not set, because no executor is"):
        micro.unset("n/executor/link-params")


@pytest.mark.parametrize(
    "changes",
    [
        {"cpu/num-cores": 2, "cpu": {"num_cores": 8}},
        {"cpu": {"num_cores": 8}, "llvm/num-cores": 2},
        {"cpu": {"num-cores": 8, "num_cores": 2}},
    ],
)
def test_a_value_is_not_given_twice_at_two_depths(changes):
    with pytest.raises(TargetError, match="are one value, which is given twice"):
        board().override(changes)
    assert board().override({"cpu": {"num-cores": 8}, "cpu/model": "x"}).at("cpu")["num-cores"] == 8


def test_a_child_cannot_be_unset():
    with pytest.raises(TargetError, match="'gpu' is a node, and only values can be unset, as in gpu/ATTRIBUTE"):
        board().unset("gpu")


# Parts


@pytest.mark.parametrize(
    ("tree", "path", "expected"),
    [
        (BOARD, "", BOARD),
        (BOARD, "gpu", "cuda(arch=sm_53,host=llvm(mcpu=cortex-a57,+neon,num-cores=4))"),
        (BOARD, "cuda", "cuda(arch=sm_53,host=llvm(mcpu=cortex-a57,+neon,num-cores=4))"),
        (BOARD, "cpu", "llvm(mcpu=cortex-a57,+neon,num-cores=4)"),
        (BOARD, "host", "llvm(mcpu=cortex-a57,+neon,num-cores=4)"),
        (BOARD, "gpu/host", "llvm(mcpu=cortex-a57,+neon,num-cores=4)"),
        ("cuda(host=c)", "host", "c"),
        ("cuda", "host", "llvm"),
        ("[gpu=cuda]", "gpu", "cuda"),
        # executor and runtime come from the nearest node around
        ("[n=[gpu=cuda](executor=vm)](executor=aot,runtime=cpp)", "n/gpu", "cuda(executor=vm,runtime=cpp)"),
        ("[n=[gpu=cuda]](executor=aot)", "n", "[gpu=cuda](executor=aot)"),
        # replicas
        ("[gpu=cuda(count=8),cpu=llvm]", "gpu", "cuda(count=8,host=llvm)"),
        ("[gpu=cuda(count=8),cpu=llvm]", "gpu.3", "cuda(host=llvm)"),
        ("[n=[gpu=cuda,cpu=c](count=2,host=@cpu)]", "n.1/gpu", "cuda(host=c)"),
        # references below go on to lead where they did
        ("[n=[gpu=cuda,cpu=c](host=@cpu),top=llvm](host=@top)", "n", "[gpu=cuda,cpu=c](host=@cpu)"),
        ("[n=[gpu=cuda,cpu=c](host=@n/cpu),top=llvm](host=@top)", "n", "[gpu=cuda,cpu=c](host=@cpu)"),
        ("[n=[gpu=cuda,cpu=c],top=llvm](host=@top)", "n", "[gpu=cuda,cpu=c](host=llvm)"),
        ("[n=[gpu=cuda(host=@top),cpu=c],top=llvm](host=@top)", "n", "[gpu=cuda(host=@host),cpu=c](host=llvm)"),
        ("[n=[gpu=cuda(host=@z),cpu=c](host=@cpu),z=numpy]", "n", "[gpu=cuda(host=numpy),cpu=c](host=@cpu)"),
        (
            "[n=[m=[gpu=cuda(host=@top)](host=c)],top=llvm](host=@top)",
            "n",
            "[m=[gpu=cuda(host=llvm)](host=c)](host=llvm)",
        ),
        (
            "[n=[m=[gpu=cuda(host=@n/cpu),cpu=c],cpu=llvm](host=@cpu)]",
            "n",
            "[m=[gpu=cuda(host=llvm),cpu=c],cpu=llvm](host=@cpu)",
        ),
        ("[n=[gpu=cuda(host=@absent),cpu=c](host=@cpu)]", "n", "[gpu=cuda(host=@absent),cpu=c](host=@cpu)"),
        ("[gpu=cuda](host=@absent)", "gpu", "cuda(host=@absent)"),
        ("[cpu=llvm[gpu=cuda(host=@cpu)],top=c]", "cpu", "llvm[gpu=cuda]"),
    ],
)
def test_a_part_is_a_tree_of_its_own(tree, path, expected):
    part = Target.parse(tree).part(path)
    assert str(part) == str(Target.parse(expected))
    assert part.name is None


def test_a_part_of_a_tag_is_labelled():
    assert Target.parse("nvidia/jetson-nano:gpu").tag == "nvidia/jetson-nano:gpu"
    assert Target.parse("demo/rack:node0/cpu").tag == "demo/rack:node0/cpu"


def test_an_unknown_path_is_no_part():
    with pytest.raises(UnknownNameError, match="no node 'npu'"):
        board().part("npu")


# Resolving


def test_resolving_fills_in_host_executor_and_runtime():
    resolved = Target.parse("[gpu=cuda,cpu=llvm]").replace(name="x").resolve()
    assert str(resolved) == "composite[gpu=cuda,cpu=llvm](host=@cpu,executor=graph,runtime=python)"
    assert str(Target("cuda").resolve()) == "cuda(executor=graph,runtime=python)"


def test_keys_of_a_target_come_before_its_device_and_those_of_its_kind_after():
    """TVM since v0.10: {"kind": "opencl", "device": "mali"} has mali, opencl, gpu; keys foo with mali are foo, mali."""
    assert Target("cuda").keys == ("cuda", "gpu")
    assert Target("cuda", {"device": "mali"}).keys == ("mali", "cuda", "gpu")
    assert Target("cuda", {"device": "mali"}, keys=["foo"]).keys == ("foo", "mali")


def test_keys_are_changed_by_the_name_that_they_have_in_json():
    target = Target("cuda").replace(keys=("foo",))
    assert target.keys == ("foo",)
    assert target.to_json() == {"kind": "cuda", "keys": ["foo"]}
    assert Target("cuda").to_json() == {"kind": "cuda"}
    assert target.replace(count=2).keys == target.override({"count": 2}).keys == ("foo",)
    assert target.unset("keys") == Target("cuda")
    assert Target("cuda").merge(target).origin("keys") == target.origin("keys")
    with pytest.raises(TargetError, match="no field 'own_keys'; did you mean 'keys'"):
        target.replace(own_keys=("bar",))


def test_nodes_are_frozen_and_changed_by_replace():
    target = Target("llvm")
    with pytest.raises(Exception, match="frozen"):
        target.kind = "cuda"
    with pytest.raises(TargetError, match="kind 'cuda' has no attribute 'num-cores'"):
        Target("llvm", {"num-cores": 4}).replace(kind="cuda")


leaves = st.fixed_dictionaries(
    {"kind": st.just("llvm")},
    optional={
        "num-cores": st.integers(1, 3),
        "mattr": st.sampled_from([["+aes"], ["-aes"], ["+sm4"]]),
        "executor": st.sampled_from(["graph", "vm"]),
        "count": st.integers(1, 3),
    },
)
boards = st.dictionaries(st.sampled_from("abc"), leaves, max_size=3).map(
    lambda children: Target.from_json({"targets": [{"name": name, **leaf} for name, leaf in children.items()]})
)


@given(boards, boards, boards)
def test_merging_is_associative_where_children_of_one_name_are_of_one_kind(first, second, third):
    assert first.merge(second).merge(third) == first.merge(second.merge(third))


def test_merging_is_not_associative_where_a_kind_is_replaced():
    """The counter-example of docs/targets.md: a left fold loses the values of a replaced child."""
    first, other, last = (Target.parse(f"[x={text}]") for text in ("llvm(num-cores=4)", "c", "llvm(mcpu=cortex-a57)"))
    assert str(first.merge(other).merge(last)) == "composite[x=llvm(mcpu=cortex-a57)]"
    assert str(first.merge(other.merge(last))) == "composite[x=llvm(mcpu=cortex-a57,num-cores=4)]"
