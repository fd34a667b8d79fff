"""Rates of the leaves of a tree, measured here: what a call takes, and how fast each code generator's code is.

Each leaf runs small programs: one operation on next to nothing, convolutions, elementwise operations, and operators
as they are in networks, between two convolutions. Such an operator takes what the program takes longer than without
it, which is nothing where it is fused. A call takes what two programs take longer than both in one, so that what is
lost where a program is cut counts, layouts and fusion. What is found are costs that `decompose` takes, as shares of
peaks, so that they hold for other sizes. Leaves of one code generator and equal targets are measured once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvmtarget.building import build, choose_backend, standing_alone
from tvmtarget.errors import BackendError, RunError, TvmTargetError
from tvmtarget.executable import Executable
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.costs.costs import Costs, OpCost, SiteCost
from tvmtarget.partition.costs.estimate import Estimates
from tvmtarget.partition.decompose import decompose
from tvmtarget.partition.plan import Plan
from tvmtarget.target.layout import Layout
from tvmtarget.target.tree import Target
from tvmtarget.tuner.device import device_lock, holding
from tvmtarget.tuner.running import made_up_inputs

__all__ = ["MeasuredRates", "measure_rates"]

DTYPE = "float32"
RUNS = 100  # of a program at most
SECONDS = 0.3  # after which it is not run again
LEAST_RUNS = 3
# How much faster than the usual an operator may be; peaks are that much above the rates that are measured.
HEADROOM = 10.0
LEAST_SHARE = 1e-6
LEAST_TIME = 0.01  # microseconds, below which a difference says nothing

CHANNELS, SIZE, WIDTH = 64, 28, 2048
POOL = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
# Operators that are measured between two convolutions, and their attributes.
BETWEEN: Mapping[str, Mapping[str, object]] = {
    "Relu": {},
    "Sigmoid": {},
    "BatchNormalization": {},
    "Add": {},
    "MaxPool": POOL,
    "AveragePool": POOL,
    "LRN": {"size": 5},
    "Transpose": {"perm": [0, 1, 3, 2]},
}


@dataclass(frozen=True)
class MeasuredRates:
    """Costs that hold the rates of leaves by path, and why those of others are not in them."""

    costs: Costs
    left_out: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """Yield the rates, a leaf each, with what operators take in multiples of the usual; then what is left out."""
        for path, site in self.costs.sites.items():
            rate, moved = (peak / 1e9 / HEADROOM for peak in (site.flops.get(DTYPE, 0.0), site.mem_bw or 0.0))
            yield f"@{path or '.'}: {site.launch:.3g} us a call, {rate:.3g} GFLOP/s, {moved:.3g} GB/s ({site.origin})"
            ops = [(op.op, 1 / (HEADROOM * op.roofline)) for op in self.costs.ops if op.site == path and op.roofline]
            yield "  " + ", ".join(f"{op} x{share:.2g}" for op, share in ops)
        yield from (f"not measured: {reason}" for reason in self.left_out)


def measure_rates(target: Target | str) -> MeasuredRates:
    """Measure the leaves of a tree that can run on this machine."""
    tree = Target.parse(target) if isinstance(target, str) else target
    layout = Layout(tree.resolve())
    known: dict[str, tuple[SiteCost, list[OpCost]]] = {}
    sites: dict[str, SiteCost] = {}
    ops: list[OpCost] = []
    left_out: list[str] = []
    for leaf in layout.leaves():
        alone = standing_alone(layout, leaf.path)
        try:
            backend, _ = choose_backend(layout, leaf.path, strict=False)
            refusal = backend.refuses(alone)
            if refusal is not None:
                left_out.append(f"@{leaf.path or '.'} cannot run on this machine: {refusal}")
                continue
            key = f"{backend.name} {alone.digest}"
            if key not in known:
                known[key] = _measured(alone, f"measured, {backend.version()}")
        except (BackendError, RunError) as error:
            left_out += error.problems
            continue
        site, found = known[key]
        sites[leaf.path] = site
        ops += [replace(op, site=leaf.path) for op in found]
    return MeasuredRates(Costs(sites=sites, ops=tuple(ops)), tuple(left_out))


def _measured(leaf: Target, origin: str) -> tuple[SiteCost, list[OpCost]]:
    """Return the rates of a leaf, and what operators reach of them."""
    launch = _Bench(_model([2, 2], [helper.make_node("Relu", ["x"], ["y"])]), leaf).least()
    convolutions, moving = _Bench(_convolutions(2, kernel=3), leaf), _Bench(_elementwise(), leaf)
    one, plain = (_Bench(_convolutions(count, kernel=1), leaf).least() for count in (1, 2))
    peaks = SiteCost(flops={DTYPE: 1e9}, mem_bw=1e9, roofline=1.0, origin=origin, launch=max(launch, 2 * one - plain))
    flops = 1e9 * convolutions.ideal(peaks) / max(convolutions.least() - launch, LEAST_TIME)
    mem_bw = 1e9 * moving.ideal(peaks) / max(moving.least() - launch, LEAST_TIME)
    peaks = replace(peaks, flops={DTYPE: HEADROOM * flops}, mem_bw=HEADROOM * mem_bw, roofline=1 / HEADROOM)
    found: list[OpCost] = []
    for kind in (*BETWEEN, "Gemm"):
        try:
            bench = _Bench(_product() if kind == "Gemm" else _convolutions(2, kernel=1, between=kind), leaf)
            taken = bench.least() - (launch if kind == "Gemm" else plain)
        except TvmTargetError:
            continue
        ideal = bench.ideal(replace(peaks, roofline=1.0), kind)
        share = min(1.0, max(LEAST_SHARE, ideal / max(taken, LEAST_TIME)))
        found.append(OpCost("", op=kind, roofline=share, origin=origin))
    return peaks, found


class _Bench:
    """A program built for a leaf that is all there is, and inputs for it."""

    def __init__(self, model: onnx.ModelProto, leaf: Target) -> None:
        self.plan: Plan = decompose(IRModule.from_onnx(model), leaf)
        self.program: Executable = build(self.plan)
        self.inputs = made_up_inputs(self.plan) or {}

    def ideal(self, peaks: SiteCost, kind: str = "") -> float:
        """Return the microseconds that the operations, or those of a kind, take by some peaks."""
        program = self.plan.program
        (leaf,) = program.layout.leaves()
        estimates = Estimates(program, Costs(sites={leaf.path: peaks}))
        indices = [index for index, call in enumerate(program.body) if kind in ("", program.op(index).kind)]
        return sum(estimates.time(index, leaf).time or 0 for index in indices) / 10**6

    def least(self) -> float:
        """Return the microseconds of the fastest run."""
        self.program.run(self.inputs)
        times: list[int] = []
        with holding(device_lock()):
            until = time.monotonic() + SECONDS
            while len(times) < LEAST_RUNS or (len(times) < RUNS and time.monotonic() < until):
                begin = time.perf_counter_ns()
                self.program.run(self.inputs)
                times.append(time.perf_counter_ns() - begin)
        return min(times) / 1000


def _elementwise() -> onnx.ModelProto:
    """Pools and additions by turns, which no code generator makes one loop of."""
    nodes, last = [], "x"
    for number in range(3):
        nodes.append(helper.make_node("MaxPool", [last], [f"pool{number}"], **POOL))
        nodes.append(helper.make_node("Add", [f"pool{number}", "x"], [f"add{number}"]))
        last = f"add{number}"
    return _model([1, CHANNELS, 2 * SIZE, 2 * SIZE], nodes)


def _convolutions(count: int, kernel: int, between: str | None = None) -> onnx.ModelProto:
    """Convolutions one after the other, and an operator before each but the first."""
    random = np.random.default_rng(0)
    filters = random.standard_normal((CHANNELS, CHANNELS, kernel, kernel)) / (kernel * np.sqrt(CHANNELS))
    weights = [numpy_helper.from_array(filters.astype(DTYPE), "w")]
    beside = ["x"] if between == "Add" else []
    if between == "BatchNormalization":
        beside = [f"p{number}" for number in range(4)]
        weights += [numpy_helper.from_array(np.ones(CHANNELS, DTYPE), name) for name in beside]
    nodes, last = [], "x"
    for number in range(count):
        if number and between is not None:
            nodes.append(helper.make_node(between, [last, *beside], [f"op{number}"], **BETWEEN[between]))
            last = f"op{number}"
        nodes.append(helper.make_node("Conv", [last, "w"], [f"conv{number}"], pads=[kernel // 2] * 4))
        last = f"conv{number}"
    return _model([1, CHANNELS, SIZE, SIZE], nodes, weights)


def _product() -> onnx.ModelProto:
    """A layer of weights that are read once."""
    weights = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(DTYPE)
    node = helper.make_node("Gemm", ["x", "w"], ["y"])
    return _model([1, WIDTH], [node], [numpy_helper.from_array(weights, "w")])


def _model(
    shape: list[int], nodes: Sequence[onnx.NodeProto], weights: Sequence[onnx.TensorProto] = ()
) -> onnx.ModelProto:
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, given)
        for name, given in (("x", shape), (nodes[-1].output[0], None))
    ]
    graph = helper.make_graph(nodes, "rates", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
