"""`tvmtarget tags`: list the named targets, check files that define them, and add one to a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tvmtarget.cli.options import Json, UsageError, print_json
from tvmtarget.cli.targets import read_target
from tvmtarget.errors import TargetError, TvmTargetError
from tvmtarget.human_units import counted

if TYPE_CHECKING:
    from tvmtarget.tags.registry import Registry, TagInfo

__all__ = ["app"]

_LIST = "list"


class _ListsByDefault(TyperGroup):
    """A group of commands with a default: `tvmtarget tags aws` means `tvmtarget tags list aws`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own context, not click's
        is_command = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if is_command else [_LIST, *args])


app = typer.Typer(cls=_ListsByDefault, help="List, check and add tags: names of whole targets.")


@app.command(_LIST)
def list_tags(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Find tags by words of their names and descriptions, such as 'h100 8', rpi4 or c5.4xlarge.",
            show_default=False,
        ),
    ] = None,
    constraint: Annotated[
        str | None,
        typer.Option(
            "--satisfying",
            help="List tags that satisfy a constraint, such as 'gpu(arch>=sm_80)', or match or exceed a tag.",
            show_default=False,
        ),
    ] = None,
    families: Annotated[bool, typer.Option("--family", help="List families, without the sizes of each.")] = False,
    abstract: Annotated[
        bool, typer.Option("--abstract", help="List bases of other tags, and configurations for --with.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List tags: the names of cloud instances, boards and chips (the default command)."""
    from tvmtarget.tags.registry import default_registry
    from tvmtarget.tags.search import same_boards, search_tags

    if abstract and constraint is not None:
        raise UsageError("--abstract and --satisfying exclude each other: bases of tags are no whole targets")
    registry = default_registry()
    # Problems of the shipped files are left out: users cannot correct these.
    for problem in registry.problems(shipped=False):
        typer.echo(f"warning: {problem}", err=True)
    names = None if not abstract else registry.abstract()
    if constraint is not None:
        names = _satisfying(registry, constraint)
    try:
        found = search_tags(words or (), registry=registry, among=names)
    except TargetError as error:
        raise typer.BadParameter(str(error)) from error
    if families:
        found = tuple(name for name in found if registry.info(name).family is None)
    if not found:
        typer.echo(_nothing_found(registry, words or [], constraint), err=True)
        raise typer.Exit(1)
    same = same_boards(registry, found)
    if as_json:
        print_json([_data(registry.info(name), same[name]) for name in found])
        return
    width = max(map(len, found))
    for name in found:
        info = registry.info(name)
        remarks = [f"same as {', '.join(same[name])}"] if same[name] else []
        remarks += [f"deprecated; use {info.deprecated}"] if info.deprecated else []
        typer.echo(f"{name:{width}}  {info.doc}" + (f" ({'; '.join(remarks)})" if remarks else ""))


def _nothing_found(registry: Registry, words: list[str], constraint: str | None) -> str:
    from tvmtarget.tags.search import closest_tags
    from tvmtarget.target.kinds import find_kind

    conditions = [] if constraint is None else [f"satisfies {constraint!r}"]
    conditions += [f"matches {' '.join(words)!r}"] if words else []
    near = closest_tags(registry, words) if words else ()
    tail = f"did you mean {' or '.join(map(repr, near))}?" if near else "`tvmtarget tags` lists all"
    if len(words) == 1 and find_kind(words[0]) is not None:
        tail = f"`tvmtarget tags --satisfying {words[0]}` lists the tags that have a node of this kind"
    return f"no tag {' and '.join(conditions)}; {tail}"


def _data(info: TagInfo, same: Sequence[str]) -> dict[str, object]:
    data: dict[str, object] = {"tag": info.name, "doc": info.doc, "aliases": list(info.aliases)}
    data |= {"sources": list(info.sources), "confidence": info.confidence, "file": str(info.file)}
    data |= {"family": info.family} if info.family else {}
    data |= {"same_as": list(same)} if same else {}
    return data | ({"deprecated": info.deprecated} if info.deprecated else {})


def _satisfying(registry: Registry, text: str) -> tuple[str, ...]:
    from tvmtarget.tags.finding import find_satisfying, read_constraint

    return find_satisfying(registry, read_constraint(registry, text)).satisfied


@app.command("check")
def check(
    files: Annotated[list[Path], typer.Argument(help="Tag files: NAMESPACE.toml, tvmtarget.toml, pyproject.toml.")],
) -> None:
    """Check tag files: parse, build and resolve every tag, and print all problems."""
    from tvmtarget.tags.checking import check_file

    problems = [problem for file in files for problem in check_file(file)]
    for problem in problems:
        typer.echo(f"error: {problem}", err=True)
    if problems:
        raise typer.Exit(1)
    typer.echo(f"{counted(len(files), 'file')}, no problems found")


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of tag files, for editors."""
    from tvmtarget.tags.schema import tag_file_schema

    print_json(tag_file_schema())


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="The name of the tag, such as acme/box.")],
    target: Annotated[
        str, typer.Option("--target", "-t", help="The target to name; this machine by default.")
    ] = "native",
    file: Annotated[Path, typer.Option("--file", help="The tag file to add it to.")] = Path("tvmtarget.toml"),
    doc: Annotated[str, typer.Option("--doc", help="A description for people.")] = "",
) -> None:
    """Add a tag for this machine, or for a target, to the tag file of the project."""
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
