"""A node where it stands in its tree: what it inherits from the nodes around it is seen from there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tvmtarget import plugins
from tvmtarget.target.constraints.reasons import Truth
from tvmtarget.target.kinds import find_kind, kind_names
from tvmtarget.target.node import Executor, Memory, Runtime
from tvmtarget.target.target_node import HostChoice, TargetNode, hosts_by_path
from tvmtarget.target.tree_paths import join

__all__ = ["NodeContext", "answers_to", "known_words", "places"]

# Memories that hold programs and constants, not tensors.
_FIXED = frozenset({"flash", "rom", "nvm"})


@dataclass(frozen=True, slots=True)
class NodeContext:
    """A node, its path, and the place around it; a node at a path with nothing around it was taken out of its tree."""

    node: TargetNode
    path: str = ""
    around: NodeContext | None = None
    measured: bool = False  # whether the values of the tree were measured on this machine
    _driven: dict[str, HostChoice] = field(default_factory=dict, repr=False, compare=False)  # of a root, once asked for

    @property
    def is_root(self) -> bool:
        """Whether nothing can be around it."""
        return self.around is None and not self.path

    def children(self) -> Iterator[NodeContext]:
        """Yield the places of the children."""
        for child in self.node.targets:
            yield NodeContext(child, join(self.path, child.slot), self, self.measured)

    def below(self, path: str) -> NodeContext | None:
        """Return the place at a path of names below this one, or None; `host` is a host that is written there."""
        place = self
        for segment in path.split("/") if path else []:
            child = place.node.child(segment)
            if child is None and segment == "host" and isinstance(place.node.host, TargetNode):
                child = place.node.host
            if child is None:
                return None
            name = segment if segment == "host" or child.has_replica(segment) else child.slot
            place = NodeContext(child, join(place.path, name), place, self.measured)
        return place

    def host(self) -> NodeContext | None:
        """Return what drives this node, or None where nobody said."""
        root, slots = self._root()
        if not root._driven:
            root._driven.update(hosts_by_path(root.node))
        driver = root._driven[slots]
        if driver.is_implied or driver.effective.startswith("@"):
            return None
        return self if driver.effective == slots else root.below(driver.effective)

    def executor(self) -> Executor | None:
        """Return how the program of this node is driven: said here or around it, else the default of a root."""
        if self.node.executor is not None or self.around is None:
            return self.node.executor or (Executor("graph") if self.is_root else None)
        return self.around.executor()

    def runtime(self) -> Runtime | None:
        """Return what the program of this node runs by: said here or around it, else the default of a root."""
        if self.node.runtime is not None or self.around is None:
            return self.node.runtime or (Runtime("python") if self.is_root else None)
        return self.around.runtime()

    def memories(self) -> Iterator[Memory]:
        """Yield the memories for tensors that this node sees: its own, and those around it that are shared with it."""
        yield from self.own_memories()
        yield from self._shared()

    def own_memories(self) -> Iterator[Memory]:
        """Yield the memories for tensors that are stated here."""
        yield from (memory for memory in self.node.memory if memory.kind not in _FIXED)

    def _shared(self) -> Iterator[Memory]:
        if self.around is None:
            return
        names = {self.node.slot, self.path.rpartition("/")[2]}
        yield from (memory for memory in self.around.own_memories() if not memory.of or names & set(memory.of))
        yield from self.around._shared()

    def _root(self) -> tuple[NodeContext, str]:
        """Return the outermost place, and the path from it to here without replica numbers.

        A host that is written inside a node is a tree of its own.
        """
        is_host = (
            self.path.rpartition("/")[2] == "host" and self.around is not None and self.around.node.host is self.node
        )
        if self.around is None or is_host:
            return self, ""
        root, slots = self.around._root()
        return root, join(slots, self.node.slot)


def places(root: NodeContext) -> Iterator[NodeContext]:
    """Yield a place, those below it, and hosts that are written in a system; parents first."""
    yield root
    for child in root.children():
        yield from places(child)
    if root.node.targets and isinstance(root.node.host, TargetNode):
        yield NodeContext(root.node.host, join(root.path, "host"), root, root.measured)


def answers_to(node: TargetNode, word: str) -> Truth:
    """Say whether a word means a node: its kind, a key of its kind, or a key of its own that names no kind."""
    kind = find_kind(node.kind)
    if word == node.kind or (kind is not None and word in kind.keys):
        return Truth.YES
    if find_kind(word) is not None:
        return Truth.NO
    if word in node.all_keys:
        return Truth.YES
    return Truth.UNKNOWN if kind is None and node.keys is None else Truth.NO


@plugins.cached
def known_words() -> frozenset[str]:
    """Return every kind and key that some registered kind has, for spelling advice."""
    kinds = [kind for name in kind_names() if (kind := find_kind(name)) is not None]
    return frozenset({kind.name for kind in kinds} | {key for kind in kinds for key in kind.keys})
