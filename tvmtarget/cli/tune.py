"""`tvmtarget tune`: measure what can be chosen for a model on a target, into a log that compile and run read."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from tvmtarget.cli.groups import with_groups
from tvmtarget.cli.options import Json, Model, Where, print_json, read_where
from tvmtarget.cli.targets import Changes, TargetText, read_target

if TYPE_CHECKING:
    from tvmtarget.tuner.result import Progress, Step, TuneResult

__all__ = ["tune"]


@with_groups
def tune(
    context: typer.Context,
    model: Model,
    target: TargetText,
    changes: Changes,
    log: Annotated[
        str, typer.Option("--log", help="Where to write: a file .jsonl or .db, or a URL.", show_default=False)
    ],
    trials: Annotated[
        int | None, typer.Option("--trials", "-n", min=1, help="Candidates to measure at most.", show_default=False)
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", "-s", min=0, help="How long all of it may take.", show_default=False)
    ] = None,
    level: Annotated[
        list[str] | None,
        typer.Option("--level", help="kernel, executor or placement; all unless given.", show_default=False),
    ] = None,
    space: Annotated[str, typer.Option("--space", help="Candidates for kernels: auto, own or metaschedule.")] = "auto",
    seed: Annotated[int, typer.Option("--seed", help="Makes the same search again.")] = 0,
    workers: Annotated[
        str | None,
        typer.Option("--workers", help="A Dask scheduler, tcp://HOST:PORT, whose workers measure.", show_default=False),
    ] = None,
    where: Where = None,
    costs: Annotated[
        str | None,
        typer.Option(
            "--costs",
            metavar="FILE",
            help="Begin with the placement by costs: a JSON file, 'roofline' for what the target says, or 'measured'.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure kernels, settings and placements of a model on this machine, into a log.

    Everything measured is in the log at once: after Ctrl-C the same command goes on.
    """
    from tvmtarget.ir.module import IRModule
    from tvmtarget.tuner.result import TuneInterrupted
    from tvmtarget.tuner.tuning import LEVELS
    from tvmtarget.tuner.tuning import tune as tune_module

    rules = read_where(where)
    tree = read_target(target, changes, context.args)
    module = IRModule.from_onnx(model)
    try:
        with _live(quiet=as_json) as tell:
            result = tune_module(
                module,
                tree,
                log=log,
                trials=trials,
                seconds=seconds,
                levels=tuple(level or LEVELS),
                space=space,
                seed=seed,
                where=rules,
                costs=costs,
                workers=workers,
                progress=tell,
            )
    except KeyboardInterrupt as interrupt:
        if isinstance(interrupt, TuneInterrupted):
            _tell_result(interrupt.result, as_json=as_json)
        again = shlex.join(["tvmtarget", *sys.argv[1:]])
        typer.echo(f"interrupted; what was measured is in {log}, go on with: {again}", err=True)
        raise typer.Exit(130) from None
    _tell_result(result, as_json=as_json)


def _tell_result(result: TuneResult, *, as_json: bool) -> None:
    if as_json:
        print_json(result.to_json())
    else:
        typer.echo(str(result))


@contextmanager
def _live(*, quiet: bool) -> Iterator[Progress | None]:
    """Show on the error stream what is tried and the best so far: a bar on a terminal, else a line now and then."""
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TimeElapsedColumn

    console = Console(stderr=True)
    if quiet:
        yield None
        return
    if not console.is_terminal:
        yield _line_by_line
        return
    with Bar(*Bar.get_default_columns()[:2], TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("preparing", total=None)

        def tell(step: Step) -> None:
            bar.update(task, description=_told(step), completed=step.done, total=step.trials)

        yield tell


def _line_by_line(step: Step) -> None:
    """Tell trials 1, 2, 4, 8, ... and then every 64th."""
    if step.done & (step.done - 1) == 0 or step.done % 64 == 0:
        typer.echo(_told(step), err=True)


def _told(step: Step) -> str:
    best = f"{step.default / 1e9:.3g} -> {step.best / 1e9:.3g} ms, {step.speedup:.2f} times as fast"
    return f"trial {step.done}: {step.level} {step.what} {step.status}; so far {best}"
