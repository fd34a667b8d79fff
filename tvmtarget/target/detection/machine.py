"""Capture the facts of a machine that detection reads, as one value.

A capture can be saved and read on another machine, so a report of a wrong detection is one file, which becomes a test.
It holds only what `detect.py` reads: no serial numbers, UUIDs or process names.
"""

from __future__ import annotations

import glob
import json
import platform
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from xml.etree import ElementTree

from tvmtarget.errors import TargetError, did_you_mean, raise_all
from tvmtarget.python_process import python_command
from tvmtarget.target.problems import shown
from tvmtarget.untrusted import parse_json

__all__ = ["CPUID", "CUDA_DRIVER", "DISPLAYS", "GPU_QUERY", "GPU_REPORT", "MEMORY_BLOCKS", "SYSCTL", "Machine"]

_SCHEMA = 1
_CPU = "/sys/devices/system/cpu"
_KFD = "/sys/class/kfd/kfd/topology/nodes/*"

# Names of texts that are not files: command lines that print them, an instruction, a library, a count of folders.
CPUID = "cpuid"
GPU_QUERY = "nvidia-smi --query-gpu=name,compute_cap,memory.total,mig.mode.current --format=csv,noheader,nounits"
GPU_REPORT = "nvidia-smi -q -x"
CUDA_DRIVER = "libcuda"
SYSCTL = "sysctl hw machdep.cpu"
DISPLAYS = "system_profiler SPDisplaysDataType -json"
MEMORY_BLOCKS = "/sys/devices/system/memory/memory*"

# nvidia-smi fails at once without a driver; a GPU in a power-saving state takes seconds to answer.
_TIMEOUT_SECONDS = 60

_CPUINFO = (
    "processor|vendor_id|cpu family|model|model name|stepping|physical id|core id|flags|Features|isa|uarch|cpu"
    "|CPU (?:implementer|architecture|variant|part|revision)"
)
_PROPERTIES = "gfx_target_version|simd_count|simd_per_cu|wave_front_size|cpu_cores_count|heap_type|size_in_bytes"
_SYSCTL = r"hw\.(?:perflevel\d\.\w+|optional\.\S+|n?\w*cpu\w*|\w+cachesize|memsize|nperflevels)|machdep\.cpu\.\w+"
_REPORT = frozenset({"product_name", "product_architecture", "current_mig", "multiprocessor_count", "total"})


@dataclass(frozen=True, slots=True)
class Machine:
    """Captured facts of a machine.

    Attributes:
        system: The operating system, as `platform.system()` returns it.
        architecture: The architecture of the kernel, as `platform.machine()` returns it.
        user_space: The GNU name of the system that Python was built for, which distinguishes 32 from 64 bits and one C
            library from another.
        texts: Contents by the file or the command that they come from.
    """

    system: str = ""
    architecture: str = ""
    user_space: str = ""
    texts: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        # Sorted and read-only, so that captures compare and print the same however they were gathered.
        object.__setattr__(self, "texts", MappingProxyType(dict(sorted(self.texts.items()))))

    def text(self, name: str) -> str:
        """Look up a text.

        Args:
            name: A file or a command.

        Returns:
            The text without surrounding white space; empty if it was not captured.
        """
        return self.texts.get(name, "").strip()

    @classmethod
    def capture(cls, *, gpus: bool = True) -> Machine:
        """Capture this machine.

        Args:
            gpus: Whether to query the drivers of GPUs, which may take seconds.

        Returns:
            The facts; those that cannot be read are omitted.
        """
        return cls(
            system=platform.system(),
            architecture=platform.machine(),
            user_space=str(sysconfig.get_config_var("HOST_GNU_TYPE") or ""),
            texts={name: text for name, text in _texts(gpus=gpus) if text.strip()},
        )

    @classmethod
    def from_json(cls, text: str) -> Machine:
        """Read a capture.

        Args:
            text: A text that `to_json` wrote.

        Returns:
            The machine.

        Raises:
            TargetError: The text is not a capture; the message lists all problems.
        """
        data = parse_json(text, "the text of a captured machine", error=TargetError)
        if not isinstance(data, dict) or data.get("schema") != _SCHEMA:
            found = shown(data.get("schema")) if isinstance(data, dict) else shown(data)
            raise TargetError(f"a captured machine is an object with 'schema': {_SCHEMA}, not {found}")
        texts = data.get("texts", {})
        problems = [
            f"{name!r} of a captured machine is text, not {shown(data[name])}"
            for name in ("system", "architecture", "user_space", "about")
            if not isinstance(data.get(name, ""), str)
        ]
        if not isinstance(texts, dict) or not all(isinstance(value, str) for value in texts.values()):
            problems.append("'texts' of a captured machine is an object of texts")
        known = ("schema", "system", "architecture", "user_space", "about", "texts")
        problems += [
            f"a captured machine has no {shown(name)}{did_you_mean(name, known)}" for name in data if name not in known
        ]
        raise_all(TargetError, problems)
        return cls(data.get("system", ""), data.get("architecture", ""), data.get("user_space", ""), texts)

    def to_json(self) -> str:
        """Write the capture as JSON.

        Returns:
            The text of a capture file, which `from_json` reads.
        """
        data = {
            "schema": _SCHEMA,
            "system": self.system,
            "architecture": self.architecture,
            "user_space": self.user_space,
            "texts": dict(self.texts),
        }
        return json.dumps(data, indent=1) + "\n"


def _texts(*, gpus: bool) -> Iterator[tuple[str, str]]:
    for pattern, keep in _FILES:
        for path in sorted(glob.glob(pattern)):
            yield path, keep(_read(path))
    for path in _cache_files():
        yield path, _read(path)
    yield MEMORY_BLOCKS, str(len(glob.glob(MEMORY_BLOCKS)) or "")
    yield SYSCTL, _lines(_SYSCTL, ":")(_run(SYSCTL) if platform.system() == "Darwin" else "")
    yield CPUID, _cpuid() if platform.system() == "Windows" else ""
    if gpus:
        listed = _run(GPU_QUERY)
        yield GPU_QUERY, listed
        yield GPU_REPORT, _report(_run(GPU_REPORT))
        # Without a driver the program would only cost its start.
        yield CUDA_DRIVER, _output(python_command(str(Path(__file__).with_name("cuda_driver.py")))) if listed else ""
        yield DISPLAYS, _displays(_run(DISPLAYS)) if platform.system() == "Darwin" else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").replace("\0", "\n")
    except OSError:
        return ""


def _run(command: str) -> str:
    words = command.split()
    program = shutil.which(words[0])
    if program is None:
        return ""
    return _output([program, *words[1:]])


def _output(words: list[str]) -> str:
    try:
        done = subprocess.run(words, capture_output=True, timeout=_TIMEOUT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", errors="replace")


def _cpuid() -> str:
    """Run the CPUID instruction of an x86 CPU, and format the result like /proc/cpuinfo."""
    from archspec.cpu.detect import CpuidInfoCollector

    try:
        info = CpuidInfoCollector()
    except (OSError, NotImplementedError, SystemError, UnicodeDecodeError):
        return ""
    return f"vendor_id : {info.vendor}\nflags : {' '.join(sorted(info.features))}\n"


def _cache_files() -> Iterator[str]:
    """Yield the files about the caches of one CPU of each type, as a server has hundreds of identical ones."""
    first: dict[str, str] = {}
    for cpu in sorted(glob.glob(f"{_CPU}/cpu[0-9]*"), key=lambda path: (len(path), path)):
        first.setdefault(_read(f"{cpu}/regs/identification/midr_el1") + _read(f"{cpu}/cpu_capacity"), cpu)
    hybrid = [_read(f"/sys/devices/{unit}/cpus") for unit in ("cpu_core", "cpu_atom")]
    cpus = {*first.values()} | {f"{_CPU}/cpu{found[0]}" for text in hybrid if (found := re.findall(r"\d+", text))}
    for cpu in sorted(cpus):
        for name in ("level", "type", "size", "shared_cpu_list"):
            yield from sorted(glob.glob(f"{cpu}/cache/index*/{name}"))


def _lines(names: str, separator: str) -> Callable[[str], str]:
    """Return a filter for the lines of a text that begin with one of the names, a regular expression."""
    line_start = re.compile(rf"\s*(?:{names})\s*{separator}")
    return lambda text: "".join(f"{line}\n" for line in text.splitlines() if line_start.match(line))


def _distinct_lines(text: str) -> str:
    """Keep the facts of the first CPU, and of every other CPU those that differ."""
    keep = _lines(_CPUINFO, ":")
    blocks = [keep(block).splitlines() for block in re.split(r"\n\s*\n", text)]
    first = frozenset(blocks[0])
    kept = [
        block if number == 0 else [line for line in block if line not in first] for number, block in enumerate(blocks)
    ]
    return "\n\n".join("\n".join(block) for block in kept if block)


def _displays(text: str) -> str:
    """Keep the facts about GPUs, and drop those about displays, such as serial numbers."""
    try:
        rows = json.loads(text)["SPDisplaysDataType"]
        kept = [{name: row[name] for name in ("sppci_model", "sppci_cores") if name in row} for row in rows]
    except (ValueError, LookupError, TypeError):
        return ""
    return json.dumps({"SPDisplaysDataType": kept})


def _report(text: str) -> str:
    """Keep the elements of the output of `nvidia-smi -q -x` that detection reads."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return ""
    _prune(root)
    return ElementTree.tostring(root, encoding="unicode")


def _prune(element: ElementTree.Element) -> bool:
    """Remove the elements below one that detection does not read; return whether anything is left."""
    for child in list(element):
        if not _prune(child):
            element.remove(child)
    element.attrib.clear()
    element.tail = None
    if len(element):
        element.text = None
    return bool(len(element)) or element.tag in _REPORT


def _unchanged(text: str) -> str:
    return text


_FILES: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("/proc/cpuinfo", _distinct_lines),
    ("/proc/meminfo", _lines("MemTotal", ":")),
    ("/proc/device-tree/model", _unchanged),
    ("/proc/device-tree/compatible", _unchanged),
    ("/sys/devices/system/memory/block_size_bytes", _unchanged),
    ("/sys/devices/cpu_core/cpus", _unchanged),
    ("/sys/devices/cpu_atom/cpus", _unchanged),
    (f"{_CPU}/cpu[0-9]*/topology/thread_siblings_list", _unchanged),
    (f"{_CPU}/cpu[0-9]*/topology/core_siblings_list", _unchanged),
    (f"{_CPU}/cpu[0-9]*/cpu_capacity", _unchanged),
    (f"{_KFD}/properties", _lines(_PROPERTIES, "")),
    (f"{_KFD}/mem_banks/*/properties", _lines(_PROPERTIES, "")),
)
