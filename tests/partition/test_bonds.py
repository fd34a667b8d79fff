"""Operations that must share a site, or must not."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import DIGITS, random_graph

import tvmtarget as tt
from tvmtarget.errors import InfeasibleError, TargetError, UnknownNameError

FLAT = "[a=numpy,b=onnxruntime,c=llvm]"
DEEP = "[x=[a=numpy,b=onnxruntime](host=@a),y=[c=llvm,d=numpy](host=@d)](host=@x/a)"


@settings(max_examples=40, deadline=None)
@given(size=st.integers(4, 30), seed=st.integers(0, 10**6), target=st.sampled_from([FLAT, DEEP]), by_cost=st.booleans())
def test_bonds_are_kept_or_refused(size, seed, target, by_cost):
    module = tt.IRModule.from_onnx(random_graph(size, seed))
    rng = random.Random(seed)
    names = [call.source for call in module.main.body]
    same, apart = rng.sample(names, 2), rng.sample(names, 2)
    leaves = [path for path, node in tt.Target.parse(target).walk() if not node.is_composite]
    where = {name: f"@{rng.choice(leaves)}?" for name in names if rng.random() < 0.5}
    costs = "roofline" if by_cost else None
    try:
        plan = tt.decompose(module, target, costs, where=where, same_site=[same], apart=[apart])
    except InfeasibleError as error:
        refusal = str(error)
    else:
        refusal = ""
        sites = plan.sites()
        assert sites[same[0]] == sites[same[1]]
        assert sites[apart[0]] != sites[apart[1]]
    assert not refusal or set(same) == set(apart), refusal


def test_names_and_globs_are_those_of_where(tmp_path):
    module = tt.IRModule.from_onnx(DIGITS)
    where = {"conv1": "@a", "conv2": "@b?", "conv3": "@c?"}
    plan = tt.decompose(module, FLAT, where=where, same_site=[["conv[12]", "fc1"]], apart=[["op:Gemm"]])
    sites = plan.sites()
    assert (sites["conv1"], sites["conv2"], sites["fc1"], sites["conv3"]) == ("a", "a", "a", "c")
    assert sites["fc1"] != sites["fc2"]
    plan.save(tmp_path / "a.plan")
    loaded = tt.Plan.load(tmp_path / "a.plan")
    assert (loaded.request.same_site, loaded.request.apart) == (plan.request.same_site, plan.request.apart)
    assert loaded.module == plan.module
    with pytest.raises(UnknownNameError, match="no op 'fc3'"):
        tt.decompose(module, FLAT, apart=[["fc3", "fc1"]])


def test_empty_groups_ask_nothing():
    module = tt.IRModule.from_onnx(DIGITS)
    assert not tt.decompose(module, FLAT, same_site=[[]], apart=[[]]).diff(tt.decompose(module, FLAT))


def test_what_cannot_be_is_told():
    module = tt.IRModule.from_onnx(DIGITS)
    with pytest.raises(InfeasibleError, match=r"ops 'fc1', 'fc2' must share a site, and no leaf takes all of them"):
        tt.decompose(module, FLAT, where={"fc1": "@a", "fc2": "@b"}, same_site=[["op:Gemm"]])
    with pytest.raises(InfeasibleError, match="'fc1' and 'fc2' must be apart"):
        tt.decompose(module, "numpy", apart=[["op:Gemm"]])
    with pytest.raises(InfeasibleError, match="'fc1' and 'fc2' are asked to share a site and to be apart"):
        tt.decompose(module, FLAT, same_site=[["op:Gemm"]], apart=[["fc1", "fc2"]])
    with pytest.raises(TargetError, match=r"same_site is groups of names of ops.*, so that 'fc1' is none"):
        tt.decompose(module, FLAT, same_site=["fc1", "fc2"])
    with pytest.raises(InfeasibleError, match="must be apart"):
        tt.decompose(module, FLAT, where={"op:Gemm": "@a"}, apart=[["op:Gemm"]])
