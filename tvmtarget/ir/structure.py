"""Structural hash of functions and modules, and the first structural difference of two.

Names of values, calls, symbolic dimensions and private functions do not matter, nor where operations came from. These
matter: the order of parameters and results, operators with attributes and the versions of the operator sets used,
types, constants by type and digest, nested bodies, and, unless left out, constraints and memory scopes. Function
attributes that begin with `onnx.` only document the source and do not matter.

The order of independent operations does not matter: they are numbered from the results backwards, in the order of
operands. Three orders are kept as written: of operations with effects, of operations whose results are not read (remove
them first), and of operands, also of commutative operators.

`structural_hash` is "s1:" and the SHA-256 of the RFC 8785 (canonical JSON) bytes of the body. All of this takes linear
time.

`op_fingerprint` identifies a single operation in the same sense. Partitioning computes it for every operation, compares
operations of different functions by it, and derives canonical orders and the names of subgraph functions from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tvmtarget.errors import ModelError
from tvmtarget.ir.entry_function import OWN_NAME
from tvmtarget.ir.function import (
    CALLEES,
    CODE,
    DIMS,
    OPS,
    Attribute,
    Call,
    Constant,
    Function,
    Value,
    callees_first,
    callees_of,
    code_callees,
    domain_of_op,
    reachable_functions,
)
from tvmtarget.ir.json_form import write_value
from tvmtarget.ir.text.printer import MAX_DEPTH
from tvmtarget.ir.types import MapType, OptionalType, SequenceType, SparseType, TensorType, Type
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.identity import canonical, identity_of

if TYPE_CHECKING:
    from tvmtarget.ir.module import IRModule

__all__ = [
    "OpFingerprint",
    "difference",
    "module_hash",
    "op_fingerprint",
    "structural_hash",
    "structurally_equal",
    "structure_of",
    "type_pattern",
]

SCHEMA = 1
# Prefix of function attributes that document the source model (`onnx/metadata.py`).
_METADATA = "onnx."
# Attributes that compilers write on functions, under any prefix: they say where and how to run, not what to compute.
_MARKS = frozenset({"target", "role", OWN_NAME, "global_symbol", "op_pattern", "num_unpacked_args", "is_scheduled"})


def structure_of(
    function: Function,
    functions: Mapping[str, Function] | None = None,
    *,
    constraints: bool = False,
    shapes: bool = True,
    weights: bool = True,
    marks: bool = True,
) -> dict[str, object]:
    """Return the canonical body of a function as JSON data.

    Args:
        function: the function.
        functions: functions that it may call; they stand in the body by hash. Callees that are missing stand by name.
        constraints: include constraints and memory scopes.
        shapes: include dimensions; otherwise a type is an element type and a rank, and a constant is its type.
        weights: include the elements of floating-point constants with more than one element.
        marks: include what compilers write on functions about targets, symbols and schedules.

    Returns:
        The body; equal bodies mean equal structure.

    Raises:
        ModelError: a function calls itself, or bodies are nested too deep.
    """
    options = _Options(constraints, shapes, weights, marks)
    known = functions or {}
    return _Writer(options, _hashes([function], known, options), known).function(function)


def structural_hash(
    function: Function,
    functions: Mapping[str, Function] | None = None,
    *,
    strip_constraints: bool = False,
    shapes: bool = True,
    weights: bool = True,
    marks: bool = True,
) -> str:
    """Return the hash of a function's structure.

    Args:
        function: the function.
        functions: functions that it may call.
        strip_constraints: leave out constraints and memory scopes.
        shapes: as in `structure_of`.
        weights: as in `structure_of`.
        marks: as in `structure_of`.

    Returns:
        "s1:" and a SHA-256 in hexadecimal.
    """
    options = {"constraints": not strip_constraints, "shapes": shapes, "weights": weights, "marks": marks}
    return _hash(structure_of(function, functions, **options))


def module_hash(module: IRModule) -> str:
    """Return the structural hash of a module.

    Args:
        module: the module.

    Returns:
        "s1:" and a SHA-256 in hexadecimal of target, attributes, `main`, and functions that nothing calls, by name.
    """
    hashes = _hashes(module.functions, module.by_name, _Options())
    flat: dict[str, object] = {"functions": {name: hashes[name] for name in sorted(_public(module))}}
    flat["attrs"] = [[name, write_value(value, name)] for name, value in sorted(module.attrs.items())]
    return _hash(flat | ({} if module.target is None else {"target": identity_of(module.target.resolve())}))


def structurally_equal(a: IRModule | Function, b: IRModule | Function) -> bool:
    """Return whether two modules, or two functions, have equal structure.

    Args:
        a: a module or function.
        b: another one of the same type.

    Returns:
        True if `difference` finds none.
    """
    return difference(a, b) is None


def difference(a: IRModule | Function, b: IRModule | Function) -> str | None:
    """Describe the first structural difference of two modules or functions.

    Args:
        a: a module or function; callees of functions are compared by name.
        b: another one of the same type.

    Returns:
        A description with function, op and field; None if there is no difference.

    Raises:
        TypeError: a module is compared with a function.
    """
    if isinstance(a, Function) and isinstance(b, Function):
        return _differing(a, b, {}, {})
    if isinstance(a, Function) or isinstance(b, Function):
        raise TypeError("a module is compared with a module, a function with a function")
    if sorted(_public(a)) != sorted(_public(b)):
        return f"functions: {', '.join(sorted(_public(a)))}, not {', '.join(sorted(_public(b)))}"
    for name in sorted(_public(a)):
        found = _differing(a[name], b[name], a.by_name, b.by_name)
        if found is not None:
            return found
    if module_hash(a) != module_hash(b):
        return "attributes differ" if dict(a.attrs) != dict(b.attrs) else f"target: {a.target}, not {b.target}"
    return None


@dataclass(frozen=True, slots=True)
class OpFingerprint:
    """Name-independent identity of one operation, the same in every program and process.

    Attributes:
        text: 16 hexadecimal digits.
        dims: symbolic dimensions of its types in order of occurrence. They are not part of `text`: whoever compares
            several operations must compare which dimensions are equal.
    """

    text: str
    dims: tuple[str, ...] = ()


def op_fingerprint(call: Call, types: Mapping[str, Type], is_read: Callable[[str], bool]) -> OpFingerprint:
    """Compute the fingerprint of an operation from operator, attributes, types and used results.

    Nested bodies are left out.

    Args:
        call: the operation.
        types: types of values by name.
        is_read: whether a value, by name, is read or returned.

    Returns:
        The fingerprint. Its text is part of the names of subgraph functions and must not change.
    """
    dims: list[str] = []
    body = (
        call.op,
        call.has_effect,
        tuple(_plain_attributes(call.attrs)),
        tuple(type_pattern(types.get(name), dims) for name in call.inputs),
        tuple((type_pattern(types.get(output.name), dims), is_read(output.name)) for output in call.outputs),
    )
    text = hashlib.sha256(repr(body).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return OpFingerprint(text, tuple(dims))


def type_pattern(type_: Type, dims: list[str]) -> str:
    """Write a type as text without the names of its symbolic dimensions.

    Args:
        type_: the type.
        dims: list that the symbolic dimensions are appended to, in order of occurrence.

    Returns:
        Text such as `float32[$,64]`.
    """
    match type_:
        case TensorType(dtype, shape) if shape is not None:
            dims += (dim for dim in shape if isinstance(dim, str))
            return f"{dtype}[{','.join('$' if isinstance(dim, str) else str(dim) for dim in shape)}]"
        case SequenceType(element):
            return f"sequence({type_pattern(element, dims)})"
        case OptionalType(element):
            return f"optional({type_pattern(element, dims)})"
        case MapType(key, value):
            return f"map({key},{type_pattern(value, dims)})"
        case SparseType(tensor):
            return f"sparse({type_pattern(tensor, dims)})"
        case _:
            return str(type_)


def _plain_attributes(attrs: Sequence[tuple[str, Attribute]]) -> Iterator[Hashable]:
    """Yield attributes with tensors replaced by their type and digest."""
    for name, value in attrs:
        items = value if isinstance(value, tuple) else (value,)
        plain = tuple((str(item.type), item.digest) if isinstance(item, Constant) else item for item in items)
        yield name, type(value).__name__, plain


def _public(module: IRModule) -> set[str]:
    called = {name for function in module for name in callees_of(function)}
    public = {function.name for function in module if function.name == "main" or function.name not in called}
    # Code that only calls itself is reached from nowhere; it counts as public, so that the hash covers it.
    return public | (module.by_name.keys() - set(reachable_functions(public, module.by_name)))


def _hash(body: object) -> str:
    return f"s{SCHEMA}:{hashlib.sha256(canonical(body).encode('utf-8', 'surrogatepass')).hexdigest()}"


@dataclass(frozen=True, slots=True)
class _Options:
    constraints: bool = True
    shapes: bool = True
    weights: bool = True
    marks: bool = True


def _hashes(roots: Iterable[Function], functions: Mapping[str, Function], options: _Options) -> dict[str, str]:
    """Return the hash of each function that the roots call, and of the roots that are among `functions`."""
    hashes: dict[str, str] = {}
    for function in callees_first(roots, functions):
        hashes[function.name] = _hash(_Writer(options, hashes, functions).function(function))
    return hashes


@dataclass(frozen=True, slots=True)
class _Order:
    """The calls of a function in canonical order, by index, and what it reads from outside by first use."""

    calls: tuple[int, ...]
    outside: tuple[str, ...]


@dataclass
class _Writer:
    """Writes canonical bodies; symbolic dimensions are numbered by first use over a function and its nested bodies."""

    options: _Options
    hashes: Mapping[str, str]
    functions: Mapping[str, Function] = field(default_factory=dict)
    symbols: dict[str, int] = field(default_factory=dict)
    orders: dict[int, _Order] = field(default_factory=dict)

    def function(
        self, function: Function, around: Mapping[str, str] | None = None, depth: int = 0
    ) -> dict[str, object]:
        if depth > MAX_DEPTH:
            raise ModelError(f"functions are nested deeper than {MAX_DEPTH} levels (function {function.name!r})")
        order = self.order(function, depth)
        # Each level of nesting adds a ^, so that a value of an enclosing body never equals one of this body.
        names = {name: f"^{reference}" for name, reference in (around or {}).items()}
        names |= {param.name: f"p{number}" for number, param in enumerate(function.params)}
        constants = _Constants({constant.name: constant for constant in function.constants})
        flat: dict[str, object] = {"params": [self.typed(param) for param in function.params]}
        calls: list[object] = []
        numbers: dict[int, int] = {}
        for number, index in enumerate(order.calls):
            call = function.body[index]
            numbers[index] = number
            calls.append(self.call(call, names, constants, depth))
            names |= {output.name: f"v{number}.{k}" for k, output in enumerate(call.outputs) if output.name}
        flat["calls"] = calls
        flat["results"] = [_refer(name, names, constants) for name in function.results]
        flat["constants"] = [self.constant(constant) for constant in constants.used]
        # The order of effects is part of the structure, though the order of other independent operations is not.
        effects = [numbers[index] for index, call in enumerate(function.body) if call.has_effect]
        # Versions of operator sets that no operation uses do not matter.
        domains = {_domain(call.op) for call in function.body}
        flat |= {"effects": effects} if effects else {}
        flat["opsets"] = sorted([domain, version] for domain, version in function.opsets if domain in domains)
        attrs = ((name, value) for name, value in function.attrs if not name.startswith(_METADATA))
        flat["attrs"] = sorted([name, write_value(value, name)] for name, value in attrs if self.is_included(name))
        if self.functions and code_callees(function):
            flat["code"] = self.called_code(function)
        return flat | self.constraint(function.constraint)

    def call(self, call: Call, names: dict[str, str], constants: _Constants, depth: int) -> dict[str, object]:
        callee = None if call.callee is None else self.hashes.get(call.callee)
        flat: dict[str, object] = {"op": call.op} if callee is None else {"callee": callee}
        flat["inputs"] = [_refer(name, names, constants) for name in call.inputs]
        flat["outputs"] = [self.typed(output) for output in call.outputs]
        # Aliases only name dimensions and operations of the callee at this call, and names do not matter.
        attrs = [(name, value) for name, value in call.attrs if call.callee is None or name not in (DIMS, OPS)]
        attrs = [item for item in attrs if not self.functions or call.op != CODE or item[0] != CALLEES]
        if attrs:
            flat["attrs"] = sorted(([name, self.value(value, name)] for name, value in attrs), key=_first)
        if call.regions:
            outside = {
                name: _refer(name, names, constants)
                for _, region in call.regions
                for name in self.order(region, depth + 1).outside
            }
            regions = [[label, self.function(region, outside, depth + 1)] for label, region in call.regions]
            flat["regions"] = sorted(regions, key=_first)
        return flat | self.constraint(call.constraint)

    def called_code(self, function: Function) -> list[object]:
        """Return a function of code and the code that it can reach, numbered in order of discovery.

        Code may recurse, so that its callees cannot stand in it by hash.
        """
        members, numbers, rows = [function], {function.name: 0}, list[object]()
        for member in members:  # breadth-first: members grows during the iteration
            calls: list[object] = []
            for used, name in code_callees(member).items():
                if name not in numbers and name in self.functions:
                    numbers[name] = len(members)
                    members.append(self.functions[name])
                calls.append([used, numbers.get(name, name)])
            rows.append([_Writer(self.options, {}).function(_without_callees(member)), calls])
        return rows

    def order(self, function: Function, depth: int) -> _Order:
        """Return the canonical order of the calls of a function; it is computed once."""
        if id(function) not in self.orders:
            if depth > MAX_DEPTH:
                raise ModelError(f"functions are nested deeper than {MAX_DEPTH} levels (function {function.name!r})")
            self.orders[id(function)] = self._compute_order(function, depth)
        return self.orders[id(function)]

    def _compute_order(self, function: Function, depth: int) -> _Order:
        """Compute a depth-first postorder from the results, then effects, then all other calls."""
        producer = {out.name: i for i, call in enumerate(function.body) for out in call.outputs if out.name}
        own = {param.name for param in function.params} | function.constant_names
        outside: dict[str, None] = {}
        done: dict[int, None] = {}
        effects = [index for index, call in enumerate(function.body) if call.has_effect]

        def needed(names: Iterable[str]) -> Iterator[int]:
            for name in names:
                if name in producer:
                    yield producer[name]
                elif name and name not in own:
                    outside.setdefault(name)

        def reads(call: Call) -> Iterator[str]:
            yield from call.inputs
            for _, region in sorted(call.regions, key=_first):
                yield from self.order(region, depth + 1).outside

        # Iterative, since a chain of operations may be longer than the recursion limit. Results come first, so that the
        # order depends on operands only; effects keep their order, and so do operations that nothing reads.
        stack = [iter([*needed(function.results), *effects, *range(len(function.body))])]
        path: list[int] = []
        entered: set[int] = set()
        while stack:
            index = next((index for index in stack[-1] if index not in entered), None)
            if index is not None:
                entered.add(index)
                path.append(index)
                stack.append(needed(reads(function.body[index])))
            else:
                stack.pop()
                if path:
                    done[path.pop()] = None
        return _Order(tuple(done), tuple(outside))

    def typed(self, value: Value) -> object:
        type_ = self.type(value.type)
        return [type_, value.scope] if value.scope and self.options.constraints else [type_]

    def type(self, type_: Type) -> object:
        match type_:
            case TensorType(dtype, None):
                return [dtype]
            case TensorType(dtype, shape) if shape is not None:
                return [dtype, [self.dim(dim) for dim in shape] if self.options.shapes else len(shape)]
            case SequenceType(element):
                return ["sequence", self.type(element)]
            case OptionalType(element):
                return ["optional", self.type(element)]
            case MapType(key, value):
                return ["map", key, self.type(value)]
            case SparseType(tensor):
                return ["sparse", self.type(tensor)]
            case _:
                return None if type_ is None else str(type_)

    def dim(self, dim: int | str | None) -> object:
        return f"s{self.symbols.setdefault(dim, len(self.symbols))}" if isinstance(dim, str) else dim

    def constant(self, constant: Constant) -> object:
        is_weight = "float" in constant.type.dtype and constant.data.size > 1
        if self.options.shapes and (self.options.weights or not is_weight):
            return [self.type(constant.type), constant.digest]
        return [self.type(constant.type)]

    def value(self, value: object, name: str) -> object:
        if isinstance(value, Constant):
            return {"tensor": self.constant(value)}
        if isinstance(value, tuple) and any(isinstance(item, Constant) for item in value):
            return [self.value(item, name) for item in value]
        return write_value(value, name)

    def is_included(self, attribute: str) -> bool:
        return self.options.marks or attribute.rsplit(".", 1)[-1] not in _MARKS

    def constraint(self, constraint: Constraint | None) -> dict[str, object]:
        return {} if constraint is None or not self.options.constraints else {"constraint": str(constraint)}


@dataclass
class _Constants:
    """The constants of one function, numbered by first use."""

    by_name: Mapping[str, Constant]
    used: list[Constant] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, name: str) -> int:
        if name not in self.numbers:
            self.numbers[name] = len(self.used)
            self.used.append(self.by_name[name])
        return self.numbers[name]


def _without_callees(function: Function) -> Function:
    (call,) = function.body
    return function.replace(body=(replace(call, attrs=tuple(item for item in call.attrs if item[0] != CALLEES)),))


def _refer(name: str, names: Mapping[str, str], constants: _Constants) -> str:
    if name in constants.by_name:
        return f"c{constants.number(name)}"
    return names.get(name, f"?{name}") if name else ""


def _first(pair: Iterable[object]) -> str:
    return str(next(iter(pair)))


def _domain(op: str) -> str:
    """Return the operator set of an operator: the domain of an ONNX one, else its dialect."""
    return domain_of_op(op) or ("" if op.startswith("onnx.") else op.split(".")[0])


def _differing(
    a: Function, b: Function, others_a: Mapping[str, Function], others_b: Mapping[str, Function]
) -> str | None:
    one = structure_of(a, others_a, constraints=True)
    two = structure_of(b, others_b, constraints=True)
    found = _first_difference(one, two, ())
    if found is None:
        return None
    path, what = found
    if len(path) >= 2 and path[0] == "calls":
        number = int(str(path[1]))
        call_a, call_b = (function.body[_order_of(function)[number]] for function in (a, b))
        if path[2:] == ("callee",) and call_a.callee and call_b.callee:
            return _differing(others_a[call_a.callee], others_b[call_b.callee], others_a, others_b)
        rest = " ".join(map(str, path[2:]))
        return f"function {a.name!r}, op {call_a.source or call_a.op!r}, {rest}: {what}"
    return f"function {a.name!r}, {' '.join(map(str, path))}: {what}"


def _order_of(function: Function) -> tuple[int, ...]:
    return _Writer(_Options(), {}).order(function, 0).calls


def _first_difference(a: object, b: object, path: tuple[object, ...]) -> tuple[tuple[object, ...], str] | None:
    """Return the path to the first difference of two JSON values, and its description."""
    if isinstance(a, dict) and isinstance(b, dict):
        steps: Iterable[tuple[object, object, object]] = ((key, a.get(key), b.get(key)) for key in sorted({*a, *b}))
    elif isinstance(a, list) and isinstance(b, list):
        steps = ((k, x, y) for k, (x, y) in enumerate(zip(a, b, strict=False)))
    else:
        same = a == b and type(a) is type(b)
        return None if same else (path, f"{_shown(a)}, not {_shown(b)}")
    for key, x, y in steps:
        found = _first_difference(x, y, (*path, key))
        if found is not None:
            return found
    # Lengths come last: the first differing item says more than a number of items.
    if isinstance(a, list) and isinstance(b, list) and len(a) != len(b):
        return path, f"{len(a)} of them, not {len(b)}"
    return None


def _shown(value: object) -> str:
    return "none" if value is None else value if isinstance(value, str) else canonical(value)
