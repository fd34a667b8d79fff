"""What a lookup answers: the candidate, how good the match is, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tvmtarget.autotune.log.distance import NAME, Term
from tvmtarget.autotune.log.records import TIE, Candidate, Environment, Pin, Trial, Workload
from tvmtarget.errors import LogError, did_you_mean, raise_all
from tvmtarget.target.tree import Target

__all__ = ["TIERS", "Match", "Policy", "Tier", "Tried"]

Tier: TypeAlias = Literal["pin", "exact", "equal", "near", "workload-near", "default"]

TIERS: tuple[Tier, ...] = ("pin", "exact", "equal", "near", "workload-near", "default")

_PPB = 10**9
_MOST_TOLD = 50  # records that were not taken, in the text of an explanation


@dataclass(frozen=True)
class Policy:
    """How far a lookup may go.

    `max_distance` bounds `near` and `workload-near`; 0 leaves them out. A `strict` environment takes only what was
    measured under the versions of here. Costs within `tie_percent` of the best count as equal: the oldest is kept.
    `formats` name the formats whose candidates may serve other sizes, each with a function that says whether a
    candidate's body fits the sizes asked for.
    """

    max_distance: float = 8.0
    strict: bool = False
    tie_percent: int = TIE
    formats: Mapping[str, Callable[[object, tuple[tuple[object, ...], ...]], bool]] | None = None

    def __post_init__(self) -> None:
        """Refuse what bounds nothing."""
        given = {"max_distance": self.max_distance, "tie_percent": self.tie_percent}
        wrong = [name for name, value in given.items() if not (isinstance(value, int | float) and value >= 0)]
        raise_all(LogError, [f"{name} of a policy is 0 or more, not {getattr(self, name)!r}" for name in wrong])


@dataclass(frozen=True, slots=True)
class Tried:
    """A record, or a target with records, that was looked at: its tier, and why it was not taken."""

    tier: Tier
    what: str
    reason: str
    distance: float | None = None

    def __str__(self) -> str:
        far = "" if self.distance is None else f" at {self.distance:g}"
        return f"{self.tier} {self.what}{far}: {self.reason}"


@dataclass(frozen=True)
class Match:
    """The best that a log knows for a workload on a target.

    `source` is the target that it was measured on, `distance` the sum of the `terms` between the two. `stale` says
    what was installed otherwise there, `tried` what was looked at before. `is_default` where the record says that the
    default is as good.
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

    @property
    def candidate(self) -> Candidate | None:
        """What to use; None where that is the default of the level."""
        return None if self.record is None or self.is_default else self.record.candidate

    @property
    def ignored(self) -> tuple[str, ...]:
        """What is otherwise where the record was made, and does not matter; empty where all of it is in `terms`."""
        if self.source is None or self.terms:
            return ()
        return tuple(map(str, self.source.diff(self.target)))

    @property
    def ratio(self) -> float | None:
        """Its cost over that of the baseline where it was measured; less than one is faster."""
        found = self.record.measured.ratio_ppb if isinstance(self.record, Trial) else None
        return None if found is None else found / _PPB

    def require(self, tier: Tier) -> Match:
        """Return this match, or raise a `LogError` with the explanation if it is of a later tier."""
        if tier not in TIERS:
            raise LogError(f"unknown tier {tier!r}{did_you_mean(tier, TIERS, listing='there are')}")
        if TIERS.index(self.tier) > TIERS.index(tier):
            raise LogError(f"a match of tier {tier!r} is required:", *self.explain().splitlines())
        return self

    def explain(self) -> str:
        """Say what was found, how far it is, and why nothing nearer was taken."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        far = f", distance {self.distance:g} (limit {self.limit:g})" if self.tier in ("near", "workload-near") else ""
        yield f"{describe(self.workload)} on {self.target} -> {self.tier.upper()}{far}: {self._answer()}"
        yield from (f"  differs: {term}" for term in self.terms)
        if self.ignored:
            yield f"  ignored: {', '.join(self.ignored)}"
        yield from (f"  stale: {change}" for change in self.stale)
        yield from (f"  not taken: {tried}" for tried in self.tried[:_MOST_TOLD])
        if len(self.tried) > _MOST_TOLD:
            yield f"  not taken: {len(self.tried) - _MOST_TOLD} others, which the explanation as data tells"
        if self.is_default:
            yield "  note: no better than the default beside it, so the default of today is used"
        elif self.tier in ("near", "workload-near"):
            yield "  note: carried over, not tuned here; measure it against the default before you trust it"
        if self.tier == "default":
            yield "  note: nothing fits, so the default of the level is used"

    def _answer(self) -> str:
        match self.record:
            case None:
                return "no record"
            case Pin():
                return f"{self.record.digest}, pinned: {self.record.why}"
        cost = self.record.measured.cost
        ratio = self.ratio
        faster = f", {1 / ratio:.2f} times as fast as {_baseline(self.record)} there" if ratio else ""
        return f"{self.record.digest} on {self.source}, {cost} {self.record.measured.unit}{faster}"

    def to_json(self) -> dict[str, object]:
        """Return the same as data."""
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
    """Return a workload in a few words: its level, operator and sizes."""
    ops = workload.body.get("op") or workload.body.get("ops") or (workload.payload or {}).get("name") or "function"
    name = "+".join(sorted(ops)) if isinstance(ops, dict) else str(ops)
    sizes = "".join(f"[{','.join(map(str, shape))}]" for shape in workload.shapes[:4])
    more = "..." if len(workload.shapes) > 4 or len(name) > 60 else ""
    return f"{workload.level} {name[:60]}{sizes}{more}"


def changes(was: Environment, now: Environment) -> tuple[str, ...]:
    """Return what two environments say otherwise, name by name."""
    names = sorted({*was.body, *now.body} - {"host"})
    pairs = [(name, was.body.get(name), now.body.get(name)) for name in names]
    return tuple(f"{name} {before or 'none'} -> {after or 'none'}" for name, before, after in pairs if before != after)


def _baseline(trial: Trial) -> str:
    return repr(trial.measured.baseline.name) if trial.measured.baseline is not None else ""
