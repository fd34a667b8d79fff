"""Which leaves this machine refuses to run: those of other architectures, and those that ask for what it lacks."""

import platform

import pytest

from tvmtarget import Target
from tvmtarget.backends.machine import refuses_native, refuses_triple

IS_X86_LINUX = platform.machine() == "x86_64" and platform.system() == "Linux"


def test_what_was_detected_runs_here():
    here = Target.detect()
    for leaf in here.targets or (here,):
        if leaf.kind == "llvm":
            assert refuses_native(leaf) is None


@pytest.mark.skipif(not IS_X86_LINUX, reason="the texts are those of x86 and Linux")
@pytest.mark.parametrize(
    ("text", "triple", "native"),
    [
        ("llvm", None, None),
        ("llvm(mcpu=x86-64)", None, None),
        ("llvm(mtriple=x86_64-pc-linux-gnu)", None, None),
        ("llvm(mtriple=aarch64-linux-gnu)", "mtriple aarch64-linux-gnu: it is x86_64-linux-gnu", ...),
        ("llvm(mtriple=x86_64-apple-macos)", "mtriple x86_64-apple-macos: it is x86_64-linux-gnu", ...),
        ("llvm(mcpu=cortex-a72)", None, "mcpu cortex-a72: that is aarch64, and this is x86"),
        ("llvm(mcpu=diamondrapids)", None, "mcpu diamondrapids: lacks amx-"),
        ("llvm(mcpu=x86-64,+xop)", None, "mcpu x86-64 +xop: lacks "),
    ],
)
def test_foreign_leaves_are_refused_with_the_reason(text, triple, native):
    leaf = Target.parse(text)
    native = triple if native is ... else native
    for reason, expected in ((refuses_triple(leaf), triple), (refuses_native(leaf), native)):
        assert (reason is None) == (expected is None)
        assert (reason or "").startswith(expected or "")
