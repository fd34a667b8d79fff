"""Check the arguments of public functions against the types that their annotations state.

A class of the library, a text, a number, a flag, a path, a function, and mappings and sequences of these are checked.
Arguments that a function reads in many forms, such as targets and programs, have aliases or classes of other packages
as annotations; the function that reads these forms reports wrong ones.
"""

from __future__ import annotations

import ast
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from tvmtarget.errors import ArgumentError, raise_all
from tvmtarget.target.problems import shown

__all__ = ["check_arguments", "check_methods"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Class = TypeVar("_Class", bound=type)
_Function = Callable[..., Any]

# What a class accepts, and its name in messages for one value and for several. A flag is no number, though a bool is an
# int in Python, and numbers of numpy are numbers.
_BASIC: Mapping[type, tuple[Callable[[object], bool], str, str]] = {
    str: (lambda value: isinstance(value, str), "a text", "texts"),
    bytes: (lambda value: isinstance(value, bytes), "bytes", "bytes"),
    bool: (lambda value: type(value).__name__ in ("bool", "bool_"), "True or False", "flags"),
    int: (lambda value: isinstance(value, Integral) and not isinstance(value, bool), "a whole number", "whole numbers"),
    float: (lambda value: isinstance(value, Real) and not isinstance(value, bool), "a number", "numbers"),
    NoneType: (lambda value: value is None, "None", "None"),
}
_GENERIC = {"tuple": tuple, "list": list, "dict": dict}
_TEXTS = (str, bytes)  # sequences of Python, but not meant by an annotation that says sequence
_BASIC_NAMES = {"a path", *(one for _, one, _ in _BASIC.values())}
_BUILTINS = {"str": str, "bytes": bytes, "bool": bool, "int": int, "float": float}


def _no_elements(_value: object) -> Iterator[tuple[object, _Accepted, object]]:
    return iter(())


@dataclass(frozen=True, slots=True)
class _Accepted:
    """Values that an annotation admits, with their names in messages.

    Attributes:
        admits: returns whether a value is one of them, apart from its elements.
        one: the name of one value.
        many: the name of several.
        elements: yields the key or index of each element, what it has to be, and the element.
        is_reading: whether the function reads a class from texts too, so that it reports wrong elements itself.
    """

    admits: Callable[[Any], bool]
    one: str
    many: str
    elements: Callable[[Any], Iterator[tuple[object, _Accepted, object]]] = _no_elements
    is_reading: bool = False

    def wrong_part(self, value: object, place: str = "") -> tuple[str, str, object] | None:
        """Return the place of a value or element of another type, what is expected there, and the value; else None."""
        if not self.admits(value):
            return place, self.one, value
        if self.elements is _no_elements:
            return None
        parts = (part.wrong_part(one, f"{place}[{key!r}]") for key, part, one in self.elements(value))
        return next((part for part in parts if part is not None), None)


def check_arguments(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Make a function raise `ArgumentError` for arguments of other types than annotated.

    Args:
        function: a function or method, whose annotations are strings (`from __future__ import annotations`).

    Returns:
        The function with the check; annotations are read at the first call.
    """
    found: list[_Signature] = []

    @functools.wraps(function)
    def checked(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        if not found:
            found.append(_Signature.of(function))
        if wrong := found[0].problems(args, kwargs):
            raise_all(ArgumentError, wrong)
        return function(*args, **kwargs)

    return checked


def check_methods(*omitted: str) -> Callable[[_Class], _Class]:
    """Decorate a class: apply `check_arguments` to its constructor and public methods.

    Args:
        *omitted: methods that check their arguments themselves, or are called so often that a check is too slow.

    Returns:
        The decorator.
    """

    def decorate(cls: _Class) -> _Class:
        for name, method in list(vars(cls).items()):
            if name in omitted or (name.startswith("_") and name != "__init__"):
                continue
            if isinstance(method, classmethod | staticmethod):
                setattr(cls, name, type(method)(check_arguments(method.__func__)))
            elif inspect.isfunction(method):
                setattr(cls, name, check_arguments(method))
        return cls

    return decorate


@dataclass(frozen=True, slots=True)
class _Signature:
    """What the parameters of a function accept; None for one that the function checks itself.

    Attributes:
        function: the name of the function, with the class that defines it.
        is_method: whether the first argument is an object or a class.
        positional: parameters that may be given by position.
        rest: the parameter of further positional arguments.
        by_name: parameters that may be given by name.
    """

    function: str
    is_method: bool
    positional: tuple[tuple[str, _Accepted | None], ...]
    rest: tuple[str, _Accepted | None]
    by_name: Mapping[str, _Accepted | None]

    @classmethod
    def of(cls, function: _Function) -> _Signature:
        original = inspect.unwrap(function)
        positional: list[tuple[str, _Accepted | None]] = []
        rest: tuple[str, _Accepted | None] = ("", None)
        by_name: dict[str, _Accepted | None] = {}
        for parameter in inspect.signature(original).parameters.values():
            annotation = parameter.annotation
            accepted = _of_text(annotation, original.__globals__) if isinstance(annotation, str) else None
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                positional.append((parameter.name, accepted))
            if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                by_name[parameter.name] = accepted
            if parameter.kind == parameter.VAR_POSITIONAL:
                rest = parameter.name, accepted
        is_method = bool(positional) and positional[0][0] in ("self", "cls")
        return cls(original.__qualname__, is_method, tuple(positional), rest, by_name)

    def problems(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Sequence[str]:
        """Return a message for each argument of another type than its parameter has."""
        wrong: list[str] = []
        placed = self.positional if len(args) <= len(self.positional) else chain(self.positional, repeat(self.rest))
        for (name, accepted), value in zip(placed, args, strict=False):
            if accepted is not None and (part := accepted.wrong_part(value)) is not None:
                wrong.append(self._message(args, name, *part))
        for name, value in kwargs.items():
            accepted = self.by_name.get(name)
            if accepted is not None and (part := accepted.wrong_part(value)) is not None:
                wrong.append(self._message(args, name, *part))
        return wrong

    def _message(self, args: Sequence[object], name: str, place: str, expected: str, value: object) -> str:
        function = self.function
        if self.is_method and args:
            # Users know the class of the object, which may derive from the one that defines the method.
            owner = args[0] if isinstance(args[0], type) else type(args[0])
            function = f"{owner.__name__}.{function.rpartition('.')[2]}"
        return f"{name}{place} of {function.removesuffix('.__init__')} is {expected}, not {shown(value)}"


def _of_text(annotation: str, known: Mapping[str, Any]) -> _Accepted | None:
    """Return what an annotation accepts; None if it has forms that its function reads itself."""
    return _of_expression(ast.parse(annotation, mode="eval").body, known)


def _of_expression(node: ast.expr, known: Mapping[str, Any]) -> _Accepted | None:
    match node:
        case ast.BinOp(op=ast.BitOr()):
            return _either([_of_expression(option, known) for option in _options(node)])
        case ast.Constant(value=None):
            return _of_type(NoneType)
        case ast.Name(id=name) if name in known or name in _BUILTINS:
            return _of_type(known.get(name, _BUILTINS.get(name)))
        case ast.Name(id=name) if name not in ("object", "Any"):
            # A class that is imported for type checkers only. It is known by its name, so that nothing is imported.
            return _named(name)
        case ast.Subscript(value=ast.Name(id=name), slice=arguments) if name in known or name in _GENERIC:
            inner = arguments.elts if isinstance(arguments, ast.Tuple) else [arguments]
            parts = [_of_expression(one, known) for one in inner if not _is_dots(one)]
            return _container(known.get(name, _GENERIC.get(name)), parts)
    return None


def _options(node: ast.expr) -> list[ast.expr]:
    """Return the parts of a union, which Python nests to the left."""
    return [*_options(node.left), node.right] if isinstance(node, ast.BinOp) else [node]


def _is_dots(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _of_type(annotation: object) -> _Accepted | None:
    """Return what a type or an alias at run time accepts."""
    if isinstance(annotation, type) and annotation in _BASIC:
        return _Accepted(*_BASIC[annotation])
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        # The function itself reports an unknown word, with the known ones.
        return _either([_of_type(one) for one in dict.fromkeys(map(type, arguments))])
    if origin in (Union, UnionType):
        return _either([_of_type(one) for one in arguments])
    if origin is not None:
        return _container(origin, [_of_type(one) for one in arguments if one is not ...])
    if not isinstance(annotation, type) or annotation in (object, Any) or getattr(annotation, "_is_protocol", False):
        return None
    if issubclass(annotation, os.PathLike):
        return _Accepted(lambda value: hasattr(type(value), "__fspath__"), "a path", "paths")
    return _Accepted(lambda value: isinstance(value, annotation), *_names_of(annotation.__name__))


def _named(name: str) -> _Accepted:
    return _Accepted(lambda value: any(base.__name__ == name for base in type(value).__mro__), *_names_of(name))


def _names_of(name: str) -> tuple[str, str]:
    name = name.removeprefix("_")
    return f"{'an' if name[0] in 'AEIO' else 'a'} {name}", f"{name}s"


def _either(options: Sequence[_Accepted | None]) -> _Accepted | None:
    known = [one for one in options if one is not None]
    if len(known) < len(options) or len(known) == 1:
        return known[0] if len(options) == 1 else None
    one, many = (
        " or ".join(dict.fromkeys(getattr(each, field) for each in known)).replace(" or ", ", ", max(0, len(known) - 2))
        for field in ("one", "many")
    )

    def elements(value: object) -> Iterator[tuple[object, _Accepted, object]]:
        return next(each for each in known if each.admits(value)).elements(value)

    is_reading = any(each.one not in _BASIC_NAMES for each in known)
    has_elements = any(each.elements is not _no_elements for each in known)
    admits = [each.admits for each in known]
    return _Accepted(
        lambda value: any(one(value) for one in admits),
        one,
        many,
        elements if has_elements else _no_elements,
        is_reading,
    )


def _container(origin: object, parts: Sequence[_Accepted | None]) -> _Accepted | None:
    """Return what a mapping, sequence or function accepts; elements are checked as far as their types are known."""
    if origin is Callable:
        return _Accepted(callable, "a function", "functions")
    if not isinstance(origin, type):
        return None
    last = parts[-1] if parts and parts[-1] is not None and not parts[-1].is_reading else None
    of = f" of {last.many}" if last is not None else ""
    if issubclass(origin, Mapping):

        def items(value: Mapping[object, object]) -> Iterator[tuple[object, _Accepted, object]]:
            return ((key, last, one) for key, one in value.items()) if last is not None else iter(())

        return _Accepted(lambda value: isinstance(value, Mapping), f"a mapping{of}", "mappings", items)
    if origin is not Iterable and (not issubclass(origin, Sequence) or len(parts) != 1):
        return None

    def elements(value: object) -> Iterator[tuple[object, _Accepted, object]]:
        if last is not None and isinstance(value, Sequence):  # reading an iterator would consume it
            yield from ((index, last, one) for index, one in enumerate(value))

    accepted, word = (Iterable, "an iterable") if origin is Iterable else (Sequence, "a sequence")
    return _Accepted(
        lambda value: isinstance(value, accepted) and not isinstance(value, _TEXTS),
        f"{word}{of}",
        f"{word.split()[1]}s",
        elements,
    )
