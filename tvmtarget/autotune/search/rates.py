"""Rates of the leaves of a tree, measured here: what a call takes, and how fast each code generator's code is.

Each leaf runs small programs (`rate_programs.py`): one operation on next to nothing, convolutions of each form and
products at several sizes, elementwise operations, and operators as they are in networks, between two convolutions. Such
an operator takes what the program takes longer than without it, which is nothing where it is fused. A call takes what
two programs take longer than both in one, and what a byte that passes takes, the same with more bytes: so what is lost
where a program is cut counts, layouts and fusion. What is found are costs that `decompose` takes, as shares of peaks,
by size where several were measured, so that they hold for other sizes. Leaves run each program by turns, so that what
else the machine does slows all of them down alike; those of one code generator and equal targets are measured once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TypeAlias

import onnx

from tvmtarget.autotune.search.device import device_lock, holding
from tvmtarget.autotune.search.rate_programs import (
    CALL,
    DTYPE,
    LARGE_ONE,
    LARGE_PASSED,
    LARGE_TWO,
    MOVING,
    NEEDED,
    ONE,
    PASSED,
    TWO,
    USUAL,
    programs,
    samples,
)
from tvmtarget.autotune.search.timing import made_up_inputs
from tvmtarget.autotune.search.transfer_bench import links_of, run_in_place
from tvmtarget.building.compile_plan import build, choose_backend, codegen_target
from tvmtarget.errors import BackendError, RunError, TvmTargetError
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.costs.costs import Costs, LinkCost, OpCost, SiteCost
from tvmtarget.partition.costs.work import Work, work_of
from tvmtarget.partition.plan import decompose
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import Target

__all__ = ["DOUBT", "MeasuredRates", "measure_rates"]

RUNS = 100  # of a program on a leaf at most
SECONDS = 0.3  # for each leaf, after which a program is not run again
IN_A_ROW = 2  # as idle threads of one leaf spin into the next
# How much faster than the usual an operator may be; peaks are that much above the rates that are measured.
HEADROOM = 10.0
LEAST_SHARE = 1e-6
LEAST_TIME = 0.01  # microseconds, below which a difference says nothing
# How far off times by these rates are: see `python -m benchmarks placement`.
DOUBT = 0.2


# Operators and the work of each, in order.
Works: TypeAlias = list[tuple[str, Work]]


@dataclass(frozen=True)
class MeasuredRates:
    """Costs that hold the rates of leaves by path, and why those of others are not in them."""

    costs: Costs
    left_out: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """Yield the rates, a leaf each, with what operators take in multiples of the usual; then what is left out."""
        for path, site in self.costs.sites.items():
            rate, moved = (peak / 1e9 / HEADROOM for peak in (site.flops.get(DTYPE, 0.0), site.mem_bw or 0.0))
            passed = f", {site.boundary_bw / 1e9:.3g} GB/s where values pass" if site.boundary_bw else ""
            call = f"{site.launch:.3g} us a call{passed}"
            yield f"@{path or '.'}: {call}, {rate:.3g} GFLOP/s, {moved:.3g} GB/s ({site.origin})"
            yield "  " + ", ".join(_multiples(op) for op in self.costs.ops if op.site == path)
        for link in self.costs.links:
            yield f"{link.src} to {link.dst}: {link.latency:.3g} us, {link.bandwidth / 1e9:.3g} GB/s"
        yield from (f"not measured: {reason}" for reason in self.left_out)


def _multiples(op: OpCost) -> str:
    """Print what an operator takes in multiples of the usual, by size."""
    shares = [share for _, share in op.roofline] if isinstance(op.roofline, tuple) else [op.roofline or 1.0]
    return f"{op.form or op.op} " + "-".join(f"x{1 / (HEADROOM * share):.2g}" for share in shares)


@dataclass
class _Leaf:
    """A leaf that is all there is, who measured it, and microseconds of the fastest run of each program."""

    target: Target
    origin: str
    times: dict[str, float] = field(default_factory=dict)


def measure_rates(target: Target | str, *, allow_interpreter: bool = False) -> MeasuredRates:
    """Measure the leaves of a tree that can run on this machine; `allow_interpreter` as for `build`."""
    tree = Target.parse(target) if isinstance(target, str) else target
    topology = Topology(tree.resolve())
    known: dict[str, _Leaf] = {}
    paths: dict[str, str] = {}
    links: list[LinkCost] = []
    left_out: list[str] = []
    for leaf in topology.leaves():
        alone = codegen_target(topology, leaf.path)
        try:
            backend, _ = choose_backend(topology, leaf.path, allow_interpreter=allow_interpreter)
            refusal = backend.refuses(alone)
        except (BackendError, RunError) as error:
            left_out += error.problems
            continue
        if refusal is not None:
            left_out.append(f"@{leaf.path or '.'} cannot run on this machine: {refusal}")
            continue
        paths[leaf.path] = key = f"{backend.name} {alone.digest}"
        known.setdefault(key, _Leaf(alone, f"measured, {backend.version()}"))
        links += links_of(topology, leaf, alone, backend)
    works: dict[str, Works] = {}
    for group in programs() if known else ():
        works |= _measure(group, list(known.values()), allow_interpreter=allow_interpreter)
    sites: dict[str, SiteCost] = {}
    ops: list[OpCost] = []
    found = {key: _rates(leaf, works) for key, leaf in known.items() if leaf.times.keys() >= NEEDED}
    for path, key in paths.items():
        if key not in found:
            missing = ", ".join(sorted(NEEDED - known[key].times.keys()))
            left_out.append(f"@{path or '.'} does not take what rates are measured by: {missing}")
            continue
        sites[path], own = found[key]
        ops += [replace(op, site=path) for op in own]
    return MeasuredRates(Costs(sites=sites, links=tuple(links), ops=tuple(ops), doubt=DOUBT), tuple(left_out))


def _measure(
    group: Mapping[str, onnx.ModelProto], leaves: Sequence[_Leaf], *, allow_interpreter: bool
) -> dict[str, Works]:
    """Run programs on leaves by turns, and note the time of each that can; return the work of operators by program."""
    runs: list[_Run] = []
    works: dict[str, Works] = {}
    for name, model in group.items():
        module = IRModule.from_onnx(model)
        for leaf in leaves:
            try:
                plan = decompose(module, leaf.target)
                program = build(plan, allow_interpreter=allow_interpreter)
                run = _Run(leaf, name, run_in_place(program, made_up_inputs(plan) or {}))
                run.work()  # loads what is needed
            except TvmTargetError:
                continue
            runs.append(run)
            ops = map(plan.program.op, range(len(plan.program.body)))
            works[name] = [(op.kind, work) for op in ops if isinstance(work := work_of(op, {}), Work)]
    with holding(device_lock()):
        going = runs
        while going:
            for run in going:
                run.again()
            going = [run for run in going if run.spent < SECONDS and run.count < RUNS]
    for run in runs:
        run.leaf.times[run.name] = run.least
    return works


@dataclass
class _Run:
    """A program of a leaf, the microseconds of its fastest run, and how often and for how many seconds it ran."""

    leaf: _Leaf
    name: str
    work: Callable[[], object]
    least: float = float("inf")
    spent: float = 0.0
    count: int = 0

    def again(self) -> None:
        """Run a few times in a row."""
        for _ in range(IN_A_ROW):
            begin = time.perf_counter_ns()
            self.work()
            taken = time.perf_counter_ns() - begin
            self.least = min(self.least, taken / 1000)
            self.spent += taken / 10**9
            self.count += 1


def _rates(leaf: _Leaf, works: Mapping[str, Works]) -> tuple[SiteCost, list[OpCost]]:
    """Return the rates of a leaf, and what operators reach of them."""
    times, call = leaf.times, leaf.times[CALL]
    flops = sum(work.flops for _, work in works[USUAL]) / max(times[USUAL] - call, LEAST_TIME) * 1e6
    mem_bw = sum(work.nbytes for _, work in works[MOVING]) / max(times[MOVING] - call, LEAST_TIME) * 1e6
    small, large = (2 * times[one] - times[two] for one, two in ((ONE, TWO), (LARGE_ONE, LARGE_TWO)))
    passing = max(large - small, 0.0) / (LARGE_PASSED - PASSED)  # microseconds a byte, out of a function and into one
    peaks = SiteCost(
        launch=max(call, small - passing * PASSED),
        boundary_bw=2e6 / passing if passing else None,
        flops={DTYPE: HEADROOM * flops},
        mem_bw=HEADROOM * mem_bw,
        roofline=1 / HEADROOM,
        origin=leaf.origin,
    )
    found: list[OpCost] = []
    for (op, form), alike in groupby(samples(), key=lambda sample: (sample.op, sample.form)):
        shares: list[tuple[float, float]] = []
        for sample in (each for each in alike if each.program in times):
            own = [work for kind, work in works[sample.program] if kind == op]
            ideal = sum(max(work.flops / flops, work.nbytes / mem_bw) for work in own) * 1e6 / HEADROOM
            taken = max(times[sample.program] - times[sample.without], LEAST_TIME)
            shares.append((float(own[0].size), min(1.0, max(LEAST_SHARE, ideal / taken))))
        if shares:
            share = tuple(shares) if len(shares) > 1 else shares[0][1]
            found.append(OpCost("", op=op, form=form, roofline=share, origin=leaf.origin))
    return peaks, found
