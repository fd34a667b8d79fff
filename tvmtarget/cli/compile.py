"""`tvmtarget compile`: a model and a target into one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tvmtarget.cli.options import Log, Model, Near, Strict, Where, progress, read_policy, read_where
from tvmtarget.cli.plans import Apart, Asked, CostsText, ObjectiveText, SameSite, Sizes
from tvmtarget.cli.targets import Changes, Executor, Runtime, Set, TargetText, Unset, With, read_target

__all__ = ["compile_model"]


def compile_model(
    context: typer.Context,
    model: Model,
    target: TargetText,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.", show_default=False)],
    overlays: With = None,
    values: Set = None,
    unset: Unset = None,
    executor: Executor = None,
    runtime: Runtime = None,
    where: Where = None,
    costs: CostsText = None,
    objective: ObjectiveText = None,
    same_site: SameSite = None,
    apart: Apart = None,
    sizes: Sizes = None,
    strict: Strict = False,
    log: Log = None,
    near: Near = False,
) -> None:
    """Compile a model for a target into one file, which `tvmtarget run` takes."""
    from tvmtarget.building import build
    from tvmtarget.ir.module import IRModule

    asked = Asked(read_where(where), costs, objective, same_site, apart, sizes)
    policy = read_policy(near=near)
    tree = read_target(target, Changes(overlays, executor, runtime, context.args, values, unset))
    module = IRModule.from_onnx(model)
    plan = asked.plan(module, tree, log, policy=policy) if asked else None
    with progress(quiet=False) as tell:
        exe = build(
            plan or module,
            tree,
            where=asked.where,
            strict=strict,
            progress=tell,
            mod_name=model.stem,
            log=log,
            policy=policy,
        )
        exe.save(output)
    for note in exe.notes:
        typer.echo(f"note: {note}", err=True)
    for applied in exe.tuned:
        typer.echo(f"tuned: {applied}", err=True)
    typer.echo(
        f"{output}: {len(exe.backends)} functions by {', '.join(sorted(set(exe.backends.values()))) or 'nobody'}"
    )
