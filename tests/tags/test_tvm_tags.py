"""Every tag of TVM exists, and its part for TVM has the same facts, with a few corrections."""

from pathlib import Path

import pytest
from tools import derive_tvm_tags

from tvmtarget import Target
from tvmtarget.tags.registry import default_registry

REGISTRY = default_registry()
NAMES = (Path(__file__).parent / "tvm_names.txt").read_text(encoding="utf-8").splitlines()
DOCUMENT = Path(__file__).parents[2] / "docs" / "tvm-tags.md"

# What TVM says and what we say instead, by tag and fact; docs/tvm-tags.md gives the reasons.
CORRECTIONS = {
    "nvidia/jetson-agx-orin-32gb": {"host/mcpu": ("cortex-a78", "cortex-a78ae")},
    "nvidia/jetson-agx-orin-64gb": {"host/mcpu": ("cortex-a78", "cortex-a78ae")},
    "nvidia/jetson-orin-nano": {"host/mcpu": ("carmel", "cortex-a78ae")},
    "nvidia/nvidia-b100": {"l2_cache_size_bytes": (52428800, None)},
}

# Names that TVM once had and has no more, of those in tvm_names.txt: its tags of v0.9, v0.19 and v0.27.
FORMER = ["nvidia/gtx1080ti"]

# What TVM writes into the JSON of a target besides its attributes.
NO_ATTRIBUTES = ("kind", "tag", "keys", "host")


@pytest.fixture(scope="module")
def tvm_tags():
    pytest.importorskip("tvm")
    return derive_tvm_tags.tvm_tags()


def part(name):
    """Return the part of our tag that TVM's tag of the name corresponds to."""
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
    """Return our fact for one of TVM's, which may state the CPU a second time as its own host."""
    is_of_host = path.startswith("host/") and target.kind != "llvm"
    node = target.host if is_of_host else target
    name = path.removeprefix("host/")
    if name in ("kind", "keys"):
        return node.kind if name == "kind" else list(node.keys)
    value = node[name]
    return list(value) if isinstance(value, tuple) else value


def _sorted(path, value):
    """Features are a set here."""
    return sorted(value) if path.endswith("mattr") else value


@pytest.mark.parametrize("name", NAMES)
def test_a_tag_of_any_version_of_tvm_exists(name):
    assert name in REGISTRY
    assert part(name).resolve()
    assert Target.parse(name) == REGISTRY[name]


def test_the_list_of_names_is_that_of_tvm(tvm_tags):
    assert sorted([*tvm_tags, *FORMER]) == NAMES


def test_our_parts_have_the_facts_of_tvms_tags(tvm_tags):
    found = {}
    for name, tag in tvm_tags.items():
        target = part(name)
        pairs = {path: (_sorted(path, value), ours(target, path)) for path, value in facts(tag)}
        wrong = {path: (theirs, mine) for path, (theirs, mine) in pairs.items() if theirs != mine}
        found |= {name: wrong} if wrong else {}
    assert found == CORRECTIONS


def test_a_system_has_a_host_where_tvm_states_none(tvm_tags):
    """TVM's Jetsons of the first generations, and its Trainium, are driven by the machine that compiles."""
    driven = [name for name in tvm_tags if part(name).kind != "llvm" and REGISTRY[name].is_composite]
    lonely = [name for name in driven if "host" not in tvm_tags[name]]
    assert lonely == ["aws/trn1/trn1.2xlarge", "nvidia/jetson-nano", "nvidia/jetson-tx1", "nvidia/jetson-tx2"]
    assert all(part(name).host is not None for name in lonely)


def test_the_table_of_gpus_is_what_tvm_has_today(tvm_tags):
    import tvm

    derived = derive_tvm_tags.derive(tvm_tags, tvm.__version__, derive_tvm_tags.names_by_hand())
    assert derived == derive_tvm_tags.FILE.read_text(encoding="utf-8")


def test_the_document_lists_every_correction():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [name for name in (*CORRECTIONS, *FORMER) if f"`{name}`" not in text] == []
