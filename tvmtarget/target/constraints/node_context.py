"""A node with its ancestors, from which it inherits memories, an executor, a runtime and a host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tvmtarget import plugins
from tvmtarget.target.constraints.reasons import Truth
from tvmtarget.target.kinds import find_kind, kind_names
from tvmtarget.target.node import Executor, Memory, Runtime
from tvmtarget.target.target_node import HostChoice, TargetNode, hosts_by_path
from tvmtarget.target.tree_paths import join

__all__ = ["NodeContext", "known_words", "matches_word", "walk_contexts"]


@dataclass(frozen=True, slots=True)
class NodeContext:
    """A node, its path, and the context of its parent.

    `around` is None for a root, and for a node that was taken out of its tree, which has a path all the same.
    """

    node: TargetNode
    path: str = ""
    around: NodeContext | None = None
    measured: bool = False  # whether the values of the tree were measured on this machine
    _driven: dict[str, HostChoice] = field(default_factory=dict, repr=False, compare=False)  # cache of a root's hosts

    @property
    def is_root(self) -> bool:
        """Whether the node is the root of its tree."""
        return self.around is None and not self.path

    def children(self) -> Iterator[NodeContext]:
        """Enter the children.

        Yields:
            The context of each child, in order.
        """
        for child in self.node.targets:
            yield NodeContext(child, join(self.path, child.slot), self, self.measured)

    def below(self, path: str) -> NodeContext | None:
        """Find a node below this one.

        Args:
            path: Names of children, separated by `/`; `host` names the host node that is written in a node.

        Returns:
            The context of that node, or None if there is none.
        """
        context = self
        for segment in path.split("/") if path else []:
            child = context.node.child(segment)
            if child is None and segment == "host" and isinstance(context.node.host, TargetNode):
                child = context.node.host
            if child is None:
                return None
            name = segment if segment == "host" or child.has_replica(segment) else child.slot
            context = NodeContext(child, join(context.path, name), context, self.measured)
        return context

    def host(self) -> NodeContext | None:
        """Find the CPU node that drives this node.

        Returns:
            Its context, or None if the target does not state a host.
        """
        root, slots = self._root()
        # The hosts of a whole tree are computed at once, so constraints on many nodes share one result.
        if not root._driven:
            root._driven.update(hosts_by_path(root.node))
        driver = root._driven[slots]
        if driver.is_implied or driver.effective.startswith("@"):
            return None
        return self if driver.effective == slots else root.below(driver.effective)

    def executor(self) -> Executor | None:
        """Look up the executor of this node.

        Returns:
            The executor stated here or by the nearest ancestor, else the default of a root, else None.
        """
        if self.node.executor is not None or self.around is None:
            return self.node.executor or (Executor("graph") if self.is_root else None)
        return self.around.executor()

    def runtime(self) -> Runtime | None:
        """Look up the runtime of this node.

        Returns:
            The runtime stated here or by the nearest ancestor, else the default of a root, else None.
        """
        if self.node.runtime is not None or self.around is None:
            return self.node.runtime or (Runtime("python") if self.is_root else None)
        return self.around.runtime()

    def memories(self) -> Iterator[Memory]:
        """Find the memories for tensors that this node can use.

        Yields:
            Its own memories, then those that its ancestors share with it.
        """
        yield from self.own_memories()
        yield from self._shared()

    def own_memories(self) -> Iterator[Memory]:
        """Find the memories for tensors that this node states itself.

        Yields:
            Memories that programs can write.
        """
        yield from (memory for memory in self.node.memory if not memory.is_read_only)

    def _shared(self) -> Iterator[Memory]:
        if self.around is None:
            return
        names = {self.node.slot, self.path.rpartition("/")[2]}
        yield from (memory for memory in self.around.own_memories() if not memory.of or names & set(memory.of))
        yield from self.around._shared()

    def _root(self) -> tuple[NodeContext, str]:
        """Return the outermost context, and the path from it to here without replica numbers.

        A host node written inside another node is the root of its own tree.
        """
        is_host = (
            self.path.rpartition("/")[2] == "host" and self.around is not None and self.around.node.host is self.node
        )
        if self.around is None or is_host:
            return self, ""
        root, slots = self.around._root()
        return root, join(slots, self.node.slot)


def walk_contexts(root: NodeContext) -> Iterator[NodeContext]:
    """Walk a tree with the host nodes that its composites contain.

    Args:
        root: The context to start from.

    Yields:
        The contexts of the root and of all nodes below, parents first.
    """
    yield root
    for child in root.children():
        yield from walk_contexts(child)
    if root.node.targets and isinstance(root.node.host, TargetNode):
        yield NodeContext(root.node.host, join(root.path, "host"), root, root.measured)


def matches_word(node: TargetNode, word: str) -> Truth:
    """Decide whether a word of a constraint means a node.

    Args:
        node: The node.
        word: A kind, or a dispatch key.

    Returns:
        YES if the word is its kind, a key of its kind, or a key of its own that names no kind; UNKNOWN if the node's
        kind is not registered and it states no keys.
    """
    kind = find_kind(node.kind)
    # Kinds are checked before own keys: a node cannot pass for another kind by a key of that name.
    if word == node.kind or (kind is not None and word in kind.keys):
        return Truth.YES
    if find_kind(word) is not None:
        return Truth.NO
    if word in node.keys:
        return Truth.YES
    return Truth.UNKNOWN if kind is None and node.own_keys is None else Truth.NO


@plugins.cached
def known_words() -> frozenset[str]:
    """Collect the words that constraints can use.

    Returns:
        The names and keys of all registered kinds.
    """
    kinds = [kind for name in kind_names() if (kind := find_kind(name)) is not None]
    return frozenset({kind.name for kind in kinds} | {key for kind in kinds for key in kind.keys})
