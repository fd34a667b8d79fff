"""`tvmtarget inspect`: describe a compiled program, and whether this machine can run it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tvmtarget.artifact import is_artifact
from tvmtarget.cli.options import Json, print_json
from tvmtarget.errors import ArtifactError
from tvmtarget.files import has_file
from tvmtarget.human_units import bytes_text, counted

__all__ = ["inspect_program"]


def inspect_program(
    program: Annotated[Path, typer.Argument(help="A file written by `tvmtarget compile`.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Describe a compiled program, and say for each function whether this machine can run it.

    Nothing of the file is compiled, opened or run. `fits`: its native code runs here. `recompile`: it is compiled again
    before it runs. `cannot`: it does not run here; the exit code is 1.
    """
    from tvmtarget.building.saved_program import inspect

    if has_file(program) and program.is_file() and not is_artifact(program):
        raise ArtifactError(
            f"{str(program)!r} is not a compiled program, or its beginning is damaged; "
            "for a model, use tvmtarget explain MODEL --target TARGET"
        )
    found = inspect(program)
    if as_json:
        print_json(found.to_json())
    else:
        size = bytes_text(sum(found.files.values()))
        typer.echo(f"{found.name}: {counted(len(found.leaves), 'function')}, {size} unpacked")
        typer.echo(f"target: {found.target.tag or found.target}")
        for leaf in found.leaves:
            native = bytes_text(leaf.native_bytes) if leaf.native_bytes else "no"
            typer.echo(f"{leaf}\n  by {leaf.backend}, {native} native code")
        for path, reason in found.hosts.items():
            typer.echo(f"@{path or '.'} (host): cannot: {reason}")
        if found.self_test:
            typer.echo(f"self-test: outputs of {found.self_test}; `tvmtarget run --self-test` compares with them")
        typer.echo(f"this machine: {found.verdict}")
    if found.verdict == "cannot":
        raise typer.Exit(1)
