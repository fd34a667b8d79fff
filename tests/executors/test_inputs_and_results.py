"""What `Executable.run` accepts as inputs, and that its results belong to the caller."""

import re

import numpy as np
import pytest
from onnx import parser

import tvmtarget as tt
from tvmtarget.errors import RunError, TvmTargetError
from tvmtarget.executors.driver_program import Signature
from tvmtarget.executors.signatures import check_inputs
from tvmtarget.ir.types import MapType, OptionalType, SequenceType, TensorType

HEADER = '<ir_version: 8, opset_import: ["": 17]>'
FLOATS = np.float32([[1, 2, 3], [4, 5, 6]])


def checked(value, dtype, shape=(3,)):
    return check_inputs([Signature(name="x", dtype=dtype, shape=shape)], {"x": value})[0]


LAYOUTS = {
    "other byte order": FLOATS.astype(">f4"),
    "column by column": np.asfortranarray(FLOATS),
    "subclass": FLOATS.view(np.recarray),
    "list": FLOATS.tolist(),
    "unaligned": np.frombuffer(b"." + FLOATS.tobytes(), np.uint8)[1:].view("float32").reshape(2, 3),
}


@pytest.mark.parametrize("target", ["numpy", "onnxruntime", "llvm", "openvino"])
def test_arrays_of_any_layout_are_read_by_their_values(target):
    pytest.importorskip({"llvm": "tvm"}.get(target, target))
    exe = tt.build(parser.parse_model(f"{HEADER} g (float[2,3] x) => (float[2,3] y) {{ y = Neg(x) }}"), target)
    for layout, given in LAYOUTS.items():
        result = exe(given)
        assert type(result) is np.ndarray
        np.testing.assert_array_equal(result, -FLOATS, err_msg=layout)


@pytest.mark.parametrize(
    ("given", "dtype", "problem"),
    [
        ([1.5, 2, 3], "int32", "has 1.5, which int32 does not hold"),
        ([300, 0, 0], "int8", "has 300, which int8 does not hold"),
        ([2**70, 0, 0], "int64", "is a list of other values than numbers"),
        ([2, 0, 1], "bool", "has 2, which bool does not hold"),
        ([1e300, 0, 0], "float32", r"has 1e\+300, which float32 does not hold"),
        ([1j, 0, 0], "float32", "is a list of other values than numbers"),
        (["1", "2", "3"], "int32", "is a list of other values than numbers"),
        ([[1], [2, 3]], "int32", "is a list that is no array"),
        (None, "int32", "is of type NoneType, not an array"),
        (np.array([1, 2, 3], object), "int32", "is an array of Python objects, not int32"),
        (np.ma.masked_array(np.float32([1, 2, 3])), "float32", r"is a masked array; .*\.filled\(value\)"),
        (np.float64([1, 2, 3]), "float32", "is float64, not float32"),
        (["a", 1, "b"], "string", "has an element of type int"),
        (np.array(["a", None, "b"], object), "string", "has an element of type NoneType"),
        ([b"\xff", "a", "b"], "string", "has bytes that are not UTF-8"),
        (["\ud800", "a", "b"], "string", "has text that UTF-8 does not encode"),
    ],
)
def test_values_that_would_change_are_rejected(given, dtype, problem):
    with pytest.raises(RunError, match=f"input 'x'.* {problem}"):
        checked(given, dtype)


SEQUENCE = SequenceType(TensorType("float32", (None,)))


@pytest.mark.parametrize(
    ("given", "type_", "problem"),
    [
        (None, SEQUENCE, "is of type NoneType, not a list"),
        (FLOATS, SEQUENCE, "is of type ndarray, not a list"),
        ([FLOATS], SEQUENCE, r"has an element that has shape \(2, 3\), not \(\?\)"),
        ([FLOATS[0].astype("float64")], SEQUENCE, "has an element that is float64, not float32"),
        ([None], OptionalType(SEQUENCE), "has an element that is of type NoneType"),
        ([{"a": 1.0}, 1], SequenceType(MapType("string", None)), "has an element that is of type int, not a dict"),
    ],
)
def test_values_other_than_tensors_are_checked_too(given, type_, problem):
    with pytest.raises(RunError, match=f"input 's' {problem}.* {re.escape(f'(the program takes {type_})')}"):
        check_inputs([Signature.of("s", type_)], {"s": given})


def test_sequences_are_lists_of_arrays():
    (found,) = check_inputs([Signature.of("s", OptionalType(SEQUENCE))], {"s": (FLOATS[0], [1, 2])})
    assert type(found) is list
    assert [item.dtype.name for item in found] == ["float32", "float32"]
    assert check_inputs([Signature.of("s", OptionalType(SEQUENCE))], {"s": None}) == [None]


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        ([1.0, 2, 3], "int32"),
        ([0.1, float("inf"), float("nan")], "float32"),
        ([1, -8, 7], "int4"),
        ([0.1, 1, 2], "float8e4m3fn"),
        ([True, False, True], "bool"),
        ([2**64 - 1, 0, 1], "uint64"),
        (range(3), "float32"),
        ([1j, 0, 1], "complex64"),
    ],
)
def test_lists_become_arrays_of_the_declared_type(given, dtype):
    array = checked(given, dtype)
    assert array.dtype.name.replace("_", "") == dtype
    np.testing.assert_allclose(array.astype("complex64"), np.asarray(given, "complex64"), rtol=0.1)
    assert checked([], dtype, (0,)).shape == (0,)


@pytest.mark.parametrize("given", [["a", "bb", "ccc"], ["a", b"bb", np.bytes_("ccc")]])
@pytest.mark.parametrize("dtype", [object, "U", "S", ">U3"])
def test_texts_of_all_kinds_are_read_whole(given, dtype):
    # Of bytes of a fixed length, ONNX Runtime read "abbccc" here.
    array = checked(np.array(given, dtype), "string")
    assert array.dtype == object
    assert array.tolist() == ["a", "bb", "ccc"]


def test_inputs_are_a_mapping():
    with pytest.raises(RunError, match="inputs are a mapping of names to values, not a list"):
        check_inputs([], [np.zeros(1)])


class OnDevice:
    def __array__(self, *args, **kwargs):
        raise RuntimeError("it is on a device")


def test_arrays_of_other_libraries_that_cannot_be_read_say_why():
    with pytest.raises(RunError, match="input 'x' is a OnDevice that is no array: it is on a device"):
        checked(OnDevice(), "float32")


RETURNED = f"""{HEADER} g (float[2] x, int64 n) => (float[2] c, float[2] x, float[2] y, float[2] z)
    <float[2] c = {{1, 1}}> {{
        [sum] y = Add(x, c)
        [loop] z = Loop(n, , x) <body = b (int64 i, bool go, float[2] u) => (bool on, float[2] v)
            {{ on = Identity(go) v = Neg(u) }}>
    }}"""


@pytest.mark.parametrize("target", ["[a=numpy,b=numpy](host=@a)", "[a=onnxruntime,b=numpy](host=@b)"])
def test_results_share_no_memory_with_inputs_and_constants(target):
    if "onnxruntime" in target:
        pytest.importorskip("onnxruntime")
    exe = tt.build(parser.parse_model(RETURNED), target, where={"loop": "@b"})
    given = {"x": np.float32([3, 4]), "n": np.array(0)}
    streamed = list(exe.stream([given, given]))
    results = exe.run(given)
    for outputs in (*streamed, results):
        for value in outputs.values():
            value[:] = -1  # the caller owns it
    assert given["x"].tolist() == [3, 4]
    again = {name: value.tolist() for name, value in exe.run(given).items()}
    assert again == {"c": [1, 1], "x": [3, 4], "y": [4, 5], "z": [3, 4]}


@pytest.mark.parametrize(
    ("depth", "problem"),
    [
        (0, "depth is 0; it is the number of inputs in the pipeline, at least 1"),
        (2.5, r"depth of Executable\.stream is a whole number, not 2\.5"),
    ],
)
def test_a_stream_has_a_depth(depth, problem):
    exe = tt.build(parser.parse_model(f"{HEADER} g (float[1] x) => (float[1] y) {{ y = Neg(x) }}"), "numpy")
    with pytest.raises(TvmTargetError, match=problem):
        next(exe.stream([{"x": [1]}], depth=depth))
