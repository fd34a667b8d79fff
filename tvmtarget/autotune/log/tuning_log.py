"""The tuning log: one place to write to, and layers below it to look things up in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from tvmtarget.autotune.log.distance import family_of
from tvmtarget.autotune.log.environment import environment
from tvmtarget.autotune.log.keys import workload_of
from tvmtarget.autotune.log.lines import Line, parse_record
from tvmtarget.autotune.log.lookup import Lookup, Memory
from tvmtarget.autotune.log.match import Match, Policy
from tvmtarget.autotune.log.records import (
    Candidate,
    Environment,
    Measurement,
    Pin,
    Record,
    Retraction,
    TargetRecord,
    Trial,
    Workload,
)
from tvmtarget.autotune.log.report import LogDifference, Stats, about, compare, write_lines
from tvmtarget.autotune.log.store import DATABASES, Store, open_store, path_of
from tvmtarget.errors import LogError, TvmTargetError, raise_all
from tvmtarget.ir.function import Function
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.identity import identity_of
from tvmtarget.target.problems import shown
from tvmtarget.target.renaming import find_renaming
from tvmtarget.target.tree import Target

__all__ = ["TuningLog"]

_BATCH = 1000
_POLICY = Policy()

_Item = TypeVar("_Item")


class TuningLog:
    """A log at a URL: `name.jsonl`, `name.db`, `sqlite:name`, `memory:`, or what a plugin opens.

    `layers` are logs that are only looked into, searched with this one tier by tier: a site's, a shipped one. With
    `durable`, what was written has reached the disk. A log may be shared by threads and by processes.

    >>> log = TuningLog("memory:")
    >>> matmul = Workload.of({"op": "matmul", "shapes": [[128, 128, 128]], "dtype": "float32"})
    >>> znver4 = Target.parse("llvm(mcpu=znver4,num-cores=16)")
    >>> ran = Measurement(status="ok", costs=[49012000])
    >>> trial = log.add(matmul, znver4, Candidate(format="knobs/1", body={"mb": 64}), ran)
    >>> log.lookup(matmul, znver4).tier, log.lookup(matmul, Target.parse("cuda")).tier
    ('exact', 'default')
    """

    def __init__(self, url: str | Path, *, layers: Sequence[str | Path] = (), durable: bool = False) -> None:
        self.url, *below = (str(one) if isinstance(one, Path) else one for one in (url, *layers))
        missing = [one for one in below if isinstance(one, str) and (path := path_of(one)) and not path.exists()]
        raise_all(LogError, [f"there is no log {one!r} to look into" for one in missing])
        self._store = open_store(self.url, durable=durable)
        self._layers = (self._store, *map(open_store, below))
        self._memory = Memory()

    def close(self) -> None:
        """Give back files; what was written is safe already."""
        for store in self._layers:
            store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Record]:
        """Yield the records of the log, without its layers, as they were added."""
        return _records(self._store)

    def __len__(self) -> int:
        return self._store.size()

    # Writing

    def append(self, record: Record) -> bool:
        """Write one record; return whether it is new."""
        return bool(self._store.extend([record]))

    def extend(self, records: Iterable[Record]) -> int:
        """Write records, a thousand at a time, each thousand whole or not at all; return how many were new."""
        return sum(map(self._store.extend, _batches(records)))

    def add(
        self,
        workload: Workload | Function,
        target: Target | str,
        candidate: Candidate,
        measured: Measurement,
        *,
        requires: Constraint | str | None = None,
        search: Mapping[str, object] | None = None,
        env: Environment | None = None,
    ) -> Trial:
        """Write a trial and whatever it refers to; return it. Without `env`, it was measured here.

        `requires` is what a target needs for the candidate to be legal, such as `llvm(+avx2)`; `search` says how the
        candidate came up.
        """
        workload, target, env = _workload(workload), _target(target), environment() if env is None else env
        target.tuning_key(workload.level)
        known = TargetRecord(
            key=target.digest, body=identity_of(target), meta={"tag": target.tag} if target.tag else None
        )
        trial = Trial(
            level=workload.level,
            workload=workload.key,
            target=known.key,
            env=env.key,
            candidate=candidate,
            requires=None if requires is None else Constraint.parse(requires).to_json(),
            measured=measured,
            search=None if search is None else dict(search),
            ts=int(time.time()),
        )
        self.extend([known, workload, env, trial])
        return trial

    def pin(self, workload: Workload | Function, target: Target | str, candidate: Candidate, why: str) -> Pin:
        """Choose a candidate for a workload on a target and those equal to it, whatever was or will be measured."""
        workload = _workload(workload)
        target = _target_of(workload, target)
        known = TargetRecord(key=target.digest, body=identity_of(target))
        pin = Pin(
            level=workload.level,
            workload=workload.key,
            target=known.key,
            candidate=candidate,
            why=why,
            ts=int(time.time()),
        )
        self.extend([known, workload, pin])
        return pin

    def retract(self, digest: str, why: str) -> Retraction:
        """Say that a line no longer counts, by its digest or how that begins; the line stays."""
        found = self._store.find(digest)
        if len(found) != 1:
            what = "no line" if not found else "more than one line"
            raise LogError(f"{what} of {self.url!r} has a digest that begins with {digest!r}")
        retraction = Retraction(of=found[0], why=why)
        self.append(retraction)
        return retraction

    # Asking

    def lookup(
        self,
        workload: Workload | Function,
        target: Target | str,
        *,
        policy: Policy | None = None,
        env: Environment | None = None,
        default: str | None = None,
        refuses: Callable[[Candidate], str | None] | None = None,
    ) -> Match:
        """Return the best that is known for a workload on a target; there is always an answer.

        The level is the workload's. What counts as the same, and how near is near enough, is in `lookup.py`. `default`
        is the identity of the default that is used where nothing is known, as in the baselines of records: what was
        compared with another default is only `near`. `refuses` says why a candidate cannot be used, so that the next
        best is taken; None if it can.
        """
        return replace(self._question(workload, target, policy, env, default), refuses=refuses).find()

    def top_k(
        self,
        workload: Workload | Function,
        target: Target | str,
        count: int,
        *,
        refuses: Callable[[Candidate], str | None] | None = None,
    ) -> list[Match]:
        """Return the best candidates that were measured on the target or on one equal to it, the best first.

        Each is there once, by the best that was measured of it; `refuses` as for `lookup`.
        """
        return replace(self._question(workload, target), refuses=refuses).top(count)

    def trials(self, workload: Workload | Function, target: Target) -> list[Trial]:
        """Return all trials on the target or on one equal to it that were not retracted, in all layers, once each."""
        return self._question(workload, target).trials()

    def renamed(self, workload: Workload, target: Target) -> Iterator[tuple[Target, dict[str, str]]]:
        """Yield the targets with records of a workload that differ from one in the names of children only.

        Each comes with the paths in the target by those that its records use. Kernels run on leaves, which have none.
        """
        if workload.level == "kernel":
            return
        for digest in dict.fromkeys(one for store in self._layers for one in store.targets_of(workload.key)):
            body = next((found for store in self._layers if (found := store.body_of(digest)) is not None), None)
            if digest == target.digest or not isinstance(body, TargetRecord):
                continue
            with suppress(TvmTargetError):  # of a kind that nobody knows
                source = Target.from_json(body.body, tags={})
                paths = find_renaming(source, target, workload.level)
                if paths is not None and any(old != new for old, new in paths.items()):
                    yield source, paths

    def _question(
        self,
        workload: Workload | Function,
        target: Target | str,
        policy: Policy | None = None,
        env: Environment | None = None,
        default: str | None = None,
    ) -> Lookup:
        workload = _workload(workload)
        return Lookup(
            stores=self._layers,
            asked=workload,
            target=_target_of(workload, target),
            here=environment() if env is None else env,
            policy=policy or _POLICY,
            default=default,
            memory=self._memory,
        )

    # As a whole

    def merge(self, *others: TuningLog) -> int:
        """Take in all lines of other logs; return how many were new. The order of merging does not matter."""
        return sum(self._store.take(batch) for other in others for batch in _batches(other._store.texts()))

    def lines(self, *, best: int | None = None, family: Target | None = None) -> Iterator[str]:
        """Yield all lines by type and text: equal logs give equal lines, whatever was written first.

        With `best`, the trials are those of so many candidates for each workload and target; with `family`, only what
        may be carried over to a leaf, or was measured on an equal system, and what that refers to.
        """
        left_out = {f'"{digest}"}}' for digest in (() if best is None else self._store.beyond(_at_least_one(best)))}

        def lines() -> Iterator[str]:
            return (line for line in self._store.sorted_texts() if line[-38:] not in left_out)

        return lines() if family is None else about(lines, self._family(family))

    def export(self, path: str | Path, *, best: int | None = None, family: Target | None = None) -> int:
        """Write the lines, sorted, to a new file, `.gz` compressed; return how many. The file is whole or not there."""
        if Path(path).suffix.lower() in DATABASES:
            raise LogError(
                f"lines go to a file such as NAME.jsonl, not to {str(path)!r}; a database takes them by merging"
            )
        return write_lines(Path(path), self.lines(best=best, family=family))

    def _family(self, target: Target) -> set[str]:
        """Return the relatives of a target; a `LogError` says what there is where nothing was measured on one."""
        found = set(self._relatives(target))
        records = (record for type_ in ("trial", "pin") for record in _records(self._store, type_))
        if not any(record.target in found for record in records if isinstance(record, Trial | Pin)):
            bodies = (one.body for one in _records(self._store, "target") if isinstance(one, TargetRecord))
            kinds = sorted({str(body.get("kind", "?")) for body in bodies}) or ["nothing"]
            raise LogError(
                f"nothing in {self.url!r} may be carried over to {str(target)!r}, which neither equals a system there "
                f"nor has a leaf of the family of one; it has records of: {', '.join(kinds)}"
            )
        return found

    def _relatives(self, target: Target) -> Iterator[str]:
        """Yield the targets of the log, by digest, of the families of a target's leaves, or equal to a system."""
        leaves = {family_of(leaf) for _, leaf in target.walk() if not leaf.is_composite}
        systems = {target.tuning_key("graph"), target.tuning_key("executor")}
        for record in _records(self._store, "target"):
            with suppress(TvmTargetError):  # of a kind that nobody knows
                other = Target.from_json(record.body, tags={}) if isinstance(record, TargetRecord) else target
                if other.is_composite:
                    is_relative = bool({other.tuning_key("graph"), other.tuning_key("executor")} & systems)
                else:
                    is_relative = family_of(other) in leaves
                if is_relative:
                    yield other.digest

    def stats(self) -> Stats:
        """Count what is in the log."""
        return Stats(self.url, self._store.tally(), len(self.problems()))

    def diff(self, other: TuningLog) -> LogDifference:
        """Compare with another log: lines that only one has, and where the two would choose differently."""
        return compare(self._store, other._store)

    def workloads(self) -> list[Workload]:
        """Return the workloads in the log, by key; of several lines about one, the first."""
        found: dict[str, Workload] = {}
        for record in _records(self._store, "workload"):
            if isinstance(record, Workload):
                found.setdefault(record.key, record)
        return [found[key] for key in sorted(found)]

    def problems(self) -> Sequence[Line]:
        """Return the lines that cannot be read."""
        return self._store.problems()

    def verify(self) -> list[str]:
        """Read everything again and return what is wrong: bad lines, damaged tables, references to nothing."""
        return [*map(str, self.problems()), *self._store.check(), *(
            f"nothing says what {key!r} is" for key in self._store.dangling()
        )]  # fmt: skip

    def repair(self) -> int:
        """Take the lines that cannot be read out of the log, into `NAME.rejected` beside it; return how many.

        What a database keeps beside the lines is made anew of them.
        """
        return self._store.mend()

    def compact(self, *, best: int) -> tuple[Trial, ...]:
        """Drop the trials of all but the `best` candidates for each workload and target; return what was dropped.

        This is all that ever takes records out of a log. Pins and retractions stay; a merge with a copy that was
        not compacted brings the trials back.
        """
        digests = self._store.beyond(_at_least_one(best))
        dropped = tuple(found for digest in digests if isinstance(found := self._store.get(digest), Trial))
        if digests:
            self._store.drop(digests)
        return tuple(sorted(dropped, key=lambda trial: (trial.workload, trial.target, trial.measured.rank or (9, 0))))


def _records(store: Store, type_: str = "") -> Iterator[Record]:
    """Yield the records of a store, or those of a type; a `LogError` says that a line was damaged, and what to do."""
    for text in store.texts(type_):
        try:
            yield parse_record(text)
        except LogError as error:
            raise LogError(
                f"a line of {store.url!r} was damaged: {error}; `tvmtarget log repair` puts it aside"
            ) from error


def _batches(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    left = iter(items)
    return iter(lambda: list(islice(left, _BATCH)), [])


def _workload(given: Workload | Function) -> Workload:
    if isinstance(given, Workload):
        return given
    if not isinstance(given, Function):
        raise LogError(f"a workload is a Workload or a Function, not {shown(given)}")
    return workload_of(given)


def _target(given: Target | str) -> Target:
    return given if isinstance(given, Target) else Target.parse(given)


def _target_of(workload: Workload, given: Target | str) -> Target:
    """Return a target for a workload; a kernel runs on a leaf, which of a system has to be the only sort."""
    target = _target(given)
    if workload.level != "kernel" or not target.is_composite:
        return target
    found: dict[str, tuple[str, Target]] = {}
    for path, node in target.walk():
        if not node.is_composite:
            leaf = node.replace(name=None, host=None, count=1, executor=None, runtime=None)
            found.setdefault(leaf.tuning_key(), (path, leaf))
    if len(found) == 1:
        return next(leaf for _, leaf in found.values())
    parts = " or ".join(f"{target.tag or '...'}:{path}" for path, _ in found.values())
    raise LogError(f"a kernel runs on a leaf, and {target.tag or str(target)!r} has several; name one: {parts}")


def _at_least_one(best: int) -> int:
    if best < 1:
        raise LogError(f"the best of a log are 1 or more candidates, not {best}")
    return best
