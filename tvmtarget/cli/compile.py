"""`tvmtarget compile`: compile a model for a target into one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tvmtarget.cli.option_groups import with_option_groups
from tvmtarget.cli.options import AllowInterpreter, Model
from tvmtarget.cli.plans import PlanOptions
from tvmtarget.cli.targets import TargetEdits, TargetText, read_target
from tvmtarget.human_units import counted

__all__ = ["compile_model"]


@with_option_groups
def compile_model(
    context: typer.Context,
    model: Model,
    target: TargetText,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.", show_default=False)],
    edits: TargetEdits,
    options: PlanOptions,
    allow_interpreter: AllowInterpreter = False,
) -> None:
    """Compile a model for a target into one file, for `tvmtarget run`."""
    tree = read_target(target, edits, context.args)
    exe = options.build(model, tree, allow_interpreter=allow_interpreter, quiet=False)
    exe.save(output)
    for note in exe.notes:
        typer.echo(f"note: {note}", err=True)
    for applied in exe.tuned:
        typer.echo(f"tuned: {applied}", err=True)
    backends = ", ".join(sorted(set(exe.backends.values()))) or "no backend"
    typer.echo(f"{output}: {counted(len(exe.backends), 'function')} by {backends}")
