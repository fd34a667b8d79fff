"""`tvmtarget show`: a target as a tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from tvmtarget.cli.options import Json, print_json, read_target

if TYPE_CHECKING:
    from rich.tree import Tree

    from tvmtarget.target.layout import Layout
    from tvmtarget.target.tree import Target

__all__ = ["show"]


def show(
    target: Annotated[str, typer.Argument(help="A tag, a text, JSON, or native.", show_default=False)],
    as_json: Json = False,
    resolved: Annotated[bool, typer.Option("--resolved", help="Fill in host, executor and runtime.")] = False,
) -> None:
    """Draw a target tree, or print it as JSON."""
    from tvmtarget.target.layout import Layout

    tree = read_target(target)
    whole = tree.resolve()
    if as_json:
        print_json((whole if resolved else tree).to_json())
        return
    from rich.console import Console
    from rich.tree import Tree

    drawn = Tree(_label("", whole))
    _grow(drawn, whole, "", Layout(whole))
    Console(soft_wrap=True, highlight=False).print(drawn)
    typer.echo(f"text    {tree}")
    typer.echo(f"digest  {tree.digest}")


def _label(name: str, node: Target) -> str:
    from rich.markup import escape

    head = f"[bold]{escape(name)}[/bold] {node.kind}" if name else f"[bold]{escape(node.tag or node.kind)}[/bold]"
    return head + (f" x {node.count}" if node.count > 1 else "")


def _grow(tree: Tree, node: Target, path: str, layout: Layout) -> None:
    from rich.markup import escape

    for line in _facts(node, path, layout):
        tree.add(f"[dim]{escape(line)}[/dim]")
    for child in node.targets:
        site = f"{path}/{child.replicas[0]}".lstrip("/")
        _grow(tree.add(_label(child.slot, child)), child, site, layout)


def _facts(node: Target, path: str, layout: Layout) -> Iterator[str]:
    attrs = [
        f"{key}={'+'.join(map(str, value)) if isinstance(value, tuple) else value}" for key, value in node.attrs.items()
    ]
    if attrs:
        yield ", ".join(attrs)
    if layout[path].host != path:
        yield f"driven by @{layout[path].host}"
    for memory in node.memory:
        shared = f" of {', '.join(memory.of)}" if memory.of else ""
        size = "size unknown" if memory.bytes is None else f"{memory.bytes} bytes"
        yield f"memory {memory.name}: {size}{shared}"
    for link in node.links:
        speed = f" {link.bandwidth_Bps} B/s" if link.bandwidth_Bps is not None else ""
        yield f"link {link.src} - {link.dst}{speed}{', coherent' if link.coherent else ''}"
    for role in ("executor", "runtime"):
        configured = getattr(node, role)
        if configured is not None:
            yield f"{role} {configured.kind}" + "".join(f" {key}={value}" for key, value in configured.attrs.items())
