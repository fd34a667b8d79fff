"""Feature sets: laws on the real tables, and facts of the tables."""

import random
from itertools import pairwise

import pytest
from archspec_flags import in_llvm
from hypothesis import given
from hypothesis import strategies as st

from tvmtarget.target.cpu.chips import chips_of, llvm_cpu_name
from tvmtarget.target.cpu.features import families, table_of

LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")

# Where archspec and LLVM list different instructions of one CPU: what archspec alone has, what LLVM alone has.
DISAGREEMENTS = {
    "x86_64": ("", "mmx sse sse2"),  # archspec's root has no flags
    "nocona": ("", "cx16"),
    "core2": ("", "cx16 sahf"),
    "westmere": ("aes", ""),  # products without it were sold, so LLVM leaves it out up to broadwell
    "sandybridge": ("aes", "xsave"),
    "ivybridge": ("aes", "xsave"),
    "haswell": ("aes", ""),
    "broadwell": ("aes", ""),
    "sapphirerapids": ("", "avxvnni"),
    "k10": ("mmx", "popcnt sahf"),
    "excavator": ("", "rdrnd"),  # AMD's rdrand and sha_ni are left out by archspec, which has to find the CPU by them
    "zen": ("", "adx rdrnd sha"),
    "zen2": ("", "adx rdpid rdrnd sha"),
    "zen3": ("", "adx rdpid rdrnd sha"),
    "zen4": ("", "adx rdpid rdrnd sha"),
    "zen5": ("", "adx rdpid rdrnd sha"),
    "aarch64": ("", "fp-armv8 neon"),  # archspec's root has no flags
    "a64fx": ("", "aes"),
    "neoverse_v1": ("", "pauth sm4"),
    "neoverse_v2": ("aes sha2 sha3", "bti dit pauth rand sve-bitperm"),  # cryptography is an option of Arm's cores
    "neoverse_n2": ("aes sha2 sha3", "bti dit pauth sve-bitperm"),
    "neoverse_v3ae": ("aes sha2 sha3 sm4 sve-aes sve-sha3 sve-sm4", "ls64 rand"),
    "ampere1": ("fp16fml", ""),
    "ampere1a": ("fp16fml", ""),
    "m4": ("", "wfxt"),
}


@st.composite
def changes(draw):
    """Draw a table, a CPU of it, and features to add and remove."""
    table = table_of(draw(st.sampled_from(families())))
    some = st.lists(st.sampled_from(sorted(table.implies)), max_size=5)
    return table, draw(st.sampled_from(sorted(table.cpus))), draw(some), draw(some)


@given(changes())
def test_the_closure_of_features_is_closed(drawn):
    table, _, added, removed = drawn
    need, gone = table.closure(added), table.dependents(removed)
    assert set(added) <= need == table.closure(need)
    assert set(removed) <= gone == table.dependents(gone)
    assert all(set(table.implies[name]) <= need for name in need)


@given(changes(), st.randoms(use_true_random=False))
def test_the_order_of_features_has_no_meaning(drawn, rng):
    table, cpu, added, removed = drawn
    once = table.combine(table.of_cpu(cpu), added, removed)
    rng.shuffle(added)
    rng.shuffle(removed)
    assert table.combine(table.of_cpu(cpu), added, removed) == once


@given(changes())
def test_features_contradict_exactly_where_one_is_implied_and_removed(drawn):
    """Features may be removed from a level as from a CPU, except older levels."""
    table, cpu, added, removed = drawn
    problems = list(table.contradictions(added, removed))
    plain, levels = ([name for name in added if table.is_level(name) is one] for one in (False, True))
    older = [name for name in removed if table.is_level(name)]
    is_plain_gone = bool(table.closure(plain) & table.dependents(removed))
    assert bool(problems) == (is_plain_gone or bool(set(levels) & (table.dependents(older) | set(removed))))
    if not problems:
        result = table.combine(table.of_cpu(cpu), added, removed)
        assert result == table.closure(result)
        assert set(plain) <= result
        assert not result & set(removed)


@given(changes())
def test_adding_present_and_removing_absent_features_changes_nothing(drawn):
    table, cpu, added, removed = drawn
    model = table.of_cpu(cpu)
    present = [name for name in added if name in model]
    absent = [name for name in removed if name not in model]
    assert table.combine(model, present, absent) == model


def test_a_contradiction_names_the_chain_between_the_two():
    assert list(table_of("x86").contradictions(["avx512f"], ["sse"])) == [
        "features +avx512f and -sse contradict: +avx512f needs avx2, avx, sse4.2, sse4.1, ssse3, sse3, sse2, sse, "
        "which -sse removes"
    ]
    assert list(table_of("x86").contradictions(["avx"], ["avx"])) == ["feature 'avx' is both added and removed"]


@pytest.mark.parametrize("family", families())
def test_a_table_contains_all_names_that_it_uses_and_has_no_cycles(family):
    table = table_of(family)
    for names in (*table.implies.values(), *table.cpus.values(), *table.baselines.values(), table.system):
        assert set(names) <= table.implies.keys()
    assert not table.implies.keys() & table.tuning
    assert all(name not in table.closure(needs) for name, needs in table.implies.items())
    assert table.cpus.keys() == chips_of(family)


def test_the_levels_of_x86_are_nested_and_hold_nothing_that_hypervisors_hide():
    table = table_of("x86")
    assert all(table.of_cpu(low) < table.of_cpu(high) for low, high in pairwise(LEVELS))
    assert not any(table.of_cpu(level) & table.system for level in LEVELS)
    assert table.level("x86-64-v4") <= table.level("skylake-avx512") <= table.level("cascadelake")


def test_tuning_is_no_feature_of_the_instruction_set():
    for family, names in (
        ("x86", ("fast-gather", "slow-3ops-lea", "prefer-256-bit")),
        ("aarch64", ("fuse-aes", "a72")),
    ):
        assert set(names) <= table_of(family).tuning


def test_archspec_and_llvm_list_the_same_instructions_but_for_known_exceptions():
    cpu = pytest.importorskip("archspec.cpu")
    found = {}
    for family, root in (("x86", "x86_64"), ("aarch64", "aarch64"), ("riscv", "riscv64")):
        table = table_of(family)
        marches = [march for march in cpu.TARGETS.values() if march.family.name == root]
        shared = in_llvm(family, set().union(*(march.features for march in marches)), table.implies)
        for march in marches:
            if llvm_cpu_name(march.name) not in table.cpus:
                continue
            theirs = table.closure(in_llvm(family, march.features, table.implies)) - table.system
            ours = table.level(llvm_cpu_name(march.name))
            if theirs - ours or (ours & shared) - theirs:
                found[march.name] = (" ".join(sorted(theirs - ours)), " ".join(sorted((ours & shared) - theirs)))
    assert found == DISAGREEMENTS


def test_every_cpu_of_archspec_has_a_name_in_llvm_but_for_levels_and_one_that_is_newer():
    cpu = pytest.importorskip("archspec.cpu")
    roots = {"x86_64": "x86", "aarch64": "aarch64", "riscv64": "riscv"}
    unknown = {
        march.name
        for march in cpu.TARGETS.values()
        if (family := roots.get(march.family.name)) and llvm_cpu_name(march.name) not in chips_of(family)
    }
    assert {name for name in unknown if not name.startswith("armv")} == {"zen6"}


def test_the_tables_agree_with_the_installed_llvm():
    pytest.importorskip("tvm.target", reason="pip install 'tvmtarget[tvm]'")
    from tools.derive_features import TRIPLES, llvm_features

    rng = random.Random(0)
    for family in families():
        table, triple = table_of(family), TRIPLES[family][0]
        for cpu in rng.sample(sorted(table.cpus), min(len(table.cpus), 12)):
            assert llvm_features(triple, cpu) & table.implies.keys() == table.of_cpu(cpu), cpu
        off = tuple(f"-{name}" for name in sorted(llvm_features(triple)))
        forced = llvm_features(triple, changes=off)
        for name in rng.sample(sorted(table.implies), min(len(table.implies), 12)):
            on = llvm_features(triple, changes=(*off, f"+{name}"))
            assert (on - forced | {name}) & table.implies.keys() == table.closure([name]), name
            if name not in forced:
                assert llvm_features(triple, changes=(*off, f"+{name}", f"-{name}")) == forced | (
                    on - table.dependents([name])
                ), name
