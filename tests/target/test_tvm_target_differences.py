"""Intended differences from TVM: each row of the table in docs/tvm.md has a test here, by its first column."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from tvmtarget import CompilationConfig, Runtime, Target, VirtualDevice, errors
from tvmtarget.cli.main import app
from tvmtarget.tags import creators
from tvmtarget.tags.registry import default_registry
from tvmtarget.target.kinds import kind_names, kind_of

parse = Target.parse


def refused(match, make):
    with pytest.raises(errors.TvmTargetError, match=match):
        make()


def _device_as_host():
    read = Target.from_tvm({"kind": "c", "host": {"kind": "cuda", "arch": "sm_53"}})
    assert read.host == parse("cuda(arch=sm_53)")
    refused("host 'cuda' is a kind that drives no other device", read.resolve)
    refused("drives no other device", read.to_tvm)


def _second_host():
    refused("target 'c' has the host 'llvm', and the conf", lambda: CompilationConfig("stackvm", ["c(host=llvm)"]))
    refused("hosts disagree", parse("[gpu=cuda(host=c),cpu=llvm](host=@cpu)").resolve)


def _order():
    config = CompilationConfig(targets=["onnxruntime", "llvm"])
    assert config.find_primitive_target_for_device("cpu").kind == "llvm"


def _unknown_kind():
    refused("unknown kind 'cudda'", lambda: CompilationConfig(targets=["llvm"]).find_primitive_target_for_kind("cudda"))


def _composite_in_configuration():
    refused("view it with from_target", lambda: CompilationConfig(targets=["[cuda,llvm]"]))


def _empty_composite():
    refused("a composite has no targets", Target.from_tvm({"kind": "composite"}).resolve)


def _chips():
    refused("is not a chip that LLVM knows", lambda: parse("llvm -mcpu=arm64"))
    assert Target.from_tvm({"kind": "llvm", "mcpu": "cake"})["unchecked"] == ("mcpu",)


def _two_architectures():
    read = Target.from_tvm({"kind": "llvm", "mattr": ["+neon", "-avx512f"]})
    refused("belong to no single architecture", read.resolve)


def _feature_names():
    read = parse("llvm -mcpu=cortex-m55 -mattr=+nomve,+woof")
    assert (read.features.has_dsp, read.features.has_mve) == (True, False)
    refused(r"'\+woof' of kind 'llvm' is not a feature of arm", read.resolve)
    parse("llvm -mcpu=cortex-m55 -mattr=+nomve,+woof -unchecked=mattr").resolve()


def _unknown_feature():
    with pytest.raises(AttributeError, match="no flag 'is_missing'; known: has_asimd"):
        _ = parse("cuda").features.is_missing


def _boards():
    assert parse("nvidia/jetson-nano").kind == "composite"
    assert parse("nvidia/jetson-nano:gpu")["registers_per_block"] == 32768


def _tag_names():
    assert parse("nvidia/nvidia-a100").tag == "nvidia/a100"
    changed = Target.from_tvm({"tag": "nvidia/nvidia-a100", "l2_cache_size_bytes": 12345})
    assert (changed.tag, changed["l2_cache_size_bytes"]) == ("nvidia/a100", 12345)
    assert "nvidia/nvidia-a100" in default_registry().info("nvidia/a100").aliases


def _no_model():
    assert Target.from_tvm("cuda -model=unknown")["model"] is None


def _words_in_json():
    assert Target.from_json({"kind": "llvm", "fast-math": "true", "num-cores": "4"})["num-cores"] == 4


def _webgpu():
    wrong = Target.from_tvm({"kind": "webgpu", "thread_warp_size": 32})
    refused("thread_warp_size 32 needs subgroups", wrong.resolve)
    refused("means thread_warp_size=32, not 8", parse("webgpu(supports_subgroups=true,thread_warp_size=8)").resolve)


def _measured_defaults():
    measured = (("cuda", "arch"), ("nvptx", "mcpu"), ("rocm", "mcpu"), ("llvm", "mtriple"))
    assert all(parse(kind).resolve()[name] is None for kind, name in measured)


def _trn():
    assert parse("trn")["partition_size"] == 128


def _equality():
    assert parse("cuda") == parse("cuda")
    assert {parse("cuda"): 1}[parse("cuda")] == 1
    cuda = VirtualDevice(device_type="cuda", virtual_device_id=3, target="cuda")
    assert cuda.join(VirtualDevice(device_type="cuda", virtual_device_id=3, target="cuda")) == cuda


def _command_lines():
    assert parse("llvm -mcpu=cortex-a53") == parse('{"kind": "llvm", "mcpu": "cortex-a53"}')


def _texts():
    assert str(parse("llvm -mcpu=cortex-a53")) == "llvm(mcpu=cortex-a53)"
    assert str(Runtime("crt", {"system-lib": True})) == "crt(system-lib=true)"


def _numbers():
    refused("is a whole number, not '12abc'", lambda: parse("llvm -num-cores=12abc"))


def _models():
    refused("unknown model 'myphone' of 'arm'", lambda: creators.arm_cpu("myphone"))
    refused("unknown Hexagon version 'v67t'", lambda: creators.hexagon("v67t"))


def _llvm_options():
    read = parse("llvm -cl-opt=---unroll-factor:uint=0")
    refused("in cl-opt is not written as", read.resolve)


def _nested_attributes():
    refused("", lambda: Target.from_json({"kind": "zz", "her_maps": {"a": 1}}))


def _no_current_target():
    assert not hasattr(Target, "current")


def _tvmc_options():
    group: Any = typer.main.get_command(app)
    show = group.commands["show"]
    for option in ("--pass-config", "--disabled-pass", "--dump-code", "--workspace-pools", "--desired-layout"):
        problem = f"{option} is an option of tvmc that is not supported"
        refused(problem, lambda option=option: show.make_context("show", ["c", option]))
    option = "--workspace-pools-targets=sram:c"
    refused("no such option --workspace-pools-targets", lambda: show.make_context("show", ["c", option]))


def _registries():
    assert "aot" in kind_names("executor")
    assert "crt" in kind_names("runtime")
    assert "interface-api" in {row.name for row in kind_of("aot", "executor").attributes}
    refused("unknown executor kind 'woof'", lambda: kind_of("woof", "executor"))


DIFFERENCES = {
    "a GPU as host": _device_as_host,
    "a second host": _second_host,
    "order of code generators": _order,
    "queries for a kind that is not there": _unknown_kind,
    "a `composite` in a configuration": _composite_in_configuration,
    "a `composite` without devices": _empty_composite,
    "names of chips": _chips,
    "features of two architectures": _two_architectures,
    "names of features": _feature_names,
    "flags of `features`": _unknown_feature,
    "tags of boards": _boards,
    "names of tags": _tag_names,
    "the model `unknown`": _no_model,
    "texts for numbers and booleans": _words_in_json,
    "a `webgpu` with another warp": _webgpu,
    "what the building machine is": _measured_defaults,
    "defaults of `trn`": _trn,
    "equality": _equality,
    "command lines": _command_lines,
    "the text of a target": _texts,
    "numbers with a tail": _numbers,
    "creators of unknown models": _models,
    "malformed `cl-opt`": _llvm_options,
    "attributes with maps": _nested_attributes,
    "the current target": _no_current_target,
    "options of tvmc for passes, layouts, dumps and workspace pools": _tvmc_options,
    "lists of executors, runtimes and their options": _registries,
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_what_is_different_on_purpose(name):
    DIFFERENCES[name]()


def test_the_documentation_lists_every_difference_and_no_other():
    text = (Path(__file__).parents[2] / "docs" / "tvm.md").read_text(encoding="utf-8")
    section = text.partition("### Targets and configurations\n")[2].partition("\n#")[0]
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| [^|]+ \|$", section, re.MULTILINE)
    assert rows[1:] == list(DIFFERENCES)  # the first is the head of the table
