"""Facts of the tags of GPUs and of systems with GPUs."""

import tomllib

import pytest

from tvmtarget import Target
from tvmtarget.tags.registry import default_registry
from tvmtarget.target.topology import Topology

REGISTRY = default_registry()
NAMES = [name for name in REGISTRY if name.startswith(("amd/", "apple/", "intel/", "nvidia/"))]
FOLDER = REGISTRY.info("nvidia/a100").file.parent

# A name, a path to a node, a fact of it, its value.
FACTS = """
nvidia/sm_53                . registers_per_block         32768
nvidia/sm_90a               . arch                        sm_90a
nvidia/p100                 . num-compute-units           56
nvidia/v100                 . l2_cache_size_bytes         6291456
nvidia/v100-sxm2-16gb       . peak-gflops-float16         125000
nvidia/v100-pcie-16gb       . peak-gflops-float32         14000
nvidia/t4                   . peak-gflops-int8            130000
nvidia/t4                   . num-compute-units           40
nvidia/a10                  . num-compute-units           72
nvidia/a100-sxm4-40gb       . peak-gflops-bfloat16        312000
nvidia/a100-sxm4-80gb       . num-compute-units           108
nvidia/a40                  . peak-gflops-int8            299300
nvidia/l4                   . peak-gflops-float8          242000
nvidia/l40s                 . num-compute-units           142
nvidia/h100-sxm             . num-compute-units           132
nvidia/h100-sxm             . peak-gflops-bfloat16        989400
nvidia/h100-pcie            . num-compute-units           114
nvidia/h200                 . l2_cache_size_bytes         52428800
nvidia/b200                 . num-compute-units           148
nvidia/b200                 . peak-gflops-float4          9000000
nvidia/b100                 . l2_cache_size_bytes         None
nvidia/geforce-rtx-4090     . num-compute-units           128
nvidia/geforce-rtx-3090     . peak-gflops-float32         35600
nvidia/geforce-gtx-480      . arch                        sm_20
nvidia/rtx-pro-6000         . clock-mhz                   2600
nvidia/jetson-tx2           denver num-cores              2
nvidia/jetson-tx2           cpu mcpu                      cortex-a57
nvidia/jetson-agx-xavier    cpu mcpu                      carmel
nvidia/jetson-orin-nano     cpu mcpu                      cortex-a78ae
nvidia/jetson-agx-orin-64gb cpu num-cores                 12
nvidia/jetson-agx-thor      gpu arch                      sm_110a
nvidia/gh200                cpu mcpu                      neoverse-v2
nvidia/dgx-a100             cpu num-cores                 128
nvidia/dgx-h100             gpu peak-gflops-float8        1978900
nvidia/gb200-nvl72          tray/superchip/gpu arch       sm_100a
amd/mi300x                  . num-compute-units           304
amd/mi300x                  . thread_warp_size            64
amd/mi250x                  die num-compute-units         110
amd/mi350x                  . max_shared_memory_per_block 163840
amd/mi300a                  cpu num-cores                 24
amd/rx-7900-xtx             . thread_warp_size            32
apple/m1-gpu                host mcpu                     apple-m1
apple/m1                    cpu num-cores                 4
apple/m1-pro                cpu num-cores                 None
apple/m3-max.16cpu-40gpu    gpu num-compute-units         40
apple/m4-pro.14cpu-20gpu    efficiency num-cores          4
intel/arc-b580              . num-compute-units           20
"""

# A name, a path to a node, what its memory holds and how fast it is read.
MEMORIES = """
nvidia/v100-sxm2-16gb       .   16935682048  898048000000
nvidia/a100-sxm4-40gb       .   42331013120  1555200000000
nvidia/h100-sxm             .   84942979072  3352320000000
nvidia/h200                 .   151397597184 4800000000000
nvidia/b200                 .   191514411008 7672320000000
nvidia/geforce-rtx-4090     .   25769803776  1008000000000
nvidia/jetson-agx-thor      .   137438953472 273000000000
nvidia/dgx-a100             gpu 85100068864  2039040000000
amd/mi300x                  .   206158430208 5300000000000
apple/m1-max                .   None         400000000000
"""

SHORT_NAMES = """
nvidia/a100 nvidia/nvidia-a100
nvidia/h100 nvidia/nvidia-h100
nvidia/v100 nvidia/nvidia-v100
nvidia/t4 nvidia/nvidia-t4
nvidia/t4 nvidia/tesla-t4
nvidia/a10g nvidia/nvidia-a10g
nvidia/p100 nvidia/tesla-p100
nvidia/tesla-k80 nvidia/k80
nvidia/geforce-rtx-4090 nvidia/rtx-4090
nvidia/geforce-gtx-1080-ti nvidia/gtx-1080-ti
nvidia/geforce-gt-730-ddr3-128bit nvidia/geforce-gt-730-ddr3,128bit
amd/rx-7900-xtx amd/rx7900xtx
"""

# How many nodes deep a system is, and how many leaves it has.
SYSTEMS = """
nvidia/hgx-h100    1 8
nvidia/dgx-2       1 17
nvidia/dgx-h100    1 9
nvidia/gb200       1 3
nvidia/gb200-tray  2 6
nvidia/gb200-nvl72 3 108
nvidia/dgx-superpod-h100-su 2 288
nvidia/dgx-superpod-gb200-su 4 864
demo/robot         2 4
demo/warehouse     3 21
"""


def rows(table):
    return [line.split() for line in table.strip().splitlines()]


def node(name, path):
    return REGISTRY[name].at("" if path == "." else path)


@pytest.mark.parametrize(("name", "path", "fact", "value"), rows(FACTS))
def test_a_fact(name, path, fact, value):
    assert str(node(name, path)[fact]) == value


@pytest.mark.parametrize(("name", "path", "size", "bandwidth"), rows(MEMORIES))
def test_a_memory(name, path, size, bandwidth):
    (memory,) = node(name, path).memory
    assert (str(memory.bytes), str(memory.bandwidth_Bps)) == (size, bandwidth)


@pytest.mark.parametrize(("name", "other"), rows(SHORT_NAMES))
def test_a_product_has_common_short_names(name, other):
    assert REGISTRY[other].tag == name


@pytest.mark.parametrize(("name", "depth", "leaves"), rows(SYSTEMS))
def test_a_system_is_as_deep_as_the_hardware(name, depth, leaves):
    target = REGISTRY[name]
    assert max(path.count("/") + 1 for path, _ in target.walk() if path) == int(depth)
    assert len([*Topology(target.resolve()).leaves()]) == int(leaves)


@pytest.mark.parametrize("name", ["nvidia/dgx-a100", "nvidia/hgx-h100", "nvidia/dgx-1"])
def test_the_gpus_of_a_machine_are_one_part(name):
    gpus = Target.parse(f"{name}:gpu")
    assert gpus.count == 8
    domains = {site.domain for site in Topology(Target.parse(name).resolve()).leaves() if site.target.kind == "cuda"}
    assert len(domains) == 8


def test_one_memory_is_one_domain():
    for name in ("nvidia/jetson-tx2", "nvidia/gh200", "nvidia/gb200", "amd/mi300a", "apple/m2"):
        assert len({site.domain for site in Topology(REGISTRY[name].resolve()).leaves()}) == 1


@pytest.mark.parametrize("name", NAMES)
def test_smaller_types_have_higher_peaks(name):
    """Finds wrong digits: half the bits are never slower, and peaks are between 1 and 10^8 Gflop/s."""
    order = ("float64", "float32", "tfloat32", "bfloat16", "float16", "float8", "float4")
    for _, target in REGISTRY[name].walk():
        stated = [target.attrs.get(f"peak-gflops-{type_}") for type_ in order]
        peaks = [peak for peak in stated if peak is not None]
        assert all(1 <= peak <= 10**8 for peak in peaks)
        assert [*peaks] == sorted(peaks)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_every_source_is_cited(path):
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    sizes = [size for family in data.get("family", {}).values() for size in family["sizes"].values()]
    cited = {source for row in (*data["tag"].values(), *sizes) for source in row.get("source", ())}
    assert set(data["source"]) == cited
