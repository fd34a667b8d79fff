"""How long partitioning a program takes, and how good the result is, beside torch.fx, TVM and ONNX Runtime.

Run as `python -m benchmarks decompose [SIZE ...] [--families NAME ...] [--peers NAME ...] [--cap SECONDS]`: every
family of graphs (`_graphs.py`), one accelerator that takes some kinds of operations, and every partitioner that is
installed (`_partitioners.py`), each in a process of its own. What takes more than the cap of processor time to make the
graph or to partition it, or more than `--memory` gigabytes, is ended, and not tried with more operations of the family.

Printed are CPU seconds, how many times ours that is and how it grows when the program doubles; wall seconds; the peak
of memory, and that less what the process held before it had the graph; subgraphs, and values and megabytes that pass
between parts, each once for every part that reads it; then where a peer has fewer.

With `--costs` sites are chosen by cost, two and four of them: CPU seconds of every stage, how they grow, and the peak
of memory. With `--rows FILE` rows are also written to a file as they come, and those that are there are not measured
again; `--markdown FILE` writes tables of them. Both kinds of rows can be in one file.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks._apart import Caps, Ended, allow, apart, held, peak, restart_peak
from benchmarks._arguments import at_least, positive
from benchmarks._decompose_tables import STAGES, page
from benchmarks._graphs import FAMILIES, SITES, Graph, costs_of, module_of, tree_of
from benchmarks._partitioners import OURS, PARTITIONERS
from benchmarks._results import Results, growth
from tvmtarget.ir.types import TensorType
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.flat_program import normalise
from tvmtarget.partition.placement.by_cost import CostChooser
from tvmtarget.partition.placement.feasibility import Feasibility
from tvmtarget.partition.stages import split

SIZES = (1_000, 4_000, 10_000, 100_000, 1_000_000)
BY_COST = (1_000, 10_000, 100_000)

# Work is done again until it took so many seconds of the processor, and the mean counts: on a busy virtual machine the
# clock of a process stands still for milliseconds and then leaps.
BRIEF = 0.3


def sizes_of(graph: Graph) -> list[int]:
    """Return the bytes of every value."""
    types = (call.outputs[0].type for call in module_of(graph).main.body)
    return [(type_.nbytes or 0) if isinstance(type_, TensorType) else 0 for type_ in types]


def measured(name: str, family: str, size: int, cap: int) -> dict[str, Any]:
    """Return what one partitioner takes and makes; the cap is for making the graph, and for partitioning it."""
    graph = FAMILIES[family](size)
    rng = random.Random(1)
    kinds = [rng.random() < 0.7 for _ in range(13)]
    taken = [kinds[number] if family not in ("wide", "random") else rng.random() < 0.7 for _, number in graph]
    partitioner = PARTITIONERS[name]
    partitioner(FAMILIES["chain"](9), [True] * 9)()()  # what is imported or made at the first use does not count
    gc.collect()
    base = held()
    partition = partitioner(graph, taken)
    gc.collect()
    restart_peak()
    allow(cap)
    times = 0
    begin = time.process_time(), time.perf_counter()
    while not times or time.process_time() - begin[0] < BRIEF:
        count = partition()
        times += 1
    seconds, wall = (time.process_time() - begin[0]) / times, (time.perf_counter() - begin[1]) / times
    most = peak()
    allow(10 * cap)
    found = count()
    crossing = found.crossing
    sizes = [] if crossing is None else sizes_of(graph)
    return {
        "seconds": seconds,
        "wall": wall,
        "peak": round(most, 1),
        "more": round(most - base, 1),
        "subgraphs": found.subgraphs,
        "values": None if crossing is None else len(crossing),
        "nbytes": None if crossing is None else sum(sizes[value] for value in crossing),
    }


def beside_peers(results: Results, options: argparse.Namespace) -> None:
    """Print a row per family, size and partitioner, and where a peer makes fewer subgraphs or passes fewer bytes."""
    print(
        f"{'graph':>12} {'ops':>8} {'partitioner':>15} {'CPU':>12} {'x ours':>9} {'doubling':>8} {'wall':>12} "
        f"{'peak MB':>8} {'less base':>9} {'subgraphs':>8} {'values':>8} {'MB cut':>8}"
    )
    names = [name for name in PARTITIONERS if options.peers is None or name == OURS or name in options.peers]
    behind: list[str] = []
    for family in options.families:
        capped: set[str] = set()
        last: dict[str, Any] = {}
        for size in options.sizes or SIZES:
            found: dict[str, Any] = {}
            for name in (name for name in names if name not in capped):
                row = results.get(family, size, name)
                if row is None or (row["outcome"].startswith(">") and row["cap"] < options.cap):
                    row = results.add(_row(name, family, size, options))
                if row["outcome"].startswith(">"):
                    capped.add(name)
                found[name] = row
                print(_line(row, found.get(OURS), last.get(name)), flush=True)
                last[name] = row
            behind += _behind(family, size, found)
    print(*behind, sep="\n")


def _row(name: str, family: str, size: int, options: argparse.Namespace) -> dict[str, Any]:
    found = apart(measured, name, family, size, options.cap, caps=Caps(options.cap, options.memory))
    given = {"outcome": found.reason} if isinstance(found, Ended) else {"outcome": "", **found}
    return {"family": family, "size": size, "partitioner": name, "cap": options.cap, **given}


def _line(row: Any, reference: Any, before: Any) -> str:
    """Return a row as text, its time as a multiple of ours, and as one of what half as many operations would take."""
    line = f"{row['family']:>12} {row['size']:>8} {row['partitioner']:>15}"
    if row["outcome"]:
        is_late = row["outcome"].endswith(" s") and reference and not reference["outcome"]
        return f"{line} {row['outcome']:>12}" + (f" {row['cap'] / reference['seconds']:>8.0f}x" if is_late else "")
    times = "" if not reference or reference["outcome"] else f"{row['seconds'] / reference['seconds']:.1f}x"
    more = ""
    if before and not before["outcome"] and before["size"] < row["size"]:
        more = f"x{growth(before['seconds'], row['seconds'], row['size'] / before['size']):.2f}"
    made = (row["subgraphs"], row["values"], None if row["nbytes"] is None else round(row["nbytes"] / 1e6))
    return (
        f"{line} {row['seconds']:>10.4f} s {times:>9} {more:>8} {row['wall']:>10.4f} s {row['peak']:>8.0f} "
        f"{row['more']:>9.1f} {' '.join(f'{chr(45) if number is None else number:>8}' for number in made)}"
    )


def _behind(family: str, size: int, found: dict[str, Any]) -> list[str]:
    lines = []
    for name, row in found.items():
        for what in ("subgraphs", "values", "nbytes"):
            theirs, own = row.get(what), found.get(OURS, {}).get(what)
            if theirs is not None and own is not None and own > theirs:
                lines.append(f"{family} {size}: {name} has fewer {what}: {theirs:,}, ours {own:,}")
    return lines


def staged(family: str, count: int, size: int) -> dict[str, Any]:
    """Return CPU seconds by stage of choosing sites by cost, the number of subgraphs, and megabytes at the peak."""
    module = module_of(FAMILIES[family](size))
    gc.collect()
    begin, steps = time.perf_counter(), [time.process_time()]
    program = normalise(module, tree_of(count), {})
    steps.append(time.process_time())
    feasibility = Feasibility(program)
    feasibility.check_all()
    steps.append(time.process_time())
    chooser = CostChooser(feasibility, Estimates(program, costs_of(SITES[-count:])))
    root = split(program, feasibility, program.topology[""], tuple(range(size)), chooser)
    steps.append(time.process_time())
    stages = dict(zip(STAGES, (b - a for a, b in pairwise(steps)), strict=True))
    wall = time.perf_counter() - begin
    return {**stages, "wall": wall, "subgraphs": len(root.parts), "peak": round(peak(), 1)}


def by_cost(results: Results, options: argparse.Namespace) -> None:
    """Print a row per family, number of sites and size: CPU seconds by stage, and how all of them grow."""
    print(
        f"{'graph':>12} {'sites':>5} {'ops':>8} {' '.join(f'{name:>9}' for name in (*STAGES, 'wall'))} "
        f"{'doubling':>8} {'subgraphs':>8} {'peak MB':>8}"
    )
    for family in options.families:
        for count in (2, 4):
            before: Any = None
            for size in options.sizes or BY_COST:
                row = results.get(family, size, count)
                if row is None:
                    found = apart(staged, family, count, size, caps=Caps(10 * options.cap, options.memory))
                    given = {"outcome": found.reason} if isinstance(found, Ended) else {"outcome": "", **found}
                    row = results.add({"family": family, "size": size, "sites": count} | given)
                print(_stages_line(row, before), flush=True)
                before = None if row["outcome"] else row


def _stages_line(row: Any, before: Any) -> str:
    line = f"{row['family']:>12} {row['sites']:>5} {row['size']:>8}"
    if row["outcome"]:
        return f"{line} {row['outcome']}"
    taken = [sum(one[stage] for stage in STAGES) for one in (before, row) if one]
    more = f"x{growth(*taken, row['size'] / before['size']):.2f}" if before else ""  # type: ignore[call-arg]
    parts = " ".join(f"{row[stage]:>9.3f}" for stage in (*STAGES, "wall"))
    return f"{line} {parts} {more:>8} {row['subgraphs']:>8} {row['peak']:>8.0f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=at_least(1), metavar="SIZE", help="numbers of operations")
    parser.add_argument("--families", nargs="+", default=tuple(FAMILIES), choices=FAMILIES, metavar="NAME")
    parser.add_argument("--peers", nargs="*", choices=PARTITIONERS, metavar="NAME", help=", ".join(PARTITIONERS))
    parser.add_argument(
        "--cap", type=at_least(1), default=60, help="seconds of processor time, %(default)s unless given"
    )
    parser.add_argument("--memory", type=positive, default=8.0, help="gigabytes, %(default)s unless given")
    parser.add_argument("--costs", action="store_true", help="choose sites by cost")
    parser.add_argument("--rows", type=Path, help="a file of rows, which are kept and not measured again")
    parser.add_argument("--markdown", type=Path, help="write tables of all rows of the file")
    options = parser.parse_args(arguments)
    peers = Results(options.rows, ("family", "size", "partitioner"))
    costs = Results(options.rows, ("family", "size", "sites"))
    if options.costs:
        by_cost(costs, options)
    else:
        beside_peers(peers, options)
    if options.markdown is not None:
        options.markdown.write_text(page(peers.rows.values(), costs.rows.values()))


if __name__ == "__main__":
    main()
