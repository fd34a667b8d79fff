"""Which leaves this machine cannot run: those of other architectures, and those with other instructions."""

import platform

import pytest

from tvmtarget import Target
from tvmtarget.backends.machine import interpreter_mismatch, native_code_mismatch

IS_X86_LINUX = platform.machine() == "x86_64" and platform.system() == "Linux"


def test_what_was_detected_runs_here():
    here = Target.detect()
    for leaf in here.targets or (here,):
        if leaf.kind == "llvm":
            assert native_code_mismatch(leaf) is None


@pytest.mark.skipif(not IS_X86_LINUX, reason="the texts are those of x86 and Linux")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("llvm", None),
        ("llvm(mcpu=x86-64)", None),
        ("llvm(mtriple=x86_64-pc-linux-gnu)", None),
        ("llvm(mtriple=aarch64-linux-gnu)", "mtriple aarch64-linux-gnu: it is x86_64-linux-gnu"),
        ("llvm(mtriple=x86_64-apple-macos)", "mtriple x86_64-apple-macos: it is x86_64-linux-gnu"),
        ("llvm(mcpu=cortex-a72)", "mcpu cortex-a72: that is aarch64, and this is x86"),
        ("llvm(mcpu=diamondrapids)", "mcpu diamondrapids: lacks amx-"),
        ("llvm(mcpu=x86-64,+xop)", "mcpu x86-64 +xop: lacks "),
    ],
)
def test_foreign_leaves_are_rejected_with_the_reason(text, expected):
    reason = native_code_mismatch(Target.parse(text))
    assert (reason is None) == (expected is None)
    assert (reason or "").startswith(expected or "")


@pytest.mark.skipif(not IS_X86_LINUX, reason="the texts are those of x86 and Linux")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("c", None),
        ("c(model=host)", None),
        ("c(model=stm32f746xx)", "model 'stm32f746xx' names another machine"),
        ("c(model=esp32)", "model 'esp32' names another machine"),
        ("c(model=my-board)", "model 'my-board' names another machine"),
    ],
)
def test_an_interpreter_stands_in_for_no_other_machine(text, expected):
    reason = interpreter_mismatch(Target.parse(text))
    assert (reason is None) == (expected is None)
    assert (reason or "").startswith(expected or "")
