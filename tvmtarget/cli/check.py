"""`tvmtarget check`: whether a target is consistent, and whether it meets constraints."""

from __future__ import annotations

from typing import Annotated

import typer

from tvmtarget.cli.groups import with_groups
from tvmtarget.cli.options import Json, print_json
from tvmtarget.cli.targets import Changes, TargetArgument, read_target

__all__ = ["check"]


@with_groups
def check(
    context: typer.Context,
    target: TargetArgument,
    changes: Changes,
    satisfies: Annotated[
        list[str] | None,
        typer.Option("--satisfies", help="A constraint, or a tag as one: at least that.", show_default=False),
    ] = None,
    unknown: Annotated[bool, typer.Option("--unknown", help="Take what the target does not say for a yes.")] = False,
    as_json: Json = False,
) -> None:
    """Say whether a target is consistent, and whether it meets constraints and why; exit code 1 if not."""
    from tvmtarget.tags.finding import answer, read_constraint
    from tvmtarget.tags.registry import default_registry

    tree, registry = read_target(target, changes, context.args), default_registry()
    tree.resolve()
    asked = {text: read_constraint(registry, text) for text in satisfies or ()}
    measured = target == "native" and not changes and not context.args
    answers = {text: answer(registry, tree, constraint, measured=measured) for text, constraint in asked.items()}
    met = {text: one.reason.is_possible if unknown else bool(one.reason) for text, one in answers.items()}
    if as_json:
        told = [{"constraint": text, "is_met": met[text], **one.to_json()} for text, one in answers.items()]
        print_json({"target": tree.to_json(), "is_consistent": True, "constraints": told})
    else:
        typer.echo("\n".join([f"consistent: {tree}", *map(str, answers.values())]))
    if not all(met.values()):
        raise typer.Exit(1)
