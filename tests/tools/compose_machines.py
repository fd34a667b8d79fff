"""Compose captures of machines we have not: `tests/target/machines/composed-*.json`.

Run as `python tests/tools/compose_machines.py`. Each file says in `about` that it is composed, and from which public
facts. Flags of CPUs are those of the machines that archspec publishes (archspec-json, tests/targets; Apache-2.0 or
MIT), which come with the package. Servers are composed with fewer cores than they have, to keep files short.
"""

from __future__ import annotations

import json
from pathlib import Path

import archspec

from tvmtarget.target.detection.machine import DISPLAYS, GPU_QUERY, GPU_REPORT, MEMORY_BLOCKS, SYSCTL, Machine

FOLDER = Path(__file__).parents[1] / "target" / "machines"
PUBLISHED = Path(archspec.__file__).parent / "json" / "tests" / "targets"
CPU = "/sys/devices/system/cpu"
KFD = "/sys/class/kfd/kfd/topology/nodes"
GIB = 1024**3
LINUX = ("Linux", "x86_64", "x86_64-pc-linux-gnu")
ARM = ("Linux", "aarch64", "aarch64-unknown-linux-gnu")


def flags(published: str, *, without: str = "", more: str = "") -> str:
    """Return the flags of a machine that archspec publishes, with changes."""
    lines = (PUBLISHED / published).read_text().splitlines()
    found = next(line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features")))
    return " ".join([*(flag for flag in found if flag not in without.split()), *more.split()])


def cpuinfo(number: int, **facts: str) -> dict[str, str]:
    """Return /proc/cpuinfo as a capture has it: of later CPUs what differs from the first."""
    first = "".join(f"{name.replace('_', ' ', name != 'vendor_id')}\t: {value}\n" for name, value in facts.items())
    blocks = [f"processor\t: 0\n{first}", *(f"processor\t: {cpu}\n" for cpu in range(1, number))]
    return {"/proc/cpuinfo": "\n".join(blocks)}


def intel(number: int, model: int, listed: str, stepping: int = 0) -> dict[str, str]:
    """Return the cpuinfo of CPUs of Intel's family 6."""
    facts = {"vendor_id": "GenuineIntel", "cpu_family": "6", "model": str(model), "stepping": str(stepping)}
    return cpuinfo(number, **facts, flags=listed)


def amd(number: int, family: int, model: int, listed: str) -> dict[str, str]:
    """Return the cpuinfo of CPUs of AMD's."""
    facts = {"vendor_id": "AuthenticAMD", "cpu_family": str(family), "model": str(model)}
    return cpuinfo(number, **facts, flags=listed)


def arm(parts: list[str], listed: str) -> dict[str, str]:
    """Return the cpuinfo of Arm's cores by their part numbers."""
    blocks = [
        f"processor\t: {cpu}\nFeatures\t: {listed}\nCPU implementer\t: 0x41\nCPU part\t: {part}\n"
        for cpu, part in enumerate(parts)
    ]
    return {"/proc/cpuinfo": "\n".join(blocks)}


def topology(sockets: int, cores: int, threads: int = 1) -> dict[str, str]:
    """Return who shares a core and a socket; as Linux numbers them, all first threads come first."""
    number, found = sockets * cores, {}
    for cpu in range(number * threads):
        siblings = [cpu % number + number * thread for thread in range(threads)]
        first = cpu % number // cores * cores
        socket = [f"{first + number * thread}-{first + number * thread + cores - 1}" for thread in range(threads)]
        found[f"{CPU}/cpu{cpu}/topology/thread_siblings_list"] = ",".join(map(str, siblings))
        found[f"{CPU}/cpu{cpu}/topology/core_siblings_list"] = ",".join(socket)
    return found


def caches(cpu: int, l1d: str, l2: str, l3: str = "", shared: str = "") -> dict[str, str]:
    """Return the caches that one CPU sees; `shared` are those that share its level 3."""
    rows = [("1", "Data", l1d), ("1", "Instruction", l1d), ("2", "Unified", l2), ("3", "Unified", l3)]
    found = {}
    for index, (level, type_, size) in enumerate(row for row in rows if row[2]):
        folder = f"{CPU}/cpu{cpu}/cache/index{index}"
        found |= {f"{folder}/level": level, f"{folder}/type": type_, f"{folder}/size": size}
        found |= {f"{folder}/shared_cpu_list": shared if level == "3" else str(cpu)}
    return found


def memory(kibibytes: int, blocks: int = 0) -> dict[str, str]:
    """Return what the kernel left over, and its blocks of 128 MiB."""
    found = {"/proc/meminfo": f"MemTotal: {kibibytes} kB\n"}
    return found | (
        {"/sys/devices/system/memory/block_size_bytes": "8000000", MEMORY_BLOCKS: str(blocks)} if blocks else {}
    )


def board(model: str, *compatible: str) -> dict[str, str]:
    """Return the names in a device tree."""
    return {"/proc/device-tree/model": model, "/proc/device-tree/compatible": "\n".join(compatible)}


def gpus(*rows: str, report: str = "") -> dict[str, str]:
    """Return what nvidia-smi says: rows of its query, and its report if that matters."""
    found = {GPU_QUERY: "".join(f"{row}\n" for row in rows)} if rows else {}
    return found | ({GPU_REPORT: f"<nvidia_smi_log>{report}</nvidia_smi_log>"} if report else {})


def partition(units: int, mebibytes: int) -> str:
    """Return a partition of a GPU as the report has it."""
    return (
        f"<mig_device><device_attributes><shared><multiprocessor_count>{units}</multiprocessor_count></shared>"
        f"</device_attributes><fb_memory_usage><total>{mebibytes} MiB</total></fb_memory_usage></mig_device>"
    )


def kfd(node: int, version: int, simds: int, per_unit: int, wave: int, size: int = 0, cores: int = 0) -> dict[str, str]:
    """Return a node of AMD's compute driver; heap type 1 is memory of the card."""
    said = f"cpu_cores_count {cores}\nsimd_count {simds}\nsimd_per_cu {per_unit}\nwave_front_size {wave}\n"
    found = {f"{KFD}/{node}/properties": f"{said}gfx_target_version {version}\n"}
    return found | ({f"{KFD}/{node}/mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {size}\n"} if size else {})


HASWELL = flags("linux-rhel7-haswell")
SKYLAKE = flags("linux-rhel7-skylake_avx512", more="hypervisor")
ZEN3 = flags("linux-ubuntu20.04-zen3", without="pku ospke", more="hypervisor")
H100 = "NVIDIA H100 80GB HBM3, 9.0, 81559, Disabled"
ARM32 = "half thumb fastmult vfp edsp neon vfpv3 tls vfpv4 idiva idivt vfpd32 lpae evtstrm crc32"
A72 = "fp asimd evtstrm crc32 cpuid"
ARMV8 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
ARMV82 = f"{ARMV8} atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp"

PHI = "Raspberry Pi 4 product brief; Linux, bcm2711.dtsi (caches); its Cortex-A72 has no cryptography"
ZEN = "archspec linux-ubuntu20.04-zen3 without pku"

MACHINES: dict[str, tuple[str, Machine]] = {
    "aws-c5-2xlarge": (
        "EC2 c5.2xlarge on a Xeon 8275CL whose VNNI the hypervisor hides (4 cores, 8 threads, 16 GiB: EC2's "
        "documentation; flags of archspec linux-rhel7-skylake_avx512; caches: Intel's data sheet)",
        Machine(
            *LINUX,
            intel(8, 85, SKYLAKE, 7)
            | topology(1, 4, 2)
            | caches(0, "32K", "1024K", "36608K", "0-7")
            | memory(15896000, 128),
        ),
    ),
    "aws-c6a-large": (
        f"EC2 c6a.large: Zen 3 with pku hidden (1 core, 2 threads, 4 GiB: EC2's documentation; {ZEN})",
        Machine(
            *LINUX,
            amd(2, 25, 1, ZEN3) | topology(1, 1, 2) | caches(0, "32K", "512K", "8192K", "0-1") | memory(3900000, 32),
        ),
    ),
    "aws-c7g-xlarge": (
        "EC2 c7g.xlarge: Graviton 3 (4 cores, 8 GiB: EC2's documentation; flags of archspec linux-amazon-neoverse_v1; "
        "caches: Arm Neoverse V1 manual, 32 MiB of level 3: AWS)",
        Machine(
            *ARM,
            arm(["0xd40"] * 4, flags("linux-amazon-neoverse_v1"))
            | topology(1, 4)
            | caches(0, "64K", "1024K", "32768K", "0-3")
            | memory(7900000, 64),
        ),
    ),
    "raspberry-pi-4": (
        PHI,
        Machine(
            *ARM,
            arm(["0xd08"] * 4, A72)
            | topology(1, 4)
            | caches(0, "32K", "1024K")
            | memory(3884120)
            | board("Raspberry Pi 4 Model B Rev 1.4", "raspberrypi,4-model-b", "brcm,bcm2711"),
        ),
    ),
    "raspberry-pi-4-32-bit": (
        f"{PHI}; 32-bit user space under a 64-bit kernel, flags as Linux writes them for 32-bit programs",
        Machine(
            "Linux",
            "aarch64",
            "arm-unknown-linux-gnueabihf",
            arm(["0xd08"] * 4, ARM32) | topology(1, 4),
        ),
    ),
    "rk3399": (
        "Rockchip RK3399: four Cortex-A53 and two Cortex-A72 (Linux, rk3399.dtsi: clusters, caches, capacities)",
        Machine(
            *ARM,
            arm(["0xd03"] * 4 + ["0xd08"] * 2, ARMV8)
            | topology(1, 6)
            | caches(0, "32K", "512K")
            | caches(4, "32K", "1024K")
            | {f"{CPU}/cpu{cpu}/cpu_capacity": "485" if cpu < 4 else "1024" for cpu in range(6)}
            | memory(3908000)
            | board("Radxa ROCK Pi 4B", "radxa,rockpi4b", "radxa,rockpi4", "rockchip,rk3399"),
        ),
    ),
    "three-clusters": (
        "a phone's chip with a Cortex-X1, three Cortex-A78 and four Cortex-A55 (as in Qualcomm SM8350)",
        Machine(
            *ARM,
            arm(["0xd05"] * 4 + ["0xd41"] * 3 + ["0xd44"], ARMV82)
            | topology(1, 8)
            | {f"{CPU}/cpu{cpu}/cpu_capacity": size for cpu, size in enumerate(["258"] * 4 + ["860"] * 3 + ["1024"])},
        ),
    ),
    "alder-lake": (
        "four P cores of two threads and four E cores of Intel's (archspec linux-ubuntu24.04-alderlake)",
        Machine(
            *LINUX,
            intel(12, 151, flags("linux-ubuntu24.04-alderlake"))
            | {"/sys/devices/cpu_core/cpus": "0-7", "/sys/devices/cpu_atom/cpus": "8-11"}
            | topology(1, 12)
            | {f"{CPU}/cpu{cpu}/topology/thread_siblings_list": f"{cpu & 6}-{cpu | 1}" for cpu in range(8)}
            | caches(0, "48K", "1280K", "18432K", "0-11")
            | caches(8, "32K", "2048K", "18432K", "0-11"),
        ),
    ),
    "apple-m1": (
        "an Apple M1: four performance and four efficiency cores, 8 of its GPU, 16 GiB (names of values as in archspec "
        "darwin-monterey-m1; caches: Apple's)",
        Machine(
            "Darwin",
            "arm64",
            "aarch64-apple-darwin20.6.0",
            {
                SYSCTL: "hw.memsize: 17179869184\nhw.nperflevels: 2\nhw.physicalcpu: 8\n"
                "hw.perflevel0.physicalcpu: 4\nhw.perflevel0.logicalcpu: 4\n"
                "hw.perflevel0.l1dcachesize: 131072\nhw.perflevel0.l2cachesize: 12582912\n"
                "hw.perflevel1.physicalcpu: 4\nhw.perflevel1.logicalcpu: 4\n"
                "hw.perflevel1.l1dcachesize: 65536\nhw.perflevel1.l2cachesize: 4194304\n"
                "machdep.cpu.brand_string: Apple M1\n",
                DISPLAYS: '{"SPDisplaysDataType": [{"sppci_model": "Apple M1", "sppci_cores": "8"}]}',
            },
        ),
    ),
    "apple-m9": (
        "an Apple chip newer than our table",
        Machine("Darwin", "arm64", "", {SYSCTL: "hw.physicalcpu: 12\nmachdep.cpu.brand_string: Apple M9 Pro\n"}),
    ),
    "mac-intel": (
        "a Mac with a Core i7-7700HQ (flags of archspec darwin-mojave-skylake; caches: Intel's data sheet)",
        Machine(
            "Darwin",
            "x86_64",
            "",
            {
                SYSCTL: f"{(PUBLISHED / 'darwin-mojave-skylake').read_text()}\n"
                "machdep.cpu.family: 6\nmachdep.cpu.model: 158\nhw.physicalcpu: 4\nhw.logicalcpu: 8\n"
                "hw.l1dcachesize: 32768\nhw.l2cachesize: 262144\nhw.l3cachesize: 8388608\nhw.memsize: 17179869184\n"
            },
        ),
    ),
    "eight-h100": (
        f"a box of eight H100 behind two sockets of Zen 3 ({ZEN}; rows of nvidia-smi as XLA's and NVIDIA's "
        "documents have them); eight cores stand for 96",
        Machine(
            *LINUX,
            amd(16, 25, 1, ZEN3)
            | topology(2, 4, 2)
            | caches(0, "32K", "512K", "32768K", "0-1,8-9")
            | memory(2_097_152_000)
            | gpus(*[H100] * 8),
        ),
    ),
    "a100-partitioned": (
        "two A100-40, one in partitions of 3/7, 2/7 and twice 1/7 (sizes: NVIDIA's MIG user guide)",
        Machine(
            *LINUX,
            intel(4, 85, SKYLAKE, 7)
            | topology(1, 2, 2)
            | gpus(
                "NVIDIA A100-SXM4-40GB, 8.0, 40960, Enabled",
                "NVIDIA A100-SXM4-40GB, 8.0, 40960, Disabled",
                report=f"<gpu><mig_devices>{partition(42, 19968)}{partition(28, 9984)}{partition(14, 4864) * 2}"
                "</mig_devices></gpu><gpu></gpu>",
            ),
        ),
    ),
    "old-nvidia-driver": (
        "a T4 under a driver that does not answer the query for the compute capability",
        Machine(
            *LINUX,
            intel(2, 85, SKYLAKE, 4)
            | gpus(
                report="<gpu><product_name>Tesla T4</product_name><fb_memory_usage><total>15109 MiB</total>"
                "</fb_memory_usage></gpu>"
            ),
        ),
    ),
    "two-sorts-of-gpus": (
        "a workstation with two RTX 4090 and an RTX A4000 (compute capabilities: developer.nvidia.com/cuda-gpus)",
        Machine(
            *LINUX,
            amd(8, 25, 33, flags("linux-ubuntu20.04-zen3"))
            | topology(1, 4, 2)
            | memory(65_700_000, 512)
            | gpus(
                "NVIDIA GeForce RTX 4090, 8.9, 24564, [N/A]",
                "NVIDIA RTX A4000, 8.6, 16376, [N/A]",
                "NVIDIA GeForce RTX 4090, 8.9, 24564, [N/A]",
            ),
        ),
    ),
    "jetson-nano": (
        "Jetson Nano: Tegra X1, one memory (Linux, tegra210.dtsi: four Cortex-A57, 2 MiB of level 2)",
        Machine(
            *ARM,
            arm(["0xd07"] * 4, ARMV8)
            | topology(1, 4)
            | caches(0, "32K", "2048K")
            | memory(4059284)
            | board("NVIDIA Jetson Nano Developer Kit", "nvidia,p3450-0000", "nvidia,jetson-nano", "nvidia,tegra210"),
        ),
    ),
    "jetson-orin-nano": (
        "Jetson Orin Nano, whose nvidia-smi lists the GPU without memory (Linux, tegra234.dtsi: Cortex-A78AE, caches)",
        Machine(
            *ARM,
            cpuinfo(6, Features=ARMV82, CPU_implementer="0x41", CPU_part="0xd42")
            | topology(1, 6)
            | caches(0, "64K", "256K", "2048K", "0-3")
            | memory(7800000)
            | gpus("Orin (nvgpu), 8.7, [N/A], [N/A]")
            | board("NVIDIA Jetson Orin Nano Developer Kit", "nvidia,p3768-0000+p3767-0005", "nvidia,tegra234"),
        ),
    ),
    "two-mi300x": (
        "two Instinct MI300X (gfx942, 304 compute units, 192 GiB: AMD's data sheet; files: Linux, kfd_topology.c)",
        Machine(
            *LINUX,
            amd(2, 25, 17, flags("linux-rocky8.5-zen4"))
            | topology(1, 2)
            | kfd(0, 0, 0, 0, 0, cores=2)
            | kfd(1, 90402, 1216, 4, 64, 192 * GIB)
            | kfd(2, 90402, 1216, 4, 64, 192 * GIB),
        ),
    ),
    "ryzen-with-graphics": (
        "a Ryzen 7840U: RDNA 3 graphics of 12 compute units on the memory of the host (AMD's data sheet)",
        Machine(
            *LINUX,
            amd(4, 25, 116, flags("linux-rocky8.5-zen4"))
            | topology(1, 2, 2)
            | memory(32_000_000)
            | kfd(0, 110003, 24, 2, 32, cores=4),
        ),
    ),
    "newer-amd-gpu": (
        "a GPU of AMD's that is in no table",
        Machine(*LINUX, amd(1, 25, 17, "fpu") | kfd(1, 190001, 256, 2, 32, 64 * GIB)),
    ),
    "newer-intel": (
        "a CPU of Intel's of a family and with flags that nobody knows yet",
        Machine(
            *LINUX,
            {
                "/proc/cpuinfo": cpuinfo(
                    2,
                    vendor_id="GenuineIntel",
                    cpu_family="19",
                    model="1",
                    flags=flags("linux-unknown-sapphirerapids", more="avx512_bf32 amx_fp32 apx"),
                )["/proc/cpuinfo"]
            },
        ),
    ),
    "newer-arm": (
        "a core of Arm's whose part number is in no table",
        Machine(*ARM, arm(["0xfff"] * 2, flags("linux-amazon-neoverse_v1"))),
    ),
    "unknown-vendor": (
        "an x86 CPU of a vendor that nobody knows, on musl",
        Machine("Linux", "x86_64", "x86_64-alpine-linux-musl", cpuinfo(1, vendor_id="Nobody", flags=HASWELL)),
    ),
    "x86-32-bit": (
        "32-bit user space under a 64-bit kernel",
        Machine("Linux", "x86_64", "i686-pc-linux-gnu", intel(1, 60, HASWELL)),
    ),
    "riscv": (
        "a SpacemiT X60 (archspec linux-spacemit-x60)",
        Machine(
            "Linux",
            "riscv64",
            "riscv64-unknown-linux-gnu",
            {"/proc/cpuinfo": (PUBLISHED / "linux-spacemit-x60").read_text()},
        ),
    ),
    "windows": (
        "Windows on an x86 that answers cpuid (flags of archspec linux-rhel7-haswell)",
        Machine("Windows", "AMD64", "", {"cpuid": f"vendor_id : GenuineIntel\nflags : {HASWELL}\n"}),
    ),
    "freebsd": ("a system we do not read", Machine("FreeBSD", "amd64", "amd64-portbld-freebsd14.0")),
    "empty": ("nothing could be read", Machine()),
    "garbage": (
        "texts that mean nothing",
        Machine(
            "Linux",
            "pdp-11",
            "?",
            {
                "/proc/cpuinfo": "processor: many\nflags\n\n\nprocessor : 99999999999999999999\n:::",
                "/proc/meminfo": "MemTotal: lots kB",
                f"{CPU}/cpu0/cache/index0/size": "-1K",
                GPU_QUERY: "No devices were found\n,,,\nNVIDIA X, 9, ?, Enabled\n",
                GPU_REPORT: "<nvidia_smi_log><gpu>",
                DISPLAYS: '{"SPDisplaysDataType": [7]}',
                SYSCTL: "hw.memsize: x\nhw.perflevel0.physicalcpu: -4\nmachdep.cpu.brand_string",
                f"{KFD}/1/properties": "gfx_target_version ninety\n",
                "/proc/device-tree/compatible": "\n\n",
            },
        ),
    ),
}


def main() -> None:
    """Write all captures anew."""
    for name, (about, machine) in MACHINES.items():
        flat = {"about": f"composed: {about}"} | json.loads(machine.to_json())
        (FOLDER / f"composed-{name}.json").write_text(json.dumps(flat, indent=1) + "\n")


if __name__ == "__main__":
    main()
