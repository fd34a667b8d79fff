"""Facts about a frozen node that are computed once: its digest, text, hash, resolved tree and children by name.

They are kept in a slot of the node. Pydantic copies, compares, prints and pickles fields and private attributes but no
slots, so that neither a copy nor a changed node can have the facts of another. Kinds decide what facts follow from a
node, so registering a plugin invalidates all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, TypeVar, cast

from tvmtarget import plugins

if TYPE_CHECKING:
    from tvmtarget.target.target_node import TargetNode

__all__ = ["computed_once"]

_N = TypeVar("_N", bound="TargetNode")
_T = TypeVar("_T")


def computed_once(compute: Callable[[_N], _T]) -> Callable[[_N], _T]:
    """Remember the results of a function in the nodes that it is called with.

    Args:
        compute: a function of a node alone, which never returns None. An exception is not remembered.

    Returns:
        The function, which computes each result once for each node and set of registered plugins.
    """
    key = f"{compute.__module__}.{compute.__qualname__}"
    generation = plugins.generation

    @wraps(compute)
    def lookup(node: _N) -> _T:
        now = generation()
        try:
            then, facts = node._facts
        except AttributeError:
            then = None
        if then is not now:
            facts = {}
            # Threads that compute the same fact store equal values, so that no lock is needed.
            object.__setattr__(node, "_facts", (now, facts))
        try:
            found: _T | None = facts[key]
        except KeyError:
            found = compute(node)
            # A reference of a node to itself would keep its memory until a garbage collection.
            facts[key] = None if found is node else found
        return cast(_T, node) if found is None else found

    return lookup
