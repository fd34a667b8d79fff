"""The house of DESIGN: imports point down, floors do not mix, nothing goes in circles (lazy imports are counted)."""

import ast
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).parents[1] / "tvmtarget"

# Lowest first; a module belongs to the first entry that its name begins with, within the package.
FLOORS = (
    ("version", "errors", "files", "plugins", "python_process", "untrusted"),
    ("target", "artifact"),
    ("tags", "ir"),
    ("partition",),
    ("backends", "executors", "tuning"),
    ("executable", "advice", "comparison", "effects"),
    ("code_building",),
    ("building",),
    ("tuner",),
    ("cli",),
    ("__main__",),
)


def modules():
    """Map module names, without the package, to their files; the package's face is left out."""
    names = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            names[name] = path
    return names


def imports(path, known):
    """Yield the modules of the house that a file imports anywhere, but not those for type checkers alone."""
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


def graph():
    known = modules()
    edges = nx.DiGraph()
    edges.add_nodes_from(known)
    for name, path in known.items():
        edges.add_edges_from((name, other) for other in imports(path, known) if other in known and other != name)
    return edges


def room(name):
    return name.split(".")[0]


def floor(name):
    return next(level for level, rooms in enumerate(FLOORS) if room(name) in rooms)


def test_every_module_has_a_floor():
    assert {room(name) for name in modules()} == {name for rooms in FLOORS for name in rooms}


def test_imports_point_down_and_rooms_on_one_floor_do_not_import_each_other():
    wrong = [
        (name, other)
        for name, other in graph().edges
        if room(name) != room(other) and floor(other) >= floor(name) and floor(name) > 0
    ]
    assert wrong == []


def test_there_are_no_circles():
    assert list(nx.simple_cycles(graph())) == []


def test_submodules_do_not_bear_names_of_public_functions():
    import tvmtarget as tt

    assert not {name for name in modules() if "." not in name} & set(tt.__all__)
