"""Measured rates of the leaves of a target: the time of a call, and how fast the code of each code generator is.

Each leaf runs the small programs of `rate_programs.py`: one operation on almost no data, convolutions of each form and
products at several sizes, elementwise operations, and operators between two convolutions, as they are in networks. The
time of such an operator is that of its program less that of the program without it; it is zero if it is fused. The time
of a call is that of two programs less that of both in one, and the time of a byte is the same difference with more
bytes. So the costs include what a cut loses: layouts and fusion. They are shares of peak rates, by size where several
sizes were measured, so that they hold for other sizes. Convolutions with many weights run on cold caches, as in a
network. Leaves run each program by turns, so that other load slows them all down equally; leaves of one code generator
and equal targets are measured once. A log keeps the times of these programs, and serves them as long as it has all
leaves of a target, measured with the versions that are installed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import onnx

from tvmtarget.autotune.log.match import Policy
from tvmtarget.autotune.log.records import Candidate, Measurement, Workload
from tvmtarget.autotune.log.tuning_log import TuningLog
from tvmtarget.autotune.search.device import device_lock, holding
from tvmtarget.autotune.search.rate_programs import (
    CACHE_FLUSH_BYTES,
    CALL,
    COLD,
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
    identity,
    programs,
    samples,
)
from tvmtarget.autotune.search.timing import Inputs, random_inputs
from tvmtarget.backends.protocol import Backend
from tvmtarget.building.backend_choice import choose_backend
from tvmtarget.building.compile_plan import build, codegen_target
from tvmtarget.building.executable import Executable
from tvmtarget.building.tuned_schedules import kernel_target
from tvmtarget.errors import BackendError, ReadOnlyLogError, RunError, TvmTargetError
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.costs.costs import Costs, LinkCost, OpCost, SiteCost
from tvmtarget.partition.costs.work import Work, work_of
from tvmtarget.partition.plan import Plan, decompose
from tvmtarget.target.topology import Site, Topology
from tvmtarget.target.tree import Target, TargetLike, as_target

__all__ = ["DOUBT", "RATES", "MeasuredRates", "measure_rates"]

RATES = "tvmtarget.rates/1"  # the format of a candidate: picoseconds of the fastest run of each program by its name

RUNS = 100  # of a program on a leaf at most
SECONDS = 0.3  # for each leaf, after which a program is not run again; as many may pass between its runs
LONG = 1.0  # seconds; a first run that takes longer is counted, as allocating memory is a small part of it
IN_A_ROW = 2  # because idle threads of one leaf still spin while the next one begins
# How much faster than the usual rate an operator may be: peaks are set this much above the measured rates.
HEADROOM = 10.0
LEAST_SHARE = 1e-6
LEAST_TIME = 0.01  # microseconds, below which a difference is noise
DOUBT = 0.2  # relative error of times by these rates, see `python -m benchmarks placement`

SMALL_COPY, LARGE_COPY = 4096, 1 << 24  # bytes
COPIES = 20

# Operators and the work of each, in order.
Works: TypeAlias = list[tuple[str, Work]]


@dataclass(frozen=True)
class MeasuredRates:
    """The rates of the leaves of a target.

    Attributes:
        costs: the rates by the paths of leaves.
        left_out: why other leaves were not measured.
        is_known: whether a log had all times, so that nothing was measured but copies.
    """

    costs: Costs
    left_out: tuple[str, ...] = ()
    is_known: bool = False

    def lines(self) -> Iterator[str]:
        """Describe the rates.

        Yields:
            Lines with the rates of each leaf and the cost of its operators in multiples of the usual one, the links,
            and what was not measured.
        """
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
    """Print the cost of an operator in multiples of the usual one, by size."""
    shares = [share for _, share in op.roofline] if isinstance(op.roofline, tuple) else [op.roofline or 1.0]
    return f"{op.form or op.op} " + "-".join(f"x{1 / (HEADROOM * share):.2g}" for share in shares)


@dataclass
class _Leaf:
    """A leaf on its own, what measured it, and the microseconds of the fastest run of each program."""

    target: Target
    origin: str
    times: dict[str, float] = field(default_factory=dict)


def measure_rates(
    target: TargetLike, *, allow_interpreter: bool = False, log: TuningLog | None = None
) -> MeasuredRates:
    """Measure the leaves of a target that can run on this machine.

    Args:
        target: the target in any form that `Target.parse` reads.
        allow_interpreter: let numpy interpret leaves without a code generator, as for `build`.
        log: a log, whose times are used if it has those of all leaves; else what is measured is written into it, unless
            it is a file of lines, which is only read.

    Returns:
        The rates, and why other leaves were left out.
    """
    tree = as_target(target)
    topology = Topology(tree.resolve())
    known: dict[str, _Leaf] = {}
    paths: dict[str, str] = {}
    links: list[LinkCost] = []
    left_out: list[str] = []
    for leaf in topology.leaves():
        alone = codegen_target(topology, leaf.path)
        try:
            backend, _ = choose_backend(topology, leaf.path, allow_interpreter=allow_interpreter)
            reason = backend.unsupported_reason(alone)
        except (BackendError, RunError) as error:
            left_out += error.problems
            continue
        if reason is not None:
            left_out.append(f"@{leaf.path or '.'} cannot run on this machine: {reason}")
            continue
        paths[leaf.path] = key = f"{backend.name} {alone.digest}"
        known.setdefault(key, _Leaf(alone, f"measured, {backend.version()}"))
        links += _link_costs(topology, leaf, alone, backend)
    works: dict[str, Works] = {}
    is_known = log is not None and bool(known) and _read_times(log, known.values(), works)
    for group in programs() if known and not is_known else ():
        works |= _measure(group, list(known.values()), allow_interpreter=allow_interpreter)
    if log is not None and not is_known:
        _write_times(log, known.values())
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
    costs = Costs(sites=sites, links=tuple(links), ops=tuple(ops), doubt=DOUBT)
    return MeasuredRates(costs, tuple(left_out), is_known)


def _workload() -> Workload:
    """Return the workload of the rates of a leaf, which is another one if the programs change."""
    return Workload.of({"op": "rates", "programs": identity()})


def _read_times(log: TuningLog, leaves: Collection[_Leaf], works: dict[str, Works]) -> bool:
    """Set the times of all leaves, and the work of the programs, from a log; return whether it has all of them."""
    workload, policy = _workload(), Policy(max_distance=0, strict=True)
    found: list[dict[str, float]] = []
    for leaf in leaves:
        match = log.lookup(workload, kernel_target(leaf.target), policy=policy, unusable=_problem)
        # A target with another number of threads is equal for kernels, but not for times.
        if match.candidate is None or match.tier not in ("pin", "exact"):
            return False
        found.append({name: taken / 1e6 for name, taken in _times_of(match.candidate)})
    for leaf, times in zip(leaves, found, strict=True):
        leaf.times.update(times)
    for name, model in (item for group in programs() for item in group.items()):
        taking = next((leaf for leaf in leaves if name in leaf.times), None)
        if taking is not None:
            works[name] = _works_of(decompose(IRModule.from_onnx(model), taking.target))
    return True


def _times_of(candidate: Candidate) -> Iterator[tuple[str, int]]:
    body = candidate.body if isinstance(candidate.body, Mapping) else {}
    times = body.get("times")
    for name, taken in times.items() if isinstance(times, Mapping) else ():
        # A log may come from someone else, and every program takes some time.
        if type(taken) is int and taken > 0:
            yield str(name), taken


def _problem(candidate: Candidate) -> str | None:
    is_complete = candidate.format == RATES and {name for name, _ in _times_of(candidate)} >= NEEDED
    return None if is_complete else f"the candidate is not of format {RATES!r}, or lacks times of programs"


def _write_times(log: TuningLog, leaves: Iterable[_Leaf]) -> None:
    workload = _workload()
    for leaf in leaves:
        times = {name: round(taken * 1e6) for name, taken in sorted(leaf.times.items())}
        if not times.keys() >= NEEDED:
            continue
        # All costs are 1, so that a lookup returns the oldest record, and not that of the fastest call.
        measured = Measurement(status="ok", costs=(1,))
        try:
            log.add(workload, kernel_target(leaf.target), Candidate(format=RATES, body={"times": times}), measured)
        except ReadOnlyLogError:
            return


def _measure(
    group: Mapping[str, onnx.ModelProto], leaves: Sequence[_Leaf], *, allow_interpreter: bool
) -> dict[str, Works]:
    """Run programs on leaves by turns, store the times, and return the work of operators by program."""
    runs: list[_Run] = []
    works: dict[str, Works] = {}
    other = np.zeros(CACHE_FLUSH_BYTES, "uint8")
    for name, model in group.items():
        module = IRModule.from_onnx(model)
        for leaf in leaves:
            try:
                plan = decompose(module, leaf.target)
                program = build(plan, allow_interpreter=allow_interpreter)
                for one in program.code.values():
                    one.compiled  # noqa: B018 - loads what the compile cache has, with TVM: 1 to 4 s
                inputs = random_inputs(plan) or {}
                prepare = partial(_flush_caches, other, inputs) if name in COLD else None
                run = _Run(leaf, name, _runner(program, inputs), prepare)
                run.once()
            except TvmTargetError:
                continue
            if run.spent < LONG:
                run = replace(run, least=float("inf"), spent=0.0, waited=0.0, count=0)
            runs.append(run)
            works[name] = _works_of(plan)
    with holding(device_lock()):
        while active := [run for run in runs if run.is_active]:
            for run in active:
                run.repeat()
    for run in runs:
        run.leaf.times[run.name] = run.least
    return works


def _works_of(plan: Plan) -> Works:
    ops = map(plan.program.op, range(len(plan.program.body)))
    return [(op.kind, work) for op in ops if isinstance(work := work_of(op, {}), Work)]


@dataclass
class _Run:
    """A program of a leaf: microseconds of its fastest run, seconds of and before all runs, and their number."""

    leaf: _Leaf
    name: str
    work: Callable[[], object]
    prepare: Callable[[], object] | None = None  # called before each run
    least: float = float("inf")
    spent: float = 0.0
    waited: float = 0.0
    count: int = 0

    @property
    def is_active(self) -> bool:
        """Whether it is to run again."""
        return max(self.spent, self.waited) < SECONDS and self.count < RUNS

    def once(self) -> None:
        """Run once."""
        if self.prepare is not None:
            begin = time.perf_counter_ns()
            self.prepare()
            self.waited += (time.perf_counter_ns() - begin) / 10**9
        begin = time.perf_counter_ns()
        self.work()
        taken = time.perf_counter_ns() - begin
        self.least = min(self.least, taken / 1000)
        self.spent += taken / 10**9
        self.count += 1

    def repeat(self) -> None:
        """Run a few times in a row."""
        for _ in range(IN_A_ROW):
            if self.is_active:
                self.once()


def _flush_caches(other: np.ndarray[Any, Any], inputs: Inputs) -> None:
    """Replace what caches hold by other memory, then by inputs, which in a network were just written."""
    other.fill(1)
    for array in inputs.values():
        array.sum()


def _rates(leaf: _Leaf, works: Mapping[str, Works]) -> tuple[SiteCost, list[OpCost]]:
    """Return the rates of a leaf, and the shares of them that operators reach."""
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
    for (op, form), group in groupby(samples(), key=lambda sample: (sample.op, sample.form)):
        shares: list[tuple[float, float]] = []
        for sample in (each for each in group if each.program in times):
            own = [work for kind, work in works[sample.program] if kind == op]
            ideal = sum(max(work.flops / flops, work.nbytes / mem_bw) for work in own) * 1e6 / HEADROOM
            taken = max(times[sample.program] - times[sample.without], LEAST_TIME)
            shares.append((float(own[0].size), min(1.0, max(LEAST_SHARE, ideal / taken))))
        if shares:
            share = tuple(shares) if len(shares) > 1 else shares[0][1]
            found.append(OpCost("", op=op, form=form, roofline=share, origin=leaf.origin))
    return peaks, found


def _runner(program: Executable, inputs: Inputs) -> Callable[[], object]:
    """Return a function that runs a program; inputs of a program of one device are in its memory already."""
    leaves = list(program.code.values())
    leaf = leaves[0] if len(leaves) == 1 else None
    if leaf is None or leaf.request.target.device == "cpu" or "device-memory" not in leaf.backend.supports:
        return lambda: program.run(inputs)
    values = [leaf.backend.place(inputs[name], leaf.request.target, 0) for name in program.inputs]
    return lambda: leaf.compiled.run_on(0, values)


def _link_costs(topology: Topology, leaf: Site, alone: Target, backend: Backend) -> Iterator[LinkCost]:
    """Yield the costs of copies from the memory of a leaf's host to its own and back, if these are two."""
    home, place = topology[leaf.host].domain, backend.place
    if "device-memory" not in backend.supports or leaf.domain == home or leaf.target.device == "cpu":
        return
    here = {size: np.zeros(size, "uint8") for size in (SMALL_COPY, LARGE_COPY)}
    there = {size: place(array, alone, 0) for size, array in here.items()}
    to = [_fastest(partial(place, array, alone, 0)) for array in here.values()]
    back = [_fastest(value.numpy) for value in there.values()]
    origin = f"measured, {backend.version()}"
    for src, dst, (small, large) in ((home, leaf.path, to), (leaf.path, home, back)):
        bandwidth = (LARGE_COPY - SMALL_COPY) / max(large - small, 1) * 1e9
        yield LinkCost(src, dst, max(0.0, small / 1000 - SMALL_COPY / bandwidth * 1e6), bandwidth, origin)


def _fastest(work: Callable[[], object]) -> int:
    """Return the nanoseconds of the fastest of some calls."""
    times = []
    for _ in range(COPIES):
        begin = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - begin)
    return min(times)
