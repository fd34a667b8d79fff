"""Addition of tags to files, only if they read back as they were."""

import string

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tvmtarget import Target
from tvmtarget.errors import TargetError
from tvmtarget.tags.checking import check_file
from tvmtarget.tags.registry import Registry
from tvmtarget.tags.writing import add_tag

BOARD = Target.parse("[gpu=cuda(arch=sm_53),cpu=llvm(num-cores=4)](host=@cpu)")


def add(path, name, tree=BOARD, doc="", source="a test", confidence="assumed", registry=None):
    registry = Registry() if registry is None else registry
    add_tag(path, name, tree, doc=doc, source=source, confidence=confidence, registry=registry)


@pytest.mark.parametrize(
    "name",
    [
        "acme/My Board!", "acme/My-Board", "acme/böard", "acme/", "/box", "acme//box", "acme/box/", "acme/-box",
        "acme/box.", "acme/box:gpu", "acme/box(x=1)", "a/b/c/d/e", "acme/box\n", " acme/box", "acme/b'x",
        'acme/b"x', "acme/\x00", "Acme/box", "acme/b..x/..",
    ],
)  # fmt: skip
def test_a_name_that_the_reader_rejects_is_not_written(name, tmp_path):
    for path in (tmp_path / "tvmtarget.toml", tmp_path / "acme.toml", tmp_path / "pyproject.toml"):
        with pytest.raises(
            TargetError, match=r"is not a valid name of a tag; use lower-case letters.*as in acme/my-board"
        ):
            add(path, name)
        assert not path.exists()


def _read(path, name):
    from tvmtarget.tags.layers import FileLayer

    return Registry(FileLayer("project", files=[path]) if path.name != "acme.toml" else path.parent)[name]


@pytest.mark.parametrize("name", ["acme/box", "acme/a.b", "acme/a-b", "acme/a/b", "acme/0", "acme/tag", "acme/source"])
@pytest.mark.parametrize("file", ["tvmtarget.toml", "acme.toml", "pyproject.toml"])
def test_a_name_that_is_written_is_read_back(name, file, tmp_path):
    path = tmp_path / file
    add(path, name)
    add(path, f"{name}-2", Target("llvm"))
    assert _read(path, name) == BOARD
    assert _read(path, f"{name}-2") == Target("llvm")
    assert not check_file(path)


def test_names_that_differ_in_a_slash_have_separate_sources(tmp_path):
    path = tmp_path / "tvmtarget.toml"
    add(path, "acme/a-b", source="one")
    add(path, "acme/a/b", source="two")
    assert not check_file(path)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    doc=TEXT, source=TEXT, model=TEXT, libs=st.lists(TEXT, max_size=3), word=st.text(string.ascii_lowercase, min_size=1)
)
def test_every_text_of_a_tag_is_read_back(doc, source, model, libs, word, tmp_path):
    """Metadata, attributes, and attributes of unregistered kinds read back equal."""
    path = tmp_path / "tvmtarget.toml"
    path.unlink(missing_ok=True)
    tree = Target.from_json({"targets": [
        {"kind": "llvm", "name": "cpu", "model": model, "libs": libs},
        {"kind": "zz", word if word not in ("kind", "name", "tag", "host", "targets", "count", "links", "memory",
                                            "executor", "runtime", "keys", "devices", "schema") else "x": model},
    ]})  # fmt: skip
    add(path, "acme/box", tree, doc, source)
    assert _read(path, "acme/box") == tree
    info = Registry(*_layer(path)).info("acme/box")
    assert (info.doc, info.sources) == (doc, (source,))


def _layer(path):
    from tvmtarget.tags.layers import FileLayer

    return (FileLayer("project", files=[path]),)


@pytest.mark.parametrize("name", ["doc", "source", "confidence", "abstract", "aliases", "base", "tvm", "deprecated"])
def test_attributes_that_are_metadata_of_a_tag_are_rejected(name, tmp_path):
    with pytest.raises(TargetError, match=f"attribute '{name}' cannot be written in a tag"):
        add(tmp_path / "tvmtarget.toml", "acme/box", Target.from_json({"kind": "zz", name: "x"}))


def test_a_file_that_cannot_hold_a_table_is_not_changed(tmp_path):
    path = tmp_path / "tvmtarget.toml"
    path.write_text('schema = 1\ntag = {"acme/one" = {kind = "llvm"}}\n')
    with pytest.raises(TargetError, match="cannot hold more tables"):
        add(path, "acme/box")
    assert path.read_text() == 'schema = 1\ntag = {"acme/one" = {kind = "llvm"}}\n'


def test_a_registry_takes_a_folder_by_its_path(tmp_path):
    add(tmp_path / "acme.toml", "acme/box")
    for folder in (tmp_path, str(tmp_path)):
        assert Registry(folder)["acme/box"] == BOARD


@pytest.mark.parametrize(
    ("layer", "problem"),
    [
        (__file__, "test_writing.py' is not a folder; name the one with tag files"),
        ("a\0b", "'a.*b' is not a folder"),
        ("", "'' is not a folder"),
        (1, "a layer of a registry is a folder of tag files or a Layer, not 1"),
        (None, "or a Layer, not None"),
        ({"acme/box": "llvm"}, "or a Layer, not {'acme/box': 'llvm'}"),
    ],
)
def test_an_invalid_layer_is_rejected(layer, problem):
    with pytest.raises(TargetError, match=problem):
        Registry(layer)


@pytest.mark.parametrize("name", ["box", ""])
def test_a_name_without_a_vendor_is_rejected_as_by_the_reader(name, tmp_path):
    with pytest.raises(TargetError, match="is not a full name of a tag; add the vendor"):
        add(tmp_path / "tvmtarget.toml", name)
    with pytest.raises(TargetError, match="holds tags of 'acme'"):
        add(tmp_path / "acme.toml", name)
    assert not list(tmp_path.iterdir())
