"""What a divided program takes, by the estimates: operations, calls and copies one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from tvmtarget.ir.module import IRModule
from tvmtarget.partition.costs.estimate import Estimates, microseconds
from tvmtarget.partition.outline.outlining import Outlined

__all__ = ["Prediction", "predict"]

MAX_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Prediction:
    """Times in picoseconds, of what is known; `unknown` lists what is not, and `assumed` what defaults stand for.

    `priced` is how many operations, measured functions and copies have a time, known or not. `least` is what no choice
    of sites can go below, None where nothing says so. `passing` is what it takes values to enter functions from another
    site and to leave them. `unused` lists costs that match nothing.
    """

    ops: int
    launches: int
    copies: int
    unknown: tuple[str, ...]
    priced: int
    assumed: tuple[str, ...] = ()
    least: int | None = None
    passing: int = 0
    unused: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """All of it, one after the other."""
        return self.ops + self.launches + self.copies + self.passing

    @property
    def is_mostly_unknown(self) -> bool:
        """Whether the times of more than half of the operations and copies are unknown."""
        return 2 * len(self.unknown) > self.priced

    @property
    def warning(self) -> str:
        """What the first line of a summary says of a prediction that is mostly unknown; empty for others."""
        counts = f"{len(self.unknown)} of {self.priced} times"
        return f"prediction mostly unknown ({counts})" if self.is_mostly_unknown else ""

    def knows_all_of(self, other: Prediction) -> bool:
        """Whether nothing is unknown here that is known in another prediction, so that their times compare."""
        return set(self.unknown) <= set(other.unknown)

    def lines(self) -> Iterator[str]:
        """Yield the prediction line by line."""
        parts = f"ops {microseconds(self.ops)}, calls {microseconds(self.launches)}, copies {microseconds(self.copies)}"
        parts += f", passing {microseconds(self.passing)}" if self.passing else ""
        beside = f", and {len(self.unknown)} unknown" if self.unknown else ""
        yield f"  predicted: {microseconds(self.total)}{beside} ({parts})"
        if self.least is not None and not self.unknown:
            gap = 100 * (self.total - self.least) / self.total if self.total else 0.0
            yield f"  no choice of sites takes less than {microseconds(self.least)}: gap {gap:.1f} %"
        for unknown in self.unknown[:MAX_SHOWN]:
            yield f"  unknown: {unknown}"
        if len(self.unknown) > MAX_SHOWN:
            yield f"  ... and {len(self.unknown) - MAX_SHOWN} more unknown"
        for assumed in self.assumed:
            yield f"  not known: {assumed}"
        for unused in self.unused:
            yield f"  unused: {unused}"

    def to_json(self) -> dict[str, object]:
        """Return the prediction as data, in microseconds."""
        names = ("total", "ops", "launches", "copies", *(["passing"] if self.passing else ()))
        times = {name: getattr(self, name) / 10**6 for name in names}
        least = {} if self.least is None else {"least": self.least / 10**6}
        warning = {"warning": self.warning} if self.warning else {}
        unused = {"unused": list(self.unused)} if self.unused else {}
        return times | least | warning | {"unknown": list(self.unknown), "assumed": list(self.assumed)} | unused


def predict(estimates: Estimates, outlined: Outlined, module: IRModule, least: int | None = None) -> Prediction:
    """Add up what the functions and copies of a divided program take, as often as they are expected to run.

    A function that was measured whole takes that, whatever is said of its operations.
    """
    topology, body = estimates.program.topology, estimates.program.body
    ops = launches = copies = Fraction(0)
    unknown: list[str] = []
    priced = 0
    for subgraph in outlined.subgraphs:
        site = topology[subgraph.site]
        measured = estimates.subgraph(module, subgraph.function, site)
        if measured is not None:
            ops += measured * subgraph.runs
            priced += 1
            least = None
            continue
        priced += len(subgraph.calls)
        launches += estimates.launch(site) * subgraph.runs
        for index in subgraph.calls:
            estimate = estimates.time(index, site)
            ops += (estimate.time or 0) * subgraph.runs
            if estimate.time is None:
                unknown.append(f"op {body[index].source!r} on @{subgraph.site or '.'}: {estimate.why}")
    for copy in outlined.copies:
        time = estimates.copy(copy.type, copy.src, copy.dst)
        copies += (time or 0) * copy.runs
        if time is None and copy.runs:
            is_sized = estimates.nbytes(copy.type) is not None
            why = "no link says what that takes" if is_sized else "its size is not known"
            unknown.append(f"copy of {copy.value!r} from {copy.src} to {copy.dst}: {why}")
    found = Prediction(
        ops=round(ops),
        launches=round(launches),
        copies=round(copies),
        unknown=tuple(unknown),
        priced=priced + sum(1 for copy in outlined.copies if copy.runs),
        assumed=tuple(estimates.assumed()),
        unused=tuple(estimates.unused()),
        passing=round(_passing(estimates, outlined)),
    )
    return found if least is None else replace(found, least=min(least, found.total))


def _passing(estimates: Estimates, outlined: Outlined) -> Fraction:
    """Return what it takes values to pass between sites, once for each value and site, as often as they do."""
    topology, body = estimates.program.topology, estimates.program.body
    rates = {subgraph.site: Fraction(estimates.passing(topology[subgraph.site])) for subgraph in outlined.subgraphs}
    if not any(rates.values()):
        return Fraction(0)
    types = {param.name: param.type for param in estimates.program.function.params}
    sites: dict[str, str] = {}
    for subgraph in outlined.subgraphs:
        made = [output for index in subgraph.calls for output in body[index].outputs]
        types |= {output.name: output.type for output in made}
        sites |= {output.name: subgraph.site for output in made}
    moves: dict[tuple[str, str | None], Fraction] = dict.fromkeys(
        ((name, None) for name in estimates.program.function.results if name in sites), Fraction(1)
    )
    for subgraph in outlined.subgraphs:
        read = {name for index in subgraph.calls for name in body[index].uses()}
        moves |= {
            (name, subgraph.site): subgraph.runs for name in read if sites.get(name) != subgraph.site and name in types
        }
    return sum(
        (
            runs * (estimates.nbytes(types[name]) or 0) * (rates.get(sites.get(name, ""), 0) + rates.get(site or "", 0))
            for (name, site), runs in moves.items()
        ),
        Fraction(0),
    )
