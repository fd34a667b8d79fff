"""Bridge to TVM: read targets that any version of it wrote, and write what a version can load.

TVM's own forms are its `Target`, `export()`, `str()` (a command line until v0.23, JSON since), and files of `save_json`
(`save_json.py`). The result of reading is what a user could have written: empty tags, features and keys that TVM
derives are left out, and historic spellings keep their meaning (`legacy.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, cast

from tvmtarget.errors import MissingExtraError, TargetError, first_line
from tvmtarget.target.attributes import Value
from tvmtarget.target.builtin_kinds import KINDS
from tvmtarget.target.cpu.chips import chip_problems
from tvmtarget.target.cpu.isa import is_arm, read_isa, spell_for_llvm
from tvmtarget.target.kinds import Attribute, Kind, find_kind
from tvmtarget.target.problems import known_word, shown
from tvmtarget.target.target_node import HostChoice, TargetNode, hosts_by_path
from tvmtarget.target.text.grammar import read_json
from tvmtarget.target.text.printing import write_value
from tvmtarget.target.text.words import MAX_DEPTH
from tvmtarget.target.tree_paths import join
from tvmtarget.target.tvm import command_line
from tvmtarget.target.tvm.legacy import as_tvm_meant
from tvmtarget.target.tvm.quoting import Dialect
from tvmtarget.target.tvm.save_json import main_target
from tvmtarget.target.tvm.versions import TODAY, VERSIONS, Version, is_live

__all__ = ["TvmTarget", "read", "write"]

_DIALECTS: dict[Version, Dialect] = {"v0.9": "v0.9", "v0.19": "v0.10"}

# The minor version of an attribute's `since`; attributes of "tt1" are ours, and in no version.
_MINOR = {"v0.8": 8, "v0.9": 9, "v0.10": 10, "v0.19": 19, "main": 27}

# Kinds that are newer than v0.9, and kinds that no TVM has: ours, and code generators that TVM knew by name only.
_SINCE = {"test": "v0.10", "clml": "v0.19", "mrvl": "v0.19", "trn": "main", "cuda_host": "main"}
_OURS = ("numpy", "onnxruntime", "openvino", "ethos-n", "compute-library", "bnns", "vitis-ai", "dnnl")

# Default keys of kinds in v0.9, where they differ from today's.
_FORMER_KEYS: dict[str, tuple[str, ...]] = {"hexagon": ("hexagon",), "stackvm": ()}

_CHIPS = ("mcpu", "arch")
_FIELDS = ("host", "target_host", "devices", "targets")


# Reading


def read(source: object) -> dict[str, object]:
    """Read a target of TVM.

    Args:
        source: a live target, its export, its text of any version, or the content of a saved file.

    Returns:
        Flat JSON.

    Raises:
        TextError: a text does not parse.
        TargetError: `source` is none of these, or is not valid.
    """
    return _read(source, 1)


def _read(source: object, depth: int) -> dict[str, object]:
    if isinstance(source, str):
        text = source.strip()
        source = read_json(text) if text.startswith("{") else command_line.read(text, "v0.10")
    elif is_live(source):
        source = cast("Any", source).export()
    if not isinstance(source, Mapping):
        raise TargetError(f"a target of TVM is its own value, its JSON or its text, not {shown(source)}")
    if depth > MAX_DEPTH:
        raise TargetError(f"the tree is deeper than {MAX_DEPTH} levels")
    return _without_derived(main_target(source) if "nodes" in source else source, depth)


def _without_derived(config: Mapping[Any, object], depth: int) -> dict[str, object]:
    """Leave out what TVM adds, and convert its containers to plain ones."""
    flat: dict[str, object] = {}
    for name, value in config.items():
        key = str(name)
        if key in ("host", "target_host") and value is not None:
            flat[key] = _read(value, depth + 1)
        elif key in ("devices", "targets") and isinstance(value, Sequence) and not isinstance(value, str):
            flat["targets"] = [_read(item, depth + 1) for item in value]
        elif (
            (value is not None or _is_unknown(config, key))
            and not key.startswith("feature.")
            and (key, value) != ("tag", "")
        ):
            flat[key] = _plain(value)
    if isinstance(flat.get("keys"), list):
        flat["keys"] = _authored_keys(flat)
        if flat["keys"] is None:
            del flat["keys"]
    unknown = [name for name in _CHIPS if name in flat and any(chip_problems(str(flat.get("kind")), _chip(flat, name)))]
    return as_tvm_meant(flat | ({"unchecked": unknown} if unknown else {}))


def _is_unknown(config: Mapping[Any, object], key: str) -> bool:
    """Whether a kind has no attribute of a name; TVM rejects it even if its value is null."""
    kind = find_kind(str(config.get("kind")))
    return kind is not None and key not in (*_FIELDS, "keys", "tag", "kind") and kind.attribute(key) is None


def _plain(value: object) -> object:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Sequence):
        return [str(item) if isinstance(item, str) else item for item in value]
    return value


def _chip(flat: Mapping[str, object], name: str) -> dict[str, Value]:
    """Return the attributes that decide whether a chip is known; TVM accepts any name, known or not."""
    return {key: str(flat[key]) for key in (name, "mtriple") if key in flat}


def _authored_keys(flat: Mapping[str, object]) -> list[object] | None:
    """Return the keys that a user must have written, without those that a version of TVM adds; None if it adds all."""
    keys = cast("list[object]", flat["keys"])
    kind = find_kind(str(flat.get("kind")))
    if kind is None:
        return keys
    device = [flat["device"]] if isinstance(flat.get("device"), str) else []
    is_for_arm = is_arm(kind.name, {name: str(flat[name]) for name in ("mcpu", "mtriple") if name in flat})
    added = [*(["arm_cpu", "cpu"] if is_for_arm else []), *device]
    former = _FORMER_KEYS.get(kind.name, kind.keys)
    if keys in (_once(added, kind.keys), _once(device, kind.keys), _once(device, former)):
        return None
    named = keys
    while named and _once(named[:-1], added) == keys:
        named = named[:-1]
    return named


def _once(*keys: Sequence[object]) -> list[object]:
    found: list[object] = []
    for key in chain(*keys):
        found += [key] if key not in found else []
    return found


# Writing


@dataclass(frozen=True, slots=True)
class TvmTarget:
    """The configuration that one version of TVM can load, and the facts that it cannot express, one line each."""

    version: Version
    config: dict[str, object]
    losses: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The text that `Target(...)` of that version reads: a command line if it can express everything, else JSON."""
        dialect = _DIALECTS.get(self.version)
        line = command_line.write(self.config, dialect) if dialect else None
        return json.dumps(self.config) if line is None else line

    def load(self) -> Any:  # noqa: ANN401 - TVM ships no types
        """Return TVM's own target.

        Raises:
            MissingExtraError: TVM is not installed.
            TargetError: it is written for another version, or TVM rejects it.
        """
        if self.version != TODAY:
            raise TargetError(f"the installed TVM loads what is written for {TODAY}, not for {self.version}")
        try:
            from tvm.target import Target
        except ImportError as error:
            raise MissingExtraError("apache-tvm", "tvm") from error
        try:
            return Target(self.config)
        except (ValueError, TypeError, RuntimeError) as error:
            raise TargetError(f"TVM rejects {shown(self.text)}: {first_line(error)}") from error


def write(root: TargetNode, version: str = TODAY) -> TvmTarget:
    """Write a consistent tree for a version of TVM; every node gets a copy of its host.

    Args:
        root: the tree.
        version: "v0.9", "v0.19" or "v0.27".

    Returns:
        The configuration.

    Raises:
        TargetError: there is no such version, or it has not the kind of the root or of any of its children.
    """
    # Versions are those whose rules were read; between them, TVM differs in ways that are not listed.
    known = known_word("version of TVM", version, VERSIONS)
    writer = _Writer(root, int(known.removeprefix("v0.")), hosts_by_path(root))
    config = writer.config(root, "")
    if config is None:
        raise TargetError(*dict.fromkeys(loss for loss in writer.losses if loss.startswith("kind ")))
    return TvmTarget(known, config, tuple(dict.fromkeys(writer.losses)))


@dataclass(slots=True)
class _Writer:
    """Writes the nodes of one tree and collects the facts that are lost."""

    root: TargetNode
    minor: int
    hosts: Mapping[str, HostChoice]
    losses: list[str] = field(default_factory=list)

    def config(self, node: TargetNode, path: str) -> dict[str, object] | None:
        """Return a node with its host and devices; None if TVM has not its kind, or that of any child."""
        config = self.bare(node, path)
        if config is None:
            return None
        host = self.host(path)
        if host is not None:
            config["host"] = host
        self.losses += _inexpressible(node, path, self.minor)
        if node.is_composite:
            written = [self.config(child, join(path, child.slot)) for child in node.targets]
            config["devices"] = devices = [device for device in written if device is not None]
            if not devices:
                return None
        return config

    def bare(self, node: TargetNode, path: str) -> dict[str, object] | None:
        """Return a node alone, with the attributes that this version has; without its tag, which TVM would compare."""
        reason = _missing(node.kind, self.minor)
        if reason:
            self.losses.append(f"kind {node.kind!r} of {_at(path)}: {reason}")
            return None
        config: dict[str, object] = {"kind": node.kind}
        config |= {"keys": list(node.own_keys)} if node.own_keys is not None else {}
        kind = find_kind(node.kind)
        for name, value in _as_llvm_reads(node).items():
            row = kind.attribute(name) if kind else None
            if row is None or _has(row, self.minor):
                config[name] = list(value) if isinstance(value, tuple) else value
            elif name != "unchecked":  # it is about our tables only, so that nothing is lost
                has = "no TVM has it" if row.since == "tt1" else "only a newer TVM has it"
                self.losses.append(f"attribute {name!r} of {_at(path)}: {has}")
        return config

    def host(self, path: str) -> dict[str, object] | None:
        """Return a copy of the host of a node; None if the node is its own host, or the host is implied."""
        choice = self.hosts[path]
        if choice.effective == path or choice.is_implied:
            return None
        host = self.root.at(choice.effective)
        if choice.effective == join(path, "host"):
            self.losses += _inexpressible(host, choice.effective, self.minor)
        else:
            self.losses.append(f"host @{choice.effective} of {_at(path)}: a copy, TVM has no references")
        return self.bare(host, choice.effective)


def _as_llvm_reads(node: TargetNode) -> Mapping[str, Value]:
    """Return attributes with CPU modifiers as features, except for M-profile Arm, whose modifiers TVM parses itself.

    TVM reads `+nomve` and `+nodsp` there (`src/target/parsers/mprofile.cc` at v0.18.0), but not `-mve`.
    """
    has = read_isa(node.kind, node.attrs).model or frozenset()
    return node.attrs if "mclass" in has else spell_for_llvm(node.kind, node.attrs)


def _inexpressible(node: TargetNode, path: str, minor: int) -> Iterator[str]:
    """Yield the facts of a node that no target of TVM can express."""
    at = _at(path)
    if path and node.name not in (None, node.kind):
        yield f"name of {at}: devices have none"
    if node.count > 1:
        yield f"count {node.count} of {at}: written once"
    yield from [f"links of {at}: targets have none"] * bool(node.links)
    yield from [f"memory of {at}: targets have none"] * bool(node.memory)
    for role, chosen in (("executor", node.executor), ("runtime", node.runtime)):
        if chosen is not None:
            takes = "TVM has none since v0.20" if minor >= 20 else "an argument of relay.build, one for the whole build"
            yield f"{role} {write_value(chosen.to_json())} of {at}: {takes}"


def _at(path: str) -> str:
    return f"@{path or '.'}"


def _missing(name: str, minor: int) -> str:
    """Return why a version of TVM has not a kind; the empty string if it has."""
    kind = _TVM_KINDS.get(name)
    if kind is None:
        return "no TVM has it"
    if kind.until and minor > int(kind.until.removeprefix("v0.")):
        return f"TVM had it until {kind.until}"
    return "" if minor >= _MINOR[_SINCE.get(name, "v0.9")] else "only a newer TVM has it"


def _has(row: Attribute, minor: int) -> bool:
    return row.since in _MINOR and minor >= _MINOR[row.since]


_TVM_KINDS: dict[str, Kind] = {kind.name: kind for kind in KINDS if kind.role == "target" and kind.name not in _OURS}
