"""`tvmtarget check`: validate a target and test whether it satisfies constraints."""

from __future__ import annotations

from typing import Annotated

import typer

from tvmtarget.cli.option_groups import with_option_groups
from tvmtarget.cli.options import Json, UsageError, print_json
from tvmtarget.cli.targets import TargetArgument, TargetEdits, read_target

__all__ = ["check"]


@with_option_groups
def check(
    context: typer.Context,
    target: TargetArgument,
    edits: TargetEdits,
    satisfies: Annotated[
        list[str] | None,
        typer.Option(
            "--satisfies",
            help="A constraint, such as 'gpu(arch>=sm_80)', or a tag that the target has to match or exceed.",
            show_default=False,
        ),
    ] = None,
    unknown: Annotated[
        bool, typer.Option("--unknown", help="Accept constraints on values that the target does not state.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check that a target is consistent, and that it satisfies constraints.

    The reason is printed for each constraint. The exit code is 1 if one is not satisfied.
    """
    from tvmtarget.tags.finding import check_target, read_constraint
    from tvmtarget.tags.registry import default_registry

    if unknown and not satisfies:
        raise UsageError("--unknown has no effect without --satisfies; add --satisfies CONSTRAINT")
    tree, registry = read_target(target, edits, context.args), default_registry()
    # Only its errors are of interest: an inconsistent target cannot be resolved.
    tree.resolve()
    # All constraints are parsed before one is tested, so that a typing error is reported before any answer.
    constraints = {text: read_constraint(registry, text) for text in satisfies or ()}
    # Facts count as measured only if nothing on the command line changed them.
    measured = target == "native" and not edits and not context.args
    answers = {
        text: check_target(registry, tree, constraint, measured=measured) for text, constraint in constraints.items()
    }
    met = {text: one.reason.is_possible if unknown else bool(one.reason) for text, one in answers.items()}
    if as_json:
        rows = [{"constraint": text, "is_met": met[text], **one.to_json()} for text, one in answers.items()]
        print_json({"target": tree.to_json(), "is_consistent": True, "constraints": rows})
    else:
        typer.echo("\n".join([f"consistent: {tree}", *map(str, answers.values())]))
    if not all(met.values()):
        raise typer.Exit(1)
