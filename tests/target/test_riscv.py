"""Instruction set strings of RISC-V."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmtarget import Target
from tvmtarget.errors import TargetError
from tvmtarget.target.cpu.features import table_of
from tvmtarget.target.cpu.riscv import expand_isa, isa_string

GENERAL = "a d f i m zicsr zifencei"


@pytest.mark.parametrize(
    ("text", "features"),
    [
        ("rv64i", "64bit i"),
        ("rv32e", "32bit e"),
        ("rv64g", f"64bit {GENERAL}"),
        ("rv64gc", f"64bit {GENERAL} c"),
        ("RV64GCV", f"64bit {GENERAL} c v"),
        ("rv32imc_zba_zbb", "32bit c i m zba zbb"),
        ("rv32imczba_zbb", "32bit c i m zba zbb"),
        ("rv64imafdcv_zba_zbb", "64bit a c d f i m v zba zbb"),
        ("rv64imac_svinval_xtheadba", "64bit a c i m svinval xtheadba"),
        ("rv64i2p1_m2p0_zvl128b1p0", "64bit i m zvl128b"),
    ],
)
def test_an_instruction_set_is_read_into_features(text, features):
    assert expand_isa(text) == tuple(sorted(features.split()))


@given(st.sampled_from((32, 64)), st.sets(st.sampled_from(["m", "a", "f", "d", "c", "v", "zba", "zvbb", "svinval"])))
def test_an_instruction_set_is_written_in_the_order_of_the_manual_and_read_back(bits, names):
    everything = frozenset({*names, "i", f"{bits}bit"})
    assert set(expand_isa(isa_string(bits, everything))) == everything


def test_the_order_of_the_manual_is_letters_then_z_by_letter_then_the_rest():
    names = frozenset(["64bit", "i", "m", "a", "v", "c", "zvbb", "zicsr", "zba", "xtheadba", "svinval"])
    assert isa_string(64, names) == "rv64imacv_zicsr_zba_zvbb_svinval_xtheadba"


def test_an_instruction_set_among_features_makes_the_same_target():
    one = Target.parse("llvm(mtriple=riscv64-linux-gnu,+rv64gcv,+zba)")
    other = Target.parse("llvm(mtriple=riscv64-linux-gnu,+64bit,+i,+m,+a,+f,+d,+c,+v,+zicsr,+zifencei,+zba)")
    assert one == other
    assert one.digest == other.digest
    assert Target.parse(str(one)) == one
    assert {"v", "zve64d", "zvl128b", "zba"} <= set(one.features)


def test_a_cpu_has_an_instruction_set_string():
    features = Target.parse("llvm(mcpu=sifive-u74)").features
    assert features.isa == "rv64imafdc_zicsr_zifencei_zmmul_zaamo_zalrsc_zca"
    assert set(expand_isa(features.isa)) == features.names
    assert Target.parse("llvm(mtriple=riscv64-linux-gnu,+y,unchecked=mattr)").features.isa == "rv64iy"
    assert Target.parse("llvm(+zba)").features.isa == ""  # the base is not stated
    assert Target.parse("llvm(mcpu=skylake)").features.isa == ""


def test_profiles_are_features_that_imply_others():
    table = table_of("riscv")
    assert "v" in table.closure(["rva23u64"])
    assert "v" not in table.closure(["rva22u64"])
    assert {"zba", "zbb", "zbs", "c", "d"} <= table.closure(["rva22u64"])
    assert "zve32x" in table.closure(["zvbb"])  # so no rule of ours needs to add vectors to zvbb


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "llvm(+rv64iyz)",
            "attribute 'mattr' of kind 'llvm' names extension 'y' in 'rv64iyz', which RISC-V does not have; "
            "write rv64imac_zba_zbb",
        ),
        (
            "llvm(-rv64gc)",
            "attribute 'mattr' of kind 'llvm' removes the instruction set 'rv64gc'; remove features, as in '-c'",
        ),
        (
            "llvm(mcpu=rv64gc)",
            "mcpu 'rv64gc' of kind 'llvm' is not a chip that LLVM knows; an instruction set is features: +rv64gc",
        ),
    ],
)
def test_an_invalid_instruction_set_names_the_fix(text, message):
    with pytest.raises(TargetError) as raised:
        Target.parse(text)
    assert str(raised.value) == message
