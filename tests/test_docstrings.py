"""Public functions have complete Google-style docstrings: ruff checks their form, this that no section lacks."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "tvmtarget"
LONGEST = 90  # of a first line


def functions(tree):
    """Yield the public functions of a module, and the public methods of its public classes."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name, node
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_") and not is_property(inner):
                    yield f"{node.name}.{inner.name}", inner


def is_property(function):
    return any("property" in ast.unparse(one) or ast.unparse(one) == "overload" for one in function.decorator_list)


def is_command(path, function):
    """Tell whether typer prints the docstring of a function as help, which has no sections."""
    return path.parent.name == "cli" and any(
        "Annotated" in ast.unparse(one.annotation) or ast.unparse(one.annotation) in ("TargetEdits", "Log", "Json")
        for one in (*function.args.args, *function.args.kwonlyargs)
        if one.annotation is not None
    )


def raises(function):
    """Tell whether a function raises an error itself, not in a function inside of it."""
    waiting = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Raise) and node.exc is not None:
            return True
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
    return False


def missing(function):
    """Yield what the docstring of a function lacks."""
    text = ast.get_docstring(function) or ""
    arguments = function.args
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    names += [one.arg for one in (arguments.vararg, arguments.kwarg) if one is not None]
    names = [name for name in names if name not in ("self", "cls") and not name.startswith("_")]
    described = text.partition("Args:")[2]
    yield from (name for name in names if not re.search(rf"^\s+\*{{0,2}}{name}( \(.*\))?:", described, re.M))
    returned = "None" if function.returns is None else ast.unparse(function.returns)
    if names and returned not in ("None", "NoReturn", "Never"):
        yield from () if re.search(r"^\s*(Returns|Yields):", text, re.M) else ("Returns",)
    if raises(function) and "Raises:" not in text:
        yield "Raises"
    if len(text.partition("\n")[0]) > LONGEST:
        yield f"a first line of at most {LONGEST} characters"


@pytest.mark.parametrize("package", sorted({path.relative_to(ROOT).parts[0] for path in ROOT.rglob("*.py")}))
def test_docstrings_describe_arguments_results_and_errors(package):
    paths = [ROOT / package] if package.endswith(".py") else sorted((ROOT / package).rglob("*.py"))
    problems = [
        f"{path.relative_to(ROOT)}:{function.lineno} {name}: {', '.join(lacking)}"
        for path in paths
        for name, function in functions(ast.parse(path.read_text(encoding="utf-8")))
        if not is_command(path, function) and (lacking := list(missing(function)))
    ]
    assert not problems, "\n".join(problems)
