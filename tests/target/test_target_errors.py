"""Error messages: one line each, with the value, the place and a correction; all problems of a stage at once."""

import pickle

import numpy as np
import pytest

from tvmtarget import Executor, Link, Memory, Runtime, Target
from tvmtarget.errors import TargetError, TvmTargetError, UnknownNameError
from tvmtarget.target.kinds import find_kind

JETSON = "nvidia/jetson-nano"

JSON = [
    (5, "a target is a text or an object, not 5"),
    ({}, "a target needs a 'kind' or a 'tag'"),
    ({"name": "gpu"}, "a target needs a 'kind' or a 'tag'"),
    ({"kind": 5}, "'kind' is the name of a kind, not 5"),
    ({"kind": "two words"}, "'two words' is no kind; use letters and digits, with '-', '+', '_' and '.' between them"),
    ({"tag": 5}, "'tag' is the name of a tag, not 5"),
    ({"kind": "llvm", "tag": 5}, "'tag' of a target is text, not 5"),
    ({"kind": "llvm", "name": 5}, "'name' of a target is text, not 5"),
    ({"kind": "llvm", "host": None}, "'host' is null; leave it out"),
    ({"kind": "llvm", "host": 5}, "a target is a text or an object, not 5 (at 'host')"),
    (
        {"kind": "llvm", "host": "@a b"},
        "'@a b' is no reference to a host; write '@' and a path of names: @cpu, @node0/cpu",
    ),
    ({"kind": "llvm", "targets": 5}, "'targets' is a list of targets, not 5"),
    ({"kind": "llvm", "targets": [5]}, "a target is a text or an object, not 5 (at 'targets[0]')"),
    ({"targets": [], "devices": []}, "'targets' and 'devices' are two names of one field; leave one out"),
    ({"kind": "llvm", "schema": 2}, "target schema 2 is not known here; this version reads schema 1"),
    ({"kind": "llvm", "count": True}, "'count' is a whole number, not True"),
    ({"kind": "llvm", "keys": 5}, "'keys' is a list of words, not 5"),
    ({"kind": "llvm", "executor": 5}, "executor is a kind or an object with 'kind', not 5"),
    ({"kind": "llvm", "executor": {"kind": 5}}, "'kind' is the name of an executor kind, not 5"),
    ({"kind": "llvm", "links": [{"src": 1, "dst": "a"}]}, "'src' of a link is text, not 1"),
    ({"kind": "llvm", "links": [{"src": "a"}]}, "a link needs 'dst', and {'src': 'a'} has none"),
    (
        {"kind": "llvm", "memory": [{"name": "m", "byte": 1}]},
        "a memory has no field 'byte'; did you mean 'bytes'?",
    ),
    ({"kind": "llvm", "memory": [{"name": "m", "bytes": -1}]}, "'bytes' of a memory is at least 0, not -1"),
    ({"kind": "llvm", "memory": [{"name": ""}]}, "a memory has a name, not ''"),
    (
        {"kind": "llvm", "memory": [{"name": "m", "kind": "QSPI-Flash"}]},
        "memory 'm' has kind 'QSPI-Flash'; did you mean 'flash'?",
    ),
    ({"kind": "llvm", "memory": [{"name": "m", "of": "a"}]}, "'of' of a memory is a list, not 'a'"),
    ({"kind": "llvm", "+": "neon"}, "'+' is a list of features, not 'neon'"),
    ({"tag": JETSON, "~": 5}, "'~' is a list of paths, not 5"),
    (
        {"kind": "onnxruntime", "intra-op-threads": 100_000},
        "attribute 'intra-op-threads' of kind 'onnxruntime' is at most 1024, not 100000",
    ),
    ({"kind": "llvm", "num-cores": None}, "attribute 'num-cores' of kind 'llvm' is a whole number, not None"),
    (
        {"kind": "llvm", "model": "\ud800"},
        "attribute 'model' of kind 'llvm' has half of a surrogate pair in it: '\\ud800'",
    ),
    (
        {"kind": "zz", "x": 1.5},
        "attribute 'x' of kind 'zz' is true, false, a whole number, text, or a list of numbers or of texts, not 1.5",
    ),
    ({"kind": "zz", "é": 1}, "attribute name 'é' of kind 'zz' is not in plain ASCII"),
    ({"kind": "zz", "a-b": 1, "a_b": 2}, "attribute 'a_b' of kind 'zz' is given twice"),
]


@pytest.mark.parametrize(("data", "problem"), JSON, ids=range(len(JSON)))
def test_wrong_json_is_reported_in_one_line(data, problem):
    with pytest.raises(TvmTargetError) as caught:
        Target.from_json(data)
    assert str(caught.value) == problem


TREE = Target("llvm")

ARGUMENTS = [
    (lambda: Target(5), "'kind' is the name of a kind, not 5"),
    (lambda: Target("zz"), "unknown kind 'zz'"),
    (lambda: Target.parse("gpu"), "unknown kind 'gpu'; did you mean 'cuda' or 'rocm' or 'opencl'?"),
    (lambda: Target.parse("[cpu=llvm]")["cpu"], "'cpu' is a child and no attribute; write target.at('cpu')"),
    (lambda: Target("llvm", 5), "attributes are a mapping of names to values, not 5"),
    (lambda: Target("llvm", {5: 1}), "kind 'llvm' has no attribute 5"),
    (lambda: Target("llvm", targets="x"), "'targets' is a list of targets, not 'x'"),
    (lambda: Target("llvm", targets=5), "'targets' is a list of targets, not 5"),
    (lambda: Target("llvm", targets=[5]), "a target is a text, an object or a Target, not 5"),
    (lambda: Target("llvm", host=5), "a target is a text, an object or a Target, not 5"),
    (lambda: Target("llvm", count=1.5), "'count' is a whole number, not 1.5"),
    (lambda: Target("llvm", name="a/b"), "'a/b' is no name; use letters and digits"),
    (lambda: Target("llvm", name="-a"), "'-a' is no name; use letters and digits"),
    (lambda: Target("llvm", name=""), "'' is no name; use letters and digits"),
    (lambda: Target("llvm", executor=Runtime("crt")), "executor is a kind or an object with 'kind', not Runtime("),
    (lambda: Target("llvm", links=5), "'links' is a list of objects, not 5"),
    (lambda: Executor(5), "'kind' is the name of an executor kind, not 5"),
    (lambda: Executor("aot", 5), "attributes are a mapping of names to values, not 5"),
    (lambda: Executor("aot")["unpacked"], "kind 'aot' has no attribute 'unpacked'; did you mean 'unpacked-api'?"),
    (lambda: Target("llvm")["num-core"], "kind 'llvm' has no attribute 'num-core'; did you mean 'num-cores'?"),
    (lambda: Target("llvm")[5], "kind 'llvm' has no attribute 5"),
    (lambda: Link(src="a"), "a link needs 'dst', and {'src': 'a'} has none"),  # type: ignore[call-arg]
    (lambda: Memory(name="m", bytes=2**53), "'bytes' of a memory is at most 9007199254740991, not 9007199254740992"),
    (lambda: Target.parse(5), "a target is a text, an object or a Target, not 5"),
    (lambda: Target("llvm").override(5), "changes are a mapping of paths to values, not 5"),
    (lambda: Target("llvm").override({"model": None}), "'model' cannot be nothing; take it back with unset"),
    (lambda: Target("cuda").override({"host/model": "x"}), "no host is written here to be changed"),
    (
        lambda: Target.parse("[gpu=cuda(count=8),cpu=llvm](host=llvm)").override({"gpu.0/model": "x"}),
        "'gpu.0' is one of 8 identical replicas; change 'gpu'",
    ),
    (lambda: Target.parse("cuda(host=@x)").at("host"), "host '@x' of 'the root' names no node of the tree"),
    (lambda: Target("llvm", {"opt-level": 4}), "attribute 'opt-level' of kind 'llvm' is 0 or 1 or 2 or 3, not 4"),
    (lambda: TREE.at(np.zeros(2)), "a path is names with '/' between them, not array([0., 0.])"),
    (lambda: TREE.at(None), "a path is names with '/' between them, not None"),
    (lambda: TREE.part([]), "a path is names with '/' between them, not []"),
    (lambda: TREE.origin_of([]), "the name of a value is a text, not []"),
    (lambda: TREE.stated(None), "the name of a field is a text, not None"),
    (lambda: TREE.with_origins(5), "origins of Target.with_origins is a mapping of Origins, not 5"),
    (lambda: TREE.record_origins([]), "origins are a mapping of names of values to their origins, not []"),
    (lambda: TREE.to_tvm(np.zeros(2)), "unknown version of TVM array([0., 0.]); known: v0.9, v0.19, v0.27"),
    (lambda: Target.from_cli("llvm", np.zeros(2)), "unknown dialect array([0., 0.]); known: plain, v0.9, v0.10"),
    (lambda: TREE.features.has([]), "the name of a feature is a text, not []"),
    (lambda: TREE.features.covers([]), "the name of a CPU is a text, not []"),
    (lambda: find_kind("llvm", []), "the role of a kind is a text, not []"),
    (lambda: Memory(name="m", of="cpu"), "'of' of a memory is a list, not 'cpu'"),
]


def test_methods_and_other_names_are_no_fields_that_a_tree_states():
    assert [TREE.stated(name) for name in ("at", "own_keys", "model_fields", "x")] == [None] * 4
    assert TREE.stated("kind") == "llvm"


def test_lists_of_names_become_tuples():
    assert Memory(name="m", of=["cpu"]) == Memory(name="m", of=("cpu",))


@pytest.mark.parametrize(("call", "problem"), ARGUMENTS, ids=range(len(ARGUMENTS)))
def test_wrong_arguments_are_reported_in_one_line(call, problem):
    with pytest.raises(TvmTargetError) as caught:
        call()
    assert str(caught.value).startswith(problem)
    assert "\n" not in str(caught.value)


def test_all_problems_of_a_tree_are_reported_at_once():
    with pytest.raises(TargetError) as caught:
        Target.parse("[gpu=metall,cpu=llvm(num-core=4,fast-math=maybe),x=[y=cuda(host=lvm(a=b))]](count=0,keys=[1])")
    assert caught.value.problems == (
        "unknown kind 'metall'; did you mean 'metal'? (at 'gpu')",
        "kind 'llvm' has no attribute 'num-core'; did you mean 'num-cores'? (at 'cpu')",
        "attribute 'fast-math' of kind 'llvm' is true or false, not 'maybe' (at 'cpu')",
        "unknown kind 'lvm'; did you mean 'llvm'? (at 'x/y/host')",
        "'count' is 1 to 65536, not 0",
        "'keys' is a list of words, not [1]",
    )


def test_all_unknown_names_are_one_error_of_their_type():
    with pytest.raises(UnknownNameError) as caught:
        Target.parse("[gpu=ccuda,cpu=lvm]")
    assert len(caught.value.problems) == 2


def test_all_problems_of_arguments_are_reported_at_once():
    with pytest.raises(TargetError) as caught:
        Target("llvm", {"num-core": 1}, count=0, targets=5, host=5, links=[5, 6], executor="graf", keys=5)
    assert len(caught.value.problems) == 8


def test_all_problems_of_overrides_are_reported_at_once():
    with pytest.raises(TvmTargetError) as caught:
        Target.parse(JETSON).override({"cpu/num-core": 4, "gpu/arch": "sm_62", "gpuu/arch": "sm_62"})
    assert len(caught.value.problems) == 2


def test_all_conflicts_of_a_tree_are_reported_at_once():
    with pytest.raises(TargetError) as caught:
        Target.parse('{"targets": [{"kind": "zz"}, {"kind": "composite"}, {"kind": "cuda", "host": "@x"}]}').resolve()
    assert len(caught.value.problems) == 3


def test_a_chip_that_is_not_to_be_checked_may_be_named_in_any_order():
    changed = Target.parse(f"{JETSON}(cpu/mcpu=cortex-z99,cpu/unchecked=mcpu)")
    assert changed.at("cpu")["mcpu"] == "cortex-z99"


def test_trees_are_at_most_64_levels_deep():
    deep = "[a=" * 63 + "llvm" + "]" * 63
    assert Target.parse(deep).depth == 64
    assert Target.parse(str(Target.parse(deep))).depth == 64
    with pytest.raises(TargetError, match="deeper than 64 levels"):
        Target("composite", targets=[Target.parse(deep)])
    flat = {"kind": "llvm"}
    for _ in range(10_000):
        flat = {"kind": "composite", "targets": [flat]}
    with pytest.raises(TargetError, match="deeper than 64 levels"):
        Target.from_json(flat)
    for _ in range(10_000):
        flat = {"kind": "cuda", "host": flat}
    with pytest.raises(TargetError, match="deeper than 64 levels"):
        Target.from_json(flat)


def test_errors_can_be_pickled():
    with pytest.raises(TvmTargetError) as caught:
        Target.parse("llvm(")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.column) == (str(caught.value), caught.value.column)  # type: ignore[attr-defined]
