"""Layering of packages: imports point down and have no cycles; lazy imports are counted."""

import ast
from functools import cache
from pathlib import Path

import networkx as nx
from tools.draw_architecture import picture

ROOT = Path(__file__).parents[1] / "tvmtarget"

# Lowest first; a module belongs to the longest entry that its name begins with.
LEVELS = (
    (
        "version",
        "compile_cache",
        "errors",
        "files",
        "garbage_collection",
        "human_units",
        "plugins",
        "python_process",
        "union_find",
        "untrusted",
    ),
    ("target", "artifact"),
    ("tags", "ir"),
    ("support", "toolchains"),
    ("partition",),
    ("backends", "autotune.log"),
    ("executors",),
    ("runtimes",),
    ("building",),
    ("autotune",),
    ("cli",),
    ("__main__",),
)


def modules():
    """Map module names, without the package, to their files; the top-level package is left out."""
    names = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            names[name] = path
    return names


def imports(path, known):
    """Yield the modules of the package that a file imports anywhere, but not those for type checkers alone."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped or not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        base = node.module.removeprefix("tvmtarget").removeprefix(".")
        if not node.module.startswith("tvmtarget"):
            continue
        for alias in node.names:
            full = f"{base}.{alias.name}".lstrip(".")
            yield full if full in known else base


@cache
def graph():
    known = modules()
    edges = nx.DiGraph()
    edges.add_nodes_from(known)
    for name, path in known.items():
        edges.add_edges_from((name, other) for other in imports(path, known) if other in known and other != name)
    return edges


def package(name):
    """Return the longest entry of LEVELS that a module's name begins with."""
    entries = [entry for level in LEVELS for entry in level if name == entry or name.startswith(entry + ".")]
    return max(entries, key=len, default=None)


def level(name):
    return next(number for number, entries in enumerate(LEVELS) if package(name) in entries)


def test_every_module_has_a_level():
    assert [name for name in modules() if package(name) is None] == []


def test_imports_point_down_and_packages_of_one_level_do_not_import_each_other():
    wrong = [
        (name, other)
        for name, other in graph().edges
        if package(name) != package(other) and level(other) >= level(name) and level(name) > 0
    ]
    assert wrong == []


def test_imports_have_no_cycles():
    assert list(nx.simple_cycles(graph())) == []


def test_submodules_do_not_have_names_of_public_functions():
    import tvmtarget as tt

    assert not {name for name in modules() if "." not in name} & set(tt.__all__)


def test_the_picture_of_the_architecture_is_that_of_the_code(request):
    page = ROOT.parent / "docs" / "architecture.md"
    before, _, rest = page.read_text(encoding="utf-8").partition("<!-- packages -->\n")
    _, _, after = rest.partition("<!-- /packages -->")
    drawn = picture(LEVELS, sorted(graph().edges), package)
    expected = f"{before}<!-- packages -->\n{drawn}<!-- /packages -->{after}"
    if request.config.getoption("--rewrite-goldens"):
        page.write_text(expected, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == expected
