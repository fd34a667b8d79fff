"""What errors say: one line each, with the value, the place and what would be right; all of a stage at once."""

import pickle

import pytest

from tvmtarget import Executor, Link, Memory, Runtime, Target
from tvmtarget.errors import TargetError, TvmTargetError, UnknownNameError

JETSON = "nvidia/jetson-nano"

TEXTS = {
    # unknown names
    "lvm": "unknown kind 'lvm'; did you mean 'llvm'?",
    "[gpu=cuda,cpu=lvm]": "unknown kind 'lvm'; did you mean 'llvm'? (at 'cpu')",
    "[n=[cpu=lvm]]": "unknown kind 'lvm'; did you mean 'llvm'? (at 'n/cpu')",
    "cuda(host=lvm)": "unknown kind 'lvm'; did you mean 'llvm'? (at 'host')",
    "cuda(host=lvm(num-cores=4))": "unknown kind 'lvm'; did you mean 'llvm'? (at 'host')",
    "cmsis-n, c": "unknown kind 'cmsis-n'; did you mean 'cmsis-nn'?",
    "demo/rackk": "unknown tag 'demo/rackk'; did you mean 'demo/rack' or 'demo/robot'?",
    "[n=demo/nodee]": "unknown tag 'demo/nodee'; did you mean 'demo/node' or 'demo/robot'? (at 'n')",
    "zzzz/zzzz": "unknown tag 'zzzz/zzzz'",
    "llvm(num-core=4)": "kind 'llvm' has no attribute 'num-core'; did you mean 'num-cores'?",
    "[cpu=llvm(num-core=4)]": "kind 'llvm' has no attribute 'num-core'; did you mean 'num-cores'? (at 'cpu')",
    "llvm(executor=graf)": "unknown executor kind 'graf'; did you mean 'graph'?",
    "llvm(runtime=pyton)": "unknown runtime kind 'pyton'; did you mean 'python'?",
    "llvm(executor=aot(unpacked=1))": "kind 'aot' has no attribute 'unpacked'; did you mean 'unpacked-api'?",
    "llvm(executor=vm(x=1))": "kind 'vm' has no attribute 'x'; it has none",
    f"{JETSON}:gpuu": f"no node 'gpuu' in target '{JETSON}'; did you mean 'gpu'?",
    "nvidia/a100-rack:gpu": "no node 'gpu' in target 'nvidia/a100-rack'; did you mean 'node0/gpu' or 'node1/gpu'?",
    f"{JETSON}(cpu/num-core=4)": "no attribute 'cpu/num-core' in kind 'llvm'; did you mean 'num-cores'?",
    f"{JETSON}(cpuu/num-cores=4)": f"no node 'cpuu' in target '{JETSON}'; did you mean 'cpu'?",
    f"{JETSON}(gp=4)": "no attribute 'gp' in kind 'composite'; did you mean 'gpu/'?",
    f"{JETSON}(~cpu/model)": "'cpu/model' is not set; set are: device, mattr, mcpu, mtriple, num-cores",
    # wrong values
    "llvm(num-cores=many)": "attribute 'num-cores' of kind 'llvm' is a whole number, not 'many'",
    "llvm(num-cores=4.5)": "attribute 'num-cores' of kind 'llvm' is a whole number, not '4.5'",
    "llvm(num-cores=٣)": "attribute 'num-cores' of kind 'llvm' is a whole number, not '٣'",
    "llvm(num-cores=9007199254740992)": (
        "attribute 'num-cores' of kind 'llvm' is at most 2**53 - 1, not 9007199254740992"
    ),
    "llvm(fast-math=maybe)": "attribute 'fast-math' of kind 'llvm' is true or false, not 'maybe'",
    'llvm(libs={"a":1})': "attribute 'libs' of kind 'llvm' is a list, not {'a': 1}",
    "llvm(model=[1])": "attribute 'model' of kind 'llvm' is text, not [1]",
    "llvm(num-cores=4,num_cores=5)": "attribute 'num-cores' of kind 'llvm' is given twice",
    "llvm(+neon,-neon)": "attribute 'mattr' of kind 'llvm' has feature 'neon' both added and removed",
    'llvm(mattr=["a b"])': "attribute 'mattr' of kind 'llvm' holds features such as '+avx2', not '+a b'",
    "cuda(+neon)": "kind 'cuda' has no features, so '+neon' says nothing",
    f"{JETSON}(+neon)": "kind 'composite' has no features, so '+neon' says nothing",
    f"{JETSON}(cpu/num-cores=many)": "attribute 'cpu/num-cores' of kind 'llvm' is a whole number, not 'many'",
    "llvm(~model)": "nothing to unset in 'llvm'; '~' takes back what a tag says",
    "cuda(host/num-cores=4)": (
        "'host/num-cores' is a path, and paths change what a tag says; write the attribute inside its node"
    ),
    "llvm(count=0)": "'count' is 1 to 65536, not 0",
    "llvm(count=some)": "'count' is a whole number, not 'some'",
    "llvm(keys=[1])": "'keys' is a list of words, not [1]",
    "llvm(links=a)": "'links' is a list of objects, not 'a'",
    "llvm(links=[5])": "a link is an object, not 5",
    # names and links
    "[llvm,llvm]": "two children are called 'llvm'; name them, as in a=llvm,b=llvm",
    "[a=llvm,a=cuda]": "two children are called 'a'; name them, as in a=cuda,b=cuda",
    "[gpu.0=cuda]": "'gpu.0' is no name; a dot and a number at its end stand for a replica, as in gpu.0 (at 'gpu.0')",
    "[host=cuda]": "a child called 'host' drives its siblings, which a 'cuda' cannot; name it otherwise",
    "[host=llvm](host=llvm)": (
        "a child called 'host' and a host of its own stand in one node; name the child otherwise"
    ),
    '[a=llvm,b=c](links=[{"src":"a","dst":"d"}])': "links or memory name 'd', which is no child; it has: a, b, host",
    '[gpu=cuda](links=[{"src":"gpu","dst":"gpu.1"}])': (
        "links or memory name 'gpu.1', which is no child; did you mean 'gpu'?"
    ),
    '[a=llvm](memory=[{"name":"m","of":["b"]}])': "links or memory name 'b', which is no child; it has: a, host",
    '[a=llvm](memory=[{"name":"m"},{"name":"m"}])': "two memories are called 'm'",
    # lists of tvmc
    "cuda, llvm, c": "a list is of code generators, then at most one device and its host, not cuda, llvm, c",
    "cuda, onnxruntime": "a list is of code generators, then at most one device and its host, not cuda, onnxruntime",
    "cuda(host=c), llvm": "two hosts are given for 'cuda': its own, and 'llvm' after it",
}


@pytest.mark.parametrize(("text", "problem"), TEXTS.items(), ids=range(len(TEXTS)))
def test_a_wrong_text_is_told_in_one_line(text, problem):
    with pytest.raises(TvmTargetError) as caught:
        Target.parse(text)
    if text.startswith("zzzz"):
        assert str(caught.value).startswith(problem)
    else:
        assert str(caught.value) == problem


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
    ({"targets": [], "devices": []}, "'targets' and 'devices' are two names of one thing; leave one out"),
    ({"kind": "llvm", "schema": 2}, "target schema 2 is not known here; this version reads schema 1"),
    ({"kind": "llvm", "count": True}, "'count' is a whole number, not True"),
    ({"kind": "llvm", "keys": 5}, "'keys' is a list of words, not 5"),
    ({"kind": "llvm", "executor": 5}, "executor is a kind or an object with 'kind', not 5"),
    ({"kind": "llvm", "executor": {"kind": 5}}, "executor is a kind or an object with 'kind', not {'kind': 5}"),
    ({"kind": "llvm", "links": [{"src": 1, "dst": "a"}]}, "'src' of a link is text, not 1"),
    ({"kind": "llvm", "links": [{"src": "a"}]}, "a link needs 'dst', and {'src': 'a'} has none"),
    (
        {"kind": "llvm", "memory": [{"name": "m", "byte": 1}]},
        "a memory has no field 'byte'; did you mean 'bytes'?",
    ),
    ({"kind": "llvm", "memory": [{"name": "m", "bytes": -1}]}, "'bytes' of a memory is at least 0, not -1"),
    ({"kind": "llvm", "memory": [{"name": "m", "of": "a"}]}, "'of' of a memory is a list, not 'a'"),
    ({"kind": "llvm", "+": "neon"}, "'+' is a list of features, not 'neon'"),
    ({"tag": JETSON, "~": 5}, "'~' is a list of paths, not 5"),
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
def test_wrong_json_is_told_in_one_line(data, problem):
    with pytest.raises(TvmTargetError) as caught:
        Target.from_json(data)
    assert str(caught.value) == problem


ARGUMENTS = [
    (lambda: Target(5), "'kind' is the name of a kind, not 5"),
    (lambda: Target("zz"), "unknown kind 'zz'"),
    (lambda: Target("llvm", 5), "attributes are a mapping of names to values, not 5"),
    (lambda: Target("llvm", {5: 1}), "kind 'llvm' has no attribute 5"),
    (lambda: Target("llvm", targets="x"), "'targets' is a list of targets, not 'x'"),
    (lambda: Target("llvm", targets=5), "'targets' is a list of targets, not 5"),
    (lambda: Target("llvm", targets=[5]), "a target is a text or an object, not 5"),
    (lambda: Target("llvm", host=5), "a target is a text or an object, not 5"),
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
    (lambda: Link(src="a"), "a link needs 'dst', and {'src': 'a'} has none"),
    (lambda: Memory(name="m", bytes=2**53), "'bytes' of a memory is at most 9007199254740991, not 9007199254740992"),
    (lambda: Target.parse(5), "a target is read from text, not 5"),
    (lambda: Target("llvm").override(5), "changes are a mapping of paths to values, not 5"),
    (lambda: Target("llvm").override({"model": None}), "'model' cannot be nothing; take it back with unset"),
    (lambda: Target("cuda").override({"host/model": "x"}), "no host is written here to be changed"),
    (
        lambda: Target.parse("[gpu=cuda(count=8),cpu=llvm](host=llvm)").override({"gpu.0/model": "x"}),
        "'gpu.0' is one of 8 replicas, which are all alike; change 'gpu'",
    ),
    (lambda: Target.parse("cuda(host=@x)").at("host"), "host '@x' of 'the root' names no node of the tree"),
]


@pytest.mark.parametrize(("call", "problem"), ARGUMENTS, ids=range(len(ARGUMENTS)))
def test_wrong_arguments_are_told_in_one_line(call, problem):
    with pytest.raises(TvmTargetError) as caught:
        call()
    assert str(caught.value).startswith(problem)
    assert "\n" not in str(caught.value)


UNRESOLVED = {
    "composite": "a composite has no targets; give it children: composite[cpu=llvm]",
    "[a=[]]": "a composite has no targets; give it children: composite[cpu=llvm] (at 'a')",
    "cuda(host=@x)": "host '@x' names no node of the tree; write the host itself: host=llvm",
    "[gpu=cuda,cpu=llvm](host=@self)": "host '@self' names no node of the tree; it has: cpu, gpu",
    "[gpu=cuda,cpu=llvm](host=@cpuu)": "host '@cpuu' names no node of the tree; did you mean 'cpu'?",
    "[gpu=cuda(host=@.),cpu=llvm]": "host '@.' names no node of the tree; it has: cpu, gpu (at 'gpu')",
    "[gpu=cuda,cpu=llvm](host=@gpu/host)": "host '@gpu/host' names no node of the tree; it has: cpu, gpu",
    "[cpu=llvm(count=2)](host=@cpu.5)": "host '@cpu.5' names no node of the tree; did you mean 'cpu'?",
    "[gpu=cuda,n=[cpu=llvm]](host=@n)": (
        "host '@n' is a system of several devices; name the one that drives, as in @node0/cpu"
    ),
    "cuda(host=demo/node)": (
        "host 'composite' is a system of several devices; name the one that drives, as in @node0/cpu"
    ),
    "cuda(host=llvm(host=c))": "host 'llvm' has a host of its own, but a host drives itself",
    "[a=llvm(host=@b),b=llvm(host=@a)]": (
        "hosts drive each other in a circle, @a -> @b -> @a; let one drive itself (at 'a')"
    ),
    '{"kind": "zz"}': "kind 'zz' is not registered here; install the package that brings it",
    '{"kind": "cuda", "host": {"kind": "zz"}}': (
        "kind 'zz' is not registered here; install the package that brings it (at 'host')"
    ),
}


@pytest.mark.parametrize(("text", "problem"), UNRESOLVED.items(), ids=range(len(UNRESOLVED)))
def test_a_contradiction_is_told_when_the_tree_is_resolved(text, problem):
    with pytest.raises(TargetError) as caught:
        Target.parse(text).resolve()
    assert str(caught.value) == problem


def test_all_problems_of_a_tree_are_told_at_once():
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


def test_all_problems_of_arguments_are_told_at_once():
    with pytest.raises(TargetError) as caught:
        Target("llvm", {"num-core": 1}, count=0, targets=5, host=5, links=[5, 6], executor="graf", keys=5)
    assert len(caught.value.problems) == 8


def test_all_problems_of_overrides_are_told_at_once():
    with pytest.raises(TvmTargetError) as caught:
        Target.parse(JETSON).override({"cpu/num-core": 4, "gpu/arch": "sm_62", "gpuu/arch": "sm_62"})
    assert len(caught.value.problems) == 2


def test_all_conflicts_of_a_tree_are_told_at_once():
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
    assert (str(again), again.column) == (str(caught.value), caught.value.column)
