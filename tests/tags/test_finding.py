"""Search for tags by constraints."""

import pytest
from effort import examples

from tvmtarget import Constraint, Target
from tvmtarget.errors import TvmTargetError
from tvmtarget.tags.finding import check_target, find_nearest, find_satisfying, read_constraint
from tvmtarget.tags.registry import Registry, default_registry
from tvmtarget.target.constraints.reasons import Truth

TAGS = {
    "acme/old": "[gpu=cuda(arch=sm_53),cpu=llvm(num-cores=4)]",
    "acme/new": "[gpu=cuda(arch=sm_80),cpu=llvm(num-cores=4)]",
    "acme/newer": "[gpu=cuda(arch=sm_90),cpu=llvm(num-cores=4)]",
    "acme/bare": "cuda(arch=sm_80)",
    "other/box": "[gpu=cuda(arch=sm_80),cpu=llvm(num-cores=4)]",
    "other/vague": "[gpu=cuda,cpu=llvm]",
    "other/host": "cuda(host=c)",
    "other/phone": "llvm(mcpu=cortex-a72)",
}


@pytest.fixture(scope="module")
def registry():
    return Registry().with_tags(TAGS)


@pytest.mark.parametrize(
    ("text", "satisfied", "possible"),
    [
        ("cuda(arch>=sm_90)", ["acme/newer"], ["other/host", "other/vague"]),
        ("[cuda(arch>=sm_80),llvm(num-cores>=4)]", ["acme/new", "acme/newer", "other/box"], ["other/vague"]),
        ("llvm(+neon)", ["other/phone"], ["acme/new", "acme/newer", "acme/old", "other/box", "other/vague"]),
        ("!llvm&!gpu", [], []),
        ("rocm|llvm(num-cores>=8)", [], ["other/phone", "other/vague"]),
        ("acme/newer", ["acme/newer"], ["other/vague"]),
    ],
)
def test_tags_satisfy_a_constraint_or_could(registry, text, satisfied, possible):
    found = find_satisfying(registry, read_constraint(registry, text))
    assert (list(found.satisfied), list(found.possible)) == (satisfied, possible)


@pytest.fixture(scope="module")
def shipped():
    registry = Registry(*default_registry().layers[:1])
    return registry, {name: registry.tree(name) for name in registry}


CONSTRAINTS = [
    *("cuda(arch>=sm_53)", "cpu", "llvm(+avx512f)", "gpu|hexagon", "!cpu", "!gpu&llvm(num-cores>=64)", "@cpu"),
    *("llvm(mcpu>=skylake-avx512)", "gpu(memory>=64GiB)", "!gpu(memory>=64GiB)", "c(memory<1MiB)", "gpu(count>=8)"),
    *("composite(memory>=1TiB)", "!composite", "composite|!llvm", "[cuda,llvm]", "[gpu=gpu(memory>=16GiB),llvm]"),
    *("[cuda(count>=8),llvm(num-cores>=64)]", "[!gpu,cuda]", "[cuda,llvm]|rocm", "![cuda]", "[cuda]&composite"),
    *("cuda(host=llvm(num-cores>=8))", "llvm(executor=aot)", "composite(runtime=crt)|metal", "[gpu/host=llvm]"),
    *("llvm(keys+=arm_cpu)", "arm_cpu(num-cores>=8)", "ethos-u(memory>=1)"),
]


@pytest.mark.parametrize(("start", "text"), [*enumerate(CONSTRAINTS)])
def test_the_index_of_trees_changes_no_answer(shipped, start, text):
    """Of every third tag, from another one on for each constraint, or of all tags."""
    (registry, trees), constraint, step = shipped, Constraint.parse(text), examples(3, 1)
    truths = {name: trees[name].satisfies(constraint).truth for name in [*trees][start % step :: step]}
    found = find_satisfying(registry, constraint)
    assert [name for name in found.satisfied if name in truths] == [n for n, t in truths.items() if t is Truth.YES]
    assert [name for name in found.possible if name in truths] == [n for n, t in truths.items() if t is Truth.UNKNOWN]


def test_shipped_tags_satisfy_themselves_by_the_index(shipped):
    registry, trees = shipped
    for name in list(registry)[::300]:
        assert name in find_satisfying(registry, Constraint.of(trees[name])).satisfied


def test_a_replaced_tag_changes_the_tags_that_are_based_on_it(shipped):
    registry, _ = shipped
    assert registry.tree_index() is not None
    assert registry.with_tags({"acme/box": "cuda(arch=sm_90)"}).tree_index() is not None
    replaced = registry.with_tags({"nvidia/jetson-orin-nano-8gb": "cuda(arch=sm_50)"}, override=True)
    assert replaced.tree_index() is None
    found = find_satisfying(replaced, Constraint.parse("cuda(arch=sm_50)")).satisfied
    assert {"nvidia/jetson-orin-nano-8gb", "demo/robot"} <= set(found)


def test_the_kinds_of_a_tag_are_known_without_its_tree():
    registry = default_registry()
    for name in registry:
        kinds = registry.kinds(name)
        assert kinds is None or {node.kind for _, node in registry[name].walk()} <= kinds


def test_the_nearest_tags_are_ordered_by_vendor_kind_and_distance(registry):
    constraint = Constraint.parse("cuda(arch>=sm_80)")
    assert find_nearest(registry, constraint, registry["acme/old"]) == ("acme/new", "acme/newer", "acme/bare")
    assert find_nearest(registry, constraint, registry["other/vague"], limit=1) == ("other/box",)
    assert find_nearest(registry, Constraint.parse("rocm"), Target("llvm")) == ()


def test_a_failed_check_names_the_nearest_tags_that_satisfy(registry):
    assert str(check_target(registry, registry["acme/old"], Constraint.parse("cuda(arch>=sm_80)"))).splitlines() == [
        "NO acme/old does not satisfy cuda(arch>=sm_80)",
        "  NO @gpu: cuda: this is cuda",
        "    NO arch>=sm_80: it is sm_53",
        "nearest tags that satisfy it: acme/new, acme/newer, acme/bare",
    ]
    assert "nearest" not in str(check_target(registry, registry["acme/new"], Constraint.parse("cuda")))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("gpux(arch>=sm_80)", "no target kind or key 'gpux'; did you mean 'gpu'"),
        ("acme/nex", "unknown tag 'acme/nex'; did you mean 'acme/new'"),
        ("acme/new:npu", "no node 'npu' in target 'acme/new'"),
    ],
)
def test_an_unknown_word_cannot_be_searched(registry, text, problem):
    with pytest.raises(TvmTargetError, match=problem):
        read_constraint(registry, text)
