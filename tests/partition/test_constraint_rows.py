"""Which leaves meet the requirements of an operation."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import random_graph

import tvmtarget as tt
from tvmtarget.errors import UnknownNameError

TREES = (
    "[a=numpy,b=onnxruntime,c=llvm]",
    "[g=numpy(count=3),c=onnxruntime](host=@c)",
    "[x=[a=numpy,b=onnxruntime](host=@a),y=[c=llvm,d=numpy](host=@d)](host=@x/a)",
    "[x=[a=numpy,b=onnxruntime](host=numpy,count=2),d=numpy](host=@d)",
)
WORDS = ("numpy", "!numpy", "onnxruntime|numpy", "!@c", "numpy?2")


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**5), text=st.sampled_from(TREES))
def test_a_leaf_supports_an_operation_exactly_if_it_gives_no_reason_against_it(seed, text):
    module, rng = tt.IRModule.from_onnx(random_graph(8, seed)), random.Random(seed)
    tree = tt.Target.parse(text)
    paths = [f"{sign}@{path}" for path, _ in tree.walk() if path for sign in ("", "!")]
    where = {call.source: rng.choice((*paths, *WORDS, "numpy")) for call in module.main.body if rng.random() < 0.6}
    try:
        feasibility = tt.decompose(module, tree, where=where).feasibility
    except tt.errors.TvmTargetError:
        return
    root = feasibility.program.topology.root
    for index, required in enumerate(feasibility.program.requirements):
        for column, leaf in enumerate(feasibility.leaves):
            met = all(
                one.constraint.check(leaf.target, leaf.path, root) for one in required if one.constraint.is_required
            )
            reason = feasibility.unsupported_reason(index, leaf)
            assert bool(feasibility.supported[index, column]) == (reason is None)
            assert met == (reason is None or reason.code != "CONSTRAINT")


def test_a_word_of_no_kind_is_reported_beside_known_ones():
    module = tt.IRModule.from_onnx(random_graph(4, 0))
    with pytest.raises(UnknownNameError, match="no target kind, key or child 'nunpy'; did you mean 'numpy'"):
        tt.decompose(module, TREES[0], where={"op:*": "numpy|nunpy"})
