"""Making, printing and comparing targets, beside apache-tvm's.

Cold is a new interpreter that imports the library and does the work once: milliseconds of the whole process without
those of an empty one, the least of several runs in turn. Warm is one process for both, microseconds; "new" are values,
texts and trees that were not seen before, of which nothing is remembered. At the end is how our own costs grow with the
number of children, and what the deepest tree is.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from benchmarks._arguments import at_least

T = TypeVar("T")

WITH_HOST: dict[str, object] = {
    "kind": "cuda",
    "arch": "sm_80",
    "max_threads_per_block": 1024,
    "host": {"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 4},
}
SYSTEM = {"kind": "composite", "devices": [{"kind": "cuda", "arch": "sm_80"}, {"kind": "llvm", "mcpu": "haswell"}]}
TAG = "nvidia/nvidia-a100"

IMPORTS = {"TVM": "import tvm\nTarget = tvm.target.Target", "tvmtarget": "from tvmtarget import Target"}

# The operations that both perform, in the words of each.
COLD: dict[str, dict[str, str]] = {
    "import": {"TVM": "", "tvmtarget": ""},
    "dict with host": {"TVM": f"Target({WITH_HOST!r})", "tvmtarget": f"Target.from_json({WITH_HOST!r})"},
    "JSON text": {
        "TVM": f"Target({json.dumps(WITH_HOST)!r})",
        "tvmtarget": f"Target.parse({json.dumps(WITH_HOST)!r})",
    },
    "tag": {"TVM": f"Target({TAG!r})", "tvmtarget": f"Target.parse({TAG!r})"},
    "composite": {"TVM": f"Target({SYSTEM!r})", "tvmtarget": f"Target.from_json({SYSTEM!r})"},
    "all tags listed": {
        "TVM": "assert len(tvm.target.list_tags()) > 250",
        "tvmtarget": "from tvmtarget.tags.registry import default_registry\nassert len(list(default_registry())) > 300",
    },
}

SIZES = (1_000, 10_000, 100_000)


def process_ms(code: str) -> float:
    """Run code in a new interpreter and return the milliseconds of the whole process."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True)
    return (time.perf_counter() - begin) * 1e3


def cold(rounds: int) -> None:
    """Print a row for each question, the two libraries in turn."""
    print(f"{'cold, ms':<20} {'TVM':>9} {'tvmtarget':>10} {'TVM / ours':>11}")
    empty = min(process_ms("") for _ in range(rounds))
    for name, sides in COLD.items():
        codes = {side: f"{IMPORTS[side]}\n{code}" for side, code in sides.items()}
        runs = [{side: process_ms(code) - empty for side, code in codes.items()} for _ in range(rounds)]
        theirs, ours = (min(run[side] for run in runs) for side in ("TVM", "tvmtarget"))
        print(f"{name:<20} {theirs:>9.1f} {ours:>10.1f} {theirs / ours:>11.1f}", flush=True)


def microseconds(work: Callable[[], object], seconds: float = 0.2) -> float:
    """Return the least time of one call, over repetitions that together take some time."""
    return microseconds_of_new(lambda: None, lambda _: work(), seconds)


def microseconds_of_new(make: Callable[[], T], use: Callable[[T], object], seconds: float = 0.2) -> float:
    """Return the least time of one use of a new value, whose making is not counted."""
    use(make())
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        made = [make() for _ in range(20)]
        begin = time.perf_counter()
        for one in made:
            use(one)
        best = min(best, (time.perf_counter() - begin) / len(made))
    return best * 1e6


def warm() -> None:
    """Print a row for each question, both in this process."""
    import tvm
    import tvm_ffi

    from tvmtarget import Target
    from tvmtarget.tags.registry import default_registry

    theirs, ours = tvm.target.Target, Target
    text = json.dumps(WITH_HOST)
    one, other = theirs(WITH_HOST), theirs(WITH_HOST)
    mine, yours = ours.from_json(WITH_HOST), ours.from_json(WITH_HOST)
    numbers = itertools.count(1)

    def new() -> dict[str, object]:
        """Return the device with its host, and a number that no other has."""
        return WITH_HOST | {"max_threads_per_block": next(numbers)}

    def new_text() -> str:
        return json.dumps(new())

    def new_line() -> str:
        return f"cuda -arch=sm_80 -max_threads_per_block={next(numbers)}"

    def same() -> None:
        return None

    # What makes the value of each call, and what both do with it; None for what the other does not have.
    rows: dict[str, tuple[Callable[[], Any], Callable[[Any], object] | None, Callable[[Any], object]]] = {
        "dict with host": (same, lambda _: theirs(WITH_HOST), lambda _: ours.from_json(WITH_HOST)),
        "new dict with host": (new, theirs, ours.from_json),
        "new JSON text": (new_text, theirs, ours.parse),
        "new command line": (new_line, None, ours.parse),
        "JSON text": (same, lambda _: theirs(text), lambda _: ours.parse(text)),
        "tag": (same, lambda _: theirs(TAG), lambda _: ours.parse(TAG)),
        "tag by the registry": (same, lambda _: theirs(TAG), lambda _: default_registry()[TAG]),
        "composite": (same, lambda _: theirs(SYSTEM), lambda _: ours.from_json(SYSTEM)),
        "all tags listed": (same, lambda _: tvm.target.list_tags(), lambda _: list(default_registry())),
        "print": (same, lambda _: str(one), lambda _: str(mine)),
        "hash": (same, lambda _: tvm_ffi.structural_hash(one), lambda _: hash(mine)),
        "digest": (same, lambda _: tvm_ffi.structural_hash(one), lambda _: mine.digest),
        "equality": (same, lambda _: tvm_ffi.structural_equal(one, other), lambda _: mine == yours),
    }
    print(f"\n{'warm, us':<20} {'TVM':>9} {'tvmtarget':>10} {'TVM / ours':>11}")
    for name, (make, theirs_use, ours_use) in rows.items():
        own = microseconds_of_new(make, ours_use)
        if theirs_use is None:
            print(f"{name:<20} {'-':>9} {own:>10.2f} {'-':>11}", flush=True)
        else:
            peer = microseconds_of_new(make, theirs_use)
            print(f"{name:<20} {peer:>9.2f} {own:>10.2f} {peer / own:>11.2f}", flush=True)
    works: dict[str, Callable[[Target], object]] = {"print": str, "digest": lambda tree: tree.digest}
    works |= {"hash": hash, "resolve": Target.resolve}
    print(f"\n{'of a new tree, us':<20} {'with host':>9} {'composite':>10}")
    for name, use in works.items():
        times = [microseconds_of_new(lambda: ours.from_json(data), use) for data in (WITH_HOST, SYSTEM)]  # noqa: B023
        print(f"{name:<20} {times[0]:>9.2f} {times[1]:>10.2f}", flush=True)


def growth(sizes: Sequence[int]) -> None:
    """Print what trees of many children cost, and how deep one may be."""
    from tvmtarget import Target
    from tvmtarget.errors import TargetError

    print(f"\n{'children':<10}" + "".join(f"{what:>14}" for what in ("read ms", "print ms", "digest ms", "resolve ms")))
    for size in sizes:
        flat = {"targets": [{"name": f"gpu{at}", "kind": "cuda", "arch": "sm_80"} for at in range(size)]}
        tree = Target.from_json(flat)
        works = (lambda: Target.from_json(flat), lambda: str(tree), lambda: tree.digest, lambda: tree.resolve())  # noqa: B023
        print(f"{size:<10}" + "".join(f"{milliseconds(work):>14.1f}" for work in works), flush=True)
    for depth in (64, 65):
        text = "[" * (depth - 1) + "llvm" + "]" * (depth - 1)
        try:
            print(f"depth {depth}: {milliseconds(lambda: Target.parse(text)):.1f} ms")  # noqa: B023
        except TargetError as error:
            print(f"depth {depth}: refused: {error}")


def milliseconds(work: Callable[[], object]) -> float:
    """Return the processor time of one call, in which other programs of a busy machine do not count."""
    begin = time.process_time()
    work()
    return (time.process_time() - begin) * 1e3


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least(1), default=7, help="processes for each cold time")
    parser.add_argument("--sizes", type=at_least(1), nargs="*", default=SIZES, help="numbers of children")
    options = parser.parse_args()
    cold(options.rounds)
    warm()
    growth(options.sizes)


if __name__ == "__main__":
    main()
