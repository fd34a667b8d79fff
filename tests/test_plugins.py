"""Broken plugins affect only the programs that need them."""

import subprocess
import sys
import zipfile
from importlib.machinery import PathFinder
from importlib.metadata import DistributionFinder, MetadataPathFinder, entry_points
from pathlib import Path

import pytest

import tvmtarget as tt
from tvmtarget import plugins
from tvmtarget.errors import BackendError, TargetError
from tvmtarget.target.kinds import Attribute, Kind

ROOT = Path(__file__).parents[1]

COMMANDS = [
    ["tags", "jetson"],
    ["kinds", "cuda"],
    ["show", "nvidia/jetson-nano"],
    ["diff", "arm/rasp4b", "arm/rasp4b"],
    ["check", "nvidia/jetson-nano", "--satisfies", "gpu"],
    ["explain", "examples/digits.onnx", "--target", "[a=numpy,b=llvm]"],
    ["run", "examples/digits.onnx", "--input", "examples/digits.npz", "--target", "numpy"],
]


def command(tmp_path, points, *argvs, name="broken", module=""):
    """Run commands in a process where a package with these entry points is installed, until one fails."""
    folder = tmp_path / f"{name}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_bytes(points)
    (tmp_path / "broken_module.py").write_text(module)
    code = (
        f"import sys; sys.path.append({str(tmp_path)!r})\nfrom tvmtarget.cli.main import main\n"
        f"sys.exit(next(filter(None, map(main, {argvs!r})), 0))"
    )
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


RAISES = "raise RuntimeError('no luck')"
AGAIN = """
from tvmtarget.target.kinds import Kind
KINDS = (Kind(name="llvm"), Kind(name="mine"), Kind(name="cuda"))
"""

BROKEN = {
    "kinds of a wrong type": (b"[tvmtarget.kinds]\nbroken = math:pi\n", "should be a tuple of tvmtarget.Kind"),
    "kinds that do not load": (b"[tvmtarget.kinds]\nbroken = nothing_of_that_name:KINDS\n", "does not load"),
    "kinds that raise": (b"[tvmtarget.kinds]\nbroken = broken_module:KINDS\n", "does not load: no luck"),
    "our kind again": (
        b"[tvmtarget.kinds]\nbroken = broken_module:KINDS\n",
        "target kind 'llvm' and 1 more are registered twice; the second time by broken (broken_module:KINDS)",
    ),
    "a backend that does not load": (b"[tvmtarget.backends]\nbroken = nothing_of_that_name:B\n", "does not load"),
    "a backend of a wrong type": (b"[tvmtarget.backends]\nbroken = math:pi\n", "which does not derive from"),
    "entry points that are no text": (b"[tvmtarget.kinds]\nbr\xff = a:b\n", "metadata of an installed package"),
    "entry points of no form": (b"tvmtarget.kinds = broken\n", ""),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_package_stops_no_command(tmp_path, broken):
    points, problem = BROKEN[broken]
    argv = COMMANDS[-1] if "backend" in broken else COMMANDS[1]
    done = command(tmp_path, points, argv, module=AGAIN if "again" in broken else RAISES)
    assert done.returncode == 0, done.stderr
    assert problem in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN)
def test_no_broken_package_stops_any_command(tmp_path, broken):
    done = command(tmp_path, BROKEN[broken][0], *COMMANDS, module=RAISES)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_a_strategy_that_two_packages_register_is_an_error_naming_both_for_its_kind_alone(tmp_path):
    points = b"[tvmtarget.strategies]\nllvm = math:pi\n"
    explain = ["explain", "examples/digits.onnx", "--target"]
    done = command(tmp_path, points, [*explain, "numpy"])
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "again").mkdir()
    done = command(tmp_path / "again", points, [*explain, "llvm"])
    assert done.returncode == 1
    assert "tvmtarget.strategies 'llvm' is registered twice: by tvmtarget (" in done.stderr
    assert "and by broken (math:pi)" in done.stderr


def test_the_owner_of_a_registered_object_is_the_module_that_defines_it(monkeypatch):
    monkeypatch.setattr(plugins, "_registered", {})
    monkeypatch.setattr(plugins, "_owners", {})
    npu = type("Npu", (), {"__module__": "npu_package.strategies", "kinds": ("npu",)})
    plugins.register("tvmtarget.strategies", "npu", npu)
    plugins.register("tvmtarget.backends", "npu-compiler", npu())
    plugins.register("tvmtarget.kinds", "npu", (), owner="npu_package.kinds")
    plugins.register("tvmtarget.kinds", "dsp", ())
    assert plugins.registering_modules({"npu"}) == [{"name": "npu_package.kinds"}, {"name": "npu_package.strategies"}]
    ((key, _),) = plugins.registering_modules({"dsp"})[0].items()
    assert key in ("main", "file")  # of this program


@pytest.fixture
def installed(monkeypatch):
    """Return a function that reads the entry points of our groups anew, without the cache of this process."""
    monkeypatch.setattr(plugins, "_reported", set())
    return plugins._installed.__wrapped__


POINTS = "[console_scripts]\nmine = a:b\n\n# ours\n[tvmtarget.kinds]\nmine=math : pi.real [fast]\n"


def package(folder, name, points=POINTS, info=".dist-info"):
    place = folder / f"{name}-1.0{info}"
    place.mkdir(parents=True)
    (place / "entry_points.txt").write_text(points)
    (place / ("METADATA" if info == ".dist-info" else "PKG-INFO")).write_text(f"Name: {name}\nVersion: 1.0\n")


def test_entry_points_are_those_of_importlib(installed):
    ours = {(one.group, one.name, one.value) for one in installed()}
    groups = {group for group, _, _ in ours}
    assert len(groups) > 5
    assert ours == {(one.group, one.name, one.value) for group in groups for one in entry_points(group=group)}


def test_the_first_package_of_a_name_on_the_path_counts(installed, tmp_path, monkeypatch):
    package(tmp_path / "first", "My_Package")
    package(tmp_path / "second", "my.package", POINTS.replace("pi", "e"), ".egg-info")
    package(tmp_path / "second", "other")
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/"), str(tmp_path / "first"), "/none", str(tmp_path / "second")])
    mine = [one for one in installed() if one.name == "mine"]
    assert [(one.package, one.value) for one in mine] == [
        ("my-package", "math : pi.real [fast]"),
        ("other", "math : pi.real [fast]"),
    ]
    assert mine[0].load() == 3.141592653589793


def test_packages_in_archives_and_of_other_finders_are_found(installed, tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "wheel.zip", "w") as archive:
        archive.writestr("zipped-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: zipped\nVersion: 1.0\n")
        archive.writestr("zipped-1.0.dist-info/entry_points.txt", POINTS)
    package(tmp_path / "apart", "apart")

    class Finder:
        """Finds packages where `sys.path` does not lead."""

        def find_spec(self, *_):
            return None

        def find_distributions(self, context):
            return MetadataPathFinder.find_distributions(DistributionFinder.Context(path=[str(tmp_path / "apart")]))

    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "wheel.zip")])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert PathFinder in sys.meta_path
    assert {one.package for one in installed() if one.name == "mine"} == {"zipped", "apart"}


def test_a_library_that_is_not_installed_says_so(installed, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(BackendError, match="imported from a folder but not installed; run `pip install`"):
        installed()


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (lambda: Kind(name="no word"), "the name of a kind is a word, not 'no word'"),
        (
            lambda: Kind(name="k", attributes=(row("host"),)),
            "kind 'k' has an attribute 'host', which is a field of every",
        ),
        (lambda: row("a b"), "the name of an attribute is a word in ASCII, not 'a b'"),
        (
            lambda: Attribute(name="n", type="int", class_="soft", default="x"),
            "the default of attribute 'n' is a whole number, not 'x'",
        ),
        (lambda: Attribute(name="n", type="int", class_="soft", default=0, least=1), "the default of .* is at least 1"),
        (lambda: Kind(name="k", attributes=(row("a-b"), row("a_b"))), "kind 'k' has two attributes 'a-b'"),
        (lambda: Kind(name="k", device=5), "'device' of a kind is text, not 5"),
        (lambda: Kind(name="k", **dict.fromkeys(("atributes",), ())), "a kind has no field 'atributes'; did you mean"),
        (lambda: Attribute(name="n", type="int", class_=None), "'class_' of an attribute is not right .*, not None"),
    ],
)
def test_a_row_that_no_target_could_use_is_an_error_where_it_is_written(row, problem):
    with pytest.raises(TargetError, match=problem):
        row()


def test_why_rows_of_a_plugin_cannot_be_used_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "rows_of_mine.py").write_text(
        "from tvmtarget import Kind\nKINDS = (Kind(name='k', keys='x', device=3),)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    point = plugins._EntryPoint("tvmtarget.kinds", "mine", "rows_of_mine:KINDS", "mine")
    monkeypatch.setattr(plugins, "_group", lambda _group: {"mine": [point]})
    with pytest.raises(BackendError) as caught:
        plugins.load("tvmtarget.kinds", "mine")
    assert str(caught.value) == (
        "plugin 'mine' of mine (rows_of_mine:KINDS) does not load: 'device' of a kind is text, not 3; "
        "'keys' of a kind is a list, not 'x'"
    )


def row(name):
    return Attribute(name=name, type="int", class_="soft")


@pytest.mark.parametrize("role", ["target", "executor", "runtime"])
def test_the_rows_of_this_library_hold_to_the_rules_for_those_of_plugins(role):
    for kind in tt.kinds(role):
        Kind.model_validate(kind.model_dump())
