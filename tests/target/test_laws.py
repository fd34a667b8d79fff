"""Laws of targets, constraints and topologies, on random trees."""

import copy
import json
import pickle

import pytest
import rfc8785
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import consistent, trees

from tvmtarget import Constraint, Target
from tvmtarget.errors import TvmTargetError
from tvmtarget.target.constraints.constraint import covers
from tvmtarget.target.identity import canonical, identity_of
from tvmtarget.target.target_node import hosts_by_path
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree_paths import unnumbered

few = settings(max_examples=60, deadline=None)


# Texts and JSON


@few
@given(trees)
def test_a_printed_tree_is_read_back(tree):
    """DESIGN 3: `parse(print(t)) == t`, and the canonical text is a fixed point."""
    again = Target.parse(str(tree))
    assert again == tree
    assert again.digest == tree.digest
    assert str(again) == str(tree)


@few
@given(trees)
def test_json_is_read_back(tree):
    flat = tree.to_json()
    again = Target.from_json(json.loads(json.dumps(flat)))
    assert again == tree
    assert again.to_json() == flat
    assert Target.parse(json.dumps(flat)) == tree


@pytest.mark.slow
@settings(max_examples=examples(400, 5000), deadline=None)
@given(trees)
def test_thousands_of_trees_are_read_back(tree):
    again = Target.from_json(json.loads(json.dumps(tree.to_json())))
    assert again == tree == Target.parse(str(tree))
    assert again.digest == tree.digest


@few
@given(trees)
def test_toml_is_read_back(tree):
    again = Target.from_toml(tree.to_toml())
    assert again == tree
    assert again.to_json() == tree.to_json()
    assert Target.parse(tree.to_toml()) == tree


@few
@given(trees)
def test_the_indented_form_is_read_back(tree):
    again = Target.parse(tree.pretty())
    assert again == tree
    assert str(again) == str(tree)


@few
@given(trees, st.randoms(use_true_random=False))
def test_the_order_of_json_keys_has_no_meaning(tree, random):
    def shuffled(value):
        if isinstance(value, list):
            return [shuffled(item) for item in value]
        if not isinstance(value, dict):
            return value
        items = list(value.items())
        random.shuffle(items)
        return {key: shuffled(item) for key, item in items}

    again = Target.from_json(shuffled(tree.to_json()))
    assert again.digest == tree.digest
    assert str(again) == str(tree)


@few
@given(trees)
def test_pickles_and_copies_are_equal(tree):
    for again in (pickle.loads(pickle.dumps(tree)), copy.deepcopy(tree), copy.copy(tree), tree.replace()):
        assert again == tree
        assert hash(again) == hash(tree)
        assert again.to_json() == tree.to_json()


@few
@given(trees, trees)
def test_equal_trees_are_those_with_equal_digests(one, other):
    assert (one == other) == (one.digest == other.digest)
    assert one != other or hash(one) == hash(other)


def test_a_digest_does_not_depend_on_the_hash_seed(subprocess_with_hash_seed):
    code = """
from tvmtarget import Target
for text in ("nvidia/jetson-nano", "demo/rack", "llvm(+b,+a,-c,libs=y+x)"):
    target = Target.parse(text)
    print(target.digest, target, target.to_json(), target.resolve(), target.keys)
"""
    assert len({subprocess_with_hash_seed(code, seed) for seed in ("0", "1", "2")}) == 1


# Bad input


def message_of(read, *args, **options):
    """Call a function; an error of this library has a message, and any other error is a bug."""
    try:
        read(*args, **options)
    except TvmTargetError as error:
        return str(error)
    return "nothing wrong"


marks = st.text("[]()=,|!?@~+-:/ \"'{}<>.a1é\0\n\\", max_size=24)
fragments = st.lists(
    st.sampled_from(
        ["llvm", "cuda", "composite", "[", "]", "(", ")", ",", "=", "num-cores", "host", "@a", "+x", '"', " -"]
    ),
    max_size=12,
).map("".join)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=24), marks, fragments))
def test_any_text_is_read_or_rejected_by_an_error_of_this_library(text):
    assert message_of(Target.parse, text)
    assert message_of(Constraint.parse, text)


json_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.sampled_from(["llvm", "@a"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["kind", "tag", "name", "src", "of", "any", "not", "path"]), inner, max_size=3),
    ),
    max_leaves=6,
)
JSON_KEYS = """
kind name keys tag host targets devices count links memory executor runtime schema + ~ , num-cores mattr libs
path any not prefer é
"""
json_keys = st.sampled_from(JSON_KEYS.split())


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(json_keys, json_values, max_size=5), st.sampled_from([{}, {"kind": "llvm"}, {"tag": "demo/node"}])
)
def test_any_json_is_read_or_rejected_by_an_error_of_this_library(data, base):
    assert message_of(Target.from_json, base | data)
    assert message_of(Constraint.from_json, base | data)


@settings(max_examples=200, deadline=None)
@given(
    json_values, json_values, st.sampled_from(["name", "keys", "tag", "host", "targets", "count", "links", "memory"])
)
def test_any_argument_is_accepted_or_rejected_by_an_error_of_this_library(attrs, value, field):
    assert message_of(Target, "llvm", attrs, **{field: value})
    assert message_of(Target, value, attrs)


# Resolving


@few
@given(consistent())
def test_resolving_is_idempotent_and_keeps_the_digest(tree):
    resolved = tree.resolve()
    assert resolved.digest == tree.digest
    assert resolved == tree
    assert resolved.resolve().to_json() == resolved.to_json()
    assert (resolved.executor, resolved.runtime, resolved.name) != (None, None, resolved)


@few
@given(trees)
def test_every_node_has_a_host(tree):
    hosts = hosts_by_path(tree)
    assert list(hosts) == [path for path, _ in tree.walk()]
    for path, host in hosts.items():
        if not host.effective.startswith("@"):
            tree.at(host.effective)
            assert tree.at(f"{path}/host".lstrip("/")).kind


@few
@given(consistent())
def test_a_topology_has_every_replica_with_its_host_and_memory(tree):
    topology = Topology(tree.resolve())
    for path in [site.path for site in topology.leaves()]:
        site = topology[path]
        assert not site.is_system
        assert topology[site.host].domain
        assert covers(path, path)
        assert tree.at(path).kind == site.target.kind
    for _, node in tree.walk():
        assert len(node.replicas) == node.count == len(set(node.replicas))


# Changing


@few
@given(trees, st.integers(1, 64), st.text("abc", max_size=3))
def test_overriding_is_a_left_fold(tree, cores, model):
    """Two overrides in sequence equal one with both, and the last value wins."""
    paths = [path for path, node in tree.walk() if node.kind == "llvm"]
    one = {f"{path}/num-cores".lstrip("/"): cores for path in paths}
    two = {f"{path}/model".lstrip("/"): model for path in paths}
    assert tree.override(one).override(two) == tree.override(one | two)
    assert tree.override(one).override(one) == tree.override(one)
    again = tree.override(dict.fromkeys(one, cores + 1)).override(one)
    assert again == tree.override(one)
    assert all(again.at(path)["num-cores"] == cores for path in paths)


@few
@given(trees)
def test_overriding_with_nothing_and_merging_with_itself_change_nothing(tree):
    assert tree.override({}) == tree
    assert tree.merge(tree) == tree


@few
@given(trees, trees)
def test_merging_twice_is_merging_once(one, other):
    try:
        merged = one.merge(other)
    except TvmTargetError:  # a reference, link or memory of one may contradict the children of the other
        return
    assert merged.merge(other) == merged
    is_partial = other.kind == "composite" and not other.targets
    assert one.kind == other.kind or is_partial or merged == other


@few
@given(trees)
def test_overrides_can_be_unset(tree):
    path = next((path for path, node in tree.walk() if "model" not in node.attrs), None)
    if path is not None:
        full = f"{path}/model".lstrip("/")
        assert tree.override({full: "x"}).unset(full) == tree


@few
@given(trees)
def test_the_canonical_bytes_are_those_of_rfc_8785(tree):
    assert canonical(identity_of(tree)).encode() == rfc8785.dumps(identity_of(tree))


# Parts


def _host_content(tree, path):
    """Return the host of a node without its place and name."""
    host = hosts_by_path(tree)[path]
    if host.effective.startswith("@"):
        return host.effective
    if host.is_implied:
        return "implied"
    return tree.at(host.effective).replace(name=None, host=None, count=1, executor=None, runtime=None)


@few
@given(consistent())
def test_a_part_keeps_its_host_executor_and_runtime(tree):
    for path, node in tree.walk():
        part = tree.part(path)
        assert (part.kind, part.attrs, part.count) == (node.kind, node.attrs, node.count)
        assert part.name is None or not path
        drives_only_there = unnumbered(hosts_by_path(tree)[path].effective) == path and not node.can_host
        assert _host_content(part, "") == ("implied" if drives_only_there else _host_content(tree, path))
        assert part.resolve()


@few
@given(consistent())
def test_nodes_of_a_part_keep_their_hosts(tree):
    for path, _ in tree.walk():
        part = tree.part(path)
        for below, _ in part.walk():
            if below:
                assert _host_content(part, below) == _host_content(tree, f"{path}/{below}".lstrip("/"))


# Constraints

segments = st.lists(st.sampled_from(["a", "b", "a.0", "a.1", "ab"]), max_size=3)


@given(segments, segments, segments)
def test_covering_is_an_order(one, two, three):
    one, two, three = map("/".join, (one, two, three))
    assert covers(one, one)
    assert covers("", one)
    assert not (covers(one, two) and covers(two, three)) or covers(one, three)
    assert not (covers(one, two) and covers(two, one)) or one == two
    assert covers(one, f"{one}/x".lstrip("/"))


words = st.sampled_from(
    ["cuda", "gpu", "@a/b", "llvm(num-cores>=4)", "cpu(+neon,num-cores!=2)", "onnxruntime", "llvm(model=x)"]
)
constraints = st.recursive(
    words.map(Constraint.parse),
    lambda inner: st.one_of(
        inner.map(lambda one: one.replace(is_negated=not one.is_negated)),
        st.lists(inner, min_size=2, max_size=3).map(lambda options: Constraint(any_of=tuple(options))),
    ),
    max_leaves=5,
)


@few
@given(constraints, st.one_of(st.none(), st.integers(0, 99)))
def test_a_printed_constraint_is_read_back(constraint, weight):
    constraint = constraint.replace(weight=weight)
    assert Constraint.parse(str(constraint)) == constraint
    assert Constraint.from_json(json.loads(json.dumps(constraint.to_json()))) == constraint
    assert pickle.loads(pickle.dumps(constraint)) == constraint


@few
@given(constraints, trees)
def test_negation_inverts_an_answer(constraint, tree):
    negated = constraint.replace(is_negated=not constraint.is_negated)
    for path, node in tree.walk():
        assert constraint.check(node, path).truth + negated.check(node, path).truth == 2


@pytest.mark.parametrize("count", [2, 3])
def test_replicas_are_sites_of_one_node(count):
    tree = Target.parse(f"[gpu=cuda(count={count}),cpu=llvm]")
    assert tree.at("gpu").replicas == tuple(f"gpu.{k}" for k in range(count))
    assert all(tree.at(replica) == tree.at("gpu") for replica in tree.at("gpu").replicas)
    assert tree.part("gpu").count == count
    assert tree.part("gpu.1").count == 1
    with pytest.raises(TvmTargetError, match=f"no node 'gpu.{count}'"):
        tree.at(f"gpu.{count}")
