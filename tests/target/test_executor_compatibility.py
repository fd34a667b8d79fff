"""Compatibility of executors, runtimes, their options and hosts; hosts that disagree."""

import pytest

from tvmtarget import Executor, Target
from tvmtarget.errors import TargetError
from tvmtarget.target.executor_compatibility import PAIRS
from tvmtarget.target.kinds import kind_names


def problems(text):
    try:
        Target.parse(text).resolve()
    except TargetError as error:
        return list(error.problems)
    return []


# The pairs with interface-api and unpacked-api are those of TVM's `parametrize_aot_options` (v0.9.0).
@pytest.mark.parametrize(
    "text",
    [
        "llvm",
        "llvm(executor=graph,runtime=python)",
        "llvm(executor=graph(link-params=true),runtime=cpp)",
        "c(executor=graph,runtime=crt(system-lib=true))",
        "llvm(executor=aot)",
        "llvm(executor=aot,runtime=cpp)",
        "c(executor=aot(unpacked-api=true),runtime=crt)",
        "c(executor=aot(unpacked-api=true,interface-api=c),runtime=crt)",
        "c(executor=aot(unpacked-api=true,interface-api=packed),runtime=crt)",
        "c(executor=aot(interface-api=packed),runtime=crt)",
        "llvm(executor=aot(unpacked-api=true),runtime=crt(system-lib=true))",
        "llvm(executor=vm)",
        "llvm(executor=vm,runtime=cpp)",
        "[a=[cpu=c](host=@cpu,executor=aot(unpacked-api=true),runtime=crt),b=llvm](host=@b)",
    ],
)
def test_compatible_executors_and_runtimes_resolve(text):
    assert problems(text) == []


_AOT_CPP = "executor 'aot' on runtime 'cpp' needs "
_AOT_CRT = "executor 'aot' on runtime 'crt' needs "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("llvm(executor=vm,runtime=crt)", "executor 'vm' does not run on runtime 'crt'; it runs on: python, cpp"),
        ("llvm(executor=aot,runtime=python)", "executor 'aot' does not run on runtime 'python'; it runs on: cpp, crt"),
        ("llvm(executor=aot(unpacked-api=true))", _AOT_CPP + "unpacked-api=false"),
        (
            "llvm(executor=aot(unpacked-api=true,interface-api=c))",
            _AOT_CPP + "unpacked-api=false and interface-api=packed",
        ),
        ("c(executor=aot(interface-api=c),runtime=crt)", _AOT_CRT + "unpacked-api=true or interface-api=packed"),
        ("c(runtime=crt)", "executor 'graph' on runtime 'crt' needs system-lib=true"),
        ("llvm(executor=aot,runtime=crt)", _AOT_CRT + "system-lib=true for a host of kind 'llvm'"),
        ("numpy(executor=aot)", _AOT_CPP + "a host of kind llvm or c, not 'numpy'"),
        ("[gpu=cuda,cpu=numpy](executor=aot)", _AOT_CPP + "a host of kind llvm or c, not 'numpy'"),
        (
            "[a=[cpu=c](runtime=crt),b=llvm](host=@b)",
            "executor 'graph' on runtime 'crt' needs system-lib=true (at 'a')",
        ),
        (
            "[a=[cpu=c](runtime=crt(system-lib=true)),b=llvm](host=@b,executor=vm)",
            "executor 'vm' does not run on runtime 'crt'; it runs on: python, cpp (at 'a')",
        ),
        (
            "[a=[cpu=numpy]](runtime=crt(system-lib=true))",
            "executor 'graph' on runtime 'crt' needs a host of kind llvm or c, not 'numpy' (at 'a')",
        ),
    ],
)
def test_incompatible_executors_and_runtimes_are_rejected_with_option_and_place(text, expected):
    assert expected in problems(text)


def test_every_executor_has_a_default_runtime_and_every_runtime_is_used():
    assert {pair.executor for pair in PAIRS} == set(kind_names("executor"))
    assert {pair.runtime for pair in PAIRS} == set(kind_names("runtime"))


@pytest.mark.parametrize(
    ("executor", "runtime"), [("graph", "python"), ("aot", "cpp"), ("vm", "python")], ids=lambda kind: kind
)
def test_an_executor_gets_its_default_runtime(executor, runtime):
    resolved = Target.parse(f"llvm(executor={executor})").resolve()
    assert resolved.runtime.kind == runtime
    assert resolved.digest == Target.parse(f"llvm(executor={executor})").digest


@pytest.mark.parametrize(
    "text",
    [
        "[gpu=cuda(host=llvm(num-cores=4)),cpu=llvm](host=llvm(num-cores=4))",
        "[gpu=cuda(host=@a),a=llvm,b=llvm](host=@b)",
        "[gpu=cuda(host=llvm(num-cores=4)),cpu=llvm(num-cores=4)](host=@cpu)",
        "[a=[gpu=cuda](host=llvm(model=x)),b=[gpu=cuda](host=llvm(model=y))]",
        "[gpu=cuda(host=llvm),cpu=llvm(mcpu=cortex-a57)](host=@cpu)",
        "[gpu=cuda(host=llvm(num-cores=2),executor=graph),b=llvm(num-cores=4)](host=@b)",
    ],
)
def test_hosts_that_agree_or_drive_different_machines_resolve(text):
    assert problems(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[gpu=cuda(host=llvm(num-cores=4)),cpu=llvm](host=llvm(num-cores=8))",
            "hosts disagree: 'gpu' is driven by llvm(num-cores=4), and the root by llvm(num-cores=8); "
            "leave one out, or name a node: host=@host",
        ),
        (
            "[gpu=cuda(host=c),cpu=llvm](host=@cpu)",
            "hosts disagree: 'gpu' is driven by c, and the root by llvm; leave one out, or name a node: host=@cpu",
        ),
        (
            "[gpu=cuda(host=llvm(num-cores=4)),cpu=llvm(num-cores=8)]",
            "hosts disagree: 'gpu' is driven by llvm(num-cores=4), and the root by llvm(num-cores=8); "
            "leave one out, or name a node: host=@cpu",
        ),
        (
            "[m=[gpu=cuda(host=c)](host=llvm),n=llvm](host=@n)",
            "hosts disagree: 'm/gpu' is driven by c, and 'm' by llvm; leave one out, or name a node: host=@m/host",
        ),
    ],
)
def test_two_hosts_that_disagree_are_reported_with_both_paths(text, expected):
    assert expected in problems(text)


def test_an_executor_is_printed_as_in_a_target_s_text_and_as_code():
    aot = Executor("aot", {"unpacked_api": "1"})
    assert (str(aot), str(Executor("graph"))) == ("aot(unpacked-api=true)", "graph")
    assert eval(repr(aot)) == aot
    assert repr(Executor("graph")) == "Executor('graph')"


def test_options_that_no_program_can_have_are_rejected_where_they_are_read():
    for text, expected in (
        (
            "llvm(executor=aot(interface-api=woof))",
            "attribute 'interface-api' of kind 'aot' is packed or c, not 'woof'",
        ),
        (
            "llvm(executor=aot(constant-byte-alignment=12))",
            "attribute 'constant-byte-alignment' of kind 'aot' is a power of two, not 12",
        ),
        (
            "llvm(executor=aot(workspace-byte-alignment=0))",
            "attribute 'workspace-byte-alignment' of kind 'aot' is at least 1, not 0",
        ),
        ("llvm(mfloat-abi=wet)", "attribute 'mfloat-abi' of kind 'llvm' is soft or softfp or hard, not 'wet'"),
    ):
        with pytest.raises(TargetError) as error:
            Target.parse(text)
        assert str(error.value) == expected
