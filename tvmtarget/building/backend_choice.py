"""Choose a backend for every site of a plan, and reject a target that no installed backend can honour."""

from __future__ import annotations

from collections.abc import Iterator

from tvmtarget.backends.machine import interpreter_mismatch
from tvmtarget.backends.protocol import Backend, backend_named, backends
from tvmtarget.building.honoured_attributes import (
    honoured_attributes,
    ignored_attributes,
    ignored_driver_attributes,
)
from tvmtarget.building.systems import executor_of_path, system_of_path
from tvmtarget.errors import BackendError, raise_all
from tvmtarget.ir.relax.leaf_module import needs_relax
from tvmtarget.ir.relax.lowering import is_native
from tvmtarget.partition.machines.machine import undistributable
from tvmtarget.partition.plan import Plan
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import Target
from tvmtarget.target.tree_paths import unnumbered

__all__ = ["choose_backend", "choose_backends", "with_composites_above"]


def choose_backends(plan: Plan, *, allow_interpreter: bool) -> dict[str, tuple[Backend, str]]:
    """Return the backend of every site that has a subgraph, and a note on it.

    Sites without a subgraph are not checked: they need no code generator, and their composites no executor.

    Args:
        plan: The plan to build.
        allow_interpreter: Whether numpy may interpret leaves without a code generator.

    Returns:
        Backends and notes as `choose_backend` returns them, by site.

    Raises:
        BackendError: Leaves have no backend, or attributes would be ignored; the error lists all of them.
    """
    topology = plan.topology
    chosen: dict[str, tuple[Backend, str]] = {}
    problems: list[str] = []
    sites = list(dict.fromkeys(subgraph.site for subgraph in plan.subgraphs))
    # The root counts even without operations of its own, since its executor and runtime run the whole program.
    used = list(dict.fromkeys(path for site in ("", *sites) for path in with_composites_above(site)))
    for path in used:
        node = topology[path].target
        if node.executor is not None:
            problems += ignored_driver_attributes(node.executor, "executor", path)
        if node.runtime is not None:
            problems += ignored_driver_attributes(node.runtime, "runtime", path)
        if node.is_composite:
            # No code is generated for a composite, so that it can honour no attribute that changes results.
            problems += ignored_attributes(node, frozenset(), "a composite", path)
    problems += undistributable(topology, {unnumbered(path) for path in used})
    for site in sites:
        target = topology[site].target
        if _has_external_code_generator(plan, site):
            chosen[site] = backend_named("tvm"), ""  # TVM passes all attributes on, as options of the code generator
            continue
        try:
            backend, _ = chosen[site] = choose_backend(topology, site, allow_interpreter=allow_interpreter)
        except BackendError as error:
            problems += error.problems
            continue
        by = backend.name if target.kind in backend.kinds else f"{backend.name}, which interprets it,"
        problems += ignored_attributes(target, honoured_attributes(backend, target.kind), by, site)
    # Hosts with operations were checked as sites; other hosts are written into the targets of their devices.
    compiled = {topology[path].host for path in used if _generates_driver(topology[path].target)}
    for path in dict.fromkeys(topology[path].host for path in used):
        if path not in sites:
            problems += _ignored_host_attributes(topology, path, has_code=path in compiled)
    raise_all(BackendError, list(dict.fromkeys(problems)))
    return chosen


def choose_backend(topology: Topology, path: str, *, allow_interpreter: bool) -> tuple[Backend, str]:
    """Return the first installed code generator of a leaf, else numpy as an interpreter.

    Args:
        topology: The target.
        path: The path of the leaf.
        allow_interpreter: Whether numpy may interpret the leaf.

    Returns:
        The backend, and a note that a report should print if the leaf is interpreted; empty otherwise.

    Raises:
        BackendError: No code generator for the leaf is installed, and numpy may not interpret it.
    """
    target = topology[path].target
    place = f"@{path or '.'}"
    missing = None
    for backend, lack in backends(target.kind):
        if lack is None:
            return backend, ""
        missing = lack
    reason = str(missing) if missing is not None else f"no backend for kind {target.kind!r} is installed"
    # This comes before the permission: on another machine, to allow the interpreter would not help.
    foreign = interpreter_mismatch(target)
    if foreign is not None:
        raise BackendError(
            f"{place} cannot be compiled: {reason}; nor can numpy interpret it, as it describes another machine "
            f"({foreign}): install a code generator for it, or build for Target.detect() ('native' on the command line)"
        )
    if not allow_interpreter:
        raise BackendError(
            f"{place} cannot be compiled: {reason}; allow_interpreter=True (--allow-interpreter) lets numpy "
            "interpret it, slowly, on this machine"
        )
    return backend_named("numpy"), f"{place} ({target.kind}) is interpreted by numpy: {reason}"


def with_composites_above(site: str) -> Iterator[str]:
    """List the composites around a site, and the site itself.

    Args:
        site: The path of a node.

    Yields:
        Paths, from the root to the node.
    """
    yield ""
    names = site.split("/") if site else []
    yield from ("/".join(names[: count + 1]) for count in range(len(names)))


def _generates_driver(node: Target) -> bool:
    return node.executor is not None and node.executor.kind == "aot"


def _ignored_host_attributes(topology: Topology, path: str, *, has_code: bool) -> Iterator[str]:
    """Yield the attributes of a host without a subgraph that would be ignored.

    Those of kind c only have an effect on a driver in C, which the executor generates if `has_code`.
    """
    host = topology[path].target
    has_effect = host.kind != "c" or has_code
    backend = next((backend for backend, lack in backends(host.kind) if lack is None), None) if has_effect else None
    if backend is not None:
        return ignored_attributes(host, honoured_attributes(backend, host.kind), backend.name, path)
    executor = executor_of_path(topology, system_of_path(topology, path)).kind
    return ignored_attributes(host, frozenset(), f"the {executor} executor, which runs the drivers of this host,", path)


def _has_external_code_generator(plan: Plan, site: str) -> bool:
    """Whether TVM has an external code generator (BYOC) for a leaf, and all functions of the leaf are of Relax."""
    kind = plan.topology[site].target.kind
    functions = (plan.module[subgraph.function] for subgraph in plan.subgraphs if subgraph.site == site)
    if is_native(kind) or not all(map(needs_relax, functions)):
        return False
    from tvmtarget.backends.tvm.backend import generates

    return generates(kind)
