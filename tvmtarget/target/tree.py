"""Target: the tree of devices, code generators and systems that a program is compiled for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import is_not
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from tvmtarget import plugins
from tvmtarget.errors import (
    ArgumentError,
    Problem,
    TargetError,
    TextError,
    UnknownNameError,
    count_warnings,
    raise_all,
)
from tvmtarget.target import edit
from tvmtarget.target.argument_types import check_arguments
from tvmtarget.target.attributes import Attributes, Value
from tvmtarget.target.hosts import share_equal_hosts
from tvmtarget.target.identity import digest_of
from tvmtarget.target.kinds import find_kind, kind_of
from tvmtarget.target.loader import Reader, TagLookup, TreeView, instead_of_target
from tvmtarget.target.node import Executor, Link, Memory, Runtime, read_attribute, read_attributes
from tvmtarget.target.node_facts import computed_once
from tvmtarget.target.problems import REPORTED, Problems, shown
from tvmtarget.target.provenance import OVERRIDE, Origin
from tvmtarget.target.target_node import TargetNode, hosts_by_path, origin_at
from tvmtarget.target.text import forms, printing
from tvmtarget.target.text.words import is_word
from tvmtarget.target.tree_paths import is_reference
from tvmtarget.target.tvm.versions import TODAY, is_live
from tvmtarget.target.values import MAX_COUNT, read_integer, read_items

if TYPE_CHECKING:
    import networkx

    from tvmtarget.target.constraints.constraint import Constraint
    from tvmtarget.target.constraints.reasons import Reason
    from tvmtarget.target.detection.machine import Machine
    from tvmtarget.target.difference import Differences
    from tvmtarget.target.keys import View
    from tvmtarget.target.tvm.bridge import TvmTarget
    from tvmtarget.target.tvm.quoting import Dialect

__all__ = ["TagLookup", "Target", "TargetLike", "as_target", "as_targets"]

_JSON = Origin("json")
_FILLED = Origin("default", "of a whole tree")


class Target(TargetNode):
    """A device, an external code generator, or a composite of several targets.

    A text or flat JSON is accepted wherever a target, an executor or a runtime is expected. Equality, hash and `digest`
    depend on what is stated, normalised; not on the root's name, tag, provenance, defaults or derived facts.

    Args:
        kind: name of a kind (llvm, cuda, onnxruntime, ..., composite); texts are read by `Target.parse`.
        attrs: attributes of the kind in TVM's spelling, with '-' or '_'.
        name: name among siblings; by default the kind.
        host: the CPU that drives this device: a target, or '@path' for a node of the tree.
        targets: children in order of preference.
        count: number of identical replicas of this node.
        links: connections between children.
        memory: memories of the children.
        executor: executor of the program of this node; a child with its own is a sub-system.
        runtime: runtime of the program of this node.
        keys: dispatch keys; by default those of the kind. The property `keys` returns them with those of the device.
        tag: the tag of this tree: a label, never part of identity.

    Raises:
        TargetError: the node contradicts itself or its kind; all problems at once.
        UnknownNameError: all problems are unknown names.
    """

    if not TYPE_CHECKING:
        # Programs that read the annotations of fields, such as FastAPI, cannot resolve `Self` of the class below.
        host: Target | str | None = None
        targets: tuple[Target, ...] = ()

    def __init_subclass__(cls, **_options: object) -> None:
        raise TypeError(
            f"class {cls.__name__!r} cannot derive from Target, since every reader returns a Target; "
            "write a model with a field of type Target, or a function of a target"
        )

    def __init__(
        self,
        kind: str,
        attrs: Mapping[str, object] | None = None,
        *,
        name: str | None = None,
        host: Target | str | Mapping[str, object] | None = None,
        targets: Sequence[Target | str | Mapping[str, object]] = (),
        count: int = 1,
        links: Sequence[Link | Mapping[str, object]] = (),
        memory: Sequence[Memory | Mapping[str, object]] = (),
        executor: Executor | str | Mapping[str, object] | None = None,
        runtime: Runtime | str | Mapping[str, object] | None = None,
        keys: Sequence[str] | None = None,
        tag: str | None = None,
    ) -> None:
        row = find_kind(kind) if type(kind) is str else None
        if row is None and not isinstance(attrs, Attributes) and _is_whole(kind):  # JSON may have any text as its kind
            raise TargetError(f"{shown(kind)} is a whole target, not the name of a kind; read it with Target.parse")
        fields: dict[str, Any] = {
            "kind": kind,
            "attrs": attrs,
            "name": name,
            "host": host,
            "targets": targets,
            "count": count,
            "links": links,
            "memory": memory,
            "executor": executor,
            "runtime": runtime,
            "tag": tag,
            "keys": keys,
        }
        problems = Problems()
        try:
            # Attributes of an unregistered kind were checked where its JSON was read; there is no table to check with.
            if row is not None or not (isinstance(attrs, Attributes) and isinstance(kind, str)):
                fields["attrs"] = read_attributes(row or kind_of(kind), attrs)
        except REPORTED as error:
            problems.add(error)
        # What has no reader here is read by pydantic, which converts subclasses of text and describes anything else.
        is_checked = type(kind) is str and type(name) in _TEXT and type(tag) in _TEXT
        given = (host, targets, count, links, memory, executor, runtime, keys)
        # Most nodes are leaves that state attributes only.
        for field, value in zip(_UNSTATED, given, strict=True) if any(map(is_not, given, _UNSTATED.values())) else ():
            if value is None:
                is_checked = is_checked and _UNSTATED[field] is None
            elif value is not _UNSTATED[field]:
                try:
                    fields[field] = _READERS[field](value)
                except REPORTED as error:
                    problems.add(error, loc=(field,))
        problems.raise_all()
        if is_checked:
            fields["own_keys"] = fields.pop("keys")
            self._fill(fields, {"_origins": {}})
            self._check()
        else:
            super().__init__(**fields)

    # Reading and printing

    @classmethod
    def parse(cls, source: TargetLike, *, tags: TagLookup[Target] | None = None) -> Target:
        """Parse a tag, JSON, TOML, TVM's or tvmc's command line, or the one-line form.

        Every function that takes a target accepts what this reads.

        Args:
            source: the text, flat JSON, a target, a live target of TVM (read as by `from_tvm`), a `CompilationConfig`,
                or a list of these (read as by `from_list`).
            tags: the tags that the text may name; by default those of the registry.

        Returns:
            The tree; a target is returned as it is.

        Raises:
            TextError: the text does not parse; the error has the column.
            UnknownNameError: unknown tags, kinds, attributes or paths; the message has the nearest names.
            TargetError: the tree contradicts itself; all problems at once.

        >>> Target.parse("cuda(arch=sm_53)")["arch"]
        'sm_53'
        """
        if tags is None and type(source) is str:
            return _PARSED.parse(source)
        if isinstance(source, Target):
            return source
        if isinstance(source, Mapping):
            return cls.from_json(source, tags=tags)
        if isinstance(source, Sequence) and not isinstance(source, str | bytes | bytearray):
            return cls.from_list(tuple(source), tags=tags)  # TVM's own lists are sequences too
        if is_live(source):
            return cls.from_tvm(source, tags=tags)
        if not isinstance(source, str | TreeView):
            raise TargetError(
                f"a target is a text, an object or a Target, not {shown(source)}{instead_of_target(source)}"
            )
        reader = _reader(tags, Origin("text", source) if isinstance(source, str) else _JSON)
        return reader.whole(reader.flat(source))

    @classmethod
    def _accept(cls, value: object) -> Target:
        return cls.parse(cast("TargetLike", value))

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        from tvmtarget.target.schema import target_schema

        # Inside another schema, pydantic writes each of these as a reference to its own definition.
        parts = [part.__pydantic_core_schema__ for part in (Executor, Runtime, Link, Memory)]
        itself = core_schema.definition_reference_schema(cls._schema_ref)
        return target_schema(*handler(core_schema.tuple_positional_schema([itself, *parts]))["prefixItems"])

    @classmethod
    def from_json(
        cls,
        data: object,
        *,
        tags: TagLookup[Target] | None = None,
        origin: Origin = _JSON,
    ) -> Target:
        """Read flat JSON; a kind that no installed package registers is kept as it is.

        Args:
            data: the object, or its text, or a list as for `from_list`; a target is returned as it is.
            tags: the tags that it may name; by default those of the registry.
            origin: provenance of the values.

        Returns:
            The tree.

        Raises:
            TargetError: the data is not valid; all problems at once.
            UnknownNameError: all problems are unknown names.

        >>> Target.from_json({"tag": "nvidia/jetson-nano", "cpu/num-cores": 2}).at("cpu")["num-cores"]
        2
        """
        reader = _reader(tags, origin)
        return reader.whole(reader.listed(data) if isinstance(data, list | tuple) else reader.flat(data))

    @classmethod
    def from_list(
        cls, targets: object, host: TargetLike | None = None, *, tags: TagLookup[Target] | None = None
    ) -> Target:
        """Read a list of targets: tvmc's, or the devices of one host.

        Without `host`, a list is code generators, then a device, then its host, as in tvmc. With `host`, and where all
        devices state the same host, it is code generators and devices in order of preference, as in a heterogeneous
        build of TVM.

        Args:
            targets: the list, with targets in any form; the kind of an object may be a command line.
            host: the host of all of them, or a reference to one: `@cpu`.
            tags: the tags that it may name; by default those of the registry.

        Returns:
            The tree: a composite, or the device alone.

        Raises:
            TargetError: it is no such list, or hosts differ; all problems at once.

        >>> print(Target.from_list([{"kind": "cmsis-nn"}, {"kind": "c -mcpu=cortex-m55"}]))
        composite[cmsis-nn,c(mcpu=cortex-m55)]
        >>> print(Target.from_list(["cuda", "llvm"]), Target.from_list(["cuda", "llvm"], "llvm"))
        cuda(host=llvm) composite[cuda,llvm](host=llvm)
        """
        reader = _reader(tags, _JSON)
        return reader.whole(reader.listed(targets, host))

    @classmethod
    def from_cli(cls, text: str, dialect: Dialect = "v0.10", *, tags: TagLookup[Target] | None = None) -> Target:
        r"""Read TVM's command line with the quotes and escapes of a version.

        Args:
            text: the command line.
            dialect: "v0.9", or "v0.10" for v0.10 to v0.23.
            tags: the tags that it may name; by default those of the registry.

        Returns:
            The tree.

        Raises:
            TextError: the text does not parse.
            TargetError: it is no text, there is no such dialect, or the tree contradicts itself.

        >>> Target.from_cli(r"llvm -model='it\'s new'", "v0.10")["model"]
        "it's new"
        """
        from tvmtarget.target.tvm import command_line
        from tvmtarget.target.tvm.quoting import checked_dialect

        if not isinstance(text, str):
            raise TargetError(f"a command line is text, not {shown(text)}")
        reader = _reader(tags, Origin("text", text))
        return reader.whole(reader.flat(command_line.read(text, checked_dialect(dialect)), allow_unknown=False))

    @classmethod
    def from_tvm(cls, source: object, *, tags: TagLookup[Target] | None = None) -> Target:
        """Read a target of any TVM since v0.6.

        Unlike `parse` and `from_json`, this leaves out what TVM derives, and reads every word with the meaning it has
        in TVM.

        Args:
            source: a live target of TVM, its JSON, its text, or a file of `save_json`.
            tags: the tags that it may name; by default those of the registry.

        Returns:
            The tree.

        Raises:
            TargetError: `source` is none of these, or the tree contradicts itself.

        >>> print(Target.from_tvm({"kind": "cuda", "tag": "", "keys": ["cuda", "gpu"], "arch": "sm_80"}))
        cuda(arch=sm_80)
        """
        from tvmtarget.target.tvm import bridge

        reader = _reader(tags, Origin("json", "of TVM"))
        return reader.whole(reader.flat(bridge.read(source)))

    def to_tvm(self, version: str = TODAY) -> TvmTarget:
        """Write this tree for a version of TVM.

        Args:
            version: "v0.9", "v0.19" or "v0.27".

        Returns:
            The configuration that this version can load, with a copy of its host in every device, and the facts that it
            cannot express. Defaults are left to TVM; `load()` makes TVM's own value.

        Raises:
            TargetError: there is no such version, or it has none of the kinds of this tree.

        >>> Target.parse("cuda(arch=sm_80,host=llvm(num-cores=4))").to_tvm("v0.19").text
        "cuda -arch=sm_80 -host='llvm -num-cores=4'"
        """
        from tvmtarget.target.tvm import bridge

        self.resolve()
        return bridge.write(self, version)

    def to_json(self) -> dict[str, object]:
        """Return flat JSON; `Target.from_json` reads it back to an equal tree."""
        flat: dict[str, object] = {} if self.tag is None else {"tag": self.tag}
        flat["kind"] = self.kind
        flat |= {"name": self.name} if self.name not in (None, self.kind) else {}
        flat |= self.attrs.to_json()
        flat |= {"keys": list(self.own_keys)} if self.own_keys is not None else {}
        flat |= {"count": self.count} if self.count != 1 else {}
        if self.host is not None:
            flat["host"] = self.host if isinstance(self.host, str) else self.host.to_json()
        if self.targets:
            flat["targets"] = [child.to_json() for child in self.targets]
        flat |= {"links": [link.to_json() for link in self.links]} if self.links else {}
        flat |= {"memory": [memory.to_json() for memory in self.memory]} if self.memory else {}
        flat |= {"executor": self.executor.to_json()} if self.executor is not None else {}
        flat |= {"runtime": self.runtime.to_json()} if self.runtime is not None else {}
        return flat

    @classmethod
    def from_toml(cls, source: str, *, tags: TagLookup[Target] | None = None) -> Target:
        r"""Read flat JSON that is written as TOML.

        Args:
            source: the text.
            tags: the tags that it may name; by default those of the registry.

        Returns:
            The tree.

        Raises:
            TextError: the text is not TOML.
            TargetError: the data is not valid; all problems at once.

        >>> Target.from_toml('kind = "cuda"\narch = "sm_53"')["arch"]
        'sm_53'
        """
        return cls.from_json(forms.read_toml(source), tags=tags, origin=Origin("toml", ""))

    def to_toml(self) -> str:
        """Return the flat JSON as TOML; `Target.from_toml` reads it back to an equal tree."""
        return printing.write_toml(self.to_json())

    def pretty(self) -> str:
        """Return the one-line form, broken into a line for each node; `parse` reads it back.

        >>> print(Target.parse("[gpu=cuda(arch=sm_53),cpu=llvm](host=@cpu)").pretty())
        composite[
          gpu=cuda(arch=sm_53),
          cpu=llvm
        ](host=@cpu)
        """
        return printing.write_indented(self.to_json())

    @classmethod
    @check_arguments
    def detect(cls, machine: Machine | None = None) -> Target:
        """Return the target that describes a machine; no other function measures anything.

        Args:
            machine: a captured machine; by default this one.

        Returns:
            The tree, with all measured facts written in it.

        >>> from tvmtarget.target.detection.machine import Machine
        >>> str(Target.detect(Machine("Linux", "aarch64")))
        'llvm(mtriple=aarch64-linux-gnu)'
        """
        from tvmtarget.target.detection.detect import board_name, describe_machine
        from tvmtarget.target.detection.machine import Machine

        machine = Machine.capture() if machine is None else machine
        return cls.from_json(describe_machine(machine), origin=Origin("measured", board_name(machine)))

    @computed_once
    def __str__(self) -> str:
        return printing.write(self.to_json())

    def __repr__(self) -> str:
        return f"Target.parse({str(self)!r})"

    def __getitem__(self, name: str) -> Value | None:
        """Return an attribute, else its default, else None.

        Args:
            name: the attribute, with '-' or '_'.

        Raises:
            UnknownNameError: the kind has no such attribute.
        """
        kind = find_kind(self.kind)
        if kind is None:
            return self.attrs.get(name)
        try:
            return read_attribute(kind, self.attrs, name)
        except UnknownNameError:
            if isinstance(name, str) and self.child(name) is not None:
                raise UnknownNameError(f"{name!r} is a child and no attribute; write target.at({name!r})") from None
            raise

    def __contains__(self, path: object) -> bool:
        """Whether a path names a node of the tree, or a value that is stated or has a default.

        Args:
            path: the path.

        >>> "gpu/arch" in Target.parse("nvidia/jetson-nano"), "npu" in Target.parse("nvidia/jetson-nano")
        (True, False)
        """
        try:
            self.origin(str(path))
        except UnknownNameError:
            return False
        return True

    # Identity

    @property
    def digest(self) -> str:
        """`tt1:` and the SHA-256 of the canonical identity; targets are equal exactly if their digests are."""
        return digest_of(self)

    @property
    def codegen_key(self) -> str:
        """`cg1:` and a digest; leaves with equal keys get the same code for the same function."""
        from tvmtarget.target.keys import codegen_key

        return codegen_key(self)

    def tuning_key(self, level: View = "kernel") -> str:
        """Return the key under which tuning records of a level are stored.

        Args:
            level: kernel, graph or executor. A kernel's key does not depend on names, tags, hosts, siblings, or the
                vendor in a triple.

        Returns:
            `t1:` and a digest.

        Raises:
            TargetError: there is no such level, or a composite has no kernels.

        >>> Target.parse("llvm -mtriple=x86_64-conda-linux-gnu -mcpu=core-avx2 -mattr=+avx2").tuning_key()
        't1:859540563f29f3787aec070b15d964b5'
        """
        from tvmtarget.target.keys import tuning_key

        return tuning_key(self, level)

    def view(self, view: View) -> dict[str, object]:
        """Return the view that a key is made of, to be stored beside it.

        Args:
            view: codegen, kernel, graph or executor (`keys.py`).

        Returns:
            Flat JSON.

        Raises:
            TargetError: there is no such view, or a composite has no kernel view.
        """
        from tvmtarget.target.keys import view_of

        return view_of(self, view)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Target) and digest_of(self) == digest_of(other))

    @computed_once
    def __hash__(self) -> int:
        return hash((self.kind, self.count, tuple(child.slot for child in self.targets)))

    # Editing and checking

    def override(self, changes: Mapping[str, object]) -> Target:
        """Set values at paths: `t.override({"cpu/num-cores": 8, "executor": "aot"})`.

        Args:
            changes: new values by path, set in order. Scalars and lists replace, features are added and removed, and a
                target at the path of a child is merged with it.

        Returns:
            The changed tree.

        Raises:
            TargetError: some changes cannot be made; all problems at once.
            UnknownNameError: all problems are unknown paths; the message has the nearest names.
        """
        reader = _reader(None, OVERRIDE)
        return reader.whole(edit.override(self, changes, reader.flat))

    def merge(self, other: TargetLike) -> Target:
        """Merge another tree into this one; values that the other states win.

        Children are merged by name, and another kind replaces this one. A composite without children is a partial
        configuration, such as the tag `config/aot-crt`, whose values override those of a target of any kind.

        Args:
            other: the other tree.

        Returns:
            The merged tree.

        Raises:
            TargetError: the merged tree is not valid.

        >>> str(Target.parse("llvm(+neon,num-cores=4)").merge(Target.parse("llvm(-neon,mcpu=cortex-a72)")))
        'llvm(-neon,mcpu=cortex-a72,num-cores=4)'
        """
        return edit.merge(self, as_target(other, "other"))

    def unset(self, path: str) -> Target:
        """Remove the value at a path, so that its default applies again.

        Args:
            path: path of an attribute, or of a field such as `host`.

        Returns:
            The changed tree.

        Raises:
            UnknownNameError: the value is not set, or there is no such node.
        """
        return edit.unset(self, path)

    def part(self, path: str) -> Target:
        """Return one node as a tree of its own, with its effective host, executor and runtime.

        Args:
            path: path of the node.

        Returns:
            The part.

        Raises:
            UnknownNameError: there is no such node.
        """
        return edit.part(self, path)

    def satisfies(self, constraint: Constraint | Target | str, *, measured: bool = False) -> Reason:
        """Check whether this node or one below it meets a constraint.

        Args:
            constraint: the constraint; a target requires at least the values that it states.
            measured: whether this tree describes a measured machine, as `detect` returns it. A measured GPU of `sm_90`
                has the features of `sm_90a`, and a default does not count as measured.

        Returns:
            The verdict with its reasons; true if the constraint is met.

        Raises:
            TextError: the constraint does not parse.
            TargetError: it is not valid.

        >>> print(Target.parse("[gpu=cuda(arch=sm_53),cpu=llvm]").satisfies("gpu(arch>=sm_80)"))
        NO composite does not satisfy gpu(arch>=sm_80)
          NO @gpu: gpu: this is cuda
            NO arch>=sm_80: it is sm_53
        """
        from tvmtarget.target.constraints.constraint import Constraint
        from tvmtarget.target.constraints.satisfaction import satisfies

        return satisfies(self, Constraint.parse(constraint), measured=measured)

    @computed_once
    def resolve(self) -> Target:
        """Check the consistency of the tree and fill in the root's host, executor and runtime.

        A host that equals a node of the tree is replaced by a reference to it. If no host is written and no child can
        be one, the host stays unwritten: it is an implied llvm, on which no work is placed. The digest does not change.

        Returns:
            The resolved tree.

        Raises:
            TargetError: the tree breaks rules of `rules.py`; all problems at once.

        >>> Target.parse("[gpu=cuda(host=llvm(num-cores=4)),cpu=llvm(num-cores=4)]").resolve().at("gpu").host
        '@cpu'
        """
        from tvmtarget.target.executor_compatibility import effective_pair
        from tvmtarget.target.rules import conflicts

        shared = share_equal_hosts(self, digest_of)
        driven = hosts_by_path(shared)
        raise_all(TargetError, [*conflicts(shared, driven)])
        root = driven[""]
        filled: dict[str, object] = {}
        if shared.host is None and not root.is_implied and root.effective:
            filled["host"] = f"@{root.effective}"
        executor, runtime = effective_pair([self])
        if self.executor is None:
            filled["executor"] = executor
        if self.runtime is None:
            filled["runtime"] = runtime
        if not filled and self.name is None:
            return shared
        return shared._copied({"name": None, **filled}, dict.fromkeys(filled, _FILLED))

    # Explaining

    def origin(self, path: str) -> Origin:
        """Return where a value comes from: `t.origin("gpu/arch")`, or `t.origin("gpu")` for a node.

        Args:
            path: path of a node or of a value in one.

        Returns:
            The origin; for an attribute that is not stated, the kind that has its default.

        Raises:
            UnknownNameError: there is no such node or value, or the value has no default and is not stated.

        >>> print(Target.parse("arm/rasp4b(cpu/num-cores=2)").origin("cpu/num-cores"))
        text 'arm/rasp4b(cpu/num-cores=2)'
        """
        return origin_at(self, path)

    def graph(self) -> networkx.MultiDiGraph:
        """Return the tree as a networkx graph.

        Returns:
            A new graph of paths; the key of an edge is `child`, `host` or `link` (`target_graph` lists the attributes).

        >>> board = Target.parse("composite[gpu=cuda,cpu=llvm](host=@cpu)").graph()
        >>> [(path, board.nodes[path]["kind"]) for path in board]
        [('', 'composite'), ('gpu', 'cuda'), ('cpu', 'llvm')]
        >>> [(source, target) for source, target, key in board.edges(keys=True) if key == "host"]
        [('', 'cpu'), ('gpu', 'cpu')]
        """
        from tvmtarget.target.target_graph import target_graph

        return target_graph(self)

    def diff(self, other: TargetLike) -> Differences:
        """Compare this tree with another.

        Args:
            other: the other tree.

        Returns:
            The differences by path; empty exactly if the trees are equal.

        Raises:
            TargetError: `other` is not valid.

        >>> print(Target.parse("arm/rasp4b").diff("arm/rasp4b64"))
        ~ cpu/mtriple: armv8l-linux-gnueabihf -> aarch64-linux-gnu
        """
        from tvmtarget.target.difference import differences

        return differences(self, as_target(other, "other"))

    def why_not(self, wanted: TargetLike) -> Reason:
        """Explain why this machine is not what a target or tag describes, or that it is.

        Args:
            wanted: the described machine.

        Returns:
            The verdict with a reason for each fact.

        Raises:
            TargetError: `wanted` is not valid.

        >>> print(Target.parse("llvm(num-cores=2)").why_not("llvm(num-cores=4)"))
        NO this machine is not llvm(num-cores=4)
          NO llvm
            NO num-cores 2 < 4
        """
        from tvmtarget.target.detection.why_not import why_not

        return why_not(self, as_target(wanted, "wanted"))


# What `Target.parse` reads; a live target of TVM, which has no types, is accepted too.
TargetLike: TypeAlias = "Target | str | Mapping[str, object] | Sequence[object] | TreeView"


def as_target(source: TargetLike, argument: str = "target", host: TargetLike | None = None) -> Target:
    """Read an argument that gives a target; every function that takes one calls this.

    Args:
        source: what `Target.parse` accepts.
        argument: name of the argument, for messages.
        host: what the argument `target_host` gives: the host of the target, or of all targets of a list; `@path` refers
            to a node of the target.

    Returns:
        The target.

    Raises:
        TextError: the text does not parse.
        UnknownNameError: all problems are unknown names.
        TargetError: it is not valid, or has another host; all problems at once. Each names the argument.

    >>> as_target("lvm", "wanted")
    Traceback (most recent call last):
    tvmtarget.errors.UnknownNameError: unknown kind 'lvm'; did you mean 'llvm'? (argument 'wanted')
    """
    driver = host if host is None or is_reference(host) else as_target(host, "target_host")
    try:
        if driver is not None and isinstance(source, list | tuple):
            return Target.from_list(source, driver)
        tree = Target.parse(source)
    except (TargetError, TextError, UnknownNameError) as error:
        tail = f" (argument {argument!r})"
        error.problems = tuple(
            Problem.within(line.loc if isinstance(line, Problem) else (), line + tail) for line in error.problems
        )
        raise
    if driver is None:
        return tree
    if tree.host not in (None, driver):
        raise TargetError(f"two hosts are given: {str(tree.host)!r} in the target, and target_host {str(driver)!r}")
    return tree.replace(host=driver)


def as_targets(sources: object) -> tuple[Target, ...]:
    """Return the targets of a list.

    Args:
        sources: texts, flat JSON or targets.

    Returns:
        The targets in their order.

    Raises:
        TargetError: it is no list, or some targets are not valid; all problems at once.
    """
    if type(sources) is tuple and {*map(type, sources)} == {Target}:
        return sources
    if not isinstance(sources, Iterable) or isinstance(sources, str | Mapping):
        raise TargetError(f"'targets' is a list of targets, not {shown(sources)}")
    problems, read = Problems(), list[Target]()
    for at, source in enumerate(sources):
        with problems.collect(loc=(at,)):
            read.append(Target.parse(source))
    problems.raise_all()
    return tuple(read)


def _is_whole(kind: object) -> bool:
    """Whether the first argument of `Target` is no name of a kind, but what `Target.parse` reads."""
    if isinstance(kind, str):
        return bool(kind) and ("/" in kind or not is_word(kind))
    return isinstance(kind, TargetNode | Mapping | list | tuple | TreeView) or is_live(kind)


def _default_registry() -> TagLookup[Target]:
    registry: TagLookup[Target] = plugins.load("tvmtarget.registry", "default")()
    return registry


class _DefaultTags:
    """The tags of the registry, which is loaded as a plugin when the first name is looked up.

    Attributes:
        registry: the registry, or None if no name was looked up.
    """

    def __init__(self) -> None:
        self.registry: TagLookup[Target] | None = None

    def __contains__(self, name: object) -> bool:
        return name in self._loaded()

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded())

    def __getitem__(self, name: str) -> Target:
        return self._loaded()[name]

    def _loaded(self) -> TagLookup[Target]:
        if self.registry is None:
            self.registry = _default_registry()
        return self.registry


def _reader(tags: TagLookup[Target] | None, origin: Origin) -> Reader[Target]:
    if tags is not None and (isinstance(tags, Sequence) or not isinstance(tags, TagLookup)):
        raise ArgumentError(f"tags are a mapping of names to targets, not {shown(tags)}")
    return Reader(Target, _DefaultTags() if tags is None else tags, origin)


class _ParsedTexts:
    """Trees of the texts that were parsed last.

    A tree is valid for the plugins that were registered and the registry that was used when its text was parsed. Texts
    with errors or warnings are parsed again, so that these appear again.
    """

    most_texts = 512
    most_letters = 4096

    def __init__(self) -> None:
        self._trees: dict[str, tuple[object, TagLookup[Target] | None, Target]] = {}
        self._lock = Lock()

    def parse(self, text: str) -> Target:
        """Return the tree of a text, the same object as before if that is valid."""
        found = self._trees.get(text)
        generation = plugins.generation()
        if found is not None:
            of_generation, registry, tree = found
            if of_generation is generation and (registry is None or registry is _default_registry()):
                return tree
        tags, warned = _DefaultTags(), count_warnings()
        reader = Reader(Target, tags, Origin("text", text))
        tree = reader.whole(reader.text(text))
        if len(text) <= self.most_letters and count_warnings() == warned:
            with self._lock:
                self._trees.pop(text, None)
                if len(self._trees) >= self.most_texts:
                    del self._trees[next(iter(self._trees))]
                self._trees[text] = (generation, tags.registry, tree)
        return tree


_PARSED = _ParsedTexts()


def _read_host(host: object) -> object:
    return host if isinstance(host, Target) or is_reference(host) else Target.parse(cast("TargetLike", host))


def _read_count(count: object) -> int:
    try:
        number = read_integer(count)
    except ValueError as error:
        raise TargetError(f"'count' {error}") from error
    if not 1 <= number <= MAX_COUNT:
        raise TargetError(f"'count' is 1 to {MAX_COUNT}, not {number}")
    return number


def _read_keys(keys: object) -> tuple[str, ...]:
    items = read_items(keys) if isinstance(keys, str | list | tuple) else (keys,)
    if not all(isinstance(key, str) and is_word(key) for key in items):
        raise TargetError(f"'keys' is a list of words, not {shown(keys)}")
    return tuple(map(str, items))


_TEXT = (str, type(None))

# The values that leave out an argument of `Target`; None does too where it is the value.
_UNSTATED: dict[str, object] = {
    "host": None,
    "targets": (),
    "count": 1,
    "links": (),
    "memory": (),
    "executor": None,
    "runtime": None,
    "keys": None,
}

# How other values are read. Pydantic would do so by validators of the fields, but reports the first error of this
# library only, and a user should see all problems of a target at once.
_READERS: dict[str, Callable[[object], object]] = {
    "host": _read_host,
    "targets": as_targets,
    "count": _read_count,
    "links": partial(Link.list_from_json, field="links"),
    "memory": partial(Memory.list_from_json, field="memory"),
    "executor": Executor.from_json,
    "runtime": Runtime.from_json,
    "keys": _read_keys,
}
