"""Historic spellings of TVM, read with their present meaning.

Each is reported in a `TvmTargetWarning` with the old and the new spelling. There are two groups:

- A name that no kind has today is converted everywhere (`BuildSettings.modern`): settings of the executor and the
runtime (v0.6 to v0.9; TVM had one of each for a whole build, so they go to the root of the tree), and attributes that
were renamed.
- A word with another meaning in our own forms is converted only in targets of TVM (`as_tvm_meant`): `executor` and
`runtime` of a host or a child, `model=unknown`, `libs=mkldnn`, '@' for '=' in LLVM's options, devices of one kind.

The rules are those of `_reconstruct_from_deprecated_options` (python/tvm/relay/build_module.py at v0.9.0), except that
a contradiction with a stated executor or runtime is an error, where TVM used the historic spelling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar, cast

from tvmtarget.errors import TargetError, UnknownNameError, raise_all, warn
from tvmtarget.target.attributes import Value, fold
from tvmtarget.target.kinds import Kind, Role, find_kind, kind_of
from tvmtarget.target.node import HISTORIC_RUNTIMES, Executor, Runtime
from tvmtarget.target.problems import place, shown
from tvmtarget.target.target_node import TargetNode
from tvmtarget.target.values import read_value

__all__ = ["BuildSettings", "as_tvm_meant"]

_N = TypeVar("_N", bound=TargetNode)

# Historic attributes of a target that are settings of the build: the role that has them today, and their name there.
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

# Attributes that have another name today, for kinds that have that one and not the old.
_RENAMED = {"target": "mtriple", "shared-memory-per-block": "max_shared_memory_per_block"}


def as_tvm_meant(flat: Mapping[str, object]) -> dict[str, object]:
    """Convert words of TVM's flat JSON that have another meaning in ours.

    Args:
        flat: flat JSON in TVM's meaning. `executor` and `runtime` of a target are settings of the whole build, those of
            a tag its own.

    Returns:
        Flat JSON in our meaning, with settings of the build under `-executor` and `-runtime`.

    >>> as_tvm_meant({"kind": "c", "executor": "aot", "model": "unknown"})
    {'kind': 'c', '-executor': 'aot'}
    """
    if "kind" not in flat:
        return dict(flat)
    modern = {f"-{key}" if key in ("executor", "runtime") else key: value for key, value in flat.items()}
    if modern.get("model") == "unknown":
        del modern["model"]
    modern |= {"targets": _named(modern["targets"])} if isinstance(modern.get("targets"), list) else {}
    libs = modern.get("libs")
    if libs == "mkldnn" or (isinstance(libs, list) and "mkldnn" in libs):
        _warn("'libs=mkldnn'", "libs=dnnl")
        modern["libs"] = ["dnnl" if lib == "mkldnn" else lib for lib in ([libs] if isinstance(libs, str) else libs)]
    options = modern.get("llvm-options")
    if isinstance(options, list) and any("@" in str(option) for option in options):
        replaced = [str(option).replace("@", "=") for option in options]
        modern["llvm-options"] = replaced
        _warn("'@' for '=' in 'llvm-options'", ", ".join(replaced))
    return modern


def _named(devices: object) -> list[object]:
    """Name devices of one kind, which have no names in TVM and need them here: cuda0, cuda1."""
    named: list[object] = list(devices) if isinstance(devices, list) else []
    unnamed = [device if isinstance(device, Mapping) and "name" not in device else {} for device in named]
    kinds = [str(device["kind"]) if "kind" in device else None for device in unnamed]
    for kind in {kind for kind in kinds if kind is not None and kinds.count(kind) > 1}:
        for number, at in enumerate(at for at, other in enumerate(kinds) if other == kind):
            named[at] = {**cast("dict[str, object]", named[at]), "name": f"{kind}{number}"}
    return named


class _Setting(NamedTuple):
    """One setting of the build: of the executor or runtime, its kind (if `name` is empty) or an attribute."""

    role: str
    name: str
    value: Value
    spelled: str
    where: str


class BuildSettings:
    """Collects settings of the whole build from the nodes of a tree; `settle` writes them on its root."""

    def __init__(self) -> None:
        self._settings: list[_Setting] = []

    def modern(self, flat: Mapping[str, object], where: str = "") -> dict[str, object]:
        """Convert the flat JSON of one node to present spelling, and collect its build settings.

        Args:
            flat: flat JSON of the node.
            where: path of the node, for messages.

        Returns:
            Flat JSON without those settings.

        Raises:
            TargetError: an old and a new spelling have different values, or a setting is not valid; all problems at
                once.
        """
        kind = find_kind(str(flat.get("kind", "composite" if "tag" not in flat else "")))
        if kind is None:
            return dict(flat)
        modern: dict[str, object] = {}
        problems: list[str] = []
        for key, value in flat.items():
            try:
                if not self._collects(kind, key, value, where):
                    new = _renamed(kind, key, value, where)
                    if new != key and new in flat and flat[new] != value:
                        raise TargetError(
                            f"{shown(key)} is {shown(value)}, and {new!r}, its name today, is {shown(flat[new])}"
                        )
                    modern[new] = value
            except TargetError as error:
                problems += error.problems
        raise_all(TargetError, problems)
        return modern

    def settle(self, root: _N) -> _N:
        """Write the collected settings of the build on the root of a tree.

        Args:
            root: the tree.

        Returns:
            The tree.

        Raises:
            TargetError: settings contradict each other or the tree; all problems at once.
        """
        if not self._settings:
            return root
        problems: list[str] = []
        changes: dict[str, object] = {}
        for role, stated in (("executor", root.executor), ("runtime", root.runtime)):
            settings = [setting for setting in self._settings if setting.role == role]
            if settings:
                try:
                    changes[role] = _settled(role, settings, stated)
                except TargetError as error:
                    problems += error.problems
        raise_all(TargetError, problems)
        return root.replace(**changes) if changes else root

    def _collects(self, kind: Kind, key: str, value: object, where: str) -> bool:
        """Collect a setting of the build; False if it is none."""
        spelled = key.removeprefix("-")
        if key in ("-executor", "-runtime") or (
            key == "runtime" and isinstance(value, str) and value in HISTORIC_RUNTIMES
        ):
            if not isinstance(value, str):
                raise TargetError(f"{spelled!r} is a kind of {spelled}, not {shown(value)}")
            self._settings.append(_Setting(spelled, "", HISTORIC_RUNTIMES.get(value, value), spelled, where))
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
    """Return the present name of an attribute or a field."""
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


def _settled(role: str, settings: list[_Setting], stated: Executor | Runtime | None) -> Executor | Runtime:
    """Combine the settings of the executor or the runtime with the stated one."""
    sources = [(setting.name, setting.value, f"{setting.spelled!r}{place(setting.where)}") for setting in settings]
    if stated is not None:
        sources.append(("", stated.kind, f"the {role} that is given"))
        sources += [(name, value, f"the {role} that is given") for name, value in stated.attrs.items()]
    found: dict[str, tuple[Value, str]] = {}
    problems = []
    for name, value, by in sources:
        known, first = found.setdefault(name, (value, by))
        if known != value:
            what = f"attribute {name!r} of the {role}" if name else f"the {role}"
            problems.append(f"{what} is {known!r} by {first}, and {value!r} by {by}")
    raise_all(TargetError, problems)
    kind, _ = found.pop("", ("graph" if role == "executor" else "cpp", ""))
    attrs = {name: value for name, (value, _) in found.items()}
    if kind == "aot" and not (stated and "link-params" in stated.attrs):
        attrs.pop("link-params", None)  # that executor always links
    old = ", ".join(dict.fromkeys(by for _, _, by in sources[: len(settings)]))
    try:
        settled = (Executor if role == "executor" else Runtime)(str(kind), attrs)
    except (TargetError, UnknownNameError) as error:
        raise TargetError(*(f"{problem} (from {old})" for problem in error.problems)) from error
    options = ",".join(f"{name}={str(value).lower()}" for name, value in settled.attrs.items())
    _warn(old, f"{role}={settled.kind}" + (f"({options})" if options else ""))
    return settled


def _warn(old: str, new: str) -> None:
    warn(f"historic spelling: {old}; write {new}")
