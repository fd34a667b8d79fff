"""`tvmtarget tags`: what can be named; `check` lints a file of tags, `schema` describes one, `add` writes to one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tvmtarget.cli.options import Json, print_json
from tvmtarget.cli.targets import read_target
from tvmtarget.errors import TargetError, TvmTargetError

if TYPE_CHECKING:
    from tvmtarget.tags.registry import Registry, TagInfo

__all__ = ["app"]

_LIST = "list"


class _ListsByDefault(TyperGroup):
    """A group whose first word need not be a command: `tvmtarget tags aws` lists."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own context, not click's
        is_command = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if is_command else [_LIST, *args])


app = typer.Typer(cls=_ListsByDefault, help="List, check and add tags: names that stand for whole target trees.")


@app.command(_LIST)
def list_tags(
    words: Annotated[
        list[str] | None, typer.Argument(help="Show tags that contain all of these.", show_default=False)
    ] = None,
    constraint: Annotated[
        str | None,
        typer.Option(
            "--satisfying",
            help="Show tags that satisfy a constraint, 'gpu(arch>=sm_80)', or are at least a tag.",
            show_default=False,
        ),
    ] = None,
    families: Annotated[bool, typer.Option("--family", help="Show families, not the sizes they have.")] = False,
    abstract: Annotated[
        bool, typer.Option("--abstract", help="Show what is no system: bases, and configurations for --with.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the tags: names of instances, boards and chips that stand for whole target trees (the default)."""
    from tvmtarget.tags.registry import default_registry

    registry = default_registry()
    for problem in registry.problems_of_others():
        typer.echo(f"warning: {problem}", err=True)
    names: Iterable[str] = registry.abstract() if abstract else registry
    if constraint is not None:
        names = _satisfying(registry, constraint)
    wanted = [word.lower() for word in words or ()]
    found = [info for info in map(registry.info, names) if _matches(info, wanted)]
    if families:
        found = [info for info in found if info.family is None]
    if as_json:
        print_json([_data(info) for info in found])
        return
    width = max((len(info.name) for info in found), default=0)
    for info in found:
        gone = f" (deprecated; use {info.deprecated})" if info.deprecated else ""
        typer.echo(f"{info.name:{width}}  {info.doc}{gone}")
    if not found:
        met = [] if constraint is None else [f"satisfies {constraint!r}"]
        missed = " and ".join([*met, *(f"contains {word!r}" for word in wanted)])
        typer.echo(f"no tag {missed}; `tvmtarget tags` lists all", err=True)
        raise typer.Exit(1)


def _matches(info: TagInfo, words: list[str]) -> bool:
    text = f"{info.name} {info.doc} {' '.join(info.aliases)}".lower()
    return all(word in text for word in words)


def _data(info: TagInfo) -> dict[str, object]:
    data: dict[str, object] = {"tag": info.name, "doc": info.doc, "aliases": list(info.aliases)}
    data |= {"sources": list(info.sources), "confidence": info.confidence, "file": str(info.file)}
    data |= {"family": info.family} if info.family else {}
    return data | ({"deprecated": info.deprecated} if info.deprecated else {})


def _satisfying(registry: Registry, text: str) -> tuple[str, ...]:
    from tvmtarget.tags.finding import read_constraint, satisfying

    return satisfying(registry, read_constraint(registry, text)).satisfied


@app.command("check")
def check(
    files: Annotated[list[Path], typer.Argument(help="Tag files: NAMESPACE.toml, tvmtarget.toml, pyproject.toml.")],
) -> None:
    """Check files of tags: every row is read, built and resolved; all that is wrong is told."""
    from tvmtarget.tags.checking import check_file

    problems = [problem for file in files for problem in check_file(file)]
    for problem in problems:
        typer.echo(f"error: {problem}", err=True)
    if problems:
        raise typer.Exit(1)
    typer.echo(f"{len(files)} file{'s' if len(files) != 1 else ''}, nothing wrong")


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of files of tags, for editors."""
    from tvmtarget.tags.schema import tag_file_schema

    print_json(tag_file_schema())


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="The name to give, as acme/box.")],
    target: Annotated[str, typer.Option("--target", "-t", help="What it names; this machine unless given.")] = "native",
    file: Annotated[Path, typer.Option("--file", help="The file to add it to.")] = Path("tvmtarget.toml"),
    doc: Annotated[str, typer.Option("--doc", help="What it is, for people.")] = "",
) -> None:
    """Write a tag of this machine, or of a target, to the project's tag file."""
    from tvmtarget.tags.registry import default_registry
    from tvmtarget.tags.writing import add_tag

    tree = read_target(target)
    is_measured = target == "native"
    source = "measured by `tvmtarget detect`" if is_measured else f"given as {target!r}"
    confidence = "measured" if is_measured else "assumed"
    registry = default_registry()
    try:
        add_tag(file, name, tree, doc=doc, source=source, confidence=confidence, registry=registry)
    except OSError as error:
        raise TargetError(f"tag file {str(file)!r} cannot be written: {error.strerror}") from error
    except TvmTargetError as error:
        raise TargetError(*(f"{problem}; nothing was written" for problem in error.problems)) from error
    typer.echo(f"{name} is in {file}")
