"""CompilationConfig: the flat configuration of TVM's M0 design, as a view of the leaves of a target tree.

A tree can express more than this view. `from_target` rejects what M0 cannot express, with reasons, and lists the facts
that it leaves out in `losses`. Hosts and defaults are found by the rules of TVM (`src/target/compilation_config.cc`,
v0.9 to v0.19), where A, B and C choose the host and D, E and F the default device. There are two differences:
contradicting hosts are an error, and external code generators may come before or after the target that they support,
because the order of a tree is one of preference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, cast

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from tvmtarget.errors import Problem, TargetError, UnknownNameError, did_you_mean, raise_all
from tvmtarget.target.argument_types import check_methods
from tvmtarget.target.device_types import read_device_type
from tvmtarget.target.executor_compatibility import default_runtime
from tvmtarget.target.kinds import find_kind
from tvmtarget.target.node import Executor, JsonNode, Runtime
from tvmtarget.target.problems import Problems, shown
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import Target, TargetLike, as_target, as_targets
from tvmtarget.target.virtual_device import VirtualDevice

__all__ = ["CompilationConfig"]

_DeviceMap: TypeAlias = "Mapping[str | int, TargetLike]"

_CPU = "cpu"
# Device types that rule B accepts as hosts.
_HOSTS = (_CPU, "hexagon")


@check_methods("__init__")
class CompilationConfig(JsonNode):
    """A host, the targets that it drives, an executor and a runtime.

    Args:
        target_host: the CPU that drives the targets; if None, it is found (see `host_target`) and stored.
        targets: one device or code generator each, of different kinds; their own hosts must be the same. A map by
            device type, such as `{"cuda": "cuda -arch=sm_80", "cpu": "llvm"}`, is accepted too.
        executor: the executor; if None, that of a target, else `graph`.
        runtime: the runtime; if None, that of a target, else the default of the executor.
        fallback_device: device type, by name or number, of unplaced work (`relay.fallback_device_type`).
        losses: facts of a tree that this view leaves out.

    Raises:
        TargetError: everything that TVM rejects: duplicate kinds, two general targets of one device type, no target for
            the default device; and what it overrides silently: hosts, executors or runtimes that disagree.
    """

    target_host: Target
    targets: tuple[Target, ...]
    executor: Executor = Executor("graph")
    runtime: Runtime = Runtime("python")
    fallback_device: str | None = None
    losses: tuple[str, ...] = ()

    def __init__(
        self,
        target_host: TargetLike | None = None,
        targets: Sequence[TargetLike] | _DeviceMap = (),
        executor: Executor | str | Mapping[str, object] | None = None,
        runtime: Runtime | str | Mapping[str, object] | None = None,
        *,
        fallback_device: str | int | None = None,
        losses: Sequence[str] = (),
    ) -> None:
        found = Problems()
        given: tuple[Target, ...] = ()
        host: Target | None = None
        with found.collect(loc=("targets",)):
            is_map = isinstance(targets, Mapping) and not targets.keys() & {"kind", "tag"}
            given = _by_device(cast("_DeviceMap", targets)) if is_map else as_targets(targets)
        with found.collect(loc=("target_host",)):
            host = None if target_host is None else as_target(target_host, "target_host")
        with found.collect(loc=("executor",)):
            executor = None if executor is None else Executor.from_json(executor)
        with found.collect(loc=("runtime",)):
            runtime = None if runtime is None else Runtime.from_json(runtime)
        with found.collect(loc=("fallback_device",)):
            fallback_device = None if fallback_device is None else read_device_type(fallback_device)
        found.raise_all()
        stated = given if host is None else (*given, host)
        # These come first and alone: with nested targets or references, the checks below would report consequences.
        raise_all(TargetError, [*_flat_problems(given), *_own_host_problems(host, given)])
        chosen_host = _bare(host) if host is not None else _host_of(given)
        problems = [*_host_problems(chosen_host, given), *_kind_problems(given), *_device_problems(given)]
        problems += [
            *_pair_problems("executor", cast("Executor | None", executor), stated),
            *_pair_problems("runtime", cast("Runtime | None", runtime), stated),
        ]
        raise_all(TargetError, problems)
        executor = executor or next((one.executor for one in stated if one.executor is not None), None)
        runtime = runtime or next((one.runtime for one in stated if one.runtime is not None), None)
        super().__init__(
            target_host=chosen_host,
            targets=tuple(map(_bare, given)),
            executor=Executor.from_json("graph" if executor is None else executor),
            runtime=Runtime.from_json(default_runtime(_executor(executor)) if runtime is None else runtime),
            fallback_device=fallback_device,
            losses=tuple(losses) if isinstance(losses, list) else losses,
        )

    def model_post_init(self, _context: object) -> None:
        """Check that there is a default device, and that the tree is consistent.

        Raises:
            TargetError: no target is of the default device type, or the tree contradicts itself.
        """
        types = sorted({target.device for target in self.targets})
        if self._default_device not in types:
            raise TargetError(
                f"no target is of device type {self._default_device!r}; there are: {', '.join(types)}; "
                "work without a placement needs one, so add it, or give another fallback_device"
            )
        self.to_target().resolve()

    @classmethod
    def from_target(
        cls,
        target: TargetLike,
        target_host: TargetLike | None = None,
        *,
        fallback_device: str | int | None = None,
    ) -> CompilationConfig:
        """View a tree as a flat configuration.

        Args:
            target: the tree.
            target_host: the host, if the tree states none.
            fallback_device: as in the configuration. If None, it is the device type of the first leaf of a tree with
                several device types but no CPU, because order is preference.

        Returns:
            The configuration.

        Raises:
            TargetError: the tree has nodes that a configuration cannot express; all of them at once.

        >>> CompilationConfig.from_target("[gpu=cuda(arch=sm_80),cpu=llvm]").target_host
        Target.parse('llvm')
        """
        written = as_target(target)
        tree = written.resolve()
        topology = Topology(tree)
        raise_all(TargetError, _inexpressible(tree))
        leaves = [site for site in topology.leaves() if not _is_written_host(tree, site.path)]
        # A dict, not a set, so that the message lists the hosts in the order of the tree.
        hosts = dict.fromkeys(_bare(topology[site.host].target) for site in leaves)
        if len(hosts) > 1:
            raise TargetError(f"a configuration has one host, and this tree has: {', '.join(map(str, hosts))}")
        host = next(iter(hosts))
        given = None if target_host is None else as_target(target_host, "target_host")
        if given not in (None, host) and any(node.host is not None for _, node in written.walk()):
            raise TargetError(f"the tree has the host {str(host)!r}, and the configuration is given {str(given)!r}")
        devices = list(dict.fromkeys(site.target.device for site in leaves))
        # Rule F would look for a CPU, which is not among the targets.
        if fallback_device is None and len(devices) > 1 and _CPU not in devices:
            fallback_device = devices[0]
        return cls(
            target_host=given or host,
            targets=tuple(_bare(site.target) for site in leaves),
            executor=tree.executor,
            runtime=tree.runtime,
            fallback_device=fallback_device,
            losses=tuple(_losses(tree)),
        )

    @classmethod
    def from_json(cls, data: object) -> CompilationConfig:
        """Read a configuration.

        Args:
            data: the object that `to_json` returns, a configuration, or any target, which is read by `from_target`.

        Returns:
            The configuration.

        Raises:
            TargetError: it is none of these, or a tree that a configuration cannot express; all problems at once.

        >>> CompilationConfig.from_json({"targets": ["cuda -arch=sm_80", "llvm"], "executor": "aot"}).targets[0]["arch"]
        'sm_80'
        """
        if isinstance(data, CompilationConfig):
            return data
        if not isinstance(data, Mapping) or "kind" in data or "tag" in data:
            return cls.from_target(Target.parse(cast("TargetLike", data)))
        names = tuple(cls.model_fields)
        unknown = [name for name in data if name not in names]
        problems = [f"a configuration has no field {shown(name)}" + did_you_mean(str(name), names) for name in unknown]
        raise_all(TargetError, [Problem(line, (name,)) for name, line in zip(unknown, problems, strict=True)])
        return cls(**{str(name): value for name, value in data.items()})

    def to_json(self) -> dict[str, object]:
        """Return an object from which `from_json` makes an equal configuration.

        Returns:
            The host, the targets, the executor and the runtime as flat JSON, and other fields that are set.
        """
        fallback = {} if self.fallback_device is None else {"fallback_device": self.fallback_device}
        return {
            "target_host": self.target_host.to_json(),
            "targets": [target.to_json() for target in self.targets],
            "executor": self.executor.to_json(),
            "runtime": self.runtime.to_json(),
            **fallback,
            **({"losses": list(self.losses)} if self.losses else {}),
        }

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        nested = [part.__pydantic_core_schema__ for part in (Target, Executor, Runtime)]
        target, executor, runtime = handler(core_schema.tuple_positional_schema(nested))["prefixItems"]
        fields = {
            "target_host": target,
            "targets": {
                "anyOf": [
                    {"type": "array", "items": target, "minItems": 1},
                    {"type": "object", "additionalProperties": target, "minProperties": 1},
                ]
            },
            "executor": executor,
            "runtime": runtime,
            "fallback_device": {"type": ["string", "integer"]},
            "losses": {"type": "array", "items": {"type": "string"}},
        }
        own = {"type": "object", "properties": fields, "required": ["targets"], "additionalProperties": False}
        return {"title": "CompilationConfig", "anyOf": [own, target]}

    def as_target(self) -> Target:
        """Return the tree that a program is built for.

        Returns:
            The tree, as by `to_target`.

        Raises:
            TargetError: the fallback device is not that of the first target, which a tree cannot express.
        """
        first = self.targets[0].device
        if self.fallback_device not in (None, first):
            raise TargetError(
                f"fallback_device {self.fallback_device!r} of the configuration would be ignored: operations "
                f"without a constraint go to the first target that supports them, which is on {first!r}; list the "
                "target of the fallback device first"
            )
        return self.to_target()

    def to_target(self) -> Target:
        """Return the tree: the only target, or a composite of all in their order.

        Returns:
            A tree that `from_target` reads back to an equal configuration, given the same fallback device, which a tree
            cannot state.
        """
        host = self.target_host
        if len(self.targets) == 1:
            only = self.targets[0]
            own = None if only == host and host.can_host else host
            return only.replace(host=own, executor=self.executor, runtime=self.runtime)
        child = next((target.slot for target in self.targets if target == host), None)
        reference = f"@{child or 'host'}"
        return Target(
            "composite",
            # A target that can host is its own host unless it states another one.
            targets=[
                one.replace(host=reference if one.can_host and one.slot != child else None) for one in self.targets
            ],
            host=host if child is None else reference,
            executor=self.executor,
            runtime=self.runtime,
        )

    @property
    def host_target(self) -> Target:
        """The host, without a host of its own.

        It is the one that was given; else, by rule A, the first host that a target has; B, the first target on a CPU or
        a Hexagon; C, llvm.
        """
        return self.target_host

    @property
    def primitive_targets(self) -> tuple[Target, ...]:
        """The targets, each with the host."""
        return tuple(target.replace(host=self.host_target) for target in self.targets)

    @property
    def host_virtual_device(self) -> VirtualDevice:
        """The device that runs the host's code."""
        return VirtualDevice.for_target(self.host_target)

    @property
    def default_primitive_virtual_device(self) -> VirtualDevice:
        """The device of unplaced work.

        By rule D it is the fallback device, if there is one; E, the only device type; F, cpu.
        """
        return VirtualDevice.for_target(self.find_primitive_target_for_device(self._default_device))

    @property
    def _default_device(self) -> str:
        types = list(dict.fromkeys(target.device for target in self.targets))
        return self.fallback_device or (types[0] if len(types) == 1 else _CPU)

    @property
    def optional_homogeneous_target(self) -> Target | None:
        """The target with its host if there is only one, else None."""
        return self.primitive_targets[0] if len(self.targets) == 1 else None

    @property
    def should_link_params(self) -> bool:
        """Whether parameters are put into the generated code: `link-params` of the executor (default of aot: true)."""
        return bool(self.executor["link-params"]) if self.executor.kind in ("graph", "aot") else False

    def find_primitive_target_for_device(self, device: str | int) -> Target:
        """Return the target of a device type; one that is no external code generator, if possible.

        Args:
            device: name or number of the device type.

        Returns:
            The target with its host.

        Raises:
            TargetError: no target is of that type; the message lists the types there are.
        """
        name = read_device_type(device)
        found = [one for one in self.primitive_targets if one.device == name]
        if found:
            return min(found, key=lambda one: one.is_external)
        known = ", ".join(sorted({target.device for target in self.targets}))
        raise TargetError(f"no target is of device type {name!r}; there are: {known}")

    def find_primitive_target_for_kind(self, kind: str) -> Target | None:
        """Return the target of a kind.

        Args:
            kind: name of the kind.

        Returns:
            The target with its host, or None.

        Raises:
            UnknownNameError: there is no such kind at all.
        """
        if find_kind(kind) is None:
            raise UnknownNameError(f"unknown kind {shown(kind)}{did_you_mean(kind, [t.kind for t in self.targets])}")
        return next((target for target in self.primitive_targets if target.kind == kind), None)

    def canonical_target(self, target: Target) -> Target:
        """Return the configuration's own target that equals a given one.

        Args:
            target: the target to look up, with the same host or without one.

        Returns:
            The configuration's own target, else `target`.
        """
        if isinstance(target.host, str) or (target.host is not None and _bare(target.host) != self.target_host):
            return target
        known = (
            (*self.primitive_targets, self.target_host) if target.host else (self.target_host, *self.primitive_targets)
        )
        return next((own for own in known if _bare(own) == _bare(target)), target)

    def canonical_virtual_device(self, device: VirtualDevice) -> VirtualDevice:
        """Return a virtual device with a target of this configuration.

        Args:
            device: a virtual device; if it has only a type, the target of that type is filled in.

        Returns:
            The device; unchanged if it has neither type nor target.

        Raises:
            TargetError: no target is of its type.
        """
        if device.target is not None:
            return device.replace(target=self.canonical_target(device.target))
        if device.device_type is None:
            return device
        return device.replace(target=self.find_primitive_target_for_device(device.device_type))


def _by_device(targets: _DeviceMap) -> tuple[Target, ...]:
    """Return the targets of a map by device type, the form in which `relay.build` took several targets."""
    found, problems = list[Target](), Problems()
    for device, target in targets.items():
        with problems.collect(loc=(str(device),)):
            name, one = read_device_type(device), as_target(target)
            if one.device != name:
                raise TargetError(f"target {str(one)!r} is of device type {one.device!r}, not {name!r} as in its key")
            found.append(one)
    problems.raise_all()
    return tuple(found)


def _bare(target: Target) -> Target:
    """Return a target without name, host, executor and runtime, which the configuration has instead."""
    return target.replace(name=None, host=None, executor=None, runtime=None)


def _executor(chosen: Executor | str | Mapping[str, object] | None) -> Executor | None:
    return None if chosen is None else Executor.from_json(chosen)


def _host_of(targets: Sequence[Target]) -> Target:
    given = [target.host for target in targets if isinstance(target.host, Target)]
    # External code generators such as onnxruntime are of the device type cpu too, and cannot host.
    able = [target for target in targets if target.device in _HOSTS and target.can_host]
    return _bare(next(iter([*given, *able]), Target("llvm")))


def _kind_problems(targets: Sequence[Target]) -> list[str]:
    kinds = [target.kind for target in targets]
    twice = sorted({kind for kind in kinds if kinds.count(kind) > 1})
    return [f"two targets are of kind {shown(kind)}, which a configuration cannot tell apart" for kind in twice]


def _device_problems(targets: Sequence[Target]) -> list[str]:
    """Of several targets of a device type, all but one are external; that one is first, as in TVM, or last."""
    problems = []
    for device in dict.fromkeys(target.device for target in targets):
        same = [target for target in targets if target.device == device]
        general = [target.kind for target in same if not target.is_external]
        if len(general) != 1 and len(same) > 1:
            listed = ", ".join(general or [target.kind for target in same])
            which = "all but one must be external" if general else "one must not be external"
            problems.append(f"targets {listed} are all for device type {shown(device)}; {which}")
        elif len(same) > 1 and general[0] not in (same[0].kind, same[-1].kind):
            listed = ", ".join(target.kind for target in same)
            problems.append(f"{general[0]!r} is between external code generators ({listed}); put it first or last")
    return problems


def _flat_problems(targets: Sequence[Target]) -> list[str]:
    problems = [] if targets else ["a configuration needs at least one target"]
    for target in targets:
        if target.is_composite:
            problems.append(f"a target of a configuration is one device, not {target.kind!r}; view it with from_target")
        if target.count > 1:
            problems.append(f"a target of a configuration is one device, and {target.kind!r} has count {target.count}")
    return problems


def _own_host_problems(host: Target | None, targets: Sequence[Target]) -> list[str]:
    """A host drives itself, and a flat configuration has no nodes to refer to."""
    problems = [
        f"host {target.host!r} of target {target.kind!r} names a node of a tree; write the host itself: host=llvm"
        for target in (*targets, *([host] if host is not None else []))
        if isinstance(target.host, str)
    ]
    for one in (host, *(target.host for target in targets)):
        if isinstance(one, Target) and isinstance(one.host, Target) and _bare(one.host) != _bare(one):
            problems.append(f"host {str(_bare(one))!r} has the host {str(one.host)!r}, but a host drives itself")
    return problems


def _host_problems(host: Target, targets: Sequence[Target]) -> list[str]:
    return [
        f"target {target.kind!r} has the host {str(target.host)!r}, and the configuration {str(host)!r}"
        for target in targets
        if isinstance(target.host, Target) and _bare(target.host) != host
    ]


def _pair_problems(role: str, given: Executor | Runtime | None, targets: Sequence[Target]) -> list[str]:
    """A build has one executor and one runtime; the configuration and its targets may not state different ones."""
    found = [("the configuration", given)] if given is not None else []
    found += [(f"target {target.kind!r}", getattr(target, role)) for target in targets]
    stated = [(owner, chosen) for owner, chosen in found if chosen is not None]
    return [
        f"{owner} has the {role} {str(chosen)!r}, and {stated[0][0]} {str(stated[0][1])!r}"
        for owner, chosen in stated[1:]
        if chosen != stated[0][1]
    ]


def _is_written_host(tree: Target, path: str) -> bool:
    around, _, name = path.rpartition("/")
    return name == "host" and tree.at(around).child("host") is None


def _inexpressible(tree: Target) -> list[str]:
    problems = []
    for path, node in tree.walk():
        if path and node.is_composite and (node.executor or node.runtime):
            problems.append(f"@{path} is a system with an executor or runtime of its own")
        if node.count > 1:
            problems.append(f"@{path or '.'} has {node.count} replicas")
    return [f"a configuration cannot express this: {problem}" for problem in problems]


def _losses(tree: Target) -> list[str]:
    losses = []
    for path, node in tree.walk():
        place = f"@{path or '.'}"
        if node.is_composite:
            losses += [f"links of {place}"] * bool(node.links) + [f"memory of {place}"] * bool(node.memory)
        losses += [f"level {place}"] * bool(path and node.is_composite)
        losses += [f"name {node.name!r} of {place}"] * bool(node.name and node.name != node.kind)
    return losses
