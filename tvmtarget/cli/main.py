"""`tvmtarget`: one command per module; errors are one line each, exit codes 0 (done), 1 (refused), 2 (misused)."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, TextIO

import typer

from tvmtarget.cli import check, compile, detect, diff, explain, kinds, log, run, show, tags, tune
from tvmtarget.cli.targets import EXTRA
from tvmtarget.errors import TvmTargetError, TvmTargetWarning
from tvmtarget.version import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    name="tvmtarget",
    help="Name what you deploy to, split a program over it, compile it and run it.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(tags.app, name="tags")
app.command("kinds")(kinds.kinds)
app.command("show", context_settings=EXTRA)(show.show)
app.command("check", context_settings=EXTRA)(check.check)
app.command("detect")(detect.detect)
app.command("explain", context_settings=EXTRA)(explain.explain)
app.command("compile", context_settings=EXTRA)(compile.compile_model)
app.command("run", context_settings=EXTRA)(run.run)
app.command("tune", context_settings=EXTRA)(tune.tune)
app.command("diff")(diff.diff)
app.add_typer(log.app, name="log")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tvmtarget {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _print_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"warning: {message}", file=sys.stderr)


def _escape_what_the_terminal_lacks() -> None:
    """Print letters that the encoding of standard output has not as escapes; Python does so for errors alone."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; nothing a user can type makes a traceback."""
    _escape_what_the_terminal_lacks()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", TvmTargetWarning)
            warnings.showwarning = _print_warning
            app(args=list(sys.argv[1:] if argv is None else argv), prog_name="tvmtarget")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except TvmTargetError as error:
        for problem in str(error).splitlines():
            print(f"error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        # Whoever read standard output is gone, or its disk is full; nothing more can be written to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print(f"error: output cannot be written: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
