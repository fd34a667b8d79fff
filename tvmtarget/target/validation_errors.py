"""Errors of pydantic in the words of this library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from tvmtarget.errors import Problem, TargetError, TvmTargetError, did_you_mean
from tvmtarget.target.problems import shown

__all__ = ["no_field", "own_error", "words_of"]

# Messages of this library for the types of pydantic's errors.
_EXPECTED = {
    "string_type": "is text",
    "string_unicode": "is text without halves of surrogate pairs",
    "int_type": "is a whole number",
    "bool_type": "is true or false",
    "tuple_type": "is a list",
    "greater_than_equal": "is at least {ge}",
    "less_than_equal": "is at most {le}",
}


def own_error(node: type[BaseModel], error: ValidationError) -> TvmTargetError:
    """Return an error of pydantic as one of this library.

    The error of a check of this library, which pydantic keeps in the context of its own error, is returned as it is.

    Args:
        node: the class of the value.
        error: the error of pydantic.

    Returns:
        That error, or else one that describes what pydantic found itself in the words of this library.
    """
    problems = error.errors(include_url=False)
    raised = (problem.get("ctx", {}).get("error") for problem in problems)
    own = next((one for one in raised if isinstance(one, TvmTargetError)), None)
    return own or TargetError(*(Problem.within(problem["loc"], _describe(node, problem)) for problem in problems))


def _describe(node: type[BaseModel], problem: Mapping[str, Any]) -> str:
    what, field = words_of(node), ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        return f"{what} needs {shown(field)}, and {shown(problem['input'])} has none"
    if problem["type"] == "extra_forbidden":
        return no_field(node, field)
    expected = _EXPECTED.get(problem["type"], "is not right ({})").format(problem["msg"], **problem.get("ctx", {}))
    return f"{shown(field)} of {what} {expected}, not {shown(problem['input'])}"


def no_field(node: type[BaseModel], field: str) -> str:
    """Return the message about a field that a class does not have.

    Args:
        node: the class.
        field: the name that was written.

    Returns:
        The message, with the nearest names.
    """
    names = [info.alias or name for name, info in node.model_fields.items()]
    tail = did_you_mean(field, names, listing="it has")
    return f"{words_of(node)} has no field {shown(field)}{tail}"


def words_of(node: type[BaseModel]) -> str:
    """Return the name of a class in words with an article, as in `a virtual device`.

    Args:
        node: the class.

    Returns:
        The words.
    """
    name = re.sub("(?<=[a-z])(?=[A-Z])", " ", node.__name__).lower()
    return f"{'an' if name[0] in 'aeio' else 'a'} {name}"
