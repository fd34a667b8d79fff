"""Lowering of a decomposed module to TVM: virtual devices, copies between them, and external code generators.

Drivers and the subgraphs of TVM's own code generators become one function, in which every value has the virtual device
of the site that computes it, with `relax.to_vdevice` where another site reads it. Subgraphs of external code generators
stay functions with `Codegen` and `global_symbol`, which `relax.transform.RunCodegen` passes to `relax.ext.<kind>`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvmtarget.errors import ModelError, TargetError
from tvmtarget.ir.entry_function import restore_own_names, root_functions
from tvmtarget.ir.function import COPY, Attribute, Call, Function, Opaque, Value, all_names, reachable_functions
from tvmtarget.ir.inline import Frame, Inlined, inline_calls, rename_values
from tvmtarget.ir.names import Names
from tvmtarget.ir.relax.attributes import write_blob
from tvmtarget.ir.relax.blocks import BLOCKS
from tvmtarget.ir.relax.code import CodeCall, read_code, with_callees, with_code, without_host
from tvmtarget.ir.relax.constraint_attributes import assigned_constraint, write_constraint_attributes
from tvmtarget.ir.relax.leaf_module import unbound_symbols
from tvmtarget.ir.relax.reader import GLOBALS
from tvmtarget.ir.relax.syntax import on_vdevice, tuple_fields
from tvmtarget.ir.relax.tvm_library import the_tvm
from tvmtarget.ir.relax.writer import write_tvm_module
from tvmtarget.ir.types import OpaqueType, TensorType
from tvmtarget.target.topology import Site, Topology
from tvmtarget.target.tree import Target

__all__ = ["codegen_options", "is_native", "tvm_module"]

# Kinds for which TVM itself generates code.
_NATIVE = frozenset({"llvm", "c", "cuda", "nvptx", "rocm", "opencl", "vulkan", "metal", "webgpu", "hexagon", "trn"})


def is_native(kind: str) -> bool:
    """Return whether TVM itself generates code for a kind.

    Args:
        kind: kind of a target.

    Returns:
        True if subgraphs of the kind are not left to an external code generator.
    """
    return kind in _NATIVE


def codegen_options(module_functions: Sequence[Function], tree: Target | None) -> dict[str, dict[str, Any]]:
    """Return the options of external code generators for `RunCodegen`.

    Args:
        module_functions: functions of a decomposed module.
        tree: its target tree.

    Returns:
        Attributes of the target by kind.

    Raises:
        TargetError: two targets of one kind have different attributes, which TVM cannot express.
    """
    found: dict[str, dict[str, Any]] = {}
    paths: dict[str, str] = {}
    topology = None if tree is None else Topology(tree.resolve())
    for function in module_functions:
        path = _leaf_path(function)
        if topology is None or path is None or is_native(topology[path].target.kind):
            continue
        kind, options = topology[path].target.kind, dict(topology[path].target.attrs.to_json())
        if found.setdefault(kind, options) != options:
            raise TargetError(
                f"@{paths[kind]} and @{path} are of kind {kind!r} with different attributes, but TVM has one set of "
                "options for a code generator; make them the same, or build one at a time"
            )
        paths.setdefault(kind, path)
    return found


def tvm_module(functions: Sequence[Function], attrs: Mapping[str, Any], tree: Target | None) -> Any:
    """Write the functions of a module, which may be decomposed, as a module of TVM.

    Args:
        functions: functions of the module.
        attrs: attributes of the module.
        tree: its target tree.

    Returns:
        The module of TVM.

    Raises:
        TargetError: the target has no site that TVM generates code for.
        ModelError: an operation is not one of Relax, or a function that is called is neither code nor part of the
            program.
    """
    functions, attrs = _lower_decomposed(functions, attrs, tree)
    topology = None if tree is None else Topology(tree.resolve())
    return write_tvm_module(write_constraint_attributes(functions, attrs, topology), attrs)


def _lower_decomposed(
    functions: Sequence[Function], attrs: Mapping[str, Any], tree: Target | None
) -> tuple[tuple[Function, ...], Mapping[str, Any]]:
    """Lower the decomposed functions of a module to TVM's terms.

    Args:
        functions: functions of the module.
        attrs: attributes of the module.
        tree: its target tree.

    Returns:
        Functions by their own names and attributes; those that were not decomposed are not changed.

    Raises:
        TargetError: the target has no site that TVM generates code for.
        ModelError: a function that is called is neither code nor part of the program.
    """
    functions = restore_own_names(functions)
    decomposed = [function for function in root_functions(functions) if function.attr("role") is not None]
    if tree is None or not decomposed:
        return functions, attrs
    by_name = {function.name: function for function in functions}
    unchanged = [function for function in functions if function.attr("role") is None]
    # Functions that stay as they are still refer to the devices of the module by index.
    attrs = attrs if any(map(_is_on_vdevices, unchanged)) else _without_vdevices(attrs)
    topology = Topology(tree.resolve())
    names, written = Names(by_name), dict[str, Function]()
    for root in decomposed:
        lowered, infos = _lower_root(root, by_name, names, topology, attrs)
        written |= {function.name: function for function in lowered}
        attrs = {**attrs, **({GLOBALS: infos} if infos else {})}
    return (*written.values(), *(function for function in unchanged if function.name not in written)), attrs


def _lower_root(
    root: Function, by_name: Mapping[str, Function], names: Names, topology: Topology, attrs: Mapping[str, Any]
) -> tuple[list[Function], dict[str, Any]]:
    """Return the driver of one root with the functions and code that it calls, and global infos with its devices."""
    reached = [by_name[name] for name in reachable_functions([root.name], by_name)]
    external = {f.name: f for f in reached if (path := _leaf_path(f)) and not is_native(topology[path].target.kind)}
    inlined = inline_calls(root, by_name, only=by_name.keys() - external.keys() - {root.name})
    assigned = _assign(inlined, lambda call, frames: _site_of(call, frames, by_name, topology, root))
    devices = _Devices(topology, root, list(assigned.all_sites()), attrs)
    writer = _Writer(inlined.function, devices, by_name, names, external, topology)
    driver = writer.write(assigned)
    subgraphs = [writer.external_function(function) for function in external.values()]
    return [driver, *subgraphs, *writer.codes.values()], {**(attrs.get(GLOBALS) or {}), **devices.infos()}


def _is_on_vdevices(function: Function) -> bool:
    """Return whether the types or copies of a function refer to virtual devices of the module."""
    bodies = (function, *(region for call in function.calls for _, region in call.regions))
    params = (param for body in bodies for param in body.params)
    values = (*params, *(output for call in function.calls for output in call.outputs))
    return "relax.to_vdevice" in function.ops or any(
        value.scope.startswith("vdevice:") or (isinstance(value.type, OpaqueType) and "vdevice=" in value.type.name)
        for value in values
    )


def _without_vdevices(attrs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Remove the virtual devices of a module, all of whose values get new ones."""
    infos = {key: value for key, value in (attrs.get(GLOBALS) or {}).items() if key != "vdevice"}
    return {key: value for key, value in attrs.items() if key != GLOBALS} | ({GLOBALS: infos} if infos else {})


def _leaf_path(function: Function) -> str | None:
    if function.attr("role") != "leaf" or function.constraint is None:
        return None
    return function.constraint.path


def _site_of(
    call: Call, frames: Any, by_name: Mapping[str, Function], topology: Topology, main: Function
) -> Site | None:
    """Return the leaf that runs an operation; None for one of a driver."""
    around = [call.callee, *(frame.callee for frame in reversed(frames)), main.name]
    paths = (_leaf_path(by_name[name]) for name in around if name in by_name)
    path = next((path for path in paths if path is not None), None)
    return None if path is None else topology[path]


@dataclass(frozen=True, slots=True)
class _Assigned:
    """A function and the site of each operation; `bodies` are nested bodies that a driver runs, by operation."""

    function: Function
    sites: tuple[Site | None, ...]
    bodies: Mapping[int, tuple[_Assigned, ...]]

    def all_sites(self) -> Iterator[Site | None]:
        """Yield the sites of all operations, those in nested bodies too."""
        for index, site in enumerate(self.sites):
            inner = self.bodies.get(index, ())
            yield from (one for body in inner for one in body.all_sites())
            if not inner:
                yield site


def _assign(inlined: Inlined, site_of: Callable[[Call, tuple[Frame, ...]], Site | None]) -> _Assigned:
    """Find the site of each operation; one with nested bodies and no site of its own is run by a driver."""
    sites = tuple(map(site_of, inlined.function.body, inlined.frames))
    bodies = {
        index: tuple(_assign(one, site_of) for one in found)
        for index, found in inlined.bodies.items()
        if sites[index] is None
    }
    return _Assigned(inlined.function, sites, bodies)


@dataclass(frozen=True, slots=True)
class _Device:
    """A virtual device, by its index in the module's list."""

    index: int

    @property
    def scope(self) -> str:
        """Memory scope of its values."""
        return f"vdevice:{self.index}"


class _Devices:
    """The virtual devices of the sites in use; there are none if everything runs on one CPU."""

    def __init__(
        self, topology: Topology, main: Function, sites: Sequence[Site | None], attrs: Mapping[str, Any]
    ) -> None:
        self._topology = topology
        self._kept = list((attrs.get(GLOBALS) or {}).get("vdevice", ()))
        home = topology[main.constraint.path or ""] if main.constraint is not None else topology[""]
        self.home = self._driver(home)
        natives = dict.fromkeys([self.home, *(self._driver(site) for site in sites if site is not None)])
        self._own: dict[str, int] = {}
        self._written: list[Opaque] = []
        if len(natives) > 1 or topology[self.home].target.device != "cpu":
            self._number(list(natives))

    def _number(self, paths: Sequence[str]) -> None:
        tvm = the_tvm()
        numbers: dict[str, int] = {}
        for path in paths:
            leaf = self._topology[path].target
            number = numbers.get(leaf.device, 0)
            numbers[leaf.device] = number + 1
            device = write_blob(tvm.relax.VDevice(self.tvm_target(path), number, "global"))
            known = [*self._kept, *self._written]
            self._own[path] = known.index(device) if device in known else len(known)
            self._written += [device] * (device not in known)

    def _driver(self, site: Site) -> str:
        """Return the native leaf whose memory holds the values of a site: itself, or the host that drives it."""
        current = site
        # Bounded, in case hosts drive each other in a cycle.
        for _ in range(64):
            if not current.is_system and is_native(current.target.kind):
                return current.path
            if current.host == current.path:
                break
            current = self._topology[current.host]
        native = [leaf.path for leaf in self._topology.leaves() if is_native(leaf.target.kind)]
        if not native:
            raise TargetError(
                f"no site of the target is one that TVM generates code for, such as llvm; {current.path!r} is not"
            )
        return native[0]

    def of(self, site: Site | None) -> _Device | None:
        """Return the virtual device of the values of a site."""
        path = self.home if site is None else self._driver(site)
        return _Device(self._own[path]) if path in self._own else None

    def site_in(self, scope: str) -> Site | None:
        """Return the site of a virtual device."""
        return next((self._topology[path] for path, index in self._own.items() if _Device(index).scope == scope), None)

    def tvm_target(self, path: str) -> Any:
        """Return the TVM target of a native leaf, with its host."""
        site = self._topology[path]
        host = self._topology[site.host].target.replace(name=None, host=None, count=1) if site.host != path else None
        return site.target.replace(name=None, host=host, count=1).to_tvm().load()

    def target_of(self, site: Site | None) -> Any:
        """Return the TVM target of the native leaf that holds the values of a site."""
        return self.tvm_target(self.home if site is None else self._driver(site))

    def infos(self) -> dict[str, tuple[Opaque, ...]]:
        """Return the global infos with the virtual devices."""
        return {"vdevice": (*self._kept, *self._written)} if self._written else {}


class _Writer:
    """Writes the driver, and completes the functions of external code generators."""

    def __init__(
        self,
        main: Function,
        devices: _Devices,
        by_name: Mapping[str, Function],
        names: Names,
        external: Mapping[str, Function],
        topology: Topology,
    ) -> None:
        self._main = main
        self._devices = devices
        self._by_name = by_name
        self._external = external
        self._topology = topology
        self._home = self._scope(devices.of(None))
        self._names = Names(all_names(main))
        self._types = dict(main.types)
        self._functions = names
        self._origin: dict[str, str] = {}  # source of each copy that the decomposition inserted
        self._copies: dict[str, dict[str, str]] = {}  # names of each value by the scopes that it is in
        self._body: list[Call] = []
        self._clones: dict[tuple[str, str], str] = {}
        self.codes: dict[str, Function] = {}

    def write(self, assigned: _Assigned) -> Function:
        """Return the entry: operations of native sites, and calls of external functions."""
        self._copies = {name: {"": name} for name in self._main.constant_names}
        return self._write_body(assigned).replace(constraint=None)

    def _write_body(self, assigned: _Assigned) -> Function:
        """Return the entry or a nested body that a driver runs; its results are on the driver's device."""
        function, home = assigned.function, self._home
        params = tuple(_on(param, home) for param in function.params)
        self._copies |= {param.name: {home: param.name} for param in params}
        self._types |= function.types
        for index, (call, site) in enumerate(zip(function.body, assigned.sites, strict=True)):
            if call.op in _COPIES:
                source = call.inputs[0]
                self._origin[call.outputs[0].name] = self._origin.get(source, source)
            elif index in assigned.bodies:
                self._add_driven(call, assigned.bodies[index])
            else:
                self._add(call, site)
        results = tuple(self._at(name, home) for name in function.results)
        attrs = tuple(item for item in function.attrs if item[0] not in ("role", BLOCKS))
        return function.replace(params=params, body=tuple(self._body), results=results, attrs=attrs)

    def _add_driven(self, call: Call, bodies: Sequence[_Assigned]) -> None:
        """Add control flow that a driver runs: conditions and results of bodies are on the driver's device."""
        inputs = tuple(name and self._at(name, self._home) for name in call.inputs)
        before, known = self._body, self._copies
        regions = []
        for (label, _), body in zip(call.regions, bodies, strict=True):
            self._body, self._copies = [], {name: dict(copies) for name, copies in known.items()}
            regions.append((label, self._write_body(body)))
        self._body, self._copies = before, known
        outputs = tuple(_on(out, self._home) for out in call.outputs)
        self._body.append(replace(call, inputs=inputs, outputs=outputs, regions=tuple(regions), constraint=None))
        self._copies |= {output.name: {self._home: output.name} for output in outputs}

    def _add(self, call: Call, site: Site | None) -> None:
        scope = self._scope(self._devices.of(site))
        if call.op == "relax.TupleGetItem":
            scope = next(iter(self._copies.get(call.inputs[0], (scope,))))  # a field is in the memory of its tuple
        read = {name: self._at(name, scope, is_typed=name in _read_with_types(call)) for name in call.uses()}
        regions = tuple((label, _scoped(rename_values(region, read), scope)) for label, region in call.regions)
        inputs = tuple(read.get(name, name) for name in call.inputs)
        outputs = tuple(_on(out, scope) for out in call.outputs)
        attrs = _attrs_on(call.attrs, scope)
        call = replace(call, inputs=inputs, outputs=outputs, attrs=attrs, regions=regions)
        if call.callee is not None and call.callee in self._external:
            call = self._with_symbols(replace(call, constraint=None), self._external[call.callee])
        elif call.callee is not None:
            call = replace(call, op=f"@{self._code(call.callee, self._devices.target_of(site))}")
        if call.callee not in self._external:
            call = replace(call, constraint=assigned_constraint(call.constraint, site))
        self._body.append(call)
        for output in outputs:
            self._copies[output.name] = {scope: output.name}

    def _scope(self, device: _Device | None) -> str:
        return "" if device is None else device.scope

    def _at(self, value: str, scope: str, *, is_typed: bool = False) -> str:
        """Return the name of a value on a virtual device; it is copied there once.

        Constants are on the entry's device, though their types do not state it: `is_typed` requires a copy that does.
        """
        name = self._origin.get(value, value)
        copies = self._copies.get(name)
        if copies is None or (name in self._main.constant_names and scope == self._home and not is_typed):
            return name
        if scope not in copies:
            at, source = next(iter(copies.items()))
            copies[scope] = self._copy(Value(source, self._types.get(name)), at, scope)
        return copies[scope]

    def _copy(self, value: Value, at: str, scope: str) -> str:
        """Copy a tensor, or the tensors of a tuple, to another virtual device; other values are not copied."""
        text = value.type.name if isinstance(value.type, OpaqueType) else ""
        if isinstance(value.type, TensorType) or text.startswith("Tensor("):
            return self._append(value, scope, "relax.to_vdevice", (value.name,), (("dst_vdevice", scope),))
        if "Tensor(" not in text or not text.startswith("Tuple("):
            return value.name
        parts = []
        for index, field in enumerate(tuple_fields(text)):
            part = replace(value, type=OpaqueType(field))
            taken = self._append(part, at, "relax.TupleGetItem", (value.name,), (("index", index),))
            parts.append(self._copy(replace(part, name=taken), at, scope))
        return self._append(value, scope, "relax.Tuple", tuple(parts), ())

    def _append(
        self, like: Value, scope: str, op: str, inputs: tuple[str, ...], attrs: tuple[tuple[str, Attribute], ...]
    ) -> str:
        """Append a call whose result has the type of `like` on a virtual device; return the name of the result."""
        result = _on(Value(self._names.fresh(f"{like.name}_copy"), like.type), scope)
        site = self._devices.site_in(scope)
        self._body.append(
            Call(op, inputs, (result,), attrs, constraint=assigned_constraint(None, site), source=result.name)
        )
        return result.name

    def _code(self, name: str, target: Any) -> str:
        """Return the name of a clone of code for a target; the code that it calls is cloned for the target too."""
        key = (name, str(target))
        if key not in self._clones:
            function = self._by_name[name]
            taken = [clone for (known, _), clone in self._clones.items() if known == name]
            # Recorded before the callees are cloned, since code may recurse.
            self._clones[key] = self._functions.fresh(name) if taken else name
            clone = with_callees(function, lambda callee, call: self._code(callee, _target_of_call(call, target)))
            self.codes[self._clones[key]] = _with_target(clone, self._clones[key], target)
        return self._clones[key]

    def _with_symbols(self, call: Call, callee: Function) -> Call:
        """Pass the symbolic dimensions that the callee's parameters do not determine as a shape operand."""
        unbound = unbound_symbols(callee)
        if not unbound:
            return call
        operands = (*(f"_{index}" for index in range(len(call.inputs))), f"Shape({', '.join(unbound)})")
        return replace(call, attrs=(*call.attrs, ("tvm.args", ", ".join(operands))))

    def external_function(self, function: Function) -> Function:
        """Return the function of an external code generator in the form that `RunCodegen` expects."""
        site = self._topology[_leaf_path(function) or ""]
        scope = self._scope(self._devices.of(site))
        unbound = unbound_symbols(function)
        params = function.params
        if unbound:
            shape = OpaqueType(f"Shape({', '.join(unbound)})")
            params = (*params, Value(Names(function.types).fresh("symbols"), shape))
        attrs = (("Codegen", site.target.kind), ("global_symbol", function.name), ("tvm.own_symbols", True))
        return _scoped(function.replace(params=params, attrs=attrs), scope)


def _read_with_types(call: Call) -> frozenset[str]:
    """Return the values whose types must state their device, since a call passes them on unchanged."""
    read = set(call.inputs) if call.op in _PASSING or call.callee is not None else set()
    for _, region in call.regions:
        read.update(region.results, *map(_read_with_types, region.body))
    return frozenset(read)


def _scoped(function: Function, scope: str) -> Function:
    """Put all tensors of a function on one virtual device."""
    body = tuple(
        replace(
            call,
            outputs=tuple(_on(output, scope) for output in call.outputs),
            attrs=_attrs_on(call.attrs, scope),
            regions=tuple((label, _scoped(region, scope)) for label, region in call.regions),
        )
        for call in function.body
    )
    return function.replace(params=tuple(_on(param, scope) for param in function.params), body=body)


def _on(value: Value, scope: str) -> Value:
    """Put the tensors of a value on a virtual device."""
    match value.type:
        case TensorType():
            return replace(value, scope=scope)
        case OpaqueType(name=text):
            return replace(value, type=OpaqueType(on_vdevice(text, _index(scope))), scope="")
    return value


def _attrs_on(attrs: tuple[tuple[str, Attribute], ...], scope: str) -> tuple[tuple[str, Attribute], ...]:
    """Put the types among attributes on a virtual device."""

    def on(name: str, value: Attribute) -> Attribute:
        if name == "tvm.types" and isinstance(value, tuple):
            return tuple(on_vdevice(str(text), _index(scope)) for text in value)
        return on_vdevice(value, _index(scope)) if name in _TYPES and isinstance(value, str) else value

    return tuple((name, on(name, value)) for name, value in attrs)


_COPIES = (COPY, "relax.to_vdevice")  # removed; new copies are inserted where a value is read on another device
_PASSING = frozenset({"relax.value", "relax.match_cast", "relax.Tuple", "relax.Call"})
_TYPES = ("tvm.type", "tvm.value_type")


def _index(scope: str) -> int | None:
    return int(scope.partition(":")[2]) if scope else None


def _with_target(function: Function, name: str, target: Any) -> Function:
    code = function.code
    if code is None:
        raise ModelError(f"function {function.name!r} is called, but neither code nor part of the program")
    prim = read_code(function)
    if "target" not in prim.attrs.keys():  # noqa: SIM118 - attributes of TVM are no mapping
        prim = prim.with_attr("target", target)
    return with_code(function, prim).replace(name=name)


def _target_of_call(call: CodeCall, target: Any) -> Any:
    """Return the target of a callee in code: the device without its host within a device scope, else the host.

    A device scope may name a target of its own.
    """
    if call.target is not None:
        return without_host(call.target)
    return target if target.host is None else without_host(target) if call.is_device else target.host
