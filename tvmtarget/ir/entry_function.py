"""Selection of a module's entry function: it is called `main` while it is the entry and remembers its own name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tvmtarget.errors import ModelError, UnknownNameError, did_you_mean
from tvmtarget.ir.function import Function, callees_of, with_renamed_callees
from tvmtarget.ir.names import Names

__all__ = ["OWN_NAME", "restore_own_names", "root_functions", "set_entry"]

OWN_NAME = "own_name"  # attribute of a function that is, or was, renamed because of the entry: its name before


def root_functions(functions: Iterable[Function]) -> tuple[Function, ...]:
    """Return the functions of operations that no other function calls.

    Args:
        functions: functions of a module.

    Returns:
        The functions that can be the entry of a program, in order.
    """
    known = tuple(functions)
    called = frozenset[str]().union(*map(callees_of, known))
    return tuple(one for one in known if one.name not in called and one.code is None)


def set_entry(functions: Sequence[Function], name: str | None = None) -> tuple[Function, ...]:
    """Make a function the entry, and put it first.

    Args:
        functions: functions of a module.
        name: own or present name of the function; by default `main`, or else the only root.

    Returns:
        The functions with calls renamed. A module of nothing but code has no entry and is returned as it is.

    Raises:
        ModelError: no name is given and there are several roots; the message lists them.
        UnknownNameError: there is no function of the name.
    """
    known = {one.attr(OWN_NAME) or one.name: one.name for one in functions}
    if name is None:
        roots = () if any(one.name == "main" for one in functions) else root_functions(functions)
        if not roots:
            return tuple(functions)
        if len(roots) > 1:
            names = " or ".join(repr(one.name) for one in roots)
            raise ModelError(f"the module has no function 'main'; say which one is the entry: {names}")
        name = roots[0].name
    if name not in known and name not in known.values():
        raise UnknownNameError(f"no function {name!r} that could be the entry{did_you_mean(name, known)}")
    old = known.get(name, name)
    if old == "main":
        return tuple(functions)
    taken = Names(one.name for one in functions)
    changed = {old: "main"}
    for main in (one for one in functions if one.name == "main"):
        own = main.attr(OWN_NAME) or "main"
        changed["main"] = own if own not in taken else taken.fresh(own)
    return tuple(sorted(_rename_all(functions, changed), key=lambda one: one.name != "main"))


def restore_own_names(functions: Sequence[Function]) -> tuple[Function, ...]:
    """Give functions that were renamed because of the entry their own names back.

    Args:
        functions: functions of a module.

    Returns:
        The functions with calls renamed.

    Raises:
        ModelError: another function has taken the name meanwhile.
    """
    names = {one.name: one.attr(OWN_NAME) for one in functions if one.attr(OWN_NAME) is not None}
    # A function added meanwhile may have taken the name.
    clash = next((one.name for one in functions if one.name in names.values() and one.name not in names), None)
    if clash is not None:
        raise ModelError(f"two functions are called {clash!r}: one was the entry meanwhile; rename the other")
    return _rename_all(functions, names) if names else tuple(functions)


def _rename_all(functions: Iterable[Function], names: Mapping[str, str]) -> tuple[Function, ...]:
    called = tuple(with_renamed_callees(one, names) for one in functions)
    return tuple(_renamed(one, names[one.name]) if one.name in names else one for one in called)


def _renamed(function: Function, name: str) -> Function:
    """Rename a function; it keeps its own name as an attribute while it has another one."""
    own = function.attr(OWN_NAME) or function.name
    attrs = tuple(item for item in function.attrs if item[0] != OWN_NAME)
    return function.replace(name=name, attrs=attrs if own == name else (*attrs, (OWN_NAME, own)))
