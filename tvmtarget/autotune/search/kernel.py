"""The state of one kernel while it is tuned: its search space, the process that measures it, and its costs."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tvmtarget.autotune.log.records import Baseline, Candidate, Measurement, Trial, Workload
from tvmtarget.autotune.search.candidates import Choices, Search, body_of
from tvmtarget.autotune.search.measuring import Outcome, Worker
from tvmtarget.backends.protocol import Space
from tvmtarget.target.tree import Target

__all__ = ["CONFIRMED", "TunedKernel"]

CONFIRMED = 3  # candidates of a kernel that are compared with its default at the end
FAST_ENOUGH = 0.98  # of the default's cost; a slower candidate is not worth confirming
PPB = 10**9


@dataclass
class TunedKernel:
    """A kernel on a leaf.

    Attributes:
        site: the path of the leaf.
        target: the leaf as kernels are tuned on it.
        worker: the process that measures the kernel.
        space: its choices.
        workload: its workload in the log.
        calls: how often a run of the program executes it.
        search: what proposes candidates.
        default: picoseconds of the default, 0 if unknown.
        trials: how many trials were made.
        pending: how many trials have begun.
        hints: candidates of the log to try first.
        hinted: the keys of those candidates.
        seconds: the duration of a trial.
        is_exhausted: whether no new candidate is found.
        is_changed: whether candidates were measured since the last confirmation.
        confirmed: by the key of a candidate, its cost, that of the default, and the digest of the trial.
    """

    site: str
    target: Target
    worker: Worker
    space: Space
    workload: Workload
    calls: int
    search: Search
    default: int = 0
    trials: int = 0
    pending: int = 0  # trials that have begun
    hints: list[Choices] = field(default_factory=list)
    hinted: frozenset[str] = frozenset()  # the keys of the candidates that were hints
    seconds: float = 0.0
    is_exhausted: bool = False
    is_changed: bool = False
    confirmed: dict[str, tuple[int, int, str]] = field(default_factory=dict)

    @property
    def default_choices(self) -> Choices:
        """The choices of the default."""
        return tuple(self.space.default)

    @property
    def name(self) -> str:
        """The operation and the shape of its result."""
        return self.space.kernel.label

    def measure(self, choices: Choices) -> Outcome:
        """Measure a candidate by turns with the default, and update the duration of a trial.

        Args:
            choices: the candidate.

        Returns:
            The outcome.
        """
        begin = time.monotonic()
        outcome = self.worker.measure(self.space.kernel.key, choices, beside=self.default_choices)
        if outcome.status == "ok":
            self.seconds = max(self.seconds / 2, time.monotonic() - begin)
        return outcome

    @property
    def good(self) -> list[Choices]:
        """The candidates that are worth comparing with the default, the best first."""
        ranked = self.search.best(CONFIRMED + 1)
        good = [choices for choices, ratio in ranked if ratio < FAST_ENOUGH * PPB and choices != self.default_choices]
        return good[:CONFIRMED]

    @property
    def gain(self) -> int:
        """Picoseconds of a run of the program that the best candidate would save."""
        return self.calls * (self.default - self.best)

    @property
    def is_confirmed(self) -> bool:
        """Whether every measured candidate was considered for a comparison with the default."""
        return not self.default or (bool(self.confirmed) and not self.is_changed)

    def baseline(self, costs: Sequence[int]) -> Baseline:
        """Return the cost of the default as a baseline of a trial.

        Args:
            costs: picoseconds of each repeat.

        Returns:
            The baseline, with the identity of the default.
        """
        return Baseline(costs=tuple(costs), identity=self.space.kernel.default or None)

    def is_beside_default(self, trial: Trial) -> bool:
        """Return whether a trial was compared with today's default.

        Args:
            trial: the trial.

        Returns:
            True if the identities are equal.
        """
        beside = trial.measured.baseline
        return beside is not None and (beside.identity or "") == self.space.kernel.default

    def report(self, choices: Choices, measured: Measurement) -> None:
        """Report the ratio of a candidate to the default: ratios are stable, times are not.

        Args:
            choices: the candidate.
            measured: its measurement.
        """
        self.search.report(choices, measured.ratio_ppb if measured.status == "ok" else None)

    def read(self, candidate: Candidate) -> Choices | None:
        """Return the choices of a candidate.

        Args:
            candidate: a candidate of the log.

        Returns:
            The choices, or a trace; None if the candidate does not belong to this kernel.
        """
        if candidate.format == self.worker.trace_format:
            return candidate.body if isinstance(candidate.body, str) else None
        blocks = candidate.body.get("blocks") if isinstance(candidate.body, dict) else None
        if candidate.format != self.worker.format or not isinstance(blocks, list | tuple):
            return None
        spaces = self.space.choices
        fits = len(blocks) == len(spaces) and all(
            isinstance(block, dict) and set(block) == set(names) and all(type(value) is int for value in block.values())
            for block, names in zip(blocks, spaces, strict=False)
        )
        return tuple(dict(block) for block in blocks) if fits else None

    def candidate(self, choices: Choices) -> Candidate:
        """Return choices as a candidate of the log.

        Args:
            choices: the choices, or a trace.

        Returns:
            The candidate.
        """
        format_ = self.worker.trace_format if isinstance(choices, str) else self.worker.format
        return Candidate(format=format_, body=body_of(choices))

    def propose(self) -> Choices | None:
        """Return the next candidate to measure: a legal hint, or one of the search.

        Returns:
            The candidate; None if no more are found.
        """
        while self.hints:
            hint = self.hints.pop(0)
            is_legal = isinstance(hint, str) or self.worker.legal(self.space.kernel.key, [hint])[0]
            if is_legal and not self.search.knows(hint):
                return hint
        return self.search.propose()

    @property
    def size(self) -> float:
        """An estimate of the work of this kernel in a run of the program, before it ran.

        For a product of matrices, the root of the product of all sizes is the number of its multiply-adds.
        """
        sizes = [size if isinstance(size, int) else 1 for shape in self.workload.shapes for size in shape]
        return self.calls * math.sqrt(math.prod(sizes))

    @property
    def best(self) -> int:
        """Picoseconds of the best candidate, relative to the default's."""
        found = self.search.best()
        return round(self.default * min(1.0, found[0][1] / PPB)) if found else self.default

    @property
    def urgency(self) -> float:
        """The time that a run spends in this kernel, divided by the trials that it had."""
        return self.calls * self.best / (2 + self.trials + self.pending)
