"""Detection: the targets of captured machines, features that are never claimed, and `why_not`.

A capture is measured (on a machine we had), emulated (by QEMU) or composed (of public facts); each file says so.
"""

import json
import os
import re
import sys
from pathlib import Path

import archspec
import pytest
from archspec.cpu import TARGETS
from hypothesis import given
from hypothesis import strategies as st

from tvmtarget import Target, TvmTargetError
from tvmtarget.target.constraints.reasons import Truth
from tvmtarget.target.cpu.chips import chips_of
from tvmtarget.target.cpu.features import table_of
from tvmtarget.target.cpu.isa import features_of
from tvmtarget.target.detection.detect import board_name
from tvmtarget.target.detection.machine import CPUID, GPU_QUERY, GPU_REPORT, SYSCTL, Machine

FILES = sorted((Path(__file__).parent / "machines").glob("*.json"))
PUBLISHED = Path(archspec.__file__).parent / "json" / "tests" / "targets"
PROCESSORS = json.loads((Path(sys.modules[Machine.__module__].__file__).parent / "data/processors.json").read_text())


def read(name):
    return Machine.from_json(next(path for path in FILES if path.stem == name).read_text())


def cpus(target):
    return [leaf for leaf in target.targets or (target,) if leaf.kind == "llvm"]


def test_captured_machines_are_these_targets(golden):
    lines = []
    for path in FILES:
        machine = Machine.from_json(path.read_text())
        lines += [
            path.stem,
            f"  {Target.detect(machine)}",
            *([f"  board: {board_name(machine)}"] if board_name(machine) else []),
        ]
    golden("target/machines.golden", "\n".join(lines) + "\n")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_capture_states_its_origin_and_a_detected_target_is_an_ordinary_one(path):
    text = path.read_text()
    about = json.loads(text)["about"]
    assert about.split(":")[0].split()[0] in ("measured", "emulated", "composed")
    assert path.stem.startswith(about.split(":")[0].split()[0])
    machine = Machine.from_json(text)
    assert Machine.from_json(machine.to_json()) == machine
    target = Target.detect(machine)
    assert Target.parse(str(target)) == target
    assert target.resolve().digest == target.digest
    assert str(target.origin("")).startswith("measured")
    assert target.why_not(target).truth is Truth.YES


def test_this_machine_is_what_its_capture_is():
    machine = Machine.capture()
    here = Target.detect(machine)
    assert Target.detect(Machine.from_json(machine.to_json())) == here
    assert Target.detect() == here
    assert here.why_not(here)
    assert "native" not in str(here)


def test_a_capture_of_the_cpu_alone_queries_no_driver(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!{sys.executable}\nopen({str(tmp_path / 'called')!r}, 'w')\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    Machine.capture(gpus=False)
    assert not (tmp_path / "called").exists()
    Machine.capture()
    assert (tmp_path / "called").exists()


def test_a_capture_contains_no_serial_numbers(tmp_path, monkeypatch):
    report = """<nvidia_smi_log><driver_version>550</driver_version><gpu id="00000000:07:00.0">
        <product_name>NVIDIA T4</product_name><serial>SECRET</serial><uuid>GPU-SECRET</uuid>
        <fb_memory_usage><total>15360 MiB</total><used>1 MiB</used></fb_memory_usage>
        <processes><process_info><process_name>SECRET</process_name></process_info></processes></gpu></nvidia_smi_log>"""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!{sys.executable}\nimport sys\nprint('' if '--query' in sys.argv[1] else {report!r})\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    machine = Machine.capture()
    assert "SECRET" not in machine.to_json()
    assert machine.text(GPU_QUERY) == ""
    assert machine.text(GPU_REPORT) == (
        "<nvidia_smi_log><gpu><product_name>NVIDIA T4</product_name><fb_memory_usage><total>15360 MiB</total>"
        "</fb_memory_usage></gpu></nvidia_smi_log>"
    )
    assert Target.detect(machine).at("gpu")["model"] == "NVIDIA T4"
    assert not re.search(r"\bserial\b|MHz|bogomips", machine.to_json(), re.IGNORECASE)


# Machines that archspec publishes, and what LLVM calls them where that is not archspec's name of them.
OTHERWISE = {
    "linux-rhel7-x86_64_v3": "haswell",  # by its model, and all its code is there
    "linux-rhel7-zen": "znver1",
    "linux-centos7-thunderx2": "thunderx2t99",
    "linux-rhel6-piledriver": "bdver2",
    "linux-scientific7-piledriver": "bdver2",
    "linux-scientificfermi6-piledriver": "bdver2",
    "linux-rocky9-zen6": "znver5",  # LLVM 22 has no newer one
    "linux-asahi-m1": "apple-m1",
    "linux-asahi-m2": "apple-m2",
    "darwin-bigsur-m1": "apple-m1",
    "darwin-monterey-m1": "apple-m1",
    "darwin-monterey-m2": "apple-m2",
    "darwin-sequoia-m3": "apple-m3",
    "darwin-sequoia-m4": "apple-m4",
    "darwin-mojave-skylake": "haswell",  # no model in it, and macOS does not list what Skylake added
    "linux-sifive-u74mc": "sifive-u74",
    "linux-spacemit-x60": "spacemit-x60",
    "linux-debian13-x60": "generic-rv64",  # says no micro-architecture
}


def published():
    for path in sorted(PUBLISHED.iterdir()):
        text = path.read_text()
        if path.name.startswith("darwin"):
            yield path.name, Machine("Darwin", "x86_64", "", {SYSCTL: text})
        elif path.name.startswith("linux"):
            is_arm, is_riscv, is_power = "CPU part" in text, "\nisa" in text, "POWER" in text
            arch = "aarch64" if is_arm else "riscv64" if is_riscv else "ppc64le" if is_power else "x86_64"
            yield path.name, Machine("Linux", arch, "", {"/proc/cpuinfo": text})


@pytest.mark.parametrize(("name", "machine"), [pytest.param(*pair, id=pair[0]) for pair in published()])
def test_published_machines_get_the_name_that_archspec_gives_them(name, machine):
    known = TARGETS[name.rpartition("-")[2]]
    expected = {"aarch64": known.name.replace("_", "-"), "x86_64": llvm_name(known)}.get(known.family.name)
    assert {cpu["mcpu"] for cpu in cpus(Target.detect(machine))} == {OTHERWISE.get(name, expected)}


def llvm_name(known):
    """Return LLVM's name of an x86 CPU of archspec's."""
    flags = known.optimization_flags("clang", "99") if known.family.name == "x86_64" and known.name != "zen6" else ""
    return next(iter(re.findall(r"-march=(\S+)", flags)), None)


@pytest.mark.parametrize("family", PROCESSORS["flags"])
def test_features_of_flags_are_those_that_llvm_has(family):
    assert PROCESSORS["flags"][family].keys() <= table_of(family).implies.keys()
    assert family != "x86" or set(PROCESSORS["explicit"].split()) <= table_of(family).implies.keys()


def test_names_of_cpus_are_those_that_llvm_has():
    arms = {name for parts in PROCESSORS["parts"].values() for name in parts.values()}
    assert arms <= chips_of("aarch64") | chips_of("arm")
    assert {row.split()[2] for rows in PROCESSORS["models"].values() for row in rows} <= chips_of("x86")
    assert {*PROCESSORS["apple"].values()} <= chips_of("aarch64")
    assert {*PROCESSORS["riscv"].values()} <= chips_of("riscv")


X86 = sorted(PROCESSORS["flags"]["x86"].values())
ARM = sorted({flag for flags in PROCESSORS["flags"]["aarch64"].values() for flag in flags.split()})
CPUS = st.sampled_from([("GenuineIntel", 6, model) for model in (60, 85, 106, 143, 151, 173)]) | st.sampled_from(
    [("AuthenticAMD", 23, 1), ("AuthenticAMD", 25, 1), ("AuthenticAMD", 26, 2), ("Nobody", 1, 1)]
)


def claimed(target, shown):
    """Return the features that a target claims although their flags are absent."""
    family = "aarch64" if "aarch64" in str(target) else "x86"
    rows, system = PROCESSORS["flags"][family], table_of(family).system
    hidden = {feature for feature, flags in rows.items() if not {*flags.split()} <= {*shown}} - system
    return {feature for feature in features_of(target.kind, target.attrs) if feature in hidden}


@given(CPUS, st.sets(st.sampled_from(X86), max_size=6))
def test_a_hidden_feature_of_x86_is_never_claimed(cpu, hidden):
    vendor, family, model = cpu
    always = {"lm", "fpu", "cx8", "cmov", "mmx", "fxsr", "sse", "sse2"}
    shown = [flag for flag in X86 if flag not in hidden or flag in always]
    cpuinfo = f"processor: 0\nvendor_id: {vendor}\ncpu family: {family}\nmodel: {model}\nflags: {' '.join(shown)}\n"
    target = Target.detect(Machine("Linux", "x86_64", "", {"/proc/cpuinfo": cpuinfo}))
    assert target["mcpu"] is not None
    assert claimed(target, shown) == set()


@given(st.sampled_from(sorted(PROCESSORS["parts"]["0x41"])), st.sets(st.sampled_from(ARM)))
def test_a_hidden_feature_of_arm_is_never_claimed(part, shown):
    shown = shown | {"fp", "asimd"}
    cpuinfo = f"processor: 0\nFeatures: {' '.join(shown)}\nCPU implementer: 0x41\nCPU part: {part}\n"
    target = Target.detect(Machine("Linux", "aarch64", "", {"/proc/cpuinfo": cpuinfo}))
    assert claimed(target, shown) == set()


NAMES = st.sampled_from([*{name for path in FILES for name in json.loads(path.read_text())["texts"]}, CPUID])
PIECES = [
    "processor",
    ":",
    "flags",
    " ",
    "\n",
    "\n\n",
    "0",
    "-1",
    "9" * 30,
    ",",
    "-",
    "K",
    "rv64",
    "_",
    "<gpu>",
    "Enabled",
]


@given(
    st.sampled_from(["Linux", "Darwin", "Windows", "", "Plan9"]),
    st.sampled_from(["x86_64", "arm64", "aarch64", "armv7l", "riscv64", "", "é", "AMD64"]),
    st.sampled_from(["", "-", "x86_64-pc-linux-gnu", "arm-linux-musleabihf", "---"]),
    st.dictionaries(NAMES, st.lists(st.sampled_from(PIECES)).map("".join) | st.text(max_size=20), max_size=8),
)
def test_arbitrary_texts_give_a_target(system, architecture, user_space, texts):
    machine = Machine(system, architecture, user_space, texts)
    target = Target.detect(machine)
    assert Target.parse(str(target)) == target
    assert Target.detect(Machine.from_json(machine.to_json())) == target


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the text of a captured machine is not JSON: expecting value at offset 0"),
        ("[" * 100_000, "the text of a captured machine is nested deeper than 200 levels"),
        ("[]", "a captured machine is an object with 'schema': 1, not []"),
        ('{"schema": 2}', "a captured machine is an object with 'schema': 1, not 2"),
        ('{"schema": 1, "system": 1}', "'system' of a captured machine is text, not 1"),
        ('{"schema": 1, "texts": {"a": 1}}', "'texts' of a captured machine is an object of texts"),
        ('{"schema": 1, "texts": []}', "'texts' of a captured machine is an object of texts"),
    ],
)
def test_a_file_that_is_no_capture_is_rejected(text, problem):
    with pytest.raises(TvmTargetError) as error:
        Machine.from_json(text)
    assert problem in str(error.value)


REQUIRED = (
    ("composed-aws-c5-2xlarge", "aws/c5.2xlarge"),
    ("composed-aws-c5-2xlarge", "aws/c5.4xlarge"),
    ("composed-aws-c5-2xlarge", "llvm(mcpu=cascadelake)"),
    ("composed-aws-c6a-large", "llvm(mcpu=znver3)"),
    ("composed-aws-c6a-large", "llvm(mcpu=x86-64-v4,threads-per-core=2)"),
    ("composed-raspberry-pi-4", "arm/rasp4b64"),
    ("composed-raspberry-pi-4", "llvm(mcpu=cortex-a72)"),
    ("composed-raspberry-pi-4", "arm/rasp4b"),
    ("composed-raspberry-pi-4-32-bit", "llvm(mtriple=armv7l-linux-gnueabihf,+neon)"),
    ("composed-jetson-nano", "nvidia/jetson-nano"),
    ("composed-rk3399", "[a=llvm(mcpu=cortex-a53,num-cores=4),b=llvm(mcpu=cortex-a53,num-cores=2)]"),
    ("composed-rk3399", "[a=llvm(num-cores=4),b=llvm(num-cores=4)]"),
    ("composed-eight-h100", "[gpu=cuda(arch=sm_90a,max_threads_per_block=1024,count=8),cpu=llvm(mcpu=x86-64-v3)]"),
    ("composed-eight-h100", "cuda(arch=sm_90,num-compute-units=132,count=9)"),
    ("composed-eight-h100", "cuda(arch=sm_90,num-compute-units=132)"),
    ("composed-eight-h100", "cuda(max_shared_memory_per_block=232448,max_threads_per_block=1024)"),
    ("composed-jetson-nano", "cuda(registers_per_block=65536,thread_warp_size=64)"),
    ("composed-eight-h100", "cuda(arch=sm_100)"),
    ("composed-eight-h100", "[npu=hexagon,a=opencl,b=rocm,c=onnxruntime]"),
    ("composed-a100-partitioned", "cuda(num-compute-units=28,count=2)"),
    ("composed-a100-partitioned", "cuda(num-compute-units=28,count=3)"),
    ("composed-two-mi300x", "rocm(mcpu=gfx942,num-compute-units=304,count=2)"),
    ("composed-two-mi300x", "rocm(mcpu=gfx90a)"),
    ("composed-old-nvidia-driver", "cuda(arch=sm_75)"),
    ("composed-newer-arm", "llvm(mcpu=neoverse-n1)"),
    ("composed-newer-arm", "llvm(mcpu=neoverse-v2)"),
    ("composed-apple-m1", "apple/m1"),
    ("composed-empty", "aws/c5.large"),
    ("measured-kvm-h100", "nvidia/h100-sxm"),
    ("measured-kvm-h100", "nvidia/h200"),
    ("measured-kvm-h100", "[gpu=cuda(arch=sm_90,num-compute-units=144,count=2),cpu=llvm(mcpu=sapphirerapids)]"),
    ("measured-kvm-zen5", "llvm(mcpu=znver5)"),
    ("measured-kvm-zen5", "llvm(mcpu=znver5,+rdseed)"),
    ("measured-kvm-zen5", "llvm(mcpu=cortex-a72)"),
)


def test_why_not_explains_every_difference(golden):
    reasons = [f"{name}: {required}\n{Target.detect(read(name)).why_not(required)}\n" for name, required in REQUIRED]
    golden("target/why_not.golden", "\n".join(reasons))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_larger_machines_pass_and_smaller_ones_fail(path):
    here = Target.detect(Machine.from_json(path.read_text()))
    for site, leaf in [("", here)] if not here.targets else [(child.slot, child) for child in here.targets]:
        if leaf.attrs.get("num-cores"):
            change = f"{site}/num-cores".lstrip("/")
            more = here.override({change: leaf["num-cores"] + 1})
            assert more.why_not(here)
            assert here.why_not(more).truth is Truth.NO


def test_many_equal_devices_are_compared_once():
    def cluster(cores, count):
        cpu = {"kind": "llvm", "mcpu": "znver4", "mtriple": "x86_64-linux-gnu"}
        cpus = [{**cpu, "num-cores": cores + at % 3, "name": f"cpu{at}"} for at in range(count)]
        return Target.from_json({"kind": "composite", "targets": cpus})

    assert cluster(8, 2000).why_not(cluster(8, 2000)).truth is Truth.YES
    answer = cluster(8, 2000).why_not(cluster(8, 2010))
    assert [part.truth for part in answer.parts].count(Truth.NO) == 10
    assert not cluster(8, 2000).why_not(cluster(11, 4))


def test_memories_of_boards_are_compared_by_their_bytes():
    machine = Target("llvm", memory=[{"name": "dram", "bytes": 2**20}])
    board = {"kind": "llvm", "memory": [{"name": "sram", "bytes": 2**21, "kind": "sram"}]}
    assert "memory 1 MiB < 2 MiB" in str(machine.why_not(board))
    board["memory"][0]["kind"] = "flash"
    assert "memory" not in str(machine.why_not(board)).partition("\n")[2]
