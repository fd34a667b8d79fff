"""Every tag of TVM for a GPU is a tag here, whose part for TVM has the same facts but for a few corrections."""

from pathlib import Path

import pytest
from tools import derive_tvm_tags

from tvmtarget.tags.registry import default_registry

REGISTRY = default_registry()
NAMESPACES = ("apple/", "nvidia/")
DOCUMENT = Path(__file__).parents[2] / "docs" / "tvm-tags.md"

# What TVM says and what we say instead, by tag and fact; docs/tvm-tags.md gives the reasons.
CORRECTIONS = {
    "nvidia/jetson-agx-orin-32gb": {"host/mcpu": ("cortex-a78", "cortex-a78ae")},
    "nvidia/jetson-agx-orin-64gb": {"host/mcpu": ("cortex-a78", "cortex-a78ae")},
    "nvidia/jetson-orin-nano": {"host/mcpu": ("carmel", "cortex-a78ae")},
    "nvidia/nvidia-b100": {"l2_cache_size_bytes": (52428800, None)},
}

# Names that TVM once had and has no more.
FORMER = ["nvidia/gtx1080ti"]

# What TVM writes into the JSON of a target besides its attributes.
NO_ATTRIBUTES = ("kind", "tag", "keys", "host")


@pytest.fixture(scope="module")
def tvm_tags():
    pytest.importorskip("tvm")
    return {name: tag for name, tag in derive_tvm_tags.tvm_tags().items() if name.startswith(NAMESPACES)}


def part(name):
    """Return the part of our tag that TVM's tag of that name means."""
    path = REGISTRY.info(name).tvm
    assert path is not None, f"{name} does not say which part is TVM's"
    return REGISTRY[name].part(path.removeprefix(":"))


def facts(tag, prefix=""):
    """Yield the facts of a tag of TVM by path; features are derived from mcpu and left out."""
    for name, value in tag.items():
        if name == "host":
            yield from facts(value, "host/")
        elif name not in ("tag", *(() if name == "kind" else NO_ATTRIBUTES)) and not name.startswith("feature."):
            yield prefix + name, value
    yield prefix + "keys", tag["keys"]


def ours(target, path):
    """Return our fact for one of TVM's."""
    node = target.host if path.startswith("host/") else target
    name = path.removeprefix("host/")
    if name in ("kind", "keys"):
        return node.kind if name == "kind" else list(node.all_keys)
    return node[name]


def test_our_parts_have_the_facts_of_tvms_tags(tvm_tags):
    found = {}
    for name, tag in tvm_tags.items():
        target = part(name)
        pairs = {path: (value, ours(target, path)) for path, value in facts(tag)}
        wrong = {path: (theirs, mine) for path, (theirs, mine) in pairs.items() if theirs != mine}
        found |= {name: wrong} if wrong else {}
    assert found == CORRECTIONS


def test_where_tvm_names_no_host_a_system_has_one_of_its_own(tvm_tags):
    """TVM's Jetsons of the first generations drive their GPU by whatever machine compiles."""
    lonely = [name for name, tag in tvm_tags.items() if "host" not in tag and REGISTRY[name].is_composite]
    assert lonely == ["nvidia/jetson-nano", "nvidia/jetson-tx1", "nvidia/jetson-tx2"]
    assert all(part(name).host is not None for name in lonely)


def test_the_table_of_gpus_is_what_tvm_has_today(tvm_tags):
    import tvm

    derived = derive_tvm_tags.derive(tvm_tags, tvm.__version__, derive_tvm_tags.names_by_hand())
    assert derived == derive_tvm_tags.FILE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FORMER)
def test_a_name_that_tvm_dropped_is_still_read(name):
    assert name in REGISTRY


def test_the_document_tells_every_correction():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [name for name in (*CORRECTIONS, *FORMER) if f"`{name}`" not in text] == []
