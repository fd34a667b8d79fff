"""The most specific of several constraints."""

import pytest

from tvmtarget import Target
from tvmtarget.errors import TargetError
from tvmtarget.target.constraints.selection import select

GPUS = {"gpu": "any", "cuda": "nvidia", "cuda(arch>=sm_80)": "ampere", "cuda(arch>=sm_90)": "hopper", "cpu": "cpu"}


@pytest.mark.parametrize(
    ("target", "value"),
    [
        ("cuda(arch=sm_90a)", "hopper"),
        ("cuda(arch=sm_86)", "ampere"),
        ("cuda(arch=sm_53)", "nvidia"),
        ("cuda", "nvidia"),
        ("rocm", "any"),
        ("llvm", "cpu"),
    ],
)
def test_the_constraint_that_implies_all_others_wins(target, value):
    assert select(GPUS, Target.parse(target)) == value
    assert select(dict(reversed(GPUS.items())), Target.parse(target)) == value


def test_nothing_satisfied_is_an_error_unless_there_is_a_default():
    assert select({"cuda": 1}, Target("llvm"), default=0) == 0
    with pytest.raises(TargetError) as caught:
        select({"cuda": 1}, Target("llvm"))
    assert str(caught.value) == "no choice is satisfied: NO llvm does not satisfy cuda; NO @.: cuda: this is llvm (cpu)"
    with pytest.raises(TargetError, match="no choice is satisfied, for there is none"):
        select({}, Target("llvm"))


@pytest.mark.parametrize(
    ("choices", "problem"),
    [
        (
            {"llvm(num-cores>=4)": 1, "llvm(+avx2)": 2},
            "'llvm(num-cores>=4)' and 'llvm(+avx2)' are both satisfied, and neither implies the other",
        ),
        ({"cpu": 0, "llvm(num-cores>=4)": 1, "llvm(num-cores>3)": 2}, "say the same; leave one of them out"),
    ],
)
def test_two_that_are_as_specific_are_an_error(choices, problem):
    with pytest.raises(TargetError) as caught:
        select(choices, Target.parse("llvm(num-cores=8,mcpu=haswell)"))
    assert problem in str(caught.value)
