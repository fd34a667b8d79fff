"""Comparison of attributes by class: `satisfies` and `why_not` agree, and GPUs follow the rules of their vendors."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tvmtarget import Constraint, Memory, Target
from tvmtarget.errors import TargetError
from tvmtarget.target.constraints.attribute_comparison import (
    compare_attribute,
    compare_memory,
    doublings,
    required_operator,
)
from tvmtarget.target.constraints.reasons import Truth
from tvmtarget.target.cpu.chips import chips_of
from tvmtarget.target.cpu.isa import vector_bits
from tvmtarget.target.gpu_archs import has_instructions, is_ordered, runs_machine_code
from tvmtarget.target.kinds import find_kind, kind_names

NVIDIA = sorted(chips_of("nvptx"))
AMD = sorted(name for name in chips_of("amdgcn") if name.startswith("gfx"))

CPUS = {
    "mcpu": st.sampled_from(["haswell", "skylake-avx512", "znver3", "x86-64-v3", "x86-64-v2", "cortex-a72", "generic"]),
    "mtriple": st.sampled_from(["x86_64-pc-linux-gnu", "x86_64-linux-gnu", "x86_64-linux", "aarch64-linux-gnu"]),
    "mattr": st.lists(
        st.sampled_from(["+avx2", "+fma", "+avx512f", "+neon", "+crc", "-avx2", "-crc"]), max_size=2, unique=True
    ),
    "vector-width": st.sampled_from([128, 256, 512]),
}
CHIPS = {
    ("cuda", "arch"): st.sampled_from(NVIDIA),
    ("cuda", "mcpu"): st.nothing(),
    ("nvptx", "mcpu"): st.sampled_from(NVIDIA),
    ("rocm", "mcpu"): st.sampled_from(AMD),
    ("rocm", "mattr"): st.sampled_from([["+xnack"], ["-xnack"], ["+xnack", "-sramecc"], ["+sramecc"], []]),
    ("vulkan", "vulkan_api_version"): st.sampled_from([(1 << 22) + (minor << 12) for minor in range(5)]),
    ("hexagon", "mcpu"): st.sampled_from(["hexagonv66", "hexagonv68"]),
    ("hexagon", "mattr"): st.sampled_from([["+hvxv68"], ["+hvxv66", "+hvx-length128b"], []]),
    ("cmsis-nn", "mcpu"): st.sampled_from(["cortex-m55", "cortex-m7"]),
    ("cmsis-nn", "mattr"): st.sampled_from([["-mve"], []]),
    ("c", "mcpu"): st.sampled_from(["cortex-m55", "cortex-m7", "skylake"]),
    ("c", "march"): st.sampled_from(["armv7e-m", "armv8-a"]),
}


def values(kind, row):
    """Draw values of an attribute of a kind."""
    if (kind, row.name) in CHIPS:
        return CHIPS[kind, row.name]
    if kind == "llvm" and row.name in CPUS:
        return CPUS[row.name]
    if row.name in ("mtriple", "unchecked", "from_device", "target_device_type"):
        return st.nothing()
    if row.choices:
        return st.sampled_from(row.choices)
    if row.power_of_two:
        return st.sampled_from([4, 8, 16])
    small = {"int": st.integers(max(row.least or 0, 1), 4), "bool": st.booleans(), "str": st.sampled_from("ab")}
    lists = {"list[int]": st.lists(st.integers(1, 3), max_size=2), "list[str]": st.sampled_from([["a"], ["a", "b"]])}
    return (small | lists).get(row.type, st.nothing())


@st.composite
def leaves(draw, kind):
    rows = [row for row in find_kind(kind).attributes if not values(kind, row).is_empty]
    chosen = draw(st.lists(st.sampled_from(rows), max_size=3, unique_by=lambda row: row.name))
    memory = draw(
        st.sampled_from([(), (), (Memory(name="dram", bytes=7 << 30),), (Memory(name="dram", bytes=8 << 30),)])
    )
    try:
        leaf = Target(kind, {row.name: draw(values(kind, row)) for row in chosen}, memory=memory)
        _ = leaf.features
    except TargetError:
        assume(False)
    return leaf


KINDS = [kind for kind in kind_names() if kind != "composite" and not find_kind(kind).is_external]
pairs = st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(leaves(kind), leaves(kind)))


@settings(max_examples=200, deadline=None)
@given(pairs)
def test_satisfies_and_why_not_agree_on_a_machine(pair):
    """They differ only in limits that a compute capability implies, which only `why_not` derives."""
    have, required = pair
    facts = have.why_not(required)
    if "implied by" not in str(facts):
        answer = have.satisfies(required, measured=True)
        assert facts.truth is answer.truth, f"{have}\n{required}\n{facts}\n{answer}"


@settings(max_examples=200, deadline=None)
@given(pairs)
def test_a_measured_machine_satisfies_at_least_what_a_stated_one_does(pair):
    """Except for defaults, which are no measurement."""
    have, required = pair
    rows = {row.name: row for row in find_kind(required.kind).attributes}
    assume(all(name in have.attrs or rows[name].default is None for name in required.attrs))
    assert have.satisfies(required, measured=True).truth >= have.satisfies(required).truth


@settings(max_examples=100, deadline=None)
@given(pairs)
def test_tags_are_found_by_the_same_comparison(pair):
    have, required = pair
    constraint = Constraint.of(required)
    assert Constraint.parse(str(constraint)) == constraint
    assert have.satisfies(constraint).truth is have.satisfies(required).truth


# What is there, what is needed, whether a target that says so has it, whether a chip that was measured has it.
ARCHS = [
    ("sm_90", "sm_90", True, True),
    ("sm_90", "sm_80", True, True),
    ("sm_80", "sm_90", False, False),
    ("sm_90", "sm_90a", False, True),
    ("sm_90a", "sm_90", True, True),
    ("sm_100", "sm_90a", False, False),
    ("sm_100a", "sm_90a", False, False),
    ("sm_100", "sm_100f", False, True),
    ("sm_103", "sm_100f", False, True),
    ("sm_103f", "sm_100f", True, True),
    ("sm_103a", "sm_100f", True, True),
    ("sm_100f", "sm_103f", False, False),
    ("sm_100f", "sm_100a", False, True),
    ("sm_120a", "sm_100f", False, False),
    ("sm_101a", "sm_100f", False, False),  # sm_101 was renamed sm_110
    ("sm_101f", "sm_110f", True, True),
    ("sm_121f", "sm_120f", True, True),
    ("sm_120f", "sm_110", True, True),
    ("gfx90a", "gfx90a", True, True),
    ("gfx906", "gfx90a", False, False),
    ("gfx1100", "gfx11-generic", True, True),
    ("gfx11-generic", "gfx1100", False, False),
    ("gfx942", "gfx9-generic", False, False),
    ("gfx942", "gfx9-4-generic", True, True),
]


@pytest.mark.parametrize(("actual", "required", "stated", "measured"), ARCHS)
def test_a_gpu_has_the_instructions_of_another(actual, required, stated, measured):
    assert has_instructions(actual, required) is stated
    assert has_instructions(actual, required, measured=True) is measured
    kind, name = ("cuda", "arch") if actual.startswith("sm_") else ("rocm", "mcpu")
    have, target = Target(kind, {name: actual}), Target(kind, {name: required})
    assert bool(have.satisfies(target)) is stated
    assert bool(have.satisfies(target, measured=True)) is measured
    assert bool(have.why_not(target)) is measured


@given(*[st.sampled_from(NVIDIA + AMD)] * 3, st.booleans())
def test_having_instructions_is_reflexive_and_transitive(one, two, three, measured):
    """For stated names; a measured chip also has the features of its suffix."""
    assert has_instructions(one, one, measured=measured)
    if has_instructions(one, two, measured=measured) and has_instructions(two, three):
        assert has_instructions(one, three, measured=measured)


@given(*[st.sampled_from(NVIDIA)] * 2)
def test_machine_code_runs_where_its_instructions_are_and_on_one_major_capability(device, built_for):
    if runs_machine_code(device, built_for):
        assert has_instructions(device, built_for, measured=True)
        assert has_instructions(f"{device.rstrip('af')}a", built_for, measured=True)


@pytest.mark.parametrize(
    ("kind", "name", "value", "operator"),
    [
        ("llvm", "num-cores", 4, "ge"),
        ("llvm", "libs", ("cblas",), "eq"),
        ("llvm", "mtriple", "x86_64-linux-gnu", "eq"),
        ("llvm", "model", "x", None),
        ("llvm", "opt-level", 3, None),
        ("llvm", "clock-mhz", 3000, None),
        ("cuda", "arch", "sm_90a", "ge"),
        ("cuda", "max_threads_per_block", 1024, "ge"),
        ("rocm", "mcpu", "gfx90a", "eq"),
        ("rocm", "mcpu", "gfx11-generic", "ge"),
        ("vulkan", "vulkan_api_version", (1 << 22) + (2 << 12), "ge"),
        ("vulkan", "supports_int8", True, "eq"),
    ],
)
def test_the_class_of_an_attribute_says_how_it_is_compared(kind, name, value, operator):
    assert required_operator(find_kind(kind).attribute(name), value) == operator


def test_measured_values_have_a_tolerance():
    assert compare_memory("ge", 7 << 30, 8 << 30, measured=True) is Truth.YES
    assert compare_memory("ge", 7 << 30, 8 << 30) is Truth.NO
    assert compare_memory("ge", 6 << 30, 8 << 30, measured=True) is Truth.NO
    for measured, truth in ((True, Truth.YES), (False, Truth.NO)):
        assert compare_attribute("mtriple", "eq", "x86_64-linux", "x86_64-linux-gnu", measured=measured) is truth


def test_instructions_determine_the_width_of_vectors():
    assert Target.parse("llvm(mcpu=skylake-avx512)").satisfies("llvm(vector-width>=512)").truth is Truth.YES
    assert Target.parse("llvm(mcpu=haswell)").satisfies("llvm(vector-width>=512)").truth is Truth.NO
    assert Target.parse("llvm(mcpu=neoverse-v1)").satisfies("llvm(vector-width>=256)").truth is Truth.UNKNOWN
    assert Target.parse("llvm").satisfies("llvm(vector-width>=256)").truth is Truth.UNKNOWN


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("llvm(mtriple=riscv64-linux-gnu,mcpu=generic-rv64,+v)", 128),
        ("llvm(mtriple=riscv64-linux-gnu,mcpu=generic-rv64,+v,+zvl64b)", 128),
        ("llvm(mtriple=riscv64-linux-gnu,mcpu=generic-rv64,+v,+zvl512b)", 512),
        ("llvm(mtriple=riscv64-linux-gnu,mcpu=sifive-x280)", 512),
        ("llvm(mtriple=riscv64-linux-gnu,mcpu=sifive-p670)", 128),
        ("llvm(mtriple=riscv64-linux-gnu,mcpu=spacemit-x60)", 256),
        ("hexagon(mcpu=hexagonv68,+hvxv68,+hvx-length128b)", 1024),
    ],
)
def test_a_cpu_has_vectors_of_the_width_that_tvm_uses(text, bits):
    """The cases of tests/python/target/test_riscv_features.py of TVM's main branch that have vectors."""
    assert vector_bits(Target.parse(text).resolve().features.names) == bits


def test_distances_count_doublings():
    assert doublings(4, 16) == 2
    assert doublings("sm_53", "sm_53") == 0
    assert doublings("gfx90a", "gfx906") is doublings(True, 2) is None
    assert is_ordered("sm_100f")
