"""Results of benchmarks as they come: rows in a file of JSON lines, which a run that was interrupted goes on from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Results", "growth", "markdown", "short"]

Row = Mapping[str, Any]


class Results:
    """Rows by what they are of: `keys` are the fields that identify a row."""

    def __init__(self, path: Path | None, keys: Sequence[str]) -> None:
        self.path = path
        self.keys = tuple(keys)
        self.rows: dict[tuple[Any, ...], Row] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                self._keep(json.loads(line))

    def _keep(self, row: Row) -> None:
        if row.keys() >= set(self.keys):
            self.rows[tuple(row[key] for key in self.keys)] = row

    def get(self, *key: Any) -> Row | None:
        """Return the row of a key, if it is there."""
        return self.rows.get(key)

    def add(self, row: Row) -> Row:
        """Keep a row, with how busy the machine is, and write it to the file."""
        row = {**row, "load": round(os.getloadavg()[0], 1)}
        self._keep(row)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        return row


def growth(before: float, after: float, times: float) -> float:
    """Return how many times as long it takes for a size that doubles, where it is so many times as large."""
    from math import log

    return (after / before) ** (log(2) / log(times))


def short(number: float) -> str:
    """Return a number with three digits that count, or all before the point."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}" if number >= 0.0001 or not number else f"{number:.1e}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """Return a table; the first columns, so many, are words and the others numbers."""
    rule = ["---"] * words + ["--:"] * (len(head) - words)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))
