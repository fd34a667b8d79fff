"""`tvmtarget diff`: print the differences between two targets."""

from __future__ import annotations

import typer

from tvmtarget.cli.options import Json, print_json
from tvmtarget.cli.targets import TargetArgument, read_target

__all__ = ["diff"]


def diff(left: TargetArgument, right: TargetArgument, as_json: Json = False) -> None:
    """Print the differences between two targets, by path.

    The exit code is 1 if the targets differ.
    """
    found = read_target(left).diff(read_target(right))
    if as_json:
        print_json(found.to_json())
    elif found:
        typer.echo(str(found))
    if found:
        raise typer.Exit(1)
