"""Laws of constraints: reflexivity, transitivity, monotonicity, and independence of order and spelling."""

import json

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from trees import trees

from tvmtarget import Constraint, Executor, Memory, Target
from tvmtarget.errors import TvmTargetError
from tvmtarget.target.constraints.matching import assign
from tvmtarget.target.constraints.reasons import Truth

few = settings(max_examples=40, deadline=None)
many = settings(max_examples=100, deadline=None)

# Small worlds, so that random targets often meet random constraints.

cpus = st.fixed_dictionaries(
    {},
    optional={
        "num-cores": st.integers(1, 4),
        "mcpu": st.sampled_from(["haswell", "skylake-avx512", "znver3", "x86-64-v3", "x86-64-v2"]),
        "mtriple": st.sampled_from(["x86_64-pc-linux-gnu", "x86_64-linux-gnu"]),
        "mattr": st.sampled_from([["+avx2"], ["-avx2"], ["+avx512f"], ["+neon"], []]),
        "libs": st.sampled_from([["cblas"], ["cblas", "mkl"]]),
        "model": st.sampled_from(["a", "b"]),
    },
)
gpus = st.fixed_dictionaries({}, optional={"arch": st.sampled_from(["sm_53", "sm_80", "sm_90", "sm_90a", "sm_103f"])})
small_leaves = st.one_of(
    cpus.map(lambda attrs: ("llvm", attrs)), gpus.map(lambda attrs: ("cuda", attrs)), st.just(("onnxruntime", {}))
).flatmap(lambda pair: st.integers(1, 3).map(lambda count: Target(*pair, count=count)))


@st.composite
def systems(draw, children):
    slots = draw(st.lists(st.sampled_from(["a", "b", "c"]), unique=True, min_size=1, max_size=3))
    targets = [draw(children).replace(name=slot) for slot in slots]
    memory = draw(st.sampled_from([(), (Memory(name="dram", bytes=2),)]))
    executor = draw(st.sampled_from([None, None, Executor("aot")]))
    return Target("composite", targets=targets, memory=memory, executor=executor)


small = st.recursive(small_leaves, systems, max_leaves=4)

CONDITIONS = {
    "llvm": """num-cores>=2 num-cores<3 num-cores=2 num-cores!=2 num-cores=1|3 +avx2 -avx2 +avx512f mcpu>=haswell
        mcpu=haswell mcpu>=x86-64-v2 mcpu<znver3
        mcpu>=x86-64-v3 mcpu=x86-64-v2 mcpu!=x86-64-v2 mtriple=x86_64-linux-gnu mtriple=amd64-unknown-linux-gnu
        libs+=cblas libs-=mkl model=a model!=a count>=2 memory>=2 host=llvm""",
    "cpu": "num-cores>=3 num-cores<=1 +avx2 +neon mcpu>=x86-64-v3 keys+=cpu executor=aot|graph",
    "cuda": "arch>=sm_80 arch<sm_90 arch=sm_53 arch!=sm_80 arch>=sm_90a arch>=sm_100f count=2 thread_warp_size=32",
    "gpu": "arch>=sm_90 count<3 arch=sm_53|sm_80",
    "onnxruntime": "count>=2",
    "composite": "memory>=2 memory<2 executor=aot executor=!aot count=1",
}
items = {word: [text for text in texts.split() if text] for word, texts in CONDITIONS.items()}


@st.composite
def words(draw, children=None):
    word = draw(st.sampled_from(list(items)))
    conditions = draw(st.lists(st.sampled_from(items[word]), max_size=2, unique=True))
    below = draw(st.lists(children, max_size=2)) if word == "composite" and children is not None else []
    brackets = f"[{','.join(map(str, below))}]" if below else ""
    try:
        return Constraint.parse(f"{word}{brackets}" + (f"({','.join(conditions)})" if conditions else ""))
    except TvmTargetError:
        assume(False)


atoms = st.one_of(words(), words(words()), st.sampled_from(["@a", "@a/b", "@.", "@c"]).map(Constraint.parse))
constraints = st.recursive(
    atoms,
    lambda inner: st.one_of(
        inner.map(lambda one: ~one),
        st.lists(inner, min_size=2, max_size=2).map(lambda parts: Constraint(any_of=tuple(parts))),
        st.lists(inner, min_size=2, max_size=2).map(lambda parts: Constraint(all_of=tuple(parts))),
    ),
    max_leaves=4,
)


def nodes(tree):
    return [(node, path) for path, node in tree.walk()]


# Texts and JSON


@many
@given(constraints, st.one_of(st.none(), st.integers(0, 9)))
def test_a_printed_constraint_is_read_back(constraint, weight):
    constraint = constraint.replace(weight=weight)
    assert Constraint.parse(str(constraint)) == constraint
    assert Constraint.from_json(json.loads(json.dumps(constraint.to_json()))) == constraint


@few
@given(trees)
def test_the_constraint_of_a_target_is_printed_and_read_back(tree):
    constraint = Constraint.of(tree)
    assert Constraint.parse(str(constraint)) == constraint
    assert Constraint.from_json(json.loads(json.dumps(constraint.to_json()))) == constraint


# Satisfying


@many
@given(st.one_of(trees, small))
def test_a_target_satisfies_itself(tree):
    reason = tree.satisfies(tree)
    assert reason, f"{reason}"


@many
@given(small, small, small)
def test_satisfying_targets_is_transitive(one, two, three):
    if one.satisfies(two) and two.satisfies(three):
        assert one.satisfies(three)


@many
@given(small, constraints, constraints)
def test_another_condition_never_improves_the_answer(tree, one, other):
    for node, path in nodes(tree):
        both = (one & other).check(node, path, tree).truth
        assert both == min(one.check(node, path, tree).truth, other.check(node, path, tree).truth)
        assert (one | other).check(node, path, tree).truth >= both


@many
@given(small, constraints)
def test_negating_twice_changes_nothing(tree, constraint):
    assert ~~constraint == constraint
    for node, path in nodes(tree):
        assert constraint.check(node, path, tree).truth + (~constraint).check(node, path, tree).truth == Truth.YES


@many
@given(small, constraints, st.randoms(use_true_random=False))
def test_the_order_of_children_has_no_meaning(tree, constraint, random):
    def shuffled(node):
        children = [shuffled(child) for child in node.targets]
        random.shuffle(children)
        return node.replace(targets=tuple(children))

    assume(constraint.host is None)  # the first child that can host drives its siblings
    other = shuffled(tree)
    assert tree.satisfies(Constraint.of(other))
    if "host=" not in str(constraint):
        assert tree.satisfies(constraint).truth == other.satisfies(constraint).truth


@few
@given(small, constraints)
def test_spelling_has_no_meaning(tree, constraint):
    alias = Constraint.parse(str(constraint).replace("num-cores", "num_cores").replace("thread_warp", "thread-warp"))
    assert alias == constraint
    assert tree.satisfies(alias) == tree.satisfies(constraint)


# Matching


@many
@given(
    st.lists(st.integers(1, 3), max_size=4),
    st.lists(st.integers(0, 3), max_size=4),
    st.data(),
)
def test_the_assignment_is_a_maximum_flow(demands, supplies, data):
    """The unserved demand is the largest deficiency of a set of demands (defect form of Hall's theorem)."""
    some = st.sets(st.integers(0, len(supplies) - 1)) if supplies else st.just(set())
    edges = [data.draw(some) for _ in demands]
    served = assign(demands, supplies, [sum(1 << at for at in allowed) for allowed in edges])
    assert all(sum(taken.values()) <= demand for taken, demand in zip(served, demands, strict=True))
    assert all(sum(taken.get(at, 0) for taken in served) <= spare for at, spare in enumerate(supplies))
    assert all(set(taken) <= set(allowed) for taken, allowed in zip(served, edges, strict=True))
    deficiency = max(
        sum(demands[i] for i in group) - sum(supplies[j] for j in set().union(*(edges[i] for i in group)))
        for number in range(2 ** len(demands))
        for group in [[i for i in range(len(demands)) if number >> i & 1]]
    )
    assert sum(sum(taken.values()) for taken in served) == sum(demands) - deficiency


def test_replicas_are_counted_and_not_enumerated():
    cluster = Target.parse("[gpu=cuda(count=65536),cpu=llvm]")
    assert cluster.satisfies("[cuda(count=65535),cuda,llvm]")
    assert not cluster.satisfies("[cuda(count=65536),cuda,llvm]")
