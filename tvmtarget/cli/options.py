"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO, TypeAlias, cast

import typer

from tvmtarget.errors import TextError, TvmTargetError
from tvmtarget.untrusted import printable

if TYPE_CHECKING:
    from tvmtarget.autotune.log.match import Policy
    from tvmtarget.building.compile_plan import Progress
    from tvmtarget.target.constraints.constraint import Constraint

__all__ = [
    "AllowInterpreter",
    "Json",
    "Log",
    "Model",
    "Near",
    "Where",
    "print_json",
    "progress",
    "raw_stream",
    "read_policy",
    "read_where",
    "split_rules",
]

Model: TypeAlias = Annotated[Path, typer.Argument(help="An ONNX file.", show_default=False)]
Where: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        help="NAME=CONSTRAINT or op:KIND=CONSTRAINT, as 'op:Gemm=@cpu'; NAME may be a glob; the last match counts.",
        show_default=False,
    ),
]
AllowInterpreter: TypeAlias = Annotated[
    bool,
    typer.Option("--allow-interpreter", help="Let numpy interpret a leaf that has no code generator installed."),
]
Log: TypeAlias = Annotated[
    str | None, typer.Option("--log", help="A tuning log to use: .jsonl, .db or a URL.", show_default=False)
]
Near: TypeAlias = Annotated[
    bool, typer.Option("--near", help="Use what was tuned on a near device too, where the log has nothing nearer.")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def read_where(rules: Sequence[str] | None) -> dict[str, Constraint]:
    """Return the rules of `--where`; all bad ones in one error."""
    from tvmtarget.target.constraints.constraint import Constraint

    found: dict[str, Constraint] = {}
    problems: list[str] = []
    for key, value in split_rules(rules or (), "--where").items():
        try:
            found[key] = Constraint.parse(value)
        except TvmTargetError as error:
            problems += [f"{problem} (in --where '{key}={value}')" for problem in str(error).splitlines()]
    if problems:
        raise TextError("\n".join(problems))
    return found


def split_rules(rules: Sequence[str], flag: str) -> dict[str, str]:
    """Split `NAME=CONSTRAINT` at the last '=' outside parentheses; the last one of a name counts, and stands last."""
    found: dict[str, str] = {}
    problems: list[str] = []
    for rule in rules:
        at = _last_equals(rule)
        key, value = rule[:at].strip(), rule[at + 1 :].strip()
        if at < 1 or not key or not value:
            problems.append(f"{flag} {rule!r} is not NAME=CONSTRAINT, such as 'op:Gemm=@cpu'")
            continue
        found.pop(key, None)
        found[key] = value
    if problems:
        raise TextError("\n".join(problems))
    return found


def _last_equals(rule: str) -> int:
    depth = 0
    for at in range(len(rule) - 1, -1, -1):
        depth += (rule[at] == ")") - (rule[at] == "(")
        if rule[at] == "=" and depth == 0:
            return at
    return -1


def read_policy(*, near: bool) -> Policy:
    """Return how far lookups in a tuning log may go."""
    from tvmtarget.autotune.log.match import Policy
    from tvmtarget.building.tuned_schedules import SAME_DEVICE

    return Policy() if near else SAME_DEVICE


def print_json(data: object) -> None:
    """Print data as indented JSON."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))


def raw_stream(stream: TextIO) -> TextIO:
    """Return the stream below the one that `main` puts before it: for bars, which drive the terminal."""
    return cast("TextIO", getattr(stream, "raw_stream", stream))


@contextmanager
def progress(*, quiet: bool) -> Iterator[Progress | None]:
    """Show a bar on the error stream while work goes on, where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(file=raw_stream(sys.stderr))
    if quiet or not console.is_terminal:
        yield None
        return
    with Bar(console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def tell(what: str, done: int, total: int) -> None:
            bar.update(task, description=printable(what), completed=done, total=total)

        yield tell
