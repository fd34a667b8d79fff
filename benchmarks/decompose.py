"""How long dividing a program takes, and how well: beside torch.fx, TVM and ONNX Runtime.

Run as `python -m benchmarks decompose [SIZE ...]`: every family of graphs (`_graphs.py`), one accelerator that takes
some kinds of operations, and every partitioner that is installed (`_partitioners.py`), each in a process of its own
that is ended after five minutes of CPU time. Printed are CPU seconds and how many times ours that is, the peak of
memory and how much of it dividing adds, regions, and values and bytes that pass between parts (each once for every
part that reads it); then where a peer has fewer. Ours are forming regions alone, as theirs, and all stages with costs
and proofs left out.

With `--costs [SIZE ...]` sites are chosen by cost, two and four of them: CPU seconds of every stage, how they grow, and
the peak of memory.
"""

from __future__ import annotations

import gc
import multiprocessing
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

from benchmarks._graphs import FAMILIES, SITES, Graph, costs_of, module_of, tree_of
from benchmarks._partitioners import PEERS, Counting, divided
from tvmtarget.ir.flow import readers_of
from tvmtarget.ir.types import TensorType
from tvmtarget.partition.assignment.choose import ByCost
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.dataflow import dataflow_of
from tvmtarget.partition.feasibility import Feasibility
from tvmtarget.partition.program import normalise
from tvmtarget.partition.regions.limits import Limiter, Limits
from tvmtarget.partition.regions.portfolio import formed
from tvmtarget.partition.split import split
from tvmtarget.partition.values import owners, values_of

SIZES = (1_000, 4_000, 10_000, 100_000, 1_000_000)
BY_COST = (1_000, 10_000, 100_000)

# Graphs of at least so many operations are made of two families only.
HUGE, HUGE_FAMILIES = 1_000_000, ("chain", "transformer")

# Seconds of CPU time after which a process is ended.
LIMIT = 300

# What takes less than this many seconds is done three times; the least counts.
BRIEF = 0.5

OURS = "tvmtarget"


@dataclass(frozen=True)
class Figures:
    """What one partitioner takes: CPU seconds, megabytes at the peak and above what there was, and what it makes."""

    seconds: float
    peak: float
    more: float
    regions: int | None
    cut: int | None
    nbytes: int | None


def ours(graph: Graph, taken: list[bool]) -> Callable[[], Counting]:
    """tvmtarget: regions of an accelerator and a host."""
    successors: list[list[int]] = [[] for _ in graph]
    for index, (reads, _) in enumerate(graph):
        for before in reads:
            if before >= 0:
                successors[before].append(index)
    colours = [int(not is_taken) for is_taken in taken]
    atoms = [(index,) for index in range(len(graph))]
    main = module_of(graph).main
    values = values_of(dataflow_of(main, 0, readers_of(main)), owners(len(graph), atoms), len(graph))

    def divide() -> Counting:
        limiter = Limiter(successors, atoms, values)
        regions = formed(successors, colours, [Limits()] * 2, [1, 0], limiter, values)
        return lambda: divided(graph, [region for region in regions if not colours[region[0]]])

    return divide


def sizes_of(graph: Graph) -> list[int]:
    """Return the bytes of every value."""
    types = (call.outputs[0].type for call in module_of(graph).main.body)
    return [(type_.nbytes or 0) if isinstance(type_, TensorType) else 0 for type_ in types]


def measured(name: str, family: str, size: int) -> Figures:
    """Return what one partitioner takes and makes."""
    graph = FAMILIES[family](size)
    rng = random.Random(1)
    kinds = [rng.random() < 0.7 for _ in range(13)]
    taken = [kinds[number] if family not in ("wide", "random") else rng.random() < 0.7 for _, number in graph]
    peer = ours if name == OURS else PEERS[name][0]
    peer(FAMILIES["chain"](9), [True] * 9)()()  # what is imported or made at the first use does not count
    divide = peer(graph, taken)
    gc.collect()
    before, times = _peak(), []
    while len(times) < 3 and (not times or times[-1] < BRIEF):
        begin = time.process_time()
        count = divide()
        times.append(time.process_time() - begin)
    peak = _peak()
    found = count()
    crossing = found.crossing
    sizes = [] if crossing is None else sizes_of(graph)
    nbytes = None if crossing is None else sum(sizes[value] for value in crossing)
    return Figures(min(times), peak, peak - before, found.regions, None if crossing is None else len(crossing), nbytes)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _answer(work: Callable[..., Any], arguments: tuple[Any, ...], end: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT + 5))
    try:
        end.send(work(*arguments))
    except ImportError as error:
        end.send(f"not installed ({error.name})")
    except Exception as error:
        end.send(f"failed: {str(error).splitlines()[0][:60] if str(error) else type(error).__name__}")


def apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns in a process of its own, or in a few words why it does not."""
    context = multiprocessing.get_context("spawn")
    ours_end, theirs_end = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(work, arguments, theirs_end))
    process.start()
    theirs_end.close()
    try:
        return ours_end.recv()
    except EOFError:
        process.join()
        is_late = process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL)
        return f"more than {LIMIT} s of CPU time" if is_late else f"failed: its process ended ({process.exitcode})"
    finally:
        process.kill()
        process.join()


def row(found: Figures | str, reference: Figures | str) -> str:
    """Return the figures of one partitioner as text, its time as a multiple of ours."""
    if isinstance(found, str):
        least = f", {LIMIT / reference.seconds:.0f}x" if found.startswith("more") and _is(reference) else ""
        return f"{found}{least}"
    times = f"{found.seconds / reference.seconds:>8.1f}x" if _is(reference) else " " * 9
    made = [
        f"{'-' if number is None else number:>8}"
        for number in (found.regions, found.cut, None if found.nbytes is None else round(found.nbytes / 1e6))
    ]
    return f"{found.seconds:>10.4f} s {times} {found.peak:>7.0f} {found.more:>6.0f} {' '.join(made)}"


def _is(found: Figures | str) -> bool:
    return isinstance(found, Figures)


def beside_peers(sizes: Sequence[int]) -> None:
    """Print a row per family, size and partitioner, and where a peer makes fewer regions or passes fewer bytes."""
    print(
        f"{'graph':>12} {'ops':>8} {'partitioner':>14} {'CPU':>12} {'x ours':>9} "
        f"{'peak MB':>7} {'more':>6} {'regions':>8} {'values':>8} {'MB cut':>8}"
    )
    behind = []
    for family in FAMILIES:
        for size in sizes:
            if size >= HUGE and family not in HUGE_FAMILIES:
                continue
            reference = apart(measured, OURS, family, size)
            found = {OURS: reference}
            found |= {name: apart(measured, name, family, size) for name, (_, most) in PEERS.items() if size <= most}
            for name, figures in found.items():
                print(f"{family:>12} {size:>8} {name:>14} {row(figures, reference)}", flush=True)
            behind += _behind(family, size, found)
    print(*behind, sep="\n")


def _behind(family: str, size: int, found: dict[str, Any]) -> list[str]:
    reference = found[OURS]
    lines = []
    for name, figures in found.items():
        for what in ("regions", "cut", "nbytes"):
            theirs = getattr(figures, what, None)
            own = getattr(reference, what, None)
            if theirs is not None and own is not None and own > theirs:
                lines.append(f"{family} {size}: {name} has fewer {what}: {theirs}, ours {own}, {own / theirs:.3f}x")
    return lines


def staged(family: str, count: int, size: int) -> tuple[list[float], int, float]:
    """Return CPU seconds by stage of choosing sites by cost, the number of regions, and megabytes at the peak."""
    module = module_of(FAMILIES[family](size))
    gc.collect()
    steps = [time.process_time()]
    program = normalise(module, tree_of(count), {})
    steps.append(time.process_time())
    feasibility = Feasibility(program)
    feasibility.check_all()
    steps.append(time.process_time())
    chooser = ByCost(feasibility, Estimates(program, costs_of(SITES[-count:])))
    root = split(program, feasibility, program.layout[""], tuple(range(size)), chooser)
    steps.append(time.process_time())
    return [b - a for a, b in pairwise(steps)], len(root.parts), _peak()


def by_cost(sizes: Sequence[int]) -> None:
    """Print a row per family, number of sites and size: CPU seconds by stage, and how all but the first grow."""
    print(f"{'graph':>12} {'sites':>5} {'ops':>8} {'normalise':>9} {'feasible':>9} {'decide':>9} {'growth':>15}")
    for family in FAMILIES:
        for count in (2, 4):
            last: tuple[int, float] | None = None
            for size in sizes:
                if size >= HUGE and family not in HUGE_FAMILIES:
                    continue
                found = apart(staged, family, count, size)
                if isinstance(found, str):
                    print(f"{family:>12} {count:>5} {size:>8} {found}", flush=True)
                    continue
                stages, regions, peak = found
                taken = sum(stages[1:])
                growth = "" if last is None else f"x{taken / last[1]:.1f} for x{size / last[0]:.0f}"
                last = size, taken
                parts = " ".join(f"{stage:>9.3f}" for stage in stages)
                print(
                    f"{family:>12} {count:>5} {size:>8} {parts} {growth:>15} {regions:>7} regions {peak:>6.0f} MB peak",
                    flush=True,
                )


def main() -> None:
    """Print a row per case."""
    sizes = [int(word) for word in sys.argv[1:] if word != "--costs"]
    if "--costs" in sys.argv[1:]:
        by_cost(sizes or BY_COST)
    else:
        beside_peers(sizes or SIZES)


if __name__ == "__main__":
    main()
