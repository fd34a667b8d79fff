"""Measurement of the kernels of one leaf function, in a process of their own (`kernel_worker.py`)."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from tvmtarget.autotune.log.records import Environment, Status
from tvmtarget.autotune.search.candidates import as_json
from tvmtarget.autotune.search.process import USUAL_LIMITS, Limits, LostError, Process
from tvmtarget.backends.protocol import CompileRequest, Kernel, Space
from tvmtarget.errors import BackendError, RunError

__all__ = ["Choices", "Outcome", "Worker"]

Choices = Sequence[Mapping[str, int]] | str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of measuring a candidate.

    Attributes:
        status: how it ended.
        costs: picoseconds of each repeat.
        beside: picoseconds of the default, by turns.
        why: why it failed.
        env: where it was measured, None for here.
    """

    status: Status
    costs: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()
    why: str = ""
    env: Environment | None = None

    @property
    def is_plain(self) -> bool:
        """Whether all fields have the declared types, which an outcome of another machine need not have."""
        numbers = isinstance(self.costs, tuple) and isinstance(self.beside, tuple)
        is_known = self.status in get_args(Status) and isinstance(self.why, str)
        is_placed = self.env is None or type(self.env) is Environment
        return is_known and is_placed and numbers and all(type(cost) is int for cost in (*self.costs, *self.beside))


class Worker(Process):
    """A process that holds one leaf function.

    Args:
        backend: the name of the backend.
        part: the leaf function.
        limits: the time and the memory that a candidate may take.

    Attributes:
        format: the format of candidates that are choices.
        trace_format: the format of candidates that are traces.
    """

    module = "tvmtarget.autotune.search.kernel_worker"

    def __init__(self, backend: str, part: CompileRequest, limits: Limits = USUAL_LIMITS) -> None:
        super().__init__(limits)
        self._backend = backend
        self._part = part
        self.format = ""
        self.trace_format = ""

    def spaces(self) -> tuple[Space, ...]:
        """Return the kernels of the leaf function.

        Returns:
            Their choices.

        Raises:
            BackendError: the function cannot be opened.
            LostError: the time is up.
        """
        try:
            answer = self._open()
        except LostError as error:
            if error.cause == "cancelled":
                raise
            raise BackendError(f"function {self._part.name!r} cannot be prepared for tuning: {error}") from error
        return tuple(
            Space(
                Kernel(
                    flat["name"],
                    flat["body"],
                    flat["text"],
                    flat["calls"],
                    default=flat["identity"],
                    equivalents=flat["equivalents"],
                ),
                tuple({name: tuple(values) for name, values in block.items()} for block in flat["choices"]),
                tuple(flat["default"]),
            )
            for flat in answer["spaces"]
        )

    def legal(self, key: str, candidates: Sequence[Choices]) -> list[bool]:
        """Return which candidates are legal for a kernel.

        Args:
            key: the key of the kernel.
            candidates: choices, or traces.

        Returns:
            A flag for each candidate.
        """
        if not candidates:
            return []
        return list(self._query({"do": "legal", "key": key, "candidates": list(map(as_json, candidates))})["legal"])

    def propose(self, key: str, known: Sequence[tuple[str, int]], count: int, seed: int) -> list[str]:
        """Return traces to measure for a kernel.

        Args:
            key: the key of the kernel.
            known: measured traces with their costs.
            count: how many traces to return.
            seed: makes the same proposals again.

        Returns:
            Traces; none if MetaSchedule cannot make a space of the kernel.
        """
        return list(self._query({"do": "propose", "key": key, "known": known, "count": count, "seed": seed})["traces"])

    def program(self, key: str) -> dict[str, object]:
        """Return a kernel in the form of other tools, which can read its traces.

        Args:
            key: the key of the kernel.

        Returns:
            An object of JSON.
        """
        return dict(self._query({"do": "program", "key": key})["program"])

    def measure(self, key: str, choices: Choices, repeats: int = 3, beside: Choices | None = None) -> Outcome:
        """Build, check and time a candidate, once more if the process is killed from outside.

        Args:
            key: the key of the kernel.
            choices: the candidate.
            repeats: how often to time it.
            beside: a candidate to time by turns with it.

        Returns:
            The outcome.
        """
        other = None if beside is None else as_json(beside)
        request = {"do": "measure", "key": key, "choices": as_json(choices), "beside": other, "repeats": repeats}
        for _ in range(2):
            try:
                answer = self._request(request)
            except LostError as error:
                if error.cause == "infra" or (error.phase == "open" and error.cause != "cancelled"):
                    continue
                return Outcome(error.status, why=str(error))
            except BackendError as error:
                return Outcome("infra_error", why=error.problems[0])
            status: Status = "infra_error" if answer["status"] == "failed" else answer["status"]
            return Outcome(
                status, tuple(answer.get("costs", ())), tuple(answer.get("beside", ())), answer.get("why", "")
            )
        return Outcome("infra_error", why="the measuring process was lost twice, not by what it measured")

    def compare(self, key: str, candidates: Sequence[Choices], rounds: int) -> list[Outcome]:
        """Time candidates by turns.

        Args:
            key: the key of the kernel.
            candidates: the candidates.
            rounds: the number of turns.

        Returns:
            An outcome for each; none if the process was lost.
        """
        listed = list(map(as_json, candidates))
        try:
            answer = self._request({"do": "compare", "key": key, "candidates": listed, "rounds": rounds})
        except (BackendError, LostError):
            return []
        return [Outcome("ok", tuple(costs)) for costs in answer.get("costs", ())]

    def _query(self, request: Mapping[str, object]) -> dict[str, Any]:
        """Send a request that involves no candidate, with the limit of opening, once more if the process is lost."""
        try:
            answer = self._request(request, self._limits.open)
        except LostError as first:
            if first.cause == "cancelled":
                raise
            try:
                answer = self._request(request, self._limits.open)
            except LostError as error:
                raise RunError(f"the measuring process was lost twice: {error}") from error
        if answer["status"] != "ok":
            raise RunError(f"the measuring process refused: {answer['why']}")
        return answer

    def _open(self) -> dict[str, Any]:
        with tempfile.TemporaryFile() as source:  # without a name, so that a killed process leaves none behind
            source.write(self._part.source)
            source.seek(0)
            part = {
                "name": self._part.name,
                "source": source.fileno(),
                "site": self._part.site,
                "target": self._part.target.to_json(),
            }
            opening = {"backend": self._backend, "part": part}
            answer = self._launch(opening, [source], self._limits.open, self._part.target)
        if answer["status"] != "ok":
            raise BackendError(f"function {self._part.name!r} cannot be tuned: {answer['why']}")
        self.format, self.trace_format = answer["format"], answer["trace_format"]
        return answer
