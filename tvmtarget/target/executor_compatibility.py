"""Which executors run on which runtimes, and with which options: one table, checked when a tree is resolved.

The rules for `aot` and `crt` are those of TVM v0.9 to v0.19 (`src/relay/backend/aot_executor_codegen.cc`,
`src/target/llvm/llvm_module.cc`, `src/target/source/source_module.cc`). TVM checks some of them only when it generates
code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tvmtarget import plugins
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.problems import place
from tvmtarget.target.target_node import HostChoice, TargetNode
from tvmtarget.target.text.printing import write_value

__all__ = ["PAIRS", "Pair", "default_runtime", "effective_pair", "pair_conflicts", "runtimes_of"]


class Pair(NamedTuple):
    """An executor on a runtime: required options, and possible hosts.

    `needs` are alternatives, each a set of options that must all hold. `hosts` are the kinds of host that the generated
    driver can be compiled for (any kind if empty), and `host_needs` the options that a kind of host needs in addition.
    """

    executor: str
    runtime: str
    needs: tuple[Mapping[str, object], ...] = ({},)
    hosts: tuple[str, ...] = ()
    host_needs: Mapping[str, Mapping[str, object]] = {}


_UNPACKED = {"executor/unpacked-api": True}
_PACKED = {"executor/unpacked-api": False, "executor/interface-api": "packed"}
_REGISTERED = {"runtime/system-lib": True}
_STATIC_LLVM = {"llvm": _REGISTERED}

# The first row of an executor has its default runtime.
PAIRS = (
    Pair("graph", "python"),
    Pair("graph", "cpp"),
    Pair("graph", "crt", (_REGISTERED,), hosts=("llvm", "c")),
    Pair("graph", "processes"),
    Pair("graph", "dask"),
    Pair("aot", "cpp", (_PACKED,), hosts=("llvm", "c")),
    Pair("aot", "crt", (_UNPACKED, _PACKED), hosts=("llvm", "c"), host_needs=_STATIC_LLVM),
    Pair("vm", "python"),
    Pair("vm", "cpp"),
)

_PAIR_OF = {(pair.executor, pair.runtime): pair for pair in PAIRS}
_RUNTIMES = {one.executor: tuple(pair.runtime for pair in PAIRS if pair.executor == one.executor) for one in PAIRS}
_ALL_RUNTIMES = frozenset(pair.runtime for pair in PAIRS)


def runtimes_of(executor: str) -> tuple[str, ...]:
    """List the runtimes that an executor runs on.

    Args:
        executor: name of its kind.

    Returns:
        Names of runtime kinds, the default first; empty for the executor of a plugin.
    """
    return _RUNTIMES.get(executor, ())


def default_runtime(executor: Executor | None) -> str:
    """Return the runtime of a program that states none.

    Args:
        executor: its executor, or None for the default, `graph`.

    Returns:
        Name of a runtime kind.
    """
    return next(iter(runtimes_of(executor.kind if executor else "graph")), "python")


def effective_pair(nodes: Iterable[TargetNode]) -> tuple[Executor, Runtime]:
    """Return the executor and runtime of a node: its own, else those of the node around it.

    An executor that does not run on the runtime of the node around it gets its default runtime.

    Args:
        nodes: the nodes from the root to the node, each inside the one before.

    Returns:
        Executor and runtime of the last node.
    """
    pair = _default_pair()
    for node in nodes:
        pair = _pair_of(node, *pair)
    return pair


@plugins.cached
def _default_pair() -> tuple[Executor, Runtime]:
    return Executor("graph"), Runtime("python")


def _pair_of(node: TargetNode, executor: Executor, runtime: Runtime) -> tuple[Executor, Runtime]:
    """Return the executor and runtime of a node in a node with another pair."""
    executor = node.executor or executor
    if node.runtime is not None:
        return executor, node.runtime
    # An executor of a plugin is not in the table, so that any runtime may be meant for it.
    if runtime.kind not in (runtimes_of(executor.kind) or (runtime.kind,)):
        return executor, Runtime(default_runtime(executor))
    return executor, runtime


def pair_conflicts(root: TargetNode, hosts: Mapping[str, HostChoice]) -> Iterator[str]:
    """Yield the conflicts between executors, runtimes and hosts of a tree.

    Args:
        root: the tree.
        hosts: the hosts by path, of `hosts_by_path`.

    Yields:
        One message per conflict, with the path of the node that states the pair or begins to use another host.
    """
    yield from _conflicts_below(root, root, "", _default_pair(), None, hosts)


def _conflicts_below(
    root: TargetNode,
    node: TargetNode,
    path: str,
    around: tuple[Executor, Runtime],
    around_host: str | None,
    hosts: Mapping[str, HostChoice],
) -> Iterator[str]:
    pair, host = _pair_of(node, *around), hosts[path].effective
    if node.executor is not None or node.runtime is not None or host != around_host:
        for problem in _problems(*pair, node.kind if host == path else _host_kind(root, host)):
            yield problem + place(path)
    # A device that states no pair is looked at once for each kind of host: a tree can have 100,000 of them.
    is_right: dict[str, bool] = {}
    for child in node.targets:
        below = f"{path}/{child.slot}" if path else child.slot
        is_plain = not child.targets and child.executor is None and child.runtime is None
        if is_plain and hosts[below].effective == host:
            continue
        drives_itself = is_plain and hosts[below].effective == below
        if drives_itself and is_right.get(child.kind, False):
            continue
        found = [*_conflicts_below(root, child, below, pair, host, hosts)]
        if drives_itself:
            is_right[child.kind] = not found
        yield from found


def _host_kind(root: TargetNode, path: str) -> str | None:
    """Return the kind of a host; None for a reference that names no node, which another rule reports."""
    if path.startswith("@"):
        return None
    if path == "host" and root.child("host") is None:
        return root.host.kind if isinstance(root.host, TargetNode) else "llvm"
    return root.at(path).kind


def _problems(executor: Executor, runtime: Runtime, host: str | None) -> Iterator[str]:
    known = runtimes_of(executor.kind)
    if not known or runtime.kind not in _ALL_RUNTIMES:
        return  # an executor or runtime of a plugin, about which the table says nothing
    pair = _PAIR_OF.get((executor.kind, runtime.kind))
    on = f"executor {executor.kind!r} on runtime {runtime.kind!r}"
    if pair is None:
        yield f"executor {executor.kind!r} does not run on runtime {runtime.kind!r}; it runs on: {', '.join(known)}"
        return
    alternatives = [[*_missing(options, executor, runtime)] for options in pair.needs]
    if all(alternatives):
        yield f"{on} needs {' or '.join(' and '.join(missing) for missing in alternatives)}"
    if host is not None and pair.hosts and host not in pair.hosts:
        yield f"{on} needs a host of kind {' or '.join(pair.hosts)}, not {host!r}"
    elif host is not None:
        missing = [*_missing(pair.host_needs.get(host, {}), executor, runtime)]
        if missing:
            yield f"{on} needs {' and '.join(missing)} for a host of kind {host!r}"


def _missing(options: Mapping[str, object], executor: Executor, runtime: Runtime) -> Iterator[str]:
    """Yield the options that do not have the required value."""
    for path, value in options.items():
        role, _, name = path.partition("/")
        actual = executor[name] if role == "executor" else runtime[name]
        if actual != value:
            yield f"{name}={write_value(value)}"
