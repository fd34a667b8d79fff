"""Malformed modules are rejected in one line, in bounded time and memory: ONNX, text, JSON and saved files."""

import contextlib
import json
import random
import resource
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
from models import DIGITS, small
from onnx import AttributeProto, ModelProto, helper
from random_programs import random_program

import tvmtarget as tt
from tvmtarget.errors import ArtifactError, ModelError, TextError, TvmTargetError

NODE = helper.make_node


def refused(model, text):
    data = model if isinstance(model, bytes | ModelProto) else model.SerializeToString()
    with pytest.raises(ModelError, match=text) as caught:
        tt.IRModule.from_onnx(data)
    assert len(str(caught.value).splitlines()) == 1


def with_tensor(**fields):
    model = small(NODE("Add", ["x", "w"], ["y"]))
    tensor = model.graph.initializer.add(**{"name": "w", "data_type": 1} | fields)
    assert tensor.name == "w"
    return model


def with_attribute(op, **fields):
    node = NODE(op, ["x"], ["y"])
    node.attribute.add(**fields)
    return small(node)


def varint(number):
    digits = []
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes([*digits, number])


def nested(depth):
    """Return the bytes of a model with graphs nested in attributes of nodes to a depth."""
    data = b""
    for _ in range(depth):
        for tag in (b"\x32", b"\x2a", b"\x0a"):
            data = tag + varint(len(data)) + data
    return b"\x08\x08\x3a" + varint(len(data)) + data + b"\x42\x02\x10\x11"


def deep(depth):
    """Return a model of nested If operations as protobuf objects."""
    model = small()
    graph = model.graph
    for level in range(depth):
        node = graph.node.add(op_type="If", name=f"n{level}", input=["x"], output=["y"])
        graph = node.attribute.add(name="then_branch", type=AttributeProto.GRAPH).g
        graph.name = "g"
    return model


BROKEN = {
    "a circle": (small(NODE("Abs", ["z"], ["y"]), NODE("Abs", ["y"], ["z"])), "topologically sorted"),
    "a name that nothing defines": (small(NODE("Abs", ["q"], ["y"])), "'q'"),
    "a result that nothing computes": (small(NODE("Abs", ["x"], ["z"])), "'y' is not defined|graph output|y"),
    "a name defined twice": (small(NODE("Abs", ["x"], ["y"]), NODE("Neg", ["x"], ["y"])), "'y'"),
    "two inputs of one name": (small(NODE("Abs", ["x"], ["y"]), inputs=("x", "x")), "single static assignment"),
    "an output without a name": (small(NODE("Abs", ["x"], ["y"]), outputs=("",)), "'name'"),
    "operands too many": (small(NODE("Abs", ["x", "x"], ["y"])), "input size 2 not in range"),
    "a wrong attribute": (with_attribute("Abs", name="nope", type=2, i=1), "Unrecognized attribute: nope"),
    "a wrong type of attribute": (with_attribute("Elu", name="alpha", type=2, i=1), "Mismatched attribute type"),
    "an attribute without a type": (with_attribute("Elu", name="alpha", f=1), "type"),
    "an empty body": (with_attribute("If", name="then_branch", type=5), "is not a valid ONNX model"),
    "an unknown operator": (small(NODE("Nope", ["x"], ["y"])), "No Op registered for Nope"),
    "an unknown domain": (small(NODE("Nope", ["x"], ["y"], domain="com.own")), "No opset import for domain"),
    "negative dimensions": (with_tensor(dims=[-1], float_data=[1]), "Negative dimension|negative dimension"),
    "shapes that overflow": (with_tensor(dims=[2**40, 2**40], raw_data=b"1234"), "cannot reshape|overflow"),
    "much declared, little there": (with_tensor(dims=[2**40], raw_data=b"1234"), "data of tensor 'w'"),
    "much declared, nothing there": (with_tensor(dims=[2**40]), "data of tensor 'w'"),
    "an unknown element type": (with_tensor(dims=[2], data_type=999, raw_data=b"12"), "Unrecognized data_type|999"),
    "no element type": (with_tensor(dims=[2], data_type=0, raw_data=b"12"), "UNDEFINED"),
    "elements of another type": (with_tensor(dims=[2], data_type=7, float_data=[1, 2]), "int64_data"),
    "texts that are none": (with_tensor(dims=[1], data_type=8, string_data=[b"\xff"]), "data of tensor 'w'"),
    "a name that is no text": (
        small(NODE("Abs", ["xyz"], ["y"]), inputs=("xyz",)).SerializeToString().replace(b"xyz", b"\xff\xfez"),
        "UTF-8",
    ),
    "nested deeply": (nested(5000), "is not an ONNX model"),
    "nested as objects": (deep(40), "is not a valid ONNX model"),
    "nested very deeply as objects": (deep(2000), "65 levels, more than the limit of 64"),
    "cut off": (DIGITS.read_bytes()[:-1000], "is not an ONNX model"),
    "no text": (b"\xff" * 999, "is not an ONNX model"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_malformed_models_are_rejected(what):
    refused(*BROKEN[what])


def test_functions_that_call_themselves_are_rejected():
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    for version in (17, 11):
        grow = [NODE("Concat", ["a", "a"], ["c"], axis=0), NODE("F", ["c"], ["b"], domain="my")]
        model = small(NODE("F", ["x"], ["y"], domain="my"), opset=version)
        model.opset_import.append(opsets[1])
        model.functions.append(helper.make_function("my", "F", ["a"], ["b"], grow, opsets))
        for keep in (True, False):
            with pytest.raises(ModelError, match=r"calls itself|call each other deeper than|circle"):
                tt.IRModule.from_onnx(model, keep_functions=keep)


def mutated(data, seed):
    rng = random.Random(seed)
    data = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(data))
        data[at : at + rng.choice([0, 1, 4])] = rng.randbytes(rng.choice([0, 1, 4]))
    return bytes(data[: rng.choice([len(data), rng.randrange(len(data) + 1)])])


PROGRAM = random_program(5, size=6)
MODULE = tt.IRModule.from_onnx(PROGRAM)
FORMS = {
    "onnx": (PROGRAM.SerializeToString(), tt.IRModule.from_onnx),
    "text": (str(MODULE).encode(), lambda data: tt.IRModule.parse(data.decode("utf-8", "surrogateescape"))),
    "json": (json.dumps(MODULE.to_json()).encode(), tt.IRModule.from_json),
}


@pytest.mark.parametrize("form", FORMS)
def test_randomly_changed_models_are_read_or_rejected(form):
    """A sample of what `tests/tools/fuzz_ir.py` does."""
    data, read = FORMS[form]
    for seed in range(150):
        with contextlib.suppress(TvmTargetError):
            tt.IRModule.parse(str(read(mutated(data, seed))), MODULE.constants())


@pytest.mark.parametrize("path", sorted((Path(__file__).parent / "fuzzed").glob("*.bin")), ids=lambda path: path.stem)
def test_models_found_by_fuzzing_are_rejected(path):
    _, read = FORMS[path.stem.split("-")[0]]
    with pytest.raises(TvmTargetError):
        read(path.read_bytes()).to_onnx()


DEEP = {
    "types": (10**6 * "sequence(", "func @main(%x: {}"),
    "lists": (10**6 * "[", "func @main() attrs {{a={}"),
    "maps": (10**6 * "{a=", "func @main() attrs {}"),
    "bodies": (200_000 * "t @t() { = x() ", "func @main() {{ () = x() {}"),
    "constraints": (10**6 * "[", "func @main() {}"),
    "targets": (10**6 * "[", "target {}"),
}


@pytest.mark.parametrize("what", DEEP)
def test_deeply_nested_text_is_rejected(what):
    part, frame = DEEP[what]
    with pytest.raises((TextError, ModelError)):
        tt.IRModule.parse(frame.format(part))


def test_deeply_nested_json_is_rejected():
    bodies = '{"schema_version":1,"functions":[' + '{"name":"f","body":[{"regions":[["r",' * 10**5
    for text in ("[" * 10**6, '{"a":' * 10**6, bodies):
        with pytest.raises(ModelError, match="this is not a module"):
            tt.IRModule.from_json(text)
    data: object = []
    for _ in range(10**5):
        data = [data]
    with pytest.raises(ModelError, match="this is not a module"):
        tt.IRModule.from_json(data)


def test_long_numbers_are_rejected():
    for value in ("9" * 10**6, "1e" + "9" * 10**6, "0." + "1" * 10**6):
        with pytest.raises(TvmTargetError):
            tt.IRModule.parse(f"func @main() attrs {{a={value}}} {{ return }}")
    with pytest.raises(ModelError, match="this is not a module"):
        tt.IRModule.from_json('{"schema_version": ' + "9" * 10**6 + "}")


def test_declared_sizes_in_text_allocate_nothing():
    for shape in ("1000000000000", "99999999999,99999999999", "-1", "n"):
        with pytest.raises(TvmTargetError):
            tt.IRModule.parse(f"func @main() {{ const %w: float32[{shape}] = [1.0] return %w }}")
    data = {"name": "w", "type": "float32[99999999999,99999999999]", "digest": "0" * 64}
    body = {"schema_version": 1, "functions": [{"name": "main", "constants": [data]}]}
    with pytest.raises(ModelError, match=r"takes .* bytes, not 4"):
        tt.IRModule.from_json(body, {"0" * 64: np.zeros(1, "float32")})


def test_zip_bombs_are_rejected(tmp_path):
    """A gigabyte of zeros, compressed: members of a saved module must be uncompressed, so that it is not unpacked."""
    path = tmp_path / "bomb.irm"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("module.json", "w") as file:
        for _ in range(1 << 10):
            file.write(bytes(1 << 20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ArtifactError, match=r"TVMTARGET_MAX_UNPACKED_RATIO"):
        tt.IRModule.load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_saved_modules_that_are_tars_folders_or_devices_are_rejected(tmp_path):
    subprocess.run(["tar", "cf", tmp_path / "t.tar", DIGITS], check=True, capture_output=True)
    for path in (tmp_path / "t.tar", tmp_path, Path("/dev/null")):
        with pytest.raises(ArtifactError, match=r"is damaged, or not a zip file|it is (a directory|no regular file)"):
            tt.IRModule.load(path)


def test_large_operator_sets_of_names_take_linear_time():
    """Clashing names could take quadratic time."""
    nodes = [NODE("Abs", ["x"], [f"v{k}"], name="same") for k in range(5000)]
    model = small(*nodes, NODE("Neg", ["v0"], ["y"]))
    module = tt.IRModule.from_onnx(model)
    assert len({call.source for call in module.main.body}) == 5001


WRONG_TYPES = {
    "no model": lambda: tt.IRModule.from_onnx(None),
    "an empty path": lambda: tt.IRModule.from_onnx(""),
    "no text": lambda: tt.IRModule.parse(b""),
    "no target": lambda: tt.IRModule.from_onnx(DIGITS).with_target(3),
    "no configuration": lambda: tt.IRModule.from_onnx(DIGITS).with_configuration("llvm"),
    "no name": lambda: tt.IRModule.from_onnx(DIGITS)[["main"]],
    "no name of what to export": lambda: tt.IRModule.from_onnx(DIGITS).to_onnx(None),
}


@pytest.mark.parametrize("what", WRONG_TYPES)
def test_values_of_a_wrong_type_are_rejected_with_the_value(what):
    with pytest.raises(TvmTargetError, match=r"not |no function"):
        WRONG_TYPES[what]()
