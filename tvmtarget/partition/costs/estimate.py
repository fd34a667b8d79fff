"""Estimate the time of each operation, call and copy of a program on each leaf, in whole picoseconds.

With costs in microjoules, all times are energies in whole picojoules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from tvmtarget.errors import TargetError, UnknownNameError, did_you_mean, raise_all
from tvmtarget.ir.function import Value
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.structure import structural_hash
from tvmtarget.ir.types import TensorType, Type
from tvmtarget.partition.control.control_flow_ops import expected_body_runs
from tvmtarget.partition.costs.costs import Costs, OpCost, Unit, structure_of
from tvmtarget.partition.costs.memory_graph import PICOSECONDS, MemoryGraph
from tvmtarget.partition.costs.rates import Rates, names_of, rates_of
from tvmtarget.partition.costs.work import Unknown, Work, form_of, work_of
from tvmtarget.partition.flat_program import FlatProgram
from tvmtarget.support.registry import onnx_operators
from tvmtarget.support.strategy import Op
from tvmtarget.target.kinds import kind_names
from tvmtarget.target.topology import Site

__all__ = ["Estimate", "Estimates", "SignatureTimes", "cost_text"]

MICROSECOND = 10**6

MAX_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Estimate:
    """A time in picoseconds.

    Attributes:
        time: the estimate; None if it is unknown.
        reason: what the estimate is based on, or why it is unknown.
        error: how far off it may be, in picoseconds.
        unit: the unit in which it is printed, `us` or `uJ`.
    """

    time: int | None
    reason: str
    error: int = 0
    unit: Unit = "us"

    def __str__(self) -> str:
        return (
            f"{cost_text(self.time, self.unit)} ({self.reason})" if self.time is not None else f"unknown: {self.reason}"
        )


def cost_text(cost: int, unit: Unit) -> str:
    """Print a time in microseconds, or an energy in microjoules.

    Args:
        cost: picoseconds or picojoules.
        unit: the unit of the costs.

    Returns:
        Four significant digits and the unit.
    """
    digits = f"{cost / MICROSECOND:.4g}" if cost < 10**4 * MICROSECOND else f"{cost / MICROSECOND:.0f}"
    return f"{digits} {unit}"


@dataclass(frozen=True, slots=True)
class SignatureTimes:
    """The times of all signatures on a leaf.

    Attributes:
        by_signature: picoseconds, None where unknown.
        longest: the longest of those known.
        has_unknown: whether any is unknown.
    """

    by_signature: list[int | None]
    longest: int
    has_unknown: bool


class Estimates:
    """Estimates for one program on one target; each is computed once.

    Args:
        program: the program.
        costs: measured times and rates.

    Attributes:
        leaves: the leaves of the target.
        memory_graph: routes of copies.
        rates: the rates of each leaf by path.
        has_errors: whether the costs state errors of times.

    Raises:
        InfeasibleError: if the memory of a site cannot be reached.
        TargetError: if the costs state different capacities of one memory.
        UnknownNameError: for names in the costs that are no site, kind or dimension.
    """

    def __init__(self, program: FlatProgram, costs: Costs) -> None:
        self.program = program
        self.costs = costs
        self.leaves = tuple(program.topology.leaves())
        raise_all(UnknownNameError, [*self._unknown_names()])
        self.memory_graph = MemoryGraph(program.topology, costs)
        self.rates = {leaf.path: rates_of(program.topology, leaf, costs) for leaf in self.leaves}
        raise_all(TargetError, [*self._contradictions()])
        self._rules = {leaf.path: self._rules_for(leaf) for leaf in self.leaves}
        self.has_errors = costs.doubt > 0 or any(op.stdev for op in costs.ops)
        self._works: dict[object, Work | Unknown] = {}
        self._times: dict[object, Estimate] = {}
        self._signature_times: dict[tuple[str, bool], SignatureTimes] = {}
        self._matched: set[int] = set()  # indices of `costs.ops` that matched an operation
        self._matched_subgraphs: set[tuple[str, str]] = set()  # (site, structure) of the functions of plans

    def time(self, index: int, leaf: Site) -> Estimate:
        """Return the time of an operation on a leaf, without the call of its function.

        Args:
            index: number of the operation.
            leaf: the leaf.

        Returns:
            The estimate, the same for all operations of one signature.
        """
        key = (leaf.path, self.program.signatures[index])
        if key not in self._times:
            self._times[key] = replace(self._estimate(index, leaf), unit=self.costs.unit)
        return self._times[key]

    def times(self, leaf: Site, *, at_worst: bool = False) -> SignatureTimes:
        """Return the times of all signatures on a leaf.

        Args:
            leaf: the leaf.
            at_worst: add the error of each estimate.

        Returns:
            The times, computed once.
        """
        key = leaf.path, at_worst
        if key not in self._signature_times:
            found = [self.time(first, leaf) for first in self.program.representatives]
            times = [None if one.time is None else one.time + (one.error if at_worst else 0) for one in found]
            longest = max((time for time in times if time is not None), default=0)
            self._signature_times[key] = SignatureTimes(times, longest, None in times)
        return self._signature_times[key]

    def times_by_op(self, leaf: Site) -> list[int | None]:
        """Return the times of all operations on a leaf.

        Args:
            leaf: the leaf.

        Returns:
            Picoseconds by operation, None where unknown.
        """
        times = self.times(leaf).by_signature
        return [times[number] for number in self.program.signatures]

    def launch(self, leaf: Site) -> int:
        """Return the time to call a function of a leaf.

        Args:
            leaf: the leaf.

        Returns:
            Picoseconds; the default of the costs if no number is known.
        """
        return round(self.rates[leaf.path].launch * MICROSECOND)

    def boundary_rate(self, site: Site) -> float:
        """Return the time for values to enter or leave functions of a site (`SiteCost.boundary_bw`).

        Args:
            site: a leaf or a system.

        Returns:
            Picoseconds per byte; 0 for a system, and for a leaf without a stated rate.
        """
        rates = self.rates.get(site.path)
        return 0.0 if rates is None or not rates.site_cost.boundary_bw else PICOSECONDS / rates.site_cost.boundary_bw

    def subgraph(self, module: IRModule, function: str, leaf: Site) -> int | None:
        """Return the measured time of a call of a leaf function as a whole.

        Args:
            module: the module of the function, for its structure.
            function: name of the function.
            leaf: the leaf that runs it.

        Returns:
            Picoseconds, by the last matching measurement; None if there is none.
        """
        names = names_of(leaf) if self.costs.subgraphs else ()
        known = [one for one in self.costs.subgraphs if one.site in names]
        if not known:
            return None
        # Weights are left out, as a measurement holds for any values of them; constraints do not change the code.
        structure = structural_hash(module[function], module.by_name, strip_constraints=True, weights=False)
        self._matched_subgraphs.update((name, structure) for name in names)
        times = [one.time for one in known if one.structure == structure]
        return round(times[-1] * MICROSECOND) if times else None

    def nbytes(self, type_: Type) -> int | None:
        """Return the size of a value, with the sizes of symbolic dimensions that the costs assume.

        Args:
            type_: the type of the value.

        Returns:
            Bytes; None if unknown.
        """
        return self.memory_graph.nbytes(type_)

    def copy(self, type_: Type, src: str, dst: str) -> int | None:
        """Return the time to copy a value between two memories.

        Args:
            type_: the type of the value.
            src: the domain of the memory that holds the value.
            dst: the domain that needs it.

        Returns:
            Picoseconds; None if unknown.
        """
        return self.memory_graph.route(src, dst, self.nbytes(type_)).time

    def work(self, index: int) -> Work | Unknown:
        """Return the arithmetic operations and memory traffic of an operation.

        Args:
            index: number of the operation.

        Returns:
            The work, or why it is unknown.
        """
        key = self.program.signatures[index]
        if key not in self._works:
            self._works[key] = work_of(self.program.op(index), self.costs.symbolic_hints)
        return self._works[key]

    def capacities(self) -> dict[str, int]:
        """Return the memory capacities that the costs state.

        Returns:
            Bytes of weights by memory domain.
        """
        return {domain: capacity for domain, capacity, _ in self._stated_capacities()}

    def _stated_capacities(self) -> Iterator[tuple[str, int, str]]:
        """Yield memory domains, their capacities in bytes, and the paths of the leaves for which the costs state it."""
        for path, rates in self.rates.items():
            if rates.site_cost.capacity is not None:
                yield rates.site.domain, rates.site_cost.capacity, path

    def _contradictions(self) -> Iterator[str]:
        """Report memories for whose leaves the costs state different capacities."""
        known: dict[str, tuple[int, str]] = {}
        for domain, capacity, path in self._stated_capacities():
            first, other = known.setdefault(domain, (capacity, path))
            if first != capacity:
                yield (
                    f"the costs state capacities of {first} bytes for @{other or '.'} and {capacity} for "
                    f"@{path or '.'}, which are in one memory, {domain!r}"
                )

    def assumptions(self) -> Iterator[str]:
        """Report numbers that are not stated and so have defaults, and stated ones without effect.

        Yields:
            One line of text each.
        """
        for rates in self.rates.values():
            place = f"@{rates.site.path or '.'} ({rates.site.target.kind})"
            if not rates.is_launch_known:
                yield f"what a call on {place} takes: {rates.launch:g} {self.costs.unit} assumed"
            if not rates.is_roofline_known:
                yield f"the share of its peaks that {place} reaches: {rates.roofline:g} assumed"
        for link, (src, dst) in zip(self.costs.links, self.memory_graph.measured, strict=True):
            if src == dst:
                yield (
                    f"the link from {link.src!r} to {link.dst!r}: not counted, as both are memory {src!r} in the "
                    "target; give one a memory of its own"
                )

    def _estimate(self, index: int, leaf: Site) -> Estimate:
        rates = self.rates[leaf.path]
        op = self.program.op(index)
        rule = self._rule(op, leaf)
        origin = f", {rule.origin}" if rule is not None and rule.origin else ""
        if rule is not None and rule.time is not None:
            stdev = round((rule.stdev or 0.0) * MICROSECOND)
            return Estimate(round(rule.time * MICROSECOND), f"stated{origin}", stdev)
        # No formula gives the work of control flow: it is that of its bodies.
        if index in self.program.bodies:
            estimate = self._sum_of_bodies(index, leaf)
            return replace(estimate, reason=estimate.reason + origin)
        work = self.work(index)
        share = rule.share(work.size) if rule is not None and isinstance(work, Work) else None
        estimate = _roofline(work, rates, rates.roofline if share is None else share)
        error = round(self.costs.doubt * (estimate.time or 0))
        return Estimate(estimate.time, estimate.reason + origin, error)

    def _sum_of_bodies(self, index: int, leaf: Site) -> Estimate:
        """Add up the nested bodies of an operation that a leaf runs, as often as each is expected to run."""
        program = self.program
        total, error = Fraction(0), Fraction(0)
        runs = expected_body_runs(program.op(index))
        for scope in program.bodies[index]:
            for inner in scope.calls:
                estimate = self.time(inner, leaf)
                if estimate.time is None:
                    return Estimate(None, f"of {program.body[inner].source!r} in it, {estimate.reason}")
                total += estimate.time * runs
                error += estimate.error * runs
        return Estimate(round(total), f"its bodies, each {float(runs):g} times", round(error))

    def _rules_for(self, leaf: Site) -> dict[str, list[tuple[int, OpCost]]]:
        rules: dict[str, list[tuple[int, OpCost]]] = {}
        names = frozenset(names_of(leaf))
        for number, rule in enumerate(self.costs.ops):
            if rule.site in names:
                rules.setdefault(rule.structure or rule.op or "", []).append((number, rule))
        return rules

    def _rule(self, op: Op, leaf: Site) -> OpCost | None:
        rules = self._rules[leaf.path]
        if not rules:
            return None
        # The digest of an operation is slow to compute; only do so if some cost is given by structure.
        structure = structure_of(op) if any(name.startswith("sha256:") for name in rules) else ""
        found = [
            (rule.rank, number, rule)
            for name in (structure, *op.call.op_names)
            for number, rule in rules.get(name, ())
            if _matches(rule, op)
        ]
        self._matched.update(number for _, number, _ in found)
        return max(found, key=lambda item: item[:2])[2] if found else None

    def _unknown_names(self) -> Iterator[str]:
        known = set(kind_names()).union(*map(names_of, self.leaves))
        stated = (*self.costs.sites, *(one.site for one in self.costs.ops), *(one.site for one in self.costs.subgraphs))
        for name in dict.fromkeys(stated):
            if name not in known:
                yield f"the costs name site {name!r}, which is no node of the target or kind" + did_you_mean(
                    name, known - {""}
                )
        # Sizes may be for another program; they are only suspicious if a dimension of this one lacks a size.
        dims, unused_hints = _dims(self.program.function.params), self._unused_hints()
        if dims - self.costs.symbolic_hints.keys():
            for name in unused_hints:
                yield f"the costs give a size of {name!r}, a dimension that the program does not have" + did_you_mean(
                    name, dims, listing="it has"
                )

    def _unused_hints(self) -> list[str]:
        """List the symbolic dimensions with a size in the costs that no value of the program has."""
        values = (Value("", type_) for type_ in self.program.wiring.type_numbers.types)
        return sorted(self.costs.symbolic_hints.keys() - _dims(values)) if self.costs.symbolic_hints else []

    def unused(self) -> Iterator[str]:
        """Report costs that match nothing in the program and the target.

        Yields:
            One line of text each, with the nearest names for what may be a typing error.
        """
        kinds = {name for first in self.program.representatives for name in self.program.body[first].op_names}
        named = dict.fromkeys(rule.op for rule in self.costs.ops if rule.op is not None and rule.op not in kinds)
        known = set(onnx_operators().values()) if named else set()
        for name in named:
            if name not in known:
                near = did_you_mean(name, kinds | known)
                yield f"costs of operator {name!r}, which neither the program nor ONNX has{near}"
        absent = [name for name in named if name in known]
        if absent:
            yield f"costs of operators that the program does not have: {', '.join(absent)}"
        target_names = frozenset(name for leaf in self.leaves for name in names_of(leaf))
        idle = [
            _matched_text(rule)
            for number, rule in enumerate(self.costs.ops)
            if number not in self._matched and rule.op not in named and rule.site in target_names
        ]
        if idle:
            yield f"costs of ops that match none of the program: {_shorten([*dict.fromkeys(idle)])}"
        subgraphs = dict.fromkeys((one.site, one.structure) for one in self.costs.subgraphs if one.site in target_names)
        idle = [
            f"{structure} on {site!r}"
            for site, structure in subgraphs
            if (site, structure) not in self._matched_subgraphs
        ]
        if idle:
            yield f"costs of subgraphs that match no function of the plan: {_shorten(idle)}"
        stated = (*self.costs.sites, *(one.site for one in self.costs.ops), *(one.site for one in self.costs.subgraphs))
        absent = [repr(name) for name in dict.fromkeys(stated) if name not in target_names]
        if absent:
            yield f"costs of sites that the target does not have: {', '.join(absent)}"
        taken = {id(rates.site_cost) for rates in self.rates.values()}
        replaced = [
            repr(name) for name in self.costs.sites.keys() & target_names if id(self.costs.sites[name]) not in taken
        ]
        if replaced:
            yield f"costs of sites, for all of whose leaves others are stated: {', '.join(sorted(replaced))}"
        unused_hints = self._unused_hints()
        if unused_hints:
            yield f"sizes of dimensions that the program does not have: {', '.join(map(repr, unused_hints))}"


def _matched_text(rule: OpCost) -> str:
    """Return the operations that a cost is for: the operator or structure, all that is stated of it, and the site."""
    shape = None if rule.shape is None else f"[{','.join(map(str, rule.shape))}]"
    details = ", ".join(one for one in (rule.form, rule.dtype, shape) if one is not None)
    return f"{rule.op or rule.structure or 'any op'}{f' ({details})' if details else ''} on {rule.site!r}"


def _shorten(names: list[str]) -> str:
    """List the first few names, and how many more there are."""
    more = f", and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    return ", ".join(names[:MAX_SHOWN]) + more


def _dims(values: Iterable[Value]) -> set[str]:
    """Return the symbolic dimensions of values."""
    shapes = (value.type.shape or () for value in values if isinstance(value.type, TensorType))
    return {dim for shape in shapes for dim in shape if isinstance(dim, str)}


def _matches(rule: OpCost, op: Op) -> bool:
    if rule.form is not None and rule.form != form_of(op):
        return False
    if rule.dtype is None and rule.shape is None:
        return True
    result = op.outputs[0] if op.outputs else None
    if not isinstance(result, TensorType):
        return False
    return rule.dtype in (None, result.dtype) and rule.shape in (None, result.shape)


def _roofline(work: Work | Unknown, rates: Rates, share: float) -> Estimate:
    """Return the roofline estimate: the longer of computing at the peak rate and moving all bytes once, over the share.

    Energies of computing and moving add up, as neither hides the other. Williams, Waterman and Patterson, "Roofline: An
    Insightful Visual Performance Model" (2009); Choi, Bedard, Fowler and Vuduc, "A Roofline Model of Energy" (2013).
    """
    if isinstance(work, Unknown):
        return Estimate(None, work.reason)
    place = f"@{rates.site.path or '.'}"
    peak = rates.peak(work.dtype)
    if work.is_contraction and peak is None:
        what = "operations per joule" if rates.is_energy else "peak"
        verb = "are" if rates.is_energy else "is"
        return Estimate(None, f"the {what} of {place} for {work.dtype} {verb} not known")
    if rates.mem_bw is None and rates.is_energy:
        return Estimate(None, f"the bytes per joule of {place} are not known")
    if rates.mem_bw is None:
        return Estimate(None, f"the memory bandwidth of {place} is not known")
    computing = work.flops / peak if peak else 0.0
    moving = work.nbytes / rates.mem_bw
    if rates.is_energy:
        reason = f"{work.flops} flops and {work.nbytes} bytes" + (f" at {share:.2g} of the peak" if share != 1 else "")
        return Estimate(round((computing + moving) / share * PICOSECONDS), reason)
    bound = f"{work.flops} flops" if computing > moving else f"{work.nbytes} bytes"
    return Estimate(round(max(computing, moving) / share * PICOSECONDS), f"{bound} at {share:.2g} of the peak")
