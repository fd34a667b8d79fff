"""Boards with a Cortex-M core that QEMU emulates: memory map, start-up code and linker script.

Memory maps are those of Arm's application notes AN385, AN386, AN500, AN505 and AN547, as QEMU 7.2 implements them
(`hw/arm/mps2.c`, `hw/arm/mps2-tz.c`, `hw/arm/mps3r.c`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tvmtarget.target.tree import Target

__all__ = ["BOARDS", "Board", "board_of"]


@dataclass(frozen=True)
class Board:
    """A board that QEMU emulates.

    Attributes:
        name: name of QEMU's machine.
        cpu: LLVM's name of the core.
        code: address and bytes of the memory for code and constants.
        data: address and bytes of the memory for variables and the stack.
        models: values of attribute `model` that name the board.
    """

    name: str
    cpu: str
    code: tuple[int, int]
    data: tuple[int, int]
    models: tuple[str, ...] = ()

    def emulator_arguments(self) -> tuple[str, ...]:
        """Return the arguments of QEMU before the path of a program, which may open our files."""
        return (
            *("-machine", self.name, "-display", "none", "-monitor", "none", "-serial", "none"),
            *("-semihosting-config", "enable=on,target=native", "-kernel"),
        )

    def linker_script(self, stack: int) -> str:
        """Return the linker script of a program.

        Args:
            stack: bytes of the stack.

        Returns:
            The script; the program begins with the vector table.
        """
        return _LINKER_SCRIPT.format(
            code=self.code[0], code_bytes=self.code[1], data=self.data[0], data_bytes=self.data[1], stack=stack
        )


_MIB = 1 << 20

BOARDS = (
    Board("mps2-an385", "cortex-m3", (0x0000_0000, 4 * _MIB), (0x2000_0000, 4 * _MIB)),
    Board("mps2-an386", "cortex-m4", (0x0000_0000, 4 * _MIB), (0x2000_0000, 4 * _MIB), ("mps2_an386",)),
    Board("mps2-an500", "cortex-m7", (0x0000_0000, 4 * _MIB), (0x2000_0000, 4 * _MIB), ("mps2_an500",)),
    Board("mps2-an505", "cortex-m33", (0x1000_0000, 4 * _MIB), (0x3800_0000, 4 * _MIB), ("mps2_an505",)),
    Board("mps3-an547", "cortex-m55", (0x1000_0000, 512 << 10), (0x3100_0000, 4 * _MIB), ("mps3_an547",)),
)


def board_of(target: Target) -> Board | None:
    """Return the board that runs code for a target.

    Args:
        target: a CPU target.

    Returns:
        The board that its `model` names, else one with its CPU; None if there is none.
    """
    cpu, model = (str(target.attrs.get(name, "")) for name in ("mcpu", "model"))
    named = (board for board in BOARDS if model in board.models)
    with_cpu = (board for board in BOARDS if board.cpu == cpu.partition("+")[0])
    return next(named, None) or next(with_cpu, None)


_LINKER_SCRIPT = """\
MEMORY
{{
  code (rx) : ORIGIN = {code:#010x}, LENGTH = {code_bytes:#x}
  data (rwx) : ORIGIN = {data:#010x}, LENGTH = {data_bytes:#x}
}}
ENTRY(reset)
SECTIONS
{{
  .text : {{ KEEP(*(.vectors)) *(.text*) . = ALIGN(16); }} > code
  .rodata : {{ *(.rodata*) . = ALIGN(16); }} > code
  .ARM.exidx : {{ __exidx_start = .; *(.ARM.exidx* .gnu.linkonce.armexidx.*) __exidx_end = .; }} > code
  .data : {{ . = ALIGN(16); data_start = .; *(.data*) . = ALIGN(16); data_end = .; }} > data AT> code
  data_load = LOADADDR(.data);
  .bss (NOLOAD) : {{ . = ALIGN(64); bss_start = .; *(.bss*) *(COMMON) . = ALIGN(16); bss_end = .; }} > data
  .stack (NOLOAD) : {{ . = ALIGN(16); stack_limit = .; . += {stack:#x}; stack_top = .; }} > data
}}
"""
