"""Compile untrusted TVM modules in a process of their own, which a malformed one may crash.

`compile_isolated` checks a source against closed lists before TVM reads it. The process gets a line of JSON and the
source on its standard input, and writes the library, if it could link one, into a folder that only this user can read.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tvmtarget.backends.protocol import CompileRequest, FixedSchedules, backend_named
from tvmtarget.backends.tvm.compiled_module import LIBRARY
from tvmtarget.errors import BackendError, TvmTargetError
from tvmtarget.files import temporary_folder
from tvmtarget.ir.relax.safe_source import unsafe_parts
from tvmtarget.python_process import end_with_parent, python_command, python_environment
from tvmtarget.target.tree import Target

__all__ = ["compile_isolated", "main"]

TIME_LIMIT = 300  # seconds for compiling a leaf function
_REASON = "why"  # name of the file with the reason why it cannot be compiled


def compile_isolated(request: CompileRequest) -> bytes | None:
    """Compile an untrusted leaf function.

    Args:
        request: the function.

    Returns:
        The shared library; None if it compiles, but this machine has no linker.

    Raises:
        BackendError: it holds what requires trust, does not compile, takes too long, or crashes the process; names the
            function and its file in a saved program.
    """
    name = f"function {request.name!r} of @{request.site or '.'} (leaves/{request.name}/source.onnx)"
    problems = list(unsafe_parts(request.source))
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise BackendError(
            f"{name} is compiled only if you trust who wrote it (trust=True, --trust): {problems[0]}{more}"
        )
    with temporary_folder() as folder:
        bodies = request.schedules.bodies if isinstance(request.schedules, FixedSchedules) else {}
        header = {
            "name": request.name,
            "site": request.site,
            "target": request.target.to_json(),
            "bodies": [[*key, body] for key, body in bodies.items()],
        }
        code = _run(str(folder), json.dumps(header).encode() + b"\n" + request.source)
        why, library = folder / _REASON, folder / LIBRARY
        if code == 0:
            return library.read_bytes() if library.exists() else None
        if why.exists():
            raise BackendError(f"{name} cannot be compiled: {why.read_text(encoding='utf-8', errors='replace')[:1000]}")
        ended = "takes too long to compile" if code is None else f"ends TVM's compiler ({_ending(code)})"
        raise BackendError(f"{name} {ended}; it is damaged, or made to do so")


def _run(folder: str, data: bytes) -> int | None:
    """Run the process; return its exit code, or None if it exceeded the time limit and was killed with its children."""
    process = subprocess.Popen(
        python_command("-m", __name__, folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=python_environment(),
        start_new_session=True,
    )
    try:
        process.communicate(data, timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return process.returncode


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def main(folder: str) -> int:
    """Compile the leaf function on the standard input.

    Args:
        folder: where to write its library.

    Returns:
        The exit code: 0, or 1 after writing the reason why it cannot be compiled.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    end_with_parent()
    header: Mapping[str, object] = json.loads(sys.stdin.buffer.readline())
    bodies = {(key, form): body for key, form, body in header["bodies"]}  # type: ignore[attr-defined]
    request = CompileRequest(
        str(header["name"]),
        sys.stdin.buffer.read(),
        str(header["site"]),
        Target.from_json(header["target"]),  # type: ignore[arg-type]
        schedules=FixedSchedules(bodies) if bodies else None,
    )
    try:
        files = backend_named("tvm").compile(request).native_files()
    except TvmTargetError as error:
        (Path(folder) / _REASON).write_text(str(error).splitlines()[0], encoding="utf-8")
        return 1
    for name, data in files.items():
        (Path(folder) / name).write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
