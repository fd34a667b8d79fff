"""Compilers of C and C++ for a target: the command, and the options for its CPU, features and float ABI.

The first of these that exists is used: `[toolchain]` of `tvmtarget.toml`; for this machine `$CC` and `$CXX`, gcc and
clang; for another one its cross gcc, clang with the libraries of cross gcc, and Zig (extra `zig`).
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

from tvmtarget.compile_cache import CompileCache
from tvmtarget.errors import BackendError
from tvmtarget.files import temporary_folder
from tvmtarget.python_process import python_command
from tvmtarget.target.attributes import Attributes
from tvmtarget.target.cpu.features import table_of
from tvmtarget.target.cpu.isa import StatedIsa, features_of, read_isa
from tvmtarget.target.cpu.triples import Triple
from tvmtarget.target.tree import Target
from tvmtarget.toolchains.platforms import general, is_this_machine, platform_of, triple_of
from tvmtarget.toolchains.runners import configured

__all__ = ["X86_LEVELS", "Flavour", "Language", "Toolchain", "toolchain_for"]

Language: TypeAlias = Literal["c", "cxx"]
Flavour: TypeAlias = Literal["gcc", "clang", "zig"]

_NATIVE = {"c": ("CC", ("gcc", "cc", "clang")), "cxx": ("CXX", ("g++", "c++", "clang++"))}
_LINKED = "program"
_GNU = {"c": "gcc", "cxx": "g++"}
_CLANG = {"c": "clang", "cxx": "clang++"}
_SOURCES = (".c", ".cc", ".cpp", ".s", ".S", ".o", ".a")
_ZIG = {"c": "cc", "cxx": "c++"}

# GCC's names of LLVM's features where they differ (GCC manual, "AArch64 Options" and "ARM Options").
_GCC_FEATURES = {
    "aarch64": {"neon": "simd", "fp-armv8": "fp", "fullfp16": "fp16", "rdm": "rdma", "mte": "memtag", "rand": "rng"},
    "arm": {"neon": "simd", "fullfp16": "fp16", "vfp4": "vfpv4", "fp-armv8": "fp"},
}

# Units of ARMv7E-M by the feature of LLVM, the largest one first.
_GCC_FPUS = (("fp-armv8d16", "fpv5-d16"), ("fp-armv8d16sp", "fpv5-sp-d16"), ("vfp2sp", "fpv4-sp-d16"))


@dataclass(frozen=True)
class Toolchain:
    """A compiler for a target.

    Attributes:
        command: words of the compiler, with the options that select the target.
        flavour: whose options the command takes.
        language: the language that it compiles.
        triple: the platform.
        origin: where the command comes from, for reports.
    """

    command: tuple[str, ...]
    flavour: Flavour
    language: Language
    triple: Triple
    origin: str

    def version(self) -> str:
        """Return the first line that the compiler prints about itself.

        Returns:
            A text such as `aarch64-linux-gnu-gcc (Debian 12.2.0-14) 12.2.0`.

        Raises:
            BackendError: the compiler cannot be started.
        """
        return _version(self.command)

    def key(self) -> str | None:
        """Return what compiled code depends on besides files and options.

        Returns:
            The command and the version of the compiler, and the C library of this machine; None if the code is for the
            CPU that compiles it (`-march=native`).

        Raises:
            BackendError: the compiler cannot be started.
        """
        if any(word.endswith("=native") for word in self.command):
            return None
        return repr((self.command, self.version(), platform.libc_ver()))

    def build(
        self,
        files: Mapping[str, bytes | str],
        options: Sequence[str] = (),
        libraries: Sequence[str] = (),
        cache: CompileCache | None = None,
        **facts: str,
    ) -> bytes:
        """Compile and link files, unless the compile cache has the result.

        Args:
            files: contents of source and object files, headers and linker scripts by name.
            options: options; the folder of the files is searched for headers and linker scripts.
            libraries: options after those of the files, such as `-lm`.
            cache: the compile cache, or None.
            **facts: what a listing of the cache prints.

        Returns:
            The program or library.

        Raises:
            BackendError: the compiler fails; the message has its first error.
        """
        contents = {name: data.encode() if isinstance(data, str) else data for name, data in files.items()}
        compiler = None if cache is None else self.key()
        digests = [(name, hashlib.sha256(data).hexdigest()) for name, data in contents.items()]
        key = repr(("linked", compiler, tuple(options), tuple(libraries), digests))
        found = cache.get(key) if cache is not None and compiler is not None else None
        if found is not None:
            return found[_LINKED]
        with temporary_folder() as folder:
            for name, data in contents.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(data)
            sources = [folder / name for name in contents if name.endswith(_SOURCES)]
            self.compile(sources, folder / _LINKED, [f"-I{folder}", f"-L{folder}", *options, *libraries])
            made = (folder / _LINKED).read_bytes()
        if cache is not None and compiler is not None:
            cache.put(key, {_LINKED: made}, **facts)
        return made

    def compile(self, sources: Sequence[Path], output: Path, options: Sequence[str] = ()) -> None:
        """Compile and link source and object files.

        Args:
            sources: the files.
            output: the program or library to write.
            options: further options; libraries last.

        Raises:
            BackendError: the compiler fails; the message has its first error.
        """
        words = [*self.command, "-o", str(output), *map(str, sources), *options]
        done = _started(words)
        if done.returncode:
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            reason = next((line for line in lines if "error" in line or "undefined" in line), "\n".join(lines[-1:]))
            raise BackendError(
                f"{self.command[0]!r} cannot compile {output.name!r} for {general(self.triple)}: {reason}"
            )


def _started(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise BackendError(f"compiler {words[0]!r} cannot be started: {error.strerror or error}") from error


@cache
def _version(command: tuple[str, ...]) -> str:
    # All words, as the first one may be a wrapper (`ccache gcc`).
    is_zig = "ziglang" in command
    words = [*command[: command.index("ziglang") + 1], "version"] if is_zig else [*command, "--version"]
    return (_started(words).stdout.splitlines() or [""])[0]


def toolchain_for(target: Target, language: Language = "c", environ: Mapping[str, str] = os.environ) -> Toolchain:
    """Find a compiler for a CPU target.

    Args:
        target: the CPU target, of kind `c` or `llvm`.
        language: the language.
        environ: the environment variables.

    Returns:
        The compiler, with the options for the CPU, the features and the float ABI of the target.

    Raises:
        BackendError: there is none; the message names the package to install, and the key to configure. Or the compiler
            has no option for a feature of the target.
        TargetError: a configuration file is not valid, or not trusted with commands.
    """
    triple = triple_of(target)
    for command, origin in _candidates(triple, language, environ):
        flavour = _flavour(command)
        selected = (*command, *_selection(triple, flavour, origin))
        words = (*selected, *_options(target, triple, flavour, selected))
        return Toolchain(words, flavour, language, triple, origin)
    tools, name = platform_of(triple), "C++" if language == "cxx" else "C"
    install = "gcc g++ libc6-dev" if is_this_machine(triple) else tools.compilers if tools else ""
    zig = ", or pip install 'tvmtarget[zig]'" if tools and tools.zig else ""
    raise BackendError(
        f"no {name} compiler for {general(triple)} is installed"
        + (f"; install one: apt install {install}{zig}; or" if install else ";")
        + f' configure one: [toolchain] {general(triple)} = "COMMAND" in tvmtarget.toml'
    )


def _candidates(
    triple: Triple, language: Language, environ: Mapping[str, str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the commands that exist, the preferred one first, each with where it comes from."""
    row = configured("toolchain", triple, environ)
    if row is not None and language in row.commands:
        yield row.commands[language], row.place
    path = environ.get("PATH")
    if is_this_machine(triple):
        variable, names = _NATIVE[language]
        if words := tuple(shlex.split(environ.get(variable, ""))):
            yield words, f"${variable}"
        for name in names:
            if found := shutil.which(name, path=path):
                yield (found,), f"{name} on PATH"
    tools = platform_of(triple)
    if tools is None:
        return
    gnu = f"{tools.gnu}-{_GNU[language]}"
    if found := shutil.which(gnu, path=path):
        yield (found,), f"{gnu} on PATH"
    # clang brings no C library: that of the cross compiler has to be there.
    if Path("/usr", tools.gnu, "include").is_dir() and (found := shutil.which(_CLANG[language], path=path)):
        yield (found,), f"{_CLANG[language]} on PATH"
    if tools.zig and find_spec("ziglang") is not None:
        yield (*python_command("-m", "ziglang"), _ZIG[language]), "package ziglang"


def _flavour(command: Sequence[str]) -> Flavour:
    words = [Path(word).name for word in command]
    if "ziglang" in words or words[0].startswith("zig"):
        return "zig"
    return "clang" if "clang" in words[0] else "gcc"


def _selection(triple: Triple, flavour: Flavour, origin: str) -> tuple[str, ...]:
    """Return the options that select the platform, for compilers that serve several."""
    # A configured command selects its platform itself.
    if origin.endswith("on PATH") and flavour == "clang" and not is_this_machine(triple):
        tools = platform_of(triple)
        gnu = tools.gnu if tools else str(triple)
        return (f"--target={gnu}",)
    if origin == "package ziglang":
        tools = platform_of(triple)
        return ("-target", tools.zig if tools else str(triple))
    return ()


def _options(target: Target, triple: Triple, flavour: Flavour, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the options for the CPU, its features and its calling convention."""
    attrs = dict(target.attrs)
    if flavour == "gcc" and triple.family in ("arm", "aarch64") and "mcpu" in attrs:
        attrs["mcpu"] = str(attrs["mcpu"]).partition("+")[0]  # GCC reads modifiers of a CPU itself
    stated = read_isa(target.kind, attrs)
    # Features that the CPU has anyway need no option, and some have none.
    added = [name for name in stated.added if not stated.cpu or name not in (stated.model or ())]
    added += [word[1:] for word in stated.unknown if word[0] == "+"]
    removed = [*stated.removed, *(word[1:] for word in stated.unknown if word[0] == "-")]
    cpu = _known_cpu(stated, triple, command) if flavour != "zig" else stated.cpu
    if cpu != stated.cpu and stated.table is not None:
        removed = [name for name in removed if name in stated.table.of_cpu(cpu)]
    options: list[str] = []
    if flavour == "zig":
        cpu = stated.cpu.replace("-", "_") or ("baseline" if added or removed else "")
        features = "".join([*(f"+{one}" for one in added), *(f"-{one}" for one in removed)])
        options += [f"-mcpu={cpu}{features.replace('.', '_')}"] if cpu else []
    elif triple.family == "riscv":
        options += _riscv(target, command)
    elif triple.family == "x86":
        options += [f"-march={cpu}"] if cpu else []
        options += [*(f"-m{name}" for name in added), *(f"-mno-{name}" for name in removed)]
    elif flavour == "clang":
        options += [f"-mcpu={cpu}"] if cpu else []
        signed = [*(f"+{name}" for name in added), *(f"-{name}" for name in removed)]
        options += [word for name in signed for word in ("-Xclang", "-target-feature", "-Xclang", name)]
    else:
        options += _gcc_without_dsp(target, stated) or _gcc_for_arm(target, triple, command, cpu, added, removed)
    if triple.family == "arm":
        options += _float_abi(target, triple, options)
    # A CPU has an architecture, beside which GCC would take another one, without the units of the CPU such as its FPU.
    has_architecture = any(one.startswith(("-march", "-mcpu")) for one in options)
    if "march" in target.attrs and triple.family != "riscv" and not has_architecture:
        options.append(f"-march={target.attrs['march']}")
    return tuple(options)


# Of the psABI for x86-64, the largest one first.
X86_LEVELS = ("x86-64-v4", "x86-64-v3", "x86-64-v2")


def _known_cpu(stated: StatedIsa, triple: Triple, command: tuple[str, ...]) -> str:
    """Return the name of a CPU for a compiler; for one that the compiler does not know, of one with less features.

    That is the largest level of an x86 CPU, and the Arm CPU with the most features among those that the compiler knows.
    """
    option = "march" if triple.family == "x86" else "mcpu"
    if stated.model is None or stated.table is None or not stated.cpu or _knows(command, f"-{option}={stated.cpu}"):
        return stated.cpu
    if triple.family == "x86":
        levels = (one for one in X86_LEVELS if features_of("llvm", Attributes({"mcpu": one})).names <= stated.model)
        return next(levels, "x86-64")
    of_cpu, model, series = stated.table.of_cpu, stated.model, stated.cpu.partition("-")[0]
    # Of equal ones, that of the same series, for the order of its instructions.
    older = sorted(
        (name for name in stated.table.cpus if of_cpu(name) <= model),
        key=lambda name: (-len(of_cpu(name)), not name.startswith(series), name),
    )
    return next((name for name in older if _knows(command, f"-mcpu={name}")), stated.cpu)


@cache
def _knows(command: tuple[str, ...], option: str) -> bool:
    return _succeeds([*command, option, "-E", "-x", "c", os.devnull])


def _succeeds(words: Sequence[str]) -> bool:
    try:
        return _started(words).returncode == 0
    except BackendError:  # it cannot be started, which is an error of a compilation
        return True


def _riscv(target: Target, command: tuple[str, ...]) -> list[str]:
    names = {"march", "mcpu", "mattr"} & target.attrs.keys()
    isa = features_of(target.kind, target.attrs).isa if names else ""
    if names and not isa:
        raise BackendError(f"no instruction set is known for {str(target)!r}; state it: march=rv64gc")
    # GCC 12 and clang 14 know these as parts of other extensions only.
    parts = ("zicsr", "zifencei", "zmmul", "zaamo", "zalrsc", "zca", "zcd")
    stated = "_".join(one for one in isa.split("_") if one not in parts)
    abi = [f"-mabi={target.attrs['mabi']}"] if "mabi" in target.attrs else []
    return [*([f"-march={_known_isa(stated, (*command, *abi))}"] if stated else []), *abi]


@cache
def _known_isa(isa: str, command: tuple[str, ...]) -> str:
    """Return the part of a RISC-V instruction set that a compiler and its assembler know."""
    if _assembles(command, isa):
        return isa
    base, *longer = isa.split("_")
    usual = [letter for letter in base[4:] if letter in "iemafdc"]
    known = base[:4] + "".join(usual)
    for more in [*(letter for letter in base[4:] if letter not in usual), *(f"_{name}" for name in longer)]:
        if _assembles(command, known + more):
            known += more
    return known


def _assembles(command: tuple[str, ...], isa: str) -> bool:
    with temporary_folder() as folder:
        made = str(folder / "empty.o")
        return _succeeds([*command, f"-march={isa}", "-c", "-x", "c", os.devnull, "-o", made])


def _gcc_without_dsp(target: Target, stated: StatedIsa) -> list[str]:
    """Return GCC's options for an ARMv7E-M without DSP instructions: ARMv7-M, which has no FPU of its own."""
    have = features_of(target.kind, target.attrs).names
    if "armv7e-m" not in (stated.model or ()) or "dsp" in have:
        return []
    tune = [f"-mtune={stated.cpu}"] if stated.cpu else []
    return ["-march=armv7-m", *tune, *next(([f"-mfpu={fpu}"] for name, fpu in _GCC_FPUS if name in have), [])]


def _gcc_for_arm(
    target: Target,
    triple: Triple,
    command: tuple[str, ...],
    known: str,
    added: Sequence[str],
    removed: Sequence[str],
) -> list[str]:
    """Return GCC's options for an Arm CPU: features follow the CPU or the architecture, as in `armv8.2-a+dotprod`."""
    names = _GCC_FEATURES.get(triple.family, {})
    # `+v8.2a` of LLVM is an architecture of GCC.
    versions = [name for name in added if name[:1] == "v" and name[1:2].isdigit()]
    features = [f"+{names.get(name, name)}" for name in added if name not in versions]
    features += [f"+no{names.get(name, name)}" for name in removed]
    cpu, _, modifiers = str(target.attrs.get("mcpu", "")).partition("+")
    if cpu and cpu != "generic":
        return [f"-mcpu={known}{'+' * bool(modifiers)}{modifiers}{''.join(features)}"]
    if "march" in target.attrs:
        stated = f"{target.attrs['march']}{''.join(features)}"
        return [f"-march={stated}{_fpu_of_architecture(target, triple, command, stated)}"]
    usual = "armv8-a" if triple.family == "aarch64" else "armv7-a+fp"
    architecture = _known_architecture(triple, versions, command) if versions else usual
    return [f"-march={architecture}{''.join(features)}"] if features or versions else []


def _fpu_of_architecture(target: Target, triple: Triple, command: tuple[str, ...], architecture: str) -> str:
    """Return the FPU that LLVM has in a 32-bit architecture, and GCC only beside it, as in `armv7-a+simd`."""
    names = features_of(target.kind, target.attrs).names
    if triple.family != "arm" or "vfp2sp" not in names or "+" in architecture:
        return ""
    units = ("+simd", "+fp") if "neon" in names else ("+fp", "+fp.sp")
    return next((unit for unit in units if _knows(command, f"-march={architecture}{unit}")), "")


def _known_architecture(triple: Triple, versions: Sequence[str], command: tuple[str, ...]) -> str:
    """Return the name of the last architecture that a compiler knows among LLVM's features and those they imply."""
    table = table_of(triple.family)
    levels = {*versions, *(filter(table.is_level, table.closure(versions)) if table is not None else ())}
    newest_first = sorted(levels, key=lambda name: (-len(table.closure([name])) if table is not None else 0, name))
    names = [f"arm{name[:-1]}-{name[-1]}" for name in newest_first]
    return next((name for name in names if _knows(command, f"-march={name}")), names[0])


def _float_abi(target: Target, triple: Triple, architecture: Sequence[str]) -> list[str]:
    """Return the options for the calling convention of 32-bit Arm, and for its short instructions."""
    stated = target.attrs.get("mfloat-abi") or triple.float_abi
    # The libraries for ARMv7-M, which has no FPU of its own, pass floats in the other registers.
    if "-march=armv7-m" in architecture and stated == "hard" and not {"mfloat-abi", "mtriple"} & target.attrs.keys():
        stated = "softfp"
    has_only_thumb = "mclass" in features_of(target.kind, target.attrs)
    options = ["-mthumb"] if has_only_thumb or triple.arch.startswith("thumb") else []
    return [*options, f"-mfloat-abi={stated}"] if stated else options
