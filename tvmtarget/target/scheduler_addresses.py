"""Network addresses in a tree: they come from the user, and never from a file that somebody else may have written."""

from __future__ import annotations

from tvmtarget.errors import TargetError, raise_all
from tvmtarget.target.tree import Target

__all__ = ["addresses", "reject_addresses"]


def addresses(target: Target) -> frozenset[str]:
    """Return the addresses that the runtimes of a tree connect to."""
    runtimes = (node.runtime for _, node in target.walk() if node.runtime is not None)
    return frozenset(str(runtime.attrs["address"]) for runtime in runtimes if runtime.attrs.get("address"))


def reject_addresses(target: Target, place: str, known: frozenset[str] = frozenset()) -> None:
    """Raise `TargetError` for addresses in a tree that are not known ones; `place` is where they stand."""
    raise_all(
        TargetError,
        [
            f"{place} names a Dask scheduler, {address!r}, which would get all inputs and may run code as you; leave "
            "it out there and name it in the target that you type, in a tag of your home folder, or by --scheduler"
            for address in sorted(addresses(target) - known)
        ],
    )
