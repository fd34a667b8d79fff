"""Modules of TVM from strangers are read and compiled in a process of their own, which a damaged one may end.

`compiled_apart` checks a source against closed lists before TVM sees it. The process gets a line of JSON and the source
on its standard input, and writes the library, if it could link one, into a folder that only this user can read.
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

__all__ = ["compiled_apart", "main"]

SECONDS = 300  # that compiling a leaf function may take
_WHY = "why"  # the file with the reason why it cannot be compiled


def compiled_apart(part: CompileRequest) -> bytes | None:
    """Return the library of a leaf function of a stranger; None if it compiles, and there is nothing to link it with.

    Raises:
        BackendError: it holds what may only be compiled with trust, does not compile, takes too long, or ends the
            process; the function and its file in a saved program are named.
    """
    name = f"function {part.name!r} of @{part.site or '.'} (leaves/{part.name}/source.onnx)"
    problems = list(unsafe_parts(part.source))
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise BackendError(
            f"{name} is compiled only if you trust who wrote it (trust=True, --trust): {problems[0]}{more}"
        )
    with temporary_folder() as folder:
        bodies = part.schedules.bodies if isinstance(part.schedules, FixedSchedules) else {}
        request = {
            "name": part.name,
            "site": part.site,
            "target": part.target.to_json(),
            "bodies": [[*key, body] for key, body in bodies.items()],
        }
        code = _run(str(folder), json.dumps(request).encode() + b"\n" + part.source)
        why, library = folder / _WHY, folder / LIBRARY
        if code == 0:
            return library.read_bytes() if library.exists() else None
        if why.exists():
            raise BackendError(f"{name} cannot be compiled: {why.read_text(encoding='utf-8', errors='replace')[:1000]}")
        ended = "takes too long to compile" if code is None else f"ends TVM's compiler ({_ending(code)})"
        raise BackendError(f"{name} {ended}; it is damaged, or made to do so")


def _run(folder: str, data: bytes) -> int | None:
    """Run the process; return its exit code, None if it took too long and was ended, with all that it started."""
    process = subprocess.Popen(
        python_command("-m", __name__, folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=python_environment(),
        start_new_session=True,
    )
    try:
        process.communicate(data, timeout=SECONDS)
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
    """Compile the leaf function on the standard input, and write its library into a folder."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    end_with_parent()
    request: Mapping[str, object] = json.loads(sys.stdin.buffer.readline())
    bodies = {(key, form): body for key, form, body in request["bodies"]}  # type: ignore[attr-defined]
    part = CompileRequest(
        str(request["name"]),
        sys.stdin.buffer.read(),
        str(request["site"]),
        Target.from_json(request["target"]),  # type: ignore[arg-type]
        schedules=FixedSchedules(bodies) if bodies else None,
    )
    try:
        files = backend_named("tvm").compile(part).native_files()
    except TvmTargetError as error:
        (Path(folder) / _WHY).write_text(str(error).splitlines()[0], encoding="utf-8")
        return 1
    for name, data in files.items():
        (Path(folder) / name).write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
