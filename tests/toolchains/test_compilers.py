"""Compilers for a target: the command that is found, its options, and programs that run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from effort import examples
from toolchains.machines import LINUX, command_or_skip, target_or_skip

import tvmtarget as tt
from tvmtarget.errors import BackendError
from tvmtarget.toolchains.compilers import toolchain_for
from tvmtarget.toolchains.runners import runner_for

HELLO = (
    '#include <math.h>\n#include <stdio.h>\nint main(int n, char **v) { printf("%.3f\\n", sqrt(n + 1.0)); return 0; }\n'
)


def words(text, tmp_path, names, **environ):
    """Return the command for a target where only some commands exist."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    for name in names:
        path = folder / name
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    environment = {"PATH": str(folder), "HOME": str(tmp_path), **environ}
    command = toolchain_for(tt.Target.parse(text), environ=environment).command
    return " ".join(command).replace(f"{folder}/", "").replace(sys.executable, "python")


@pytest.mark.parametrize("name", LINUX)
def test_programs_for_other_machines_are_compiled_and_run(name, tmp_path):
    target = target_or_skip(LINUX[name])
    source, program = tmp_path / "hello.c", tmp_path / "hello"
    source.write_text(HELLO)
    toolchain_for(target).compile([source], program, ["-lm"])
    done = subprocess.run([*runner_for(target).command, program, "x", "y"], capture_output=True, text=True, check=True)
    assert done.stdout == "2.000\n"


# Zig builds a C library for each machine, for half a minute.
@pytest.mark.slow
@pytest.mark.parametrize("name", examples(["armhf"], [*LINUX]))
def test_zig_compiles_where_no_cross_compiler_is_installed(name, tmp_path, monkeypatch):
    pytest.importorskip("ziglang")
    target = target_or_skip(LINUX[name])
    environ = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    compiler = toolchain_for(target, environ=environ)
    assert compiler.flavour == "zig"
    source, program = tmp_path / "hello.c", tmp_path / "hello"
    source.write_text(HELLO)
    compiler.compile([source], program, ["-lm"])
    done = subprocess.run([*runner_for(target).command, program], capture_output=True, text=True, check=True)
    assert done.stdout == "1.414\n"


@pytest.mark.parametrize("name", LINUX)
def test_clang_compiles_with_the_libraries_of_the_cross_compiler(name, tmp_path):
    command_or_skip("clang")
    target = target_or_skip(LINUX[name])
    source = tmp_path / "hello.c"
    source.write_text(HELLO)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/clang").symlink_to(command_or_skip("clang"))
    compiler = toolchain_for(target, environ={"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path)})
    assert compiler.flavour == "clang"
    compiler.compile([source], tmp_path / "hello.o", ["-c"])
    assert (tmp_path / "hello.o").stat().st_size > 0


def test_the_environment_chooses_the_compiler_of_this_machine_only(tmp_path):
    assert words("llvm", tmp_path, ["gcc"], CC="ccache gcc-99") == "ccache gcc-99"
    names = ["gcc", "aarch64-linux-gnu-gcc"]
    assert words("llvm(mtriple=aarch64-linux-gnu)", tmp_path, names, CC="gcc-99") == "aarch64-linux-gnu-gcc"


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("llvm(mtriple=aarch64-linux-gnu,mcpu=cortex-a72)", "aarch64-linux-gnu-gcc -mcpu=cortex-a72"),
        ("llvm(mtriple=aarch64-linux-gnu,mcpu=cortex-a72,+crc)", "aarch64-linux-gnu-gcc -mcpu=cortex-a72"),
        ("llvm(mtriple=aarch64-linux-gnu,+v8.2a,+dotprod)", "aarch64-linux-gnu-gcc -march=armv8.2-a+dotprod"),
        ("llvm(mtriple=aarch64-linux-gnu,+neon)", "aarch64-linux-gnu-gcc -march=armv8-a+simd"),
        ("c(mcpu=cortex-a72)", "aarch64-linux-gnu-gcc -mcpu=cortex-a72"),
        (
            "llvm(mtriple=armv7l-linux-gnueabihf,+neon)",
            "arm-linux-gnueabihf-gcc -march=armv7-a+fp+simd -mfloat-abi=hard",
        ),
        ("llvm(mtriple=riscv64-linux-gnu)", "riscv64-linux-gnu-gcc"),
        (
            "llvm(mtriple=riscv64-linux-gnu,+m,+a,+f,+d,+c,mabi=lp64d)",
            "riscv64-linux-gnu-gcc -march=rv64imafdc -mabi=lp64d",
        ),
        ("c(mcpu=cortex-m0)", "arm-none-eabi-gcc -mcpu=cortex-m0 -mthumb -mfloat-abi=soft"),
        ("c(mcpu=cortex-m4)", "arm-none-eabi-gcc -mcpu=cortex-m4 -mthumb -mfloat-abi=hard"),
        ("c(march=armv7e-m)", "arm-none-eabi-gcc -march=armv7e-m -mthumb -mfloat-abi=soft"),
        ("c(march=armv7-a)", "arm-linux-gnueabihf-gcc -march=armv7-a+simd -mfloat-abi=hard"),
        ("c(march=armv8-a)", "aarch64-linux-gnu-gcc -march=armv8-a"),
        ("micro/stm32f746xx", "arm-none-eabi-gcc -mcpu=cortex-m7 -mthumb -mfloat-abi=hard"),
        ("micro/mps3_an547", "arm-none-eabi-gcc -mcpu=cortex-m55 -mthumb -mfloat-abi=hard"),
        ("c(mcpu=cortex-m55+nomve)", "arm-none-eabi-gcc -mcpu=cortex-m55+nomve -mthumb -mfloat-abi=hard"),
        # GCC has no `+nodsp` for the CPUs of ARMv7E-M.
        (
            "micro/nrf52840",
            "arm-none-eabi-gcc -march=armv7-m -mtune=cortex-m4 -mfpu=fpv4-sp-d16 -mthumb -mfloat-abi=softfp",
        ),
        (
            "c(mcpu=cortex-m4+nodsp+nofp)",
            "arm-none-eabi-gcc -march=armv7-m -mtune=cortex-m4 -mthumb -mfloat-abi=soft",
        ),
        (
            "llvm(mtriple=arm-none-eabihf,mcpu=cortex-m7,mattr=-dsp)",
            "arm-none-eabi-gcc -march=armv7-m -mtune=cortex-m7 -mfpu=fpv5-d16 -mthumb -mfloat-abi=hard",
        ),
    ],
)
def test_options_select_the_cpu_the_features_and_the_float_abi(target, expected, tmp_path):
    names = ["aarch64-linux-gnu", "arm-linux-gnueabihf", "riscv64-linux-gnu", "arm-none-eabi"]
    assert words(target, tmp_path, [f"{name}-gcc" for name in names]) == expected


def test_a_compiler_for_64_bits_is_not_taken_for_a_core_of_32(tmp_path):
    with pytest.raises(BackendError, match=r"no C compiler for riscv32-elf is installed; configure one: \[toolch"):
        words("espressif/esp32-c2", tmp_path, ["riscv64-linux-gnu-gcc"])


def test_the_error_of_a_missing_compiler_names_packages_and_the_key(tmp_path, monkeypatch):
    monkeypatch.setattr("tvmtarget.toolchains.compilers.find_spec", lambda name: None)
    with pytest.raises(BackendError) as error:
        words("llvm(mtriple=aarch64-linux-gnu)", tmp_path, [])
    assert str(error.value) == (
        "no C compiler for aarch64-linux-gnu is installed; install one: apt install gcc-aarch64-linux-gnu "
        "g++-aarch64-linux-gnu libc6-dev-arm64-cross, or pip install 'tvmtarget[zig]'; or configure one: [toolchain] "
        'aarch64-linux-gnu = "COMMAND" in tvmtarget.toml'
    )


def test_a_compiler_that_fails_is_an_error_with_its_first_error(tmp_path):
    source = tmp_path / "wrong.c"
    source.write_text("int main(void) { return missing_name; }\n")
    command_or_skip("gcc")
    with pytest.raises(BackendError, match=r"'wrong' for .*missing_name"):
        toolchain_for(tt.Target("llvm")).compile([source], tmp_path / "wrong")


NEWER = {
    "aws/c8g:cpu": r"-mcpu=neoverse-(v2|n2\+nomemtag)",
    "nvidia/jetson-agx-xavier:cpu": r"-mcpu=(carmel|thunderx2t99)",
    "generic/armv9.5-a": r"-march=armv(9(\.[1-5])?|8\.[0-9])-a",
    "arm/corstone-310:cpu": r"-mcpu=cortex-m(85|55)",
    "generic/rva23u64": "-march=rv64imafdcb?v_zic.*_zbb.*",
}


@pytest.mark.parametrize("name", NEWER)
def test_cpus_that_are_newer_than_the_compiler_are_compiled_for_one_with_less_features(name, tmp_path):
    target = tt.Target.parse(name)
    source = tmp_path / "empty.c"
    source.write_text("int x;")
    try:
        compiler = toolchain_for(target)
    except BackendError as error:
        pytest.skip(str(error))
    compiler.compile([source], tmp_path / "empty.o", ["-c"])
    if compiler.flavour == "gcc":
        assert any(re.fullmatch(NEWER[name], word) for word in compiler.command), compiler.command


def test_cpus_that_are_newer_than_gcc_are_compiled_for_their_level():
    gcc = command_or_skip("gcc")
    source = ["-E", "-x", "c", "/dev/null"]
    for cpu in ("haswell", "znver4", "znver5", "sierraforest"):
        target = tt.Target.parse(f"llvm(mcpu={cpu},mtriple=x86_64-linux-gnu)")
        command = toolchain_for(target, environ={"PATH": str(Path(gcc).parent)}).command
        assert subprocess.run([*command, *source], capture_output=True, check=False).returncode == 0
        assert f"-march={cpu}" in command or "-march=x86-64-v3" in command or "-march=x86-64-v4" in command
