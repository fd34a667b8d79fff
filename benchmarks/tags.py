"""Listing tags and resolving them, beside apache-tvm's registry, which builds all of its tags when it is imported.

Each row is a time inside a new interpreter after the import of the library, the least of several; what one process
can do again is warm.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

# What to import, once; then what is timed.
OURS = "from tvmtarget import Target; from tvmtarget.tags.registry import default_registry"
THEIRS = "import tvm; from tvm.target import Target, list_tags"
TAG = "nvidia/nvidia-a100"
SYSTEM = "aws/p4d.24xlarge"
FIND = "from tvmtarget.tags.finding import read_constraint, find_satisfying; tags = default_registry()"

# Question, then for TVM and for us: the import, what comes before the clock starts, and what is timed.
ROWS: dict[str, tuple[tuple[str, str, str] | None, tuple[str, str, str]]] = {
    "all names, first time": ((THEIRS, "", "list_tags()"), (OURS, "", "list(default_registry())")),
    "all names, again": ((THEIRS, "list_tags()", "list_tags()"), (OURS, "R = default_registry(); list(R)", "list(R)")),
    "names and documents": (None, (OURS, "R = default_registry()", "[R.info(name).doc for name in R]")),
    "one tag, cold": ((THEIRS, "", f"Target({TAG!r})"), (OURS, "", f"default_registry()[{TAG!r}]")),
    "a system, cold": (None, (OURS, "", f"default_registry()[{SYSTEM!r}]")),
    "one tag, warm": (
        (THEIRS, f"Target({TAG!r})", f"Target({TAG!r})"),
        (OURS, f"R = default_registry(); R[{TAG!r}]", f"R[{TAG!r}]"),
    ),
    "every tree": (None, (OURS, "R = default_registry()", "[R.tree(name) for name in R]")),
    "cuda(arch>=sm_80)": (
        None,
        (f"{OURS}; {FIND}", "", "find_satisfying(tags, read_constraint(tags, 'cuda(arch>=sm_80)'))"),
    ),
    "llvm(num-cores>=64)": (
        None,
        (f"{OURS}; {FIND}", "", "find_satisfying(tags, read_constraint(tags, 'llvm(num-cores>=64)'))"),
    ),
}


def milliseconds(imports: str, before: str, work: str) -> float:
    """Return the time of one piece of code in a new interpreter, after what comes before it."""
    code = f"import time\n{imports}\n{before}\nbegin = time.perf_counter()\n{work}\nprint(time.perf_counter() - begin)"
    return float(_output(code)) * 1e3


def _output(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.split()[-1]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="processes for each time")
    rounds = parser.parse_args().rounds
    print(f"{'ms':<24} {'TVM':>9} {'tvmtarget':>9}")
    counts = _output(f"{THEIRS}\nprint(len(list_tags()))"), _output(f"{OURS}\nprint(len(default_registry()))")
    print(f"{'tags':<24} {counts[0]:>9} {counts[1]:>9}")
    for name, sides in ROWS.items():
        times = [min(milliseconds(*side) for _ in range(rounds)) if side else None for side in sides]
        print(f"{name:<24} " + " ".join(f"{'':>9}" if time is None else f"{time:>9.4f}" for time in times), flush=True)


if __name__ == "__main__":
    main()
