"""Programs on systems of systems: how long `decompose` takes, the predicted time of the plan, and its lower bound.

Run as `python -m benchmarks nested [SIZE ...] [--trees NAME ...] [--families NAME ...] [--seeds COUNT]`: every family
of graphs (`_graphs.py`) on every tree of `TREES`, with the costs of each seed, in a process of its own. Printed are
processor seconds, the predicted milliseconds of the plan, and how far the bound that the summary prints is below it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import tvmtarget as tt
from benchmarks._apart import Caps, Ended, apart
from benchmarks._arguments import at_least
from benchmarks._graphs import FAMILIES, module_of, times_of_kinds
from tvmtarget.partition.costs.costs import Costs, LinkCost, SiteCost
from tvmtarget.target.node import Memory
from tvmtarget.target.tree import Target

# The children of a system, each with its own; the last one is the CPU that drives it. Leaves are devices with memories
# of their own, but for those whose names begin with `cpu`.
System: TypeAlias = Mapping[str, "System"]

_LEAF: System = {}
_DEVICES: System = {f"d{number}": _LEAF for number in range(5)} | {"cpu": _LEAF}
_CORES: System = {f"cpu{number}": _LEAF for number in range(5)} | {"cpu": _LEAF}


def _levels(count: int) -> System:
    """Return systems in systems, each with a device."""
    system: System = {"gpu": _LEAF, "cpu": _LEAF}
    for _ in range(count):
        system = {"x": system, "npu": _LEAF, "cpu": _LEAF}
    return system


TREES: Mapping[str, System] = {
    "one": {"a": {"gpu": _LEAF, "npu": _LEAF, "cpu": _LEAF}, "dsp": _LEAF, "cpu": _LEAF},
    "two": {"a": {"gpu": _LEAF, "cpu": _LEAF}, "b": {"npu": _LEAF, "cpu": _LEAF}, "cpu": _LEAF},
    "deep": {
        "a": {"x": {"gpu": _LEAF, "cpu": _LEAF}, "npu": _LEAF, "cpu": _LEAF},
        "b": {"dsp": _LEAF, "cpu": _LEAF},
        "cpu": _LEAF,
    },
    "cores": {"a": _CORES, "b": _CORES, "c": _CORES, "cpu": _LEAF},
    "levels": _levels(16),
    "many": {f"s{number}": _DEVICES for number in range(10)} | {"cpu": _LEAF},
}

SIZES = (1_000, 2_500, 10_000)


def tree_of(system: System) -> Target:
    """Return the target of a system."""
    parsed = Target.parse(_text(system))

    def with_memories(target: Target, inner: System) -> Target:
        children = tuple(with_memories(child, inner[child.name or ""]) for child in target.targets)
        devices = [name for name, below in inner.items() if not below and not _is_cpu(name)]
        memory = tuple(Memory(name=f"of-{name}", of=(name,)) for name in devices)
        return target.replace(targets=children, memory=memory) if inner else target

    return with_memories(parsed, system)


def _text(system: System) -> str:
    kinds = {
        name: _text(below) if below else "numpy" if _is_cpu(name) else "onnxruntime" for name, below in system.items()
    }
    return f"[{','.join(f'{name}={kind}' for name, kind in kinds.items())}](host=@cpu)"


def costs_of(system: System, seed: int) -> Costs:
    """Return a time for every operator and leaf, some heavy and far faster on devices, calls of devices, and links."""
    leaves = list(_leaves(system))
    ops = times_of_kinds(leaves, seed, cpus={leaf for leaf in leaves if _is_cpu(leaf)})
    launches = {leaf: SiteCost(0.0 if leaf.rpartition("/")[2] == "cpu" else 10.0) for leaf in leaves}
    return Costs(sites=launches, links=tuple(_links(system)), ops=ops)


def _is_cpu(path: str) -> bool:
    return path.rpartition("/")[2].startswith("cpu")


def _leaves(system: System, path: str = "") -> Iterator[str]:
    for name, below in system.items():
        if below:
            yield from _leaves(below, f"{path}{name}/")
        else:
            yield f"{path}{name}"


def _links(system: System, path: str = "") -> Iterator[LinkCost]:
    """Yield a link from the CPU of each system to those of the systems in it, and to its devices."""
    for name, below in system.items():
        if below:
            yield LinkCost(f"{path}cpu", f"{path}{name}/cpu", 20.0, 5e9)
            yield from _links(below, f"{path}{name}/")
        elif not _is_cpu(name):
            yield LinkCost(f"{path}cpu", f"{path}{name}", 8.0, 1.2e10)


def measured(tree: str, family: str, size: int, seed: int) -> tuple[float, float, float]:
    """Return processor seconds, the predicted milliseconds of the plan, and the gap to its bound in percent."""
    target, costs = tree_of(TREES[tree]), costs_of(TREES[tree], seed)
    tt.decompose(module_of(FAMILIES[family](60)), target, costs)  # what is imported at the first use does not count
    module = module_of(FAMILIES[family](size))
    begin = time.process_time()
    prediction = tt.decompose(module, target, costs).prediction
    seconds = time.process_time() - begin
    assert prediction is not None
    bound = prediction.lower_bound or 0
    return seconds, prediction.total / 1e9, 100 * (1 - bound / prediction.total)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row per tree, family, size and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=at_least(1), metavar="SIZE", help="numbers of operations")
    parser.add_argument("--trees", nargs="+", default=tuple(TREES), choices=TREES)
    parser.add_argument("--families", nargs="+", default=("transformer", "random", "wide"), choices=FAMILIES)
    parser.add_argument("--seeds", type=at_least(1), default=2, help="numbers of costs, %(default)s unless given")
    parser.add_argument(
        "--cap", type=at_least(1), default=120, help="seconds of processor time, %(default)s unless given"
    )
    options = parser.parse_args(arguments)
    print("| tree | graph | operations | seed | s | plan, ms | gap |")
    print("| --- | --- | --: | --: | --: | --: | --: |")
    for size in options.sizes or SIZES:
        for tree in options.trees:
            for family in options.families:
                for seed in range(options.seeds):
                    found = apart(measured, tree, family, size, seed, caps=Caps(options.cap, 8.0))
                    row = found.reason if isinstance(found, Ended) else "{:.2f} | {:.1f} | {:.1f} %".format(*found)
                    print(f"| {tree} | {family} | {size:,} | {seed} | {row} |", flush=True)


if __name__ == "__main__":
    main()
