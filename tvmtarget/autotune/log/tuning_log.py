"""The tuning log: one store to write to, and read-only layers that lookups search as well."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from tvmtarget.autotune.log.distance import family_of
from tvmtarget.autotune.log.environment import environment
from tvmtarget.autotune.log.keys import workload_of
from tvmtarget.autotune.log.lines import Line, parse_record
from tvmtarget.autotune.log.lookup import Lookup, LookupCache
from tvmtarget.autotune.log.match import Match, Policy
from tvmtarget.autotune.log.records import (
    PROGRAM_FORMATS,
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
from tvmtarget.autotune.log.store import DATABASES, Store, is_line_file, open_store, path_of
from tvmtarget.errors import ArgumentError, LogError, TvmTargetError, raise_all
from tvmtarget.files import has_file
from tvmtarget.ir.function import Function
from tvmtarget.target.argument_types import check_methods
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.identity import identity_of
from tvmtarget.target.problems import shown
from tvmtarget.target.renaming import find_renaming
from tvmtarget.target.tree import Target, TargetLike, as_target

__all__ = ["TuningLog"]

_BATCH = 1000
_POLICY = Policy()

_Item = TypeVar("_Item")


@check_methods()
class TuningLog:
    """A log at a URL, which threads and processes may share.

    Args:
        url: `NAME.db`, `sqlite:NAME`, `memory:`, the scheme of a plugin, or `NAME.jsonl`, which is only read, as is `-`
            (lines on standard input).
        layers: logs that lookups search as well, tier by tier: those of a site, or of a package.
        durable: wait for the disk at each commit.

    Raises:
        LogError: a log cannot be opened, or a layer does not exist.

    >>> log = TuningLog("memory:")
    >>> matmul = Workload.of({"op": "matmul", "shapes": [[128, 128, 128]], "dtype": "float32"})
    >>> znver4 = Target.parse("llvm(mcpu=znver4,num-cores=16)")
    >>> measured = Measurement(status="ok", costs=[49012000])
    >>> trial = log.add(matmul, znver4, Candidate(format="knobs/1", body={"mb": 64}), measured)
    >>> log.lookup(matmul, znver4).tier, log.lookup(matmul, Target.parse("cuda")).tier
    ('exact', 'default')
    """

    def __init__(self, url: str | Path, *, layers: Sequence[str | Path] = (), durable: bool = False) -> None:
        self.url, *lower = (str(one) if isinstance(one, Path) else one for one in (url, *layers))
        missing = [one for one in lower if isinstance(one, str) and (path := path_of(one)) and not has_file(path)]
        raise_all(LogError, [f"there is no log {one!r} to look into" for one in missing])
        self._store = open_store(self.url, durable=durable)
        self._layers = (self._store, *map(open_store, lower))
        self._cache = LookupCache()
        self._observers: list[Callable[[Sequence[Record]], None]] = []

    def close(self) -> None:
        """Release files and connections; everything written is safe already."""
        for store in self._layers:
            store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<TuningLog {self.url!r}>"

    def __getstate__(self) -> object:
        raise ArgumentError(f"a tuning log is not copied or pickled; open it again: TuningLog({self.url!r})")

    def __iter__(self) -> Iterator[Record]:
        """Yield the records of the log, without its layers, in the order in which they were added."""
        return _records(self._store)

    def __len__(self) -> int:
        return self._store.size()

    # Writing

    def append(self, record: Record) -> bool:
        """Write one record.

        Args:
            record: a record of any type.

        Returns:
            Whether it is new.
        """
        return bool(self.extend([record]))

    def extend(self, records: Iterable[Record]) -> int:
        """Write records, a thousand at a time, each thousand completely or not at all.

        Args:
            records: records of any types.

        Returns:
            How many were new.
        """
        added = 0
        for batch in _batches(records):
            for observer in self._observers:
                observer(batch)
            added += self._store.extend(batch)
        return added

    @contextmanager
    def observed(self, observer: Callable[[Sequence[Record]], None]) -> Iterator[None]:
        """Pass all records to an observer before they are written, within a `with` block.

        Args:
            observer: is called with each batch of records, also if writing them then fails.

        Yields:
            Nothing.
        """
        self._observers.append(observer)
        try:
            yield
        finally:
            self._observers.remove(observer)

    def add(
        self,
        workload: Workload | Function,
        target: TargetLike,
        candidate: Candidate,
        measured: Measurement,
        *,
        requires: Constraint | str | None = None,
        search: Mapping[str, object] | None = None,
        env: Environment | None = None,
    ) -> Trial:
        """Write a trial and the records that it refers to.

        Args:
            workload: what was tuned.
            target: what it was measured on.
            candidate: what was tried.
            measured: what that cost, or how it failed.
            requires: what a target needs for the candidate to be legal, such as `llvm(+avx2)`.
            search: how the candidate was found.
            env: where it was measured; this process unless given.

        Returns:
            The trial.
        """
        workload, target, env = _workload(workload), as_target(target), environment() if env is None else env
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

    def pin(self, workload: Workload | Function, target: TargetLike, candidate: Candidate, why: str) -> Pin:
        """Fix the candidate for a workload on a target and on equal ones, in spite of measurements.

        Args:
            workload: what the candidate is for.
            target: where it is to be used; for a kernel a leaf, or a composite with one sort of leaf.
            candidate: the candidate.
            why: the reason, for readers of the log.

        Returns:
            The pin.

        Raises:
            LogError: the reason is empty, or no build reads candidates of this format for the workload.
        """
        _check_reason(why)
        workload = _workload(workload)
        format_ = PROGRAM_FORMATS.get(workload.level, candidate.format)
        if candidate.format != format_:
            level = f"a workload of level {workload.level!r}"
            raise LogError(f"a candidate for {level} is of format {format_!r}, not {candidate.format!r}")
        target = _target_of(workload, target)
        known = TargetRecord(key=target.digest, body=identity_of(target))
        # The latest pin wins, so that this one is later than all others: those of this second, those that were written
        # before the clock was set back, and an equal one that was retracted.
        latest = max((pin.ts for pin in self._store.pins(workload.key)), default=0)
        for ts in count(max(int(time.time()), latest + 1)):
            pin = Pin(
                level=workload.level, workload=workload.key, target=known.key, candidate=candidate, why=why, ts=ts
            )
            if self._store.get(pin.digest) is None:
                break
        self.extend([known, workload, pin])
        return pin

    def retract(self, digest: str, why: str) -> Retraction:
        """Mark a line as no longer valid; the line stays in the log.

        Args:
            digest: the digest of the line, or the first characters of it.
            why: the reason, for readers of the log.

        Returns:
            The retraction.

        Raises:
            LogError: no line, or more than one, has such a digest, or the reason is empty.
        """
        _check_reason(why)
        found = self._store.digests_with_prefix(digest) if isinstance(digest, str) else []
        if len(found) != 1:
            what = "no line" if not found else "more than one line"
            raise LogError(f"{what} of {self.url!r} has a digest that begins with {digest!r}")
        retraction = Retraction(of=found[0], why=why)
        self.append(retraction)
        return retraction

    # Lookup

    def lookup(
        self,
        workload: Workload | Function,
        target: TargetLike,
        *,
        policy: Policy | None = None,
        env: Environment | None = None,
        default: str | None = None,
        unusable: Callable[[Candidate], str | None] | None = None,
    ) -> Match:
        """Return the best known candidate for a workload on a target; there is always a match.

        `lookup.py` documents the tiers.

        Args:
            workload: what the candidate is for; its level is that of the lookup.
            target: where it is to be used.
            policy: how far the lookup may go.
            env: where the candidate is to be used; this process unless given.
            default: the identity of today's default, as in the baselines of records. What was compared with another
                default is only `near`.
            unusable: returns why the caller cannot use a candidate, or None if it can; the next best is taken then.

        Returns:
            The match; its tier is `default` if no record fits.
        """
        return replace(self._lookup(workload, target, policy, env, default), unusable=unusable).find()

    def matches(
        self,
        workload: Workload | Function,
        target: TargetLike,
        *,
        policy: Policy | None = None,
        default: str | None = None,
    ) -> Iterator[Match]:
        """Yield all records that fit a workload on a target, in the order of a lookup.

        Args:
            workload: what a candidate is needed for.
            target: where it is to be used.
            policy: how far the lookup may go.
            default: the identity of today's default.

        Yields:
            Matches with a record.
        """
        return self._lookup(workload, target, policy, default=default).matches()

    def top_k(
        self,
        workload: Workload | Function,
        target: TargetLike,
        count: int,
        *,
        unusable: Callable[[Candidate], str | None] | None = None,
    ) -> list[Match]:
        """Return the best candidates that were measured on a target or on one equal to it.

        Args:
            workload: what the candidates are for.
            target: where they are to be used.
            count: how many to return at most.
            unusable: returns why the caller cannot use a candidate, or None if it can.

        Returns:
            A match for each candidate, the best first.
        """
        return replace(self._lookup(workload, target), unusable=unusable).top(count)

    def trials(self, workload: Workload | Function, target: TargetLike) -> list[Trial]:
        """Return all trials on a target or on one equal to it that were not retracted.

        Args:
            workload: what was tuned.
            target: the target.

        Returns:
            The trials of all layers, each once.
        """
        return self._lookup(workload, target).trials()

    def renamed(self, workload: Workload, target: TargetLike) -> Iterator[tuple[Target, dict[str, str]]]:
        """Yield targets with records of a workload that differ in the names of children only.

        Args:
            workload: the workload. Kernels run on leaves, which have no children, so that nothing is yielded for them.
            target: the target whose names are to be used.

        Yields:
            A target of the log, and the paths in `target` by the paths that its records use.
        """
        if workload.level == "kernel":
            return
        target = as_target(target)
        for digest in dict.fromkeys(one for store in self._layers for one in store.targets_of(workload.key)):
            body = next((found for store in self._layers if (found := store.body_of(digest)) is not None), None)
            if digest == target.digest or not isinstance(body, TargetRecord):
                continue
            with suppress(TvmTargetError):  # its kind may be that of a missing plugin
                source = Target.from_json(body.body, tags={})
                paths = find_renaming(source, target, workload.level)
                if paths is not None and any(old != new for old, new in paths.items()):
                    yield source, paths

    def _lookup(
        self,
        workload: Workload | Function,
        target: TargetLike,
        policy: Policy | None = None,
        env: Environment | None = None,
        default: str | None = None,
    ) -> Lookup:
        workload = _workload(workload)
        return Lookup(
            stores=self._layers,
            workload=workload,
            target=_target_of(workload, target),
            here=environment() if env is None else env,
            policy=policy or _POLICY,
            default=default,
            cache=self._cache,
        )

    # The log as a whole

    def merge(self, *others: TuningLog) -> int:
        """Add all lines of other logs; the order of merging does not matter.

        Args:
            *others: logs, of which the layers are ignored.

        Returns:
            How many lines were new.
        """
        return sum(self._store.extend_lines(batch) for other in others for batch in _batches(other._store.texts()))

    def lines(self, *, best: int | None = None, family: TargetLike | None = None) -> Iterator[str]:
        """Yield all lines sorted by type and text, so that equal logs give equal lines.

        Args:
            best: yield the trials of so many candidates only, for each workload and target.
            family: yield only what may be carried over to this leaf, or was measured on an equal composite, and the
                records that this refers to.

        Returns:
            An iterator over lines.

        Raises:
            LogError: nothing was measured on a relative of `family`, or `best` is below one.
        """
        beyond = () if best is None else self._store.beyond_best(_at_least_one(best))
        line_ends = {f'"{digest}"}}' for digest in beyond}  # a line ends with its digest

        def lines() -> Iterator[str]:
            return (line for line in self._store.sorted_texts() if line[-38:] not in line_ends)

        return lines() if family is None else about(lines, self._family(as_target(family, "family")))

    def export(self, path: str | Path, *, best: int | None = None, family: TargetLike | None = None) -> int:
        """Write the lines, sorted, to a new file, which is complete or not there.

        Args:
            path: the file, `NAME.jsonl` or, compressed, `NAME.jsonl.gz`.
            best: as for `lines`.
            family: as for `lines`.

        Returns:
            How many lines were written.

        Raises:
            LogError: the path names a database or another file that is not read as a log, or cannot be written.
        """
        if Path(path).suffix.lower() in DATABASES:
            raise LogError(
                f"lines go to a file such as NAME.jsonl, not to {str(path)!r}; a database takes them by merging"
            )
        if not is_line_file(Path(path)):
            raise LogError(f"lines go to NAME.jsonl or NAME.jsonl.gz, which are read again, not to {str(path)!r}")
        return write_lines(Path(path), self.lines(best=best, family=family))

    def _family(self, target: Target) -> set[str]:
        """Return the targets of the log whose records may be carried over to a target, if any has a record."""
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
        """Yield the digests of the log's leaves of the families of a target's leaves, and of equal composites."""
        leaves = {family_of(leaf) for _, leaf in target.walk() if not leaf.is_composite}
        composites = {target.tuning_key("graph"), target.tuning_key("executor")}
        for record in _records(self._store, "target"):
            with suppress(TvmTargetError):  # its kind may be that of a missing plugin
                other = Target.from_json(record.body, tags={}) if isinstance(record, TargetRecord) else target
                if other.is_composite:
                    is_relative = bool({other.tuning_key("graph"), other.tuning_key("executor")} & composites)
                else:
                    is_relative = family_of(other) in leaves
                if is_relative:
                    yield other.digest

    def stats(self) -> Stats:
        """Count what is in the log.

        Returns:
            The counts of lines, trials and names.
        """
        return Stats(self.url, self._store.counts(), len(self.problems()))

    def diff(self, other: TuningLog) -> LogDifference:
        """Compare with another log.

        Args:
            other: the other log.

        Returns:
            The lines that only one of them has, and where the two would choose different candidates.
        """
        return compare(self._store, other._store)

    def workloads(self) -> list[Workload]:
        """Return the workloads in the log.

        Returns:
            One record for each key, sorted by key; the first of several.
        """
        found: dict[str, Workload] = {}
        for record in _records(self._store, "workload"):
            if isinstance(record, Workload):
                found.setdefault(record.key, record)
        return [found[key] for key in sorted(found)]

    def problems(self) -> Sequence[Line]:
        """Return the lines that cannot be read.

        Returns:
            The lines of a file with what is wrong; none of a database.
        """
        return self._store.problems()

    def verify(self) -> list[str]:
        """Read everything again, and check lines, tables and references.

        Returns:
            A problem each, empty if the log is intact.
        """
        return [*map(str, self.problems()), *self._store.check(), *(
            f"nothing says what {key!r} is" for key in self._store.unresolved_keys()
        )]  # fmt: skip

    def repair(self) -> int:
        """Move unreadable lines to `NAME.rejected` beside the log, and rebuild derived tables.

        Returns:
            How many lines were moved.

        Raises:
            LogError: the log is a file of lines, or is damaged beyond that.
        """
        return self._store.repair()

    def compact(self, *, best: int) -> tuple[Trial, ...]:
        """Delete the trials of all but the best candidates for each workload and target.

        Nothing else ever takes records out of a log. Pins and retractions stay; a merge with a copy that was not
        compacted brings the trials back.

        Args:
            best: how many candidates to keep.

        Returns:
            The deleted trials, sorted by workload, target and rank.
        """
        digests = self._store.beyond_best(_at_least_one(best))
        deleted = tuple(found for digest in digests if isinstance(found := self._store.get(digest), Trial))
        if digests:
            self._store.delete(digests)
        return tuple(sorted(deleted, key=lambda trial: (trial.workload, trial.target, trial.measured.rank or (9, 0))))


def _records(store: Store, type_: str = "") -> Iterator[Record]:
    """Yield the records of a store, or those of a type."""
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


def _check_reason(why: str) -> None:
    if not why.strip():
        raise LogError("the reason (why, --why) is empty; write one for readers of the log")


def _workload(workload: Workload | Function) -> Workload:
    if isinstance(workload, Workload):
        return workload
    if not isinstance(workload, Function):
        raise LogError(f"a workload is a Workload or a Function, not {shown(workload)}")
    return workload_of(workload)


def _target_of(workload: Workload, target: TargetLike) -> Target:
    """Return the target of a workload: for a kernel the leaf, of a composite its only sort of leaf."""
    target = as_target(target)
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
    if not isinstance(best, int) or best < 1:
        raise LogError(f"the best of a log are 1 or more candidates, not {best}")
    return best
