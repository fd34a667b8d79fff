"""One system in every spelling is one target; files for people."""

import json

import pytest

from tvmtarget import Link, Memory, Target
from tvmtarget.errors import TextError

ONE_LINE = (
    "composite[gpu=cuda(arch=sm_53,max_shared_memory_per_block=49152,max_threads_per_block=1024,"
    "registers_per_block=32768),cpu=llvm(+neon,device=arm_cpu,mcpu=cortex-a57,mtriple=aarch64-linux-gnu,num-cores=4,"
    'keys=arm_cpu+cpu)](memory=[{"name":"dram","bytes":4294967296,"of":["gpu","cpu"]}])'
)

TOML = """
# Jetson Nano
kind = "composite"
host = "@cpu"
memory = [{ name = "dram", bytes = 4294967296, of = ["cpu", "gpu"] }]

[[targets]]
name = "gpu"
kind = "cuda"
arch = "sm_53"
max_shared_memory_per_block = 49152
max_threads_per_block = 1024
registers_per_block = 32768

[[targets]]
name = "cpu"
kind = "llvm"
device = "arm_cpu"
keys = ["arm_cpu", "cpu"]
mtriple = "aarch64-linux-gnu"
mcpu = "cortex-a57"
mattr = ["+neon"]
num-cores = 4
"""


def test_a_tree_by_tag_text_json_toml_and_code_has_one_digest():
    of_tag = Target.parse("nvidia/jetson-nano")
    gpu = {
        "arch": "sm_53",
        "max_shared_memory_per_block": 49152,
        "max_threads_per_block": "1024",
        "registers_per_block": 32768,
        "thread_warp_size": 32,
    }
    cpu = {"device": "arm_cpu", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a57", "mattr": "+neon", "num_cores": 4}
    of_code = Target(
        "composite",
        targets=[Target("cuda", gpu, name="gpu"), Target("llvm", cpu, name="cpu", keys=["arm_cpu", "cpu"])],
        host="@cpu",
        memory=[Memory(name="dram", bytes=2**32, of=("gpu", "cpu"))],
    )
    spellings = [
        of_code,
        Target.parse(ONE_LINE),
        Target.parse(TOML),
        Target.from_toml(TOML),
        Target.parse(json.dumps(of_code.to_json())),
        Target.from_json(of_tag.to_json()),
        Target.parse(of_tag.pretty()),
        of_tag.resolve(),
    ]
    assert {spelling.digest for spelling in spellings} == {of_tag.digest}


def test_a_part_and_the_command_line_form_have_one_digest():
    line = (
        "cuda -arch=sm_53 -max_shared_memory_per_block=49152 -max_threads_per_block=1024 -registers_per_block=32768 "
        "--host='llvm -keys=arm_cpu,cpu -device=arm_cpu -mtriple=aarch64-linux-gnu -mcpu=cortex-a57 -mattr=+neon "
        "-num-cores=4'"
    )
    assert Target.parse(line).digest == Target.parse("nvidia/jetson-nano:gpu").digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('kind = "llvm"\nnum-cores = ', "invalid value (at end of document)"),
        (
            'kind = "llvm"\nkind = "c"',
            "cannot overwrite a value (at end of document)",
        ),
    ],
)
def test_bad_toml_is_reported_with_its_line(text, message):
    with pytest.raises(TextError) as error:
        Target.parse(text)
    assert str(error.value) == f"the text of a target is not TOML: {message}"


def test_a_tree_for_people_has_a_line_for_each_node(golden):
    rack = Target.parse("nvidia/a100-rack").override({"node0/cpu/+": ["-avx512f"], "executor": "vm"})
    linked = Target(
        "composite",
        targets=[Target("cuda", name="a", count=4), Target("c", {"model": "two words"}), Target.parse("[[llvm]]")],
        links=[Link(src="a", dst="c", latency_ns=5)],
        name="box",
    )
    golden("target/pretty.golden", "\n\n".join(tree.pretty() for tree in (rack, linked, Target("llvm"))) + "\n")


@pytest.mark.parametrize("source", ['llvm(mattr="")', {"kind": "llvm", "mattr": [""]}, {"kind": "llvm", "mattr": ""}])
def test_an_empty_text_is_no_feature(source):
    assert Target.parse(source) == Target.parse("llvm")
