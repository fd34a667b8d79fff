"""Write the element types for which ONNX Runtime has kernels on the CPU, `support/data/onnxruntime_kernels.json`.

Run as `python -m tests.tools.derive_onnxruntime` with the package `onnxruntime` installed, whose list of kernels it
reads. Which kernel serves an operation is decided as in `core/framework/kernel_registry.cc` of ONNX Runtime: by the
version of the operator and the types of its parameters; operations of float16 without a kernel are computed in float32
(`core/optimizer/insert_cast_transformer.cc`). Operators that are functions of others run by those, so that each choice
of types is tried in sessions, on a model of ONNX's node tests. A function is not taken for models of an operator set in
which an operator of its body has another version, so that a model of each operator set is tried.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from onnx import ModelProto
from onnx.defs import OpSchema
from onnxruntime.capi import onnxruntime_pybind11_state as state

sys.path.insert(0, str(Path(__file__).parents[1] / "backends"))

from conformance import node_cases

from tvmtarget.support.builtin import ONNXRUNTIME

FILE = Path(__file__).parents[2] / "tvmtarget/support/data/onnxruntime_kernels.json"

# Element types, by the names in ONNX's schemas.
TYPES = {
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "bool": "bool",
    "string": "string",
    "float16": "float16",
    "float": "float32",
    "double": "float64",
}
NUMBERS = {new: onnx.TensorProto.DataType.Value(old.upper()) for old, new in TYPES.items()}

Types = tuple[str, ...]
Row = tuple[frozenset[str], ...]


def main() -> None:
    """Write the file."""
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(derived(), encoding="utf-8")


def derived() -> str:
    """Return the text of the file."""
    kernels = _kernels()
    models = _models()
    found: dict[str, dict[str, dict[int, Any]]] = defaultdict(lambda: defaultdict(dict))
    newest = ONNXRUNTIME.opsets[-1]
    for schema in onnx.defs.get_all_schemas_with_history():
        domain, name, since = schema.domain, schema.name, schema.since_version
        if domain not in ("", "ai.onnx.ml") or schema.deprecated or (not domain and since > newest):
            continue
        parameters = _parameters(schema)
        if parameters is None:
            continue
        choices = dict.fromkeys(product(*(sorted(types) for types, _ in parameters.values())), False)
        is_function = schema.has_function or schema.has_context_dependent_function
        opsets = _opsets(schema) if is_function else []
        model = models.get((domain, name, since))
        if model is None:
            others = (one for (*operator, _), one in models.items() if operator == [domain, name])
            model = next((one for one in others if _runs(one, opsets, schema, {})), None)
        if is_function and model is None:
            continue
        for types in choices:
            stated = dict(zip(parameters, types, strict=True))
            choices[types] = (
                _runs(model, opsets, schema, stated)
                if is_function and model is not None
                else any(_matches(kernels[domain, name], since, one) for one in _computed(stated))
            )
        if not all(choices.values()):
            rows = _merged(types for types, is_supported in choices.items() if is_supported)
            operands = [operands for _, operands in parameters.values()]
            found[domain][name][since] = [operands, [[sorted(types) for types in row] for row in rows]]
    lines = [
        f"{json.dumps(f'{domain}::{name}' if domain else name)}: {json.dumps(versions)}"
        for domain, operators in sorted(found.items())
        for name, versions in sorted(operators.items())
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _kernels() -> Mapping[tuple[str, str], list[Any]]:
    found: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for kernel in state.get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider":
            domain = "" if kernel.domain == "ai.onnx" else kernel.domain
            found[domain, kernel.op_name].append(kernel)
    return found


def _parameters(schema: OpSchema) -> dict[str, tuple[set[str], list[int]]] | None:
    """Return the types of each type parameter, and its operands; results count from -1 downwards.

    None where the operands are lists of several types, or no tensor.
    """
    allowed = {one.type_param_str: one.allowed_type_strs for one in schema.type_constraints}
    found: dict[str, tuple[set[str], list[int]]] = {}
    for values, numbers in ((schema.inputs, range(99)), (schema.outputs, range(-1, -99, -1))):
        for number, value in zip(numbers, values, strict=False):
            if value.type_str not in allowed:
                continue
            names = [one.removeprefix("tensor(").removesuffix(")") for one in allowed[value.type_str]]
            if not value.is_homogeneous or not set(TYPES).intersection(names):
                return None
            types = {TYPES[name] for name in names if name in TYPES}
            found.setdefault(value.type_str, (types, []))[1].append(number)
    return found


def _computed(types: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Yield the types of an operation, and those in which it is computed instead."""
    yield types
    if "float16" in types.values():
        yield {name: "float32" if one == "float16" else one for name, one in types.items()}


def _matches(kernels: Iterable[Any], since: int, types: Mapping[str, str]) -> bool:
    spelled = {new: old for old, new in TYPES.items()}
    for kernel in kernels:
        first, last = kernel.version_range
        # A kernel without a last version is not taken for versions that came after it.
        is_version = first == since or (first < since <= last < 2**31 - 1)
        limits = kernel.type_constraints
        wanted = {name: f"tensor({spelled[one]})" for name, one in types.items()}
        if is_version and all(one in limits.get(name, (one,)) for name, one in wanted.items()):
            return True
    return False


def _models() -> dict[tuple[str, str, int], ModelProto]:
    """Return a model of a single operation of most operators and versions, with most operands and least attributes."""
    found: dict[tuple[str, str, int], ModelProto] = {}
    for case in node_cases():
        if len(case.model.graph.node) == 1:
            (node,) = case.model.graph.node
            version = next((one.version for one in case.model.opset_import if one.domain == node.domain), None)
            if version is not None and onnx.defs.has(node.op_type, node.domain):
                schema = onnx.defs.get_schema(node.op_type, version, node.domain)
                old = found.get((node.domain, node.op_type, schema.since_version))
                if old is None or _completeness(old.graph.node[0]) < _completeness(node):
                    found[node.domain, node.op_type, schema.since_version] = case.model
    return found


def _completeness(node: onnx.NodeProto) -> tuple[int, int]:
    return (sum(map(bool, node.input)), -len(node.attribute))


def _opsets(schema: OpSchema) -> list[int]:
    """Return the operator sets in which an operator has one version."""
    domain, name, since = schema.domain, schema.name, schema.since_version
    versions = range(max(since, 7), ONNXRUNTIME.opsets[-1] + 1) if not domain else (since,)
    return [one for one in versions if onnx.defs.get_schema(name, one, domain).since_version == since]


def _runs(model: ModelProto, opsets: Iterable[int], schema: OpSchema, types: Mapping[str, str]) -> bool:
    """Return whether sessions of a model can be made in some operator sets after its operation got other types."""
    changed = ModelProto()
    changed.CopyFrom(model)
    (node,) = changed.graph.node
    values = {value.name: value for value in (*changed.graph.input, *changed.graph.output)}
    for names, formals in ((node.input, schema.inputs), (node.output, schema.outputs)):
        for at, name in enumerate(names):
            one = types.get(formals[min(at, len(formals) - 1)].type_str)
            if one and name:
                values[name].type.tensor_type.elem_type = NUMBERS[one]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        for opset in opsets:
            del changed.opset_import[:]
            changed.opset_import.append(onnx.helper.make_opsetid(schema.domain, opset))
            onnxruntime.InferenceSession(changed.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:
        return False
    return True


def _merged(choices: Iterable[Types]) -> list[Row]:
    """Return products of sets of types that have the given choices between them."""
    rows = {tuple(frozenset({one}) for one in types) for types in choices}
    for at in range(len(next(iter(rows), ()))):
        groups: dict[Row, set[str]] = defaultdict(set)
        for row in rows:
            groups[row[:at] + row[at + 1 :]].update(row[at])
        rows = {(*others[:at], frozenset(types), *others[at:]) for others, types in groups.items()}
    return sorted(rows, key=lambda row: [sorted(types) for types in row])


if __name__ == "__main__":
    main()
