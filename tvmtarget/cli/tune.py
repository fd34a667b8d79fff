"""`tvmtarget tune`: measure kernels, settings and placements of a model into a tuning log."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tvmtarget.cli.option_groups import with_option_groups
from tvmtarget.cli.options import AllowInterpreter, Insecure, Json, Model, UsageError, print_json
from tvmtarget.cli.plans import MEASURED, PartitionArguments
from tvmtarget.cli.targets import TargetEdits, TargetText, read_target
from tvmtarget.target.problems import known_word

if TYPE_CHECKING:
    from tvmtarget.autotune.search.result import TuneResult

__all__ = ["tune"]


@dataclass(frozen=True)
class SearchOptions:
    """Options that say what is tuned, for how long, and where candidates are measured."""

    trials: Annotated[
        int | None,
        typer.Option("--trials", "-n", min=1, help="The most candidates to measure.", show_default=False),
    ] = None
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", "-s", min=0, help="The time limit for the whole command.", show_default=False),
    ] = None
    level: Annotated[
        list[str] | None,
        typer.Option(
            "--level",
            help="What to tune: kernel, executor or placement; all by default. May be repeated.",
            show_default=False,
        ),
    ] = None
    space: Annotated[str, typer.Option("--space", help="The candidates of kernels: auto, own or metaschedule.")] = (
        "auto"
    )
    seed: Annotated[int, typer.Option("--seed", help="The seed of the search; equal seeds search equally.")] = 0
    workers: Annotated[
        str | None,
        typer.Option(
            "--workers", help="Measure on the workers of a Dask scheduler: tls://HOST:PORT.", show_default=False
        ),
    ] = None
    insecure: Insecure = False

    def reject_misuse(self, partition: PartitionArguments) -> None:
        """Check that the options have an effect together and with those of partitioning.

        Args:
            partition: the options of partitioning.

        Raises:
            UsageError: one has no effect, or is none of the words that it may be.
        """
        from tvmtarget.autotune.search.tuning import LEVELS, SPACES

        for each in self.level or ():
            known_word("--level", each, LEVELS, UsageError)
        known_word("--space", self.space, SPACES, UsageError)
        if self.insecure and self.workers is None:
            raise UsageError("--insecure needs --workers")
        if partition.objective == "throughput":
            raise UsageError("--objective throughput is not what tuning measures, which is latency; omit it")
        if partition.costs is not None and self.level and "placement" not in self.level:
            raise UsageError("--costs needs --level placement; kernels and settings are measured without costs")
        if self.space != "auto" and self.level and "kernel" not in self.level:
            raise UsageError(f"--space {self.space} needs --level kernel; other levels measure no kernels")


@with_option_groups
def tune(
    context: typer.Context,
    model: Model,
    target: TargetText,
    edits: TargetEdits,
    partition: PartitionArguments,
    log: Annotated[
        str,
        typer.Option("--log", help="The tuning log to write: a .db file, or a URL.", show_default=False),
    ],
    search: SearchOptions,
    allow_interpreter: AllowInterpreter = False,
    as_json: Json = False,
) -> None:
    """Measure kernels, settings and placements of a model, and record them in a log.

    `tvmtarget compile` and `tvmtarget run` use the log with --log. Each measurement is written at once: the same
    command continues after Ctrl-C.
    """
    begin = time.monotonic()  # --seconds includes the imports below, which take seconds on a busy machine
    from tvmtarget.autotune.search.result import TuneInterrupted, TuneStoppedError
    from tvmtarget.autotune.search.tuning import LEVELS
    from tvmtarget.autotune.search.tuning import tune as tune_module
    from tvmtarget.building.tuned_schedules import opened_log
    from tvmtarget.cli.graceful_shutdown import StopRequested, graceful_shutdown
    from tvmtarget.cli.log import reject_memory
    from tvmtarget.cli.progress import tune_progress

    search.reject_misuse(partition)
    reject_memory(log)
    with graceful_shutdown():
        try:
            rules, options = partition.rules, partition.options()
            tree = read_target(target, edits, context.args)
            module = partition.read(model)
            # Only measured rates are kept, so that a command that fails before it measures leaves no empty log.
            with opened_log(log) if partition.costs == MEASURED else nullcontext() as kept:
                costs = partition.read_costs(module, tree, allow_interpreter=allow_interpreter, log=kept)
            with tune_progress(quiet=as_json, seconds=search.seconds) as report:
                result = tune_module(
                    module,
                    tree,
                    log=log,
                    trials=search.trials,
                    seconds=None if search.seconds is None else max(0.0, search.seconds - (time.monotonic() - begin)),
                    levels=tuple(search.level or LEVELS),
                    space=search.space,
                    seed=search.seed,
                    where=rules,
                    options=options,
                    costs=costs,
                    allow_interpreter=allow_interpreter,
                    workers=search.workers,
                    insecure=search.insecure,
                    progress=report,
                )
            _print_result(result, as_json=as_json)
        except TuneStoppedError as error:
            # The measurements before the failure remain of use, and the error still decides the exit code.
            _print_result(error.result, as_json=as_json)
            raise
        except KeyboardInterrupt as interrupt:
            cause = interrupt.__cause__ if isinstance(interrupt, TuneInterrupted) else interrupt
            with suppress(OSError):  # the terminal may be closed
                if isinstance(interrupt, TuneInterrupted):
                    _print_result(interrupt.result, as_json=as_json)
                again = shlex.join(["tvmtarget", *sys.argv[1:]])
                typer.echo(f"interrupted; all measurements are in {log}; continue with: {again}", err=True)
            # The exit code that shells report for a process that the signal ended. By `typer.Exit` it would look as if
            # typer had ended the command at Ctrl-C, of which `main` prints a line.
            sys.exit(128 + (cause.number if isinstance(cause, StopRequested) else signal.SIGINT))


def _print_result(result: TuneResult, *, as_json: bool) -> None:
    if as_json:
        print_json(result.to_json())
    else:
        typer.echo(str(result))
