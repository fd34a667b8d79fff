"""Options that several commands share, in groups: a command has a group as one parameter, a dataclass of options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import Any

__all__ = ["with_groups"]


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command in which each parameter that is a dataclass is replaced by its fields, as typer reads them."""
    described = signature(command, eval_str=True)
    options: list[Parameter] = []
    groups: dict[str, tuple[Callable[..., object], list[str]]] = {}
    for name, parameter in described.parameters.items():
        fields, group = [parameter], parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            fields = list(signature(group, eval_str=True).parameters.values())
            groups[name] = group, [field.name for field in fields]
        options += (field.replace(kind=Parameter.KEYWORD_ONLY) for field in fields)

    @wraps(command)
    def grouped(**given: Any) -> None:  # noqa: ANN401 - of each option its own type
        made = {
            name: group(**{field: given.pop(field) for field in fields}) for name, (group, fields) in groups.items()
        }
        command(**given, **made)

    grouped.__signature__ = described.replace(parameters=options)  # type: ignore[attr-defined]
    grouped.__annotations__ = {option.name: option.annotation for option in options}
    return grouped
