"""Parsing of TVM programs by the installed TVM, in a process of its own, which a damaged program may end.

Requests and answers are lines of JSON. A request is the hash and the program as MetaSchedule stores them; an answer is
the name and the body of its only function, or null if TVM cannot read it. A first line reports that TVM was imported.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tvmtarget.ir.tensor_functions import name_of, workload_body
from tvmtarget.python_process import python_command, python_environment

__all__ = ["Programs", "main"]

_LIMIT = 60  # seconds for one program


class Programs:
    """A process that parses programs; it is started by the first one."""

    def __init__(self) -> None:
        self._is_known = importlib.util.find_spec("tvm") is not None
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._end()

    def read(self, program: Sequence[str]) -> tuple[str, dict[str, object]] | None:
        """Parse a program.

        Args:
            program: the hash and the program as MetaSchedule stores them.

        Returns:
            The name of its only function, and the body of its workload; None if TVM cannot read it.
        """
        if self._process is None and self._is_known:
            self._start()
        answer = self._exchange(json.dumps(list(program))) if self._process is not None else ""
        if not answer:
            self._end()
            return None
        name, body = json.loads(answer) or ("", None)
        return None if body is None else (name, body)

    def _start(self) -> None:
        self._process = subprocess.Popen(
            python_command("-m", __name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=python_environment(),
        )
        if not self._exchange():  # installed, but it cannot be imported
            self._is_known = False
            self._end()

    def _exchange(self, request: str = "") -> str:
        """Send a line, if there is one, and return the answer; empty if the process is gone."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            if request:
                self._process.stdin.write(f"{request}\n")
                self._process.stdin.flush()
            return self._process.stdout.readline()
        return ""

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def main() -> None:
    """Answer requests until the standard input ends."""
    from tvm.s_tir.meta_schedule.database import Workload

    print("here", flush=True)
    for line in sys.stdin:
        signal.alarm(_LIMIT)
        try:
            (function,) = Workload.from_json(json.loads(line)).mod.functions.values()
            answer: object = name_of(function), workload_body(function)
        except Exception:  # TVM raises anything for programs of other versions, or damaged ones
            answer = None
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
