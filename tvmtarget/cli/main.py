"""The program `tvmtarget`: one module per command, one line per error.

Exit codes: 0 for success, 1 for an error or a negative answer, 2 for wrong usage, 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import getdoc
from io import TextIOBase, TextIOWrapper
from typing import Annotated, Any, BinaryIO, TextIO, cast

import typer
from typer.core import TyperCommand

from tvmtarget.cli import cache, check, compile, detect, diff, explain, inspect, kinds, log, run, show, tags, tune
from tvmtarget.cli.graceful_shutdown import persistent_interrupt
from tvmtarget.cli.options import Command, UsageError
from tvmtarget.cli.targets import TvmcCommand
from tvmtarget.errors import TvmTargetError, TvmTargetWarning, did_you_mean, warn
from tvmtarget.python_process import WITHOUT_DEVICES
from tvmtarget.untrusted import LIMITS, printable
from tvmtarget.version import __version__

__all__ = ["app", "main"]

_MAX_LINE = 4000  # letters of an error or a warning
_INTERRUPTED = 130  # shells report a process that a signal ended as 128 plus its number; SIGINT is 2
# The error of click for command lines that it cannot parse. Which module it is in depends on the version of typer.
_MISUSE: type[BaseException] = typer.BadParameter.__bases__[0]
# Only sequences that set colours; others move the cursor or change the terminal. The group makes `split` keep them.
_COLOUR = re.compile("(\x1b\\[[0-9;]*m)")

app = typer.Typer(
    name="tvmtarget",
    help="Describe deployment targets, partition programs over them, compile, run and tune.",
    no_args_is_help=True,
    add_completion=True,
    # `_run` prints the errors that users cause; any other is a bug, whose plain traceback belongs in a report.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(tags.app, name="tags")
app.command("kinds")(kinds.kinds)
app.command("show", cls=TvmcCommand)(show.show)
app.command("check", cls=TvmcCommand)(check.check)
app.command("detect")(detect.detect)
app.command("explain", cls=TvmcCommand)(explain.explain)
app.command("compile", cls=TvmcCommand)(compile.compile_model)
app.command("run", cls=TvmcCommand)(run.run)
app.command("tune", cls=TvmcCommand)(tune.tune)
app.command("inspect")(inspect.inspect_program)
app.command("diff")(diff.diff)
app.add_typer(log.app, name="log")
app.add_typer(cache.app, name="cache")
for _group in (app, tags.app, log.app, cache.app):
    for _command in _group.registered_commands:
        if _command.cls is TyperCommand:
            _command.cls = Command
        # After the first paragraph typer keeps the line breaks of a docstring, which are those of another width.
        _command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", getdoc(_command.callback) or "")


def _print_version(requested: bool) -> None:
    if requested:
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
    print(f"warning: {_shortened(str(message))}", file=sys.stderr)


class _Printable(TextIOBase):
    """A text stream that escapes control characters.

    Names in models and logs come from other people, and control characters in them could take over the terminal. On a
    terminal, escape sequences that only set colours pass, because help texts and trees use them.
    """

    def __init__(self, stream: TextIO) -> None:
        self.raw_stream = stream
        self.error: OSError | None = None  # the last one of writing
        self._escape = _with_colours if stream.isatty() else printable

    def write(self, text: str) -> int:
        with self._noting_errors():
            self.raw_stream.write(self._escape(text))
        return len(text)

    def flush(self) -> None:
        # When it is deleted, Python flushes it, though its stream may be closed already.
        if self.raw_stream.closed:
            return
        with self._noting_errors():
            self.raw_stream.flush()

    @contextmanager
    def _noting_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = error
            raise

    def isatty(self) -> bool:
        return self.raw_stream.isatty()

    def fileno(self) -> int:
        return self.raw_stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.raw_stream.encoding

    @property
    def buffer(self) -> BinaryIO:
        return self.raw_stream.buffer


def _with_colours(text: str) -> str:
    return "".join(part if _COLOUR.fullmatch(part) else printable(part) for part in _COLOUR.split(text))


@contextmanager
def _printable_output() -> Iterator[None]:
    """Escape control characters, and characters that the encoding lacks, in all output of the block.

    Python itself escapes the latter on standard error only.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast("TextIO", _Printable(sys.stdout)), cast("TextIO", _Printable(sys.stderr))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; every error that a user can cause is printed as one line.

    Args:
        argv: The words after the name of the program; those of this process by default.

    Returns:
        The exit code.
    """
    if argv is None:  # the process is the command's alone
        os.environ |= WITHOUT_DEVICES | os.environ
    _open_closed_streams()
    with _printable_output():
        return _run(argv)


def _open_closed_streams() -> None:
    """Connect standard streams that are closed to the null device.

    Python has no object for a closed stream. The next file that is opened, such as a log, would also get its descriptor
    and receive what libraries print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open until the process ends


def _run(argv: Sequence[str] | None) -> int:
    try:
        with persistent_interrupt(), warnings.catch_warnings():
            # By default Python shows a warning once for a place in the code; here each one is about other input.
            warnings.simplefilter("always", TvmTargetWarning)
            warnings.showwarning = _print_warning
            for problem in _mistyped_variables(os.environ):
                warn(problem)
            words = list(sys.argv[1:] if argv is None else argv)
            code = app(args=words, prog_name="tvmtarget", standalone_mode=False)
    except _MISUSE as error:
        return _print_misuse(error)
    except SystemExit as stop:
        # The code of SystemExit may be None for success, or a text, which Python counts as failure.
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except TvmTargetError as error:
        for problem in str(error).splitlines():
            print(f"error: {_shortened(problem)}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except OSError as error:
        # The reader of standard output is gone, the disk is full, or the limit of open files or processes is reached.
        # Python flushes the stream once more at exit, which would print another error: discard what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            is_of_output = error is getattr(sys.stdout, "error", None)
            where = "output cannot be written: " if is_of_output else f"{error.filename}: " if error.filename else ""
            print(f"error: {where}{error.strerror or error}", file=sys.stderr)
        return 1
    except MemoryError as error:
        print(f"error: out of memory{f': {error}' if str(error) else ''}", file=sys.stderr)
        return 1
    if code == _INTERRUPTED:  # typer returns it, too
        print("error: interrupted", file=sys.stderr)
    return code if isinstance(code, int) else 0  # of `typer.Exit`; commands return nothing


# What the library reads beside the limits of files (docs/attributes.md).
_VARIABLES = ("TVMTARGET_CACHE", "TVMTARGET_PATH", "TVMTARGET_TRUST_PROJECT", "TVMTARGET_X86_LEVEL")
_OURS = "TVMTARGET_"


def _mistyped_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a message for each variable that is nearly one of ours, such as a limit that would not hold."""
    known = {one.removeprefix(_OURS) for one in (*_VARIABLES, *(one.variable for one in LIMITS.values()))}
    for name in sorted(one.removeprefix(_OURS) for one in environ if one.startswith(_OURS)):
        near = did_you_mean(name, known) if name not in known else ""
        if "did you mean" in near:  # others may be of a plugin
            nearest = re.sub(r"'(?=\w)", f"'{_OURS}", near)
            yield f"the environment variable {_OURS}{name} is not read{nearest}"


def _print_misuse(error: Any) -> int:  # noqa: ANN401 - an error of click
    """Print an error of the parser of command lines, and return its exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.ctx.get_help())
        return 2
    problem = error.format_message().rstrip(".").replace("Value error, ", "")
    command = error.ctx.command_path if error.ctx is not None else "tvmtarget"
    print(f"error: {problem[:1].lower()}{problem[1:]}; see `{command} --help`", file=sys.stderr)
    return 2


def _shortened(line: str) -> str:
    """Cut the middle out of a very long line: a name in a model can have a million letters."""
    return line if len(line) <= _MAX_LINE else f"{line[: _MAX_LINE // 2]} ... {line[-_MAX_LINE // 2 :]}"


if __name__ == "__main__":
    sys.exit(main())
