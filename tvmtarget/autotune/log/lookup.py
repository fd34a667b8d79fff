"""The lookup: tier by tier over all layers, the same answer for the same records, and always an answer.

    pin            what people chose for this workload on this target
    exact          measured on an equal target
    equal          measured on one with the same tuning key: what differs does not matter at this level
    near           kernels only: measured on a device of the same family, and legal here; the nearest first. Or on this
                   one, but compared with a default that is not today's
    workload-near  the same for other sizes, for formats that allow it
    default        nothing

Costs on different targets are never compared: the nearest target is chosen first, then the best on it. A tier is
searched in all layers before the next one, and a layer before wins where costs are as good as equal. Where the best
that was found is as good as the default beside it, that is the answer: the default of today, whatever it was then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple, TypeAlias

from tvmtarget.autotune.log.distance import (
    WEIGHTS,
    Device,
    Term,
    device_of,
    distance,
    family_of,
    how_far,
    least_needs,
    shape_distance,
    terms_between,
)
from tvmtarget.autotune.log.index import RankedCandidate
from tvmtarget.autotune.log.lines import parse_record
from tvmtarget.autotune.log.match import Match, Policy, Tier, Tried, changes
from tvmtarget.autotune.log.records import Candidate, Environment, Level, Pin, Record, TargetRecord, Trial, Workload
from tvmtarget.autotune.log.store import Store
from tvmtarget.errors import LogError, TvmTargetError
from tvmtarget.target.constraints.reasons import Reason, Truth
from tvmtarget.target.tree import Target

__all__ = ["Lookup", "Memory"]

# How many of the best candidates of one target are read: nearly always the first is legal, and no other as good.
_SHORTLIST = (2, 16, 128, 1024, 2**62)
_MOST_OUTDATED = 8  # candidates, measured beside a default that is not today's, that are looked at


_Age: TypeAlias = tuple[int, int, int, str]


class _Ranked(NamedTuple):
    """A choice in a layer."""

    choice: RankedCandidate
    layer: int

    def rank(self) -> tuple[int, int, int, str]:
        return self.choice.trust, self.choice.score, self.layer, self.choice.digest

    def age(self) -> _Age:
        return self.layer, self.choice.ts, self.choice.score, self.choice.digest


@dataclass
class Memory:
    """What lookups in some layers have read or reckoned, by key or digest, and need again."""

    records: dict[str, Record] = field(default_factory=dict)
    targets: dict[str, Target] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    keys: dict[tuple[str, Level], str] = field(default_factory=dict)
    families: dict[str, str] = field(default_factory=dict)
    distances: dict[str, dict[str, float]] = field(default_factory=dict)

    def key(self, target: Target, digest: str, level: Level) -> str:
        """Return the tuning key of a target, which takes far longer to compute than to look up."""
        if (digest, level) not in self.keys:
            self.keys[digest, level] = target.tuning_key(level)
        return self.keys[digest, level]

    def family(self, target: Target, digest: str) -> str:
        """Return the family of a target."""
        if digest not in self.families:
            self.families[digest] = family_of(target)
        return self.families[digest]


@dataclass
class Lookup:
    """One question to some layers; `default` is the identity of today's default, None where it is not asked for.

    `refuses` says why whoever asks cannot use a candidate, None if that is not so.
    """

    stores: Sequence[Store]
    asked: Workload
    target: Target
    here: Environment
    policy: Policy
    default: str | None
    memory: Memory
    refuses: Callable[[Candidate], str | None] | None = None
    tried: list[Tried] = field(default_factory=list)

    def find(self) -> Match:
        """Return the best match; the last tier always has one."""
        match = self._pinned() or self._measured(self.asked, 0.0) or self._of_other_sizes() or self._match("default")
        is_default = match.ratio is not None and self._is_default(match.record, match.ratio)
        return replace(match, tried=tuple(self.tried), is_default=is_default) if self.tried or is_default else match

    def top(self, count: int) -> list[Match]:
        """Return the best of the target itself and of those equal to it, the best first."""
        found: dict[bytes, Match] = {}
        trials = self._in_order("exact", self.asked, sorted(self._equal), tie=0)
        while len(found) < count and (following := next(trials, None)) is not None:
            one, trial = following
            tier: Tier = "exact" if trial.target == self._digest else "equal"
            if one.choice.candidate not in found and self._is_fit(tier, trial):
                found[one.choice.candidate] = self._match(tier, trial, one)
        return list(found.values())

    def trials(self) -> list[Trial]:
        """Return all trials on the target, then those on targets equal to it; a damaged line is left out."""
        found: dict[str, Trial] = {}
        for name in (self._digest, *sorted(self._equal - {self._digest})):
            for text in (text for store in self.stores for text in store.trials(self.asked.key, name)):
                with suppress(LogError):
                    record = parse_record(text)
                    if isinstance(record, Trial):
                        found.setdefault(record.digest, record)
        return list(found.values())

    @cached_property
    def _digest(self) -> str:
        return self.target.digest

    @cached_property
    def _equal(self) -> frozenset[str]:
        """The digests of the targets with the same key, this one's among them."""
        level = self.asked.level
        key = self.memory.key(self.target, self._digest, level)
        return frozenset({name for store in self.stores for name in store.targets_by_key(level, key)} | {self._digest})

    # The tiers

    def _pinned(self) -> Match | None:
        for store in self.stores:
            for pin in store.pins(self.asked.key):
                if pin.target in self._equal and self._is_of_use("pin", pin):
                    return replace(self._match("pin"), record=pin, source=self._target(pin.target), log=store.url)
        return None

    def _measured(self, workload: Workload, offset: float) -> Match | None:
        exact = self._best("exact", workload, [self._digest])
        same = exact or self._best("equal", workload, sorted(self._equal - {self._digest}))
        return same or self._near(workload, offset)

    def _best(self, tier: Tier, workload: Workload, targets: Sequence[str]) -> Match | None:
        for one, trial in self._in_order(tier, workload, targets):
            if self._is_fit(tier, trial):
                return self._match(tier, trial, one)
        return None

    def _near(self, workload: Workload, offset: float) -> Match | None:
        outdated = self._outdated(workload)
        if workload.level != "kernel" or self.policy.max_distance <= offset:
            for one, _ in outdated[:1]:
                self._reject("near", one.choice.digest, "measured beside a default that is not today's", None)
            return None
        family = self.memory.family(self.target, self._digest)
        names = {name for store in self.stores for name in store.targets_by_family("kernel", family, workload.key)}
        names -= self._equal
        known = self._distances(names)
        places = [(known[name] + offset, name) for name in names]
        places += [(WEIGHTS["default"], "")] * bool(outdated)
        for far, name in sorted(places):
            if far > self.policy.max_distance:
                what = self._text(name) if name else outdated[0][0].choice.digest
                self._reject("near", what, f"beyond the limit of {self.policy.max_distance:g}", far)
                break
            for one, trial in self._in_order("near", workload, [name]) if name else outdated:
                if self._is_fit("near", trial, far):
                    terms = self._terms(name) if name else (self._of_then(one),)
                    return replace(self._match("near", trial, one), distance=far, terms=terms)
        return None

    def _outdated(self, workload: Workload) -> list[tuple[_Ranked, Trial]]:
        """Return the best that was measured on this target or an equal one beside a default that is not today's."""
        if self.default is None or self.policy.strict:
            return []
        return [*islice(self._in_order("near", workload, sorted(self._equal), is_outdated=True), _MOST_OUTDATED)]

    def _of_then(self, one: _Ranked) -> Term:
        return Term("default", one.choice.default or "unknown", self.default or "", WEIGHTS["default"])

    def _is_default(self, record: Record | None, ratio: float) -> bool:
        """Whether a trial is as good as the default beside it, and no better."""
        baseline = record.measured.baseline if isinstance(record, Trial) else None
        is_default = baseline is not None and baseline.default is not None
        return is_default and 100 * ratio > 100 - self.policy.tie_percent

    def _of_other_sizes(self) -> Match | None:
        if not self.policy.formats:
            return None
        keys = {key for store in self.stores for key in store.workloads_by_family(self.asked.family)} - {self.asked.key}
        others = [found for key in sorted(keys) if isinstance(found := self._body(key), Workload)]
        far = [(d, other) for other in others if (d := shape_distance(other.shapes, self.asked.shapes)) is not None]
        for offset, other in sorted(far, key=lambda pair: (pair[0], pair[1].key)):
            match = self._measured(other, offset) if offset <= self.policy.max_distance else None
            if match is not None:
                terms = (Term("sizes", sizes(other), sizes(self.asked), offset), *match.terms)
                return replace(match, tier="workload-near", distance=distance(terms), terms=terms)
        return None

    # The candidates of one target

    def _choices(self, workload: Workload, store: tuple[int, Store], target: str, limit: int) -> list[_Ranked]:
        return [_Ranked(choice, store[0]) for choice in store[1].best(workload.key, target, limit)]

    def _in_order(
        self,
        tier: Tier,
        workload: Workload,
        targets: Sequence[str],
        *,
        is_outdated: bool = False,
        tie: int | None = None,
    ) -> Iterator[tuple[_Ranked, Trial]]:
        """Yield the best first; of those as good as the best, within `tie` percent, the one that was known first.

        They are those that were measured beside the default of today, or beside another one, or beside none.
        """
        is_dated = self.default is not None and workload.key == self.asked.key and self._equal.issuperset(targets)
        tie = self.policy.tie_percent if tie is None else tie
        seen: set[str] = set()
        for limit in _SHORTLIST:
            stores = list(enumerate(self.stores))
            lists = [self._choices(workload, store, name, limit) for name in targets for store in stores]
            ends = [some[-1].choice for some in lists if len(some) == limit]
            last = min(((end.trust, end.score) for end in ends), default=None)
            found = [one for some in lists for one in some if one.choice.digest not in seen and self._is_here(one)]
            if is_dated:
                found = [one for one in found if self._is_outdated(one) == is_outdated]
            for one in _oldest_first(sorted(found, key=_Ranked.rank), tie, last):
                if one.choice.digest not in seen:
                    seen.add(one.choice.digest)
                    if (trial := self._trial(tier, one)) is not None:
                        yield one, trial
            if not ends:
                return

    def _is_here(self, one: _Ranked) -> bool:
        return not self.policy.strict or one.choice.env == self.here.key

    def _is_outdated(self, one: _Ranked) -> bool:
        return one.choice.default not in (None, self.default)

    def _trial(self, tier: Tier, one: _Ranked) -> Trial | None:
        """Return the trial of a choice; None, which is told, where its line was damaged."""
        url, digest = self.stores[one.layer].url, one.choice.digest
        try:
            found = self.stores[one.layer].get(digest)
        except LogError as error:
            found, why = None, str(error)
        else:
            why = "its line is gone"
        if isinstance(found, Trial):
            return found
        self._reject(tier, digest, f"{why}; repair {url!r}", None)
        return None

    def _is_fit(self, tier: Tier, trial: Trial, far: float | None = None) -> bool:
        """Whether a candidate is legal here and for these sizes; where it is carried over, a doubt is a no."""
        try:
            needs = trial.needs
            if needs is None and tier == "near" and (source := self._target(trial.target)) is not None:
                needs = least_needs(source)
            reason = None if needs is None else self.target.satisfies(needs)
        except TvmTargetError as error:
            self._reject(tier, trial.digest, f"its 'requires' cannot be read: {error}", far)
            return False
        if reason is not None and (reason.truth is Truth.NO or (tier == "near" and reason.truth is Truth.UNKNOWN)):
            self._reject(tier, f"{trial.digest} on {self._text(trial.target)}", first_reason(reason), far)
            return False
        is_sized = trial.workload == self.asked.key or self._fits_sizes(trial, far)
        return is_sized and self._is_of_use(tier, trial, far)

    def _is_of_use(self, tier: Tier, record: Trial | Pin, far: float | None = None) -> bool:
        """Whether who asks can use a candidate."""
        reason = None if self.refuses is None else self.refuses(record.candidate)
        if reason is not None:
            self._reject(tier, record.digest, reason, far)
        return reason is None

    def _fits_sizes(self, trial: Trial, far: float | None) -> bool:
        fits = (self.policy.formats or {}).get(trial.candidate.format)
        if fits is not None and fits(trial.candidate.body, self.asked.shapes):
            return True
        why = "is only for its own sizes" if fits is None else "does not fit these sizes"
        self._reject("workload-near", trial.digest, f"a candidate of format {trial.candidate.format!r} {why}", far)
        return False

    def _reject(self, tier: Tier, what: str, reason: str, far: float | None) -> None:
        self.tried.append(Tried(tier, what, reason, far))

    # What keys stand for

    def _match(self, tier: Tier, trial: Trial | None = None, one: _Ranked | None = None) -> Match:
        if trial is None or one is None:
            return Match(tier, self.asked, self.target, limit=self.policy.max_distance)
        env = self._body(trial.env) if trial.env is not None else None
        return Match(
            tier,
            self.asked,
            self.target,
            limit=self.policy.max_distance,
            record=trial,
            source=self._target(trial.target),
            log=self.stores[one.layer].url,
            stale=changes(env, self.here) if isinstance(env, Environment) and env.key != self.here.key else (),
        )

    def _body(self, key: str) -> Record | None:
        if key not in self.memory.records:
            found = next((found for store in self.stores if (found := store.body_of(key)) is not None), None)
            if found is None:
                return None
            self.memory.records[key] = found
        return self.memory.records[key]

    def _target(self, digest: str) -> Target | None:
        if digest == self._digest:
            return self.target
        if digest not in self.memory.targets:
            found = self._body(digest)
            if not isinstance(found, TargetRecord):
                return None
            try:
                self.memory.targets[digest] = Target.from_json(found.body, tags={})
            except TvmTargetError:
                return None
        return self.memory.targets[digest]

    def _text(self, digest: str) -> str:
        found = self._target(digest)
        return digest if found is None else str(found)

    def _distances(self, digests: Collection[str]) -> Mapping[str, float]:
        """Return, among others, how far some targets with records are from the one asked for."""
        known = self.memory.distances.setdefault(self._digest, {})
        if new := [digest for digest in digests if digest not in known]:
            known.update(zip(new, how_far(map(self._device, new), self._here), strict=True))
        return known

    def _terms(self, digest: str) -> tuple[Term, ...]:
        return terms_between(self._device(digest), self._here)

    @cached_property
    def _here(self) -> Device:
        return self._device(self._digest)

    def _device(self, digest: str) -> Device:
        known = self.memory.devices
        if digest not in known:
            found = self._target(digest)
            if found is None:
                raise LogError(f"no layer has the target {digest!r} any more; repair the log")
            known[digest] = device_of(found)
        return known[digest]


def _oldest_first(ranked: Sequence[_Ranked], tie: int, last: tuple[int, int] | None) -> Iterator[_Ranked]:
    """Yield, of those within `tie` percent of the best that is left, always the oldest.

    They end where others that were not read, all beyond the trust and score of `last`, may be as good.
    """
    waiting: list[tuple[_Age, _Ranked]] = []
    gone: set[_Age] = set()
    left = deque(ranked)
    for best in ranked:
        most = (best.choice.trust, best.choice.score * (100 + tie) // 100)
        if best.age() not in gone and last is not None and last <= most:
            return
        while left and (left[0].choice.trust, left[0].choice.score) <= most:
            heappush(waiting, (left[0].age(), left.popleft()))
        while best.age() not in gone:
            age, one = heappop(waiting)
            gone.add(age)
            yield one


def first_reason(reason: Reason) -> str:
    """Return the innermost first thing that is not met."""
    inner = next((one for one in reason.parts if one.truth is reason.truth), None)
    return reason.text if inner is None else first_reason(inner)


def sizes(workload: Workload) -> str:
    """Return the sizes of a workload in one word."""
    return "".join(f"[{','.join(map(str, shape))}]" for shape in workload.shapes)
