"""Capture machines that QEMU emulates: `tests/target/machines/emulated-*.json`.

Run as `python tests/tools/emulate_machines.py`; it needs qemu-user and a C compiler for x86-64 and one for Arm
(Debian: qemu-user gcc gcc-aarch64-linux-gnu libc6-dev-arm64-cross). QEMU passes /proc/cpuinfo of its host through,
so a small program queries the emulated CPU, and the answer is written as Linux writes it: cpuid by archspec's
table of bits, hardware capabilities by the order of their bits (Linux, arch/arm64/include/uapi/asm/hwcap.h).
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from archspec.cpu.schema import CPUID_JSON

from tvmtarget.target.detection.machine import Machine

FOLDER = Path(__file__).parents[1] / "target" / "machines"

X86 = ("qemu64", "Nehalem", "Haswell", "Skylake-Server", "EPYC", "EPYC-Milan", "max")
ARM = ("cortex-a53", "cortex-a57", "cortex-a72", "cortex-a76", "neoverse-n1", "a64fx", "max")

ASK_X86 = r"""
#include <cpuid.h>
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **words) {
    unsigned a, b, c, d;
    for (int i = 1; i + 1 < count; i += 2) {
        a = b = c = d = 0;
        __cpuid_count(strtoul(words[i], 0, 10), strtoul(words[i + 1], 0, 10), a, b, c, d);
        printf("%u %u %u %u\n", a, b, c, d);
    }
}
"""

ASK_ARM = r"""
#include <stdio.h>
#include <sys/auxv.h>
int main(void) {
    unsigned long midr;
    __asm__("mrs %0, MIDR_EL1" : "=r"(midr));
    printf("%lu %lu %lu\n", getauxval(AT_HWCAP), getauxval(AT_HWCAP2), midr);
}
"""

HWCAP = """
    fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 sm3 sm4
    asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs sb paca pacg
"""
HWCAP2 = """
    dcpodp sve2 sveaes svepmull svebitperm svesha3 svesm4 flagm2 frint svei8mm svef32mm svef64mm svebf16 i8mm bf16 dgh
    rng bti mte ecv afp rpres mte3 sme smei16i64 smef64f64 smei8i32 smef16f32 smeb16f32 smef32f32 smefa64 wfxt ebf16
"""


def main() -> None:
    """Write all captures anew."""
    with tempfile.TemporaryDirectory() as folder:
        x86 = _compile("gcc", ASK_X86, Path(folder) / "x86")
        arm = _compile("aarch64-linux-gnu-gcc", ASK_ARM, Path(folder) / "arm")
        for cpu in X86:
            _write("qemu-x86_64", cpu, "x86_64", _x86_cpuinfo(cpu, x86))
        for cpu in ARM:
            _write("qemu-aarch64", cpu, "aarch64", _arm_cpuinfo(cpu, arm))


def _compile(compiler: str, source: str, path: Path) -> str:
    path.with_suffix(".c").write_text(source)
    subprocess.run([compiler, "-static", "-o", str(path), str(path.with_suffix(".c"))], check=True)
    return str(path)


def _run(*words: str) -> list[list[int]]:
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


def _x86_cpuinfo(cpu: str, program: str) -> str:
    tables = [*CPUID_JSON["flags"], *CPUID_JSON["extension-flags"]]
    leaves = [(table["input"]["eax"], table["input"]["ecx"]) for table in tables]
    words = [str(number) for leaf in [(0, 0), (1, 0), *leaves] for number in leaf]
    first, signature, *answers = _run("qemu-x86_64", "-cpu", cpu, program, *words)
    vendor = b"".join(first[at].to_bytes(4, "little") for at in (1, 3, 2)).decode()
    eax = signature[0]
    family, model = (eax >> 8) & 15, (eax >> 4) & 15
    flags = [
        bit["name"]
        for table, answer in zip(tables, answers, strict=True)
        for bit in table["bits"]
        if answer[("eax", "ebx", "ecx", "edx").index(bit["register"])] >> bit["bit"] & 1
    ]
    lines = {
        "processor": "0",
        "vendor_id": vendor,
        "cpu family": str(family + ((eax >> 20) & 255 if family == 15 else 0)),
        "model": str(model + (((eax >> 16) & 15) << 4 if family in (6, 15) else 0)),
        "flags": " ".join(dict.fromkeys(flags)),
    }
    return "".join(f"{name}\t: {value}\n" for name, value in lines.items())


def _arm_cpuinfo(cpu: str, program: str) -> str:
    [[first, second, midr]] = _run("qemu-aarch64", "-cpu", cpu, program)
    features = [name for at, name in enumerate(HWCAP.split()) if first >> at & 1]
    features += [name for at, name in enumerate(HWCAP2.split()) if second >> at & 1]
    lines = {
        "processor": "0",
        "Features": " ".join(features),
        "CPU implementer": f"0x{midr >> 24:02x}",
        "CPU part": f"0x{midr >> 4 & 0xFFF:03x}",
    }
    return "".join(f"{name}\t: {value}\n" for name, value in lines.items())


def _write(qemu: str, cpu: str, architecture: str, cpuinfo: str) -> None:
    version = subprocess.run([qemu, "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    machine = Machine("Linux", architecture, f"{architecture}-unknown-linux-gnu", {"/proc/cpuinfo": cpuinfo})
    about = {"about": f"emulated: {qemu} {version} -cpu {cpu}, required by tests/tools/emulate_machines.py"}
    path = FOLDER / f"emulated-{qemu.removeprefix('qemu-')}-{cpu.lower()}.json"
    path.write_text(json.dumps(about | json.loads(machine.to_json()), indent=1) + "\n")


if __name__ == "__main__":
    main()
