"""Compile untrusted TVM modules in a process of their own, which a malformed one may crash."""

from __future__ import annotations

from tvmtarget.backends.compile_worker import GRACE_SECONDS, CompileWorker
from tvmtarget.backends.protocol import CompileRequest
from tvmtarget.backends.tvm.compiled_module import LIBRARY
from tvmtarget.errors import BackendError
from tvmtarget.ir.relax.safe_source import unsafe_parts
from tvmtarget.untrusted import limit

__all__ = ["compile_isolated"]


def compile_isolated(request: CompileRequest) -> bytes | None:
    """Compile an untrusted leaf function, after checking its source against closed lists.

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
    worker = CompileWorker()
    try:
        outcome = worker.compile("tvm", request, seconds=limit("compile-seconds") + GRACE_SECONDS)
    finally:
        worker.close()
    if outcome.has_ended:
        raise BackendError(f"{name} {outcome.problem}; it is damaged, or made to do so")
    if outcome.problem:
        raise BackendError(f"{name} cannot be compiled: {outcome.problem[:1000]}")
    return outcome.files.get(LIBRARY)
