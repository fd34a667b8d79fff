"""Contradictions between attributes of a node, and invalid values of single attributes."""

import pytest

from tvmtarget import Target
from tvmtarget.errors import TargetError
from tvmtarget.tags.registry import default_registry

REFUSED = """
    nvptx(mtriple=nvptx64-nvidia-cudaa)
    nvptx(mcpu=gfx90a)
    cuda(arch=sm_999)
    cuda(arch=8.6)
    cuda(arch=compute_80,unchecked=arch)
    rocm(mtriple=amdgcn-amd-amdpal)
    rocm(mcpu=sm_80)
    rocm(mcpu=navi31,unchecked=mcpu)
    webgpu(thread_warp_size=8)
    webgpu(supports_subgroups=true,thread_warp_size=8)
    webgpu(supports_subgroups=true,thread_warp_size=1)
    llvm(mtriple=aarch46-linux-gnu)
    llvm(mtriple=aarch64-linx-gnu)
    llvm(mcpu=zen3)
    llvm(mcpu=x86_64_v3)
    llvm(mcpu=rv64gc)
    llvm(mcpu=cortex-a72,mtriple=x86_64-linux-gnu)
    llvm(mcpu=cortex-m55,mtriple=aarch64-linux-gnu)
    llvm(mcpu=skylake,mtriple=aarch64-linux-gnu)
    llvm(mcpu=i386,mtriple=x86_64-linux-gnu)
    llvm(mcpu=sifive-e31,mtriple=riscv64-linux-gnu)
    llvm(mcpu=sifive-u74,mtriple=riscv32-unknown-elf)
    llvm(mtriple=x86_64-linux-gnu,-64bit)
    llvm(mcpu=skylake,+avx3)
    llvm(mcpu=cortex-m33,+nomwe)
    llvm(+avx5)
    llvm(+avx2,+neon)
    llvm(+avx512f,-sse)
    llvm(+avx512f,+fma,-sse,-sse2)
    llvm(mtriple=aarch64-linux-gnu,+sve2,-fp-armv8)
    llvm(mtriple=armv7l-linux-gnueabihf,mfloat-abi=soft)
    llvm(fast-math=true,fast-math-nnan=false,fast-math-nsz=true)
    llvm(unchecked=mcpuu)
    [a=llvm,b=llvm(count=2)](links=[{"src":"a","dst":"a"},{"src":"b","dst":"b"}])
    llvm(mtriple=arm-none-eabi,mcpu=cortex-m3,mfloat-abi=hard)
    llvm(mtriple=thumbv7m-none-eabihf,mcpu=cortex-m3)
    llvm(mtriple=thumbv7em-none-eabihf,mcpu="cortex-m4+nofp")
    llvm(mtriple=riscv64-linux-gnu,mabi=lp64d)
    llvm(mtriple=riscv64-linux-gnu,+rv64gc,mabi=ilp32d)
    llvm(mtriple=riscv64-linux-gnu,+rv64gc,mabi=lp65d)
    llvm(mtriple=riscv32-unknown-elf,+rv64gc)
    llvm(mtriple=riscv64-linux-gnu,-rv64gc)
    llvm(feature.has_sve=true)
    llvm(features=x)
    cuda(features=x)
    hexagon(mcpu=hexagonv68,+hvxv99)
    hexagon(mtriple=x86_64-linux-gnu)
    cmsis-nn(mcpu=skylake)
    [cpu=llvm(mcpu=skylake,+avx3),gpu=webgpu(thread_warp_size=4,host=llvm(+avx,-sse))]
"""

RIGHT = """
    nvptx(mtriple=nvptx64-nvidia-cuda,mcpu=sm_80)
    cuda(arch=sm_999,unchecked=arch)
    rocm(mtriple=amdgcn-amd-amdhsa)
    rocm(mcpu=gfx9999,unchecked=mcpu)
    webgpu
    webgpu(supports_subgroups=true)
    webgpu(supports_subgroups=true,thread_warp_size=32)
    llvm(mtriple=z80-unknown-none,unchecked=mtriple)
    llvm(mcpu=skylake,mtriple=i686-linux-gnu)
    llvm(mcpu=generic,mtriple=aarch64-linux-gnu)
    llvm(mcpu=skylaker,mtriple=x86_64-linux-gnu,unchecked=mcpu)
    llvm(mcpu=skylake,+avx3,unchecked=mattr)
    llvm(mcpu=skylake,+fast-gather,+prefer-256-bit)
    llvm(mcpu="cortex-m55+nomve+nofp")
    llvm(mtriple=arm-linux-gnueabi,mfloat-abi=soft)
    llvm(mtriple=arm-none-eabi,mcpu=cortex-m4,mfloat-abi=hard)
    llvm(mtriple=riscv64-linux-gnu,+rv64gc,mabi=lp64d)
    llvm(mcpu=sifive-u74,mabi=lp64d)
    llvm(mtriple=wasm32-unknown-unknown,+simd128)
    llvm(mtriple=powerpc64le-linux-gnu,mcpu=pwr9,+vsx)
    hexagon(mcpu=hexagonv68,+hvxv68,+hvx-length128b,mtriple=hexagon)
"""


def _lines(text):
    return [line.strip() for line in text.splitlines() if line.strip()]


def test_every_error_names_the_fix(golden):
    lines = []
    for text in _lines(REFUSED):
        with pytest.raises(TargetError) as raised:
            Target.parse(text).resolve()
        lines += [text, *(f"    {problem}" for problem in raised.value.problems), ""]
    golden("target/consistency.golden", "\n".join(lines))


@pytest.mark.parametrize("text", _lines(RIGHT))
def test_consistent_attributes_resolve(text):
    assert Target.parse(text).resolve() == Target.parse(text)


def test_attributes_are_changed_one_by_one_and_checked_together():
    board = Target.parse("llvm(mtriple=aarch64-linux-gnu,mcpu=cortex-a72)")
    other = board.override({"mtriple": "x86_64-linux-gnu", "mcpu": "skylake", "mattr": ["+avx2"]})
    assert "avx2" in other.resolve().features
    with pytest.raises(TargetError, match="mcpu 'cortex-a72' is not a CPU of 'x86_64'"):
        board.override({"mtriple": "x86_64-linux-gnu"}).resolve()


def test_every_shipped_tag_is_consistent():
    for tree in default_registry().values():
        tree.resolve()


@pytest.mark.parametrize(
    ("march", "cpu"),
    [
        *(("armv7e-m", "cortex-m7"), ("armv7ve", "cortex-a7"), ("armv8.2-a+crypto", "cortex-a75")),
        *(("armv8-r", "cortex-r82"), ("rv64gc", "sifive-u74"), ("armv6-m", "generic")),
    ],
)
def test_march_may_state_the_architecture_of_mcpu(march, cpu):
    Target("c", {"march": march, "mcpu": cpu}).resolve()


@pytest.mark.parametrize(
    ("march", "cpu"),
    [
        *(("armv6-m", "cortex-m4"), ("armv7-m", "cortex-m4"), ("armv7-a", "cortex-a53"), ("armv8-a", "cortex-a75")),
        *(("haswell", "skylake"), ("armv8-a", "skylake"), ("rv64gcv", "sifive-u74"), ("rv64i", "sifive-u74")),
    ],
)
def test_march_of_another_architecture_than_mcpu_is_rejected(march, cpu):
    with pytest.raises(TargetError, match=f"march '{march}' is not the architecture of mcpu '{cpu}'; remove one"):
        Target("c", {"march": march, "mcpu": cpu}).resolve()


# tests/cpp/target_test.cc of TVM v0.18.0, LLVMCommandLineParseFatal*.
@pytest.mark.parametrize(
    "option",
    [
        *("---unroll-factor:uint=0", "-option:", "-option:=", "-option:bool", "-option:bool=", "option", "-"),
        *("-option:invalidtype=xyz", "-option=2", "-option=fred", "-option:bool=2"),
        *("-option:int=haha", "-option:uint=haha", "-option:uint=", "-option="),
        *("-option:uint=-1", "-option:int=2147483648"),  # TVM shortens them to 32 bits
    ],
)
def test_an_incomplete_option_of_llvm_is_rejected(option):
    with pytest.raises(TargetError, match="in cl-opt is"):
        Target("llvm", {"cl-opt": [option]}).resolve()


def test_an_option_of_llvm_is_stated_once():
    with pytest.raises(TargetError, match="'-option' is in cl-opt twice"):
        Target("llvm", {"cl-opt": ["-option:int=1", "--option:int=2"]}).resolve()


@pytest.mark.parametrize(
    "option",
    [
        *("-print-after-all", "--option", "-option=true", "-option=0", "-option:bool=False", "-option:int=-4"),
        *("-unroll-threshold:uint=100", "-option:string=a=b:c", "-option:string="),
    ],
)
def test_an_option_of_llvm_may_state_its_type(option):
    assert Target("llvm", {"cl-opt": [option]}).resolve()["cl-opt"] == (option,)
