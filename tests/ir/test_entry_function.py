"""The entry function of a module: its selection and its names."""

import pytest

import tvmtarget as tt
from tvmtarget.errors import ModelError, UnknownNameError

TWO = """
func @prefill(%x: float32[4]) -> (float32[4]) opsets(onnx=17) { %y: float32[4] = @half(%x) return %y }
func @decode(%x: float32[4]) -> (float32[4]) opsets(onnx=17) { %y: float32[4] = @half(%x) as h return %y }
func @half(%x: float32[4]) -> (float32[4]) opsets(onnx=17) { %y: float32[4] = onnx.Relu(%x) as relu return %y }
func @main(%x: float32[4]) -> (float32[4]) opsets(onnx=17) { %y: float32[4] = onnx.Neg(%x) as neg return %y }
"""


def names(module):
    return [function.name for function in module]


def without_main():
    module = tt.IRModule.parse(TWO)
    return module.replace(functions=tuple(one for one in module if one.name != "main"))


def test_the_entry_is_called_main_and_comes_first():
    module = tt.IRModule.parse(TWO).with_entry("decode").verify()
    assert names(module) == ["main", "prefill", "half", "main_1"]
    assert module.main.body[0].source == "h"
    assert tt.IRModule.parse(str(module)) == module


def test_the_previous_entry_gets_its_own_name_back():
    module = tt.IRModule.parse(TWO)
    again = module.with_entry("prefill").with_entry("decode")
    assert names(again) == ["main", "prefill", "half", "main_1"]
    assert again.with_entry("main") == module.replace(functions=tuple(again.with_entry("main")))
    assert {one.name: one for one in again.with_entry("main")} == {one.name: one for one in module}


def test_calls_of_the_previous_entry_are_renamed():
    text = TWO + "func @outer(%x: float32[4]) -> (float32[4]) opsets(onnx=17) { %y: float32[4] = @main(%x) return %y }"
    module = tt.IRModule.parse(text).with_entry("outer").verify()
    assert module.main.body[0].op == "@main_1"


def test_without_a_name_it_is_main_or_the_only_root():
    module = tt.IRModule.parse(TWO)
    assert module.with_entry() == module
    only = without_main().replace(functions=tuple(one for one in without_main() if one.name != "prefill"))
    assert only.with_entry().main.attr("own_name") == "decode"


def test_with_several_roots_the_entry_must_be_named():
    with pytest.raises(ModelError, match="'prefill' or 'decode'"):
        without_main().with_entry()
    with pytest.raises(UnknownNameError, match="did you mean 'decode'"):
        without_main().with_entry("decod")


def test_only_the_entry_is_partitioned():
    plan = tt.decompose(without_main(), "[a=numpy,b=numpy]", where={"relu": "@b"}, entry="decode")
    assert [call.constraint for call in plan.module["prefill"].body] == [None]
    assert plan.module.main.attr("own_name") == "decode"
    executable = tt.build(without_main(), "[a=numpy,b=numpy]", where={"relu": "@b"}, entry="decode")
    assert executable.run({"x": [-1.0, 2.0, -3.0, 4.0]})["y"].tolist() == [0.0, 2.0, 0.0, 4.0]
