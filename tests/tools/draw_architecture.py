"""The generated part of docs/architecture.md: packages and their imports as a picture.

Written anew by `pytest tests/test_layering.py --rewrite-goldens`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

__all__ = ["picture"]

# Every package may import these, so that arrows to them say nothing.
_BASE = 0


def picture(
    levels: Sequence[Sequence[str]],
    imports: Sequence[tuple[str, str]],
    package: Callable[[str], str],
) -> str:
    """Return the packages as a Mermaid diagram, a box for each level.

    Args:
        levels: the packages of each level, the lowest first.
        imports: pairs of a module and one that it imports.
        package: the package that a module belongs to.
    """
    edges = {(package(source), package(target)) for source, target in imports}
    level_of = {name: number for number, names in enumerate(levels) for name in names}
    lines = ["```mermaid", "flowchart BT"]
    for number, names in enumerate(levels):
        lines.append(f'  subgraph level{number}["level {number}"]')
        if number == _BASE:
            lines.append(f'    base["{", ".join(names)}"]')
        else:
            lines += [f'    {_key(name)}["{name}"]' for name in names]
        lines.append("  end")
    for source, target in sorted(edges):
        if source != target and level_of[target] > _BASE and level_of[source] - level_of[target] <= 2:
            lines.append(f"  {_key(source)} --> {_key(target)}")
    lines += [f"  level{lower} ~~~ level{upper}" for lower, upper in pairwise(range(len(levels)))]
    return "\n".join((*lines, "```")) + "\n"


def _key(name: str) -> str:
    return name.replace(".", "_").replace("__", "")
