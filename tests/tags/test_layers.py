"""Layers of tags: their sources, overrides between them, and errors that do not affect other tags."""

import os
import subprocess
import sys
import tomllib
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest

from tvmtarget import Constraint, Target
from tvmtarget.errors import TargetError, TvmTargetWarning, UnknownNameError
from tvmtarget.tags.finding import find_satisfying
from tvmtarget.tags.registry import Registry, default_registry

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "tests" / "plugin"
BOX = 'schema = 1\n[tag.box]\nkind = "llvm"\nnum-cores = {cores}\n'
WHOLE = 'schema = 1\n[tag."acme/box"]\nkind = "llvm"\nnum-cores = {cores}\n'


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.fixture
def discover(tmp_path):
    """Return a function that finds the registry of a project folder with its own home."""

    def registry(**environ):
        project = tmp_path / "project" / "deep" / "down"
        project.mkdir(parents=True, exist_ok=True)
        return Registry.discover(project, {"HOME": str(tmp_path / "home"), **environ})

    return registry


def test_every_layer_is_found(tmp_path, discover):
    write(tmp_path / "home/.config/tvmtarget/tags/mine.toml", BOX.format(cores=1))
    write(tmp_path / "extra/other.toml", BOX.format(cores=2))
    write(tmp_path / "more/third.toml", BOX.format(cores=3))
    write(tmp_path / "project/tvmtarget.toml", WHOLE.format(cores=4))
    registry = discover(TVMTARGET_PATH=f"{tmp_path / 'extra'}:{tmp_path / 'more'}")
    cores = [registry[f"{name}/box"]["num-cores"] for name in ("mine", "other", "third", "acme")]
    assert cores == [1, 2, 3, 4]
    assert {"acme/box", "mine/box", "arm/rasp4b"} <= set(registry)
    assert {"acme", "mine", "arm"} <= set(registry.namespaces())
    assert registry.problems() == ()


def test_the_user_folder_follows_the_conventions_of_the_system(tmp_path, discover):
    write(tmp_path / "config/tvmtarget/tags/mine.toml", BOX.format(cores=1))
    assert "mine/box" in discover(XDG_CONFIG_HOME=str(tmp_path / "config"))
    assert "mine/box" not in discover()


def test_a_project_may_keep_its_tags_in_pyproject(tmp_path, discover):
    write(
        tmp_path / "project/pyproject.toml",
        '[project]\nname = "p"\n[tool.tvmtarget.tag."acme/box"]\nbase = "arm/rasp4b"\n"cpu/num-cores" = 2\n',
    )
    assert discover()["acme/box"].at("cpu")["num-cores"] == 2


def test_a_pyproject_without_our_table_ends_the_search(tmp_path, discover):
    write(tmp_path / "tvmtarget.toml", WHOLE.format(cores=1))
    assert "acme/box" in discover()
    write(tmp_path / "project/pyproject.toml", '[project]\nname = "p"\n')
    assert "acme/box" not in discover()


def test_a_name_in_two_layers_needs_override(tmp_path, discover):
    low = write(tmp_path / "low/acme.toml", BOX.format(cores=1))
    high = write(tmp_path / "project/tvmtarget.toml", WHOLE.format(cores=2))
    registry = discover(TVMTARGET_PATH=str(tmp_path / "low"))
    with pytest.raises(TargetError) as error:
        registry["acme/box"]
    assert str(error.value) == (
        f"tag 'acme/box' is defined twice: in {str(low)!r}, line 2 and in {str(high)!r}, line 2; "
        "set override = true in the second"
    )
    assert registry.problems() == (str(error.value),)
    assert registry["arm/rasp4b"]
    write(high, WHOLE.format(cores=2) + "override = true\n")
    assert discover(TVMTARGET_PATH=str(tmp_path / "low"))["acme/box"]["num-cores"] == 2


def test_a_name_in_two_files_of_a_folder_is_reported_with_both_lines(tmp_path):
    one = write(tmp_path / "acme.toml", "# a comment\n" + BOX.format(cores=1))
    other = write(tmp_path / "acme.more.toml", BOX.format(cores=2) + '[tag.crate]\nkind = "c"\n')
    registry = Registry(tmp_path)
    assert registry.problems() == (
        f"tag 'acme/box' is defined twice: in {str(other)!r}, line 2 and in {str(one)!r}, line 3",
    )
    assert list(registry) == ["acme/crate"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("schema = 1\n[tag.x\n", "is not TOML: expected ']'"),
        (b"schema = 1\n\xff", "is not UTF-8 text: byte 11 is 0xff"),
        ("schema = 2\n", "has schema 2; this version reads schema = 1"),
        ("#" * (4 * 2**20 + 1), "has 4,194,305 bytes, more than the limit of 4,194,304"),
        (f"schema = 1\nx = {'[' * 9999}{']' * 9999}\n", "is nested too deep"),
        ("schema = true\n", "has schema True; this version reads schema = 1"),
        ("schema = 1\ntag = [1]\n", "'tag' holds tables, not [1]"),
        ('schema = 1\n[tag.box]\nkind = "llvm"\n', "'box' is not a full name of a tag; add the vendor"),
        ('schema = 1\n[tag."a b"]\nkind = "llvm"\n', 'add the vendor, as in [tag."acme/my-board"]'),
        (
            'schema = 1\n[tag."acme/box"]\nkind = "llvm"\ndoc = 1\n',
            "'doc' is text, not 1, at tag 'acme/box', in tag file",
        ),
    ],
    ids=[
        "syntax",
        "not UTF-8",
        "schema",
        "huge",
        "deep",
        "schema of no number",
        "no tables",
        "short name",
        "invalid name",
        "note",
    ],
)
def test_a_broken_file_is_one_clear_error_and_every_other_tag_works(tmp_path, discover, content, problem):
    path = write(tmp_path / "project/tvmtarget.toml", content)
    registry = discover()
    # The file may define this tag anew, so a lookup warns; a row with a problem is known to be another tag.
    warned = pytest.warns(TvmTargetWarning, match="what it defines is ignored")
    expected = nullcontext() if "doc = 1" in str(content) else warned
    with expected:
        assert registry["arm/rasp4b"].at("cpu")["num-cores"] == 4
    assert registry["arm/rasp4b"]  # warned of once
    assert "arm/rasp4b" in list(registry)
    [reported] = registry.problems()
    assert problem in reported
    assert str(path) in reported
    with pytest.raises((TargetError, UnknownNameError)) as error:
        registry["acme/box"]
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: path.mkdir(), "tag file {!r} cannot be read: it is a directory"),
        (os.mkfifo, "tag file {!r} cannot be read: it is no regular file"),
        (lambda path: path.symlink_to("nowhere"), "no tag file {!r}"),
        (lambda path: path.symlink_to(path), "tag file {!r} cannot be read: Too many levels of symbolic links"),
        (lambda path: path.symlink_to("/dev/zero"), "tag file {!r} cannot be read: it is no regular file"),
    ],
    ids=["folder", "pipe", "link to nowhere", "link to itself", "endless"],
)
def test_a_path_that_is_no_file_is_one_clear_error_and_every_other_tag_works(tmp_path, discover, make, problem):
    write(tmp_path / "extra/other.toml", BOX.format(cores=2))
    make(tmp_path / "extra/acme.toml")
    registry = discover(TVMTARGET_PATH=str(tmp_path / "extra"))
    problem = problem.format(str(tmp_path / "extra/acme.toml"))
    assert registry.problems() == (problem,)
    assert {"other/box", "arm/rasp4b"} <= set(registry)
    with pytest.raises(UnknownNameError, match=problem):
        registry["acme/box"]


def test_a_file_that_goes_away_is_one_clear_error(tmp_path, discover):
    path = write(tmp_path / "extra/acme.toml", BOX.format(cores=2))
    registry = discover(TVMTARGET_PATH=str(tmp_path / "extra"))
    path.unlink()
    assert registry.problems() == (f"no tag file {str(path)!r}",)
    assert "arm/rasp4b" in list(registry)


@pytest.mark.parametrize(
    "content", [b"\xef\xbb\xbf" + BOX.encode(), BOX.replace("\n", "\r\n").encode()], ids=["byte order mark", "CRLF"]
)
def test_byte_order_marks_and_crlf_are_read(tmp_path, discover, content):
    write(tmp_path / "extra/acme.toml", content.replace(b"{cores}", b"3"))
    assert discover(TVMTARGET_PATH=str(tmp_path / "extra"))["acme/box"]["num-cores"] == 3


def test_hidden_files_of_editors_are_not_read(tmp_path, discover):
    write(tmp_path / "extra/.acme.toml", "[[[")
    (tmp_path / "extra/.#acme.toml").symlink_to("somebody@somewhere.123")
    assert discover(TVMTARGET_PATH=str(tmp_path / "extra")).problems() == ()


def test_the_name_of_a_file_is_a_namespace(tmp_path, discover):
    path = write(tmp_path / "extra/Acme Box.toml", BOX.format(cores=2))
    assert discover(TVMTARGET_PATH=str(tmp_path / "extra")).problems() == (
        f"the name of tag file {str(path)!r} is not a namespace; use lower-case letters, digits, '-' and '_', "
        "as in acme.toml",
    )


def test_a_missing_folder_is_reported(tmp_path, discover):
    registry = discover(TVMTARGET_PATH=str(tmp_path / "nothing"))
    assert registry.problems() == (f"TVMTARGET_PATH names {str(tmp_path / 'nothing')!r}, which is not a folder",)
    assert registry["arm/rasp4b"]


def test_the_working_folder_may_not_exist(tmp_path):
    assert Registry.discover(None, {"HOME": str(tmp_path)})["arm/rasp4b"]


def with_package(folder, name, entry_points, code):
    """Run code with an installed package in a separate interpreter, as a process reads the packages once."""
    write(folder / f"{name}-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    write(folder / f"{name}-1.dist-info/entry_points.txt", entry_points)
    head = (
        f"import sys; sys.path[:0] = [{str(folder)!r}, {str(PLUGIN)!r}]\n"
        "from tvmtarget.cli.completion import complete_tag\n"
        "from tvmtarget.tags.registry import default_registry\n"
        "tags = default_registry()\n"
        "assert tags['arm/rasp4b'] and 'arm/rasp4b' in list(tags)\n"
    )
    done = subprocess.run([sys.executable, "-c", head + code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done


def test_a_package_provides_tags(tmp_path):
    """The sample plugin, as it would be installed."""
    groups = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]["entry-points"]
    points = [f"[{group}]\n{name} = {value}\n" for group, of in groups.items() for name, value in of.items()]
    code = (
        "print('sample/board' in list(tags), tags['sample/board'].at('probe')['lanes'], *tags.problems())\n"
        "print(tags.info('sample/board').file.name, complete_tag('sample/'))"
    )
    done = with_package(tmp_path, "tvmtarget-sample", "".join(points), code)
    assert done.stdout == "True 8\nsample.toml ['sample/board']\n"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (
            "nothing_that_is_installed:TAGS",
            "plugin 'wrong' of wrong (nothing_that_is_installed:TAGS) does not load: No module",
        ),
        ("math:pi", "entry point 'wrong' of tvmtarget.tags is the path of a folder, not 3.14159"),
        ("os:sep_", "plugin 'wrong' of wrong (os:sep_) does not load: module 'os' has no attribute 'sep_'"),
        ("os:devnull", "package wrong names '/dev/null', which is not a folder"),
    ],
)
def test_a_package_with_wrong_tags_is_one_clear_error_and_every_other_tag_works(tmp_path, value, problem):
    done = with_package(tmp_path, "wrong", f"[tvmtarget.tags]\nwrong = {value}\n", "print(*tags.problems(), sep='\\n')")
    assert problem in done.stdout
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ("[tag.box]\n{bad}", 2),
        ('# [tag.box]\n  [ tag . "box" ]  # a box\n{bad}', 3),
        ("[tag]\nother = {{ kind = 'c' }}\nbox = {{ kind = 'c', num-core = 4 }}", 4),
        ("tag.box.kind = 'c'\ntag.box.num-core = 4", 2),
        ("[tag]\nbox.kind = 'c'\nbox.num-core = 4", 3),
        ("[tag.other]\nkind = 'c'\nbox = 5\n[tag.box]\n{bad}", 5),
    ],
)
def test_an_invalid_row_is_reported_with_its_line_in_any_spelling(tmp_path, rows, line):
    path = write(tmp_path / "acme.toml", "schema = 1\n" + rows.format(bad="kind = 'c'\nnum-core = 4"))
    with pytest.raises(TargetError) as error:
        Registry(tmp_path)["acme/box"]
    assert str(error.value).endswith(f"(tag 'acme/box' in {str(path)!r}, line {line})")


@pytest.mark.parametrize(
    ("rows", "line"), [("[family.box.sizes]\nxl = {{ {bad} }}", 5), ("[family.box.sizes.xl]\n{bad}", 4)]
)
def test_an_invalid_size_is_reported_with_its_line(tmp_path, rows, line):
    path = write(tmp_path / "acme.toml", "schema = 1\n[tag.box]\nkind = 'c'\n" + rows.format(bad="num-core = 4"))
    with pytest.raises(TargetError) as error:
        Registry(tmp_path)["acme/box.xl"]
    assert str(error.value).endswith(f"(tag 'acme/box.xl' in {str(path)!r}, line {line})")


def test_a_deprecated_tag_works_and_names_its_replacement(tmp_path):
    write(
        tmp_path / "acme.toml",
        BOX.format(cores=2) + '[tag.old]\nbase = "acme/box"\ndeprecated = "acme/box"\n[tag.new]\nbase = "acme/old"\n',
    )
    registry = Registry(tmp_path)
    for _ in range(2):
        with pytest.warns(TvmTargetWarning, match="tag 'acme/old' is deprecated; use acme/box") as warned:
            assert registry["acme/old"]["num-cores"] == 2
        assert warned[0].filename == __file__
    assert registry.info("acme/old").deprecated == "acme/box"
    assert list(registry) == ["acme/box", "acme/new", "acme/old"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert registry["acme/new"]["num-cores"] == 2
        assert find_satisfying(registry, Constraint.parse("llvm")).satisfied == tuple(registry)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ('[tag."acme/a"]\nbase = "acme/b"\n[tag."acme/b"]\nbase = "acme/a"', "tags form a cycle"),
        ('[tag."acme/a"]\nkind = "llvm"\nnum-core = 1', "kind 'llvm' has no attribute 'num-core'"),
        (
            '[tag."acme/a"]\nbase = "arm/rasp4b"\n"cpu/num-cores" = 2\n"llvm/num_cores" = 3',
            "'cpu/num-cores' and 'llvm/num_cores' are one value, which is given twice",
        ),
    ],
    ids=["circle", "unknown key", "conflict"],
)
def test_an_invalid_tag_is_one_clear_error_and_every_other_tag_works(tmp_path, discover, rows, problem):
    path = write(tmp_path / "project/tvmtarget.toml", f'schema = 1\n[tag."acme/good"]\nkind = "c"\n{rows}\n')
    registry = discover()
    with pytest.raises(TargetError) as error:
        registry["acme/a"]
    assert problem in str(error.value)
    assert f"{str(path)!r}, line 4" in str(error.value)
    assert registry["acme/good"] == Target("c")
    assert registry["arm/rasp4b"]


def test_tags_are_added_in_code_without_changing_the_registry():
    base = default_registry()
    tags = base.with_tags(
        {
            "acme/board": "arm/rasp4b(cpu/num-cores=2)",
            "acme/pair": {"kind": "composite", "targets": [{"name": "a", "tag": "acme/board"}, {"tag": "nvidia/a100"}]},
            "acme/tree": Target("cuda", {"arch": "sm_80"}),
        }
    )
    assert Target.parse("acme/pair:a/cpu", tags=tags)["num-cores"] == 2
    assert tags["acme/tree"].tag == "acme/tree"
    assert "acme/board" not in base
    assert str(tags["acme/board"].origin("cpu/num-cores")) == "tag acme/board in code"


def test_a_tag_added_in_code_replaces_another_only_with_override():
    base = default_registry()
    with pytest.raises(TargetError, match=r"tag 'arm/rasp4b' is defined twice: in '.*arm.toml', line .* and in 'code'"):
        base.with_tags({"arm/rasp4b": "llvm"})["arm/rasp4b"]
    assert base.with_tags({"arm/rasp4b": "llvm"}, override=True)["arm/rasp4b"] == Target("llvm")
    with pytest.raises(TargetError, match="'box' is not a full name of a tag; add the vendor, as in acme/box"):
        base.with_tags({"box": "llvm"})


@pytest.mark.parametrize("source", ["acme/box", {"tag": "acme/box"}, "acme/box(num-cores=2)", "acme/box:cpu"])
def test_an_unknown_tag_is_reported_with_the_files_that_cannot_be_read(tmp_path, discover, source):
    path = write(tmp_path / "project/tvmtarget.toml", "schema = 1\n[tag.x\n")
    with pytest.raises(UnknownNameError) as error:
        Target.parse(source, tags=discover())
    assert str(error.value).startswith("unknown tag 'acme/box'")
    assert f"tag file {str(path)!r} is not TOML" in str(error.value)
