"""Runners and configured commands: where they are looked up, and whose files may name them."""

import pytest

import tvmtarget as tt
from tvmtarget.errors import RunError, TargetError
from tvmtarget.tags.registry import Registry
from tvmtarget.toolchains.compilers import toolchain_for
from tvmtarget.toolchains.runners import find_runner, runner_for

ARM64 = tt.Target.parse("llvm(mtriple=aarch64-unknown-linux-gnu)")
ROWS = "schema = 1\n[runner]\naarch64-linux-gnu = \"qemu-aarch64 -L '/my root'\"\n"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Return an environment without commands; the working folder is an empty project."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return {"HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "bin")}


def write_own(environ, text):
    from tvmtarget.tags.discovery import user_folder

    path = user_folder(environ).parent / "tvmtarget.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_runner_of_the_users_file_is_used_for_all_spellings_of_its_triple(home):
    write_own(home, ROWS)
    assert find_runner(ARM64, home).command == ("qemu-aarch64", "-L", "/my root")
    assert find_runner(tt.Target.parse("c(mcpu=cortex-a72)"), home).command[0] == "qemu-aarch64"
    assert find_runner(tt.Target.parse("llvm(mtriple=riscv64-linux-gnu)"), home) is None


def test_a_projects_file_names_commands_only_if_its_folder_is_trusted(home, tmp_path):
    (tmp_path / "project/tvmtarget.toml").write_text(ROWS)
    with pytest.raises(TargetError, match="set TVMTARGET_TRUST_PROJECT="):
        find_runner(ARM64, home)
    trusted = home | {"TVMTARGET_TRUST_PROJECT": str(tmp_path / "project")}
    assert find_runner(ARM64, trusted).command == ("qemu-aarch64", "-L", "/my root")
    other = home | {"TVMTARGET_TRUST_PROJECT": str(tmp_path)}
    with pytest.raises(TargetError, match="would run as you"):
        find_runner(ARM64, other)


def test_rows_of_other_triples_need_no_trust(home, tmp_path):
    (tmp_path / "project/tvmtarget.toml").write_text(ROWS)
    assert find_runner(tt.Target.parse("llvm(mtriple=riscv64-linux-gnu)"), home) is None


def test_an_unknown_section_of_a_projects_file_is_named(home, tmp_path):
    (tmp_path / "project/tvmtarget.toml").write_text("[tag.mine]\nkind = 'llvm'\n[runer]\naarch64-linux-gnu = 'run'\n")
    with pytest.raises(TargetError, match=r"unknown section 'runer'; did you mean 'runner'\?"):
        find_runner(ARM64, home)


def test_pyproject_has_the_tables_below_our_own(home, tmp_path):
    (tmp_path / "project/pyproject.toml").write_text('[tool.tvmtarget.runner]\naarch64-linux-gnu = ["run it"]\n')
    trusted = home | {"TVMTARGET_TRUST_PROJECT": str(tmp_path / "project")}
    assert find_runner(ARM64, trusted).command == ("run it",)


def test_a_configured_compiler_comes_first_and_gets_the_options_of_the_target(home):
    write_own(home, '[toolchain]\naarch64-linux-gnu = { c = "mycc -O9", cxx = ["my c++"] }\n')
    target = tt.Target.parse("c(mcpu=cortex-a72)")
    assert toolchain_for(target, environ=home).command == ("mycc", "-O9", "-mcpu=cortex-a72")
    assert toolchain_for(target, "cxx", environ=home).command == ("my c++", "-mcpu=cortex-a72")


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("[runner]\nfoo-linux = 'x'", "'runner.foo-linux': architecture 'foo' of triple"),
        (
            "[runner]\naarch64-linux-gnu = 3",
            "'runner.aarch64-linux-gnu' is a command, a text or a list of words, not 3",
        ),
        ("[runner]\naarch64-linux-gnu = ''", "is a command, a text or a list of words"),
        ("[runner]\naarch64-linux-gnu = 'a \"b'", "no closing quotation"),
        ("[runner]\naarch64-linux-gnu = { c = 'x' }", "is a command, a text or a list of words"),
        ("[toolchain]\naarch64-linux-gnu = { cc = 'x' }", "has an unknown key 'cc'; did you mean 'c'?"),
        ("[toolchain]\naarch64-linux-gnu = {}", "has no command"),
        ("runner = 'x'", "'runner' is a table of commands by triple, not 'x'"),
        ("[runner]\naarch64-linux-gnu = 'x'\narm64-linux-gnu = 'y'", "is of the same platform as"),
        ("[runer]\nx = 1", "unknown section 'runer'; did you mean 'runner'?"),
    ],
)
def test_wrong_rows_are_errors_that_name_the_file_and_the_key(rows, problem, home):
    path = write_own(home, rows)
    with pytest.raises(TargetError) as error:
        find_runner(ARM64, home)
    assert problem in str(error.value)
    assert str(path) in str(error.value)


def test_tags_of_a_project_file_with_commands_are_read_and_wrong_commands_are_problems(home, tmp_path):
    path = tmp_path / "project/tvmtarget.toml"
    path.write_text(f'{ROWS}\n[tag."acme/box"]\nkind = "llvm"\n')
    registry = Registry.discover(tmp_path / "project", home)
    assert str(registry["acme/box"]) == "llvm"
    assert not registry.layers[-1].problems()
    path.write_text("schema = 1\n[runner]\naarch64-linux-gnu = 3\n")
    assert (
        "'runner.aarch64-linux-gnu' is a command"
        in Registry.discover(tmp_path / "project", home).layers[-1].problems()[0]
    )


def test_the_error_of_a_missing_runner_names_the_package_and_the_key(home):
    with pytest.raises(RunError) as error:
        runner_for(ARM64, home)
    assert str(error.value) == (
        "no runner for aarch64-linux-gnu: 'qemu-aarch64' is not on PATH; install it: apt install qemu-user; "
        'or configure one: [runner] aarch64-linux-gnu = "COMMAND" in tvmtarget.toml'
    )
