"""Constraints: texts and JSON of them, answers of three values, choices and preferences."""

import json

import pytest
from blocks import answered, inputs

from tvmtarget import Constraint, Target
from tvmtarget.errors import TargetError, TextError, TvmTargetError, UnknownNameError
from tvmtarget.target.constraint import Truth, covers, known_words
from tvmtarget.target.layout import Layout

GOLDEN = "target/constraints.golden"
NO, UNKNOWN, YES = Truth


def truth(constraint, target):
    return Constraint.parse(constraint).check(Target.parse(target)).truth


# Texts and JSON


def test_every_text_has_one_canonical_text_and_one_json(golden):
    def answer(text):
        try:
            constraint = Constraint.parse(text)
        except TvmTargetError as error:
            return [f"  {type(error).__name__}: {line}" for line in str(error).splitlines()]
        return [f"  {constraint}", f"  {json.dumps(constraint.to_json())}"]

    golden(GOLDEN, answered(GOLDEN, answer))


@pytest.mark.parametrize("text", inputs(GOLDEN))
def test_printing_and_json_are_read_back(text):
    try:
        constraint = Constraint.parse(text)
    except TvmTargetError:
        return
    assert Constraint.parse(str(constraint)) == constraint
    assert Constraint.from_json(json.loads(json.dumps(constraint.to_json()))) == constraint
    assert Constraint.from_json(str(constraint)) == constraint


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"kind": "llvm", "num-cores": {"ge": 4}, "mattr": {"has": ["avx2"]}}, "llvm(+avx2,num-cores>=4)"),
        ({"kind": "llvm", "mattr": {"has": "avx2", "lacks": ["sse4a"]}}, "llvm(+avx2,-sse4a)"),
        ({"kind": "cuda", "arch": "sm_80"}, "cuda(arch=sm_80)"),
        ({"kind": "cuda", "arch": [{"ne": "sm_70"}, {"ne": "sm_75"}]}, "cuda(arch!=sm_70,arch!=sm_75)"),
        ({"kind": "llvm", "libs": ["cblas"]}, "llvm(libs=cblas)"),
        ({"path": "rack/node0"}, "@rack/node0"),
        ({"path": ""}, "@."),
        ({"any": ["cuda", {"kind": "llvm"}]}, "cuda|llvm"),
        ({"any": ["cuda"]}, "cuda"),
        ({"not": {"any": ["cuda", "llvm"]}}, "!(cuda|llvm)"),
        ({"not": {"not": "cuda"}}, "cuda"),
        ({"prefer": 10, "kind": "cuda"}, "cuda?10"),
        ({"prefer": 3, "any": ["cuda", "llvm"]}, "(cuda|llvm)?3"),
        ({"prefer": 3, "not": "cuda"}, "!cuda?3"),
    ],
)
def test_json_is_another_spelling(data, text):
    assert str(Constraint.from_json(data)) == text


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (5, "a constraint is a text or an object, not 5"),
        ({}, "a constraint has one of 'kind', 'path', 'any', 'all', 'not', not {}"),
        (
            {"kind": "llvm", "path": "cpu"},
            "a constraint has one of 'kind', 'path', 'any', 'all', 'not', not {'kind': 'llvm', 'path': 'cpu'}",
        ),
        ({"kind": 5}, "'kind' is a kind or a key, not 5"),
        ({"kind": "two words"}, "'two words' is no word; use names, with '/' between them in a path"),
        ({"path": 5}, "'path' is a path of names, not 5"),
        ({"path": "a b"}, "'a b' is no path; use names, with '/' between them in a path"),
        ({"path": "a", "num-cores": 4}, "'num-cores' says nothing beside 'path'; attributes belong to a kind or a key"),
        ({"any": []}, "'any' is a list of constraints, not []"),
        ({"any": "cuda"}, "'any' is a list of constraints, not 'cuda'"),
        (
            {"any": [{"prefer": 1, "kind": "cuda"}, "llvm"]},
            "a preference cannot be one option of a choice; prefer the choice: (a|b)?",
        ),
        ({"not": "cuda?"}, "'prefer' stands outside of 'not', not in 'cuda?'"),
        ({"prefer": 3, "any": ["cuda?4"]}, "'prefer' is given twice in {'any': ['cuda?4'], 'prefer': 3}"),
        ({"prefer": "much", "kind": "cuda"}, "'weight' of a constraint is a whole number, not 'much'"),
        ({"prefer": -1, "kind": "cuda"}, "'weight' of a constraint is at least 0, not -1"),
        (
            {"kind": "llvm", "num-cores": {"atleast": 4}},
            "'atleast' of 'num-cores' is no comparison; use one of has, lacks, eq, ne, in, ge, le, gt, lt",
        ),
        ({"kind": "llvm", "num-cores": {"ge": None}}, "attribute 'num-cores' of 'llvm' is a whole number, not None"),
        ({"kind": "llvm", "mattr": {"has": [5]}}, "a feature is a word such as 'avx2', not 5"),
    ],
)
def test_wrong_json_is_refused(data, problem):
    with pytest.raises(TvmTargetError) as caught:
        Constraint.from_json(data)
    assert str(caught.value) == problem


def test_all_wrong_conditions_are_told_at_once():
    with pytest.raises(TargetError) as caught:
        Constraint.parse("llvm(num-core>=4,num-cores>=many)")
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize("value", [5, None, b"cuda", ["cuda"]])
def test_only_texts_are_parsed(value):
    with pytest.raises(TextError, match="a constraint is a text such as 'cuda' or '@cpu'"):
        Constraint.parse(value)


def test_a_constraint_says_one_thing():
    with pytest.raises(TargetError, match="one of a word, a path, a choice and a conjunction"):
        Constraint()
    with pytest.raises(TargetError, match="one of a word, a path, a choice and a conjunction"):
        Constraint(word="cuda", path="gpu")


# Answers


@pytest.mark.parametrize(
    ("constraint", "target", "expected"),
    [
        ("cuda", "cuda", YES),
        ("gpu", "cuda", YES),
        ("cpu", "cuda", NO),
        ("arm_cpu", "llvm(device=arm_cpu)", YES),
        ("mine", "llvm(keys=mine)", YES),
        ("llvm(num-cores>=4)", "llvm(num-cores=8)", YES),
        ("llvm(num-cores>=4)", "llvm(num-cores=2)", NO),
        ("llvm(num-cores>=4)", "llvm", UNKNOWN),
        ("llvm(num-cores>4)", "llvm(num-cores=4)", NO),
        ("llvm(num-cores<=4)", "llvm(num-cores=4)", YES),
        ("llvm(num-cores<4)", "llvm(num-cores=4)", NO),
        ("llvm(num-cores!=4)", "llvm(num-cores=8)", YES),
        ("llvm(num-cores!=4)", "llvm", UNKNOWN),
        ("llvm(+avx2)", "llvm(+avx2)", YES),
        ("llvm(+avx2)", "llvm(-avx2)", NO),
        ("llvm(+avx2)", "llvm", UNKNOWN),
        ("llvm(+avx2)", "llvm(+sse3)", UNKNOWN),
        ("llvm(-avx2)", "llvm(-avx2)", YES),
        ("llvm(-avx2)", "llvm(+avx2)", NO),
        ("llvm(+avx2,num-cores>=4)", "llvm(num-cores=2)", NO),
        ("llvm(+avx2,num-cores>=4)", "llvm(num-cores=8)", UNKNOWN),
        ("cpu(num-cores>=4)", "llvm(num-cores=8)", YES),
        ("cpu(num-cores>=4)", "c", NO),
        ("cpu(model=865)", "llvm(model=865)", YES),
        ("cpu(fast-math=true)", "llvm(fast-math=1)", YES),
        ("cpu(libs=cblas+mkl)", "llvm(libs=cblas+mkl)", YES),
        ("gpu(thread_warp_size=32)", "cuda", YES),
        ("cuda(arch>=sm_80)", "cuda(arch=sm_90a)", YES),
        ("cuda(arch>=sm_80)", "cuda(arch=sm_53)", NO),
        ("cuda(arch>=sm_90)", "cuda(arch=sm_100)", YES),
        ("cuda(arch>=sm_90a)", "cuda(arch=sm_90a)", YES),
        ("cuda(arch>=sm_90a)", "cuda(arch=sm_90)", NO),
        ("cuda(arch>=sm_90a)", "cuda(arch=sm_100)", NO),
        ("cuda(arch>=sm_100f)", "cuda(arch=sm_103a)", YES),
        ("cuda(arch>=sm_100f)", "cuda(arch=sm_100)", NO),
        ("cuda(arch>=sm_100f)", "cuda(arch=sm_120f)", NO),
        ("cuda(arch=sm_90)", "cuda(arch=sm_90a)", NO),
        ("cuda(arch>=sm_80)", "cuda", UNKNOWN),
        ("llvm(mcpu>=x86-64-v2)", "llvm(mcpu=x86-64-v3)", YES),
        ("llvm(mcpu>=x86-64-v4)", "llvm(mcpu=x86-64-v3)", NO),
        ("llvm(mcpu>=x86-64-v2)", "llvm(mcpu=skylake-avx512)", UNKNOWN),
        ("zz(lanes>=4)", '{"kind": "zz", "lanes": 8}', YES),
        ("zz(lanes>=4)", '{"kind": "zz"}', UNKNOWN),
        ("gpu", '{"kind": "zz"}', UNKNOWN),
        ("gpu", '{"kind": "zz", "keys": ["gpu"]}', YES),
        ("gpu", '{"kind": "zz", "keys": []}', NO),
        ("llvm", '{"kind": "zz"}', NO),
    ],
)
def test_answers_have_three_values(constraint, target, expected):
    assert truth(constraint, target) == expected


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ("!llvm(num-cores>=4)", UNKNOWN),
        ("!llvm", NO),
        ("!cuda", YES),
        ("cuda|llvm", YES),
        ("cuda|llvm(num-cores>=4)", UNKNOWN),
        ("cuda|c", NO),
        ("!(cuda|c)", YES),
        ("!(cuda|llvm(num-cores>=4))", UNKNOWN),
        ("!(cuda|llvm)", NO),
    ],
)
def test_negation_and_choice_follow_three_valued_logic(constraint, expected):
    """Not turns yes and no round and leaves unknown; a choice is as true as its truest option (Kleene)."""
    assert truth(constraint, "llvm") == expected


def test_unknown_counts_as_no():
    assert not Constraint.parse("llvm(num-cores>=4)").check(Target("llvm"))


def test_reasons_are_a_tree():
    reason = Constraint.parse("cuda|llvm(num-cores>=4,+avx2)").check(Target.parse("llvm(num-cores=2)"))
    assert str(reason).splitlines() == [
        "NO cuda|llvm(+avx2,num-cores>=4)",
        "  NO cuda: this is llvm (cpu)",
        "  NO llvm: this is llvm",
        "    UNKNOWN +avx2: the target does not say",
        "    NO num-cores>=4: it is 2",
    ]


# Paths, choices, preferences


@pytest.mark.parametrize(
    ("path", "site", "expected"),
    [
        ("", "", True),
        ("", "a/b", True),
        ("a", "a", True),
        ("a", "a/b", True),
        ("a/b", "a", False),
        ("a", "ab", False),
        ("a", "a.0", True),
        ("a", "a.10/b", True),
        ("a.1", "a.1/b", True),
        ("a.1", "a.10", False),
        ("a", "a.b", False),
        ("a", "a.", False),
        ("a/b", "a.0/b.1/c", True),
    ],
)
def test_a_path_covers_its_replicas_and_all_below(path, site, expected):
    assert covers(path, site) is expected
    assert bool(Constraint.at(path).check(Target("llvm"), site)) is expected


def test_a_constraint_chooses_leaves_of_a_tree():
    layout = Layout(Target.parse("[rack=[gpu=cuda(count=2),cpu=llvm(num-cores=4)],npu=onnxruntime]").resolve())

    def chosen(text):
        constraint = Constraint.parse(text)
        return [site.path for site in layout.leaves() if constraint.check(site.target, site.path)]

    assert chosen("gpu") == ["rack/gpu.0", "rack/gpu.1"]
    assert chosen("@rack/gpu.1") == ["rack/gpu.1"]
    assert chosen("!@rack") == ["npu"]
    assert chosen("@rack/cpu|onnxruntime") == ["rack/cpu", "npu"]
    assert chosen("cpu(num-cores>=4)") == ["rack/cpu"]


def test_a_choice_ranks_options_in_order_and_a_preference_by_weight():
    llvm, cuda = Target("llvm"), Target("cuda")
    assert [Constraint.parse("cuda|llvm").rank(target) for target in (cuda, llvm)] == [0, -1]
    assert [Constraint.parse("gpu?10").rank(target) for target in (cuda, llvm)] == [10, 0]
    assert [Constraint.parse("!gpu?10").rank(target) for target in (cuda, llvm)] == [0, 10]
    assert [Constraint.parse("(gpu|npu)?3").rank(target) for target in (cuda, llvm)] == [3, 0]
    assert Constraint.parse("!(cuda|llvm)").rank(cuda) == 0


def test_only_preferences_are_not_required():
    assert Constraint.parse("gpu").is_required
    assert Constraint.parse("cuda|llvm").is_required
    assert not Constraint.parse("gpu?").is_required


def test_paths_are_found_wherever_they_stand():
    assert list(Constraint.parse("@a|!(@b|cuda|@c/d)").paths()) == ["a", "b", "c/d"]


def test_known_words_are_kinds_and_keys():
    assert {"llvm", "cuda", "cpu", "gpu", "onnxruntime"} <= known_words()


def test_a_leaf_can_stand_for_a_constraint():
    constraint = Constraint.parse(Target.parse("llvm(num-cores=4,+neon)"))
    assert str(constraint) == "llvm(+neon,num-cores>=4)"
    assert constraint.check(Target.parse("llvm(num-cores=4,+neon,+crc)"))


def test_an_attribute_of_a_key_must_be_one_of_some_kind():
    with pytest.raises(
        UnknownNameError, match="no kind with key 'cpu' has an attribute 'num-core'; did you mean 'num-cores'"
    ):
        Constraint.parse("cpu(num-core>=4)")
