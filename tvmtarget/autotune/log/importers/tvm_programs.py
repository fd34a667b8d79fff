"""Programs of TVM, read by TVM where it is installed: in a process of its own, which a damaged program may end.

Requests and answers are lines of JSON: the hash and the program as MetaSchedule has them, and the name and the body of
its one function, or null where TVM cannot read it. Before the first answer, a line says that TVM is there.
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
    """Reads programs while it is open; whoever reads the first waits for TVM to start."""

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
        """Return the name of a program's one function, and its body in a log; None where TVM cannot read it."""
        if self._process is None and self._is_known:
            self._start()
        answer = self._asked(json.dumps(list(program))) if self._process is not None else ""
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
        if not self._asked():  # not there after all, or broken
            self._is_known = False
            self._end()

    def _asked(self, request: str = "") -> str:
        """Send a line, if there is one to send, and return the answer; nothing if the process is gone."""
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
    """Answer requests until there is none."""
    from tvm.s_tir.meta_schedule.database import Workload

    print("here", flush=True)
    for line in sys.stdin:
        signal.alarm(_LIMIT)
        try:
            (function,) = Workload.from_json(json.loads(line)).mod.functions.values()
            answer: object = name_of(function), workload_body(function)
        except Exception:  # whatever TVM says of what TVM of another time, or nobody, wrote
            answer = None
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
