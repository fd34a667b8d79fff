"""Features of nodes; for Arm with the expectations of TVM's own tests of its parsers and canonicalizers.

The cases of TVM are those of `tests/cpp/target/parsers/{aprofile,mprofile}_test.cc` at v0.19.0 and of
`tests/python/target/test_target_parser_mprofile.py` at main, as tables.
"""

import copy
import json
import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmtarget import Target
from tvmtarget.errors import TargetError
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.constraints.reasons import Truth
from tvmtarget.target.cpu.features import table_of

MVE_CPUS = ("cortex-m55", "cortex-m85")
DSP_CPUS = ("cortex-m4", "cortex-m7", "cortex-m33", "cortex-m35p")
PLAIN_CPUS = ("cortex-m0", "cortex-m3")

M_PROFILE = [
    *((cpu, [], True, True) for cpu in MVE_CPUS),
    *((cpu, ["+nomve"], True, False) for cpu in MVE_CPUS),
    *((cpu, ["+nodsp"], False, False) for cpu in MVE_CPUS),
    *((cpu, ["+nodsp", "+nomve"], False, False) for cpu in MVE_CPUS),
    *((cpu, ["+nomve", "+woof"], True, False) for cpu in MVE_CPUS),
    *((f"{cpu}+nomve", [], True, False) for cpu in MVE_CPUS),
    *((f"{cpu}+nodsp", [], False, False) for cpu in MVE_CPUS),
    *((f"{cpu}+nodsp+nomve", [], False, False) for cpu in MVE_CPUS),
    *((f"{cpu}+nomve+nodsp", [], False, False) for cpu in MVE_CPUS),
    *((cpu, [], True, False) for cpu in DSP_CPUS),
    *((cpu, ["+nodsp"], False, False) for cpu in DSP_CPUS),
    *((cpu, ["+nodsp", "+woofles"], False, False) for cpu in DSP_CPUS),
    *((f"{cpu}+nodsp", [], False, False) for cpu in DSP_CPUS),
    *((f"{cpu}+nodsp+woofles", [], False, False) for cpu in DSP_CPUS),
    *((cpu, [], False, False) for cpu in PLAIN_CPUS),
]

# Triple, CPU and level of which the installed LLVM is the judge.
LEVELS = [
    *(("aarch64-linux-gnu", "", level) for level in ("v8.2a", "v8.4a", "v8.6a", "v8.9a", "v9a", "v9.4a")),
    *(("armv7a-linux-gnueabihf", "", level) for level in ("armv8-a", "armv8.4-a", "v8.6a")),
    *(("riscv64-linux-gnu", "", level) for level in ("rva20u64", "rva22u64", "rva23u64")),
    *(("x86_64-linux-gnu", level, "") for level in ("x86-64-v2", "x86-64-v3", "x86-64-v4")),
    ("arm-none-eabi", "cortex-m55", ""),
    ("aarch64-linux-gnu", "neoverse-v2", ""),
]

AARCH64, ARMV8A = "aarch64-arm-none-eabi", "armv8a-arm-none-eabi"

# Triple, features, flag, whether it is set.
A_PROFILE = [
    (AARCH64, [], "is_aarch64", True),
    ("armv7a-arm-none-eabi", [], "is_aarch64", False),
    (ARMV8A, [], "is_aarch64", False),
    ("arm-unknown-linux-gnu", [], "is_aarch64", False),
    (AARCH64, [], "has_asimd", True),
    (ARMV8A, [], "has_asimd", True),
    (ARMV8A, ["+simd"], "has_asimd", True),
    (ARMV8A, ["+neon"], "has_asimd", True),
    (AARCH64, ["+v8.6a"], "has_matmul_i8", True),
    (AARCH64, ["+v8.6a", "-i8mm"], "has_matmul_i8", False),
    (AARCH64, ["+v8.6a", "-i8mm"], "has_dotprod", True),
    *((AARCH64, [f"+v8.{minor}a"], "has_matmul_i8", False) for minor in (2, 3, 4, 5)),
    *((AARCH64, [f"+v8.{minor}a", "+i8mm"], "has_matmul_i8", True) for minor in (2, 3, 4, 5)),
    (AARCH64, ["+v8.4a"], "has_dotprod", True),
    (AARCH64, ["+v8.4a", "-dotprod"], "has_dotprod", False),
    (AARCH64, ["+v8.4b"], "has_dotprod", False),
    *((AARCH64, [f"+v8.{minor}a"], "has_dotprod", False) for minor in (2, 3)),
    *((AARCH64, [f"+v8.{minor}a", "+dotprod"], "has_dotprod", True) for minor in (2, 3)),
    *((AARCH64, [version], "has_sve", False) for version in ("+v8a", "+v8.1a", "+v8.5a", "+v8.9a")),
    *((AARCH64, [version, "+sve"], "has_sve", True) for version in ("+v8a", "+v8.1a", "+v8.5a", "+v8.9a")),
    (AARCH64, ["+v9a"], "has_sve", False),  # with the LLVM of v0.19, v9a brought sve2; with LLVM 22 it does not
    *((AARCH64, [f"+v8.{minor}a"], "has_fp16_simd", False) for minor in (2, 5, 9)),
    *((AARCH64, [f"+v8.{minor}a", "+fullfp16"], "has_fp16_simd", True) for minor in (2, 5, 9)),
    *((AARCH64, [f"+v8.{minor}a", "+sve"], "has_fp16_simd", True) for minor in (2, 5, 9)),
    (AARCH64, ["+v9a"], "has_fp16_simd", False),  # the same
    (AARCH64, ["+v9a"], "has_sme", False),
    (AARCH64, ["+v9a", "+sme"], "has_sme", True),
    ("aarch64-linux-gnu", ["+sve2"], "has_sve", True),
    ("aarch64-linux-gnu", ["+sve2"], "has_asimd", True),
]

# Node, family, whether it is complete, some it has, some it has not.
NODES = [
    ("llvm", "", False, "", "avx2"),
    ("numpy", "", False, "", ""),
    ("llvm(mtriple=x86_64-linux-gnu)", "x86", True, "sse2 cmov fxsr", "sse3 avx"),
    ("llvm(mtriple=i386-linux-gnu)", "x86", True, "x87", "sse2"),
    ("llvm(mcpu=x86-64-v3)", "x86", True, "avx2 fma sse2", "avx512f"),
    ("llvm(mcpu=skylake-avx512)", "x86", True, "avx512f avx512vl", "avx512vnni fast-gather"),
    ("llvm(mcpu=cascadelake,-avx512vnni)", "x86", True, "avx512f", "avx512vnni"),
    ("llvm(mcpu=skylake-avx512,-avx2)", "x86", True, "avx", "avx2 avx512f fma4"),
    ("llvm(mcpu=skylake,+prefer-256-bit)", "x86", True, "avx2", "prefer-256-bit"),
    ("llvm(+avx512f)", "x86", False, "avx512f avx2 sse2", ""),
    ("llvm(+crc)", "", False, "crc", "neon"),
    ("llvm(mtriple=aarch64-linux-gnu)", "aarch64", True, "neon", "crc"),
    ("llvm(mcpu=cortex-a72)", "aarch64", True, "neon crc", "dotprod"),
    ("llvm(mtriple=armv7l-linux-gnueabihf,mcpu=cortex-a72)", "arm", True, "neon crc", "dotprod"),
    ("llvm(mtriple=arm64-apple-macos,mcpu=apple-m1)", "aarch64", True, "dotprod fullfp16", "sve i8mm"),
    ("llvm(mtriple=armv7a-linux-gnueabihf)", "arm", True, "neon v7", "v8"),
    ("llvm(mtriple=thumbv7em-none-eabihf)", "arm", True, "dsp v7", "neon mve"),
    ("llvm(mtriple=armv7em-none-eabihf)", "arm", True, "dsp v7", "neon mve"),
    ("llvm(mtriple=riscv64-linux-gnu)", "riscv", True, "i 64bit", "m"),
    ("llvm(mtriple=riscv64-linux-gnu,mcpu=sifive-u74)", "riscv", True, "m a f d c", "v"),
    ("llvm(mcpu=generic)", "", False, "", ""),
    ("llvm(mcpu=skylaker,unchecked=mcpu,mtriple=x86_64-linux-gnu)", "x86", False, "sse2", ""),
    ("c(mcpu=cortex-m33)", "arm", True, "dsp", "mve"),
    ("c(march=armv8-a)", "", False, "", ""),
    ("c(march=x86-64-v3)", "x86", True, "avx2", "avx512f"),
    ('c(march="armv8.1-m.main+mve")', "arm", True, "lob mve dsp", "mve.fp"),
    ('c(march="armv7e-m+nodsp")', "arm", True, "v7", "dsp"),
    ("c(march=armv7e-m)", "arm", True, "dsp mclass", "mve"),
    ("c(march=rv64gc)", "riscv", True, "m a f d c", "v"),
    ("c", "", False, "", ""),
    ("cmsis-nn(mcpu=cortex-m55)", "arm", True, "mve dsp", "neon"),
    ("cmsis-nn(mcpu=cortex-m55,-mve)", "arm", True, "dsp", "mve"),
    ("hexagon(mcpu=hexagonv68,+hvxv68,+hvx-length128b)", "hexagon", True, "v68 hvxv68 hvx hvx-length128b", "hvxv69"),
    ("hexagon", "hexagon", False, "", ""),
]


@pytest.mark.parametrize(("mcpu", "mattr", "has_dsp", "has_mve"), M_PROFILE)
@pytest.mark.parametrize("kind", ["llvm", "cmsis-nn"])
def test_a_microcontroller_has_the_features_that_tvm_gives_it(kind, mcpu, mattr, has_dsp, has_mve):
    features = Target(kind, {"mcpu": mcpu, "mattr": mattr}).features
    assert (features.has_dsp, features.has_mve) == (has_dsp, has_mve)
    assert not features.is_aarch64


@pytest.mark.parametrize(("mtriple", "mattr", "flag", "is_set"), A_PROFILE)
def test_an_application_cpu_has_the_features_that_tvm_gives_it(mtriple, mattr, flag, is_set):
    assert getattr(Target("llvm", {"mtriple": mtriple, "mattr": mattr}).features, flag) is is_set


def test_the_installed_tvm_agrees_on_arm():
    """Except for `arm64-*` triples, which it treats as 32-bit Arm."""
    tvm = pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")
    for mtriple, mattr, flag, is_set in A_PROFILE:
        theirs = tvm.target.Target({"kind": "llvm", "mtriple": mtriple, "mattr": mattr})
        assert bool(theirs.attrs[f"feature.{flag}"]) is bool(is_set), (mtriple, mattr, flag)
    for mcpu, mattr, has_dsp, has_mve in M_PROFILE:
        theirs = tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "mattr": mattr}).attrs
        assert (theirs["feature.has_dsp"], theirs["feature.has_mve"]) == (has_dsp, has_mve), (mcpu, mattr)


def test_the_installed_llvm_removes_features_of_a_level_or_a_cpu_as_we_do():
    """LLVM clears the features that imply a removed one, and so the level itself, but no others."""
    pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")
    from tools.derive_features import llvm_features

    rng = random.Random(13)
    for mtriple, mcpu, level in LEVELS:
        attrs = {"mtriple": mtriple, **({"mcpu": mcpu} if mcpu else {}), "mattr": [f"+{level}"] if level else []}
        table = table_of(Target("llvm", attrs).features.family)
        for name in rng.sample(sorted(set(Target("llvm", attrs).features) - {level}), 8):
            if table.is_level(name) or name in ("64bit", "32bit", "i"):
                continue
            ours = Target("llvm", {**attrs, "mattr": [*attrs["mattr"], f"-{name}"]}).features
            assert ours.names == llvm_features(mtriple, mcpu, (*attrs["mattr"], f"-{name}")) & table.implies.keys(), (
                level,
                name,
            )


@pytest.mark.parametrize(
    ("text", "there", "not_there"),
    [
        ("llvm(+v8.6a,-i8mm)", "dotprod bf16 v8.5a", "i8mm v8.6a"),
        ("llvm(mtriple=aarch64-linux-gnu,+v9.2a,-sb)", "bf16 i8mm dotprod", "sb v9a v9.2a v8.5a"),
        ("llvm(mtriple=armv7a-linux-gnueabihf,+armv8.4-a,-dotprod)", "crc v8.3a", "dotprod armv8.4-a"),
        ("llvm(mtriple=riscv64-linux-gnu,+rva22u64,-zba)", "zbb zbs d", "zba rva22u64"),
        ("llvm(mtriple=riscv64-linux-gnu,+rv64gc,-c)", "m a f d", "c"),
        ("llvm(mtriple=riscv64-linux-gnu,+rv64gc,-f)", "m a c", "f d"),
        ("llvm(mcpu=x86-64-v3,-avx2)", "avx fma bmi2", "avx2"),
        ("llvm(mcpu=cortex-m55,mattr=+nomve+nodsp)", "lob", "mve dsp"),
        ('llvm(mcpu="cortex-m55+nomve.fp")', "mve dsp fullfp16", "mve.fp"),
        ('llvm(mcpu="cortex-m55+nofp")', "mve dsp", "mve.fp fullfp16 vfp2sp"),
        ('llvm(mcpu="neoverse-n1+nocrypto")', "dotprod", "aes sha2"),
        ('llvm(mcpu="cortex-a76+nofp16")', "dotprod", "fullfp16"),
        ('llvm(mcpu="cortex-m7+nofp.dp")', "vfp4d16sp dsp", "fp64 vfp4d16"),
        ('c(march="armv8.6-a+noi8mm")', "dotprod bf16 neon", "i8mm"),
        ('c(march="armv8.4-a+nodotprod+crypto")', "aes sha2 neon", "dotprod"),
        ('c(march="armv8.6-a+noi8mm+i8mm")', "dotprod i8mm", ""),  # the right-most holds
        ('c(march="armv8.6-a+i8mm+noi8mm")', "dotprod", "i8mm"),
        ('llvm(mcpu="neoverse-n1+nosimd+dotprod")', "dotprod neon", "aes sha2"),
        ('llvm(mcpu="neoverse-n1+nocrypto+aes")', "aes neon", "sha2"),
        ('c(march="armv8.2-a+fp16")', "fullfp16 neon", "dotprod"),
    ],
)
def test_features_are_removed_from_a_level_as_from_a_cpu(text, there, not_there):
    features = Target.parse(text).resolve().features
    assert set(there.split()) <= features.names
    assert not set(not_there.split()) & features.names


def test_one_item_may_hold_several_features():
    one = Target("llvm", {"mcpu": "cortex-m55", "mattr": ["+nomve+nodsp"]})
    assert one == Target("llvm", {"mcpu": "cortex-m55", "mattr": ["+nomve", "+nodsp"]})


def test_a_level_without_one_of_its_features_is_not_complete():
    target = Target.parse("llvm(mtriple=aarch64-linux-gnu,+v8.6a,-i8mm)")
    assert target.satisfies("llvm(+bf16)")
    assert target.satisfies("llvm(-i8mm)")
    assert target.satisfies("llvm(+v8.6a)").truth is Truth.NO
    assert target.satisfies(Constraint.of(target))
    assert not target.satisfies(Constraint.of(Target.parse("llvm(mtriple=aarch64-linux-gnu,+v8.6a)")))


@pytest.mark.parametrize(
    "mattr", [["+v8.6a", "-v8.4a"], ["+v9a", "-v8.5a"], ["+sve2", "-sve"], ["+v8.4a", "+sve2", "-sve"]]
)
def test_a_feature_that_is_stated_cannot_be_removed(mattr):
    """LLVM drops it silently."""
    with pytest.raises(TargetError, match=r"^features \+\S+ and -\S+ contradict: "):
        Target("llvm", {"mtriple": AARCH64, "mattr": mattr}).resolve()


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("llvm", ("cpu",)),
        ("llvm(mcpu=skylake)", ("cpu",)),
        ("llvm(mcpu=cortex-m55)", ("arm_cpu", "cpu")),
        ("c(mcpu=cortex-m55)", ("arm_cpu", "cpu")),
        ("llvm(mtriple=aarch64-linux-gnu)", ("arm_cpu", "cpu")),
        ("llvm(mtriple=arm64-apple-macos)", ("arm_cpu", "cpu")),
        ("llvm(mtriple=aarch64-linux-gnu,keys=cpu)", ("cpu", "arm_cpu")),
        ("llvm(mtriple=aarch64-linux-gnu,keys=cpu+arm_cpu)", ("cpu", "arm_cpu")),
        ("llvm(mtriple=aarch64-linux-gnu,keys=cpu+arm_cpu,device=arm_cpu)", ("cpu", "arm_cpu")),
        ("llvm(mtriple=aarch64-linux-gnu,keys=foo,device=bar)", ("foo", "arm_cpu", "cpu", "bar")),
        ("c(march=armv8-a)", ("arm_cpu", "cpu")),
        ("cmsis-nn(mcpu=cortex-m55)", ()),
    ],
)
def test_an_arm_cpu_has_the_keys_that_tvm_gives_it(text, keys):
    assert Target.parse(text).keys == keys


def test_derived_keys_do_not_change_the_identity_of_a_target():
    plain = Target.parse("llvm(mcpu=cortex-m55)")
    assert Target.parse("llvm(mcpu=cortex-m55,keys=cpu)") == plain
    assert "arm_cpu" not in str(plain)


@pytest.mark.parametrize(("text", "family", "is_complete", "there", "not_there"), NODES)
def test_the_features_of_a_node(text, family, is_complete, there, not_there):
    features = Target.parse(text).features
    assert (features.family, features.is_complete) == (family, is_complete)
    assert set(there.split()) <= set(features)
    assert not set(not_there.split()) & set(features)
    assert list(features) == sorted(features.names)
    if family:
        assert features.names == table_of(family).closure(features.names)


def test_the_features_of_an_unnamed_machine_are_unknown():
    features = Target.parse("llvm(+avx2,-avx512f)").features
    assert features.has("avx2") is features.has("sse") is True
    assert features.has("avx512f") is features.has("avx512bw") is False
    assert features.has("fma") is None
    assert Target.parse("llvm(mcpu=x86-64-v2)").features.has("fma") is False


@pytest.mark.parametrize(
    ("text", "cpu", "answer"),
    [
        ("llvm(mcpu=cascadelake)", "skylake-avx512", True),
        ("llvm(mcpu=cascadelake)", "x86-64-v4", True),
        ("llvm(mcpu=cascadelake,-avx512vnni)", "cascadelake", False),
        ("llvm(mcpu=znver3,-pku)", "znver3", True),  # what hypervisors hide
        ("llvm(mcpu=skylake)", "x86-64-v4", False),
        ("llvm(+avx2)", "x86-64-v3", None),
        ("llvm(-avx2)", "x86-64-v3", False),
        ("llvm(mcpu=skylake)", "cortex-a72", False),
        ("llvm(mcpu=skylake)", "cortex-z99", None),
        ("llvm", "x86-64", None),
    ],
)
def test_a_node_covers_a_cpu_whose_instructions_it_all_has(text, cpu, answer):
    assert Target.parse(text).features.covers(cpu) is answer


@pytest.mark.parametrize(
    ("text", "capability"),
    [
        ("cuda", None),
        ("cuda(arch=sm_80)", (8, 0)),
        ("cuda(arch=sm_90a)", (9, 0)),
        ("cuda(arch=sm_120)", (12, 0)),
        ("nvptx(mcpu=sm_53)", (5, 3)),
        ("rocm(mcpu=gfx90a)", (9, 0, 10)),
        ("rocm(mcpu=gfx1030)", (10, 3, 0)),
        ("rocm(mcpu=gfx9-4-generic)", None),
        ("metal", None),
    ],
)
def test_a_gpu_has_a_capability_and_no_features(text, capability):
    features = Target.parse(text).features
    assert (features.compute_capability, len(features), features.is_complete) == (capability, 0, False)


def test_unknown_features_are_used_as_they_are_stated():
    features = Target.parse("rocm(mcpu=gfx90a,+sramecc,-xnack)").features
    assert (features.has("sramecc"), features.has("xnack"), features.has("tgsplit")) == (True, False, None)


words = st.one_of(st.text(max_size=12), st.from_regex(r"(no)?[a-z0-9.+_-]{1,12}", fullmatch=True))


@given(
    st.fixed_dictionaries(
        {"kind": st.sampled_from(["llvm", "c", "hexagon", "cmsis-nn", "cuda", "rocm", "numpy"])},
        optional={
            "mcpu": st.one_of(words, st.sampled_from(["skylake", "cortex-m55+nomve", "generic"])),
            "mtriple": st.one_of(words, st.sampled_from(["x86_64-linux-gnu", "riscv64", "thumbv7m-none-eabi"])),
            "mattr": st.lists(st.one_of(words, st.sampled_from(["+avx2", "-sse", "+rv64gc", "+v", "+nodsp"]))),
            "march": words,
            "mabi": words,
        },
    )
)
def test_every_combination_has_features_or_is_rejected(flat):
    try:
        target = Target(flat.pop("kind"), flat | {"unchecked": ["mcpu", "mtriple"]})
        features = target.features
        target.resolve()
    except TargetError:
        return
    assert not features.names & features.absent
    assert target.keys is not None


def test_features_are_a_frozen_value_that_json_can_hold():
    features = Target.parse("llvm(mcpu=cortex-a72)").features
    assert pickle.loads(pickle.dumps(features)) == copy.deepcopy(features) == features
    assert json.loads(json.dumps(features.to_json()))["family"] == "aarch64"
    assert hash(features) == hash(Target.parse("llvm(mcpu=cortex-a72,num-cores=4)").features)


def test_an_unknown_flag_names_the_nearest():
    with pytest.raises(AttributeError, match=r"features have no flag 'has_swe'; did you mean 'has_sve'"):
        _ = Target("llvm").features.has_swe


def test_a_text_without_features_is_read_without_the_tables(subprocess_with_hash_seed):
    code = (
        "from tvmtarget import Target; from tvmtarget.target.cpu import features; "
        "Target.parse('[gpu=cuda(arch=sm_80),cpu=llvm(mcpu=skylake,mtriple=x86_64-linux-gnu)]').keys; "
        "print(features._tables.cache_info().currsize)"
    )
    assert subprocess_with_hash_seed(code, "0").strip() == "0"
