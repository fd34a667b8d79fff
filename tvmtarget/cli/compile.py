"""`tvmtarget compile`: a model and a target into one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tvmtarget.cli.groups import with_groups
from tvmtarget.cli.options import AllowInterpreter, Model
from tvmtarget.cli.plans import PlanOptions
from tvmtarget.cli.targets import Changes, TargetText, read_target

__all__ = ["compile_model"]


@with_groups
def compile_model(
    context: typer.Context,
    model: Model,
    target: TargetText,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.", show_default=False)],
    changes: Changes,
    asked: PlanOptions,
    allow_interpreter: AllowInterpreter = False,
) -> None:
    """Compile a model for a target into one file, which `tvmtarget run` takes."""
    exe = asked.build(
        model, read_target(target, changes, context.args), allow_interpreter=allow_interpreter, quiet=False
    )
    exe.save(output)
    for note in exe.notes:
        typer.echo(f"note: {note}", err=True)
    for applied in exe.tuned:
        typer.echo(f"tuned: {applied}", err=True)
    typer.echo(
        f"{output}: {len(exe.backends)} functions by {', '.join(sorted(set(exe.backends.values()))) or 'nobody'}"
    )
