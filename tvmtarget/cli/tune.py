"""`tvmtarget tune`: measure what can be chosen for a model on a target, into a log that compile and run read."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from tvmtarget.cli.groups import with_groups
from tvmtarget.cli.options import AllowInterpreter, Json, Model, print_json
from tvmtarget.cli.plans import Division
from tvmtarget.cli.targets import Changes, TargetText, read_target

if TYPE_CHECKING:
    from tvmtarget.autotune.search.result import TuneResult

__all__ = ["tune"]


@with_groups
def tune(
    context: typer.Context,
    model: Model,
    target: TargetText,
    changes: Changes,
    division: Division,
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
        typer.Option("--workers", help="A Dask scheduler, tls://HOST:PORT, whose workers measure.", show_default=False),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Use a scheduler without TLS: whoever reaches it may run code as you.")
    ] = False,
    allow_interpreter: AllowInterpreter = False,
    as_json: Json = False,
) -> None:
    """Measure kernels, settings and placements of a model on this machine, into a log.

    Everything measured is in the log at once: after Ctrl-C the same command goes on.
    """
    begin = time.monotonic()  # what is imported takes seconds on a busy machine
    from tvmtarget.autotune.search.result import TuneInterrupted, TuneStoppedError
    from tvmtarget.autotune.search.tuning import LEVELS
    from tvmtarget.autotune.search.tuning import tune as tune_module
    from tvmtarget.cli.graceful_shutdown import StopRequested, graceful_shutdown
    from tvmtarget.cli.tune_progress import live
    from tvmtarget.ir.module import IRModule

    with graceful_shutdown():
        try:
            rules, options = division.rules, division.options()
            tree = read_target(target, changes, context.args)
            module = IRModule.from_onnx(model)
            with live(quiet=as_json, seconds=seconds) as tell:
                result = tune_module(
                    module,
                    tree,
                    log=log,
                    trials=trials,
                    seconds=None if seconds is None else max(0.0, seconds - (time.monotonic() - begin)),
                    levels=tuple(level or LEVELS),
                    space=space,
                    seed=seed,
                    where=rules,
                    options=options,
                    costs=division.read_costs(module, tree, allow_interpreter=allow_interpreter),
                    allow_interpreter=allow_interpreter,
                    workers=workers,
                    insecure=insecure,
                    progress=tell,
                )
            _tell_result(result, as_json=as_json)
        except TuneStoppedError as error:
            _tell_result(error.result, as_json=as_json)
            raise
        except KeyboardInterrupt as interrupt:
            told = interrupt.__cause__ if isinstance(interrupt, TuneInterrupted) else interrupt
            with suppress(OSError):  # nobody may be left to tell
                if isinstance(interrupt, TuneInterrupted):
                    _tell_result(interrupt.result, as_json=as_json)
                again = shlex.join(["tvmtarget", *sys.argv[1:]])
                typer.echo(f"interrupted; what was measured is in {log}, go on with: {again}", err=True)
            raise typer.Exit(128 + (told.number if isinstance(told, StopRequested) else signal.SIGINT)) from None


def _tell_result(result: TuneResult, *, as_json: bool) -> None:
    if as_json:
        print_json(result.to_json())
    else:
        typer.echo(str(result))
