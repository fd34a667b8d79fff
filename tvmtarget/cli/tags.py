"""`tvmtarget tags`: what can be named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tvmtarget.cli.options import Json, print_json

if TYPE_CHECKING:
    from tvmtarget.tags.registry import Registry

__all__ = ["tags"]


def tags(
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
    as_json: Json = False,
) -> None:
    """List the tags: names of instances, boards and chips that stand for whole target trees."""
    from tvmtarget.tags.registry import default_registry

    registry = default_registry()
    wanted = [word.lower() for word in words or ()]
    found = [registry.info(name) for name in (registry if constraint is None else _satisfying(registry, constraint))]
    found = [info for info in found if all(word in f"{info.name} {info.doc} {info.aliases}".lower() for word in wanted)]
    if as_json:
        print_json(
            [{"tag": i.name, "doc": i.doc, "aliases": list(i.aliases), "sources": list(i.sources)} for i in found]
        )
        return
    width = max((len(info.name) for info in found), default=0)
    for info in found:
        typer.echo(f"{info.name:{width}}  {info.doc}")
    if not found:
        met = [] if constraint is None else [f"satisfies {constraint!r}"]
        missed = " and ".join([*met, *(f"contains {word!r}" for word in wanted)])
        typer.echo(f"no tag {missed}; `tvmtarget tags` lists all", err=True)
        raise typer.Exit(1)


def _satisfying(registry: Registry, text: str) -> tuple[str, ...]:
    from tvmtarget.tags.finding import read_constraint, satisfying

    return satisfying(registry, read_constraint(registry, text)).satisfied
