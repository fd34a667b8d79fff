"""Facts that are computed once for each node: no copy, change or plugin makes one of them wrong."""

import copy
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import consistent, trees

from tvmtarget import Target, plugins
from tvmtarget.errors import TargetError
from tvmtarget.target.kinds import Attribute, Kind
from tvmtarget.target.provenance import Origin

few = settings(max_examples=60, deadline=None)


def _facts(tree):
    return {"digest": tree.digest, "text": str(tree), "hash": hash(tree)}


def _facts_of_new(tree):
    """The facts of an equal tree that was never looked at."""
    return _facts(pickle.loads(pickle.dumps(tree)))


def test_a_fact_is_computed_once():
    tree = Target.parse("[gpu=cuda(arch=sm_53),cpu=llvm](host=@cpu)")
    assert tree.digest is tree.digest
    assert str(tree) is str(tree)
    assert tree.resolve() is tree.resolve()


changes = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["x", None]),
        "tag": st.sampled_from(["acme/box", None]),
        "count": st.integers(1, 3),
        "keys": st.sampled_from([None, ("cpu",)]),
        "executor": st.sampled_from([None, "aot"]),
    },
)


@few
@given(trees, changes)
def test_a_changed_tree_has_facts_of_its_own(tree, changes):
    before = _facts(tree)
    changed = tree.replace(**changes)
    assert _facts(changed) == _facts_of_new(changed)
    assert _facts(tree) == before


@few
@given(trees)
@pytest.mark.parametrize(
    "copy_of",
    [
        copy.copy,
        copy.deepcopy,
        lambda tree: tree.model_copy(),
        lambda tree: tree.with_origins({"kind": Origin("toml")}),
    ],
    ids=["copy", "deepcopy", "model_copy", "with_origins"],
)
def test_a_copy_is_equal_and_has_facts_of_its_own(copy_of, tree):
    before = _facts(tree)
    assert _facts(copy_of(tree)) == before
    assert copy_of(tree) == tree
    assert not hasattr(copy_of(tree), "_facts")


@few
@given(trees)
def test_facts_are_no_part_of_the_value_that_pydantic_shows(tree):
    shown = dict(vars(tree)), tree.model_fields_set, len(pickle.dumps(tree))
    assert tree.child("npu") is None
    _facts(tree)
    assert (dict(vars(tree)), tree.model_fields_set, len(pickle.dumps(tree))) == shown


@few
@given(consistent())
def test_provenance_stays_that_of_the_instance(tree):
    other = tree.with_origins({"kind": Origin("toml", "acme.toml")})
    tree.resolve()
    assert other.resolve().origin("kind") == Origin("toml", "acme.toml")
    assert other == tree


@few
@given(consistent())
def test_a_resolved_tree_resolves_to_itself(tree):
    resolved = tree.resolve()
    assert resolved.resolve() == resolved
    assert resolved.resolve().to_json() == resolved.to_json()
    assert list(resolved.resolve().origins()) == list(resolved.origins())


def test_an_error_is_raised_again():
    tree = Target.parse("composite[cuda](host=@nobody)")
    for _ in range(2):
        with pytest.raises(TargetError, match="names no node"):
            tree.resolve()


def test_registering_a_kind_invalidates_facts():
    tree = Target.from_json({"kind": "kind-of-facts", "taps": 4, "lanes": 8})
    digest, text = tree.digest, str(tree)
    with pytest.raises(TargetError, match="is not registered here"):
        tree.resolve()
    rows = (
        Attribute(name="taps", type="int", class_="hard", default=4),
        Attribute(name="lanes", type="int", class_="hard"),
    )
    plugins.register("tvmtarget.kinds", "kind-of-facts", (Kind(name="kind-of-facts", attributes=rows),))
    assert tree.digest == Target.parse("kind-of-facts(lanes=8)").digest != digest
    assert str(tree) == "kind-of-facts(lanes=8,taps=4)" != text
    assert tree.resolve() == tree
