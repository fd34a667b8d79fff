"""Predict the run time of a partitioned program: the sum of its operations, calls and copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from tvmtarget.ir.module import IRModule
from tvmtarget.partition.costs.costs import Unit
from tvmtarget.partition.costs.estimate import MICROSECOND, Estimate, Estimates, cost_text
from tvmtarget.partition.outline.outlining import Outlined

__all__ = ["Prediction", "boundary_times", "predict"]

MAX_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted times in picoseconds, of everything whose time is known.

    Attributes:
        ops: operations, and functions that were measured as a whole.
        launches: calls of leaf functions.
        copies: copies between memories.
        unknown: operations and copies whose time is not known, each with the reason.
        priced: number of operations, measured functions and copies, whether their time is known or not.
        assumed: defaults that were used because neither costs nor target state a number.
        lower_bound: no assignment of sites takes less than this; None if no bound is known.
        boundary: values that enter functions from another site, or leave them (`SiteCost.boundary_bw`).
        unused: costs that match nothing in the program or the target.
        unit: `us`, or `uJ` where all times are energies in picojoules.
    """

    ops: int
    launches: int
    copies: int
    unknown: tuple[str, ...]
    priced: int
    assumed: tuple[str, ...] = ()
    lower_bound: int | None = None
    boundary: int = 0
    unused: tuple[str, ...] = ()
    unit: Unit = "us"

    @property
    def total(self) -> int:
        """Sum of all known times, as if nothing ran in parallel."""
        return self.ops + self.launches + self.copies + self.boundary

    @property
    def is_mostly_unknown(self) -> bool:
        """Whether the times of more than half of the operations and copies are unknown."""
        return 2 * len(self.unknown) > self.priced

    @property
    def warning(self) -> str:
        """Warning for the first line of a summary if most times are unknown, else empty."""
        counts = f"{len(self.unknown)} of {self.priced} times"
        return f"prediction mostly unknown ({counts})" if self.is_mostly_unknown else ""

    def knows_all_of(self, other: Prediction) -> bool:
        """Check whether this prediction knows every time that another one knows.

        Args:
            other: a prediction for the same program.

        Returns:
            True if the totals of the two are comparable: nothing is unknown here that is known there.
        """
        return set(self.unknown) <= set(other.unknown)

    def lines(self) -> Iterator[str]:
        """Print the prediction.

        Yields:
            The lines, indented by two spaces: the sum, the gap to the lower bound, then what is unknown.
        """
        named = {"ops": self.ops, "calls": self.launches, "copies": self.copies}
        named |= {"passing": self.boundary} if self.boundary else {}
        parts = ", ".join(f"{name} {cost_text(cost, self.unit)}" for name, cost in named.items())
        beside = f", and {len(self.unknown)} unknown" if self.unknown else ""
        yield f"  predicted: {cost_text(self.total, self.unit)}{beside} ({parts})"
        if self.lower_bound is not None and not self.unknown:
            gap = 100 * (self.total - self.lower_bound) / self.total if self.total else 0.0
            yield f"  no choice of sites takes less than {cost_text(self.lower_bound, self.unit)}: gap {gap:.1f} %"
        for unknown in self.unknown[:MAX_SHOWN]:
            yield f"  unknown: {unknown}"
        if len(self.unknown) > MAX_SHOWN:
            yield f"  ... and {len(self.unknown) - MAX_SHOWN} more unknown"
        for assumed in self.assumed:
            yield f"  not known: {assumed}"
        for unused in self.unused:
            yield f"  unused: {unused}"

    def to_json(self) -> dict[str, object]:
        """Return the prediction as JSON data.

        Returns:
            Times in microseconds, or energies in microjoules with the `unit`. The keys `least` (lower bound) and
            `passing` (boundary), fixed by the file format, are left out where there is nothing to say.
        """
        flat: dict[str, object] = {"unit": self.unit} if self.unit != "us" else {}
        flat |= {
            "total": self.total / MICROSECOND,
            "ops": self.ops / MICROSECOND,
            "launches": self.launches / MICROSECOND,
            "copies": self.copies / MICROSECOND,
        }
        if self.boundary:
            flat["passing"] = self.boundary / MICROSECOND
        if self.lower_bound is not None:
            flat["least"] = self.lower_bound / MICROSECOND
        if self.warning:
            flat["warning"] = self.warning
        flat |= {"unknown": list(self.unknown), "assumed": list(self.assumed)}
        return flat | ({"unused": list(self.unused)} if self.unused else {})


def predict(estimates: Estimates, outlined: Outlined, module: IRModule, lower_bound: int | None = None) -> Prediction:
    """Add up the times of the functions and copies of a partitioned program.

    Args:
        estimates: times of operations, calls and copies on the target.
        outlined: the functions and copies of the program, with how often each is expected to run.
        module: the module that holds the functions, to match whole-function measurements by structure.
        lower_bound: picoseconds that no assignment of sites goes below, None if unknown.

    Returns:
        The prediction. A function that was measured as a whole takes that time, and its operations do not count;
        the lower bound, which is a sum over operations, then does not apply.
    """
    topology, body = estimates.program.topology, estimates.program.body
    ops = launches = copies = Fraction(0)
    # What runs once is added up as integers, which is far faster.
    ops_once = launches_once = copies_once = 0
    unknown: list[str] = []
    priced = 0
    signatures = estimates.program.signatures
    known: dict[str, dict[int, Estimate]] = {}  # by site and signature
    # Fractions keep sums exact in any order of operations: bodies may run a fractional number of times.
    for subgraph in outlined.subgraphs:
        site = topology[subgraph.site]
        measured = estimates.subgraph(module, subgraph.function, site)
        if measured is not None:
            ops += measured * subgraph.runs
            priced += 1
            lower_bound = None
            continue
        priced += len(subgraph.calls)
        is_once = subgraph.runs == 1
        if is_once:
            launches_once += estimates.launch(site)
        else:
            launches += estimates.launch(site) * subgraph.runs
        once, times = 0, known.setdefault(subgraph.site, {})
        for index in subgraph.calls:
            number = signatures[index]
            estimate = times.get(number) or times.setdefault(number, estimates.time(index, site))
            if estimate.time is not None:
                once += estimate.time
            else:
                unknown.append(f"op {body[index].source!r} on @{subgraph.site or '.'}: {estimate.reason}")
        if is_once:
            ops_once += once
        else:
            ops += once * subgraph.runs
    for copy in outlined.copies:
        time = estimates.copy(copy.type, copy.src, copy.dst)
        if copy.runs == 1:
            copies_once += time or 0
        else:
            copies += (time or 0) * copy.runs
        if time is None and copy.runs:
            is_sized = estimates.nbytes(copy.type) is not None
            reason = "no link says what that takes" if is_sized else "its size is not known"
            unknown.append(f"copy of {copy.value!r} from {copy.src} to {copy.dst}: {reason}")
    found = Prediction(
        ops=round(ops + ops_once),
        launches=round(launches + launches_once),
        copies=round(copies + copies_once),
        unknown=tuple(unknown),
        priced=priced + sum(1 for copy in outlined.copies if copy.runs),
        assumed=tuple(estimates.assumptions()),
        unused=tuple(estimates.unused()),
        boundary=round(sum(boundary_times(estimates, outlined))),
        unit=estimates.costs.unit,
    )
    return found if lower_bound is None else replace(found, lower_bound=min(lower_bound, found.total))


def boundary_times(estimates: Estimates, outlined: Outlined) -> list[Fraction]:
    """Return the time for values to leave functions, and to enter those of other sites.

    It counts once per value and reading site.

    Args:
        estimates: rates of the sites.
        outlined: the functions of the program, with how often each is expected to run.

    Returns:
        Picoseconds by subgraph: for what it computes to leave its site, and for what it reads to enter it. A value that
        several subgraphs of a site read enters the last of them.
    """
    topology, body = estimates.program.topology, estimates.program.body
    found = [Fraction(0)] * len(outlined.subgraphs)
    rates = {one.site: Fraction(estimates.boundary_rate(topology[one.site])) for one in outlined.subgraphs}
    if not any(rates.values()):
        return found
    types = {param.name: param.type for param in estimates.program.function.params}
    producers: dict[str, int] = {}
    for number, subgraph in enumerate(outlined.subgraphs):
        outputs = [output for index in subgraph.calls for output in body[index].outputs]
        types |= {output.name: output.type for output in outputs}
        producers |= {output.name: number for output in outputs}
    sites = {name: outlined.subgraphs[number].site for name, number in producers.items()}
    # Results of the program leave for the driver, which has no boundary of its own: reader None.
    moves: dict[tuple[str, str | None], tuple[Fraction, int | None]] = dict.fromkeys(
        ((name, None) for name in estimates.program.function.results if name in sites), (Fraction(1), None)
    )
    for number, subgraph in enumerate(outlined.subgraphs):
        read = {name for index in subgraph.calls for name in body[index].uses()}
        moves |= {
            (name, subgraph.site): (subgraph.runs, number)
            for name in read
            if sites.get(name) != subgraph.site and name in types
        }
    for (name, _), (runs, reader) in moves.items():
        nbytes = runs * (estimates.nbytes(types[name]) or 0)
        for end in (producers.get(name), reader):
            if end is not None:
                found[end] += nbytes * rates[outlined.subgraphs[end].site]
    return found
