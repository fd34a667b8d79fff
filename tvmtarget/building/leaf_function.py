"""A leaf function of an executable: its source, its backend, its code, and its part of a saved program."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict

from tvmtarget.autotune.log.applied import Applied
from tvmtarget.backends.protocol import (
    Backend,
    Compiled,
    CompileRequest,
    FixedSchedules,
    backend_named,
    named_errors,
    scratch_in,
)
from tvmtarget.backends.sharing import device_index
from tvmtarget.errors import BackendError, CompileError, RunError
from tvmtarget.ir.onnx.graph import output_names
from tvmtarget.ir.onnx.reader import decode_model
from tvmtarget.ir.onnx.tensors import external_tensors
from tvmtarget.ir.traces import TRACE_FORMAT, trace_problem
from tvmtarget.target.problems import shown
from tvmtarget.target.tree import Target
from tvmtarget.target.trusted_attributes import trusted_attributes

__all__ = ["CallFacts", "LeafCall", "LeafCode", "LeafFacts", "LeafFunction", "compile_function"]


_MOST_NAMED = 3  # operations of a function in an error


class CallFacts(BaseModel):
    """A call of a leaf function in the manifest of a saved program."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    function: str
    call: str | None = None
    ops: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class LeafFacts(CallFacts):
    """A leaf function in the manifest of a saved program."""

    site: str
    backend: str
    version: str
    note: str
    target: dict[str, Any]
    tuned: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class LeafCall:
    """One call of a leaf function.

    Attributes:
        function: The name of the function.
        call: The name of the call, after those of the drivers around it.
        ops: The operations that the call computes.
        inputs: The values that it reads.
        outputs: The values that it returns.
    """

    function: str
    call: str
    ops: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def describe(self) -> dict[str, Any]:
        """Return the call as JSON data."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def read(cls, facts: CallFacts) -> LeafCall:
        """Return the call that a manifest describes.

        Args:
            facts: The call; or, in files of older versions, the function, which is called once under its own name.

        Returns:
            The call.
        """
        return cls(facts.function, facts.call or facts.function, facts.ops, facts.inputs, facts.outputs)


def compile_function(backend: Backend, request: CompileRequest) -> Compiled:
    """Compile a leaf function.

    Args:
        backend: The backend.
        request: The function.

    Returns:
        The compiled function.

    Raises:
        BackendError: It cannot be compiled, or the backend fails.
    """
    shown_ops = ", ".join((*request.ops[:_MOST_NAMED], *["..."] * (len(request.ops) > _MOST_NAMED)))
    place = f"function {request.name!r} of @{request.site or '.'}{f' ({shown_ops})' if shown_ops else ''}"
    try:
        with named_errors(f"backend {backend.name!r} fails to compile {place}"):
            return backend.compile(request)
    except BackendError as error:
        is_named = repr(request.name) in str(error)
        problems = error.problems if is_named else [f"{backend.name} cannot compile {place}: {error}"]
        if isinstance(error, CompileError) and not (is_named and error.function):
            raise CompileError(*problems, function=request.name, refused=error.refused) from error
        if type(error) is BackendError and not is_named:
            raise BackendError(*problems) from error
        raise


class LeafCode:
    """The code of a leaf function, which equal functions of a program share.

    It is compiled, or its native code opened, when it is first used.

    Args:
        backend: The backend.
        request: The function; with native code, that of the cache or of a saved program.
        compiled: The compiled function, if there is one already.
        discard: Called if native code of the cache cannot be opened here, which is then compiled again.
    """

    def __init__(
        self,
        backend: Backend,
        request: CompileRequest,
        compiled: Compiled | None = None,
        discard: Callable[[], None] | None = None,
    ) -> None:
        self._backend = backend
        self._request = request
        self._compiled = None if compiled is None else self._checked(compiled)
        self._discard = discard
        self._lock = threading.Lock()

    @property
    def compiled(self) -> Compiled:
        """The compiled function."""
        if self._compiled is None:
            with self._lock:
                if self._compiled is None:
                    self._compiled = self._checked(self._made())
        return self._compiled

    @property
    def is_compiled(self) -> bool:
        """Whether the function is compiled."""
        return self._compiled is not None

    def native_files(self) -> Mapping[str, bytes]:
        """Return what a saved program stores besides the source; it is compiled if it was not read."""
        return self._request.native or self.compiled.native_files()

    def scratch(self) -> Mapping[str, int]:
        """Return the bytes that kernels allocate, as far as known without compiling it."""
        if self._request.native:
            return scratch_in(self._request.native)
        return self._compiled.scratch() if self._compiled is not None else {}

    def _checked(self, compiled: object) -> Compiled:
        if not isinstance(compiled, Compiled):
            base = f"{Compiled.__module__}.{Compiled.__name__}"
            raise BackendError(
                f"backend {self._backend.name!r} compiled function {self._request.name!r} to {compiled!r}, which does "
                f"not derive from {base}"
            )
        self._request.forget_model()
        return compiled

    def _made(self) -> Compiled:
        try:
            return compile_function(self._backend, self._request)
        except Exception:
            if self._discard is None:
                raise
        # Another machine with the same folder, such as a network's home folder, may have older system libraries.
        self._discard()
        self._request = replace(self._request, native={})
        return compile_function(self._backend, self._request)


@dataclass
class LeafFunction:
    """A function that runs on one leaf.

    Attributes:
        request: The source, the target and the signature.
        backend: The backend that compiles it.
        note: A note for reports if the leaf is interpreted for lack of a code generator; else empty.
        tuned: The lookups of its kernels in a tuning log.
        key: The key of all that its code depends on; empty if unknown.
        scratch: The bytes that its kernels allocate while they run, by kernel.
    """

    request: CompileRequest
    backend: Backend
    note: str = ""
    tuned: tuple[Applied, ...] = ()
    key: str = ""
    scratch: Mapping[str, int] = field(default_factory=dict)
    _code: LeafCode | None = field(default=None, repr=False)

    @property
    def code(self) -> LeafCode:
        """The code of the function; that of a loaded one is compiled, or its native code opened, at the first run."""
        if self._code is None:
            self._code = LeafCode(self.backend, self.request)
        return self._code

    @property
    def compiled(self) -> Compiled:
        """The compiled function."""
        return self.code.compiled

    def set_code(self, request: CompileRequest, code: LeafCode, key: str) -> None:
        """Set the code of the function, which a build has compiled or found.

        Args:
            request: The request that the code is compiled from.
            code: The code.
            key: The key of all that the code depends on.
        """
        self.request, self._code, self.key, self.scratch = request, code, key, code.scratch()

    @property
    def is_interpreted(self) -> bool:
        """Whether the backend interprets the leaf in place of a code generator for its kind."""
        return self.request.target.kind not in self.backend.kinds

    @cached_property
    def device(self) -> int:
        """The number of the device of the site among those of its kind."""
        return device_index(self.request.site)

    @cached_property
    def cannot_run(self) -> str | None:
        """The reason why this machine cannot run the function on the device of its site, or None."""
        with named_errors(f"backend {self.backend.name!r} fails for @{self.request.site or '.'}"):
            return self.backend.unsupported_reason(self.request.target, self.device)

    def check(self) -> None:
        """Check that this machine can run the function.

        Raises:
            RunError: It cannot, with the reason.
        """
        if self.cannot_run is not None:
            raise RunError(f"@{self.request.site or '.'} cannot run on this machine: {self.cannot_run}")

    def report(self, call: LeafCall) -> dict[str, Any]:
        """Return the site, the backend and the operations of a call, as JSON data.

        Args:
            call: A call of this function.

        Returns:
            `site`, the fields of the call, and `backend`; `ran_by`, the operations by what runs them inside the
            function, if the engine reports it, without those that it folds or fuses into others; and `scratch`, the
            most bytes that a kernel allocates while it runs, if that is known.
        """
        facts = {"site": self.request.site, **call.describe(), "backend": self.backend.name}
        ran: dict[str, list[str]] = {}
        # Code that was not used yet is not compiled for a report.
        for op, name in zip(call.ops, self.compiled.ran_by() if self.code.is_compiled else (), strict=False):
            if name:
                ran.setdefault(name, []).append(op)
        scratch = {"scratch": max(self.scratch.values())} if self.scratch else {}
        return facts | ({"ran_by": ran} if ran else {}) | scratch

    def describe(self) -> dict[str, Any]:
        """Return the function's entry in the manifest of a saved program."""
        return {
            "site": self.request.site,
            "function": self.request.name,
            "ops": list(self.request.ops),
            "inputs": list(self.request.inputs),
            "outputs": list(self.request.outputs),
            "backend": self.backend.name,
            "version": self.backend.version(),
            "note": self.note,
            "tuned": [applied.to_json() for applied in self.tuned],
            "target": self.request.target.to_json(),
        }

    @classmethod
    def read(cls, facts: LeafFacts, files: Mapping[str, bytes], *, trust: bool) -> LeafFunction:
        """Return a function of a saved program.

        Native code is used only with trust, and only if the installed backend is of the version that wrote it.

        Args:
            facts: The function's entry in the manifest.
            files: Its files by their names in its folder.
            trust: Whether the author of the file may run code on this machine.

        Returns:
            The function, not yet compiled.

        Raises:
            ValueError: The file has no source for it, or a schedule or an option that is not safe to apply.
        """
        native = dict(files)
        source = native.pop("source.onnx", None)
        if source is None:
            raise ValueError(f"'leaves/{facts.function}/source.onnx' is missing")
        scratch = scratch_in(native)
        backend = backend_named(facts.backend)
        tuned = tuple(map(Applied.from_json, facts.tuned))
        # Schedules come from tuning logs, which people exchange: who wrote the program may not have written them, so
        # that they are checked with trust too.
        for applied in tuned:
            problem = trace_problem(applied.body) if applied.is_used and applied.format == TRACE_FORMAT else None
            if problem is not None:
                name = f"kernel {applied.what} in function {facts.function!r}"
                raise ValueError(f"the schedule of {name} may not be applied: {problem}")
        # The recorded schedules are replayed, so that a loaded program needs no tuning log to be compiled again.
        bodies = {(one.key, one.format): one.body for one in tuned if one.is_used}
        target = Target.from_json(facts.target)
        if not trust:
            _check_options(target, facts.function)
        request = CompileRequest(
            name=facts.function,
            source=source,
            site=facts.site,
            target=target,
            ops=facts.ops,
            inputs=facts.inputs,
            outputs=facts.outputs,
            native=native if trust and backend.version() == facts.version else {},
            schedules=FixedSchedules(bodies) if bodies else None,
            is_trusted=trust,
        )
        return cls(request, backend, facts.note, tuned, scratch=scratch)

    def check_source(self) -> None:
        """Check that an ONNX source has the signature in the manifest, and needs no other files.

        Raises:
            ValueError: It does not, or the model cannot be read; reading it may raise other errors too.
        """
        if self.request.is_relax:
            return
        model = decode_model(self.request.source, "it")
        # A saved program is one file: a reference to another one could make it read any file of this machine.
        tensor = next(external_tensors(model), None)
        if tensor is not None:
            raise ValueError(f"the data of tensor {tensor.name!r} is in another file")
        # ONNX allows an initializer among the inputs, where it is a default value and no parameter.
        initialized = {one.name for one in model.graph.initializer}
        inputs = [one.name for one in model.graph.input if one.name not in initialized]
        outputs = [one.name for one in model.graph.output]
        for what, found, stated in (
            ("inputs", inputs, self.request.inputs),
            ("outputs", outputs, output_names(self.request.outputs, self.request.inputs)),
        ):
            if found != list(stated):
                raise ValueError(f"its {what} are {shown(found)}, but the manifest has {shown(list(stated))}")


def _check_options(target: Target, function: str) -> None:
    """Raise `ValueError` for attributes in an untrusted file that only the user may state."""
    found = sorted(trusted_attributes(target))
    if found:
        what = found[0][0].partition(",")[0]
        raise ValueError(f"function {function!r} is compiled with {what}, which need trust")
