"""Modules that are copied or pickled, and constants of unusual arrays."""

import copy
import pickle

import numpy as np
import pytest

from tvmtarget import FunctionBuilder, IRModule
from tvmtarget.errors import ModelError

TEXT = "func @main(%x: float32[n]) opsets(onnx=17) { %y = onnx.Relu(%x) return %y }"
FLOATS = np.float32([[1, 2, 3], [4, 5, 6]])


def used(module):
    """Return a module of which properties were computed."""
    _ = module.main.types, module.main.producers, module.by_name, module.structural_hash()
    return module


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize("trust", [False, True])
def test_a_copy_of_a_module_is_equal_and_trusted_only_if_the_module_is(copied, trust):
    module = used(IRModule.parse(TEXT, trust=trust).with_attrs(note=["a"]))
    assert copied(module) == module
    assert hash(copied(module)) == hash(module)
    assert copied(module).is_trusted == trust
    assert copied(module.main) == module.main


def module_with(array):
    builder = FunctionBuilder("main")
    return IRModule((builder.build(builder.call("Neg", builder.constant(array, "w"))),))


def test_constants_of_arrays_of_any_layout_are_equal():
    plain = module_with(FLOATS)
    for array in (FLOATS.astype(">f4"), np.asfortranarray(FLOATS), FLOATS.view(np.recarray), FLOATS.tolist()):
        module = module_with(np.asarray(array, "float32") if isinstance(array, list) else array)
        assert module == plain
        assert type(module.main.constants[0].data) is np.ndarray
        assert module.main.constants[0].data.dtype.isnative
        assert IRModule.from_onnx(module.to_onnx()).structural_hash() == plain.structural_hash()
    bound = IRModule.parse(TEXT).bind({"x": np.array([1, 2], ">f4")})
    assert bound == IRModule.parse(TEXT).bind({"x": np.array([1, 2], "<f4")})


@pytest.mark.parametrize("take", [module_with, lambda array: IRModule.parse(TEXT).bind({"x": array[0]})])
def test_masked_arrays_are_no_constants(take):
    with pytest.raises(ModelError, match=r"is a masked array; replace what is masked by \.filled\(value\)"):
        take(np.ma.masked_array(FLOATS, mask=FLOATS > 3))


def test_a_module_without_types_is_written_as_a_model():
    model = IRModule.parse(TEXT).to_onnx()
    assert IRModule.from_onnx(model).main.types["y"] == IRModule.parse(TEXT).main.types["x"]
