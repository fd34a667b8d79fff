"""`tvmtarget tags`: listing, checking and adding tags."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tvmtarget.tags.discovery import shipped_folder
from tvmtarget.tags.registry import default_registry
from tvmtarget.tags.writing import add_tag
from tvmtarget.target.tree import Target

BOX = """schema = 1

[source.sheet]
cite = "a data sheet"

[tag."acme/box"]
source = ["sheet"]
confidence = "vendor"
base = "arm/rasp4b"
"cpu/num-cores" = 2
"""


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """Work in an empty folder with its own home; every command searches the tags again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    default_registry.cache_clear()
    yield
    default_registry.cache_clear()


@pytest.fixture
def cli(cli):
    def run(*words):
        default_registry.cache_clear()
        return cli(*words)

    return run


def test_list_is_the_default_command(cli):
    code, out, _ = cli("tags", "raspberry", "4b")
    assert code == 0
    assert all("raspberry" in line.lower() and "4" in line for line in out.splitlines())
    assert cli("tags", "list", "raspberry", "4b")[1] == out


def test_families_are_listed_without_their_sizes(cli):
    _, out, _ = cli("tags", "aws/c5", "--family")
    assert "aws/c5 " in out
    assert "aws/c5.large" not in out


def test_configurations_are_found_like_other_tags(cli):
    assert "config/aot-crt" in cli("tags", "--abstract", "config")[1]
    assert cli("tags", "config/aot-crt")[1].startswith("config/aot-crt  A generated driver")
    assert "config/vm" in cli("tags")[1]


def test_bases_of_tags_cannot_be_searched_by_constraints(cli):
    code, _, err = cli("tags", "--abstract", "--satisfying", "cuda")
    assert (code, "--abstract and --satisfying exclude each other" in err) == (2, True)


def test_a_mistyped_tag_is_named_where_a_constraint_may_be_one(cli):
    for words in (["tags", "--satisfying"], ["check", "llvm", "--satisfies"]):
        code, _, err = cli(*words, "nvidia/jetson-nanoo")
        assert code == 1
        assert err.startswith("error: unknown tag 'nvidia/jetson-nanoo'; did you mean 'nvidia/jetson-nano'")


@pytest.mark.parametrize("file", ["acme.json", "acme", "."])
def test_tags_are_added_only_to_files_that_are_read(cli, tmp_path, file):
    code, _, err = cli("tags", "add", "acme/x", "-t", "llvm", "--file", file)
    assert (code, f"'{file}' is no tag file; write tvmtarget.toml" in err) == (1, True)
    assert not [path for path in tmp_path.iterdir() if path.name != "home"]


def test_a_configuration_is_added_as_an_abstract_tag(cli):
    assert cli("tags", "add", "acme/micro", "-t", "composite(executor=aot,runtime=crt)")[0] == 0
    assert cli("tags", "check", "tvmtarget.toml")[0] == 0
    assert json.loads(cli("show", "c", "--with", "acme/micro", "--json")[1])["executor"] == {"kind": "aot"}


def test_the_best_match_is_printed_first_with_the_tags_of_the_same_board(cli):
    code, out, _ = cli("tags", "rpi4")
    same = "same as arm/rasp4b, arm/rasp4b64, raspberry-pi/4b-aarch64"
    assert (code, out.splitlines()[0]) == (
        0,
        f"raspberry-pi/4b      Raspberry Pi 4 Model B, 64-bit user space ({same})",
    )
    assert json.loads(cli("tags", "arm/rasp4b64", "--json")[1])[0]["same_as"] == ["raspberry-pi/4b", "arm/rasp4b"]


def test_words_that_match_no_tag_suggest_the_closest_ones(cli):
    code, _, err = cli("tags", "jetzon", "nanno")
    assert (code, err.partition(" or ")[0]) == (1, "no tag matches 'jetzon nanno'; did you mean 'nvidia/jetson-nano'")
    assert "has letters or digits" in cli("tags", "--", "-")[2]


def test_a_kind_that_no_tag_is_called_by_suggests_a_constraint(cli):
    _, _, err = cli("tags", "cuda")
    assert err == (
        "no tag matches 'cuda'; `tvmtarget tags --satisfying cuda` lists the tags that have a node of this kind\n"
    )


def test_tags_are_found_by_constraint(cli):
    _, out, _ = cli("tags", "nvidia", "--satisfying", "cuda(arch>=sm_100)", "--json")
    names = {row["tag"] for row in json.loads(out)}
    assert "nvidia/dgx-b200" in names
    assert "nvidia/jetson-nano" not in names


def test_tags_of_the_project_are_found_and_a_broken_file_is_a_warning(cli, tmp_path):
    file = tmp_path / "tvmtarget.toml"
    file.write_text(BOX)
    assert cli("tags", "acme")[1].startswith("acme/box")
    assert "num-cores=2" in cli("show", "acme/box")[1]
    file.write_text("[[[")
    code, out, err = cli("tags", "rasp4b")
    assert code == 0
    assert "arm/rasp4b" in out
    assert err.startswith(f"warning: tag file {str(file)!r} is not")


def test_valid_files_have_no_problems(cli, tmp_path):
    (tmp_path / "tvmtarget.toml").write_text(BOX)
    shutil.copy(shipped_folder() / "demo.toml", tmp_path / "mine.toml")
    assert cli("tags", "check", "tvmtarget.toml", "mine.toml") == (0, "2 files, no problems found\n", "")


@pytest.mark.parametrize("name", sorted(path.name for path in shipped_folder().glob("*.toml")))
def test_the_shipped_files_have_no_problems(cli, name):
    assert cli("tags", "check", shipped_folder() / name) == (0, "1 file, no problems found\n", "")


def test_an_alias_that_is_the_name_of_a_shipped_tag_is_a_problem(cli, tmp_path):
    (tmp_path / "tvmtarget.toml").write_text(BOX.replace("source =", 'aliases = ["acme/b", "aws/c5"]\nsource ='))
    code, _, err = cli("tags", "check", "tvmtarget.toml")
    assert code == 1
    assert err.startswith("error: tag 'aws/c5' is defined twice: in ")
    assert err.endswith("set override = true in the second (tag 'acme/box' in 'tvmtarget.toml', line 6)\n")


def test_all_problems_of_a_file_are_printed_with_their_places(cli, tmp_path):
    file = tmp_path / "acme.toml"
    file.write_text(
        'schema = 1\n[tag.a]\nkind = "llvm"\nnum-core = 2\n[tag.b]\nkind = "llvm"\n[tag.c]\nbase = "acme/d"\n'
        '[source.s]\ncite = "x"\n[tag.e]\nsource = ["s"]\nconfidence = "vendor"\nkind = "composite"\n'
    )
    code, _, err = cli("tags", "check", "acme.toml")
    assert code == 1
    places = [
        f" (tag 'acme/{name}' in 'acme.toml', line {line})" for name, line in zip("abce", (2, 5, 7, 11), strict=True)
    ]
    assert err.splitlines() == [
        f"error: kind 'llvm' has no attribute 'num-core'; did you mean 'num-cores'?{places[0]}",
        f"error: a tag needs a source; this tag has none{places[1]}",
        f"error: unknown tag 'acme/d'; did you mean 'acme/e' or 'acme/c' or 'acme/b'?{places[2]}",
        f"error: a composite has no targets; give it children: composite[cpu=llvm]{places[3]}",
    ]


@pytest.mark.parametrize("file", ["tvmtarget.toml", "pyproject.toml"])
def test_a_machine_is_added_to_the_project(cli, tmp_path, file):
    before = '[project]\nname = "mine"\nversion = "1"\n' if file == "pyproject.toml" else BOX
    (tmp_path / file).write_text(before)
    assert cli("tags", "add", "acme/me", "--doc", "my box", "--file", file) == (0, f"acme/me is in {file}\n", "")
    assert (tmp_path / file).read_text().startswith(before.rstrip())
    assert cli("tags", "check", file)[0] == 0
    assert cli("show", "acme/me")[0] == 0
    assert cli("diff", "acme/me", "native") == (0, "", "")


def test_a_target_is_added_to_a_new_file(cli):
    cli("tags", "add", "acme/pair", "--target", "[gpu=nvidia/a100,cpu=llvm](host=@cpu)")
    assert cli("diff", "acme/pair", "[gpu=nvidia/a100,cpu=llvm](host=@cpu)")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["arm/rasp4b"], "tag 'arm/rasp4b' exists already; nothing was written"),
        (["box"], "'box' is not a full name of a tag; add the vendor, as in [tag.\"acme/box\"], in tag file"),
        (["acme mine"], "'acme mine' is not a valid name of a tag; use lower-case letters"),
        (["acme/box", "--file", "other.toml"], "'other.toml' holds tags of 'other', not 'acme/box'"),
        (
            ["acme/box", "--file", "/proc/none/x/tvmtarget.toml"],
            "tag file '/proc/none/x/tvmtarget.toml' cannot be writ",
        ),
        (["acme/box", "--file", "broken/tvmtarget.toml"], "tag file 'broken/tvmtarget.toml' is not UTF-8 text"),
    ],
)
def test_a_tag_that_cannot_be_added_leaves_all_files_unchanged(cli, tmp_path, words, message):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/tvmtarget.toml").write_bytes(b"\xff")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    code, out, err = cli("tags", "add", *words, "--target", "llvm")
    assert (code, out) == (1, "")
    assert message in err
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_deprecated_tag_is_listed_with_its_replacement(cli, tmp_path):
    old = '[tag."acme/old"]\nbase = "acme/box"\ndeprecated = "acme/box"\n'
    (tmp_path / "tvmtarget.toml").write_text(f"{BOX}\n{old}")
    assert "acme/old   (deprecated; use acme/box)" in cli("tags", "acme")[1]
    assert json.loads(cli("tags", "acme/old", "--json")[1])[0]["deprecated"] == "acme/box"


def test_check_reports_unknown_names_in_notes(cli, tmp_path):
    file = tmp_path / "tvmtarget.toml"
    file.write_text(f'{BOX}tvm = ":gpu"\ndeprecated = "acme/boxx"\n')
    code, _, err = cli("tags", "check", str(file))
    assert code == 1
    assert "error: 'tvm' names no part: no node 'gpu' in " in err
    assert "error: 'deprecated' names the tag to use instead, not 'acme/boxx'; did you mean 'acme/box'?" in err
    file.write_text(f'{BOX}deprecated = "acme/box"\nsame-as = "acme/box"\n')
    code, _, err = cli("tags", "check", str(file))
    assert code == 1
    assert "error: 'deprecated' names the tag to use instead, not 'acme/box'" in err
    assert "error: 'same-as' names another tag of the same board, not 'acme/box'" in err


def test_the_file_in_the_documentation_has_no_problems(cli, tmp_path):
    page = Path(__file__).parents[2] / "docs" / "tags.md"
    (tmp_path / "acme.toml").write_text(page.read_text().split("```toml\n")[1].split("```")[0])
    assert cli("tags", "check", "acme.toml") == (0, "1 file, no problems found\n", "")


def test_the_schema_of_a_file_is_printed(cli):
    code, out, _ = cli("tags", "schema")
    assert code == 0
    assert json.loads(out)["title"] == "tvmtarget tag file"


def test_tags_that_are_added_at_once_are_all_kept(tmp_path):
    registry = default_registry()

    def add(number):
        tags = f"acme/box{number}", Target("llvm")
        add_tag(tmp_path / "acme.toml", *tags, doc="", source="a test", confidence="assumed", registry=registry)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(16)))
    text = (tmp_path / "acme.toml").read_text()
    assert [text.count(f"[tag.box{number}]") for number in range(16)] == [1] * 16
