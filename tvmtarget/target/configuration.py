"""CompilationConfig: the flat configuration of TVM's M0 design, as a view over the leaves of a target tree.

A tree can say more than this view: `from_target` refuses, with reasons, what M0 has no words for, and lists in
`losses` the facts that it leaves out. The rules by which hosts and defaults are found are those of TVM
(`src/target/compilation_config.cc`, v0.9 to v0.19), where A, B and C choose the host and D, E and F the default
device; a host that contradicts another is an error here, where TVM replaces it in silence.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvmtarget.errors import TargetError, UnknownNameError, did_you_mean, raise_all
from tvmtarget.target.kinds import find_kind
from tvmtarget.target.layout import Layout
from tvmtarget.target.node import Executor, Node, Runtime
from tvmtarget.target.problems import shown
from tvmtarget.target.tree import Target, read_target, read_targets
from tvmtarget.target.virtual_device import VirtualDevice

__all__ = ["CompilationConfig"]

_HOSTS = ("cpu", "hexagon")


class CompilationConfig(Node):
    """A host, the targets it drives, an executor and a runtime.

    `fallback_device` is the device type of work that nobody placed (TVM's `relay.fallback_device_type`).
    """

    target_host: Target | None = None
    targets: tuple[Target, ...]
    executor: Executor = Executor("graph")
    runtime: Runtime = Runtime("python")
    fallback_device: str | None = None
    losses: tuple[str, ...] = ()

    def __init__(
        self,
        target_host: Target | str | None = None,
        targets: Sequence[Target | str] = (),
        executor: Executor | str | None = None,
        runtime: Runtime | str | None = None,
        *,
        fallback_device: str | None = None,
        losses: Sequence[str] = (),
    ) -> None:
        super().__init__(
            target_host=None if target_host is None else read_target(target_host),
            targets=read_targets(targets),
            executor=Executor.from_json(executor or "graph"),
            runtime=Runtime.from_json(runtime or "python"),
            fallback_device=fallback_device,
            losses=tuple(losses),
        )

    def model_post_init(self, _context: object) -> None:
        """Check what TVM checks: unique kinds, one general target per device type, hosts that agree."""
        problems = [*_kind_problems(self.targets), *_device_problems(self.targets), *_host_problems(self)]
        if not self.targets:
            problems.append("a configuration needs at least one target")
        raise_all(TargetError, problems)

    @classmethod
    def from_target(cls, target: Target | str, target_host: Target | str | None = None) -> CompilationConfig:
        """View a tree as a flat configuration; `TargetError` lists all that it cannot say."""
        written = read_target(target)
        tree = written.resolve()
        layout = Layout(tree)
        raise_all(TargetError, _unsayable(tree))
        leaves = [site for site in layout.leaves() if site.path != "host"]
        hosts = dict.fromkeys(layout[site.host].target.replace(name=None, host=None) for site in leaves)
        if len(hosts) > 1:
            raise TargetError(f"a configuration has one host, and this tree has: {', '.join(map(str, hosts))}")
        host = next(iter(hosts))
        given = None if target_host is None else read_target(target_host)
        if given not in (None, host) and any(node.host is not None for _, node in written.walk()):
            raise TargetError(f"the tree has the host {str(host)!r}, and the configuration is given {str(given)!r}")
        return cls(
            target_host=given or host,
            targets=tuple(site.target.replace(name=None, host=None) for site in leaves),
            executor=tree.executor,
            runtime=tree.runtime,
            losses=tuple(_losses(tree)),
        )

    def to_target(self) -> Target:
        """Return the tree: the one target with its host, or a composite of them."""
        host = self.host_target
        if len(self.targets) == 1:
            only = self.targets[0].replace(host=None)
            own = None if only == host else host
            return only.replace(host=own, executor=self.executor, runtime=self.runtime)
        children = tuple(target.replace(host=None) for target in self.targets)
        is_child = host in children
        return Target(
            "composite",
            targets=children,
            host=f"@{host.slot}" if is_child else host,
            executor=self.executor,
            runtime=self.runtime,
        )

    @property
    def host_target(self) -> Target:
        """The host, without one of its own.

        The one that was given, else rule A: the first host that a target has; B: the first target on a CPU or a
        Hexagon; C: llvm.
        """
        if self.target_host is not None:
            return self.target_host.replace(name=None, host=None)
        given = [target.host for target in self.targets if isinstance(target.host, Target)]
        able = [target for target in self.targets if target.device in _HOSTS and not _is_external(target)]
        return next(iter([*given, *able]), Target("llvm")).replace(name=None, host=None)

    @property
    def primitive_targets(self) -> tuple[Target, ...]:
        """The targets, each with the host."""
        return tuple(target.replace(host=self.host_target) for target in self.targets)

    @property
    def host_virtual_device(self) -> VirtualDevice:
        """The device on which the host's code runs."""
        return VirtualDevice.for_target(self.host_target)

    @property
    def default_primitive_virtual_device(self) -> VirtualDevice:
        """The device of work that nobody placed; `TargetError` if no target is of that type.

        Rule D: the fallback device, if one is given; E: the only device type there is; F: cpu.
        """
        types = list(dict.fromkeys(target.device for target in self.targets))
        device = self.fallback_device or (types[0] if len(types) == 1 else "cpu")
        return VirtualDevice.for_target(self.find_primitive_target_for_device(device))

    @property
    def optional_homogeneous_target(self) -> Target | None:
        """The target, if there is just one."""
        return self.primitive_targets[0] if len(self.targets) == 1 else None

    @property
    def should_link_params(self) -> bool:
        """Whether parameters go into the generated code: the executor's `link-params`, true for aot unless set."""
        return bool(self.executor["link-params"]) if self.executor.kind in ("graph", "aot") else False

    def find_primitive_target_for_device(self, device: str) -> Target:
        """Return the first target of a device type; `TargetError` lists the types there are."""
        for target in self.primitive_targets:
            if target.device == device:
                return target
        known = ", ".join(sorted({target.device for target in self.targets}))
        raise TargetError(f"no target is of device type {shown(device)}; there are: {known}")

    def find_primitive_target_for_kind(self, kind: str) -> Target | None:
        """Return the target of a kind, or None; `UnknownNameError` if there is no such kind at all."""
        if find_kind(kind) is None:
            raise UnknownNameError(f"unknown kind {shown(kind)}{did_you_mean(kind, [t.kind for t in self.targets])}")
        return next((target for target in self.primitive_targets if target.kind == kind), None)

    def canonical_target(self, target: Target) -> Target:
        """Return the configuration's own target that equals one, but for its host; else the argument."""
        bare = target.replace(host=None, name=None)
        known = (self.host_target, *self.primitive_targets)
        return next((own for own in known if own.replace(host=None, name=None) == bare), target)

    def canonical_virtual_device(self, device: VirtualDevice) -> VirtualDevice:
        """Fill in the target of a device that has only a type; make a target the configuration's own."""
        if device.target is not None:
            return device.replace(target=self.canonical_target(device.target))
        if device.device_type is None:
            return device
        return device.replace(target=self.find_primitive_target_for_device(device.device_type))


def _is_external(target: Target) -> bool:
    kind = find_kind(target.kind)
    return kind is not None and kind.is_external


def _kind_problems(targets: Sequence[Target]) -> list[str]:
    kinds = [target.kind for target in targets]
    twice = sorted({kind for kind in kinds if kinds.count(kind) > 1})
    return [f"two targets are of kind {shown(kind)}, which a configuration cannot tell apart" for kind in twice]


def _device_problems(targets: Sequence[Target]) -> list[str]:
    problems = []
    for device in dict.fromkeys(target.device for target in targets):
        same = [target for target in targets if target.device == device]
        general = [target.kind for target in same if not _is_external(target)]
        if len(general) > 1:
            problems.append(
                f"targets {', '.join(general)} are all for device type {shown(device)}; all but one must be external"
            )
    return problems


def _host_problems(config: CompilationConfig) -> list[str]:
    host = config.host_target
    return [
        f"target {target.kind!r} has the host {str(target.host)!r}, and the configuration {str(host)!r}"
        for target in config.targets
        if isinstance(target.host, Target) and target.host.replace(name=None, host=None) != host
    ]


def _unsayable(tree: Target) -> list[str]:
    problems = []
    for path, node in tree.walk():
        if path and node.is_composite and (node.executor or node.runtime):
            problems.append(f"@{path} is a system with an executor or runtime of its own")
        if node.count > 1:
            problems.append(f"@{path or '.'} stands for {node.count} replicas")
    return [f"a configuration cannot say this: {problem}" for problem in problems]


def _losses(tree: Target) -> list[str]:
    losses = []
    for path, node in tree.walk():
        place = f"@{path or '.'}"
        losses += [f"links of {place}"] * bool(node.links) + [f"memory of {place}"] * bool(node.memory)
        losses += [f"level {place}"] * bool(path and node.is_composite)
        losses += [f"name {node.name!r} of {place}"] * bool(node.name and node.name != node.kind)
    return losses
