"""`tvmtarget show`: print a target as a tree, or in another form."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from tvmtarget.cli.option_groups import with_option_groups
from tvmtarget.cli.options import Json, UsageError, print_json
from tvmtarget.cli.targets import TargetArgument, TargetEdits, read_target
from tvmtarget.human_units import bytes_text, rate_text
from tvmtarget.untrusted import printable

if TYPE_CHECKING:
    from rich.tree import Tree

    from tvmtarget.target.topology import Topology
    from tvmtarget.target.tree import Target

__all__ = ["show"]

_UNBROKEN = 100_000  # letters of a line that is not written to a terminal, where rich would break it at 80


@with_option_groups
def show(
    context: typer.Context,
    target: TargetArgument,
    edits: TargetEdits,
    as_json: Json = False,
    as_toml: Annotated[bool, typer.Option("--toml", help="Print TOML.")] = False,
    as_text: Annotated[bool, typer.Option("--text", help="Print the text form, one line per node.")] = False,
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Fill in the default host, executor and runtime.")
    ] = False,
    origin: Annotated[bool, typer.Option("--origin", help="Print where each value comes from.")] = False,
    codegen: Annotated[
        bool, typer.Option("--codegen", help="Print the groups of leaves that can run the same code.")
    ] = False,
) -> None:
    """Print a target as a tree, or in another form."""
    forms = [name for name, given in (("--json", as_json), ("--toml", as_toml), ("--text", as_text)) if given]
    if len(forms) > 1:
        raise UsageError(f"{' and '.join(forms)} are {len(forms)} forms; choose one")
    if (as_toml or as_text) and (origin or codegen):
        raise UsageError(f"{forms[0]} has no place for {'--origin' if origin else '--codegen'}; use --json for both")
    tree = read_target(target, edits, context.args)
    resolved_tree = tree.resolve()
    shown = resolved_tree if resolved else tree
    if as_json:
        print_json(_data(shown, origin=origin, codegen=codegen))
        return
    if as_toml or as_text:
        # TOML brings its own line break at the end.
        typer.echo(shown.to_toml() if as_toml else shown.pretty(), nl=as_text)
        return
    _draw(resolved_tree)
    typer.echo(f"text    {shown}")
    typer.echo(f"digest  {tree.digest}")
    if origin:
        _print_origins(shown)
    if codegen:
        _print_groups(resolved_tree)


def _data(tree: Target, *, origin: bool, codegen: bool) -> dict[str, object]:
    """Return the target as flat JSON; with origins or groups, an object with each under its name."""
    from tvmtarget.target.keys import codegen_groups

    parts: dict[str, object] = {"target": tree.to_json()}
    if origin:
        parts["origin"] = {path: found.to_json() for path, found in tree.origins()}
    if codegen:
        parts["codegen"] = [group.to_json() for group in codegen_groups(tree)]
    return parts if len(parts) > 1 else tree.to_json()


def _draw(target: Target) -> None:
    from rich.console import Console
    from rich.tree import Tree

    from tvmtarget.target.topology import Topology

    drawn = Tree(_label("", target))
    _grow(drawn, target, "", Topology(target))
    Console(highlight=False, width=None if sys.stdout.isatty() else _UNBROKEN).print(drawn)


def _print_origins(tree: Target) -> None:
    origins = dict(tree.origins())
    width = max(map(len, origins))
    for path, found in origins.items():
        typer.echo(f"{path:{width}}  {found}")


def _print_groups(tree: Target) -> None:
    from tvmtarget.target.keys import codegen_groups

    for group in codegen_groups(tree):
        leaves = ", ".join(f"@{leaf or '.'}" for leaf in group.leaves)
        typer.echo(f"{group.codegen_key}  system @{group.system or '.'}: {leaves}")


def _label(name: str, node: Target) -> str:
    from rich.markup import escape

    head = f"[bold]{escape(name)}[/bold] {node.kind}" if name else f"[bold]{escape(node.tag or node.kind)}[/bold]"
    return head + (f" x {node.count}" if node.count > 1 else "")


def _grow(tree: Tree, node: Target, path: str, topology: Topology) -> None:
    """Add the facts and the children of a node to its branch of the drawn tree."""
    from rich.text import Text

    for line in _facts(node, path, topology):
        # A `Text`, because rich would read the square brackets of a plain string as markup.
        tree.add(Text(printable(line), style="dim", overflow="fold"))
    for child in node.targets:
        site = f"{path}/{child.replicas[0]}".lstrip("/")
        _grow(tree.add(_label(child.slot, child)), child, site, topology)


def _facts(node: Target, path: str, topology: Topology) -> Iterator[str]:
    # As in the one-line text. Features have signs of their own.
    attrs = [f"{key}={_joined(value) if isinstance(value, tuple) else value}" for key, value in node.attrs.items()]
    if attrs:
        yield ", ".join(attrs)
    if topology[path].host != path:
        yield f"host @{topology[path].host}"
    for memory in node.memory:
        shared = f" of {', '.join(memory.of)}" if memory.of else ""
        size = "size unknown" if memory.bytes is None else bytes_text(memory.bytes)
        yield f"memory {memory.name}: {size}{shared}"
    for link in node.links:
        speed = f" {rate_text(link.bandwidth_Bps)}" if link.bandwidth_Bps is not None else ""
        yield f"link {link.src} - {link.dst}{speed}{', coherent' if link.coherent else ''}"
    for role in ("executor", "runtime"):
        configured = getattr(node, role)
        if configured is not None:
            yield f"{role} {configured.kind}" + "".join(f" {key}={value}" for key, value in configured.attrs.items())


def _joined(values: tuple[object, ...]) -> str:
    words = list(map(str, values))
    return ("" if all(word[:1] in ("+", "-") for word in words) else "+").join(words)
