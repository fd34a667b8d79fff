"""Progress of long commands on the error stream: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal, TextIO, cast

import typer

from tvmtarget.untrusted import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

    from tvmtarget.autotune.search.result import Progress as ReportTrial
    from tvmtarget.autotune.search.result import TuneProgress
    from tvmtarget.building.compile_plan import Progress as ReportFunction

__all__ = ["compile_progress", "tune_progress"]


@contextmanager
def compile_progress(*, quiet: bool) -> Iterator[ReportFunction | None]:
    """Show a bar while the functions of a plan are compiled, if the error stream is a terminal.

    Args:
        quiet: Whether to show nothing.

    Yields:
        The `progress` argument of `build`; None if nothing is shown.
    """
    from rich.progress import Progress as Bar

    console = _console()
    if quiet or not console.is_terminal:
        yield None
        return
    with Bar(console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def report(what: str, done: int, total: int) -> None:
            bar.update(task, description=printable(what), completed=done, total=total)

        yield report


@contextmanager
def tune_progress(*, quiet: bool, seconds: float | None) -> Iterator[ReportTrial | None]:
    """Show the trials and the best result so far: a bar on a terminal, else a line now and then.

    The reader of the error stream may disappear, as when a terminal is closed. Tuning then goes on without output.

    Args:
        quiet: Whether to show nothing.
        seconds: The time limit, which the bar counts towards; None to count trials.

    Yields:
        The `progress` argument of `tune`; None if nothing is shown.
    """
    if quiet:
        yield None
        return
    console = _console()
    # A dumb terminal cannot move the cursor back, which a bar needs.
    if not console.is_terminal or console.is_dumb_terminal:
        yield _line_reporter()
        return
    bar = _trial_bar(console)
    task = bar.add_task("preparing", total=None, best="")

    def report(step: TuneProgress) -> None:
        # The bar writes past the stream of `main` that escapes, so names of operations are escaped here.
        what = f"trial {step.done}: {step.level} {step.what} {step.status}"
        bar.update(task, description=printable(what), best=step.so_far)
        if seconds is None:
            bar.update(task, completed=step.done, total=step.trials)
        else:
            bar.update(task, completed=bar.tasks[0].elapsed or 0.0, total=seconds)

    with suppress(OSError):
        bar.start()
    try:
        yield report
    finally:
        with suppress(OSError):
            bar.stop()


def _console() -> Console:
    """Return a console on the error stream.

    `main` wraps that stream in one that escapes control characters. A bar needs these, and writes to the inner stream.
    """
    from rich.console import Console

    return Console(file=cast("TextIO", getattr(sys.stderr, "raw_stream", sys.stderr)))


def _trial_bar(console: Console) -> Bar:
    """Return a bar of one line; a narrow terminal cuts the name of the last trial, never the best result."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    # Names may contain square brackets, which rich would read as markup.
    best = TextColumn("{task.fields[best]}", markup=False, table_column=Column(no_wrap=True))
    overflow: Literal["crop", "ellipsis"] = "crop" if console.options.ascii_only else "ellipsis"
    what = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow=overflow, ratio=1))
    columns = TimeElapsedColumn(), BarColumn(bar_width=12), best, what
    # rich would otherwise replace the streams that `main` has wrapped.
    return Bar(*columns, console=console, transient=True, expand=True, redirect_stdout=False, redirect_stderr=False)


def _line_reporter() -> ReportTrial:
    """Return a function that prints trials 1, 2, 4, 8, ... and every 64th, until the stream is closed."""
    is_open = True

    def report(step: TuneProgress) -> None:
        nonlocal is_open
        # Powers of two show soon that the command works, and keep the output of a long run short.
        if is_open and (step.done & (step.done - 1) == 0 or step.done % 64 == 0):
            try:
                typer.echo(f"trial {step.done}: {step.level} {step.what} {step.status}; so far {step.so_far}", err=True)
            except OSError:
                is_open = False

    return report
