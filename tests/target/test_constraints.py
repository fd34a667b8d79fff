"""Constraints: text and JSON forms, three-valued answers, choices and preferences."""

import json

import pytest
from blocks import answered, inputs

from tvmtarget import Constraint, Target
from tvmtarget.errors import TargetError, TextError, TvmTargetError, UnknownNameError
from tvmtarget.target.constraints.constraint import Truth, covers, known_words
from tvmtarget.target.topology import Topology

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
        (
            {"path": "a", "num-cores": 4},
            "'num-cores' has no meaning beside 'path'; attributes belong to a kind or a key",
        ),
        ({"any": []}, "'any' is a list of constraints, not []"),
        ({"any": "cuda"}, "'any' is a list of constraints, not 'cuda'"),
        (
            {"any": [{"prefer": 1, "kind": "cuda"}, "llvm"]},
            "a preference cannot be one option of a choice; prefer the choice: (a|b)?",
        ),
        ({"not": "cuda?"}, "'prefer' belongs outside of 'not', not in 'cuda?'"),
        ({"prefer": 3, "any": ["cuda?4"]}, "'prefer' is given twice in {'any': ['cuda?4'], 'prefer': 3}"),
        ({"prefer": "much", "kind": "cuda"}, "'weight' of a constraint is a whole number, not 'much'"),
        ({"prefer": -1, "kind": "cuda"}, "'weight' of a constraint is at least 0, not -1"),
        (
            {"kind": "llvm", "num-cores": {"atleast": 4}},
            "unknown operator 'atleast' of 'num-cores'; use one of has, lacks, eq, ne, in, ge, le, gt, lt",
        ),
        ({"kind": "llvm", "num-cores": {"ge": None}}, "attribute 'num-cores' of 'llvm' is a whole number, not None"),
        ({"kind": "llvm", "mattr": {"has": [5]}}, "a feature is a word such as 'avx2', not 5"),
    ],
)
def test_invalid_json_is_rejected(data, problem):
    with pytest.raises(TvmTargetError) as caught:
        Constraint.from_json(data)
    assert str(caught.value) == problem


def test_units_are_read_in_targets_too_and_printed_as_plain_numbers():
    target = Target.parse("cuda(max_shared_memory_per_block=64KiB,clock-mhz=1.5GHz)")
    assert str(target) == "cuda(clock-mhz=1500,max_shared_memory_per_block=65536)"
    assert Target.parse("cuda -max_shared_memory_per_block=64KiB -clock-mhz=1500MHz") == target
    assert Target("cuda", {"clock-mhz": "1.5GHz", "max_shared_memory_per_block": "65536"}) == target
    with pytest.raises(TargetError, match="counts no bytes and no MHz, so '4KB' has no meaning"):
        Target("llvm", {"num-cores": "4KB"})


def test_json_that_is_too_deep_is_rejected():
    data = {"kind": "cuda"}
    for _ in range(5000):
        data = {"not": data}
    with pytest.raises(TargetError, match="the constraint is nested too deeply"):
        Constraint.from_json(data)


def test_all_wrong_conditions_are_reported_together():
    with pytest.raises(TargetError) as caught:
        Constraint.parse("llvm(num-core>=4,num-cores>=many)")
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize("value", [5, None, b"cuda", ["cuda"]])
def test_only_texts_are_parsed(value):
    with pytest.raises(TextError, match="a constraint is a text such as 'cuda' or '@cpu'"):
        Constraint.parse(value)


def test_a_constraint_has_exactly_one_form():
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
        ("llvm(mcpu>=x86-64-v2)", "llvm(mcpu=skylake-avx512)", YES),
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
    """Negation swaps yes and no and keeps unknown; a choice has the maximum of its options (Kleene)."""
    assert truth(constraint, "llvm") == expected


def test_unknown_counts_as_no():
    assert not Constraint.parse("llvm(num-cores>=4)").check(Target("llvm"))


def test_reasons_are_a_tree():
    reason = Constraint.parse("cuda|llvm(num-cores>=4,+avx2)").check(Target.parse("llvm(num-cores=2)"))
    assert str(reason).splitlines() == [
        "NO cuda|llvm(+avx2,num-cores>=4)",
        "  NO cuda: this is llvm (cpu)",
        "  NO llvm: this is llvm",
        "    UNKNOWN +avx2: the target does not state it",
        "    NO num-cores>=4: it is 2",
    ]


GPUS = "[gpu=cuda(arch=sm_80,count=4),small=cuda(arch=sm_53),cpu=llvm(mcpu=haswell)](host=@cpu,executor=aot)"


@pytest.mark.parametrize(
    ("constraint", "target", "expected"),
    [
        # the closed features of a CPU
        ("llvm(+avx2)", "llvm(mcpu=skylake-avx512)", YES),
        ("llvm(+avx512f)", "llvm(mcpu=haswell)", NO),
        ("llvm(-avx512f)", "llvm(mcpu=haswell)", YES),
        ("llvm(+avx2)", "llvm(mcpu=haswell,-avx)", NO),
        ("llvm(+avx2)", "llvm(+avx512f)", YES),
        ("llvm(+avx2)", "llvm(+avx512f,+neon)", YES),
        ("llvm(+neon)", "llvm(mcpu=haswell)", NO),
        ("llvm(+neon)", "llvm(mtriple=aarch64-linux-gnu)", YES),
        ("llvm(+no-such-feature)", "llvm(mcpu=haswell)", UNKNOWN),
        ("llvm(+no-such-feature)", "llvm(mcpu=haswell,+no-such-feature)", YES),
        ("llvm(+sse,+avx512f)", "llvm(+avx512f,-sse)", NO),
        ("llvm(mcpu>=x86-64-v3)", "llvm(mcpu=znver3)", YES),
        ("llvm(mcpu>=znver3)", "llvm(mcpu=x86-64-v3)", NO),
        ("llvm(mcpu>=skylake-avx512)", "llvm(mcpu=skylake-avx512,-avx512f)", NO),
        ("llvm(mcpu>=cortex-a57)", "llvm(mcpu=haswell)", NO),
        ("llvm(mcpu>=cortex-a57)", "llvm", UNKNOWN),
        ("llvm(mcpu<=x86-64-v3)", "llvm(mcpu=x86-64-v2)", YES),
        ("llvm(mcpu<x86-64-v3)", "llvm(mcpu=x86-64-v3)", NO),
        ("llvm(mcpu>x86-64-v2)", "llvm(mcpu=x86-64-v3)", YES),
        ("cpu(mcpu>=x86-64-v2)", "c(mcpu=haswell)", YES),
        ("rocm(+wavefrontsize64)", "rocm(+wavefrontsize64)", YES),
        ("rocm(+wavefrontsize64)", "rocm(mcpu=gfx90a)", UNKNOWN),
        # spellings of one machine
        ("llvm(mtriple=arm64-linux-gnu)", "llvm(mtriple=aarch64-unknown-linux-gnu)", YES),
        ("llvm(mtriple=x86_64-linux-gnu|aarch64-linux-gnu)", "llvm(mtriple=arm64-linux-gnu)", YES),
        ("llvm(mtriple=x86_64-linux-gnu)", "llvm(mtriple=aarch64-linux-gnu)", NO),
        # lists, several values, units, versions
        ("llvm(libs+=cblas)", "llvm(libs=mkl+cblas)", YES),
        ("llvm(libs-=cblas)", "llvm(libs=mkl+cblas)", NO),
        ("llvm(libs+=cblas)", "llvm", UNKNOWN),
        ("cuda(arch=sm_80|sm_90)", "cuda(arch=sm_90)", YES),
        ("cuda(arch=sm_80|sm_90)", "cuda(arch=sm_90a)", NO),
        ("cuda(arch!=sm_80|sm_90)", "cuda(arch=sm_90)", NO),
        ("cuda(max_shared_memory_per_block>=48KiB)", "cuda(max_shared_memory_per_block=49152)", YES),
        ("tensorrt(tensorrt_version>=8+4)", "tensorrt(tensorrt_version=[8,4,1])", YES),
        ("tensorrt(tensorrt_version>=8+5)", "tensorrt(tensorrt_version=[8,4,1])", NO),
        ("vulkan(supports_int8!=false)", "vulkan(supports_int8=true)", YES),
        # fields of a node
        ("cuda(count>=8)", "cuda(count=8)", YES),
        ("cuda(count=4)", "cuda(count=8)", NO),
        ("gpu(keys+=mali)", "opencl(keys=mali)", YES),
        ("gpu(keys+=gpu)", "opencl(keys=mali)", YES),
        ("gpu(keys+=mali)", "opencl", NO),
        ("gpu(keys+=mali)", '{"kind": "zz"}', UNKNOWN),
        ("cuda", "llvm(keys=cuda)", NO),
        ("cuda", "nvptx", YES),
        # conjunctions
        ("gpu&cuda(arch>=sm_80)", "cuda(arch=sm_80)", YES),
        ("gpu&!cuda", "cuda", NO),
        ("gpu&cuda(arch>=sm_80)", "cuda", UNKNOWN),
        # systems
        ("[cuda,llvm]", GPUS, YES),
        ("[cuda,llvm]", "cuda", NO),
        ("[gpu=cuda(arch>=sm_80)]", GPUS, YES),
        ("[small=cuda(arch>=sm_80)]", GPUS, NO),
        ("[cuda(arch>=sm_80),cuda,llvm]", GPUS, YES),
        ("[small=cuda,cuda(arch<sm_80)]", GPUS, NO),
        ("[cuda(count=5)]", GPUS, YES),
        ("[cuda(count=6)]", GPUS, NO),
        ("[cuda(count>4)]", GPUS, YES),
        ("[cuda(arch>=sm_80,count=4),cuda]", GPUS, YES),
        ("[cuda(arch>=sm_80,count=4),cuda(arch>=sm_80)]", GPUS, NO),
        ("[cuda(count<=1)]", GPUS, YES),
        ("[gpu.3=cuda]", GPUS, YES),
        ("[gpu.4=cuda]", GPUS, NO),
        ("[npu=cuda]", GPUS, NO),
        ("[cuda,cuda(arch>=sm_80)]", "[a=cuda,b=cuda(arch=sm_80)]", YES),
        ("[cuda(arch>=sm_80),cuda]", "[a=cuda,b=cuda]", UNKNOWN),
        ("[cuda(arch>=sm_80),cuda(arch>=sm_80)]", "[a=cuda(arch=sm_80),b=cuda,c=cuda(arch=sm_53)]", UNKNOWN),
        ("[!cuda]", GPUS, YES),
        ("[rocm|llvm(+avx2)]", GPUS, YES),
        ("[n/gpu=cuda(count=8)]", "[n=[gpu=cuda(count=4)](count=2)]", YES),
        ("[n/gpu=cuda(count=9)]", "[n=[gpu=cuda(count=4)](count=2)]", NO),
        ("[[cuda]]", "[n=[gpu=cuda]]", YES),
        ("[cuda]", "[]", NO),
        # host, executor, runtime
        ("[cuda](host=@cpu)", GPUS, YES),
        ("[cuda](host=llvm(+avx2))", GPUS, YES),
        ("[cuda(host=llvm(+avx512f))]", GPUS, NO),
        ("cuda(host=llvm)", "cuda(host=llvm)", YES),
        ("cuda(host=llvm)", "cuda", UNKNOWN),
        ("cuda(host=llvm)", "cuda(host=@nowhere)", UNKNOWN),
        ("llvm(host=llvm)", "llvm", YES),
        ("[cuda](executor=aot)", GPUS, YES),
        ("[cuda(executor=aot)]", GPUS, YES),
        ("[cuda](executor=aot(unpacked-api=false))", GPUS, YES),
        ("[cuda](executor=graph|vm)", GPUS, NO),
        ("[cuda](executor=!vm)", GPUS, YES),
        ("llvm(executor=graph,runtime=python)", "llvm", YES),
        ("llvm(runtime=crt(system-lib=true))", "llvm(runtime=crt(system-lib=true))", YES),
        ("llvm(runtime=crt(system-lib=true))", "llvm(runtime=crt)", NO),
    ],
)
def test_answers_of_systems_lists_and_instructions(constraint, target, expected):
    assert truth(constraint, target) == expected


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ("llvm(memory>=4GiB)", YES),
        ("llvm(memory>4GiB)", NO),
        ("cuda(memory>=12GiB)", YES),
        ("cuda(memory>12GiB)", NO),
        ("composite(memory=12GiB)", YES),
        ("onnxruntime(memory>=4GiB)", YES),
        ("onnxruntime(memory>=8GiB)", UNKNOWN),
        ("onnxruntime(memory<4GiB)", NO),
    ],
)
def test_memory_is_the_sum_that_a_node_can_use(constraint, expected):
    memory = [
        {"name": "dram", "bytes": 4 * 2**30},
        {"name": "hbm", "bytes": 8 * 2**30, "of": ["cuda"]},
        {"name": "scratch", "of": ["onnxruntime"]},
        {"name": "store", "bytes": 2**40, "kind": "flash"},
    ]
    tree = {"kind": "composite", "targets": ["cuda", "llvm", "onnxruntime"], "memory": memory}
    tree = Target.from_json(tree)
    if constraint.startswith("composite"):
        tree = tree.replace(memory=tree.memory[:2])  # type: ignore[attr-defined]
    assert tree.satisfies(constraint).truth == expected  # type: ignore[attr-defined]
    assert Target("cuda").satisfies("cuda(memory>=1)").truth == UNKNOWN


@pytest.mark.parametrize(
    ("target", "constraint"),
    [
        (
            "cuda(arch=sm_80,max_shared_memory_per_block=49152,thread_warp_size=32,model=x)",
            "cuda(arch>=sm_80,max_shared_memory_per_block>=49152,thread_warp_size=32)",
        ),
        (
            "llvm(mcpu=haswell,num-cores=4,fast-math=true,opt-level=2,jit=orcjit)",
            "llvm(fast-math=true,mcpu>=haswell,num-cores>=4)",
        ),
        ("llvm(mcpu=generic,libs=cblas,device=arm_cpu)", "llvm(libs=cblas,mcpu=generic)"),
        ("rocm(mcpu=gfx90a,+xnack)", "rocm(+xnack,mcpu=gfx90a)"),
        ("llvm(mcpu=cortex-a57,-fp-armv8)", "llvm(+crc,+v8a)"),
        (
            "cuda(host=llvm(num-cores=2),executor=aot(unpacked-api=true))",
            "cuda(host=llvm(num-cores>=2),executor=aot(unpacked-api=true))",
        ),
        (
            "[gpu=cuda(count=2),llvm](host=@llvm,runtime=crt)",
            "composite[gpu=cuda(count>=2),llvm](host=llvm,runtime=crt)",
        ),
        ("llvm(mcpu=haswell,+avx512f,-sse)", "llvm(+avx512f,mcpu=haswell)"),
        ('{"kind": "zz", "lanes": 4}', "zz(lanes=4)"),
    ],
)
def test_a_target_becomes_the_constraint_at_least_this_target(target, constraint):
    assert str(Constraint.of(Target.parse(target))) == constraint
    assert Target.parse(target).satisfies(Target.parse(target))


def test_a_reason_is_possible_unless_it_is_a_no():
    assert not Target("llvm").satisfies("llvm(num-cores>=4)")
    assert Target("llvm").satisfies("llvm(num-cores>=4)").is_possible
    assert not Target("llvm").satisfies("cuda").is_possible


def test_a_negation_is_checked_on_leaves():
    assert not Target.parse("[a=cuda,b=cuda]").satisfies("!gpu")
    assert Target.parse("[a=cuda,b=llvm]").satisfies("!gpu")


def test_reasons_of_systems_name_the_missing_child():
    reason = Target.parse(GPUS).satisfies("[cuda(arch>=sm_80,count=5),npu=hexagon,llvm](executor=graph)")
    assert str(reason).splitlines() == [
        "NO composite does not satisfy composite[cuda(arch>=sm_80,count=5),npu=hexagon,llvm](executor=graph)",
        "  NO @.: composite: this is composite",
        "    NO child 5 times cuda(arch>=sm_80): 4 of 5 found",
        "      NO small: cuda: this is cuda",
        "        NO arch>=sm_80: it is sm_53",
        "      NO cpu: cuda: this is llvm (cpu)",
        "    NO child npu=hexagon: no child has that name; there is gpu, small, cpu",
        "    YES child llvm: cpu",
        "    NO executor=graph: it is aot",
    ]


def test_reasons_report_children_that_other_constraints_take():
    reason = Target.parse(GPUS).satisfies("[small=cuda,cuda(arch<sm_80)]")
    assert str(reason.parts[0].parts[1]) == "\n".join(
        [
            "NO child cuda(arch<sm_80): not found; the 1 that fit are assigned to other children",
            "  NO gpu: cuda: this is cuda",
            "    NO arch<sm_80: it is sm_80",
            "  NO cpu: cuda: this is llvm (cpu)",
        ]
    )


def test_an_unknown_word_comes_with_the_nearest_ones():
    reason = Target("cuda").satisfies("gpux")
    assert str(reason.parts[0]) == "NO @.: gpux: this is cuda (cuda,gpu); did you mean 'gpu' or 'webgpu'?"


@pytest.mark.parametrize(
    ("target", "constraint", "line"),
    [
        ("llvm(mcpu=haswell)", "llvm(+avx512f)", "NO +avx512f: mcpu haswell lacks it"),
        ("llvm(mcpu=haswell)", "llvm(+avx2)", "YES +avx2: mcpu haswell has it"),
        ("llvm(-avx2)", "llvm(+avx2)", "NO +avx2: it is -avx2"),
        (
            "llvm(mcpu=znver3)",
            "llvm(mcpu>=x86-64-v4)",
            "NO mcpu>=x86-64-v4: it is znver3, without avx512bw, avx512cd, avx512dq, avx512f and 1 more",
        ),
        ("llvm(mcpu=haswell)", "llvm(mcpu>=cortex-a57)", "NO mcpu>=cortex-a57: it is haswell, of x86"),
        ("llvm", "llvm(memory>=1GiB)", "UNKNOWN memory>=1073741824: the target does not state it"),
        ("cuda", "cuda(host=llvm)", "UNKNOWN host=llvm: the target does not state it"),
        ("llvm(libs=mkl)", "llvm(libs+=cblas)", "NO libs+=cblas: it is mkl"),
    ],
)
def test_reasons_name_the_rule_and_both_values(target, constraint, line):
    assert str(Target.parse(target).satisfies(constraint).parts[0].parts[0]) == line


# Algebra


def test_constraints_are_joined_by_operators():
    gpu, cpu, rack = (Constraint.parse(text) for text in ("gpu", "cpu", "@rack"))
    assert [str(one) for one in (gpu & rack, gpu & rack & rack, gpu | cpu, ~gpu, ~~gpu, (gpu | cpu) & rack)] == [
        "gpu&@rack",
        "gpu&@rack",
        "gpu|cpu",
        "!gpu",
        "gpu",
        "(gpu|cpu)&@rack",
    ]
    with pytest.raises(TargetError, match="a preference cannot be one part of a conjunction"):
        _ = gpu & Constraint.parse("cpu?")
    with pytest.raises(TypeError):
        _ = gpu & "cpu"


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
    topology = Topology(Target.parse("[rack=[gpu=cuda(count=2),cpu=llvm(num-cores=4)],npu=onnxruntime]").resolve())

    def chosen(text):
        constraint = Constraint.parse(text)
        return [site.path for site in topology.leaves() if constraint.check(site.target, site.path)]

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


def test_paths_are_found_at_every_depth():
    assert list(Constraint.parse("@a|!(@b|cuda|@c/d)").paths()) == ["a", "b", "c/d"]


def test_known_words_are_kinds_and_keys():
    assert {"llvm", "cuda", "cpu", "gpu", "onnxruntime"} <= known_words()


def test_a_leaf_can_be_used_as_a_constraint():
    constraint = Constraint.parse(Target.parse("llvm(num-cores=4,+neon)"))
    assert str(constraint) == "llvm(+neon,num-cores>=4)"
    assert constraint.check(Target.parse("llvm(num-cores=4,+neon,+crc)"))


def test_an_attribute_of_a_key_must_be_one_of_some_kind():
    with pytest.raises(
        UnknownNameError, match="no kind with key 'cpu' has an attribute 'num-core'; did you mean 'num-cores'"
    ):
        Constraint.parse("cpu(num-core>=4)")


def test_a_cpu_by_generated_c_has_the_features_of_its_chip():
    """The kind `c` has no list of features, but its `mcpu` determines them."""
    assert Target.parse("c(mcpu=cortex-m55)").satisfies("c(+mve)")
    assert not Target.parse("c(mcpu=cortex-m33)").satisfies("c(+mve)")
    reduced = Target.parse("c(mcpu=cortex-m33+nofp+nodsp)")
    assert reduced.satisfies(reduced)
    least = Constraint.of(reduced)
    assert Constraint.parse(str(least)) == Constraint.from_json(least.to_json()) == least


@pytest.mark.parametrize("kind", ["eeprom", "flash", "mram", "nvm", "rom"])
def test_memories_that_programs_cannot_write_hold_no_tensors(kind):
    board = Target("c", memory=[{"name": "store", "bytes": 2**20, "kind": kind}])
    assert board.satisfies("c(memory>=1)").truth is not Truth.YES
