"""How long dividing a program takes, and how well: beside TVM and torch.fx.

Run as `python -m benchmarks decompose [SIZE ...]`: every family of graphs (`_graphs.py`), one accelerator that takes
some kinds of operations, and every partitioner that is installed (`_partitioners.py`), each in a process of its own
that is ended after two minutes. Printed are CPU seconds, growth of memory, regions and tensors that pass between
parts. Ours are forming regions alone, as theirs, and all stages with costs and proofs left out.

With `--costs` sites are chosen by cost, two and four of them: seconds of every stage, and how they grow. ONNX Runtime
has no peer here: its partitioning runs inside the making of a session, and the CPU wheel has one provider.
"""

from __future__ import annotations

import multiprocessing
import random
import resource
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from multiprocessing.connection import Connection

from benchmarks._graphs import FAMILIES, SITES, Graph, costs_of, module_of, tree_of
from benchmarks._partitioners import PEERS, cut_tensors
from tvmtarget.ir.flow import readers_of
from tvmtarget.partition.assignment.choose import ByCost
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.dataflow import dataflow_of
from tvmtarget.partition.feasibility import Feasibility
from tvmtarget.partition.program import normalise
from tvmtarget.partition.regions.limits import Limiter, Limits
from tvmtarget.partition.regions.portfolio import formed
from tvmtarget.partition.split import split
from tvmtarget.partition.values import owners, values_of

SIZES = (1_000, 4_000, 10_000, 100_000)
BY_COST = (1_000, 10_000, 100_000)

# Seconds of wall time after which a peer is ended.
LIMIT = 120


def ours(graph: Graph, taken: list[bool]) -> Callable[[], list[list[int]]]:
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

    def divide() -> list[list[int]]:
        limiter = Limiter(successors, atoms, values)
        regions = formed(successors, colours, [Limits()] * 2, [1, 0], limiter, values)
        return [region for region in regions if not colours[region[0]]]

    return divide


def measured(name: str, family: str, size: int, answer: Connection) -> None:
    """Send what one partitioner takes and makes, or why it does not."""
    graph = FAMILIES[family](size)
    rng = random.Random(1)
    kinds = [rng.random() < 0.7 for _ in range(13)]
    taken = [kinds[number] if family not in ("wide", "random") else rng.random() < 0.7 for _, number in graph]
    try:
        peer = ours if name == "tvmtarget" else PEERS[name][0]
        peer(FAMILIES["chain"](9), [True] * 9)()  # what is imported or made at the first use does not count
        divide = peer(graph, taken)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begin = time.process_time()
        regions = divide()
        seconds = time.process_time() - begin
        memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        cut = str(cut_tensors(graph, regions)) if regions and regions[0] else "-"
        answer.send(f"{seconds:>10.3f} s {memory:>8.0f} MB {len(regions):>7} regions {cut:>8} cut")
    except ImportError as error:
        answer.send(f"not installed ({error.name})")
    except Exception as error:
        answer.send(f"failed: {str(error).splitlines()[0][:60] if str(error) else type(error).__name__}")


def row(name: str, family: str, size: int) -> str:
    """Return what one partitioner takes and makes, measured in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours_end, theirs_end = context.Pipe(duplex=False)
    process = context.Process(target=measured, args=(name, family, size, theirs_end))
    process.start()
    theirs_end.close()
    try:
        return str(ours_end.recv()) if ours_end.poll(LIMIT) else f"more than {LIMIT} s"
    except EOFError:
        return "failed: its process ended"
    finally:
        process.kill()
        process.join()


def beside_peers(sizes: Sequence[int]) -> None:
    """Print a row per family, size and partitioner."""
    for family in FAMILIES:
        for size in sizes:
            for name in ("tvmtarget", *PEERS):
                if name == "tvmtarget" or size <= PEERS[name][1]:
                    print(f"{family:>12} {size:>8} {name:>14} {row(name, family, size)}", flush=True)


def by_cost(sizes: Sequence[int]) -> None:
    """Print a row per family, number of sites and size: CPU seconds by stage, and growth of all but the first."""
    print(f"{'graph':>12} {'sites':>5} {'ops':>8} {'normalise':>9} {'feasible':>9} {'decide':>9} {'growth':>15}")
    for family in FAMILIES:
        for count in (2, 4):
            last: tuple[int, float] | None = None
            for size in sizes:
                module = module_of(FAMILIES[family](size))
                steps = [time.process_time()]
                program = normalise(module, tree_of(count), {})
                steps.append(time.process_time())
                feasibility = Feasibility(program)
                feasibility.check_all()
                steps.append(time.process_time())
                chooser = ByCost(feasibility, Estimates(program, costs_of(SITES[-count:])))
                root = split(program, feasibility, program.layout[""], tuple(range(size)), chooser)
                steps.append(time.process_time())
                taken = steps[-1] - steps[1]
                growth = "" if last is None else f"x{taken / last[1]:.1f} for x{size / last[0]:.0f}"
                last = size, taken
                parts = " ".join(f"{b - a:>9.3f}" for a, b in pairwise(steps))
                print(f"{family:>12} {count:>5} {size:>8} {parts} {growth:>15} {len(root.parts)} regions", flush=True)


def main() -> None:
    """Print a row per case."""
    sizes = [int(word) for word in sys.argv[1:] if word != "--costs"]
    if "--costs" in sys.argv[1:]:
        by_cost(sizes or BY_COST)
    else:
        beside_peers(sizes or SIZES)


if __name__ == "__main__":
    main()
