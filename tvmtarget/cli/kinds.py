"""`tvmtarget kinds`: list the kinds of targets, executors and runtimes, and their attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, get_args

import typer

from tvmtarget.cli.options import Json, UsageError, print_json

if TYPE_CHECKING:
    from tvmtarget.target.kinds import Kind

__all__ = ["kinds"]


def kinds(
    name: Annotated[str | None, typer.Argument(help="Print the attributes of this kind.", show_default=False)] = None,
    classes: Annotated[
        bool, typer.Option("--classes", help="Print the class of each attribute, which decides the keys it is in.")
    ] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of targets.")] = False,
    as_json: Json = False,
) -> None:
    """List the kinds of targets, executors and runtimes, or the attributes of one kind."""
    if schema:
        if name is not None or classes:
            raise UsageError(f"--schema describes all kinds; omit {'--classes' if name is None else repr(name)}")
        from tvmtarget.target.tree import Target

        print_json(Target.model_json_schema())
        return
    from tvmtarget.target.kinds import Role, find_kind, kind_of
    from tvmtarget.target.kinds import kinds as kinds_of

    roles: tuple[Role, ...] = ("target", "executor", "runtime")
    if name is None:
        found = [kind for role in roles for kind in kinds_of(role)]
        if as_json:
            print_json([kind.model_dump(mode="json") for kind in found])
            return
        for kind in found:
            removed = f" (until TVM {kind.until})" if kind.until else ""
            device = kind.device if kind.role == "target" else ""
            typer.echo(f"{kind.name:20} {kind.role:9} {device:8} {kind.doc}{removed}")
            if classes:
                _print_classes(kind)
        return
    # `kind_of` comes last for its error, which suggests the nearest names.
    named = (find_kind(name, role) for role in roles)
    kind = next((one for one in named if one is not None), None) or kind_of(name)
    if as_json:
        print_json(kind.model_dump(mode="json"))
    else:
        _print_attributes(kind, classes=classes)


def _print_classes(kind: Kind) -> None:
    from tvmtarget.target.kinds import AttributeClass

    for class_ in get_args(AttributeClass):
        if names := [row.name for row in kind.attributes if row.class_ == class_]:
            typer.echo(f"  {class_:9} {', '.join(names)}")


def _print_attributes(kind: Kind, *, classes: bool) -> None:
    typer.echo(f"{kind.name}: {kind.doc}")
    if kind.role == "target":
        typer.echo(f"device {kind.device}; keys {', '.join(kind.keys) or 'none'}")
    for row in kind.attributes:
        default = "" if row.default is None else f" = {str(row.default).lower()}"
        if row.derived is not None:
            condition = f" with {row.derived_if[0]}={str(row.derived_if[1]).lower()}" if row.derived_if else ""
            default = f"{default}{',' if default else ' ='} {row.derived}{condition}"
        class_ = f"{row.class_:9} " if classes else ""
        typer.echo(f"  {row.name:40} {row.type:10} {class_}{row.doc}{default}")
