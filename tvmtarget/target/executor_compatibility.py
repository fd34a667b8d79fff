"""Which executors run on which runtimes, and with which options: one table, checked when a tree is resolved.

The rules for `aot` and `crt` are those of TVM v0.9 to v0.19 (`src/relay/backend/aot_executor_codegen.cc`,
`src/target/llvm/llvm_module.cc`, `src/target/source/source_module.cc`), where some of them came only when code
was generated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.problems import place
from tvmtarget.target.target_node import HostChoice, TargetNode
from tvmtarget.target.text.printing import write_value
from tvmtarget.target.tree_paths import join

__all__ = ["PAIRS", "Pair", "default_runtime", "effective_pair", "pair_conflicts", "runtimes_of"]


@dataclass(frozen=True, slots=True)
class Pair:
    """An executor on a runtime: the options it needs, and which programs and hosts it takes.

    `needs` are alternatives, each a set of options of which all must hold; `hosts` are the kinds of host that
    can hold its driver (any when empty), `host_needs` what a kind of host asks for besides.
    """

    executor: str
    runtime: str
    needs: tuple[Mapping[str, object], ...] = ({},)
    hosts: tuple[str, ...] = ()
    host_needs: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    has_control_flow: bool = False
    has_dynamic_shapes: bool = False


_UNPACKED = {"executor/unpacked-api": True}
_PACKED = {"executor/unpacked-api": False, "executor/interface-api": "packed"}
_REGISTERED = {"runtime/system-lib": True}
_STATIC_LLVM = {"llvm": _REGISTERED}

# The first row of an executor has the runtime that it gets when none is named.
PAIRS = (
    Pair("graph", "python", has_control_flow=True, has_dynamic_shapes=True),
    Pair("graph", "cpp"),
    Pair("graph", "crt", (_REGISTERED,), hosts=("llvm", "c")),
    Pair("graph", "processes", has_control_flow=True, has_dynamic_shapes=True),
    Pair("graph", "dask", has_control_flow=True, has_dynamic_shapes=True),
    Pair("aot", "cpp", (_PACKED,), hosts=("llvm", "c")),
    Pair("aot", "crt", (_UNPACKED, _PACKED), hosts=("llvm", "c"), host_needs=_STATIC_LLVM),
    Pair("vm", "python", has_control_flow=True, has_dynamic_shapes=True),
    Pair("vm", "cpp", has_control_flow=True, has_dynamic_shapes=True),
)


def runtimes_of(executor: str) -> tuple[str, ...]:
    """List the runtimes that an executor runs on, the usual one first; none if the table does not know it."""
    return tuple(pair.runtime for pair in PAIRS if pair.executor == executor)


def default_runtime(executor: Executor | None) -> str:
    """Return the runtime of an executor (graph, if none is stated) for which no runtime is named."""
    return next(iter(runtimes_of(executor.kind if executor else "graph")), "python")


def effective_pair(nodes: Iterable[TargetNode]) -> tuple[Executor, Runtime]:
    """Return what drives the last of some nodes, each inside the one before.

    What a node does not state is that of the node around it; but an executor that does not run on that node's
    runtime has its usual one.
    """
    executor, runtime = Executor("graph"), Runtime("python")
    for node in nodes:
        executor = node.executor or executor
        if node.runtime is not None:
            runtime = node.runtime
        elif runtime.kind not in (runtimes_of(executor.kind) or (runtime.kind,)):
            runtime = Runtime(default_runtime(executor))
    return executor, runtime


def pair_conflicts(root: TargetNode, driven: Mapping[str, HostChoice]) -> Iterator[str]:
    """Yield what is wrong with the executors and runtimes of a tree, at the nodes that state or begin to drive them."""
    yield from _conflicts_below([root], "", None, driven)


def _conflicts_below(
    nodes: list[TargetNode], path: str, around: str | None, driven: Mapping[str, HostChoice]
) -> Iterator[str]:
    node, driver = nodes[-1], driven[path].effective
    if node.executor is not None or node.runtime is not None or driver != around:
        executor, runtime = effective_pair(nodes)
        for problem in _problems(executor, runtime, _host_kind(nodes[0], driver)):
            yield problem + place(path)
    for child in node.targets:
        yield from _conflicts_below([*nodes, child], join(path, child.slot), driver, driven)


def _host_kind(root: TargetNode, path: str) -> str | None:
    """Return the kind of a driver; None for a reference to nothing, of which another rule speaks."""
    if path.startswith("@"):
        return None
    if path == "host" and root.child("host") is None:
        return root.host.kind if isinstance(root.host, TargetNode) else "llvm"
    return root.at(path).kind


def _problems(executor: Executor, runtime: Runtime, host: str | None) -> Iterator[str]:
    known = runtimes_of(executor.kind)
    if not known or all(pair.runtime != runtime.kind for pair in PAIRS):
        return  # a plugin's
    pair = next((pair for pair in PAIRS if (pair.executor, pair.runtime) == (executor.kind, runtime.kind)), None)
    on = f"executor {executor.kind!r} on runtime {runtime.kind!r}"
    if pair is None:
        yield f"executor {executor.kind!r} does not run on runtime {runtime.kind!r}; it runs on: {', '.join(known)}"
        return
    misses = [[*_missing(wanted, executor, runtime)] for wanted in pair.needs]
    if all(misses):
        yield f"{on} needs {' or '.join(' and '.join(missing) for missing in misses)}"
    if host is not None and pair.hosts and host not in pair.hosts:
        yield f"{on} needs a host of kind {' or '.join(pair.hosts)}, not {host!r}"
    elif host is not None:
        missing = [*_missing(pair.host_needs.get(host, {}), executor, runtime)]
        if missing:
            yield f"{on} needs {' and '.join(missing)} for a host of kind {host!r}"


def _missing(wanted: Mapping[str, object], executor: Executor, runtime: Runtime) -> Iterator[str]:
    """Yield the options that do not have the value that is wanted."""
    for path, value in wanted.items():
        role, _, name = path.partition("/")
        actual = executor[name] if role == "executor" else runtime[name]
        if actual != value:
            yield f"{name}={write_value(value)}"
