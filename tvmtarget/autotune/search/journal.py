"""The log that tuning writes into, and what becomes of its trials where that log fails meanwhile."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tvmtarget.autotune.log.records import Record, Trial
from tvmtarget.autotune.log.report import write_lines
from tvmtarget.autotune.log.tuning_log import TuningLog
from tvmtarget.errors import LogError

__all__ = ["Journal"]


class Journal(TuningLog):
    """A log that is open already, which remembers what is written into it from now on.

    What a disk that is full, a lock that is not given up or a file that was taken away would lose is written elsewhere.
    """

    def __init__(self, log: TuningLog) -> None:
        self.url = log.url
        self._store = log._store
        self._layers = log._layers
        self._memory = log._memory
        self._kept: dict[str, Record] = {}

    def extend(self, records: Iterable[Record]) -> int:
        """Write records, and remember them whether or not that succeeds; return how many were new."""
        given = list(records)
        self._kept.update((record.digest, record) for record in given)
        return super().extend(given)

    def settle(self) -> None:
        """Write again what is not in the log any more: its file may have been deleted or replaced meanwhile."""
        super().extend(self._kept.values())

    def rescue(self) -> str:
        """Write what is remembered into a new file, and say where it is; beside the log if that can be."""
        trials = sum(isinstance(record, Trial) for record in self._kept.values())
        if not trials:
            return "nothing was measured before"
        lines = sorted(record.text for record in self._kept.values())
        for path in self._places():
            try:
                write_lines(path, lines)
            except LogError:
                continue
            again = f"tvmtarget log merge {self.url} {path}"
            return f"all that was measured, {trials} trials, is in {str(path)!r} too; take it in with: {again}"
        return f"what was measured, {trials} trials, could not be written elsewhere either"

    def _places(self) -> Iterator[Path]:
        name = f"{Path(self.url).stem or 'log'}-unsaved-{os.getpid()}.jsonl"
        if "://" not in self.url:
            yield Path(self.url).absolute().parent / name
        yield Path(tempfile.gettempdir()) / name
