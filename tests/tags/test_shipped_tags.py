"""Shipped tags: each resolves, reads back, satisfies itself, has a source and keeps its digest."""

import json
import tomllib

import pytest
import tomli_w

from tvmtarget import Constraint, Target
from tvmtarget.tags.registry import Registry, default_registry
from tvmtarget.target.topology import Topology
from tvmtarget.target.tvm.versions import VERSIONS

REGISTRY = Registry(default_registry().layers[0])
NAMES = tuple(REGISTRY)
NAMESPACES = sorted({name.partition("/")[0] for name in NAMES})


def of(namespace):
    """List the names of a namespace; a test for each tag would take much longer."""
    return [name for name in NAMES if name.startswith(f"{namespace}/")]


def test_digests_do_not_change(golden):
    """A digest that changes orphans logs: change one only with a reason in the commit."""
    golden("tags/digests.golden", "".join(f"{name} {REGISTRY[name].digest}\n" for name in NAMES))


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_tag_resolves_to_sites(namespace):
    for name in of(namespace):
        target = Target.parse(name)
        assert target.tag == name
        assert list(Topology(target.resolve()).leaves())
        for path, _ in target.walk():
            assert target.part(path).resolve()


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_tag_is_read_back_from_text_json_and_toml(namespace):
    for name in of(namespace):
        target = REGISTRY[name]
        assert Target.parse(str(target)) == target
        assert Target.from_json(json.loads(json.dumps(target.to_json()))) == target
        assert Target.from_json(tomllib.loads(tomli_w.dumps(target.to_json()))) == target
        assert Target.from_json({"tag": name}).to_json() == target.to_json()


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_tag_satisfies_itself(namespace):
    for name in of(namespace):
        assert REGISTRY[name].satisfies(Constraint.of(REGISTRY[name])), name


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_tag_is_written_for_tvm_and_losses_are_reported(namespace):
    """The whole tree, and the part for TVM's tag of the name; old versions had no `trn`."""
    for name in of(namespace):
        target = REGISTRY[name]
        written = target.to_tvm()
        assert written.config["kind"] == target.kind
        lost = {attribute for _, node in target.walk() for attribute in node.attrs if attribute.startswith("peak-")}
        assert all(any(repr(attribute) in loss for loss in written.losses) for attribute in lost), name
        if (part := REGISTRY.info(name).tvm) is not None:
            assert target.part(part.removeprefix(":")).to_tvm().config["kind"] != "composite"
        if REGISTRY.info(name).family is None and target.kind != "trn":
            assert all(target.to_tvm(version).text for version in VERSIONS)


def test_tvm_loads_the_written_tags():
    pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")
    for name in NAMES[::7]:
        assert str(REGISTRY[name].to_tvm().load().kind.name) == REGISTRY[name].kind


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_tag_states_its_sources(namespace):
    for name in of(namespace):
        info = REGISTRY.info(name)
        assert info.name == name
        assert info.doc
        assert info.sources
        assert info.confidence in ("measured", "vendor", "derived", "assumed")
        assert info.file.is_file()


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_an_alias_is_another_name_of_the_same_tree(namespace):
    for name in of(namespace):
        for alias in REGISTRY.info(name).aliases:
            assert alias in REGISTRY
            assert alias not in NAMES
            assert REGISTRY[alias] == REGISTRY[name]
            assert REGISTRY[alias].tag == name


def test_names_are_listed_without_building_trees():
    registry = Registry(REGISTRY.info(NAMES[0]).file.parent)
    assert tuple(registry) == NAMES
    assert len(registry) == len(NAMES)
    assert registry._trees == {}


def test_a_namespace_is_read_on_demand():
    registry = Registry(REGISTRY.info(NAMES[0]).file.parent)
    assert "nvidia/a100" in registry
    assert set(registry._layers[0]._read) == {"nvidia"}  # type: ignore[attr-defined]
    assert "nobody/a100" not in registry
    assert "nvidia" not in registry
    assert 5 not in registry
