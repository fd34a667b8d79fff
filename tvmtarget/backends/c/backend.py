"""The backend of kind `c`: leaf functions in C99 that TVM generates, compiled by the C compiler of their machine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tvmtarget import toolchains
from tvmtarget.backends.machine import native_code_mismatch
from tvmtarget.backends.protocol import Ability, Array, Backend, Compiled, CompileRequest
from tvmtarget.backends.tvm.backend import BACKEND as TVM
from tvmtarget.errors import BackendError, RunError
from tvmtarget.target.tree import Target

# Every build looks at every backend, and few have leaves of kind `c`: what compiles these is imported when it is used.
if TYPE_CHECKING:
    from tvmtarget.backends.c.program import CProgram, ProgramSignature
    from tvmtarget.backends.c.static_function import StaticFunction

__all__ = ["BACKEND"]

_NATIVE = "program"
_SIGNATURE = "signature.json"


class _C(Backend):
    name = "c"
    kinds = ("c",)
    supports = frozenset[Ability]({"keeps-inputs", "runner", "shared-code", "static"})
    honours: Mapping[str, frozenset[str]] = {
        "c": frozenset({"mcpu", "march", "workspace-byte-alignment", "constants-byte-alignment"})
    }

    def version(self) -> str:
        return TVM.version()

    def code_version(self, target: Target) -> str | None:
        # As for llvm, the passes of TVM must not be changed around the build.
        from tvmtarget.toolchains.compilers import toolchain_for
        from tvmtarget.toolchains.runners import is_local

        generator = TVM.code_version(Target("llvm"))
        try:
            compiler = toolchain_for(target).key()
        except BackendError:  # `compile` raises it, with the name of the function
            return None
        form = "library" if is_local(target) else "program"
        return None if generator is None or compiler is None else " ".join((generator, _sources(), form, compiler))

    def unsupported_reason(self, target: Target, device: int = 0) -> str | None:
        from tvmtarget.toolchains.runners import is_local, runner_for

        if is_local(target):
            return native_code_mismatch(target)
        try:
            runner_for(target)
        except RunError as error:
            return str(error)
        return None

    def static_function(self, request: CompileRequest, prefix: str) -> StaticFunction:
        return TVM.static_function(request, prefix)

    def compile(self, request: CompileRequest) -> Compiled:
        from tvmtarget.backends.c.program import ProgramSignature, compiled_program, open_program
        from tvmtarget.backends.c.project import CProject

        if {_NATIVE, _SIGNATURE} <= request.native.keys():
            signature = ProgramSignature.read(request.native[_SIGNATURE])
            return _CompiledC(signature, open_program(signature, request.target, request.native[_NATIVE]))
        attrs = request.target.attrs
        function = self.static_function(request, "tvmgen_leaf")
        # Names of the model may become equal in C, and nobody reads the header of a leaf function.
        project = CProject(
            "leaf",
            function,
            tuple(f"input{number}" for number in range(len(function.inputs))),
            tuple(f"output{number}" for number in range(len(function.outputs))),
            workspace_alignment=_number(attrs.get("workspace-byte-alignment"), 16),
            constant_alignment=_number(attrs.get("constants-byte-alignment"), 16),
        )
        try:
            signature, data = ProgramSignature.of(project), compiled_program(project, request.target)
            return _CompiledC(signature, open_program(signature, request.target, data))
        except BackendError as error:
            raise BackendError(f"function {request.name!r} of @{request.site or '.'}: {error}") from error


@cache
def _sources() -> str:
    """Return a digest of the code of this library that writes C."""
    digest = hashlib.sha256()
    for folder in (Path(__file__).parent, Path(toolchains.__file__).parent):
        for path in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".c", ".h")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _number(value: object, default: int) -> int:
    return value if isinstance(value, int) else default


class _CompiledC(Compiled):
    def __init__(self, signature: ProgramSignature, program: CProgram) -> None:
        self._signature = signature
        self._program = program

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        return self._program.run(inputs)

    def native_files(self) -> Mapping[str, bytes]:
        return {_NATIVE: self._program.data, _SIGNATURE: self._signature.write()}


BACKEND = _C()
