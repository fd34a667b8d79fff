"""The compiled form of the shipped tags equals the tag files."""

import shutil

import pytest

from tvmtarget.tags.compiled import DATA, TREES, CompiledLayer, compile_tags
from tvmtarget.tags.discovery import shipped_folder
from tvmtarget.tags.layers import FileLayer
from tvmtarget.tags.registry import Registry
from tvmtarget.tags.tree_index import write_index

AUTHORED = FileLayer("authored", folder=shipped_folder())
COMPILED = CompiledLayer("compiled", shipped_folder(), is_checked=False)


def test_compiled_equals_authored():
    """If they differ, `python -m tvmtarget.tags.compiled` updates the compiled form."""
    assert sorted(COMPILED.names()) == sorted(AUTHORED.names())
    assert sorted(COMPILED.listed()) == sorted(AUTHORED.listed())
    for name in AUTHORED.names():
        assert COMPILED.find(name) == AUTHORED.find(name)


def test_the_index_of_trees_is_that_of_the_tags():
    """If it differs, `python -m tvmtarget.tags.compiled` updates it."""
    registry = Registry(COMPILED)
    assert (DATA / TREES).read_bytes() == write_index({name: registry.tree(name) for name in registry})


def test_the_index_of_trees_is_not_used_for_changed_files(tmp_path):
    shutil.copytree(shipped_folder(), tmp_path / "tags")
    layer = CompiledLayer("checkout", tmp_path / "tags", is_checked=True)
    assert layer.trees() is not None
    (tmp_path / "tags" / "new.toml").write_text('schema = 1\n[tag.box]\nkind = "c"\n')
    assert CompiledLayer("checkout", tmp_path / "tags", is_checked=True).trees() is None


def test_a_changed_namespace_is_read_from_its_files(tmp_path):
    folder = tmp_path / "tags"
    shutil.copytree(shipped_folder(), folder)
    (folder / "demo.toml").write_text('schema = 1\n[tag.other]\nkind = "c"\n')
    (folder / "new.toml").write_text('schema = 1\n[tag.box]\nkind = "c"\n')
    (folder / "arm.toml").write_text("schema = 2\n")
    registry = Registry(CompiledLayer("checkout", folder, is_checked=True))
    assert registry["demo/other"] == registry["new/box"]
    assert "demo/node" not in registry
    assert registry["aws/c5.large"].at("cpu")["num-cores"] == 1
    assert [name for name in registry if name.startswith(("demo", "new", "arm"))] == ["demo/other", "new/box"]
    assert registry.problems() == (
        f"tag file {str(folder / 'arm.toml')!r} has schema 2; this version reads schema = 1",
    )


def test_a_compiled_row_keeps_all_data_of_its_file(tmp_path):
    folder, data = tmp_path / "tags", tmp_path / "data"
    folder.mkdir()
    (folder / "acme.toml").write_text(
        'schema = 1\n[source.x]\ncite = "a sheet"\n[tag.box]\ndoc = "é"\nsource = ["x"]\nconfidence = "vendor"\n'
        'aliases = ["b,c"]\ntvm = ":cpu"\ndeprecated = "acme/other"\noverride = true\nabstract = true\n'
        'kind = "llvm"\n[family.box.sizes]\ns = { "+" = ["+neon"] }\n'
    )
    compile_tags(folder, data)
    authored, compiled = FileLayer("a", folder=folder), CompiledLayer("c", folder, is_checked=True, data=data)
    for name in ("acme/box", "acme/b,c", "acme/box.s"):
        assert compiled.find(name) == authored.find(name)
    assert compiled.find("acme/box.s").info == authored.find("acme/box.s").info
    assert list(compiled.listed()) == ["acme/box.s"]


def test_files_with_problems_are_not_compiled(tmp_path):
    (tmp_path / "acme.toml").write_text("schema = 1\n[tag.box]\ndoc = 5\n")
    with pytest.raises(SystemExit, match="'doc' is text, not 5"):
        compile_tags(tmp_path, tmp_path / "data")
    assert not (tmp_path / "data").exists()
