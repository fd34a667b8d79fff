"""Listing, resolving and finding tags, beside apache-tvm's registry, which builds all of its tags when it is imported.

Each row is a time inside a new interpreter after the import of the library, the least of several; what one process
can do again is warm. The last rows are whole processes, without the time of one that does nothing. A process that
imports pydantic and defines one model is the floor of ours.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks._arguments import at_least

# What to import, once; then what is timed.
OURS = "from tvmtarget import Target; from tvmtarget.tags.registry import default_registry"
THEIRS = "import tvm; from tvm.target import Target, list_tags"
TAG = "nvidia/nvidia-a100"
SYSTEM = "aws/p4d.24xlarge"
CLUSTER = "aws/p4d-cluster"  # nodes, devices, and the host of a GPU
FIND = "from tvmtarget.tags.finding import read_constraint, find_satisfying; R = default_registry()"
CONSTRAINTS = (
    "cuda(arch>=sm_80)",
    "llvm(num-cores>=64)",
    "gpu(memory>=64GiB)",
    "[cuda(count>=8),llvm(num-cores>=64)]",
    "nvidia/jetson-nano",
)
SEARCH = "from tvmtarget import search_tags"
# Two machines of 2,000 devices with different sizes.
WIDE = """
import random
from tvmtarget import Target
def machine(seed):
    some = random.Random(seed)
    gpus = [{"name": f"gpu{n}", "kind": "cuda", "arch": some.choice(["sm_80", "sm_86", "sm_90"]),
             "memory": [{"name": "vram", "bytes": some.randrange(8 << 30, 90 << 30)}]} for n in range(1000)]
    cpus = [{"name": f"cpu{n}", "kind": "llvm", "mcpu": some.choice(["skylake", "znver3", "znver4"]),
             "num-cores": some.randrange(1, 128)} for n in range(1000)]
    return Target.from_json({"kind": "composite", "targets": [*gpus, *cpus]})
here, there = machine(1), machine(2)
"""

# Question, then for TVM and for us: the import, what comes before the clock starts, and what is timed.
ROWS: dict[str, tuple[tuple[str, str, str] | None, tuple[str, str, str]]] = {
    "all names, first time": ((THEIRS, "", "list_tags()"), (OURS, "", "list(default_registry())")),
    "all names, again": ((THEIRS, "list_tags()", "list_tags()"), (OURS, "R = default_registry(); list(R)", "list(R)")),
    "names and documents": (None, (OURS, "R = default_registry()", "[R.info(name).doc for name in R]")),
    "one tag, cold": ((THEIRS, "", f"Target({TAG!r})"), (OURS, "", f"default_registry()[{TAG!r}]")),
    "a system, cold": (None, (OURS, "", f"default_registry()[{SYSTEM!r}]")),
    "a system of depth three, cold": (None, (OURS, "", f"default_registry()[{CLUSTER!r}]")),
    "one tag, warm": (
        (THEIRS, f"Target({TAG!r})", f"Target({TAG!r})"),
        (OURS, f"R = default_registry(); R[{TAG!r}]", f"R[{TAG!r}]"),
    ),
    "every tree": (None, (OURS, "R = default_registry()", "[R.tree(name) for name in R]")),
    "search h100 8": (None, (f"{OURS}; {SEARCH}", "", "search_tags('h100 8')")),
    "search h100 8, again": (None, (f"{OURS}; {SEARCH}", "search_tags('rpi4')", "search_tags('h100 8')")),
    **{
        f"{text}{when}": (None, (f"{OURS}; {FIND}", before, f"find_satisfying(R, read_constraint(R, {text!r}))"))
        for text in CONSTRAINTS
        for when, before in (("", ""), (", again", f"find_satisfying(R, read_constraint(R, {text!r}))"))
    },
    "why_not of 2,000 devices": (None, (OURS, WIDE, "here.why_not(there)")),
}

# Whole processes: the question, and the code for TVM and for us.
PROCESSES = {
    "process that reads a tag": (
        f"import tvm; tvm.target.Target({TAG!r})",
        "import tvmtarget; tvmtarget.Target.parse('aws/c5')",
    ),
    "process with one pydantic model": (None, "import pydantic\nclass A(pydantic.BaseModel):\n    x: int"),
}


def milliseconds(imports: str, before: str, work: str) -> float:
    """Return the time of one piece of code in a new interpreter, after what comes before it."""
    code = f"import time\n{imports}\n{before}\nbegin = time.perf_counter()\n{work}\nprint(time.perf_counter() - begin)"
    return float(_output(code)) * 1e3


def process_milliseconds(code: str) -> float:
    """Return the time of a whole process."""
    begin = time.perf_counter()
    _run(code)
    return (time.perf_counter() - begin) * 1e3


def _output(code: str) -> str:
    return _run(code).split()[-1]


def _run(code: str) -> str:
    # Installed packages have bytecode, so that a checkout is to have it too.
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least(1), default=7, help="processes for each time")
    rounds = parser.parse_args().rounds
    print(f"{'ms':<44} {'TVM':>9} {'tvmtarget':>9}")
    counts = _output(f"{THEIRS}\nprint(len(list_tags()))"), _output(f"{OURS}\nprint(len(default_registry()))")
    print(f"{'tags':<44} {counts[0]:>9} {counts[1]:>9}")
    for name, sides in ROWS.items():
        _print_row(name, [min(milliseconds(*side) for _ in range(rounds)) if side else None for side in sides])
    nothing = min(process_milliseconds("") for _ in range(rounds))
    for name, codes in PROCESSES.items():
        times = [min(process_milliseconds(code) for _ in range(rounds)) - nothing if code else None for code in codes]
        _print_row(name, times)


def _print_row(name: str, times: Sequence[float | None]) -> None:
    print(f"{name:<44} " + " ".join(f"{'':>9}" if one is None else f"{one:>9.4f}" for one in times), flush=True)


if __name__ == "__main__":
    main()
