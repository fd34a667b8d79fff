"""Build modules whose entry is TIR code: split them into host and device code, and let TVM compile both together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tvmtarget.backends.protocol import CompileRequest, backend_named
from tvmtarget.building.backend_choice import with_composites_above
from tvmtarget.building.executable import Executable
from tvmtarget.building.honoured_attributes import (
    honoured_attributes,
    ignored_attributes,
    ignored_driver_attributes,
)
from tvmtarget.building.leaf_function import LeafCall, LeafCode, LeafFunction
from tvmtarget.errors import BackendError, ModelError, raise_all
from tvmtarget.executors.driver_program import DriverProgram, Signature
from tvmtarget.ir.entry_function import OWN_NAME, restore_own_names
from tvmtarget.ir.function import Function, reachable_functions
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.relax.tvm_library import the_tvm
from tvmtarget.ir.relax.writer import write_tvm_module
from tvmtarget.partition.host_device.attributes import side_of
from tvmtarget.partition.host_device.code import prim_of, type_of_parameter
from tvmtarget.partition.host_device.splitting import split_host_device
from tvmtarget.partition.host_device.tir import bind_missing_targets
from tvmtarget.target.kinds import Role
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import Target

__all__ = ["build_code", "is_code_entry"]

_KINDS = ("llvm", "cuda")  # kinds of leaves that TIR is compiled for


def is_code_entry(module: IRModule) -> bool:
    """Return whether a program starts with TIR code.

    Args:
        module: A program.

    Returns:
        True if the entry is TIR code, or if there is no entry and all functions are TIR code.
    """
    main = module.by_name.get("main")
    return main.code is not None if main is not None else all(function.code is not None for function in module)


def build_code(module: IRModule, target: Target, name: str = "default") -> Executable:
    """Compile a module of TIR functions for a target.

    The entry, `main` or the only public function, runs on the host; it may launch kernels and call other functions.
    Functions of a module that is split already stay unchanged. A run returns the contents of all buffers of the entry
    after the call. The other public functions are compiled, too (`Executable.functions`).

    Args:
        module: A module of TIR functions.
        target: The target.
        name: The name of the program in saved files.

    Returns:
        The executable.

    Raises:
        BackendError: A site is of a kind that TIR is not compiled for, or the module uses several devices.
        ModelError: There is no entry, it is device code, or a function cannot be split.
    """
    entry = _entry(module)
    # In libraries the entry has its own name.
    module = module.replace(functions=restore_own_names(module.functions))
    topology = Topology(target.resolve())
    split = split_host_device(module, target)
    public = [function.name for function in module if _is_public(function)]
    functions = [split[one] for one in reachable_functions([entry, *public], split.by_name)]
    sites = {function.name: _site(function, topology) for function in functions}
    raise_all(
        BackendError,
        [
            f"function {one!r} for @{path or '.'} cannot be built: TIR is built for leaves of kind "
            f"{' and '.join(_KINDS)}, not {topology[path].target.kind}, and numpy interprets none"
            for one, path in sites.items()
            if topology[path].target.kind not in _KINDS
        ],
    )
    raise_all(BackendError, [*_ignored(topology, sites.values())])
    if side_of(split[entry], topology) == "device":
        raise ModelError(
            f"function {entry!r} is device code; a program begins with a function of the host that launches it"
        )
    devices = {path for one, path in sites.items() if topology[path].target.device != "cpu"}
    # One request has one target, and both parts of the code are compiled in one request.
    if len(devices) > 1:
        raise BackendError(
            f"the functions are for {', '.join(f'@{path}' for path in sorted(devices))}; build them separately"
        )
    site = topology[next(iter(devices), sites[entry])]
    host = topology[site.host].target.replace(name=None, host=None, count=1) if site.host != site.path else None
    alone = site.target.replace(name=None, host=host, count=1)
    # Splitting gives functions their targets; host code that needed no splitting has none yet.
    source = str(the_tvm().ir.save_json(bind_missing_targets(write_tvm_module(functions, {}), alone))).encode()
    params = [(str(param.name), type_of_parameter(param), _is_buffer(param)) for param in prim_of(split[entry]).params]
    unknown = [one for one, type_, _ in params if type_ is None]
    if unknown:
        raise BackendError(f"parameter {unknown[0]!r} of function {entry!r} is neither a buffer nor a number")
    buffers = tuple(one for one, _, is_buffer in params if is_buffer)
    part = CompileRequest(
        name=entry,
        source=source,
        site=site.path,
        target=alone,
        ops=tuple(function.name for function in functions),
        inputs=tuple(one for one, _, _ in params),
        # TIR marks no buffer as an output: any may have been written.
        outputs=buffers,
    )
    backend = backend_named("tvm")
    signatures = {one: Signature.of(one, type_) for one, type_, _ in params}
    program = DriverProgram(
        entry=entry,
        inputs=tuple(signatures.values()),
        outputs=tuple(signatures[one] for one in buffers),
        drivers={},
    )
    call = LeafCall(entry, entry, part.ops, part.inputs, part.outputs)
    leaf = LeafFunction(part, backend, _code=LeafCode(backend, part, backend.compile(part)))
    return Executable(topology.root, program, {}, {entry: leaf}, name, calls=(call,))


def _ignored(topology: Topology, sites: Iterable[str]) -> Iterator[str]:
    """Yield an error message for each executor, runtime and attribute that would be ignored."""
    used = dict.fromkeys(path for site in ("", *sites) for path in with_composites_above(site))
    for path in used:
        node = topology[path].target
        for driver in (one for one in (node.executor, node.runtime) if one is not None):
            role: Role = "executor" if driver is node.executor else "runtime"
            if driver.kind not in ("graph", "python"):
                yield (
                    f"{role} {driver.kind!r} cannot drive TIR code of @{path or '.'}; it is called as one function, "
                    "under 'graph' and 'python'"
                )
            else:
                yield from ignored_driver_attributes(driver, role, path)
    backend = backend_named("tvm")
    for path in dict.fromkeys(one for site in sites for one in (site, topology[site].host)):
        target = topology[path].target
        yield from ignored_attributes(target, honoured_attributes(backend, target.kind), backend.name, path)


def _entry(module: IRModule) -> str:
    """Return the own name of the entry: `main`, or the only public function."""
    if "main" in module:
        return str(module.main.attr(OWN_NAME) or "main")
    public = [function.name for function in module if _is_public(function)]
    if len(public) != 1:
        names = ", ".join(repr(function.name) for function in module)
        raise ModelError(f"the module has no function 'main'; name the entry (entry=...): {names}")
    return public[0]


def _is_public(function: Function) -> bool:
    """Return whether code outside of the module may call a function; kernels that a split made are private."""
    return "global_symbol" in prim_of(function).attrs and function.attr("calling-convention") != "device-kernel-launch"


def _is_buffer(param: Any) -> bool:  # noqa: ANN401 - TVM ships no types
    return type(param.ty).__name__ == "BufferType"


def _site(function: Function, topology: Topology) -> str:
    """Return the site of a function of a split module; a function without a constraint runs on the host of the root."""
    path = None if function.constraint is None else function.constraint.path
    if path is not None and path in topology:
        return topology.canonical(path)
    return topology[""].host
