"""How fast a leaf is: peaks from a file of costs, else from what the target says, and what share of them is reached.

A CPU without stated peaks has what its cores, clock and vectors give at one vector unit a core; many have two.
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
    """What a code generator makes of a device: the share of the peaks, and microseconds to call a function."""

    roofline: float
    launch: float


# By kind and device, as `python -m benchmarks.rates` measures them: two cores of an AMD EPYC (Zen 5), November 2026,
# against the rates of a large matrix product (100 GFLOP/s) and a large copy (34 GB/s) there. onnxruntime keeps values
# in caches and fuses operations, so that it is above that peak: 1.3 times on resnet50, 3.4 times on squeezenet.
_GENERATORS: Mapping[tuple[str, str], Generator] = {
    ("onnxruntime", "cpu"): Generator(roofline=1.0, launch=9),
    ("llvm", "cpu"): Generator(roofline=0.4, launch=25),
    ("numpy", "cpu"): Generator(roofline=0.007, launch=14),
}

# Attributes that hold the peak of an element type, where it does not bear its name.
_PEAKS = {
    "float8e4m3fn": "float8",
    "float8e4m3fnuz": "float8",
    "float8e5m2": "float8",
    "float8e5m2fnuz": "float8",
    "float4e2m1": "float4",
    "uint8": "int8",
    "uint4": "int4",
}

# Bytes of a vector register, by the feature that brings it, widest first.
_VECTORS = (("avx512f", 64), ("avx", 32), ("sse2", 16), ("neon", 16))


@dataclass(frozen=True, slots=True)
class Rates:
    """What is known of a leaf: microseconds for a call, bytes a second, the share of the peaks; and who says so."""

    site: Site
    stated: SiteCost
    launch: float
    is_launch_known: bool
    roofline: float
    is_roofline_known: bool
    mem_bw: float | None

    def peak(self, dtype: str) -> float | None:
        """Return the peak in operations a second, or None where nobody says it."""
        if dtype in self.stated.flops:
            return self.stated.flops[dtype]
        target = self.site.target
        gigaflops = target.attrs.get(f"peak-gflops-{_PEAKS.get(dtype, dtype)}")
        return gigaflops * 1e9 if isinstance(gigaflops, int) else _vector_peak(target, dtype)


def rates_of(topology: Topology, site: Site, costs: Costs) -> Rates:
    """Return what costs, the target and the table of code generators say of a leaf."""
    stated = next((costs.sites[name] for name in names_of(site) if name in costs.sites), SiteCost())
    known = _GENERATORS.get((site.target.kind, site.target.device))
    launch = stated.launch if stated.launch is not None else known.launch if known else None
    share = stated.roofline if stated.roofline is not None else known.roofline if known else None
    return Rates(
        site=site,
        stated=stated,
        launch=costs.launch if launch is None else launch,
        is_launch_known=launch is not None,
        roofline=costs.roofline if share is None else share,
        is_roofline_known=share is not None,
        mem_bw=stated.mem_bw if stated.mem_bw is not None else _bandwidth(topology, site),
    )


def names_of(site: Site) -> tuple[str, ...]:
    """Return the names by which costs may speak of a leaf, the most precise first.

    They are its path, with numbers of replicas or without, its kind, and the systems that it is in, the nearest first.
    """
    own, *systems = (_spellings(path) for path in _upwards(site.path))
    return (*own, site.target.kind, *(name for spelled in systems for name in spelled))


def _upwards(path: str) -> Iterator[str]:
    yield path
    while path:
        path = path.rpartition("/")[0]
        yield path


def _spellings(path: str) -> tuple[str, ...]:
    """Return a path with the numbers of replicas, with all but some, and without."""
    parts = [dict.fromkeys((part, unnumbered(part))) for part in path.split("/")]
    return tuple("/".join(chosen) for chosen in product(*parts))


def _bandwidth(topology: Topology, site: Site) -> float | None:
    """Return the rate of the largest memory of a leaf, its own or the nearest that a node around it shares."""
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
