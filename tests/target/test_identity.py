"""Identity of targets: the golden identities and digests, and a second implementation of them."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from blocks import answered, inputs

from tvmtarget import Target
from tvmtarget.target.identity import canonical, identity_of

GOLDEN = "target/identity.golden"
HERE = Path(__file__).parent

SAME = [
    ("llvm(num-cores=4)", "llvm -num_cores=4"),
    ("llvm(libs=[])", "llvm"),
    ("llvm(-crypto,+neon)", "llvm -mattr=+neon,-crypto"),
    ("cuda(thread_warp_size=32)", "cuda"),
    ("cuda(keys=cuda+gpu)", "cuda"),
    ("cuda(name=gpu)", "cuda"),
    ("[cuda=cuda,llvm]", "[cuda,llvm]"),
    ("cuda(host=llvm)", "cuda"),
    ("llvm(host=llvm)", "llvm"),
    ("[cuda,llvm](host=@llvm)", "[cuda,llvm]"),
    ("[cuda(host=@llvm),llvm]", "[cuda,llvm]"),
    ("[cuda,a=llvm,b=llvm](host=@b)", "[cuda,a=llvm,b=llvm](host=@b)"),
    ("[gpu=cuda,cpu=llvm(count=2)](host=@cpu)", "[gpu=cuda,cpu=llvm(count=2)](host=@cpu.0)"),
    ("llvm(executor=graph(link-params=false),runtime=python)", "llvm"),
    ("demo/node", "[ort=onnxruntime,cpu=llvm]"),
    ('{"tag": "demo/node", "kind": "llvm"}', "llvm"),
    ("nvidia/nvidia-a100", "nvidia/a100"),
]

DIFFERENT = [
    ("llvm", "c"),
    ("llvm(num-cores=4)", "llvm"),
    ("llvm(fast-math=false)", "llvm"),
    ("llvm(libs=cblas+mkl)", "llvm(libs=mkl+cblas)"),
    ("cuda(keys=gpu+cuda)", "cuda"),
    ("cuda(count=2)", "cuda"),
    ("[cuda,llvm]", "[llvm,cuda]"),
    ("[gpu=cuda,llvm]", "[cuda,llvm]"),
    ("cuda(host=c)", "cuda"),
    ("cuda(host=llvm(num-cores=4))", "cuda"),
    ("[cuda,a=llvm,b=llvm](host=@b)", "[cuda,a=llvm,b=llvm]"),
    ("[cuda](host=llvm)", "[cuda]"),  # work may be given to a host that is written
    ("[node=[cuda,llvm](executor=graph)]", "[node=[cuda,llvm]]"),  # a sub-system of its own
    ("llvm(executor=graph(link-params=true))", "llvm"),
    ('{"kind": "zz", "x": 1}', '{"kind": "zz", "x": true}'),
    ('{"kind": "zz", "x": "1"}', '{"kind": "zz", "x": 1}'),
]


def test_identities_and_digests(golden):
    def answer(text):
        target = Target.parse(text)
        return [f"  {canonical(identity_of(target))}", f"  {target.digest}"]

    golden(GOLDEN, answered(GOLDEN, answer))


def test_another_language_computes_the_same_digests():
    node = shutil.which("node")
    if node is None:
        pytest.skip("node.js is not installed")
    done = subprocess.run(
        [node, "digest.mjs", "identity.golden"], cwd=HERE, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == (f"{len(inputs(GOLDEN))} digests agree\n", 0)


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equivalent_spellings_are_equal(one, other):
    assert Target.parse(one) == Target.parse(other)
    assert hash(Target.parse(one)) == hash(Target.parse(other))
    assert Target.parse(one).digest == Target.parse(other).digest


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_targets_are_not_equal(one, other):
    assert Target.parse(one) != Target.parse(other)
    assert Target.parse(one).digest != Target.parse(other).digest


@pytest.mark.parametrize("text", inputs(GOLDEN))
def test_an_identity_is_a_target_with_itself_as_identity(text):
    target = Target.parse(text)
    again = Target.from_json(json.loads(json.dumps(identity_of(target))))
    assert again == target
    assert canonical(identity_of(again)) == canonical(identity_of(target))


def test_a_target_is_not_equal_to_its_text():
    assert Target("llvm") != "llvm"
