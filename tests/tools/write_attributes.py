"""Generate docs/attributes.md: the effect of every attribute, parameter, option and environment variable.

`pytest tests/building/test_honoured_attributes.py --rewrite-goldens` writes the page. Attributes come from the table of
kinds and from what code generators, executors and runtimes honour; parameters and options from their documentation.
This module only lists which parameters and options change no result.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

import tvmtarget as tt
from tools.write_limits import default_text
from tvmtarget.backends.protocol import Backend, backend_named
from tvmtarget.building.honoured_attributes import driver_honours, effect_of, honoured_attributes
from tvmtarget.cli.main import app
from tvmtarget.partition.options import PartitionOptions
from tvmtarget.target.builtin_kinds import KINDS
from tvmtarget.target.kinds import Attribute, Role, kind_names, kind_of
from tvmtarget.untrusted import LIMITS

__all__ = ["ENVIRONMENT", "page"]

RESULT, DESCRIPTIVE, REJECTED = "changes the result", "descriptive", "rejected"

# The code generators of the library; plugins document their own.
_PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
BACKENDS = tuple(_PROJECT["project"]["entry-points"]["tvmtarget.backends"])

_OURS = sorted(kind.name for kind in KINDS if kind.role == "target")

FUNCTIONS = (tt.decompose, tt.build, tt.load, tt.tune)

# Parameters of these functions that change no result.
_DESCRIPTIVE_PARAMETERS = {
    "progress": "reports how far the work is",
    "since": "saves time; the result is the same without it",
    "cache": "saves time; the result is the same without it",
    "jobs": "saves time; the result is the same without it",
}
# Parameters of `load` and `tune` whose docstrings describe several parameters at once.
_PARAMETERS = {
    "executor": "how the program is driven",
    "runtime": "what loads and calls the program",
    "target_host": "the CPU that drives the root",
    "params": "values for parameters, which then are constants",
    "entry": "the function that the program begins with",
    "path": "the saved program",
    "trust": "native code in the file is used",
}

# Options of commands that change the printed or written form of a result only.
_OUTPUT_OPTIONS = frozenset(
    {
        "--json",
        "--toml",
        "--text",
        "--save",
        "--save-costs",
        "--mark",
        "--draw",
        "--output",
        "--schema",
        "--classes",
        "--origin",
        "--capture",
        "--resolved",
        "--doc",
        "--no-cache",
        "--jobs",
        "--profile",
        "--self-test",
        "--self-test-input",
    }
)

ENVIRONMENT = {
    "TVMTARGET_PATH": (RESULT, "folders with files of tags, before the user's own"),
    "TVM_CONFIGS_JSON_DIR": (RESULT, "a folder with configuration files, which `--config` finds by name"),
    "XDG_CONFIG_HOME": (RESULT, "where the user's tags are, on Linux"),
    "APPDATA": (RESULT, "where the user's tags are, on Windows"),
    "HOME": (RESULT, "where the user's tags are, if `XDG_CONFIG_HOME` and `APPDATA` are not set"),
    "USERPROFILE": (RESULT, "`HOME` of Windows"),
    "TVMTARGET_TRUST_PROJECT": (RESULT, "folders of projects whose files may name compilers and runners"),
    "PATH": (RESULT, "where compilers and runners are looked up"),
    "CC": (RESULT, "the C compiler for this machine"),
    "CXX": (RESULT, "the C++ compiler for this machine"),
    "CUDA_PATH": (RESULT, "the CUDA toolkit that compiles `cuda` leaves"),
    "TVM_CUDA_COMPILE_MODE": (RESULT, "selects how TVM compiles CUDA C++"),
    "TVM_CUDA_NVCC_NO_FAST_MATH": (RESULT, "set to 1 for nvcc, unless it is set"),
    "TVMTARGET_X86_LEVEL": (RESULT, "1 for code of `llvm` that any x86-64 runs, where a library has a faster version"),
    "TVM_LIBRARY_PATH": (RESULT, "the folder of TVM's libraries, if they are not in its package"),
    "TVM_NUM_THREADS": (RESULT, "threads of `llvm` leaves; set to the processors of this process, unless it is set"),
    "TVM_BIND_THREADS": (RESULT, "set to 0 for `llvm` leaves, unless it is set"),
    "TVMTARGET_CACHE": (DESCRIPTIVE, "the folder of the compile cache, or `off`"),
    "XDG_CACHE_HOME": (DESCRIPTIVE, "where the compile cache is, if `TVMTARGET_CACHE` is not set"),
    "LOCALAPPDATA": (DESCRIPTIVE, "where the compile cache is on Windows, if `TVMTARGET_CACHE` is not set"),
    "TVM_DEVICE_BACKEND_AUTOLOAD": (
        DESCRIPTIVE,
        "set to 0 by the command line and for worker processes on Linux for a faster start, unless it is set; 1 also "
        "loads TVM's plugins of devices",
    ),
    "PYDANTIC_DISABLE_PLUGINS": (DESCRIPTIVE, "set by the command line for a faster start, unless it is set"),
    "PYTHONSAFEPATH": (DESCRIPTIVE, "set for worker processes"),
    **{row.variable: (RESULT, f"limit of the {row.doc}: {default_text(row)}") for row in LIMITS.values()},
}


def page() -> str:
    """Return the text of the page."""
    return "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    yield from (
        "# Effects of attributes, parameters, options and environment variables",
        "",
        "This page is generated from the tables of the library (`tests/tools/write_attributes.py`). Each entry has one",
        "of these effects:",
        "",
        "- **changes the result**: the plan, the code, the saved program or the report depends on it;",
        "- **descriptive**: constraints, costs, tuning keys or reports read it, but code does not depend on it;",
        "- **rejected**: `build` and `tune` reject a value other than the default, with its path and the fix.",
        "",
        "Every attribute, rejected by a build or not, is part of a target's digest and is read by constraints.",
        "",
        "## Attributes of all target kinds",
        "",
    )
    common = set.intersection(*({row.name for row in kind_of(name).attributes} for name in _OURS))
    shown = [row for row in kind_of("composite").attributes if row.name in common]
    yield from _table(
        ("attribute", "effect", "meaning"),
        ((row.name, _effect(row, frozenset(), "code generators"), row.doc) for row in shown),
    )
    yield from ("", "`from_device` of `cuda` is the exception: it changes the result.")
    for name in _kinds("built"):
        kind = kind_of(name)
        rows = [row for row in kind.attributes if row.name not in common]
        backends = _backends(name)
        by = ", ".join(backend.name for backend in backends)
        yield from ("", f"## `{name}`", "", f"Code by {by}.", "")
        if rows:
            yield from _table(
                ("attribute", "effect", "meaning"),
                ((row.name, _effect(row, honoured_attributes(backends[0], name), by), row.doc) for row in rows),
            )
        else:
            yield "It has no attributes of its own."
    yield from (
        "",
        "## Kinds without a code generator",
        "",
        "Plans can be made for them. `build` rejects a leaf of such a kind that has operations, unless numpy may",
        "interpret it (`allow_interpreter`).",
        "",
    )
    rows = ((name, row) for name in _kinds("planned") for row in kind_of(name).attributes if row.name not in common)
    yield from _table(
        ("kind", "attribute", "effect", "meaning"),
        ((name, f"`{row.name}`", _planned(row, name), row.doc) for name, row in rows),
    )
    bare = [name for name in _kinds("planned") if {row.name for row in kind_of(name).attributes} <= common]
    yield from ("", f"Without attributes of their own: {', '.join(f'`{name}`' for name in bare)}.")
    roles: tuple[Role, ...] = ("executor", "runtime")
    for role in roles:
        yield from ("", f"## {role.capitalize()}s", "")
        yield from _table((role, "attribute", "effect", "meaning"), _driver_rows(role))
    for function in FUNCTIONS:
        yield from ("", f"## Parameters of `{function.__name__}`", "")
        yield from _table(("parameter", "effect", "meaning"), _parameters(function))
    yield from (
        "",
        "A `PassContext` of TVM around a build is rejected if it has a configuration, passes or instruments.",
    )
    yield from ("", "## Options of commands", "")
    yield from _table(("command", "option", "effect", "meaning"), _options(typer.main.get_command(app), ()))
    yield from ("", "## Environment variables", "")
    rows = ((name, effect, meaning) for name, (effect, meaning) in sorted(ENVIRONMENT.items()))
    yield from _table(("variable", "effect", "meaning"), rows)


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for first, *rest in rows:
        cells = [f"`{first}`", *rest]
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _backends(kind: str) -> list[Backend]:
    return [backend for name in BACKENDS if kind in (backend := backend_named(name)).kinds]


def _kinds(which: str) -> list[str]:
    """Return the library's kinds that have a code generator, or those that have none."""
    return [name for name in _OURS if name != "composite" and bool(_backends(name)) == (which == "built")]


def _effect(row: Attribute, honours: frozenset[str] | None, by: str) -> str:
    effect = effect_of(row, honours)
    return f"{effect} (by {by})" if effect == REJECTED else effect


def _planned(row: Attribute, kind: str) -> str:
    """Return what an attribute of a kind without a code generator does: one that is interpreted may be honoured."""
    interpreted = honoured_attributes(backend_named("numpy"), kind) or frozenset()
    if row.name in interpreted:
        return "rejected (by build, unless interpreted and of this machine)"
    return _effect(row, frozenset(), "build")


def _driver_rows(role: Role) -> Iterator[Sequence[str]]:
    for name in kind_names(role):
        rows = kind_of(name, role).attributes
        honours = driver_honours(role, name)
        if honours is None:
            yield (
                name,
                ", ".join(f"`{row.name}`" for row in rows) or "",
                "rejected (by build)",
                "cannot be built for yet",
            )
            continue
        for row in rows:
            effect = RESULT if row.name in honours else f"rejected (by build, unless {_default(row)})"
            yield name, f"`{row.name}`", effect, row.doc
        if not rows:
            yield name, "", RESULT, kind_of(name, role).doc


def _default(row: Attribute) -> str:
    return "unset" if row.default is None else f"`{str(row.default).lower()}`"


def _parameters(function: object) -> Iterator[Sequence[str]]:
    documented = inspect.getdoc(function) or ""
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            yield from _option_fields(set(inspect.signature(function).parameters))
            continue
        found = re.search(
            rf"^ *(?:\w+, )*{name}(?:, \w+)*: (.+?)(?=\n\S|\n *(?:\w+, )*\w+: |\n\n|\Z)", documented, re.M | re.S
        )
        meaning = _DESCRIPTIVE_PARAMETERS.get(name) or _PARAMETERS.get(name) or (found[1] if found else "")
        assert meaning, f"{name} of {function} is not documented"
        yield name, DESCRIPTIVE if name in _DESCRIPTIVE_PARAMETERS else RESULT, _sentence(meaning)


def _sentence(text: str) -> str:
    first = _first(text)
    return first[:1].upper() + first[1:]


def _option_fields(documented: set[str]) -> Iterator[Sequence[str]]:
    """Yield the fields of `PartitionOptions`, which `decompose` accepts by name, unless they are documented already."""
    for name, field in PartitionOptions.model_fields.items():
        if name not in documented:
            yield name, RESULT, _first(field.description or "")


def _first(text: str) -> str:
    """Return the first clause of a description in one line."""
    return re.split(r"[;.](?: |$)", " ".join(text.split()))[0]


def _options(command: object, path: Sequence[str]) -> Iterator[Sequence[str]]:
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _options(inner, (*path, name))
    for parameter in command.params if path else ():
        flags = [flag for flag in parameter.opts if flag.startswith("--")]
        if flags:
            effect = DESCRIPTIVE if flags[0] in _OUTPUT_OPTIONS else RESULT
            yield " ".join(path), f"`{flags[0]}`", effect, _first(parameter.help or "")
