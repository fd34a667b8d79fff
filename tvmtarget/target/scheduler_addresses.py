"""Addresses of Dask schedulers in a target, which only the user may state.

A scheduler gets all inputs and can run code as the user, so an address in a file of unknown origin is rejected.
"""

from __future__ import annotations

from tvmtarget.errors import TargetError, raise_all
from tvmtarget.target.tree import Target

__all__ = ["addresses", "reject_addresses"]


def addresses(target: Target) -> frozenset[str]:
    """Return the addresses that the runtimes of a tree connect to.

    Args:
        target: the tree.

    Returns:
        Addresses such as `tls://10.0.0.1:8786`.
    """
    runtimes = (node.runtime for _, node in target.walk() if node.runtime is not None)
    return frozenset(str(runtime.attrs["address"]) for runtime in runtimes if runtime.attrs.get("address"))


def reject_addresses(target: Target, place: str, known: frozenset[str] = frozenset()) -> None:
    """Raise an error for addresses in a tree that the user did not state.

    Args:
        target: the tree.
        place: where the tree comes from, for the message.
        known: addresses that the user stated.

    Raises:
        TargetError: there are others.
    """
    raise_all(
        TargetError,
        [
            f"{place} names a Dask scheduler, {address!r}, which would get all inputs and may run code as you; leave "
            "it out there and name it in the target that you type, in a tag of your home folder, or by --scheduler"
            for address in sorted(addresses(target) - known)
        ],
    )
