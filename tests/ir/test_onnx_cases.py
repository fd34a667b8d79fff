"""ONNX's own backend test cases: after round trips through every form of a module they compute the same.

Every case that the reference evaluator passes must pass on the numpy backend after import, text, JSON, a saved file
and export. Where the evaluator is wrong, ONNX Runtime judges what is exported.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from effort import examples
from onnx.reference import ReferenceEvaluator

sys.path.insert(0, str(Path(__file__).parents[1] / "backends"))

from conformance import differences, is_random, node_cases, stored_cases

import tvmtarget as tt
from tvmtarget.errors import TvmTargetError
from tvmtarget.ir.constant_folding import fold_constants
from tvmtarget.ir.function import Call, Value
from tvmtarget.ir.onnx.opset_versions import convert_opsets
from tvmtarget.ir.structure import difference
from tvmtarget.ir.types import TensorType

STORED = ("simple", "pytorch-converted", "pytorch-operator")

# Cases that the reference evaluator of onnx 1.23 fails, and why.
DEFECTS = {
    "test_gradient_of_add": "it has no Gradient",
    "test_gradient_of_add_and_mul": "it has no Gradient",
    "test_if_opt": "it returns a sequence with one dimension too many",
    "test_range_float_type_positive_delta_expanded": "it makes a column of scalars that a Loop collects",
    "test_range_float16_type_positive_delta_expanded": "it makes a column of scalars that a Loop collects",
    "test_range_bfloat16_type_positive_delta_expanded": "it makes a column of scalars that a Loop collects",
    "test_range_int32_type_negative_delta_expanded": "it makes a column of scalars that a Loop collects",
    "test_scan_sum": "it scans as version 9 does, not 8",
    "test_scatter_with_axis": "it has no Scatter",
    "test_scatter_without_axis": "it has no Scatter",
}
# Those that it passes by chance, and that are refused.
REFUSED = {"test_lstm_with_peepholes": "it ignores the lengths of sequences, all of which are those of the input here"}
PREFIX = "test_image_decoder_"  # they need Pillow

# Of the defects, those that ONNX Runtime 1.31 has no kernel for either.
NEWEST = 26
UNJUDGED = {"test_gradient_of_add", "test_gradient_of_add_and_mul", "test_range_bfloat16_type_positive_delta_expanded"}


def named(case, array):
    return dict(zip((value.name for value in case.model.graph.input), array, strict=False))


def by_reference(case):
    """Return whether the reference evaluator passes a case without a round trip."""
    try:
        evaluator = ReferenceEvaluator(case.model)
        found = evaluator.run(None, dict(zip(evaluator.input_names, case.inputs, strict=False)))
        return not differences(dict(zip(evaluator.output_names, found, strict=True)), case)
    except Exception:
        return False


def came_back(case, folder):
    """Convert a model through all forms of a module and back to ONNX."""
    module = tt.IRModule.from_onnx(case.model)
    assert tt.IRModule.parse(str(module), module.constants()) == module
    assert tt.IRModule.from_json(json.dumps(module.to_json()), module.constants()) == module
    module.save(folder / "m.irm")
    loaded = tt.IRModule.load(folder / "m.irm")
    assert loaded == module
    again = tt.IRModule.from_onnx(loaded.to_onnx())
    assert difference(again, module) is None
    assert [call.source for call in again.main.body] == [call.source for call in module.main.body]
    return again


def outcome(case, folder):
    module = came_back(case, folder)
    if case.name in REFUSED:
        with pytest.raises(TvmTargetError, match=REFUSED[case.name].partition(",")[0]):
            tt.decompose(module, "numpy")
        return judged_by_onnxruntime(case, module)
    if case.name in DEFECTS:
        assert not by_reference(case), f"{case.name} passes now; remove it from DEFECTS"
        return "unjudged" if case.name in UNJUDGED else judged_by_onnxruntime(case, module)
    try:
        exe = tt.build(module, "numpy")
        wrong = differences(exe.run(named(case, case.inputs)), case)
    except TvmTargetError as error:
        wrong = [str(error)]
    if not wrong:
        return "passed"
    assert not by_reference(case), f"{case.name}: {wrong}"
    return "image" if case.name.startswith(PREFIX) else f"{case.name}: {wrong}"


def judged_by_onnxruntime(case, module):
    """Run the exported model with ONNX Runtime, which supports ONNX's operators up to version 26."""
    if dict(module.main.opsets)[""] > NEWEST:
        module = module.with_function(convert_opsets(module.main, {"": NEWEST}))
    session = onnxruntime.InferenceSession(module.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    arrays = (np.asarray(one) if isinstance(one, np.generic) else one for one in case.inputs)
    fed = dict(zip((value.name for value in session.get_inputs()), arrays, strict=True))
    results = dict(zip((value.name for value in session.get_outputs()), session.run(None, fed), strict=True))
    assert differences(results, case) == []
    return "passed by onnxruntime"


def counted(cases, folder):
    """Run cases and return the number that passed; a case that fails otherwise than expected is an error."""
    with np.errstate(all="ignore"):
        outcomes = Counter(outcome(case, folder) for case in cases if not is_random(case))
    print(dict(outcomes))
    assert set(outcomes) <= {"passed", "passed by onnxruntime", "unjudged", "image"}
    return outcomes


def cases(kind):
    return node_cases() if kind == "node" else stored_cases(kind)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "step"), [("node", 96), ("simple", 3), ("pytorch-converted", 9), ("pytorch-operator", 4)]
)
def test_a_sample_of_onnx_cases_round_trips_through_every_form(kind, step, tmp_path):
    assert counted(cases(kind)[::step], tmp_path)["passed"] >= 7


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "passed", "by_onnxruntime"),
    [
        ("node", *examples((115, 0), (1854, 7))),
        ("simple", 21, 0),
        ("pytorch-converted", 82, 0),
        ("pytorch-operator", 35, 0),
    ],
)
def test_all_onnx_cases_round_trip_through_every_form(kind, passed, by_onnxruntime, tmp_path):
    """CI takes a sixteenth of the node tests, all of which take minutes."""
    step = examples(16, 1) if kind == "node" else 1
    found = counted(cases(kind)[::step], tmp_path)
    assert found["passed"] >= passed
    assert found["passed by onnxruntime"] >= by_onnxruntime


@pytest.mark.slow
def test_folded_values_are_those_of_onnx():
    """Every node test of ONNX whose inputs are made constants is folded to the expected results, or left."""
    folded = set()
    for case in node_cases():
        module = tt.IRModule.from_onnx(case.model)
        values = dict(zip((param.name for param in module.main.params), case.inputs, strict=False))
        are_tensors = all(isinstance(param.type, TensorType) for param in module.main.params)
        if len(module.main.body) != 1 or not are_tensors:
            continue
        main = module.bind(values).main
        (call,) = main.body
        # What is returned stays, so that operations after it return the results.
        copies = tuple(Call("onnx.Identity", (one.name,), (Value(f"{one.name}_", one.type),)) for one in call.outputs)
        results = tuple(copy.outputs[0].name for copy in copies)
        found = fold_constants(tt.IRModule((main.replace(body=(call, *copies), results=results),))).main
        constants = {one.name: one.data for one in found.constants} if call not in found.body else {}
        for output, expected in zip(call.outputs, case.outputs, strict=False):
            if output.name in constants:
                folded.add(case.name)
                np.testing.assert_allclose(
                    constants[output.name], expected, rtol=case.rtol, atol=case.atol, err_msg=case.name
                )
                assert constants[output.name].dtype == expected.dtype, case.name
    assert len(folded) > 300
