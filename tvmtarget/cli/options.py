"""Options that several commands share, and functions that parse their texts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand

from tvmtarget.errors import ArtifactError, TextError, TvmTargetError, raise_all

if TYPE_CHECKING:
    from tvmtarget.target.constraints.constraint import Constraint

__all__ = [
    "AllowInterpreter",
    "Command",
    "Insecure",
    "Jobs",
    "Json",
    "Log",
    "Model",
    "ModelOrPlan",
    "Near",
    "NoCache",
    "UsageError",
    "Where",
    "check_folders",
    "print_json",
    "read_where",
    "split_rules",
]


class UsageError(TvmTargetError, ValueError):
    """Options or arguments that the command does not have, or not in this form or together; the exit code is 2."""


class Command(TyperCommand):
    """A command whose options of one value have one; click takes the last of several."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - a context of click
        """Parse a command line.

        Args:
            ctx: the context of the command.
            args: the words behind the name of the command.

        Returns:
            Options that the command does not have itself, but accepts.

        Raises:
            UsageError: an option of one value has several, the command does not accept an option, or there are more
                arguments than it has.
        """
        own, others = self._split_words(ctx, args)
        # A shell that completes a word gets no error, which would garble the command line.
        if not ctx.resilient_parsing:
            found: dict[str, str] = {}
            for option, value in _values(own, self.get_params(ctx)):
                flag = max(option.opts, key=len)
                if not option.multiple and found.setdefault(flag, value) != value:
                    raise UsageError(f"{flag} is both {found[flag]!r} and {value!r}; give one of them")
        ctx.allow_extra_args = True
        surplus = super().parse_args(ctx, own)
        if surplus and not ctx.resilient_parsing:
            raise UsageError(f"unexpected argument {surplus[0]!r}; see `{ctx.command_path} --help`")
        ctx.args = others
        return others

    def _split_words(self, _ctx: Any, words: list[str]) -> tuple[list[str], list[str]]:  # noqa: ANN401
        """Split a command line into the words of the command, and options that it does not have itself, but accepts."""
        return words, []


def _values(words: Iterable[str], parameters: Iterable[Any]) -> Iterator[tuple[Any, str]]:
    """Yield the options of a command line that take a value, with their values."""
    options = {
        flag: one
        for one in parameters
        if one.param_type_name == "option" and not (one.is_flag or one.count)
        for flag in (*one.opts, *one.secondary_opts)
    }
    rest = iter(words)
    for word in rest:
        if word == "--":
            return
        name, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        if name in options:
            yield options[name], value if equals else next(rest, "")


Model: TypeAlias = Annotated[Path, typer.Argument(help="An ONNX file.", show_default=False)]
ModelOrPlan: TypeAlias = Annotated[
    Path, typer.Argument(help="An ONNX file, or a plan written by `tvmtarget explain --save`.", show_default=False)
]
Where: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        help="Constrain operations: NAME=CONSTRAINT or op:KIND=CONSTRAINT, such as 'op:Gemm=@cpu'; NAME may be a "
        "glob, and the last rule that matches an operation applies.",
        show_default=False,
    ),
]
AllowInterpreter: TypeAlias = Annotated[
    bool,
    typer.Option("--allow-interpreter", help="Interpret leaves without an installed code generator by numpy."),
]
NoCache: TypeAlias = Annotated[
    bool, typer.Option("--no-cache", help="Compile all code anew, and do not store it in the compile cache.")
]
Jobs: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        min=1,
        metavar="N",
        help="The number of processes that compile functions; by default as many as save time.",
        show_default=False,
    ),
]
Log: TypeAlias = Annotated[
    str | None, typer.Option("--log", help="The tuning log to use: a .jsonl or .db file, or a URL.", show_default=False)
]
Near: TypeAlias = Annotated[
    bool, typer.Option("--near", help="Also use records of similar devices where the log has none of an equal device.")
]
Insecure: TypeAlias = Annotated[
    bool, typer.Option("--insecure", help="Accept a scheduler without TLS: anyone who reaches it may run code as you.")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def check_folders(*paths: Path | None) -> None:
    """Check that the folders of files to write exist, before work whose results would be lost.

    Args:
        paths: the files; None for an option that is not given.

    Raises:
        ArtifactError: the folders of files do not exist; the error lists all of them.
    """
    absent = [path for path in paths if path is not None and not path.parent.is_dir()]
    raise_all(
        ArtifactError,
        [f"{str(path)!r} cannot be written: there is no directory {str(path.parent)!r}" for path in absent],
    )


def read_where(rules: Sequence[str] | None) -> dict[str, Constraint]:
    """Parse the rules of `--where`.

    Args:
        rules: Texts `NAME=CONSTRAINT`, in the order of the command line.

    Returns:
        Constraints by name or `op:KIND`; later rules take precedence.

    Raises:
        UsageError: Rules are not NAME=CONSTRAINT; the error lists all of them.
        TextError: Constraints are malformed; the error lists all of them.
    """
    from tvmtarget.target.constraints.constraint import Constraint

    found: dict[str, Constraint] = {}
    problems: list[str] = []
    for key, value in split_rules(rules or (), "--where").items():
        try:
            found[key] = Constraint.parse(value)
        except TvmTargetError as error:
            problems += [f"{problem} (in --where '{key}={value}')" for problem in str(error).splitlines()]
    raise_all(TextError, problems)
    return found


def split_rules(rules: Sequence[str], flag: str) -> dict[str, str]:
    """Split texts `NAME=CONSTRAINT` at the last '=' outside parentheses.

    Args:
        rules: The texts, in the order of the command line.
        flag: The name of the option, for error messages.

    Returns:
        Texts of constraints by name, in the order in which they apply.

    Raises:
        UsageError: Texts have no name or no constraint, or a name has two; the error lists all of them.
    """
    found: dict[str, str] = {}
    problems: list[str] = []
    for rule in rules:
        # Both names of operations and the parentheses of a constraint may contain "=".
        at = _last_equals(rule)
        key, value = rule[:at].strip(), rule[at + 1 :].strip()
        if at < 1 or not key or not value:
            problems.append(f"{flag} {rule!r} is not NAME=CONSTRAINT, such as 'op:Gemm=@cpu'")
            continue
        if found.setdefault(key, value) != value:
            problems.append(f"{flag} {key!r} is both {found[key]!r} and {value!r}; give one constraint")
    raise_all(UsageError, problems)
    return found


def _last_equals(rule: str) -> int:
    """Return the position of the last '=' outside parentheses, or -1."""
    depth = 0
    for at in range(len(rule) - 1, -1, -1):
        depth += (rule[at] == ")") - (rule[at] == "(")
        if rule[at] == "=" and depth == 0:
            return at
    return -1


def print_json(data: object) -> None:
    """Print data as indented JSON.

    JSON has no numbers that are not finite: these are printed as the texts "Infinity", "-Infinity" and "NaN".

    Args:
        data: What `json.dumps` accepts.
    """
    # Names in models may be of any script, and escapes would make them unreadable.
    try:
        text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    except ValueError:
        # Python writes these numbers as words, which are read again as texts here.
        finite = json.loads(json.dumps(data), parse_constant=str)
        text = json.dumps(finite, indent=2, ensure_ascii=False)
    typer.echo(text)
