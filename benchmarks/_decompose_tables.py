"""The rows of `decompose.py` as a page of tables: processor time, wall time, memory, and what is made of programs."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks._partitioners import OURS, PARTITIONERS
from benchmarks._results import growth, markdown, short

__all__ = ["STAGES", "page"]

Row = Mapping[str, Any]
Cell = Callable[[Row, Row | None], str]

PACKAGES = ("tvmtarget", "torch", "apache-tvm", "onnxruntime", "numpy")

# What of ours does what the partitioner of onnxruntime does.
SAME_STAGE = "tvmtarget-waves"

STAGES = ("normalise", "feasible", "decide")

# Where the goals are looked at: ops of the comparison with peers, and of the choice by cost.
COMPARED, DECIDED = 4_000, 100_000


def page(peers: Iterable[Row], costs: Iterable[Row]) -> str:
    """Return all rows as a page."""
    rows, chosen = list(peers), list(costs)
    loads = sorted(row["load"] for row in (*rows, *chosen))
    busy = f"; load average while measuring {loads[0]} to {loads[-1]}, half of it under {loads[len(loads) // 2]}"
    parts = [
        "# Partitioning programs, beside other partitioners",
        "Written by `python -m benchmarks decompose --rows FILE --markdown FILE`, whose first lines say what is what.",
        f"{_machine()}{busy if loads else ''}. Times are of the processor, but for one table.",
        "`x` is as many times as long as `tvmtarget` takes to form subgraphs, `>` that a process was ended, by the "
        "cap of its time or memory, and '-' that there is no row: less was too much already, or it was not requested. "
        "On a busy machine the processor, too, takes longer for the same work: half as long again at a load of 10.",
    ]
    if rows:
        parts += ["## Partitioners", "\n".join(f"- {name}: {_about(name)}" for name in PARTITIONERS)]
        parts += ["## Summary", *_summary(rows, chosen)]
        parts += ["## Seconds of the processor, and how they grow when the program doubles", _table(rows, _time, True)]
        parts += ["## Wall seconds", _table(rows, lambda row, _: short(row["wall"]))]
        parts += [
            "## Peak of memory in MB, and how much of it the graph and partitioning add",
            _table(rows, lambda row, _: f"{short(row['peak'])}, {short(row['more'])}"),
        ]
        parts += ["## Subgraphs, and MB that pass between parts", _table(rows, _made)]
    if chosen:
        parts += ["## Choosing sites by cost", _by_cost(chosen)]
    return "\n\n".join(parts) + "\n"


def _about(name: str) -> str:
    """Return what a partitioner is, by its documentation."""
    words = (PARTITIONERS[name].__doc__ or "").partition(": ")[2]
    return " ".join(words.split())


def _machine() -> str:
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return f"{platform.machine()}, Python {platform.python_version()}, {', '.join(found)}"


def _table(rows: Sequence[Row], cell: Cell, is_growing: bool = False) -> str:
    sizes = sorted({row["size"] for row in rows})
    known = {(row["family"], row["partitioner"], row["size"]): row for row in rows}
    lines = []
    for family, name in dict.fromkeys((row["family"], row["partitioner"]) for row in rows):
        own = _tried([known.get((family, name, size)) for size in sizes])
        cells = [_cell(row, known.get((family, OURS, size)), cell) for row, size in zip(own, sizes, strict=True)]
        lines.append([family, name, *cells, *([_growth(own)] if is_growing else ())])
    return markdown(
        ["graph", "partitioner", *(f"{size:,}" for size in sizes), *(["doubling"] if is_growing else ())], lines, 2
    )


def _tried(rows: Sequence[Row | None]) -> list[Row | None]:
    """Return rows by size, none for those after one that took too much."""
    capped = next((at for at, row in enumerate(rows) if row is not None and row["outcome"].startswith(">")), len(rows))
    return [row if at <= capped else None for at, row in enumerate(rows)]


def _cell(row: Row | None, reference: Row | None, cell: Cell) -> str:
    if row is None:
        return "-"
    if row["outcome"].startswith("failed"):
        return "failed"
    return row["outcome"] or cell(row, None if reference is None or reference["outcome"] else reference)


def _time(row: Row, reference: Row | None) -> str:
    if reference is None or row["partitioner"].startswith(OURS):
        return short(row["seconds"])
    return f"{short(row['seconds'])} ({short(row['seconds'] / reference['seconds'])}x)"


def _made(row: Row, reference: Row | None) -> str:
    if row["subgraphs"] is None:
        return ""
    return f"{row['subgraphs']:,}, {row['nbytes'] / 1e6:,.0f}"


def _growth(rows: Sequence[Row | None]) -> str:
    """Return how times grow from the smallest to the largest program that was partitioned."""
    done = [row for row in rows if row is not None and not row["outcome"]]
    if len(done) < 2:
        return ""
    first, last = done[0], done[-1]
    return f"x{growth(first['seconds'], last['seconds'], last['size'] / first['size']):.2f}"


def _summary(rows: Sequence[Row], chosen: Sequence[Row]) -> list[str]:
    known = {(row["family"], row["partitioner"], row["size"]): row for row in rows}
    ours = [row for row in rows if row["partitioner"] == OURS and not row["outcome"]]
    peers = dict.fromkeys(row["partitioner"] for row in rows if not row["partitioner"].startswith(OURS))
    lines = []
    for name, beside in (*((name, OURS) for name in peers), ("onnxruntime", SAME_STAGE)):
        pairs = [
            (known.get((own["family"], name, COMPARED)), known.get((own["family"], beside, COMPARED))) for own in ours
        ]
        ratios = dict.fromkeys(_ratio(*pair) for pair in pairs if None not in pair)
        if ratios:
            lines.append(f"- {name} takes, as multiples of {beside} at {COMPARED:,} operations: {', '.join(ratios)}.")
    more = [
        f"{own['family']} {own['size']:,} {row['partitioner']}: {row[key]:,} {what}, ours {own[key]:,}"
        for own in ours
        for row in rows
        for what, key in (("subgraphs", "subgraphs"), ("bytes", "nbytes"))
        if (row["family"], row["size"]) == (own["family"], own["size"])
        and not row["outcome"]
        and not row["partitioner"].startswith(OURS)
        and row[key] is not None
        and row[key] < own[key]
    ]
    lines.append(f"- Where another has fewer subgraphs or passes fewer bytes: {'; '.join(more) or 'nowhere'}.")
    decided = [row for row in chosen if row["size"] == DECIDED and not row["outcome"]]
    if decided:
        slowest, largest = max(decided, key=_decided), max(decided, key=lambda row: row["peak"])
        lines.append(
            f"- Choosing sites of {DECIDED:,} operations by cost takes at most {_decided(slowest):.2f} s "
            f"({slowest['family']}, {slowest['sites']} sites) and {largest['peak']:,.0f} MB."
        )
    return ["\n".join(lines)]


def _ratio(row: Row, own: Row) -> str:
    if not row["outcome"]:
        return f"{own['family']} {short(row['seconds'] / own['seconds'])}"
    late = f"> {short(row['cap'] / own['seconds'])}" if row["outcome"].endswith(" s") else row["outcome"].split(":")[0]
    return f"{own['family']} {late}"


def _decided(row: Row) -> float:
    """Return the seconds of all stages: reading the program, what each site takes, and sites and subgraphs."""
    return float(sum(row[stage] for stage in STAGES))


def _by_cost(rows: Sequence[Row]) -> str:
    lines, before = [], {}
    for row in sorted(rows, key=lambda row: (row["family"], row["sites"], row["size"])):
        cells = [row["family"], str(row["sites"]), f"{row['size']:,}"]
        if row["outcome"]:
            lines.append([*cells, row["outcome"], *[""] * 7])
            continue
        last = before.get((row["family"], row["sites"]))
        before[row["family"], row["sites"]] = row
        more = "" if last is None else f"x{growth(_decided(last), _decided(row), row['size'] / last['size']):.2f}"
        stages = [short(row[stage]) for stage in STAGES]
        lines.append(
            [
                *cells,
                *stages,
                short(_decided(row)),
                more,
                short(row["wall"]),
                f"{row['subgraphs']:,}",
                short(row["peak"]),
            ]
        )
    head = ("graph", "sites", "operations", *STAGES, "all", "doubling", "wall of all")
    return markdown([*head, "subgraphs", "peak MB"], lines, 1)
