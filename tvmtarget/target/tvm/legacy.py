"""Historic spellings: what TVM once wrote into targets and no longer does, read as what it says today.

Each is told in a `TvmTargetWarning` with the old and the new spelling. Two kinds of them are kept apart:

- A name that no kind has today means what it meant wherever it stands (`BuildSettings.modern`): settings of the
  executor and the runtime (v0.6 to v0.9; TVM had one of each for a whole build, so they go to the root of what is
  read), and attributes that were renamed.
- A word that means something else in our own forms is read so only where TVM speaks (`as_tvm_meant`): `executor` and
  `runtime` of a host or a child, `model=unknown`, `libs=mkldnn`, '@' for '=' in LLVM's options, devices of one kind.

The rules are those of `_reconstruct_from_deprecated_options` (python/tvm/relay/build_module.py at v0.9.0), but what
contradicts an executor or a runtime that is given is an error here, where TVM let the historic spelling win.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

from tvmtarget.errors import TargetError, UnknownNameError, raise_all, warn
from tvmtarget.target.attributes import Value, fold
from tvmtarget.target.kinds import Kind, Role, find_kind, kind_of
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.problems import place, shown
from tvmtarget.target.target_node import TargetNode
from tvmtarget.target.values import read_value

__all__ = ["BuildSettings", "as_tvm_meant"]

_N = TypeVar("_N", bound=TargetNode)

# What a target said of the build: of which role it is an attribute, and its name there.
_SETTINGS: dict[str, tuple[Role, str]] = {
    "link-params": ("executor", "link-params"),
    "unpacked-api": ("executor", "unpacked-api"),
    "interface-api": ("executor", "interface-api"),
    "workspace-byte-alignment": ("executor", "workspace-byte-alignment"),
    "constants-byte-alignment": ("executor", "constant-byte-alignment"),
    "constant-byte-alignment": ("executor", "constant-byte-alignment"),
    "system-lib": ("runtime", "system-lib"),
}

# The kind of each role that has all of these attributes.
_OWNERS: dict[Role, str] = {"executor": "aot", "runtime": "crt"}

_RUNTIMES = {"c": "crt", "c++": "cpp"}

# Attributes that have another name today, for kinds that have that one and not the old.
_RENAMED = {"target": "mtriple", "shared-memory-per-block": "max_shared_memory_per_block"}


def as_tvm_meant(flat: Mapping[str, object]) -> dict[str, object]:
    """Spell flat JSON of TVM so that no word of it means something else here.

    `-executor` and `-runtime` are what a target says of the whole build; a tag's are its own.

    >>> as_tvm_meant({"kind": "c", "executor": "aot", "model": "unknown"})
    {'kind': 'c', '-executor': 'aot'}
    """
    if "kind" not in flat:
        return dict(flat)
    meant = {f"-{key}" if key in ("executor", "runtime") else key: value for key, value in flat.items()}
    if meant.get("model") == "unknown":
        del meant["model"]
    meant |= {"targets": _named(meant["targets"])} if isinstance(meant.get("targets"), list) else {}
    libs = meant.get("libs")
    if libs == "mkldnn" or (isinstance(libs, list) and "mkldnn" in libs):
        _warn("'libs=mkldnn'", "libs=dnnl")
        meant["libs"] = ["dnnl" if lib == "mkldnn" else lib for lib in ([libs] if isinstance(libs, str) else libs)]
    options = meant.get("llvm-options")
    if isinstance(options, list) and any("@" in str(option) for option in options):
        meant["llvm-options"] = modern = [str(option).replace("@", "=") for option in options]
        _warn("'@' for '=' in 'llvm-options'", ", ".join(modern))
    return meant


def _named(devices: object) -> list[object]:
    """Number devices of one kind, which have no names in TVM and need them here: cuda0, cuda1."""
    named: list[object] = list(devices) if isinstance(devices, list) else []
    unnamed = [device if isinstance(device, Mapping) and "name" not in device else {} for device in named]
    kinds = [str(device["kind"]) if "kind" in device else None for device in unnamed]
    for kind in {kind for kind in kinds if kind is not None and kinds.count(kind) > 1}:
        for number, at in enumerate(at for at, other in enumerate(kinds) if other == kind):
            named[at] = {**cast("dict[str, object]", named[at]), "name": f"{kind}{number}"}
    return named


@dataclass(frozen=True, slots=True)
class _Setting:
    """One thing a target said of the build: of executor or runtime, its kind (no name) or an attribute."""

    role: str
    name: str
    value: Value
    spelled: str
    where: str


class BuildSettings:
    """Collects, while a tree is read, what its nodes say of the whole build; `settle` writes it on the root."""

    def __init__(self) -> None:
        self._settings: list[_Setting] = []

    def modern(self, flat: Mapping[str, object], where: str = "") -> dict[str, object]:
        """Return one node's flat JSON in today's spelling, and keep what it says of the build."""
        kind = find_kind(str(flat.get("kind", "composite" if "tag" not in flat else "")))
        if kind is None:
            return dict(flat)
        modern: dict[str, object] = {}
        problems: list[str] = []
        for key, value in flat.items():
            try:
                if not self._keeps(kind, key, value, where):
                    new = _renamed(kind, key, value, where)
                    if new != key and new in flat and flat[new] != value:
                        raise TargetError(
                            f"{shown(key)} says {shown(value)}, and {new!r}, its name today, {shown(flat[new])}"
                        )
                    modern[new] = value
            except TargetError as error:
                problems += error.problems
        raise_all(TargetError, problems)
        return modern

    def settle(self, root: _N) -> _N:
        """Return the tree with what was said of the build on its root; contradictions are all told in one error."""
        problems: list[str] = []
        changes: dict[str, object] = {}
        for role, given in (("executor", root.executor), ("runtime", root.runtime)):
            said = [setting for setting in self._settings if setting.role == role]
            if said:
                try:
                    changes[role] = _settled(role, said, given)
                except TargetError as error:
                    problems += error.problems
        raise_all(TargetError, problems)
        return root.replace(**changes) if changes else root

    def _keeps(self, kind: Kind, key: str, value: object, where: str) -> bool:
        """Keep a setting of the build, if it is one."""
        spelled = key.removeprefix("-")
        if key in ("-executor", "-runtime") or (key == "runtime" and value in ("c", "c++")):
            if not isinstance(value, str):
                raise TargetError(f"{spelled!r} is a kind of {spelled}, not {shown(value)}")
            self._settings.append(_Setting(spelled, "", _RUNTIMES.get(value, value), spelled, where))
            return True
        if fold(key) not in _SETTINGS or kind.attribute(key) is not None:
            return False
        role, name = _SETTINGS[fold(key)]
        row = kind_of(_OWNERS[role], role).attribute(name)
        assert row is not None  # the table names rows
        try:
            read = read_value(row.type, value)
        except ValueError as error:
            raise TargetError(f"{shown(key)} of kind {kind.name!r} {error}") from error
        if name != "link-params" or read:  # TVM wrote link-params=0, the default, into every target
            self._settings.append(_Setting(role, name, read, key, where))
        return True


def _renamed(kind: Kind, key: str, value: object, where: str) -> str:
    """Return today's name of an attribute or a field."""
    if key == "target_host" and kind.name == "composite":
        _warn(f"'target_host'{place(where)}", "host")
        return "host"
    new = _RENAMED.get(fold(key))
    if (
        new is None
        or kind.attribute(key) is not None
        or kind.attribute(new) is None
        or not isinstance(value, str | int)
    ):
        return key
    _warn(f"{key!r} of kind {kind.name!r}{place(where)}", f"{new}={value}")
    return new


def _settled(role: str, said: list[_Setting], given: Executor | Runtime | None) -> Executor | Runtime:
    """Put together what was said of the executor or the runtime, and what was given."""
    makes = Executor if role == "executor" else Runtime
    stated = [(setting.name, setting.value, f"{setting.spelled!r}{place(setting.where)}") for setting in said]
    if given is not None:
        stated.append(("", given.kind, f"the {role} that is given"))
        stated += [(name, value, f"the {role} that is given") for name, value in given.attrs.items()]
    found: dict[str, tuple[Value, str]] = {}
    problems = []
    for name, value, by in stated:
        known, first = found.setdefault(name, (value, by))
        if known != value:
            what = f"attribute {name!r} of the {role}" if name else f"the {role}"
            problems.append(f"{what} is {known!r} by {first}, and {value!r} by {by}")
    raise_all(TargetError, problems)
    kind, _ = found.pop("", ("graph" if role == "executor" else "cpp", ""))
    attrs = {name: value for name, (value, _) in found.items()}
    if kind == "aot" and not (given and "link-params" in given.attrs):
        attrs.pop("link-params", None)  # that executor always links
    old = ", ".join(dict.fromkeys(by for _, _, by in stated[: len(said)]))
    try:
        settled = makes(str(kind), attrs)
    except (TargetError, UnknownNameError) as error:
        raise TargetError(*(f"{problem} (from {old})" for problem in error.problems)) from error
    options = ",".join(f"{name}={str(value).lower()}" for name, value in settled.attrs.items())
    _warn(old, f"{role}={settled.kind}" + (f"({options})" if options else ""))
    return settled


def _warn(old: str, new: str) -> None:
    warn(f"historic spelling: {old}; write {new}")
