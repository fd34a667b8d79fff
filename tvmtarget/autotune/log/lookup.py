"""Lookup of the best known candidate: tier by tier over all layers, deterministic, and always with a match.

    pin            the candidate that a user fixed for this workload on this target
    exact          measured on an equal target
    equal          measured on a target with the same tuning key: the differences do not matter at this level
    near           kernels only: measured on a device of the same family, and legal here; the nearest first. Or measured
                   here, but compared with a default that is not today's
    workload-near  the same for other sizes, for formats that allow it
    default        no record fits

Costs on different targets are never compared: the nearest target is chosen first, then its best candidate. A tier is
searched in all layers before the next tier, and an earlier layer wins ties. If the best record is no better than the
default that it was compared with, the match is today's default.
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

__all__ = ["Lookup", "LookupCache"]

# How many of the best candidates of a target are read, turn by turn: nearly always the first is legal and wins alone.
_SHORTLIST = (2, 16, 128, 1024, 2**62)
_MAX_OUTDATED = 8  # candidates compared with a former default that are considered

_Age: TypeAlias = tuple[int, int, int, str]


class _Ranked(NamedTuple):
    """A candidate in a layer."""

    candidate: RankedCandidate
    layer: int

    def rank(self) -> tuple[int, int, int, str]:
        return self.candidate.trust, self.candidate.score, self.layer, self.candidate.digest

    def age(self) -> _Age:
        return self.layer, self.candidate.ts, self.candidate.score, self.candidate.digest


@dataclass
class LookupCache:
    """What lookups in the same layers have parsed or computed: records and targets never change."""

    records: dict[str, Record] = field(default_factory=dict)
    targets: dict[str, Target] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    keys: dict[tuple[str, Level], str] = field(default_factory=dict)
    families: dict[str, str] = field(default_factory=dict)
    distances: dict[str, dict[str, float]] = field(default_factory=dict)

    def key(self, target: Target, digest: str, level: Level) -> str:
        """Return the tuning key of a target.

        Args:
            target: the target.
            digest: its digest.
            level: the level of the key.

        Returns:
            The key.
        """
        if (digest, level) not in self.keys:
            self.keys[digest, level] = target.tuning_key(level)
        return self.keys[digest, level]

    def family(self, target: Target, digest: str) -> str:
        """Return the family of a leaf.

        Args:
            target: the leaf.
            digest: its digest.

        Returns:
            The key of the family.
        """
        if digest not in self.families:
            self.families[digest] = family_of(target)
        return self.families[digest]


@dataclass
class Lookup:
    """One lookup in some layers.

    Attributes:
        stores: the layers, the first of which wins ties.
        workload: what a candidate is needed for.
        target: where it is to be used.
        here: the environment where it is to be used.
        policy: how far the lookup may go.
        default: the identity of today's default; None if candidates compared with any default count.
        cache: what earlier lookups in these layers have computed.
        unusable: returns why the caller cannot use a candidate, or None if it can.
        tried: the records that were considered and not taken.
    """

    stores: Sequence[Store]
    workload: Workload
    target: Target
    here: Environment
    policy: Policy
    default: str | None
    cache: LookupCache
    unusable: Callable[[Candidate], str | None] | None = None
    tried: list[Tried] = field(default_factory=list)

    def find(self) -> Match:
        """Return the best match.

        Returns:
            The first of `matches`, or one of tier `default`, with the records that were tried before.
        """
        match = next(self.matches(), None) or self._match("default")
        is_default = match.ratio is not None and self._is_no_better_than_default(match.record, match.ratio)
        return replace(match, tried=tuple(self.tried), is_default=is_default) if self.tried or is_default else match

    def matches(self) -> Iterator[Match]:
        """Yield all records that fit, in the order of the tiers, and within a tier the best first.

        Yields:
            Matches of all tiers but `default`.
        """
        yield from self._pinned()
        yield from self._measured(self.workload, 0.0)
        yield from self._of_other_sizes()

    def top(self, count: int) -> list[Match]:
        """Return the best candidates of the target itself and of equal ones.

        Args:
            count: how many to return at most.

        Returns:
            A match for each candidate, the best first.
        """
        found: dict[bytes, Match] = {}
        trials = self._in_order("exact", self.workload, sorted(self._equal), tie=0)
        while len(found) < count and (following := next(trials, None)) is not None:
            one, trial = following
            tier: Tier = "exact" if trial.target == self._digest else "equal"
            if one.candidate.candidate not in found and self._is_fit(tier, trial):
                found[one.candidate.candidate] = self._match(tier, trial, one)
        return list(found.values())

    def trials(self) -> list[Trial]:
        """Return all trials on the target, then those on equal targets.

        Returns:
            The trials of all layers, each once, without damaged lines.
        """
        found: dict[str, Trial] = {}
        for name in (self._digest, *sorted(self._equal - {self._digest})):
            for text in (text for store in self.stores for text in store.trials(self.workload.key, name)):
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
        """The digests of the targets with the same tuning key, that of the target among them."""
        level = self.workload.level
        key = self.cache.key(self.target, self._digest, level)
        return frozenset({name for store in self.stores for name in store.targets_by_key(level, key)} | {self._digest})

    # The tiers

    def _pinned(self) -> Iterator[Match]:
        for store in self.stores:
            for pin in store.pins(self.workload.key):
                if pin.target in self._equal and self._is_usable("pin", pin):
                    yield replace(self._match("pin"), record=pin, source=self._target(pin.target), log=store.url)

    def _measured(self, workload: Workload, offset: float) -> Iterator[Match]:
        """Yield what was measured for a workload whose sizes are `offset` away."""
        yield from self._on("exact", workload, [self._digest])
        yield from self._on("equal", workload, sorted(self._equal - {self._digest}))
        yield from self._near(workload, offset)

    def _on(self, tier: Tier, workload: Workload, targets: Sequence[str]) -> Iterator[Match]:
        for one, trial in self._in_order(tier, workload, targets):
            if self._is_fit(tier, trial):
                yield self._match(tier, trial, one)

    def _near(self, workload: Workload, offset: float) -> Iterator[Match]:
        outdated = self._outdated(workload)
        if workload.level != "kernel" or self.policy.max_distance <= offset:
            for one, _ in outdated[:1]:
                self._reject("near", one.candidate.digest, "measured beside a default that is not today's", None)
            return
        family = self.cache.family(self.target, self._digest)
        names = {name for store in self.stores for name in store.targets_by_family("kernel", family, workload.key)}
        names -= self._equal
        distances = self._distances(names)
        # The empty name is this target with candidates that were compared with a former default.
        places = [(distances[name] + offset, name) for name in names] + [(WEIGHTS["default"], "")] * bool(outdated)
        for far, name in sorted(places):
            if far > self.policy.max_distance:
                what = self._text(name) if name else outdated[0][0].candidate.digest
                self._reject("near", what, f"beyond the limit of {self.policy.max_distance:g}", far)
                break
            for one, trial in self._in_order("near", workload, [name]) if name else outdated:
                if self._is_fit("near", trial, far):
                    terms = self._terms(name) if name else (self._default_term(one),)
                    yield replace(self._match("near", trial, one), distance=far, terms=terms)

    def _outdated(self, workload: Workload) -> list[tuple[_Ranked, Trial]]:
        """Return the best trials on this target or an equal one that were compared with a former default."""
        if self.default is None or self.policy.strict:
            return []
        return [*islice(self._in_order("near", workload, sorted(self._equal), is_outdated=True), _MAX_OUTDATED)]

    def _default_term(self, one: _Ranked) -> Term:
        return Term("default", one.candidate.default or "unknown", self.default or "", WEIGHTS["default"])

    def _is_no_better_than_default(self, record: Record | None, ratio: float) -> bool:
        baseline = record.measured.baseline if isinstance(record, Trial) else None
        is_beside_default = baseline is not None and baseline.default is not None
        return is_beside_default and 100 * ratio > 100 - self.policy.tie_percent

    def _of_other_sizes(self) -> Iterator[Match]:
        if not self.policy.formats:
            return
        family = self.workload.family
        keys = {key for store in self.stores for key in store.workloads_by_family(family)} - {self.workload.key}
        others = [found for key in sorted(keys) if isinstance(found := self._body(key), Workload)]
        far = [(d, other) for other in others if (d := shape_distance(other.shapes, self.workload.shapes)) is not None]
        for offset, other in sorted(far, key=lambda pair: (pair[0], pair[1].key)):
            if offset > self.policy.max_distance:
                return
            for match in self._measured(other, offset):
                terms = (Term("sizes", sizes(other), sizes(self.workload), offset), *match.terms)
                yield replace(match, tier="workload-near", distance=distance(terms), terms=terms)

    # The candidates of one target

    def _in_order(
        self,
        tier: Tier,
        workload: Workload,
        targets: Sequence[str],
        *,
        is_outdated: bool = False,
        tie: int | None = None,
    ) -> Iterator[tuple[_Ranked, Trial]]:
        """Yield the trials on some targets, the best first; of those within `tie` percent of the best, the oldest.

        With `is_outdated`, those that were compared with a former default, otherwise all others.
        """
        is_dated = self.default is not None and workload.key == self.workload.key and self._equal.issuperset(targets)
        tie = self.policy.tie_percent if tie is None else tie
        seen: set[str] = set()
        for limit in _SHORTLIST:
            lists = [
                [_Ranked(candidate, layer) for candidate in store.best(workload.key, name, limit)]
                for name in targets
                for layer, store in enumerate(self.stores)
            ]
            ends = [some[-1].candidate for some in lists if len(some) == limit]
            last = min(((end.trust, end.score) for end in ends), default=None)
            found = [one for some in lists for one in some if one.candidate.digest not in seen and self._is_here(one)]
            if is_dated:
                found = [one for one in found if self._is_outdated(one) == is_outdated]
            for one in _oldest_first(sorted(found, key=_Ranked.rank), tie, last):
                if one.candidate.digest not in seen:
                    seen.add(one.candidate.digest)
                    if (trial := self._trial(tier, one)) is not None:
                        yield one, trial
            if not ends:
                return

    def _is_here(self, one: _Ranked) -> bool:
        return not self.policy.strict or one.candidate.env == self.here.key

    def _is_outdated(self, one: _Ranked) -> bool:
        return one.candidate.default not in (None, self.default)

    def _trial(self, tier: Tier, one: _Ranked) -> Trial | None:
        """Return the trial that represents a candidate; None, with an entry in `tried`, if its line was damaged."""
        url, digest = self.stores[one.layer].url, one.candidate.digest
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
        """Whether a candidate is legal here and for these sizes; on another device, unknown counts as illegal."""
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
        is_sized = trial.workload == self.workload.key or self._fits_sizes(trial, far)
        return is_sized and self._is_usable(tier, trial, far)

    def _is_usable(self, tier: Tier, record: Trial | Pin, far: float | None = None) -> bool:
        """Whether the caller can use a candidate."""
        reason = None if self.unusable is None else self.unusable(record.candidate)
        if reason is not None:
            self._reject(tier, record.digest, reason, far)
        return reason is None

    def _fits_sizes(self, trial: Trial, far: float | None) -> bool:
        fits = (self.policy.formats or {}).get(trial.candidate.format)
        if fits is not None and fits(trial.candidate.body, self.workload.shapes):
            return True
        why = "is only for its own sizes" if fits is None else "does not fit these sizes"
        self._reject("workload-near", trial.digest, f"a candidate of format {trial.candidate.format!r} {why}", far)
        return False

    def _reject(self, tier: Tier, what: str, reason: str, far: float | None) -> None:
        self.tried.append(Tried(tier, what, reason, far))

    # Records and targets by their keys

    def _match(self, tier: Tier, trial: Trial | None = None, one: _Ranked | None = None) -> Match:
        if trial is None or one is None:
            return Match(tier, self.workload, self.target, limit=self.policy.max_distance)
        env = self._body(trial.env) if trial.env is not None else None
        return Match(
            tier,
            self.workload,
            self.target,
            limit=self.policy.max_distance,
            record=trial,
            source=self._target(trial.target),
            log=self.stores[one.layer].url,
            stale=changes(env, self.here) if isinstance(env, Environment) and env.key != self.here.key else (),
        )

    def _body(self, key: str) -> Record | None:
        if key not in self.cache.records:
            found = next((found for store in self.stores if (found := store.body_of(key)) is not None), None)
            if found is None:
                return None
            self.cache.records[key] = found
        return self.cache.records[key]

    def _target(self, digest: str) -> Target | None:
        if digest == self._digest:
            return self.target
        if digest not in self.cache.targets:
            found = self._body(digest)
            if not isinstance(found, TargetRecord):
                return None
            try:
                self.cache.targets[digest] = Target.from_json(found.body, tags={})
            except TvmTargetError:
                return None
        return self.cache.targets[digest]

    def _text(self, digest: str) -> str:
        found = self._target(digest)
        return digest if found is None else str(found)

    def _distances(self, digests: Collection[str]) -> Mapping[str, float]:
        """Return the distances of some targets, and maybe of others, by their digests."""
        known = self.cache.distances.setdefault(self._digest, {})
        if new := [digest for digest in digests if digest not in known]:
            known.update(zip(new, how_far(map(self._device, new), self._here), strict=True))
        return known

    def _terms(self, digest: str) -> tuple[Term, ...]:
        return terms_between(self._device(digest), self._here)

    @cached_property
    def _here(self) -> Device:
        return self._device(self._digest)

    def _device(self, digest: str) -> Device:
        known = self.cache.devices
        if digest not in known:
            found = self._target(digest)
            if found is None:
                raise LogError(f"no layer has the target {digest!r} any more; repair the log")
            known[digest] = device_of(found)
        return known[digest]


def _oldest_first(ranked: Sequence[_Ranked], tie: int, last: tuple[int, int] | None) -> Iterator[_Ranked]:
    """Yield, of those within `tie` percent of the best that is left, always the oldest.

    Stop where candidates that were not read, all worse than the trust and score `last`, may tie with the best.
    """
    tied: list[tuple[_Age, _Ranked]] = []
    yielded: set[_Age] = set()
    left = deque(ranked)
    for best in ranked:
        most = (best.candidate.trust, best.candidate.score * (100 + tie) // 100)
        if best.age() not in yielded and last is not None and last <= most:
            return
        while left and (left[0].candidate.trust, left[0].candidate.score) <= most:
            heappush(tied, (left[0].age(), left.popleft()))
        while best.age() not in yielded:
            age, one = heappop(tied)
            yielded.add(age)
            yield one


def first_reason(reason: Reason) -> str:
    """Return the first condition that is not met, at the innermost level.

    Args:
        reason: why a target does not satisfy a constraint.

    Returns:
        The text of the condition.
    """
    inner = next((one for one in reason.parts if one.truth is reason.truth), None)
    return reason.text if inner is None else first_reason(inner)


def sizes(workload: Workload) -> str:
    """Return the sizes of a workload as text.

    Args:
        workload: the workload.

    Returns:
        A list in brackets for each tensor.
    """
    return "".join(f"[{','.join(map(str, shape))}]" for shape in workload.shapes)
