"""Groups of options that several commands share: a command takes a group as one dataclass parameter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import Any

__all__ = ["with_option_groups"]


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each dataclass parameter of a command by the fields of the dataclass.

    Typer reads the signature of a command and has no parameter type for groups. The returned function has a flat
    signature, and calls the command with the dataclasses made of its arguments.

    Args:
        command: A function whose parameters are annotated as typer reads them, or with a dataclass whose fields are.

    Returns:
        A function for `typer.Typer.command`; all of its parameters are keyword-only.
    """
    # Annotations are texts here (`from __future__ import annotations`), and Typer needs the objects.
    described = signature(command, eval_str=True)
    options: list[Parameter] = []
    groups: dict[str, tuple[Callable[..., object], list[str]]] = {}
    for name, parameter in described.parameters.items():
        fields, group = [parameter], parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            fields = list(signature(group, eval_str=True).parameters.values())
            groups[name] = group, [field.name for field in fields]
        # Keyword-only parameters with and without defaults may follow each other in any order.
        options += (field.replace(kind=Parameter.KEYWORD_ONLY) for field in fields)

    @wraps(command)
    def flat(**values: Any) -> None:  # noqa: ANN401 - of each option its own type
        made = {
            name: group(**{field: values.pop(field) for field in fields}) for name, (group, fields) in groups.items()
        }
        command(**values, **made)

    flat.__signature__ = described.replace(parameters=options)  # type: ignore[attr-defined]
    flat.__annotations__ = {option.name: option.annotation for option in options}
    return flat
