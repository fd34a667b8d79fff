"""Convert constraints from and to JSON: the flat form of targets, with objects of operators for values.

{"kind": "llvm", "num-cores": {"ge": 4}, "mattr": {"has": ["avx2"]}, "executor": {"kind": "aot"}}
{"kind": "composite", "targets": [{"name": "gpu", "kind": "cuda", "arch": {"in": ["sm_80", "sm_90"]}}]}
{"path": "rack/node0"}    {"any": [...]}    {"all": [...]}    {"not": {...}}    and "prefer" beside any of these
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tvmtarget.errors import Problem, TargetError
from tvmtarget.target.constraints import text as constraint_text
from tvmtarget.target.constraints.conditions import Condition, conditions_from_json, conditions_to_json
from tvmtarget.target.kinds import Role, kind_of
from tvmtarget.target.problems import Problems, shown

if TYPE_CHECKING:
    from tvmtarget.target.constraints.constraint import Constraint

__all__ = ["read", "write"]

_ROLES: dict[str, Role] = {"host": "target", "executor": "executor", "runtime": "runtime"}


def read(make: type[Constraint], data: object, role: Role = "target") -> Constraint:
    """Read a constraint from JSON data.

    Args:
        make: The class `Constraint`, whose module imports this one.
        data: An object as in the module docstring, or a text of the constraint grammar.
        role: Whether it constrains a node, an executor or a runtime.

    Returns:
        The constraint.

    Raises:
        TextError: A text does not follow the grammar.
        TargetError: The data has another form, or a condition is invalid; all problems of one object at once.
    """
    if isinstance(data, str):
        return make.parse(data) if role == "target" else constraint_text.read(make, data, role)
    if not isinstance(data, Mapping):
        raise TargetError(f"a constraint is a text or an object, not {shown(data)}")
    flat = {str(key): value for key, value in data.items()}
    weight = flat.pop("prefer", None)
    # Targets in JSON may omit the kind of a composite as well.
    if "targets" in flat and not flat.keys() & _HEADS.keys():
        flat["kind"] = "composite"
    heads = [head for head in _HEADS if head in flat]
    if len(heads) != 1:
        raise TargetError(f"a constraint has one of {', '.join(map(repr, _HEADS))}, not {shown(data)}")
    value = flat.pop(heads[0])
    if heads[0] != "kind" and flat:
        line = f"{shown(min(flat))} has no meaning beside {heads[0]!r}; attributes belong to a kind or a key"
        raise TargetError(Problem(line, (min(flat),)))
    read = _HEADS[heads[0]](make, value, flat, role)
    if read.weight is not None and weight is not None:
        raise TargetError(Problem(f"'prefer' is given twice in {shown(data)}", ("prefer",)))
    return read if weight is None else read.replace(weight=weight)


def _word(make: type[Constraint], word: object, flat: Mapping[str, object], role: Role) -> Constraint:
    if not isinstance(word, str):
        raise TargetError(Problem(f"'kind' is a kind or a key, not {shown(word)}", ("kind",)))
    if role != "target":
        kind_of(word, role)
    problems, conditions = Problems(), set[Condition]()
    parts: dict[str, Constraint] = {}
    children: tuple[tuple[str | None, Constraint], ...] = ()
    for name, value in flat.items():
        with problems.collect(loc=(name,)):
            if role == "target" and name in _ROLES:
                parts[name] = read(make, value, _ROLES[name])
            elif role == "target" and name == "targets":
                children = _children(make, value)
            else:
                conditions |= set(conditions_from_json(word, name, value, role))
    problems.raise_all()
    ordered = tuple(sorted(conditions, key=lambda condition: condition.order))
    return make(
        word=word,
        conditions=ordered,
        children=children,
        host=parts.get("host"),
        executor=parts.get("executor"),
        runtime=parts.get("runtime"),
    )


def _children(make: type[Constraint], data: object) -> tuple[tuple[str | None, Constraint], ...]:
    if not isinstance(data, list | tuple):
        raise TargetError(f"'targets' is a list of constraints, not {shown(data)}")
    found: list[tuple[str | None, Constraint]] = []
    problems = Problems()
    for at, child in enumerate(data):
        name = child.get("name") if isinstance(child, Mapping) else None
        if not isinstance(name, str | None):
            raise TargetError(Problem(f"'name' is the name of a child, not {shown(name)}", (at, "name")))
        unnamed = {key: value for key, value in child.items() if key != "name"} if name is not None else child
        with problems.collect(name or "", (at,)):
            found.append((name, read(make, unnamed)))
    problems.raise_all()
    return tuple(found)


def _path(make: type[Constraint], path: object, _: Mapping[str, object], role: Role) -> Constraint:
    if role != "target":
        raise TargetError(f"{role} is a kind with attributes, not a node")
    if not isinstance(path, str):
        raise TargetError(Problem(f"'path' is a path of names, not {shown(path)}", ("path",)))
    return make(path=path)


def _choice(make: type[Constraint], options: object, _: Mapping[str, object], role: Role) -> Constraint:
    read = _several(make, "any", options, role)
    return read[0] if len(read) == 1 else make(any_of=read)


def _conjunction(make: type[Constraint], parts: object, _: Mapping[str, object], role: Role) -> Constraint:
    read = _several(make, "all", parts, role)
    return read[0] if len(read) == 1 else make(all_of=read)


def _several(make: type[Constraint], head: str, data: object, role: Role) -> tuple[Constraint, ...]:
    if not isinstance(data, list | tuple) or not data:
        raise TargetError(Problem(f"{head!r} is a list of constraints, not {shown(data)}", (head,)))
    found: list[Constraint] = []
    problems = Problems()
    for at, part in enumerate(data):
        with problems.collect(loc=(head, at)):
            found.append(read(make, part, role))
    problems.raise_all()
    return tuple(found)


def _negation(make: type[Constraint], data: object, _: Mapping[str, object], role: Role) -> Constraint:
    problems = Problems()
    with problems.collect(loc=("not",)):
        negated = read(make, data, role)
    problems.raise_all()
    if negated.weight is not None:
        raise TargetError(Problem(f"'prefer' belongs outside of 'not', not in {shown(data)}", ("not", "prefer")))
    return negated.replace(is_negated=not negated.is_negated)


_HEADS: dict[str, Callable[[type[Constraint], object, Mapping[str, object], Role], Constraint]] = {
    "kind": _word,
    "path": _path,
    "any": _choice,
    "all": _conjunction,
    "not": _negation,
}


def write(constraint: Constraint) -> dict[str, object]:
    """Convert a constraint to JSON data.

    Args:
        constraint: The constraint.

    Returns:
        An object from which `read` makes an equal constraint.
    """
    flat: dict[str, object] = {} if constraint.weight is None else {"prefer": constraint.weight}
    if constraint.is_negated:
        return flat | {"not": write(constraint.replace(is_negated=False, weight=None))}
    if constraint.any_of:
        return flat | {"any": [write(option) for option in constraint.any_of]}
    if constraint.all_of:
        return flat | {"all": [write(part) for part in constraint.all_of]}
    if constraint.path is not None:
        return flat | {"path": constraint.path}
    flat |= {"kind": constraint.word} | conditions_to_json(str(constraint.word), constraint.conditions)
    if constraint.children:
        names = [{} if name is None else {"name": name} for name, _ in constraint.children]
        flat["targets"] = [name | write(child) for name, (_, child) in zip(names, constraint.children, strict=True)]
    return flat | {name: write(part) for name, part in constraint.parts()}
