"""Hosts: which kinds can be one, in every form of a target, and equal hosts as references to one node."""

import pytest

from tvmtarget import Target, build
from tvmtarget.errors import TargetError
from tvmtarget.ir.module import IRModule
from tvmtarget.target.kinds import Kind, find_kind, kind_names

parse = Target.parse

CANNOT = "drives no other device; kinds that do: c, cuda_host, hexagon, llvm, numpy, stackvm"


@pytest.mark.parametrize(
    ("read", "problems"),
    [
        (lambda: parse("cuda(host=cuda)"), [f"host 'cuda' is a kind that {CANNOT}"]),
        (lambda: parse("cuda, opencl"), [f"host 'opencl' is a kind that {CANNOT}"]),
        (lambda: parse("cuda -host=metal"), [f"host 'metal' is a kind that {CANNOT}"]),
        (lambda: parse('{"kind": "cuda", "host": {"kind": "cuda"}}'), [f"host 'cuda' is a kind that {CANNOT}"]),
        (lambda: Target.from_json({"kind": "cuda", "host": "ext_dev"}), [f"host 'ext_dev' is a kind that {CANNOT}"]),
        (lambda: Target.from_tvm({"kind": "c", "host": {"kind": "cuda"}}), [f"host 'cuda' is a kind that {CANNOT}"]),
        (lambda: Target("cuda", host="onnxruntime"), [f"host 'onnxruntime' is a kind that {CANNOT}"]),
        (lambda: parse("nvidia/jetson-nano(host=@gpu)"), [f"host '@gpu' is of kind 'cuda', which {CANNOT}"]),
        (lambda: parse("nvidia/jetson-nano").override({"gpu/host": "@gpu"}), [
            f"host '@gpu' is of kind 'cuda', which {CANNOT} (at 'gpu')"
        ]),
        (lambda: parse("[gpu=cuda,cpu=llvm](host=@gpu)"), [f"host '@gpu' is of kind 'cuda', which {CANNOT}"]),
        (lambda: parse("[n=[gpu=cuda(host=@gpu),cpu=llvm](host=@gpu)](host=opencl)"), [
            f"host 'opencl' is a kind that {CANNOT}",
            f"host '@gpu' is of kind 'cuda', which {CANNOT} (at 'n')",
            f"host '@gpu' is of kind 'cuda', which {CANNOT} (at 'n/gpu')",
        ]),
        (lambda: parse("cuda(host=llvm(host=opencl))"), [
            "host 'llvm' has a host of its own, but a host drives itself",
            f"host 'opencl' is a kind that {CANNOT} (at 'host')",
        ]),
        (lambda: parse("[n=[gpu=cuda,cpu=llvm],cpu=llvm](host=@n)"), [
            "host '@n' is a system of several devices; name the one that drives, as in @node0/cpu"
        ]),
        (lambda: parse("[gpu=cuda(host=@nowhere),x=cuda(host=@gpu),cpu=llvm]"), [
            "host '@nowhere' names no node of the tree; it has: cpu, gpu, x (at 'gpu')",
            f"host '@gpu' is of kind 'cuda', which {CANNOT} (at 'x')",
        ]),
        (lambda: parse("[a=llvm(host=@b),b=llvm(host=@a),gpu=cuda(host=cuda)]"), [
            f"host 'cuda' is a kind that {CANNOT} (at 'gpu')",
            "hosts drive each other in a cycle, @a -> @b -> @a; let one drive itself (at 'a')",
        ]),
    ],
)  # fmt: skip
def test_kinds_that_cannot_host_are_rejected_everywhere_all_at_once(read, problems):
    with pytest.raises(TargetError) as caught:
        read().resolve()
    assert list(caught.value.problems) == problems


def test_a_kind_that_cannot_host_is_rejected_as_an_argument_of_build():
    module = IRModule.from_onnx("examples/digits.onnx")
    with pytest.raises(TargetError, match="host 'cuda' is a kind that drives no other device"):
        build(module, "[cpu=llvm]", target_host="cuda")


def test_every_kind_of_cpu_can_host_and_plugins_declare_it():
    """REQUIREMENTS REG: the row of a kind states what it can do."""
    able = {name for name in kind_names() if (kind := find_kind(name)) is not None and kind.can_host}
    assert able == {"c", "cuda_host", "hexagon", "llvm", "numpy", "stackvm"}
    for name in able:
        assert parse(f"cuda(host={name})").resolve().at("host").kind == name
    assert not Kind(name="npu").can_host


EQUAL = [
    ("[gpu=cuda(host=llvm(num-cores=4)),cpu=llvm(num-cores=4)](host=@cpu)", "[gpu=cuda,cpu=llvm(num-cores=4)]", "@cpu"),
    ("[gpu=cuda(host=llvm(num-cores=4)),cpu=llvm(num-cores=4)]", "[gpu=cuda,cpu=llvm(num-cores=4)]", "@cpu"),
    ("[gpu=cuda(host=llvm),cpu=llvm(count=2)]", "[gpu=cuda,cpu=llvm(count=2)]", "@cpu"),
    ("[gpu=cuda(host=llvm),a=llvm,b=llvm](host=@b)", "[gpu=cuda,a=llvm,b=llvm](host=@b)", "@b"),
    ("[gpu=cuda(host=c(mcpu=cortex-m4))](host=c(mcpu=cortex-m4))", "[gpu=cuda](host=c(mcpu=cortex-m4))", "@host"),
    ("[gpu=llvm(host=c),cpu=c]", "[gpu=llvm(host=@cpu),cpu=c]", "@cpu"),
    ("[gpu=llvm(mcpu=haswell,host=llvm(mcpu=haswell))]", "[gpu=llvm(mcpu=haswell)]", None),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "host"), EQUAL)
def test_an_equal_host_becomes_a_reference_to_the_node(one, other, host):
    """REQUIREMENTS CONS: duplicates are checked and updated."""
    resolved = parse(one).resolve()
    assert resolved.at("gpu").host == host
    assert resolved.digest == parse(other).resolve().digest == parse(one).digest == parse(other).digest
    assert resolved.tuning_key("graph") == parse(other).resolve().tuning_key("graph") == parse(one).tuning_key("graph")
    assert resolved.resolve() == resolved


def test_the_written_host_of_a_system_is_one_of_its_children_but_no_other_machine():
    assert parse("[gpu=cuda,cpu=llvm](host=llvm)").resolve().host == "@cpu"
    cluster = parse("[node=[gpu=cuda](host=llvm(num-cores=8)),other=llvm(num-cores=8)](host=@other)").resolve()
    assert cluster.at("node").host == parse("llvm(num-cores=8)")


def test_equal_hosts_that_no_reference_reaches_stay_written():
    """The inner `top` shadows the outer one, which no reference can name from there."""
    text = "[n=[gpu=cuda(host=llvm(num-cores=4)),top=opencl],top=llvm(num-cores=4)](host=@top)"
    assert parse(text).resolve().at("n/gpu").host == parse("llvm(num-cores=4)")


@pytest.mark.parametrize("other", ["num-cores=8", "num-cores=4,mcpu=haswell"])
def test_hosts_that_differ_in_one_attribute_contradict_each_other(other):
    text = f"[n=[gpu=cuda(host=llvm(num-cores=4,mcpu=skylake)),cpu=llvm({other})](host=@cpu)]"
    with pytest.raises(TargetError, match=r"hosts disagree: 'n/gpu' is driven by llvm\(.*\), and 'n' by llvm\("):
        parse(text).resolve()


def test_a_shared_host_keeps_the_origin_of_what_was_written():
    resolved = parse("[gpu=cuda(host=llvm),cpu=llvm]").resolve()
    assert str(resolved.origin("gpu/host")) == "text '[gpu=cuda(host=llvm),cpu=llvm]'"
