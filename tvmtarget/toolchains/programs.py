"""Programs that compute one function on another machine: build one, start it by a runner, and call it in a loop."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from tvmtarget.compile_cache import CompileCache
from tvmtarget.errors import BackendError, RunError
from tvmtarget.files import temporary_place
from tvmtarget.python_process import ending_of
from tvmtarget.target.tree import Target
from tvmtarget.toolchains.boards import board_of
from tvmtarget.toolchains.compilers import toolchain_for
from tvmtarget.toolchains.frames import ANSWER, REQUEST, main_source, startup_source
from tvmtarget.toolchains.runners import Runner

__all__ = ["Program", "ProgramProcess", "TensorFrame", "build_program"]

Array: TypeAlias = "np.ndarray[Any, Any]"
_STACK = 64 << 10  # bytes of the stack on a board


@dataclass(frozen=True)
class TensorFrame:
    """An input or output of a program.

    Attributes:
        dtype: numpy's name of the element type.
        shape: the sizes of the dimensions.
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Program:
    """A program for another machine.

    Attributes:
        data: the executable file.
        inputs: the inputs of its function, in order.
        outputs: the outputs, in order.
        compiler: the version of the compiler.
    """

    data: bytes = field(repr=False)
    inputs: tuple[TensorFrame, ...]
    outputs: tuple[TensorFrame, ...]
    compiler: str = ""


def build_program(
    target: Target,
    files: Mapping[str, bytes | str],
    entry: str,
    inputs: Sequence[TensorFrame],
    outputs: Sequence[TensorFrame],
    *,
    options: Sequence[str] = ("-O2",),
    stack: int = _STACK,
    cache: CompileCache | None = None,
    name: str = "program",
) -> Program:
    """Compile a function into a program for the machine of a target.

    Args:
        target: the CPU that the code is for.
        files: contents of C and object files and headers by name.
        entry: name of the function `int32_t NAME(void *const *inputs, void *const *outputs)` in them.
        inputs: the inputs of the function, in order.
        outputs: the outputs of the function, in order.
        options: options of the compiler.
        stack: bytes of the stack on a board without an operating system.
        cache: the compile cache, or None.
        name: name of the program in listings of the cache.

    Returns:
        The program.

    Raises:
        BackendError: there is no compiler or no known board for the target, or the code does not compile.
    """
    compiler = toolchain_for(target)
    if compiler.triple.endian != "little":
        raise BackendError(f"programs for {str(compiler.triple)!r} are not built: its numbers are big-endian")
    is_bare = compiler.triple.os in ("", "none")
    board = board_of(target) if is_bare else None
    if is_bare and board is None:
        raise BackendError(
            f"no memory map is known for {str(target)!r}; state mcpu or model of a board that QEMU emulates"
        )
    main = main_source(entry, [one.nbytes for one in inputs], [one.nbytes for one in outputs], is_bare=is_bare)
    every: dict[str, bytes | str] = {**files, "tvmtarget_main.c": main}
    if board is not None:
        every |= {"tvmtarget_startup.c": startup_source(), "tvmtarget_board.ld": board.linker_script(stack)}
    board_options = ["-nostartfiles", "-Ttvmtarget_board.ld", "-Wl,--gc-sections"] if is_bare else []
    libraries = ["-lm", "-lc", "-lgcc"] if is_bare else ["-lm"]
    facts = {"function": name, "target": str(target), "backend": compiler.version()}
    data = compiler.build(every, [*options, *board_options], libraries, cache, **facts)
    return Program(data, tuple(inputs), tuple(outputs), compiler.version())


class _WrongFrameError(Exception):
    """An answer that is none."""


class ProgramProcess:
    """A running program; it starts at the first run, and runs in several threads take turns.

    Args:
        program: the program.
        runner: the command that runs it; None to start it as a program of this machine.
        place: the name of the program in errors.
    """

    def __init__(self, program: Program, runner: Runner | None, place: str = "the program") -> None:
        self.program = program
        self.runner = runner
        self._place = place
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._end: weakref.finalize[Any, Any] | None = None

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run the function once.

        Args:
            inputs: the inputs, in order.

        Returns:
            The outputs, in order.

        Raises:
            RunError: an input has another type or size, the function returned an error, or the program ended; the
                message has what it printed. The next run starts it again.
        """
        frames = [_frame(array, one, position) for position, (array, one) in enumerate(self._paired(inputs))]
        with self._lock:
            try:
                process = self._started()
                assert process.stdin is not None
                process.stdin.write(b"".join((REQUEST, *frames)))
                process.stdin.flush()
                return self._answer(process)
            except (OSError, EOFError, _WrongFrameError) as error:
                raise self._failed(error) from error
            except RunError:  # the status of a complete answer
                raise
            except BaseException:
                self._stop()  # an answer may be on its way, which the next run must not read
                raise

    def close(self) -> None:
        """End the process; the next run starts another one."""
        with self._lock:
            self._stop()

    def _paired(self, inputs: Sequence[Array]) -> list[tuple[Array, TensorFrame]]:
        if len(inputs) != len(self.program.inputs):
            raise RunError(f"{self._place} takes {len(self.program.inputs)} inputs, not {len(inputs)}")
        return list(zip(inputs, self.program.inputs, strict=True))

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            with temporary_place() as place:
                folder = Path(tempfile.mkdtemp(prefix="tvmtarget-program-", dir=place))
            try:
                path = folder / "program"
                with temporary_place():
                    path.write_bytes(self.program.data)
                    path.chmod(0o700)
                self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - read when the program fails
                command = [*(self.runner.command if self.runner is not None else ()), str(path)]
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                    cwd=folder,
                    start_new_session=True,  # Ctrl-C is for Python, which then ends it
                )
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            self._end = weakref.finalize(self, _end, self._process, self._errors, folder)
        return self._process

    def _answer(self, process: subprocess.Popen[bytes]) -> list[Array]:
        assert process.stdout is not None
        status = struct.unpack("<4si", _read(process.stdout, 8))
        if status[0] != ANSWER:
            raise _WrongFrameError(f"it wrote {status[0]!r} instead of an answer")
        if status[1]:
            raise RunError(f"{self._place} returned error {status[1]}{self._said()}")
        results = []
        for one in self.program.outputs:
            (size,) = struct.unpack("<Q", _read(process.stdout, 8))
            if size != one.nbytes:
                raise _WrongFrameError(f"it wrote {size} bytes of an output of {one.nbytes}")
            results.append(np.frombuffer(bytearray(_read(process.stdout, size)), one.dtype).reshape(one.shape))
        return results

    def _failed(self, error: Exception) -> RunError:
        process, command = self._process, self.runner.command[0] if self.runner is not None else "the program"
        if process is None:
            return RunError(
                f"{self._place} cannot be started by {command!r}: {getattr(error, 'strerror', None) or error}"
            )
        status: int | None = None
        if not isinstance(error, _WrongFrameError):
            # It closed its files, so that it ends now.
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(timeout=5)
        said = self._said()
        self._stop()
        reason = f"it {ending_of(status)}" if status is not None else str(error) or "it closed its standard output"
        return RunError(f"{self._place} failed: {reason}{said}")

    def _said(self) -> str:
        """Return the last lines of the program's standard error, for messages."""
        if self._errors is None:
            return ""
        # The file is shared with the process, which writes at its own position only if ours does not move it.
        size = os.fstat(self._errors.fileno()).st_size
        text = os.pread(self._errors.fileno(), 2000, max(0, size - 2000)).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f"; it printed: {' | '.join(lines[-3:])}" if lines else ""

    def _stop(self) -> None:
        if self._end is not None:
            self._end()
        self._process = self._errors = self._end = None


def _end(process: subprocess.Popen[bytes], errors: IO[bytes], folder: Path) -> None:
    for stream in (process.stdin, process.stdout, errors):
        with contextlib.suppress(OSError):
            if stream is not None:
                stream.close()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _read(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _frame(array: Array, expected: TensorFrame, position: int) -> bytes:
    if array.dtype != np.dtype(expected.dtype) or array.shape != expected.shape:
        raise RunError(
            f"input {position} is {array.dtype}{list(array.shape)}, not {expected.dtype}{list(expected.shape)}"
        )
    data = np.ascontiguousarray(array).astype(np.dtype(expected.dtype).newbyteorder("<"), copy=False).tobytes()
    return struct.pack("<Q", len(data)) + data
