"""Defaults of attributes: those of TVM's tables, and those derived from other attributes."""

import pytest

from tvmtarget import Target
from tvmtarget.target.builtin_kinds import KINDS
from tvmtarget.target.kinds import Attribute, Kind

parse = Target.parse


@pytest.mark.parametrize("resolved", [False, True])
@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("webgpu", "thread_warp_size", 1),
        ("webgpu(supports_subgroups=false)", "thread_warp_size", 1),
        ("webgpu(supports_subgroups=true)", "thread_warp_size", 32),
        ('{"kind": "webgpu", "supports_subgroups": true}', "thread_warp_size", 32),
        ("webgpu -supports_subgroups=1", "thread_warp_size", 32),
        ("nvptx", "mtriple", "nvptx64-nvidia-cuda"),
        ("rocm", "mtriple", "amdgcn-amd-amdhsa-hcc"),
        ("cuda", "thread_warp_size", 32),
        ("vulkan", "supports_float16", None),
        ("vulkan", "supports_float32", True),
    ],
)
def test_an_attribute_that_is_not_stated_has_tvms_default(text, name, value, resolved):
    target = parse(text).resolve() if resolved else parse(text)
    assert target[name] == value
    assert (name in target) == (value is not None)
    if value is not None:
        assert target.origin(name).layer == "default"


def test_constraints_see_derived_defaults():
    assert parse("webgpu(supports_subgroups=true)").satisfies("gpu(thread_warp_size=32)")
    assert not parse("webgpu").satisfies("gpu(thread_warp_size=32)")


@pytest.mark.parametrize(
    ("text", "name"), [("cuda", "arch"), ("nvptx", "mcpu"), ("rocm", "mcpu"), ("llvm", "mtriple"), ("llvm", "mcpu")]
)
def test_what_tvm_reads_from_the_building_machine_is_no_default(text, name):
    """TVM queries the driver or LLVM, or uses sm_50 or gfx900; here the value is unknown until `detect`."""
    assert parse(text).resolve()[name] is None
    assert name not in parse(text).to_tvm().config


def test_the_rows_of_the_library_which_nothing_validates_are_valid():
    for kind in KINDS:
        assert Kind(**{name: getattr(kind, name) for name in Kind.model_fields}) == kind
        assert kind.model_fields_set >= {"name", "doc"}
        for row in kind.attributes:
            assert Attribute(**{name: getattr(row, name) for name in Attribute.model_fields}) == row


def test_defaults_are_those_of_the_installed_tvm():
    tvm = pytest.importorskip("tvm")
    names = set(tvm.target.Target.list_kinds())
    compared = 0
    for kind in KINDS:
        # TVM 0.27 passes trn's defaults without `refl::DefaultValue` and so loses them.
        if kind.role != "target" or kind.name not in names or kind.name in ("composite", "trn"):
            continue
        live = tvm.target.Target({"kind": kind.name}).export()
        ours = Target(kind.name)
        for row in kind.attributes:
            theirs = live.get(row.name)
            is_measured = row.name in ("arch", "mcpu", "mtriple") and ours[row.name] is None
            if theirs is not None and not is_measured:
                assert ours[row.name] == theirs, (kind.name, row.name)
                compared += 1
            elif theirs is None and not is_measured:
                assert ours[row.name] is None, (kind.name, row.name)
    assert compared > 30
