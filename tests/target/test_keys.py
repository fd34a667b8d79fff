"""Keys of targets: which changes they depend on, and a second implementation of them."""

import shutil
import subprocess
from pathlib import Path

import pytest
from blocks import answered, inputs
from hypothesis import given
from hypothesis import strategies as st
from trees import trees

from tvmtarget import Target
from tvmtarget.errors import TargetError
from tvmtarget.target.identity import canonical

GOLDEN = "target/keys.golden"
HERE = Path(__file__).parent


def keys_of_leaves(tree, key):
    return sorted(key(node) for _, node in tree.walk() if not node.is_composite)


def test_views_and_keys(golden):
    def answer(text):
        target = Target.parse(text)
        views = ("graph", "executor") if target.is_composite else ("codegen", "kernel")
        keys = {"codegen": lambda _: target.codegen_key}
        return [
            line
            for view in views
            for line in (f"  {canonical(target.view(view))}", f"  {keys.get(view, target.tuning_key)(view)}")
        ]

    golden(GOLDEN, answered(GOLDEN, answer))


def test_another_language_computes_the_same_keys():
    node = shutil.which("node")
    if node is None:
        pytest.skip("node.js is not installed")
    done = subprocess.run([node, "digest.mjs", "keys.golden"], cwd=HERE, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (f"{2 * len(inputs(GOLDEN))} digests agree\n", 0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("llvm(mcpu=haswell)", "llvm(mcpu=haswell,+avx2,+fma)"),
        ("llvm(mtriple=x86_64-pc-linux-gnu)", "llvm(mtriple=x86_64-unknown-linux-gnu)"),
        ("llvm(mtriple=amd64-linux-gnu)", "llvm(mtriple=x86_64-linux-gnu)"),
        ("llvm(num-cores=4)", "llvm(num-cores=4,opt-level=3,jit=orcjit,libs=cblas,clock-mhz=2000)"),
        ("cuda(arch=sm_80)", "cuda(arch=sm_80,host=c,executor=aot,count=8,peak-gflops-float16=312000)"),
        ("nvidia/a100", "nvidia/nvidia-a100"),
        ("nvidia/jetson-nano:gpu", "cuda -keys=cuda,gpu -arch=sm_53 -max_shared_memory_per_block=49152 "
         "-max_threads_per_block=1024 -thread_warp_size=32 -registers_per_block=32768"),
    ],
)  # fmt: skip
def test_changes_that_do_not_affect_a_kernel_do_not_change_its_key(one, other):
    assert Target.parse(one).tuning_key() == Target.parse(other).tuning_key()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("llvm", "c"),
        ("llvm(mcpu=haswell)", "llvm(mcpu=skylake)"),
        ("llvm(mcpu=haswell)", "llvm(mcpu=haswell,-avx2)"),
        ("llvm(num-cores=4)", "llvm(num-cores=8)"),
        ("llvm(mtriple=armv7l-linux-gnueabi)", "llvm(mtriple=armv7l-linux-gnueabihf)"),
        ("llvm(mtriple=aarch64-linux-gnu)", "llvm(mtriple=armv8l-linux-gnueabihf)"),
        ("cuda(arch=sm_80)", "cuda(arch=sm_90)"),
        ("cuda(max_shared_memory_per_block=49152)", "cuda(max_shared_memory_per_block=65536)"),
        ("opencl(device=mali)", "opencl"),
    ],
)
def test_changes_that_affect_a_kernel_change_its_key(one, other):
    assert Target.parse(one).tuning_key() != Target.parse(other).tuning_key()


def test_generated_code_depends_on_the_system_of_a_triple_and_on_options_but_not_on_the_vendor():
    keys = [
        Target.parse(f"llvm(mtriple={triple}{more})").codegen_key
        for triple, more in [
            ("x86_64-pc-linux-gnu", ""),
            ("x86_64-conda-linux-gnu", ""),
            ("x86_64-pc-windows-msvc", ""),
            ("x86_64-pc-linux-gnu", ",opt-level=1"),
        ]
    ]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_the_order_of_children_does_not_change_the_key_of_a_graph_and_an_executor_only_its_own():
    one = Target.parse("[gpu=cuda(arch=sm_53),cpu=llvm](host=@cpu)")
    other = Target.parse("[cpu=llvm,gpu=cuda(arch=sm_53)](host=@cpu,executor=vm)")
    assert one.tuning_key("graph") == other.tuning_key("graph")
    assert one.tuning_key("executor") != other.tuning_key("executor")
    linked = one.override({"links": [{"src": "gpu", "dst": "cpu"}]})
    assert one.tuning_key("graph") != linked.tuning_key("graph")


def test_a_system_has_no_key_of_a_kernel_and_there_is_no_other_level():
    with pytest.raises(TargetError, match="a kernel runs on a leaf, and 'composite' is a system; use level 'graph'"):
        Target.parse("[llvm]").tuning_key()
    with pytest.raises(TargetError, match="unknown level 'krenel'; did you mean 'kernel'"):
        Target.parse("llvm").tuning_key("krenel")


@given(trees, st.randoms(use_true_random=False))
def test_renaming_and_reordering_children_and_changing_hosts_and_executors_leaves_the_keys_of_kernels(tree, random):
    def changed(node):
        children = [changed(child) for child in node.targets]
        random.shuffle(children)
        renamed = [child.replace(name=f"renamed-{at}") for at, child in enumerate(children)]
        fields = {"links": (), "memory": (), "executor": None, "runtime": None, "tag": None}
        return node.replace(targets=tuple(renamed), host=Target("c"), **fields)

    for key in (Target.tuning_key, lambda node: node.codegen_key):
        assert keys_of_leaves(changed(tree), key) == keys_of_leaves(tree, key)


@given(trees)
def test_changing_a_cpu_changes_exactly_the_keys_of_its_leaves(tree):
    leaves = {path: node for path, node in tree.walk() if not node.is_composite}
    path = next((path for path, node in leaves.items() if node.kind == "llvm"), None)
    if path is None:
        return
    changed = tree.override({f"{path}/mcpu".lstrip("/"): "znver4"})
    for at, node in leaves.items():
        assert (changed.at(at).tuning_key() == node.tuning_key()) == (at != path)
