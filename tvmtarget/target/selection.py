"""Selection of targets by a constraint, from a tree or from a list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.constraints.node_context import NodeContext, walk_contexts
from tvmtarget.target.constraints.reasons import Truth
from tvmtarget.target.constraints.satisfaction import is_for_leaves, meets
from tvmtarget.target.loader import TreeView
from tvmtarget.target.tree import Target, TargetLike, as_target, as_targets

__all__ = ["select"]


def select(
    targets: TargetLike | Iterable[TargetLike], constraint: Constraint | Target | str, *, measured: bool = False
) -> tuple[Target, ...]:
    """Return the targets of a tree, or of a list, that satisfy a constraint.

    Args:
        targets: a tree in any form that `Target.parse` reads, except a list; or several trees.
        constraint: the constraint; a target requires at least the values that it states. What a target does not state
            counts as no, and a constraint with a negation selects leaves.
        measured: whether the trees describe measured machines, as for `Target.satisfies`.

    Returns:
        Of a tree, the nodes that satisfy the constraint, parents first, each with its host, executor and runtime
        (`Target.part`); of several trees, those that satisfy it or have a node that does.

    Raises:
        TextError: the constraint or a target does not parse.
        TargetError: one of them is not valid; all problems of the targets at once.

    >>> [str(target) for target in select("[gpu=cuda(arch=sm_80),cpu=llvm](host=@cpu)", "gpu(arch>=sm_70)")]
    ['cuda(arch=sm_80,host=llvm)']
    >>> [target.tag for target in select(["aws/c5", "nvidia/jetson-nano", "arm/rasp4b"], "llvm(+neon)")]
    ['nvidia/jetson-nano', 'arm/rasp4b']
    """
    required = Constraint.parse(constraint)
    # Pydantic's models, such as targets and configurations, can be iterated too.
    if isinstance(targets, Iterable) and not isinstance(targets, str | Mapping | TreeView | Target):
        return tuple(one for one in as_targets(targets) if one.satisfies(required, measured=measured))
    tree = as_target(targets, "targets")
    found = walk_contexts(NodeContext(tree, measured=measured))
    if is_for_leaves(required):
        found = (one for one in found if not one.node.targets)
    return tuple(tree.part(one.path) for one in found if meets(required, one).truth is Truth.YES)
