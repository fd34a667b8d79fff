"""Intended differences from TVM: the rows of docs/tvm.md, "Differences on purpose"."""

from pathlib import Path

import pytest

from tvmtarget import Target
from tvmtarget.errors import TvmTargetError
from tvmtarget.target.kinds import find_kind

PAGE = (Path(__file__).parents[2] / "docs" / "tvm.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Differences on purpose")[2].partition("\n## ")[0]
WRITTEN = [line.split("`")[1] for line in SECTION.splitlines() if line.startswith("| `")]

REFUSED = {
    "llvm -mcpu=dummy": "mcpu 'dummy' of kind 'llvm' is not a chip that LLVM knows",
    "llvm -num-cores=12abc": "is a whole number, not '12abc'",
    "ethos-n -myopt=value, llvm": "kind 'ethos-n' has no attribute 'myopt'",
    "llvm -mtriple=aarch64-linux-gnu -mattr=+sve2,-sve": r"features \+sve2 and -sve contradict",
    "llvm -mtriple=riscv32-linux-gnu -mattr=+64bit": r"feature \+64bit contradicts mtriple 'riscv32-linux-gnu'",
    "cuda -host=nvidia/jetson-nano": "is a system of several devices",
}

# Of the features of a target: what it has, and what it has not.
READ = {
    "llvm -mtriple=arm64-apple-macos": ("neon", ""),
    "llvm -mtriple=aarch64-linux-gnu -mattr=+v9a": ("v8.5a", "sve"),
    "llvm -mtriple=x86_64-linux-gnu -mcpu=knl": ("avx512f", "avx512er avx512pf"),
    "cmsis-nn, c": ("", ""),
}


def test_every_difference_is_documented_and_tested():
    assert sorted(WRITTEN) == sorted([*REFUSED, *READ])


@pytest.mark.parametrize(("line", "message"), REFUSED.items())
def test_texts_that_tvm_silently_accepts_are_rejected(line, message):
    with pytest.raises(TvmTargetError, match=message):
        Target.parse(line).resolve()


@pytest.mark.parametrize(("line", "features"), READ.items())
def test_texts_with_other_features_than_in_tvm(line, features):
    target = Target.parse(line).resolve()
    there, not_there = (set(names.split()) for names in features)
    assert there <= target.features.names
    assert not not_there & target.features.names


def test_code_generators_of_a_list_are_children():
    assert [child.kind for child in Target.parse("cmsis-nn, c").targets] == ["cmsis-nn", "c"]


def test_an_apple_triple_is_aarch64():
    assert Target.parse("llvm -mtriple=arm64-apple-macos").features.is_aarch64


# Kind, option, type, default: `src/relay/backend/contrib/*` at v0.18.0.
OPTIONS = [
    ("cmsis-nn", "debug_last_error", "bool", False),
    ("ethos-u", "accelerator_config", "str", None),  # a default would change digests that tags have
    ("ethos-u", "enable_cascader", "bool", False),
    ("ethos-u", "dev_max_open_plans", "str", "8"),
    ("ethos-n", "variant", "str", "n78"),
    ("ethos-n", "tops", "str", "1"),
    ("ethos-n", "strategy0", "bool", True),
    ("ethos-n", "inline_non_compute_intensive_partitions", "bool", True),
    ("mrvl", "mcpu", "str", "cn10ka"),
    ("mrvl", "num_tiles", "int", 8),
    ("mrvl", "mattr", "str", None),
    ("vitis-ai", "export_runtime_module", "str", None),
    ("tensorrt", "max_workspace_size", "int", 1 << 30),
    ("cutlass", "sm", "int", 80),
    ("cutlass", "split_k_slices", "list[int]", (1,)),
]


@pytest.mark.parametrize(("kind", "name", "type_", "default"), OPTIONS)
def test_a_code_generator_has_the_options_of_tvm(kind, name, type_, default):
    assert find_kind(kind).attribute(name).type == type_
    assert Target(kind)[name] == default


@pytest.mark.parametrize(
    "name",
    [
        "compute-library",
        "ethos-n",
        "ethos-u",
        "cmsis-nn",
        "vitis-ai",
        "bnns",
        "tensorrt",
        "dnnl",
        "cutlass",
        "clml",
        "mrvl",
    ],
)
def test_a_code_generator_of_tvmc_precedes_a_device(name):
    device = "cuda" if name in ("tensorrt", "cutlass") else "opencl" if name == "clml" else "llvm"
    target = Target.parse(f"{name}, {device}")
    assert find_kind(name).is_external
    assert [child.kind for child in target.resolve().targets] == [name, device]
