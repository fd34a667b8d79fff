"""Exchange with TVM: files and exports of every version are read, and the installed one loads what is written."""

import contextlib
import doctest
import json
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from blocks import answered
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tvmtarget import Target
from tvmtarget.errors import MissingExtraError, TargetError, TvmTargetError
from tvmtarget.tags.registry import Registry, default_registry
from tvmtarget.target.kinds import find_kind
from tvmtarget.target.tvm.bridge import TvmTarget
from tvmtarget.target.tvm.versions import VERSIONS

GOLDEN = "target/tvm.golden"


# Writing


def answer(text):
    lines = []
    for version in VERSIONS:
        try:
            written = Target.parse(text).to_tvm(version)
            lines += [f"  {version}: {written.text}", *(f"    {loss}" for loss in written.losses)]
        except TvmTargetError as error:
            lines += [f"  {version}: {type(error).__name__}: {problem}" for problem in str(error).splitlines()]
    return lines


def test_what_each_version_of_tvm_can_express(golden):
    golden(GOLDEN, answered(GOLDEN, answer))


@pytest.mark.parametrize("version", ["v0.9", "v0.19"])
def test_written_command_lines_are_read_back(version):
    dialect = "v0.9" if version == "v0.9" else "v0.10"
    text = 'llvm(+neon,cl-opt=["-a,b"],model="it\'s new",num-cores=4,host=c(mcpu=cortex-m55))'
    target = Target.parse(text).unset("cl-opt") if version == "v0.9" else Target.parse(text)
    written = target.to_tvm(version)
    assert not written.text.startswith("{")
    assert written.losses == ()
    assert Target.from_cli(written.text, dialect) == target


def test_an_unknown_version_is_rejected():
    with pytest.raises(TargetError, match=r"unknown version of TVM 'v0\.5'; did you mean 'v0\.9'?"):
        Target("llvm").to_tvm("v0.5")
    with pytest.raises(TargetError, match=r"loads what is written for v0\.27, not for v0\.19"):
        Target("llvm").to_tvm("v0.19").load()


def test_without_tvm_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tvm.target", None)
    with pytest.raises(MissingExtraError, match=r"tvmtarget\[tvm\]"):
        Target("llvm").to_tvm().load()


def test_every_tag_is_written_with_every_leaf_that_tvm_has():
    for target in Registry(default_registry().layers[0]).values():
        kinds = [node.kind for _, node in target.walk() if is_of_today(node)]
        if set(kinds) <= {"composite"}:
            with pytest.raises(TargetError, match=f"kind .* of .*: {ABSENT}"):
                target.to_tvm()
        else:
            assert list(kinds_of(target.to_tvm().config)) == kinds


ABSENT = "(no TVM has it|TVM had it until v0)"


def is_of_today(node):
    """Whether TVM has the kind of a leaf, or of a leaf below a system."""
    if node.targets:
        return any(map(is_of_today, node.targets))
    return node.kind not in ("numpy", "onnxruntime", "openvino") and not find_kind(node.kind).until


def kinds_of(config):
    yield config["kind"]
    for device in config.get("devices", ()):
        yield from kinds_of(device)


def test_the_document_is_true():
    path = Path(__file__).parents[2] / "docs" / "tvm.md"
    with warnings.catch_warnings():
        failed, tried = doctest.testfile(str(path), module_relative=False)
    assert tried
    assert not failed


def test_the_program_with_live_targets_in_the_document_runs(monkeypatch):
    pytest.importorskip("tvm", reason="needs the extra 'tvm'")
    root = Path(__file__).parents[2]
    (program,) = re.findall(
        r"```python\n(import tvm\n.*?)```", (root / "docs" / "tvm.md").read_text("utf-8"), re.DOTALL
    )
    monkeypatch.chdir(root)
    exec(compile(program, "docs/tvm.md", "exec"), {})


# Exports, as they were written by the versions named


@pytest.mark.parametrize(
    ("config", "text"),
    [
        # v0.9.0: numbers for truths, defaults of that version, executor and runtime in the target
        (
            {"kind": "c", "tag": "", "keys": ["cpu"], "link-params": 1, "system-lib": 0, "mcpu": "cortex-m7"},
            "c(mcpu=cortex-m7,executor=graph(link-params=true),runtime=cpp(system-lib=false))",
        ),
        (
            {"kind": "vulkan", "tag": "", "keys": ["vulkan", "gpu"], "supports_int32": 1, "supports_float16": 0},
            "vulkan(supports_float16=false)",
        ),
        (
            {"kind": "opencl", "tag": "", "keys": ["mali", "opencl", "gpu"], "device": "mali", "thread_warp_size": 1},
            "opencl(device=mali)",
        ),
        ({"kind": "stackvm", "tag": "", "keys": []}, "stackvm"),
        # v0.19.0: keys of a CPU are made by its parser
        (
            {"kind": "llvm", "tag": "", "keys": ["arm_cpu", "cpu"], "mcpu": "cortex-m55", "mtriple": "arm-none-eabi"},
            "llvm(mcpu=cortex-m55,mtriple=arm-none-eabi)",
        ),
        ({"kind": "opencl", "tag": "", "keys": ["foo", "mali"], "device": "mali"}, "opencl(device=mali,keys=foo)"),
        (
            {"kind": "llvm", "keys": ["x", "arm_cpu", "cpu", "y"], "device": "y", "mtriple": "aarch64-linux-gnu"},
            "llvm(device=y,mtriple=aarch64-linux-gnu,keys=x)",
        ),
        # today: features, the number of a device, a label
        (
            {"kind": "llvm", "tag": "a/b", "keys": ["cpu"], "feature.has_mve": True, "from_device": 0},
            "llvm(from_device=0)",
        ),
        ({"tag": "nvidia/jetson-nano:cpu"}, "nvidia/jetson-nano:cpu"),
    ],
)
@pytest.mark.filterwarnings("ignore::tvmtarget.errors.TvmTargetWarning")
def test_an_export_is_read_as_what_its_user_wrote(config, text):
    assert Target.from_tvm(config) == Target.from_tvm(json.dumps(config)) == Target.parse(text)


def test_a_value_that_is_no_target_is_rejected():
    for value in (5, None, [], b"llvm", Target("llvm")):
        with pytest.raises(TargetError, match="a target of TVM is its own value, its JSON or its text"):
            Target.from_tvm(value)


def test_exports_that_are_nested_too_deep_are_rejected():
    config = {"kind": "llvm"}
    for _ in range(5000):
        config = {"kind": "cuda", "host": config}
    with pytest.raises(TargetError, match="deeper than 64 levels"):
        Target.from_tvm(config)
    chain = [{"type": "target.Target", "data": {"kind": 0, "host": at + 2}} for at in range(5000)]
    with pytest.raises(TargetError, match="nested deeper than 192 nodes"):
        Target.from_tvm({"root_index": 1, "nodes": [{"type": "target.TargetKind", "data": "cuda"}, *chain]})


# Files of save_json

SAVED: dict[str, dict[str, Any]] = {
    "v0.6": {
        "root": 1,
        "nodes": [
            {"type_key": ""},
            {
                "type_key": "Target",
                "attrs": {
                    "device_name": "arm_cpu",
                    "device_type": "1",
                    "keys_array": "2",
                    "libs_array": "5",
                    "max_num_threads": "1",
                    "options_array": "6",
                    "target_name": "llvm",
                    "thread_warp_size": "1",
                },
            },
            {"type_key": "Array", "data": [3, 4]},
            {"type_key": "StringImm", "attrs": {"dtype": "handle", "value": "arm_cpu"}},
            {"type_key": "StringImm", "attrs": {"dtype": "handle", "value": "cpu"}},
            {"type_key": "Array"},
            {"type_key": "Array", "data": [7, 8, 9]},
            {"type_key": "StringImm", "attrs": {"dtype": "handle", "value": "-device=arm_cpu"}},
            {"type_key": "StringImm", "attrs": {"dtype": "handle", "value": "-model=unknown"}},
            {"type_key": "StringImm", "attrs": {"dtype": "handle", "value": "-target=aarch64-linux-gnu"}},
        ],
        "b64ndarrays": [],
        "attrs": {"tvm_version": "0.6.0"},
    },
    "v0.9": {
        "root": 1,
        "nodes": [
            {"type_key": ""},
            {"type_key": "Target", "attrs": {"attrs": "8", "host": "14", "keys": "6", "kind": "2", "tag": "5"}},
            {"type_key": "TargetKind", "attrs": {"default_keys": "4", "device_type": "2", "name": "3"}},
            {"type_key": "runtime.String", "repr_str": "cuda"},
            {"type_key": "Array", "data": [3, 7]},
            {"type_key": "runtime.String"},
            {"type_key": "Array", "data": [3, 7]},
            {"type_key": "runtime.String", "repr_str": "gpu"},
            {"type_key": "Map", "keys": ["max_num_threads", "arch", "model", "libs"], "data": [9, 10, 11, 12]},
            {"type_key": "IntImm", "attrs": {"dtype": "int32", "span": "0", "value": "1024"}},
            {"type_key": "runtime.String", "repr_str": "sm_80"},
            {"type_key": "runtime.String", "repr_b64": "AwAAAAAAAADDqSE="},
            {"type_key": "Array", "data": [13]},
            {"type_key": "runtime.String", "repr_str": "cudnn"},
            {"type_key": "Target", "attrs": {"attrs": "18", "host": "0", "keys": "17", "kind": "15", "tag": "5"}},
            {"type_key": "TargetKind", "attrs": {"default_keys": "17", "device_type": "1", "name": "16"}},
            {"type_key": "runtime.String", "repr_str": "c"},
            {"type_key": "Array", "data": [19]},
            {"type_key": "Map", "keys": ["system-lib", "link-params"], "data": [20, 21]},
            {"type_key": "runtime.String", "repr_str": "cpu"},
            {"type_key": "IntImm", "attrs": {"dtype": "bool", "span": "0", "value": "1"}},
            {"type_key": "IntImm", "attrs": {"dtype": "bool", "span": "0", "value": "0"}},
        ],
        "b64ndarrays": [],
        "attrs": {"tvm_version": "0.9.0"},
    },
    "v0.19": {
        "root": 1,
        "nodes": [
            {"type_key": ""},
            {
                "type_key": "Target",
                "attrs": {"attrs": "6", "features": "9", "host": "0", "keys": "4", "kind": "2", "tag": "3"},
            },
            {"type_key": "TargetKind", "repr_str": "vulkan"},
            {"type_key": "runtime.String"},
            {"type_key": "Array", "data": [5]},
            {"type_key": "runtime.String", "repr_str": "x"},
            {"type_key": "Map", "keys": ["supports_float16", "max_block_size_x"], "data": [7, 8]},
            {"type_key": "runtime.BoxBool", "repr_str": "true"},
            {"type_key": "runtime.BoxInt", "repr_str": "512"},
            {"type_key": "Map"},
        ],
        "b64ndarrays": [],
        "attrs": {"tvm_version": "0.19.0"},
    },
    "v0.21": {
        "root": 0,
        "nodes": [
            {
                "type_key": "target.Target",
                "attrs": {"attrs": "4", "host": "null", "keys": "3", "kind": "1", "tag": "2"},
            },
            {"type_key": "target.TargetKind", "repr_str": "llvm"},
            {"type_key": "ffi.String"},
            {"type_key": "ffi.Array", "data": [6]},
            {"type_key": "ffi.Map", "keys": ["num-cores", "fast-math"], "data": [5, 7]},
            {"type_key": "int", "attrs": {"v_int64": "4"}},
            {"type_key": "ffi.String", "repr_str": "cpu"},
            {"type_key": "bool", "attrs": {"v_int64": "1"}},
        ],
        "attrs": {"tvm_version": "0.21.0"},
    },
    "today": {
        "root_index": 9,
        "nodes": [
            {"type": "target.TargetKind", "data": "composite"},
            {"type": "ffi.String", "data": ""},
            {"type": "ffi.Array", "data": []},
            {"type": "ffi.String", "data": "devices"},
            {"type": "None"},
            {"type": "target.TargetKind", "data": "c"},
            {"type": "ffi.Map", "data": []},
            {"type": "target.Target", "data": {"kind": 5, "tag": 1, "keys": 2, "attrs": 6, "host": 4}},
            {"type": "ffi.Map", "data": [3, 10]},
            {"type": "target.Target", "data": {"kind": 0, "tag": 1, "keys": 2, "attrs": 8, "host": 7}},
            {"type": "ffi.Array", "data": [7, 7]},
        ],
        "metadata": {"tvm_version": "0.27.0"},
    },
}

SAYS = {
    "v0.6": "llvm(device=arm_cpu,mtriple=aarch64-linux-gnu)",
    "v0.9": 'cuda(arch=sm_80,libs=cudnn,model="é!",host=c,runtime=cpp(system-lib=true))',
    "v0.19": "vulkan(max_block_size_x=512,supports_float16=true,keys=x)",
    "v0.21": "llvm(fast-math=true,num-cores=4)",
    "today": "[c0=c(keys=[]),c1=c(keys=[])](host=c(keys=[]))",
}


@pytest.mark.parametrize("version", SAVED)
@pytest.mark.filterwarnings("ignore::tvmtarget.errors.TvmTargetWarning")
def test_a_saved_file_is_read_for_its_target(version):
    """The forms are those that src/node/serialization.cc writes in each version; the values are our own."""
    assert Target.from_tvm(json.dumps(SAVED[version])) == Target.parse(SAYS[version])


@pytest.mark.filterwarnings("ignore::tvmtarget.errors.TvmTargetWarning")
def test_the_target_of_a_saved_module_is_the_one_that_is_no_part_of_another():
    saved = SAVED["v0.9"]
    module = saved | {"root": 22, "nodes": [*saved["nodes"], {"type_key": "IRModule", "attrs": {"functions": "0"}}]}
    assert Target.from_tvm(module) == Target.parse(SAYS["v0.9"])
    two = saved | {
        "root": 22,
        "nodes": [*saved["nodes"], {}, {"type_key": "Target", "attrs": {"kind": "15", "attrs": "8"}}],
    }
    with pytest.raises(TargetError, match="read for its one target, and this one has: cuda, c"):
        Target.from_tvm(two)


@pytest.mark.parametrize(("version", "keys"), [("v0.21", {"keys": ["num-cores"]}), ("today", {"data": [3]})])
def test_maps_of_a_saved_file_have_a_value_for_each_key(version, keys):
    nodes = [node | keys if node.get("data", ()) in ([5, 7], [3, 10]) else node for node in SAVED[version]["nodes"]]
    with pytest.raises(TargetError, match=r"a map in a file of TVM has 1 key and [02] values"):
        Target.from_tvm(SAVED[version] | {"nodes": nodes})


json_values = st.recursive(
    st.one_of(st.none(), st.integers(-1, 12), st.sampled_from(["1", "c", "null", "llvm", "AwAAAAAAAADDqSE="])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["kind", "host", "attrs", "keys", "value", "name", "target_name"]), inner),
    ),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(SAVED)), st.randoms(use_true_random=False), json_values)
@pytest.mark.filterwarnings("ignore::tvmtarget.errors.TvmTargetWarning")
def test_a_damaged_file_is_read_or_rejected_by_an_error_of_this_library(version, random, value):
    saved = json.loads(json.dumps(SAVED[version]))
    node = random.choice(saved["nodes"])
    if random.random() < 0.5 and isinstance(node.get("attrs", node.get("data")), dict):
        node = node.get("attrs", node.get("data"))
    node[random.choice(sorted(node) or ["data"])] = value
    with contextlib.suppress(TvmTargetError):
        assert Target.from_tvm(saved).kind


# The installed TVM


@pytest.fixture(scope="module")
def tvm():
    """Return the installed TVM, and how its values are compared."""
    return pytest.importorskip("tvm", reason="needs the extra 'tvm'")


def equal(one, other):
    import tvm_ffi

    return tvm_ffi.structural_equal(one, other)


def sorted_features(config):
    """Order features, which are a set here and a list there, as the only thing that TVM's normalisation leaves."""
    sort = {key: sorted(value) for key, value in config.items() if key == "mattr"}
    nested = {key: sorted_features(value) for key, value in config.items() if key == "host"}
    devices = {key: [sorted_features(item) for item in value] for key, value in config.items() if key == "devices"}
    return config | sort | nested | devices


def test_the_kind_table_is_that_of_the_installed_tvm(tvm):
    """Names and types of all attributes; a newer TVM that has others shows here."""
    types = {"features": "Array<str>", "list[str]": "Array<str>"}
    fields = {"kind", "tag", "keys", "host", "devices"}
    for name in tvm.target.Target.list_kinds():
        rows = [row for row in find_kind(name).attributes if row.since != "tt1"]
        options = dict(tvm.target.Target(name).kind.options) if name != "composite" else {}
        if options:
            assert {row.name: types.get(row.type, row.type) for row in rows} == {
                key: value for key, value in options.items() if key not in fields
            }


def test_every_tag_of_tvm_survives_a_round_trip(tvm):
    """Each export is read, written and loaded as the same target, and survives our own JSON and every text of it."""
    names = list(tvm.target.list_tags())
    assert len(names) == 287
    for name in names:
        live = tvm.target.Target(name)
        ours = Target.from_tvm(live)
        written = ours.to_tvm()
        assert written.losses == ()
        assert equal(written.load(), tvm.target.Target(sorted_features(json.loads(str(live)))))
        assert Target.from_json(json.loads(json.dumps(ours.to_json()))) == ours
        assert Target.parse(str(ours)) == ours
        assert Target.from_tvm(str(live)) == Target.from_tvm(tvm.ir.save_json(live)) == ours


BY_KIND = {
    "cuda": {"arch": ["sm_53", "sm_90a", "sm_120"]},
    "nvptx": {"mcpu": ["sm_70"], "mtriple": ["nvptx64-nvidia-cuda"]},
    "rocm": {"mcpu": ["gfx90a"], "mtriple": ["amdgcn-amd-amdhsa-hcc"], "mattr": [["+sramecc"], []]},
    "llvm": {
        "mcpu": ["skylake-avx512", "cortex-a72"],
        "mtriple": ["x86_64-linux-gnu", "aarch64-linux-gnu", "riscv64-unknown-linux-gnu"],
        "mattr": [["-avx", "+sse4.1"], ["+neon", "+crc"], []],
        "cl-opt": [["-unroll-threshold:uint=100", "-unroll-count:uint=3"], []],  # TVM gives them to LLVM
        "mfloat-abi": ["hard"],
        "vector-width": [128, 512],  # TVM reads no more than 32 bits of it
        "jit": ["mcjit", "orcjit"],
    },
    "c": {"mcpu": ["cortex-m55", "cortex-m33+nodsp"], "march": ["armv8-m"]},
    "hexagon": {"mcpu": ["hexagonv68"], "mtriple": ["hexagon"], "mattr": [["+hvxv68", "+hvx-length128b"]]},
    "webgpu": {"supports_subgroups": [False], "thread_warp_size": [1]},
}
NEEDED = {"cuda": {"arch"}, "nvptx": {"mcpu", "mtriple"}, "rocm": {"mcpu", "mtriple"}, "llvm": {"mtriple"}}
LIVE = [*BY_KIND, "opencl", "metal", "vulkan", "trn", "ext_dev", "test", "cuda_host"]
texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=6).filter(
    lambda text: "@" not in text and text not in ("unknown", "mkldnn")
)
words = st.sampled_from(["gpu", "mali", "x86", "adreno", "cblas"])
TYPES = {
    "int": st.sampled_from([1, 2, 8, 16, 32, 256, 4096, 2**40]),
    "bool": st.booleans(),
    "str": texts,
    "list[str]": st.lists(texts, max_size=3),
    "features": st.lists(st.sampled_from(["+a", "-b", "+c"]), unique=True),
}


@st.composite
def leaves(draw, hosts=True):
    kind = draw(st.sampled_from(LIVE))
    rows = [row for row in find_kind(kind).attributes if row.since != "tt1" and row.name not in ("from_device", "mabi")]
    chosen = draw(st.lists(st.sampled_from(rows), max_size=6, unique_by=lambda row: row.name))
    config = {"kind": kind} | {row.name: draw(words if row.name == "device" else TYPES[row.type]) for row in chosen}
    for name, values in BY_KIND.get(kind, {}).items():  # type: ignore[attr-defined]
        config.pop(name, None)
        if name in NEEDED.get(kind, ()) or draw(st.booleans()):
            config[name] = draw(st.sampled_from(values))
    if kind != "c" and draw(st.booleans()):
        config["keys"] = draw(st.lists(words, unique=True, min_size=1, max_size=3))
    if hosts and draw(st.booleans()):
        config["host"] = draw(leaves(hosts=False).filter(lambda host: host["kind"] in ("llvm", "c", "hexagon")))
    return config


configs = st.recursive(
    leaves(),
    lambda inner: st.builds(
        lambda devices: {"kind": "composite", "devices": devices}, st.lists(inner, min_size=1, max_size=3)
    ),
    max_leaves=4,
)


@settings(max_examples=100, deadline=None)
@given(configs)
def test_targets_that_tvm_can_express_survive_a_round_trip(tvm, config):
    """For configurations that both accept; TVM accepts values without meaning, which are rejected here."""
    try:
        ours = Target.from_json(config)
        ours.resolve()
    except TargetError:
        assume(False)
    live = tvm.target.Target(sorted_features(config))
    back = Target.from_tvm(live).to_tvm().load()
    if config["kind"] != "composite":
        assert equal(back, live)
        assert equal(ours.to_tvm().load(), live)
        assert Target.from_tvm(live) == Target.from_tvm(tvm.ir.save_json(live))
        assert Target.from_tvm(live) == Target.from_tvm(config)
    again = Target.from_tvm(back)
    assert again.to_tvm().config == Target.from_tvm(live).to_tvm().config
    assert equal(again.to_tvm().load(), back)


# The cases of TVM's own tests of targets (tests/python/target/test_target_target.py at main, tests/python/unittest/
# test_target_target.py at v0.9.0 for the command lines, tests/cpp/target_test.cc at v0.9.0 to v0.19.0): what a user
# writes, and its text here; both are read equally, through TVM and without it.

CASES = [
    ({"kind": "cuda", "arch": "sm_75", "libs": ["cublas", "cudnn"]}, "cuda(arch=sm_75,libs=cublas+cudnn)"),
    ({"kind": "opencl", "device": "intel_graphics"}, "opencl(device=intel_graphics)"),
    ({"kind": "opencl", "device": "mali"}, "opencl(device=mali)"),
    (
        {"kind": "vulkan", "device_name": "Name of GPU with spaces", "device_type": "discrete"},
        'vulkan(device_name="Name of GPU with spaces",device_type=discrete)',
    ),
    (
        {"kind": "llvm", "mtriple": "x86_64", "cl-opt": ["-unroll-threshold:uint=100", "-unroll-count:uint=3"]},
        'llvm(mtriple=x86_64,cl-opt=["-unroll-threshold:uint=100","-unroll-count:uint=3"])',
    ),
    ({"kind": "llvm", "mtriple": "x86_64", "jit": "mcjit"}, "llvm(mtriple=x86_64,jit=mcjit)"),
    ({"kind": "llvm", "mtriple": "x86_64", "vector-width": 1024}, "llvm(mtriple=x86_64,vector-width=1024)"),
    (
        {"kind": "llvm", "mtriple": "x86_64", "keys": ["arm_cpu", "cpu"], "device": "arm_cpu", "mfloat-abi": "hard"},
        "llvm(mtriple=x86_64,device=arm_cpu,mfloat-abi=hard)",
    ),
    (
        {"kind": "llvm", "mtriple": "x86_64", "keys": ["cpu", "arm_cpu"], "device": "arm_cpu"},
        "llvm(mtriple=x86_64,device=arm_cpu,keys=cpu)",
    ),
    (
        {"kind": "composite", "host": {"kind": "c"}, "devices": [{"kind": "cuda", "arch": "sm_75"}, "opencl"]},
        "[cuda(arch=sm_75),opencl](host=c)",
    ),
    ({"kind": "cuda", "arch": "sm_53", "host": {"kind": "c"}}, "cuda(arch=sm_53,host=c)"),
    (
        {"kind": "vulkan", "supports_float16": True, "supports_int8": False},
        "vulkan(supports_float16=1,supports_int8=0)",
    ),
    ({"kind": "cuda", "arch": "sm_80", "l2_cache_size_bytes": 12345}, "cuda(arch=sm_80,l2_cache_size_bytes=12345)"),
    ({"kind": "test"}, "test"),
    ({"kind": "llvm", "mtriple": "x86_64", "target_device_type": 2}, "llvm(mtriple=x86_64,target_device_type=2)"),
]


@pytest.mark.parametrize(("config", "text"), CASES)
def test_targets_of_tvms_own_tests_mean_the_same_here(tvm, config, text):
    live = tvm.target.Target(config)
    assert Target.from_tvm(live) == Target.from_tvm(config) == Target.parse(text)
    if config["kind"] != "composite":
        assert Target.from_tvm(str(live)) == Target.parse(text)
    assert equal(Target.parse(text).to_tvm().load(), live) or config["kind"] == "composite"


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"kind": "llvm", "libs": {"a": "b"}}, "attribute 'libs' of kind 'llvm' is a list, not {'a': 'b'}"),
        ({"kind": "llvm", "bad": 1}, "kind 'llvm' has no attribute 'bad'"),
        ({"kind": "llvm", "fast-math": "maybe"}, "attribute 'fast-math' of kind 'llvm' is true or false, not 'maybe'"),
        ({"mcpu": "cortex-a72"}, "a target needs a 'kind' or a 'tag'"),
        ({"kind": "llvm", "keys": "cpu gpu"}, "'keys' is a list of words, not 'cpu gpu'"),
        ({"kind": ["llvm"]}, "'kind' is the name of a kind, not ['llvm']"),
        ({"kind": "composite", "devices": "llvm"}, "'targets' is a list of targets, not 'llvm'"),
        ({"tag": "nope/nope"}, "unknown tag 'nope/nope'"),
    ],
)
def test_targets_that_tvms_own_tests_reject_are_rejected_here(config, problem):
    with pytest.raises(TvmTargetError) as caught:
        Target.from_tvm(config)
    assert str(caught.value).startswith(problem)


# What TVM does, and what is done here


def test_a_composite_has_a_text_and_every_tree_is_a_key(tvm):
    config = {
        "kind": "composite",
        "devices": [{"kind": "cuda", "arch": "sm_80"}, {"kind": "llvm", "mtriple": "x86_64"}],
    }
    live = tvm.target.Target(config)
    with pytest.raises((ValueError, TypeError)):
        tvm.target.Target(str(live))
    assert live != tvm.target.Target(config)
    ours = Target.from_tvm(live)
    assert Target.parse(str(ours)) == ours
    assert {ours: 1}[Target.from_tvm(config)] == 1


def test_lists_of_tvm_are_read_as_lists_of_python(tvm):
    listed = pytest.importorskip("tvm_ffi").convert(["cuda", "llvm"])
    assert Target.parse(listed) == Target.parse(["cuda", "llvm"])


def test_a_tag_is_kept_as_a_label(tvm):
    assert tvm.target.Target("nvidia/nvidia-a100").tag == ""
    assert Target.parse("nvidia/jetson-nano").tag == "nvidia/jetson-nano"


def test_features_are_derived_and_not_written(tvm):
    assert tvm.target.Target({"kind": "llvm", "feature.bogus": True}).features.bogus
    with pytest.raises(TargetError):
        Target.from_json({"kind": "llvm", "feature.bogus": True})
    assert Target.from_tvm({"kind": "llvm", "feature.bogus": True}) == Target("llvm")


def test_defaults_of_trn_and_the_warp_of_webgpu_are_as_declared(tvm):
    assert "partition_size" not in tvm.target.Target("trn").attrs
    assert Target("trn")["partition_size"] == 128
    said = {"supports_subgroups": True, "thread_warp_size": 8}
    assert tvm.target.Target({"kind": "webgpu", **said}).attrs["thread_warp_size"] == 32
    assert Target("webgpu", said)["thread_warp_size"] == 8


def test_command_lines_that_tvm_no_longer_reads_are_loaded_by_this_library(tvm):
    with pytest.raises(ValueError, match="no longer supported"):
        tvm.target.Target("llvm -mcpu=skylake-avx512 -num-cores=4")
    live = Target.from_cli("llvm -mcpu=skylake-avx512 -num-cores=4").to_tvm().load()
    assert dict(live.attrs)["num-cores"] == 4


def test_targets_that_tvm_rejects_are_an_error_of_this_library(tvm):
    with pytest.raises(TargetError, match=r"TVM rejects .*requires supports_subgroups"):
        TvmTarget("v0.27", {"kind": "webgpu", "thread_warp_size": 8}).load()


@pytest.mark.parametrize(
    ("text", "mcpu", "mattr"),
    [
        ("llvm(mcpu=haswell+noavx)", "haswell", ["-avx"]),
        ("llvm(mtriple=aarch64-linux-gnu,mcpu=cortex-a72+crypto)", "cortex-a72", ["+aes", "+sha2"]),
        ("llvm(mcpu=cortex-m55+nomve)", "cortex-m55+nomve", None),
        ("c(mcpu=cortex-m55+nomve)", "cortex-m55+nomve", None),
    ],
)
def test_modifiers_are_written_as_tvm_reads_them(text, mcpu, mattr):
    config = Target.parse(text).to_tvm().config
    assert (config["mcpu"], config.get("mattr")) == (mcpu, mattr)


@pytest.mark.parametrize(
    "text",
    ["cuda", "llvm", "opencl -device=mali", "opencl -device=mali -keys=foo", "vulkan -keys=x,gpu", "c", "hexagon",
     "llvm -device=arm_cpu -keys=arm_cpu,cpu", "llvm -mtriple=aarch64-linux-gnu -keys=x", "rocm", "metal"],
)  # fmt: skip
def test_keys_are_those_of_tvm(tvm, text):
    ours = Target.parse(text)
    assert list(ours.keys) == [str(key) for key in tvm.target.Target(ours.to_tvm().config).keys]
