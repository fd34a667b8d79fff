"""Compile leaf functions in processes of their own: several at a time, or code that may crash the code generator.

TVM's passes hold Python's lock (GIL), so that threads of one process compile no faster than one. A process reads frames
from its standard input, each a line of JSON and bytes, and answers by frames: questions for schedules, and at the end
the native files or the reason why there are none. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from queue import SimpleQueue
from typing import IO, Any

from tvmtarget.backends.protocol import CompileRequest, Kernel, Schedules, backend_named
from tvmtarget.errors import CompileError, TvmTargetError, first_line
from tvmtarget.python_process import end_with_parent, ending_of, python_command, python_environment
from tvmtarget.target.tree import Target
from tvmtarget.untrusted import limit

__all__ = ["GRACE_SECONDS", "CompileWorker", "Outcome", "compile_in_processes", "main"]


# Beyond `compile-seconds`, after which a process that runs reports by itself: to start it and to import TVM.
GRACE_SECONDS = 120


@dataclass(frozen=True)
class Outcome:
    """What became of a request.

    Attributes:
        files: native code by file name; empty if this machine has no linker, or there was a problem.
        problem: why the function cannot be compiled; empty if it can.
        has_ended: whether the process ended while it compiled.
        is_defect: whether the code generator failed on a function that it should compile.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    problem: str = ""
    has_ended: bool = False
    is_defect: bool = False


class CompileWorker:
    """A process that compiles one function at a time, until it is closed.

    Args:
        lock: held while schedules are looked up.
    """

    def __init__(self, lock: contextlib.AbstractContextManager[Any] | None = None) -> None:
        self._lock = lock or contextlib.nullcontext()
        self._process = subprocess.Popen(
            python_command("-m", __name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=python_environment(),
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout

    def compile(self, backend: str, request: CompileRequest, *, seconds: float | None = None) -> Outcome:
        """Compile a function.

        Args:
            backend: name of the code generator.
            request: the function; its schedules are looked up in this process.
            seconds: time after which the process is ended; None for no limit.

        Returns:
            The native code, or the problem.
        """
        is_late = threading.Event()

        def expire() -> None:
            is_late.set()
            self.close()

        timer = None if seconds is None else threading.Timer(seconds, expire)
        if timer is not None:
            timer.start()
        try:
            _write(self._requests, _described(backend, request), request.source)
            while True:
                head, body = _read(self._answers)
                if "kernel" in head:
                    with self._lock:
                        schedule = _look_up(request.schedules, head)
                    _write(self._requests, {"schedule": schedule})
                elif "problem" in head:
                    return Outcome(problem=head["problem"], is_defect=head["is_defect"])
                else:
                    return Outcome(dict(_cut(head["files"], body)))
        except (OSError, EOFError, ValueError):
            self.close()
            return Outcome(problem="takes too long to compile" if is_late.is_set() else self._ending(), has_ended=True)
        finally:
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """End the process and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _ending(self) -> str:
        return f"ends its compiler, which {ending_of(self._process.returncode)}"


def compile_in_processes(
    requests: Sequence[tuple[str, CompileRequest]], count: int, report: Callable[[int], None]
) -> dict[int, Outcome]:
    """Compile functions in several processes, which end with this call, also on Ctrl-C.

    Args:
        requests: pairs of a code generator and a function.
        count: number of processes.
        report: called with the position of each function that is compiled, in the order in which they end.

    Returns:
        Outcomes by position: of all functions, or, if some cannot be compiled, of all up to the first of these.
    """
    lock, results = threading.Lock(), SimpleQueue[tuple[int, Outcome]]()
    numbers = itertools.count()
    has_failed = threading.Event()
    workers: list[CompileWorker] = []

    def serve(worker: CompileWorker) -> None:
        while not has_failed.is_set():
            number = next(numbers)
            if number >= len(requests):
                return
            # The process reports that it takes too long by itself, unless it cannot run any more.
            seconds = limit("compile-seconds") + GRACE_SECONDS
            results.put((number, worker.compile(*requests[number], seconds=seconds)))

    outcomes: dict[int, Outcome] = {}
    try:
        for _ in range(count):
            workers.append(CompileWorker(lock))
            threading.Thread(target=serve, args=(workers[-1],), daemon=True).start()
        first = len(requests)  # position of the first function that cannot be compiled
        while any(number not in outcomes for number in range(min(first + 1, len(requests)))):
            number, outcomes[number] = results.get()
            if outcomes[number].problem:
                has_failed.set()
                first = min(first, number)
            report(number)
        return outcomes
    finally:
        has_failed.set()
        for worker in workers:
            worker.close()


def _described(backend: str, request: CompileRequest) -> dict[str, object]:
    plain = {name: getattr(request, name) for name in ("name", "site", "ops", "inputs", "outputs")}
    return {
        "backend": backend,
        "target": request.target.to_json(),
        "has_schedules": request.schedules is not None,
        **plain,
    }


def _look_up(schedules: Schedules | None, question: Mapping[str, Any]) -> object:
    """Answer a question for the schedule of a kernel, or record that it cannot be used."""
    if schedules is None:
        return None
    kernel = Kernel(**question["kernel"])
    if "reason" in question:
        schedules.reject(kernel, question["reason"])
        return None
    return schedules.find(kernel, *question["formats"])


class _RemoteSchedules:
    """Schedules that the process which sent the request looks up."""

    def __init__(self, request: Callable[[Mapping[str, object]], Any]) -> None:
        self._request = request

    def find(self, kernel: Kernel, *formats: str) -> tuple[str, object] | None:
        found = self._request({"kernel": asdict(kernel), "formats": formats})
        return None if found is None else (found[0], found[1])

    def reject(self, kernel: Kernel, reason: str) -> None:
        self._request({"kernel": asdict(kernel), "reason": reason})


def main() -> int:
    """Compile the functions on the standard input until it ends.

    Returns:
        The exit code, 0.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    end_with_parent()
    requests = sys.stdin.buffer
    # What a code generator prints must not end up among the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def look_up(question: Mapping[str, object]) -> Any:  # noqa: ANN401 - JSON
        _write(answers, question)
        return _read(requests)[0]["schedule"]

    while True:
        try:
            head, source = _read(requests)
        except EOFError:
            return 0
        try:
            request = CompileRequest(
                name=head["name"],
                source=source,
                site=head["site"],
                target=Target.from_json(head["target"]),
                ops=tuple(head["ops"]),
                inputs=tuple(head["inputs"]),
                outputs=tuple(head["outputs"]),
                schedules=_RemoteSchedules(look_up) if head["has_schedules"] else None,
            )
            files = backend_named(head["backend"]).compile(request).native_files()
        except TvmTargetError as error:
            is_defect = isinstance(error, CompileError)
            _write(answers, {"problem": str(error).splitlines()[0], "is_defect": is_defect})
        except Exception as error:
            problem = f"function {head['name']!r}: {type(error).__name__}: {first_line(error)}"
            _write(answers, {"problem": problem, "is_defect": True})
        else:
            sizes = {name: len(data) for name, data in files.items()}
            _write(answers, {"files": sizes}, b"".join(files.values()))


def _write(stream: IO[bytes], head: Mapping[str, object], body: bytes = b"") -> None:
    stream.write(json.dumps({**head, "bytes": len(body)}).encode() + b"\n")
    stream.write(body)
    stream.flush()


def _read(stream: IO[bytes]) -> tuple[dict[str, Any], bytes]:
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    head = json.loads(line)
    body = stream.read(head.pop("bytes"))
    return head, body


def _cut(sizes: Mapping[str, int], body: bytes) -> Iterator[tuple[str, bytes]]:
    at = 0
    for name, size in sizes.items():
        if at + size > len(body):
            raise EOFError
        yield name, body[at : at + size]
        at += size


if __name__ == "__main__":
    sys.exit(main())
