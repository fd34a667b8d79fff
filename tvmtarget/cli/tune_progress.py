"""What is tried and the best so far, told on the error stream while tuning goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal

import typer

from tvmtarget.cli.options import raw_stream
from tvmtarget.untrusted import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

    from tvmtarget.autotune.search.result import Progress, TuneProgress

__all__ = ["live"]


@contextmanager
def live(*, quiet: bool, seconds: float | None) -> Iterator[Progress | None]:
    """Show the best so far: one line with a bar on a terminal, else a line now and then.

    Whoever reads the error stream may go, as a terminal that is closed does: then nothing more is told, and no more.
    """
    if quiet:
        yield None
        return
    from rich.console import Console

    console = Console(file=raw_stream(sys.stderr))
    if not console.is_terminal or console.is_dumb_terminal:
        yield _line_by_line()
        return
    bar = _bar(console)
    task = bar.add_task("preparing", total=None, best="")

    def tell(step: TuneProgress) -> None:
        what = f"trial {step.done}: {step.level} {step.what} {step.status}"
        bar.update(task, description=printable(what), best=step.so_far)
        if seconds is None:
            bar.update(task, completed=step.done, total=step.trials)
        else:
            bar.update(task, completed=bar.tasks[0].elapsed or 0.0, total=seconds)

    with suppress(OSError):
        bar.start()
    try:
        yield tell
    finally:
        with suppress(OSError):
            bar.stop()


def _bar(console: Console) -> Bar:
    """Return a bar of one line, which is cut where the terminal is narrow: what is tried last, the best never."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    best = TextColumn("{task.fields[best]}", markup=False, table_column=Column(no_wrap=True))
    overflow: Literal["crop", "ellipsis"] = "crop" if console.options.ascii_only else "ellipsis"
    what = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow=overflow, ratio=1))
    columns = TimeElapsedColumn(), BarColumn(bar_width=12), best, what
    return Bar(*columns, console=console, transient=True, expand=True, redirect_stdout=False, redirect_stderr=False)


def _line_by_line() -> Progress:
    """Return what tells trials 1, 2, 4, 8, ... and then every 64th, as long as somebody listens."""
    is_heard = True

    def tell(step: TuneProgress) -> None:
        nonlocal is_heard
        if is_heard and (step.done & (step.done - 1) == 0 or step.done % 64 == 0):
            try:
                typer.echo(f"trial {step.done}: {step.level} {step.what} {step.status}; so far {step.so_far}", err=True)
            except OSError:
                is_heard = False

    return tell
