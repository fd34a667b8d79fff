"""Tags of cloud machines, compared with sources other than those that they are generated from."""

import pytest
from tools import derive_clouds, derive_ec2

from tvmtarget import Constraint, Target
from tvmtarget.tags.registry import default_registry
from tvmtarget.target.constraints.conditions import Truth
from tvmtarget.target.topology import Topology

REGISTRY = default_registry()
NAMES = {cloud: tuple(n for n in REGISTRY if n.startswith(f"{cloud}/")) for cloud in ("aws", "azure", "gcp")}

GIB = 1 << 30


def machines():
    """Yield the tags of machines, without clusters and single devices."""
    targets = ((name, REGISTRY[name]) for names in NAMES.values() for name in names)
    return [(name, target) for name, target in targets if any(child.slot == "cpu" for child in target.targets)]


# Name, vCPUs, GiB, and devices: slot, count, NeuronCores of all (0: not stated). From aws/karpenter-provider-aws,
# website/content/en/docs/reference/instance-types.md, at 1d92708, which Karpenter's authors read from the API.
KARPENTER = """
    c5.large          2     4
    c5.24xlarge      96   192
    c6a.48xlarge    192   384
    c6g.metal        64   128
    c7a.medium        1     2
    c7i.48xlarge    192   384
    c8g.48xlarge    192   384
    m5.xlarge         4    16
    m7g.16xlarge     64   256
    r7iz.32xlarge   128  1024
    t3.nano           2   0.5
    x2gd.16xlarge    64  1024
    u-6tb1.56xlarge 224  6144
    hpc7a.96xlarge  192   768
    g4ad.16xlarge    64   256  gpu     4
    g4dn.12xlarge    48   192  gpu     4
    g4dn.metal       96   384  gpu     8
    g5.48xlarge     192   768  gpu     8
    g5g.metal        64   128  gpu     2
    g6.12xlarge      48   192  gpu     4
    g6e.xlarge        4    32  gpu     1
    p3dn.24xlarge    96   768  gpu     8
    p4d.24xlarge     96  1152  gpu     8
    p4de.24xlarge    96  1152  gpu     8
    p5.4xlarge       16   256  gpu     1
    p5.48xlarge     192  2048  gpu     8
    p5en.48xlarge   192  2048  gpu     8
    p6-b200.48xlarge 192 2048  gpu     8
    p6-b300.48xlarge 192 4096  gpu     8
    inf1.24xlarge    96   192  neuron 16  64
    inf2.48xlarge   192   768  neuron 12  24
    trn1.32xlarge   128   512  neuron 16  32
    trn2.48xlarge   192  2048  neuron 16 128
    dl2q.24xlarge    96   768  npu     8
"""
KARPENTER_ROWS = [line.split() for line in KARPENTER.splitlines() if line.strip()]

# Name, vCPUs, GiB, GPUs: SpareCores/sc-inspector-data at 804d3c7, the output of lscpu, lshw and nvidia-smi.
MEASURED = """
    gcp/n1-standard-1                  1    3.75
    gcp/e2-highcpu-8                   8    8
    gcp/n2-standard-8                  8    32
    gcp/n2-highmem-128               128    864
    gcp/n2d-standard-224             224    896
    gcp/c3-highcpu-22                 22    44
    gcp/c3d-highcpu-360              360    708
    gcp/c4-standard-2                  2    7
    gcp/c4-highmem-288-metal         288    2304
    gcp/c4a-highmem-64                64    512
    gcp/c4d-highcpu-2                  2    3
    gcp/h3-standard-88                88    352
    gcp/t2d-standard-60               60    240
    gcp/m2-ultramem-416              416    11776
    gcp/z3-highmem-14-standardlssd    14    112
    gcp/a2-highgpu-8g                 96    680    8
    gcp/a2-megagpu-16g                96    1360   16
    gcp/a3-highgpu-1g                 26    234    1
    gcp/a3-ultragpu-8g               224    2952   8
    gcp/g2-standard-24                24    96     2
    azure/standard_d4s_v5              4    16
    azure/standard_e64_v3             64    432
    azure/standard_e96ds_v5           96    672
    azure/standard_d64ps_v5           64    208
    azure/standard_d96ps_v6           96    384
    azure/standard_f8s_v2              8    16
    azure/standard_f80ams_v7          80    640
    azure/standard_b20ms              20    80
    azure/standard_d160as_v7         160    640
    azure/standard_nc24ads_a100_v4    24    220    1
    azure/standard_nc96ads_a100_v4    96    880    4
    azure/standard_nc40ads_h100_v5    40    320    1
"""
MEASURED_ROWS = [line.split() for line in MEASURED.splitlines() if line.strip()]

# The CPU level of guests: facts of measured machines (archspec's reading of their flags), not of the silicon.
LEVELS = {
    "aws/c4": "haswell",
    "aws/c5": "skylake-avx512",
    "aws/c5.24xlarge": "cascadelake",
    "aws/c5n": "skylake-avx512",
    "aws/c6a": "znver3",
    "aws/c6g": "neoverse-n1",
    "aws/c6i": "icelake-server",
    "aws/c7a": "znver4",
    "aws/c7g": "neoverse-v1",
    "aws/c7i": "sapphirerapids",
    "aws/c8a": "znver5",
    "aws/c8g": "neoverse-v2",
    "aws/g4dn": "cascadelake",
    "aws/inf1": "skylake-avx512",
    "aws/m5.metal": "skylake-avx512",
    "aws/p2": "broadwell",
    "aws/p3dn": "skylake-avx512",
    "aws/p4d": "skylake-avx512",
    "aws/trn1": "icelake-server",
    "gcp/c2": "cascadelake",
    "gcp/n1-standard-96": "skylake-avx512",
    "gcp/c4a": "neoverse-v2",
    "gcp/g2": "cascadelake",
    "gcp/t2a": "neoverse-n1",
    "azure/dv4": "cascadelake",
    "azure/dv5": "icelake-server",
    "azure/dpsv6": "neoverse-n2",
}

# TVM's names in this namespace, and the leaf facts that TVM has under them (apache-tvm 0.27).
TVM = {
    "aws/cpu/c5.large": {"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 1},
    "aws/cpu/c5.xlarge": {"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2},
    "aws/cpu/c5.2xlarge": {"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 4},
    "aws/cpu/c5.4xlarge": {"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 8},
    "aws/cpu/c5.9xlarge": {"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 18},
    "aws/cpu/c5.12xlarge": {"kind": "llvm", "mcpu": "cascadelake", "num-cores": 24},
    "aws/cpu/c5.18xlarge": {"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 36},
    "aws/cpu/c5.24xlarge": {"kind": "llvm", "mcpu": "cascadelake", "num-cores": 48},
    "aws/trn1/trn1.2xlarge": {"kind": "trn", "num-cores": 2},
    "aws/trn1/trn1.32xlarge": {"kind": "trn", "num-cores": 32},
}


def part_of_tvm(name):
    """Return the part that TVM's tag of the name corresponds to."""
    slot = {"llvm": "cpu", "trn": "neuron"}[TVM[name]["kind"]]
    target = REGISTRY[name]
    return target.at(slot) if target.targets else target


@pytest.mark.parametrize("cloud", derive_clouds.CLOUDS)
def test_the_file_of_a_cloud_is_generated_from_its_table(cloud):
    assert (derive_clouds.TAGS / f"{cloud}.toml").read_text(encoding="utf-8") == derive_clouds.derive(cloud)


@pytest.mark.skipif(derive_ec2.installed() != derive_ec2.MOTO, reason=f"needs moto {derive_ec2.MOTO}, the source")
def test_the_file_of_ec2_is_generated_from_moto():
    assert derive_ec2.TAGS.read_text(encoding="utf-8") == derive_ec2.derive()


def test_all_instance_types_have_tags():
    assert {cloud: len(names) for cloud, names in NAMES.items()} == {"aws": 1642, "azure": 748, "gcp": 495}


def test_the_cpu_of_a_machine_drives_it():
    for name, target in machines():
        cpu = target.at("cpu")
        assert (target.kind, target.host, cpu.kind) == ("composite", "@cpu", "llvm"), name
        assert {"mtriple", "mcpu"} <= cpu.attrs.keys(), name


def test_a_size_states_its_memory_cores_and_threads():
    for name, target in machines():
        is_size = "." in name if name.startswith("aws/") else target.memory
        if is_size:
            assert target.memory[0].bytes > 0, name
            assert target.at("cpu")["num-cores"] >= 1, name
            assert target.at("cpu")["threads-per-core"] in (1, 2), name


def test_the_dram_of_a_machine_with_devices_belongs_to_its_cpu_alone():
    for name, target in machines():
        for dram in target.memory:
            assert dram.of == (("cpu",) if len(target.targets) > 1 else ()), name


@pytest.mark.parametrize("row", KARPENTER_ROWS, ids=[row[0] for row in KARPENTER_ROWS])
def test_karpenter_agrees_on_an_instance(row):
    name, vcpus, gib, *devices = row
    target = REGISTRY[f"aws/{name}"]
    assert target.at("cpu")["num-cores"] * target.at("cpu")["threads-per-core"] == int(vcpus)
    assert target.memory[0].bytes == float(gib) * GIB
    if devices:
        slot, count, *cores = devices
        device = target.at(slot)
        assert device.count == int(count)
        each = device["num-cores" if device.kind == "trn" else "num-compute-units"] if cores else None
        assert cores == [] or device.count * each == int(cores[0])


@pytest.mark.parametrize("row", MEASURED_ROWS, ids=[row[0] for row in MEASURED_ROWS])
def test_a_tag_agrees_with_the_measured_machine(row):
    name, vcpus, gib, *gpus = row
    target = REGISTRY[name]
    assert target.at("cpu")["num-cores"] * target.at("cpu")["threads-per-core"] == int(vcpus)
    assert target.memory[0].bytes == float(gib) * GIB
    assert [str(child.count) for child in target.targets if child.slot == "gpu"] == gpus


@pytest.mark.parametrize(("name", "mcpu"), LEVELS.items())
def test_the_cpu_level_is_what_guests_see(name, mcpu):
    assert REGISTRY[name].at("cpu")["mcpu"] == mcpu


def test_features_that_azure_hides_from_guests_are_removed_from_the_level():
    assert REGISTRY["azure/standard_d8as_v4"].at("cpu")["mattr"] == ("-clzero",)
    assert REGISTRY["azure/standard_f8s_v2"].at("cpu")["mattr"] == ("-clwb",)


def test_sizes_have_the_cpu_level_of_their_family_with_listed_exceptions():
    sizes = ((name, target) for name, target in machines() if name.startswith("aws/"))
    level = {name: target.at("cpu")["mcpu"] for name, target in sizes}
    other = {name for name in level if level[name] != level[name.partition(".")[0]]}
    assert other == {f"aws/{family}.{size}" for family in ("c5", "c5d") for size in ("12xlarge", "24xlarge", "metal")}


def test_a_part_keeps_its_count_and_its_memory():
    gpu = Target.parse("aws/p4d.24xlarge:gpu")
    assert (gpu.kind, gpu["arch"], gpu.count) == ("cuda", "sm_80", 8)
    assert gpu.memory == REGISTRY["nvidia/a100-sxm4-40gb"].memory
    assert gpu.host["mcpu"] == "skylake-avx512"


@pytest.mark.parametrize("name", TVM)
def test_a_tag_of_tvm_has_the_facts_of_tvm(name):
    part = part_of_tvm(name)
    assert {key: part.kind if key == "kind" else part[key] for key in TVM[name]} == TVM[name]


CLUSTERS = {
    # Devices of a node, and its network in Gb/s: Amazon's instance pages, the pages of Azure's series.
    "aws/p3dn-cluster": (8, 100),
    "aws/p4d-cluster": (8, 400),
    "aws/p5-cluster": (8, 3200),
    "aws/p6-b300-cluster": (8, 6400),
    "aws/trn1-cluster": (16, 800),
    "aws/trn2-cluster": (16, 3200),
    "aws/hpc7a-cluster": (0, 300),
    "azure/nd-h100-v5-cluster": (8, 3200),
    "gcp/a2-megagpu-cluster": (16, 100),
}


@pytest.mark.parametrize(("name", "facts"), CLUSTERS.items())
def test_a_cluster_is_nodes_of_devices_with_links_between_them(name, facts):
    devices, gigabits = facts
    cluster = REGISTRY[name]
    (link,) = cluster.links
    assert (cluster.at("node").count, link.bandwidth_Bps) == (2, gigabits * 10**9 // 8)
    assert len(list(Topology(cluster.resolve()).leaves())) == 2 * (devices + 1)


def test_nodes_of_a_cluster_and_gpus_of_a_node_have_separate_memories():
    sites = list(Topology(REGISTRY["aws/p4d-cluster"].resolve()).leaves())
    assert len({site.domain for site in sites}) == len(sites) == 18
    assert {site.host for site in sites} == {"node.0/cpu", "node.1/cpu"}


def test_a_cluster_grows_by_an_override():
    cluster = Target.parse("aws/p5-cluster(node/count=4)")
    assert len(list(Topology(cluster.resolve()).leaves())) == 4 * 9


def test_unknown_facts_make_constraints_unknown():
    family, size = Target.parse("aws/c5:cpu"), Target.parse("aws/c5.9xlarge:cpu")
    assert Constraint.parse("llvm(num-cores>=4)").check(family).truth is Truth.UNKNOWN
    assert Constraint.parse("llvm(num-cores>=4)").check(size).truth is Truth.YES


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("azure/Standard_D4s_v5", "azure/standard_d4s_v5"),
        ("azure/Standard_NC96ads_A100_v4", "azure/standard_nc96ads_a100_v4"),
        ("aws/cpu/c5.large", "aws/c5.large"),
        ("aws/trn1/trn1.32xlarge", "aws/trn1.32xlarge-pooled"),
    ],
)
def test_a_machine_is_found_under_other_spellings(alias, name):
    assert Target.parse(alias).tag == name
