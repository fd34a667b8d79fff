"""Targets of other machines for which programs are compiled and run, and the reasons why this machine cannot."""

import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass

import pytest

import tvmtarget as tt
from tvmtarget.errors import TvmTargetError
from tvmtarget.toolchains.boards import board_of
from tvmtarget.toolchains.compilers import toolchain_for
from tvmtarget.toolchains.frames import startup_source
from tvmtarget.toolchains.runners import runner_for

LINUX = {
    "aarch64": "llvm(mtriple=aarch64-linux-gnu,mcpu=cortex-a72)",
    "armhf": "llvm(mtriple=armv7l-linux-gnueabihf,+neon)",
    "riscv64": "llvm(mtriple=riscv64-linux-gnu,+m,+a,+f,+d,+c)",
}
BOARDS = {"m4": "c(mcpu=cortex-m4)", "m55": "micro/mps3_an547"}


def target_or_skip(text):
    """Return a target for which this machine has a compiler and a runner; skip the test otherwise."""
    target = tt.Target.parse(text)
    try:
        toolchain_for(target)
        runner_for(target)
    except TvmTargetError as error:
        pytest.skip(str(error))
    return target


def command_or_skip(name):
    """Return the path of a command; skip the test if it is not installed."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


SECTIONS = (".text", ".rodata", ".data", ".bss")


@dataclass(frozen=True)
class BoardRun:
    """A C project that was run on an emulated board.

    Attributes:
        output: what it printed.
        status: what its `main` returned.
        stack: the most bytes of the stack that `main` and what it called used.
        sections: bytes of `SECTIONS` in the linked program, with start-up code and the C library.
        objects: bytes of `SECTIONS` of each source file, by name.
    """

    output: str
    status: int
    stack: int
    sections: dict[str, int]
    objects: dict[str, dict[str, int]]


def run_on_board(
    target, files, folder, *, options=("-std=c99", "-O2"), stack=64 << 10, libraries=("-lm", "-lc", "-lgcc")
):
    """Compile a C project with its own `main` for a board, run it there, and measure it.

    The project may include `board.h`: `void board_print(const char *text)` and `void board_print_number(long value)`.

    Args:
        target: the CPU of a board (`BOARDS`).
        files: contents of sources and headers by name.
        folder: where to build.
        options: options of the compiler, for the project's own sources.
        stack: bytes of the stack.
        libraries: options of the linker.
    """
    compiler, board = toolchain_for(target), board_of(target)
    ours = {"board.h": _BOARD_HEADER, "board.c": _BOARD_SOURCE, "board_startup.c": startup_source()}
    ours["board.ld"] = board.linker_script(stack)
    for name, text in {**ours, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    objects = {}
    for name in (*ours, *files):
        if name.endswith(".c"):
            objects[name] = folder / f"{name}.o"
            words = options if name in files else ["-O2"]
            sections = ["-ffunction-sections", "-fdata-sections", "-I", str(folder), "-c"]
            compiler.compile([folder / name], objects[name], [*words, *sections])
    program = folder / "program.elf"
    link = ["-nostartfiles", "-T", str(folder / "board.ld"), "-Wl,--gc-sections", "-Wl,--wrap=main", *libraries]
    compiler.compile(list(objects.values()), program, link)
    done = subprocess.run(
        [*runner_for(target).command, program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    printed, marker, used = (done.stdout + done.stderr).rpartition("[stack] ")
    assert marker, f"the program ended with status {done.returncode}: {used}"
    sizes = {name: _sizes(compiler, path) for name, path in objects.items() if name in files}
    return BoardRun(printed, done.returncode, int(used), _sizes(compiler, program), sizes)


def _sizes(compiler, path):
    """Return bytes by section, those of single functions and variables added up, by binutils' `size`."""
    command = re.sub(r"gcc$", "size", compiler.command[0])
    lines = subprocess.run([command, "-A", path], capture_output=True, text=True, check=True).stdout.splitlines()
    found = Counter()
    for line in lines:
        words = line.split()
        for section in SECTIONS:
            if len(words) == 3 and (words[0] == section or words[0].startswith(f"{section}.")):
                found[section] += int(words[1])
    return {section: found[section] for section in SECTIONS}


_BOARD_HEADER = """\
#ifndef BOARD_H
#define BOARD_H
void board_print(const char *text);
void board_print_number(long value);
#endif
"""

# The stack is painted below the frame of this function, and read after `main` has returned.
_BOARD_SOURCE = """\
#include <stdint.h>
#include "board.h"
extern uint32_t stack_limit[];
int32_t semihost(int32_t operation, const void *argument);
int __real_main(void);
void board_print(const char *text) { semihost(4, text); } /* SYS_WRITE0 */
void board_print_number(long value) {
  char text[24], *at = text + 23;
  unsigned long rest = value < 0 ? 0ul - (unsigned long)value : (unsigned long)value;
  *at = 0;
  do *--at = (char)('0' + rest % 10);
  while (rest /= 10);
  if (value < 0) *--at = '-';
  board_print(at);
}
__attribute__((noinline)) int __wrap_main(void) {
  uint32_t *volatile top;
  uint32_t *at;
  int status;
  __asm__ volatile("mov %0, sp" : "=r"(at));
  top = at;
  for (at = stack_limit; at < top; ++at) *(volatile uint32_t *)at = 0xA5A5A5A5u;
  status = __real_main();
  for (at = stack_limit; at < top && *at == 0xA5A5A5A5u; ++at) continue;
  board_print("[stack] ");
  board_print_number((long)((char *)top - (char *)at));
  board_print("\\n");
  return status;
}
"""
