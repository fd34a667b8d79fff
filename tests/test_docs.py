"""The documentation speaks of everything that users can say, and its Python is run."""

import doctest
import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import tvmtarget as tt
from tvmtarget.cli.main import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def options(command, path=()):
    """Yield the long options of a command and of those below it, each with the command's name."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from options(inner, (*path, name))
    for parameter in command.params if path else ():
        yield from ((" ".join(path), option) for option in parameter.opts if option.startswith("--"))


def is_documented(word):
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", TEXT) is not None


def test_every_option_of_a_command_is_documented():
    undocumented = [(command, one) for command, one in options(typer.main.get_command(app)) if not is_documented(one)]
    assert not undocumented


BLOCKS = "".join(re.findall(r"^```\w*\n(.*?)^```", TEXT.replace("\\\n", " "), re.MULTILINE | re.DOTALL))
COMMANDS = sorted({*re.findall(r"^(?:\$ )?tvmtarget (.*)$", BLOCKS, re.MULTILINE)})


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_line_has_only_options_of_its_command(line):
    words, command = shlex.split(line, comments=True), typer.main.get_command(app)
    while hasattr(command, "commands"):
        # `tags` lists tags unless a command follows.
        name = words.pop(0) if words and words[0] in command.commands else "list"
        command = command.commands[name]
    command.make_context("tvmtarget", words)  # raises UsageError for other words


@pytest.mark.parametrize("name", [name for name in tt.__all__ if inspect.isfunction(getattr(tt, name))])
def test_every_parameter_of_a_public_function_is_documented(name):
    assert not [one for one in inspect.signature(getattr(tt, name)).parameters if not is_documented(one)]


def test_all_that_a_strategy_may_state_is_documented():
    assert not [name for name in inspect.get_annotations(tt.Strategy) if name[0] != "_" and not is_documented(name)]


def test_the_python_of_the_page_on_plugins_runs(tmp_path):
    """In a process of its own, as it registers kinds."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8"), re.DOTALL)
    script = tmp_path / "plugins_page.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    done = subprocess.run([sys.executable, script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(blocks) > 7


def test_the_main_job_of_the_readme_prints_what_it_says():
    """The first command is run; of the last line only the words are the same everywhere."""
    pytest.importorskip("onnxruntime", reason="pip install tvmtarget[onnxruntime]")
    pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")
    command, printed = re.search(r"bin/tvmtarget (run .*)$(?s:.*?)```\n(@ort .*?)```", TEXT, re.M | re.S).groups()
    run = [sys.executable, "-c", "import sys; from tvmtarget.cli.main import main; sys.exit(main(sys.argv[1:]))"]
    words = shlex.split(command.splitlines()[0])
    done = subprocess.run([*run, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[:-1] == printed.splitlines()[:-1]


def test_the_python_of_the_readme_and_of_the_compile_cache_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime", reason="pip install tvmtarget[onnxruntime]")
    pytest.importorskip("tvm", reason="pip install tvmtarget[tvm]")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    relu = tt.IRModule.parse("func @main(%x: float32[2]) opsets(onnx=17) { %y = onnx.Relu(%x) return %y }")
    names: dict[str, Any] = {"model": relu}
    for page in ("README.md", "docs/compile-cache.md"):
        text = (
            (ROOT / page)
            .read_text(encoding="utf-8")
            .replace('"/ci/cache"', '"cache"')
            .replace('"llvm"', '"onnxruntime"')
        )
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(compile(block, page, "exec"), names)
    assert "fc1 (Gemm) runs on @node1/cpu" in capsys.readouterr().out
    assert names["logits"].shape == (450, 10)


def headings(page):
    """Return the anchors of the headings of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    "page", sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]), ids=lambda page: page.name
)
def test_links_lead_to_pages_and_headings_that_exist(page):
    prose = re.sub(
        r"^```.*?^```|^    .*?$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    links = [link.partition("#")[::2] for link in re.findall(r"\]\(([^)\s]+)\)", prose) if "://" not in link]
    assert not [name for name in re.findall(r"\bdocs/[\w-]+\.md", prose) if not (ROOT / name).exists()]
    for path, heading in links:
        linked = page.parent / path if path else page
        assert linked.exists(), path
        assert not heading or heading in headings(linked), f"{path}#{heading}"


def test_the_page_on_graphs():
    failed, tried = doctest.testfile(str(ROOT / "docs" / "graphs.md"), module_relative=False)
    assert tried
    assert not failed
