"""Peak rates of a leaf, and the share of them that its code reaches: from costs, else from the target.

For a CPU without stated peaks they are computed from cores, clock and vector width, with one vector unit per core.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from tvmtarget.partition.costs.costs import Costs, SiteCost
from tvmtarget.target.topology import Site, Topology
from tvmtarget.target.tree import Target
from tvmtarget.target.tree_paths import unnumbered

__all__ = ["Rates", "names_of", "rates_of"]


@dataclass(frozen=True, slots=True)
class Generator:
    """Measured efficiency of a code generator on a device: share of the peaks, and microseconds to call a function."""

    roofline: float
    launch: float


# By kind and device, measured with `python -m benchmarks.rates` on two cores of an AMD EPYC (Zen 5), November 2026,
# relative to a large matrix product (100 GFLOP/s) and a large copy (34 GB/s). onnxruntime fuses operations and keeps
# values in caches, so it exceeds that peak: 1.3 times on resnet50, 3.4 times on squeezenet.
_GENERATORS: Mapping[tuple[str, str], Generator] = {
    ("onnxruntime", "cpu"): Generator(roofline=1.0, launch=9),
    ("llvm", "cpu"): Generator(roofline=0.4, launch=25),
    ("numpy", "cpu"): Generator(roofline=0.007, launch=14),
}

# The attribute that holds the peak of an element type, where it is named after another one.
_PEAKS = {
    "float8e4m3fn": "float8",
    "float8e4m3fnuz": "float8",
    "float8e5m2": "float8",
    "float8e5m2fnuz": "float8",
    "float4e2m1": "float4",
    "uint8": "int8",
    "uint4": "int4",
}

# Bytes of a vector register by CPU feature, widest first.
_VECTORS = (("avx512f", 64), ("avx", 32), ("sse2", 16), ("neon", 16))


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of a leaf, and whether they are stated or defaults.

    Attributes:
        site: the leaf.
        site_cost: what the costs state for it.
        launch: microseconds to call a function.
        is_launch_known: whether `launch` is not the default.
        roofline: share of the peaks that code reaches, from 0 to 1.
        is_roofline_known: whether `roofline` is not the default.
        mem_bw: peak bytes per second, or per joule; None if unknown.
        is_energy: whether these are energies, of which the target states nothing.
    """

    site: Site
    site_cost: SiteCost
    launch: float
    is_launch_known: bool
    roofline: float
    is_roofline_known: bool
    mem_bw: float | None
    is_energy: bool = False

    def peak(self, dtype: str) -> float | None:
        """Return the peak rate for an element type.

        Args:
            dtype: name of the element type.

        Returns:
            Operations per second, or per joule; None if neither costs nor target give it.
        """
        if dtype in self.site_cost.flops:
            return self.site_cost.flops[dtype]
        if self.is_energy:
            return None
        target = self.site.target
        gigaflops = target.attrs.get(f"peak-gflops-{_PEAKS.get(dtype, dtype)}")
        return gigaflops * 1e9 if isinstance(gigaflops, int) else _vector_peak(target, dtype)


def rates_of(topology: Topology, site: Site, costs: Costs) -> Rates:
    """Return the rates of a leaf.

    Costs come first, then the target, then the table of measured code generators; for energies there are only costs.

    Args:
        topology: the sites of the target.
        site: the leaf.
        costs: stated rates, and defaults for unknown code generators.

    Returns:
        The rates.
    """
    site_cost = next((costs.sites[name] for name in names_of(site) if name in costs.sites), SiteCost())
    known = None if costs.is_energy else _GENERATORS.get((site.target.kind, site.target.device))
    bandwidth = None if costs.is_energy else _bandwidth(topology, site)
    launch = site_cost.launch if site_cost.launch is not None else known.launch if known else None
    share = site_cost.roofline if site_cost.roofline is not None else known.roofline if known else None
    return Rates(
        site=site,
        site_cost=site_cost,
        launch=costs.launch if launch is None else launch,
        is_launch_known=launch is not None,
        roofline=costs.roofline if share is None else share,
        is_roofline_known=share is not None,
        mem_bw=site_cost.mem_bw if site_cost.mem_bw is not None else bandwidth,
        is_energy=costs.is_energy,
    )


def names_of(site: Site) -> tuple[str, ...]:
    """Return the names by which costs may refer to a leaf.

    Args:
        site: the leaf.

    Returns:
        The most specific first: its path, with replica numbers or without; its kind; the systems around it, innermost
        first.
    """
    own, *systems = (_spellings(path) for path in _upwards(site.path))
    return (*own, site.target.kind, *(name for spelled in systems for name in spelled))


def _upwards(path: str) -> Iterator[str]:
    yield path
    while path:
        path = path.rpartition("/")[0]
        yield path


def _spellings(path: str) -> tuple[str, ...]:
    """Return a path with all replica numbers, with some, and without."""
    parts = [dict.fromkeys((part, unnumbered(part))) for part in path.split("/")]
    return tuple("/".join(chosen) for chosen in product(*parts))


def _bandwidth(topology: Topology, site: Site) -> float | None:
    """Return the rate of the largest memory of a leaf: its own, or one that the nearest node around it shares."""
    # A memory `of` some children belongs to these alone: remember which child the leaf is below.
    path, slot = site.path, ""
    while True:
        memories = [memory for memory in topology[path].target.memory if not memory.of or slot in memory.of]
        rated = [memory for memory in memories if memory.bandwidth_Bps]
        if rated:
            largest = max(rated, key=lambda memory: memory.bytes or 0)
            return float(largest.bandwidth_Bps or 0)
        if not path:
            return None
        path, _, last = path.rpartition("/")
        slot = unnumbered(last)


def _vector_peak(target: Target, dtype: str) -> float | None:
    """Return cores x clock x lanes, doubled for fused multiply-add; None where the target does not state them."""
    width = {"float32": 4, "float64": 8}.get(dtype)
    cores, clock = (target.attrs.get(name) for name in ("num-cores", "clock-mhz"))
    if width is None or not isinstance(cores, int) or not isinstance(clock, int):
        return None
    features = target.features
    vector = next((size for name, size in _VECTORS if name in features), None)
    if vector is None:
        return None
    has_fma = "fma" in features or "neon" in features
    return cores * clock * 1e6 * (vector / width) * (2 if has_fma else 1)
