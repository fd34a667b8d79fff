"""Matching of trees that differ only in the names of children."""

import pytest

from tvmtarget import Target
from tvmtarget.target.renaming import find_renaming, renamed_path

CASES = [
    ("[a=llvm,b=onnxruntime](host=@a)", "[x=llvm,y=onnxruntime](host=@x)", {"a": "x", "b": "y"}),
    ("[llvm,onnxruntime]", "[cpu=llvm,ort=onnxruntime]", {"llvm": "cpu", "onnxruntime": "ort"}),
    ("[a=llvm,b=llvm(num-cores=2)](host=@a)", "[a=llvm(num-cores=2),b=llvm](host=@b)", {"a": "b", "b": "a"}),
    ("[a=llvm,b=llvm,c=llvm](host=@a)", "[x=llvm,y=llvm,z=llvm](host=@z)", {"a": "z", "b": "x", "c": "y"}),
    (
        "[n=[g=cuda,c=llvm](host=@c,count=2)]",
        "[m=[u=cuda,v=llvm](host=@v,count=2)]",
        {"n": "m", "n/g": "m/u", "n/c": "m/v"},
    ),
    ("[größe=llvm,b=numpy]", "[漢=llvm,b=numpy]", {"größe": "漢", "b": "b"}),
    ("llvm", "llvm", {}),
    ("[a=llvm,b=onnxruntime]", "[x=llvm,y=numpy]", None),
    ("[a=llvm]", "[a=llvm,b=llvm]", None),
    ("[a=llvm,b=numpy](host=@a)", "[x=llvm,y=numpy](host=@y)", None),
    ("[n=llvm(count=2)]", "[m=llvm(count=3)]", None),
]


@pytest.mark.parametrize(("source", "target", "paths"), CASES)
def test_children_are_matched_by_role_and_structure(source, target, paths):
    left, right = Target.parse(source), Target.parse(target)
    assert find_renaming(left, right, "graph") == paths
    back = find_renaming(right, left, "executor")
    assert back == (None if paths is None else {new: old for old, new in paths.items()})


def test_links_decide_between_children_that_are_equal():
    links = {"src": "a", "dst": "host", "bandwidth_Bps": 1000}
    tree = {"kind": "composite", "host": "@c", "targets": [{"name": name, "kind": "llvm"} for name in "abc"]}
    left = Target.from_json(tree | {"links": [links]})
    right = Target.from_json(tree | {"links": [links | {"src": "b"}]})
    assert find_renaming(left, right, "graph") == {"a": "b", "b": "a", "c": "c"}


def test_numbers_of_replicas_stay():
    assert renamed_path("n.1/g.0", {"n": "m", "n/g": "m/u"}) == "m.1/u.0"
    assert renamed_path("host", {"n": "m"}) == "host"
