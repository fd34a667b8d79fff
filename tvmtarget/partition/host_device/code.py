"""Split opaque TIR functions of a module into host functions and kernels, by TVM's passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvmtarget.errors import ModelError
from tvmtarget.ir.function import Function, Value, callees_of, code_callees, reachable_functions
from tvmtarget.ir.relax.attributes import TVM
from tvmtarget.ir.relax.code import (
    code_function,
    device_scope_of,
    is_prim,
    read_code,
    symbols_of,
    with_code,
    with_variables,
)
from tvmtarget.ir.relax.tvm_library import the_tvm
from tvmtarget.ir.relax.vdevice_constraints import leaf_of_function
from tvmtarget.ir.types import DTYPES, TensorType, Type
from tvmtarget.partition.host_device.attributes import SIDE_ATTRS, as_device, as_host, side_of
from tvmtarget.partition.host_device.tir import is_launched, side_of_prim, split_tir
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.topology import Site, Topology

__all__ = ["function_of", "prim_of", "split_code", "type_of_parameter"]


def prim_of(function: Function) -> Any:  # noqa: ANN401 - TVM ships no types
    """Read the PrimFunc of an opaque function.

    Args:
        function: function of TIR code.

    Returns:
        The `tvm.tirx.PrimFunc`.

    Raises:
        ModelError: the function has no code that TVM wrote, or the code is not a PrimFunc.
    """
    tvm, code = the_tvm(), function.code
    if code is None or code.kind != TVM:
        raise ModelError(f"function {function.name!r} is no TIR that TVM wrote, so that it cannot be split")
    try:
        prim = tvm.ir.load_json(code.data.decode())
    except Exception as error:  # TVM raises several types for text that it did not write
        raise ModelError(f"the code of function {function.name!r} is not TVM's JSON") from error
    if not isinstance(prim, tvm.tirx.PrimFunc):
        raise ModelError(f"function {function.name!r} is a {type(prim).__name__}, which TVM does not split")
    return prim


def function_of(
    name: str,
    prim: Any,  # noqa: ANN401
    constraint: Constraint | None = None,
    symbols: Mapping[str, str] | None = None,
) -> Function:
    """Make an opaque function, which has an effect because it writes through its parameters.

    Args:
        name: name of the function.
        prim: the `tvm.tirx.PrimFunc`.
        constraint: constraint of the function.
        symbols: names of the functions that it may launch, by symbol.

    Returns:
        The function.
    """
    params = tuple(Value(str(param.name), type_of_parameter(param)) for param in prim.params)
    return code_function(name, prim, params, (), symbols or {}, has_effect=True).replace(constraint=constraint)


def split_code(functions: Mapping[str, Function], topology: Topology) -> tuple[Function, ...]:
    """Split the opaque TIR functions of a module, for each device together with callees.

    The device of a function is the one that it is constrained to, else that of its callers, else the one that
    corresponds to its TVM target, else the only device of the target tree. The host function keeps name and signature,
    and launches its kernels by name.

    Args:
        functions: functions of the module by name.
        topology: sites of its target.

    Returns:
        The functions that were changed or added.

    Raises:
        ModelError: code of two devices calls one private function, or the device of a function is ambiguous.
    """
    codes = {name: function for name, function in functions.items() if function.code is not None}
    owner = {
        name: path for name, function in codes.items() if (path := _constrained_device(function, topology)) is not None
    }
    for name in list(owner):
        _assign_callees(name, owner[name], owner, codes)
    direct = {one for function in functions.values() if function.code is None for one in callees_of(function)}
    operations = set(reachable_functions(sorted(direct & codes.keys()), codes))
    called = direct.union(*(code_callees(function).values() for function in codes.values()))
    for name in sorted(codes, key=lambda one: one in called):  # first those that no other function calls
        function = codes[name]
        is_undecided = function.constraint is None and name not in owner and name not in operations
        if is_undecided and not any(function.attr(key) is not None for key in SIDE_ATTRS) and _is_tir(function):
            path = _device_for(function, topology)
            if path is not None:
                owner[name] = path
                _assign_callees(name, path, owner, codes)
    made: list[Function] = []
    for path in sorted(set(owner.values())):
        names = {name for name, one in owner.items() if one == path}
        made += _split({name: codes[name] for name in sorted(names)}, functions, topology, topology[path])
    return tuple(made)


def _constrained_device(function: Function, topology: Topology) -> str | None:
    """Return the path of the device that a mixed function is constrained to."""
    if side_of(function, topology) != "mixed" or function.constraint is None:
        return None
    return topology.canonical(function.constraint.path or "")


def _assign_callees(name: str, path: str, owner: dict[str, str], codes: Mapping[str, Function]) -> None:
    """Assign the callees of a function to its device, at any depth, except those with a constraint."""
    waiting, seen = [name], {name}
    while waiting:
        for callee in code_callees(codes[waiting.pop()]).values():
            if callee not in codes or codes[callee].constraint is not None:
                continue
            if owner.setdefault(callee, path) != path:
                raise ModelError(
                    f"function {callee!r} is called by code for @{owner[callee]} and for @{path}; make a copy for each"
                )
            waiting += [callee] if callee not in seen else []
            seen.add(callee)


def _is_tir(function: Function) -> bool:
    return function.code is not None and function.code.kind == TVM and is_prim(read_code(function))


def _device_for(function: Function, topology: Topology) -> str | None:
    """Return the path of the device for a function without a constraint; None for host code of a system."""
    root = topology[""]
    if not root.is_system:
        return "" if root.host != "" or device_scope_of(read_code(function)) is not None else None
    devices = [leaf for leaf in topology.leaves() if leaf.host != leaf.path]
    own = leaf_of_function(function, devices)
    if own is not None:
        return own
    if len(devices) == 1:
        return devices[0].path
    if device_scope_of(read_code(function)) is None:
        return None
    listed = ", ".join(f"@{leaf.path}" for leaf in devices) or "none"
    raise ModelError(
        f"function {function.name!r} has device code, but does not say for which of the devices: {listed}; constrain "
        f"it to one: module.constrain({function.name!r}, '@...')"
    )


def _split(
    functions: Mapping[str, Function], every: Mapping[str, Function], topology: Topology, site: Site
) -> list[Function]:
    tvm = the_tvm()
    # TVM must see the host functions that these call, but they are not changed.
    called_host_functions = {
        name: every[name]
        for function in functions.values()
        for name in code_callees(function).values()
        if name in every and name not in functions
    }
    variables = {name: tvm.ir.GlobalVar(name) for name in every}
    prims = {name: prim_of(function) for name, function in functions.items()}
    host = topology[site.host].target.replace(name=None, host=None, count=1)
    pair = site.target.replace(name=None, count=1, host=host)
    inputs = {variables[name]: with_variables(functions[name], prim, variables) for name, prim in prims.items()}
    inputs |= {
        variables[name]: _declared(tvm, prim_of(function), function, site)
        for name, function in called_host_functions.items()
    }
    split = split_tir(tvm.IRModule(inputs), pair, every)
    symbols = symbols_of({str(var.name_hint): prim for var, prim in split.functions.items()})
    made: list[Function] = []
    for var in sorted(split.functions.keys(), key=lambda var: str(var.name_hint)):
        name, prim = str(var.name_hint), split[var]
        if name in called_host_functions:
            continue
        known = every.get(name)
        function = function_of(name, prim, symbols=symbols) if known is None else with_code(known, prim, symbols)
        made.append(_as_host_or_device(function, prim, topology, site))
    return made


def _declared(tvm: Any, prim: Any, function: Function, site: Site) -> Any:  # noqa: ANN401
    """Return the PrimFunc of a function that is not split, marked as host code if it is constrained to the host."""
    path = None if function.constraint is None else function.constraint.path
    is_decided = any(key in prim.attrs for key in ("target", "tirx.is_host_func"))
    return prim if is_decided or path != site.host else prim.with_attr("tirx.is_host_func", tvm.tirx.IntImm("bool", 1))


def _as_host_or_device(function: Function, prim: Any, topology: Topology, site: Site) -> Function:  # noqa: ANN401
    """Mark a split function as host or device code; a kernel may be for another device than the function was."""
    own = prim.attrs["target"]
    is_kernel = is_launched(prim) and site.host != site.path and own.kind.name == site.target.kind
    if side_of_prim(prim) == "host" and not is_kernel:
        return as_host(function, site.host, site.path)
    path: str | None = site.path
    if own.kind.name != site.target.kind:
        path = leaf_of_function(function.replace(constraint=None), tuple(topology.leaves()))
    return as_device(function.replace(constraint=None if path is None else Constraint.at(path)))


def type_of_parameter(param: Any) -> Type:  # noqa: ANN401
    """Convert the type of a parameter of a PrimFunc.

    Args:
        param: the `tvm.tirx.Var`.

    Returns:
        A tensor type for buffers and scalars; None for other types.
    """
    type_ = param.ty
    dtype = str(getattr(type_, "dtype", ""))
    if dtype not in DTYPES:
        return None
    shape = [getattr(dim, "value", None) for dim in getattr(type_, "shape", ())]
    return TensorType(dtype, tuple(None if dim is None else int(dim) for dim in shape))
