"""What options and constraints add to a decomposition: seconds over the plain one, and how they grow.

Run as `python -m benchmarks requests [--rows NAME ...] [--scale FACTOR ...]`. A row is one kind of option with as many
names as it is measured with at the largest scale, 1; smaller scales take fewer names, on the same program. Programs are
of the families in `_graphs.py`: a transformer of 4,000 operations on two sites for options, a random one of 400 for
operations that are pinned to random leaves of a wide or a deep tree. Printed are CPU seconds without and with the
option, the difference, and how the difference grows when the number of names, children or levels doubles.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks._apart import Caps, Ended, apart
from benchmarks._arguments import at_least, positive
from benchmarks._graphs import FAMILIES, module_of, tree_of
from benchmarks._results import growth
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.plan import decompose
from tvmtarget.target.tree import Target

OPS, PINNED_OPS = 4_000, 400
SCALES = (0.25, 0.5, 1.0)

Options = Mapping[str, Any]
Case = tuple[IRModule, Target, Options]


def names(count: int) -> list[str]:
    """Return distinct names of operations at random."""
    return random.Random(0).sample([f"n{index}" for index in range(OPS)], count)


def pairs(count: int) -> list[list[str]]:
    """Return disjoint pairs of operations at random."""
    drawn = names(2 * count)
    return [drawn[at : at + 2] for at in range(0, 2 * count, 2)]


def neighbours(count: int) -> list[list[str]]:
    """Return disjoint pairs of operations that are listed one after the other."""
    return [[f"n{at}", f"n{at + 1}"] for at in sorted(random.Random(0).sample(range(0, OPS - 1, 2), count))]


OPTIONS: Mapping[str, tuple[int, Callable[[int], Options]]] = {
    "boundary_before": (1_000, lambda count: {"boundary_before": names(count)}),
    "atomic": (1_000, lambda count: {"atomic": neighbours(count)}),
    "same_site": (1_000, lambda count: {"same_site": pairs(count)}),
    "apart": (60, lambda count: {"apart": pairs(count)}),
}


def wide(count: int) -> str:
    """Return a system of so many children."""
    return f"[{','.join(f's{number}=numpy' for number in range(count))}]"


def deep(count: int) -> str:
    """Return so many systems, each in the one above, with a leaf beside each."""
    text = "[a=numpy,b=numpy]"
    for _ in range(count - 1):
        text = f"[a=numpy,b={text}]"
    return text


TREES: Mapping[str, tuple[int, Callable[[int], str]]] = {"wide": (500, wide), "deep": (40, deep)}
ROWS = (*OPTIONS, *TREES)


def case(row: str, count: int) -> Case:
    """Return the program, the tree and the options of a row."""
    if row in OPTIONS:
        return module_of(FAMILIES["transformer"](OPS)), tree_of(2), OPTIONS[row][1](count)
    tree = Target.parse(TREES[row][1](count))
    leaves, rng = [path for path, node in tree.walk() if not node.is_composite], random.Random(0)
    where = {f"n{index}": f"@{rng.choice(leaves)}" for index in range(PINNED_OPS)}
    return module_of(FAMILIES["random"](PINNED_OPS)), tree, {"where": where}


def measured(row: str, count: int) -> tuple[float, float]:
    """Return CPU seconds of a decomposition without and with the options of a row."""
    module, tree, options = case(row, count)
    decompose(module_of(FAMILIES["chain"](9)), tree_of(2))  # what is imported at the first use does not count
    seconds = []
    for given in ({}, options):
        begin = time.process_time()
        decompose(module, tree, **given)
        seconds.append(time.process_time() - begin)
    return seconds[0], seconds[1]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per row and scale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=ROWS, choices=ROWS, metavar="NAME", help=", ".join(ROWS))
    parser.add_argument("--scale", nargs="+", type=positive, default=SCALES, metavar="FACTOR", help="at most 1")
    parser.add_argument(
        "--cap", type=at_least(1), default=60, help="seconds of processor time, %(default)s unless given"
    )
    options = parser.parse_args(arguments)
    if max(options.scale) > 1:
        parser.error(f"argument --scale: {max(options.scale):g} is more than 1, the largest scale")
    print(f"{'row':>16} {'count':>6} {'plain':>9} {'with':>9} {'more':>9} {'doubling':>8}")
    for row in options.rows:
        most = (OPTIONS[row] if row in OPTIONS else TREES[row])[0]
        last: tuple[int, float] | None = None
        for scale in sorted(options.scale):
            count = max(2, round(scale * most))
            found = apart(measured, row, count, caps=Caps(options.cap, 8.0))
            if isinstance(found, Ended):
                print(f"{row:>16} {count:>6} {found.reason:>9}", flush=True)
                continue
            plain, taken = found
            more = max(taken - plain, 1e-3)  # seconds; the noise of the clock can be larger than what an option adds
            grown = f"x{growth(last[1], more, count / last[0]):.2f}" if last and last[0] < count else ""
            print(f"{row:>16} {count:>6} {plain:>7.3f} s {taken:>7.3f} s {more:>7.3f} s {grown:>8}", flush=True)
            last = count, more


if __name__ == "__main__":
    main()
