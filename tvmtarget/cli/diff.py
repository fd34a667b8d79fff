"""`tvmtarget diff`: how two targets differ."""

from __future__ import annotations

import typer

from tvmtarget.cli.options import Json, print_json
from tvmtarget.cli.targets import TargetArgument, read_target

__all__ = ["diff"]


def diff(left: TargetArgument, right: TargetArgument, as_json: Json = False) -> None:
    """Say how two targets differ, by path; exit code 1 if they do."""
    found = read_target(left).diff(read_target(right))
    if as_json:
        print_json(found.to_json())
    elif found:
        typer.echo(str(found))
    if found:
        raise typer.Exit(1)
