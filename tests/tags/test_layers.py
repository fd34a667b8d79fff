"""Layers of tags: where they are found, what stands for what, and that a broken file hides nothing."""

import pytest

from tvmtarget import Target
from tvmtarget.errors import TargetError, UnknownNameError
from tvmtarget.tags.files import MAX_BYTES
from tvmtarget.tags.registry import Registry, default_registry

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


def test_every_place_is_looked_at(tmp_path, discover):
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


def test_a_pyproject_of_others_ends_the_search(tmp_path, discover):
    write(tmp_path / "tvmtarget.toml", WHOLE.format(cores=1))
    assert "acme/box" in discover()
    write(tmp_path / "project/pyproject.toml", '[project]\nname = "p"\n')
    assert "acme/box" not in discover()


def test_a_name_of_two_layers_needs_to_be_meant(tmp_path, discover):
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


def test_a_name_of_two_files_of_one_folder_is_told_with_both_lines(tmp_path):
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
        ("schema = 1\n[tag.x\n", "cannot be read: Expected ']'"),
        (b"schema = 1\n\xff", "cannot be read: 'utf-8' codec can't decode byte 0xff"),
        ("schema = 2\n", "has schema 2; this version reads schema = 1"),
        ("#" * (MAX_BYTES + 1), "is larger than 16 MiB"),
        ("schema = 1\ntag = [1]\n", "'tag' holds tables, not [1]"),
        ('schema = 1\n[tag.box]\nkind = "llvm"\n', "'box' is no whole name for a tag; write the vendor too"),
        (
            'schema = 1\n[tag."acme/box"]\nkind = "llvm"\ndoc = 1\n',
            "'doc' is text, not 1, at tag 'acme/box', in tag file",
        ),
    ],
    ids=["syntax", "not UTF-8", "schema", "huge", "no tables", "short name", "note"],
)
def test_a_broken_file_is_one_clear_error_and_every_other_tag_works(tmp_path, discover, content, problem):
    path = write(tmp_path / "project/tvmtarget.toml", content)
    registry = discover()
    assert registry["arm/rasp4b"].at("cpu")["num-cores"] == 4
    assert "arm/rasp4b" in list(registry)
    [told] = registry.problems()
    assert problem in told
    assert str(path) in told
    with pytest.raises((TargetError, UnknownNameError)) as error:
        registry["acme/box"]
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ('[tag."acme/a"]\nbase = "acme/b"\n[tag."acme/b"]\nbase = "acme/a"', "tags are made of each other"),
        ('[tag."acme/a"]\nkind = "llvm"\nnum-core = 1', "kind 'llvm' has no attribute 'num-core'"),
        (
            '[tag."acme/a"]\nbase = "arm/rasp4b"\n"cpu/num-cores" = 2\n"llvm/num_cores" = 3',
            "'cpu/num-cores' and 'llvm/num_cores' are one value, which is given twice",
        ),
    ],
    ids=["circle", "unknown key", "conflict"],
)
def test_a_wrong_tag_is_one_clear_error_and_every_other_tag_works(tmp_path, discover, rows, problem):
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


def test_a_tag_added_in_code_stands_for_another_only_if_it_is_meant_to():
    base = default_registry()
    with pytest.raises(TargetError, match=r"tag 'arm/rasp4b' is defined twice: in '.*arm.toml', line .* and in 'code'"):
        base.with_tags({"arm/rasp4b": "llvm"})["arm/rasp4b"]
    assert base.with_tags({"arm/rasp4b": "llvm"}, override=True)["arm/rasp4b"] == Target("llvm")
    with pytest.raises(TargetError, match="'box' is no name for a tag; write the vendor too, as in acme/box"):
        base.with_tags({"box": "llvm"})
