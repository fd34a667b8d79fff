"""The result of a lookup: the candidate, how well it matches, and why it was taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tvmtarget.autotune.log.distance import NAME, Term
from tvmtarget.autotune.log.records import TIE, Candidate, Environment, Pin, Trial, Workload
from tvmtarget.errors import LogError, raise_all
from tvmtarget.human_units import seconds_text
from tvmtarget.target.problems import known_word
from tvmtarget.target.tree import Target

__all__ = ["TIERS", "Match", "Policy", "Tier", "Tried"]

Tier: TypeAlias = Literal["pin", "exact", "equal", "near", "workload-near", "default"]

TIERS: tuple[Tier, ...] = ("pin", "exact", "equal", "near", "workload-near", "default")

_PPB = 10**9
_MAX_SHOWN = 50  # rejected records in the text of an explanation


@dataclass(frozen=True)
class Policy:
    """How far a lookup may go.

    Attributes:
        max_distance: the limit of the tiers `near` and `workload-near`; 0 excludes them.
        strict: take only what was measured in an environment like this one.
        tie_percent: costs within this of the best count as equal, and the oldest candidate wins.
        formats: the formats whose candidates may serve other sizes, each with a function of a candidate's body and the
            needed sizes that returns whether they fit.

    Raises:
        LogError: a limit is negative or no number, or another field has a value of another type.
    """

    max_distance: float = 8.0
    strict: bool = False
    tie_percent: int = TIE
    formats: Mapping[str, Callable[[object, tuple[tuple[object, ...], ...]], bool]] | None = None

    def __post_init__(self) -> None:
        """Reject limits that are negative or no numbers, and values of other types."""
        limits = {"max_distance": self.max_distance, "tie_percent": self.tie_percent}
        wrong = [name for name, value in limits.items() if not (isinstance(value, int | float) and value >= 0)]
        problems = [f"{name} of a policy is 0 or more, not {getattr(self, name)!r}" for name in wrong]
        if not isinstance(self.strict, bool):
            problems.append(f"strict of a policy is true or false, not {self.strict!r}")
        if self.formats is not None and not isinstance(self.formats, Mapping):
            problems.append(f"formats of a policy are functions by format, not {self.formats!r}")
        raise_all(LogError, problems)


@dataclass(frozen=True, slots=True)
class Tried:
    """A record, or a target with records, that a lookup considered and rejected.

    Attributes:
        tier: the tier that was searched.
        what: the digest of the record, or the target.
        reason: why it was rejected.
        distance: how far it is, None if that does not matter.
    """

    tier: Tier
    what: str
    reason: str
    distance: float | None = None

    def __str__(self) -> str:
        far = "" if self.distance is None else f" at {self.distance:g}"
        return f"{self.tier} {self.what}{far}: {self.reason}"


@dataclass(frozen=True)
class Match:
    """The best record of a log for a workload on a target.

    Attributes:
        tier: how well the record matches.
        workload: the workload of the lookup.
        target: the target of the lookup.
        record: the trial or pin, None in tier `default`.
        source: the target that the record was measured on.
        distance: the sum of the costs of `terms`.
        limit: the largest distance that the policy allows.
        terms: the differences between `source` and `target` that count.
        stale: the versions that differ between the record's environment and this one.
        tried: the records that were considered before and rejected.
        log: the URL of the layer with the record.
        is_default: whether the default is as good as the record, and is used instead.
        paths: paths in `target` by the paths that the candidate uses; empty if they are the same.
    """

    tier: Tier
    workload: Workload
    target: Target
    record: Trial | Pin | None = None
    source: Target | None = None
    distance: float = 0.0
    limit: float = 0.0
    terms: tuple[Term, ...] = ()
    stale: tuple[str, ...] = ()
    tried: tuple[Tried, ...] = ()
    log: str = ""
    is_default: bool = False
    paths: Mapping[str, str] = field(default_factory=dict)

    @property
    def candidate(self) -> Candidate | None:
        """The candidate to use; None for the default of the level."""
        return None if self.record is None or self.is_default else self.record.candidate

    @property
    def ignored(self) -> tuple[str, ...]:
        """The differences between `source` and `target` that do not count; empty if all are in `terms`."""
        if self.source is None or self.terms:
            return ()
        return tuple(map(str, self.source.diff(self.target)))

    @property
    def ratio(self) -> float | None:
        """The cost over that of the baseline where it was measured; less than one is faster."""
        found = self.record.measured.ratio_ppb if isinstance(self.record, Trial) else None
        return None if found is None else found / _PPB

    def require(self, tier: Tier) -> Match:
        """Require a tier.

        Args:
            tier: the last tier that is acceptable.

        Returns:
            This match.

        Raises:
            LogError: the match is of a later tier; the error has the explanation.
        """
        if TIERS.index(self.tier) > TIERS.index(known_word("tier", tier, TIERS, LogError)):
            raise LogError(f"a match of tier {tier!r} is required:", *self.explain().splitlines())
        return self

    def explain(self) -> str:
        """Explain which record was found, how far it is, and why no nearer one was taken.

        Returns:
            Several lines of text.
        """
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        far = f", distance {self.distance:g} (limit {self.limit:g})" if self.tier in ("near", "workload-near") else ""
        yield f"{describe(self.workload)} on {self.target} -> {self.tier.upper()}{far}: {self._answer()}"
        yield from (f"  differs: {term}" for term in self.terms)
        if self.ignored:
            yield f"  ignored: {', '.join(self.ignored)}"
        yield from (f"  stale: {change}" for change in self.stale)
        yield from (f"  not taken: {tried}" for tried in self.tried[:_MAX_SHOWN])
        if len(self.tried) > _MAX_SHOWN:
            yield f"  not taken: {len(self.tried) - _MAX_SHOWN} others, which the explanation as data lists"
        if self.is_default:
            yield "  note: no better than the default beside it, so the default of today is used"
        elif self.tier in ("near", "workload-near"):
            yield "  note: carried over, not tuned here; measure it against the default before you trust it"

    def _answer(self) -> str:
        match self.record:
            case None:
                return "no record fits, so the default is used"
            case Pin():
                return f"{self.record.digest}, pinned: {self.record.why}"
        measured = self.record.measured
        cost = f"{measured.cost} {measured.unit}"
        if measured.cost is not None and measured.unit == "ps":
            cost = seconds_text(measured.cost / 1e12)
        ratio = self.ratio
        faster = f", {1 / ratio:.2f} times as fast as {_baseline(self.record)} there" if ratio else ""
        return f"{self.record.digest} on {self.source}, {cost}{faster}"

    def to_json(self) -> dict[str, object]:
        """Return the explanation as data.

        Returns:
            An object of JSON.
        """
        candidate = self.candidate
        return {
            "tier": self.tier,
            "is_default": self.is_default,
            "workload": self.workload.key,
            "target": str(self.target),
            "record": None if self.record is None else self.record.digest,
            "candidate": None if candidate is None else {"format": candidate.format, "body": candidate.body},
            "source": None if self.source is None else str(self.source),
            "log": self.log,
            "ratio": self.ratio,
            "distance": {
                "name": NAME,
                "value": self.distance,
                "limit": self.limit,
                "terms": [{"what": one.what, "was": one.was, "now": one.now, "cost": one.cost} for one in self.terms],
            },
            "ignored": list(self.ignored),
            "stale": list(self.stale),
            "tried": [
                {"tier": one.tier, "what": one.what, "reason": one.reason, "distance": one.distance}
                for one in self.tried
            ],
        }


def describe(workload: Workload) -> str:
    """Return a short name of a workload.

    Args:
        workload: the workload.

    Returns:
        Its level, operators and sizes.
    """
    ops = workload.body.get("op") or workload.body.get("ops") or (workload.payload or {}).get("name") or "function"
    name = "+".join(sorted(ops)) if isinstance(ops, dict) else str(ops)
    sizes = "".join(f"[{','.join(map(str, shape))}]" for shape in workload.shapes[:4])
    more = "..." if len(workload.shapes) > 4 or len(name) > 60 else ""
    return f"{workload.level} {name[:60]}{sizes}{more}"


def changes(was: Environment, now: Environment) -> tuple[str, ...]:
    """List the differences between two environments.

    Args:
        was: the environment of a record.
        now: this environment.

    Returns:
        `NAME OLD -> NEW` for each difference but that of the machine.
    """
    names = sorted({*was.body, *now.body} - {"host"})
    pairs = [(name, was.body.get(name), now.body.get(name)) for name in names]
    return tuple(f"{name} {before or 'none'} -> {after or 'none'}" for name, before, after in pairs if before != after)


def _baseline(trial: Trial) -> str:
    return repr(trial.measured.baseline.name) if trial.measured.baseline is not None else ""
