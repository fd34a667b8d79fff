"""Tags of boards, chips and levels, compared with TVM and with public sources."""

import pytest

from tvmtarget import Target
from tvmtarget.tags.registry import default_registry
from tvmtarget.target.topology import Topology

REGISTRY = default_registry()
OF_CLOUDS_AND_GPUS = {"aws", "gcp", "azure", "nvidia", "amd", "apple", "demo"}
NAMES = [name for name in REGISTRY if name.split("/")[0] not in OF_CLOUDS_AND_GPUS]
BOARDS = [name for name in NAMES if not name.startswith("generic/")]


def test_there_are_more_systems_than_cpu_levels():
    assert len(BOARDS) >= 500
    assert len({REGISTRY[name].digest for name in BOARDS}) >= 480


# What a source says, and where in the tree.
FACTS = [
    ("raspberry-pi/3b:cpu", "mcpu", "cortex-a53"),
    ("raspberry-pi/4b:cpu", "l2-cache-bytes", 1 << 20),
    ("raspberry-pi/4b-aarch64:cpu", "num-cores", 4),
    ("raspberry-pi/5.8gb:cpu", "l3-cache-bytes", 2 << 20),
    ("raspberry-pi/5:cpu", "mcpu", "cortex-a76"),
    ("raspberry-pi/5:gpu", "model", "videocore-vii"),
    ("raspberry-pi/pico:core", "mcpu", "cortex-m0plus"),
    ("rockchip/rk3399:cpu-big", "mcpu", "cortex-a72"),
    ("rockchip/rk3399:cpu-big", "num-cores", 2),
    ("rockchip/rk3399:cpu-little", "num-cores", 4),
    ("rockchip/rk3399:gpu", "model", "mali-t860"),
    ("rockchip/rk3588:cpu-big", "mcpu", "cortex-a76"),
    ("rockchip/rk3588:cpu-little", "mcpu", "cortex-a55"),
    ("rockchip/rk3588:npu", "num-compute-units", 3),
    ("rockchip/rock-5b:cpu-big", "clock-mhz", 2400),
    ("amlogic/khadas-vim3:cpu-big", "mcpu", "cortex-a73"),
    ("amlogic/khadas-vim3:cpu-big", "num-cores", 4),
    ("allwinner/pine64:cpu", "mcpu", "cortex-a53"),
    ("nxp/imx8mp-evk:cpu", "num-cores", 4),
    ("nxp/imx93:mcu/npu", "accelerator-config", "ethos-u65-256"),
    ("nxp/imx93:mcu/core", "mcpu", "cortex-m33"),
    ("ti/beaglebone-ai-64:cpu", "mcpu", "cortex-a72"),
    ("ti/beagley-ai:dsp", "model", "c7x"),
    ("st/stm32mp157c-dk2:mcu", "mcpu", "cortex-m4"),
    ("st/nucleo-f746zg", "mcpu", "cortex-m7"),
    ("st/nucleo-f746zg", "clock-mhz", 216),
    ("st/stm32h747xi:m4", "mcpu", "cortex-m4"),
    ("nordic/nrf52840dk", "mcpu", "cortex-m4"),
    ("nordic/nrf5340dk:app", "mcpu", "cortex-m33"),
    ("espressif/esp32-c3-devkitm", "march", "rv32imc"),
    ("xilinx/kv260:cpu", "mcpu", "cortex-a53"),
    ("xilinx/zcu102:rpu", "mcpu", "cortex-r5"),
    ("qcom/sm8650:cpu-prime", "mcpu", "cortex-x4"),
    ("qcom/snapdragon-8-gen-3:dsp", "mcpu", "hexagonv75"),
    ("qcom/sm8350:dsp", "vtcm-capacity", 4 << 20),
    ("qcom/x1e80100:cpu", "num-cores", 12),
    ("samsung/galaxy-s23:gpu", "model", "adreno-740"),
    ("hisilicon/kirin970:cpu-little", "num-cores", 4),
    ("mediatek/genio-1200:cpu-big", "mcpu", "cortex-a78"),
    ("google/pixel-6:cpu-prime", "mcpu", "cortex-x1"),
    ("riscv/milkv-pioneer:cpu", "num-cores", 64),
    ("riscv/visionfive-2:cpu", "mcpu", "sifive-u74"),
    ("riscv/bananapi-f3:cpu", "mcpu", "spacemit-x60"),
    ("arm/corstone-300:ethos-u", "accelerator-config", "ethos-u55-256"),
    ("arm/corstone-320.u85-1024:ethos-u", "accelerator-config", "ethos-u85-1024"),
    ("alif/ensemble-e8:he/npu", "accelerator-config", "ethos-u55-128"),
    ("generic/x86-64-v3", "mcpu", "x86-64-v3"),
    ("generic/armv8.2-a", "mattr", ("+neon", "+v8.2a")),
    ("generic/rva23u64", "mattr", ("+rva23u64",)),
    ("generic/cortex-m7", "mcpu", "cortex-m7"),
    ("generic/sm_90a", "arch", "sm_90a"),
]


@pytest.mark.parametrize(("part", "attribute", "value"), FACTS, ids=[f"{part} {key}" for part, key, _ in FACTS])
def test_a_fact_equals_that_of_its_source(part, attribute, value):
    assert Target.parse(part)[attribute] == value


MEMORIES = {
    "raspberry-pi/5.16gb": {"dram": 16 << 30},
    "raspberry-pi/zero-2-w": {"dram": 512 << 20},
    "nxp/imx8mm-evk": {"dram": 2 << 30},
    "ti/sk-am69": {"dram": 32 << 30},
    "xilinx/pynq-z1": {"dram": 512 << 20},
    "google/coral-dev-board": {"dram": 1 << 30},
    "riscv/hifive-unmatched": {"dram": 16 << 30},
    "st/nucleo-f746zg": {"sram": 256 << 10, "dtcm": 64 << 10, "flash": 1 << 20},
    "st/nucleo-l4r5zi": {"sram": 640 << 10, "flash": 2 << 20},
    "nordic/nrf52840dk": {"sram": 256 << 10, "flash": 1 << 20},
    "raspberry-pi/pico": {"sram": 264 << 10, "flash": 2 << 20},
}


@pytest.mark.parametrize("name", MEMORIES)
def test_memories_have_the_sizes_in_their_sources(name):
    assert {memory.name: memory.bytes for memory in REGISTRY[name].memory} == MEMORIES[name]


def test_flash_holds_no_tensors():
    """The first memory gives a domain its name, so RAM comes before flash."""
    for name in NAMES:
        for _, node in REGISTRY[name].walk():
            is_flash = [memory.kind == "flash" for memory in node.memory]
            assert is_flash == sorted(is_flash), name
            assert not is_flash or not all(is_flash), name


@pytest.mark.parametrize("name", ["nxp/imx93", "nxp/imx93-evk", "alif/ensemble-e8"])
def test_a_microcontroller_drives_its_npu(name):
    target = REGISTRY[name]
    assert target.depth == 3
    sites = {site.path: site for site in Topology(target.resolve()).leaves()}
    behind = [path for path in sites if sites[path].target.kind == "ethos-u"]
    assert behind
    for path in behind:
        assert sites[path].host == f"{path.rpartition('/')[0]}/core"


@pytest.mark.parametrize("name", ["rockchip/rk3588", "qcom/sm8550", "google/gs101", "hisilicon/kirin960"])
def test_different_cpu_clusters_share_one_memory(name):
    sites = list(Topology(REGISTRY[name].resolve()).leaves())
    assert len([site for site in sites if site.path.startswith("cpu-")]) >= 2
    assert {site.domain for site in sites} == {"dram"}


def test_an_edge_tpu_has_its_own_memory():
    sites = {site.path: site.domain for site in Topology(REGISTRY["google/coral-dev-board"].resolve()).leaves()}
    assert sites == {"cpu": "dram", "tpu": "tpu/sram"}
