"""Random ONNX programs with control flow: every form of a module round-trips and computes the same."""

import json
import random
from itertools import pairwise

import numpy as np
import onnxruntime
import pytest
from effort import examples
from random_programs import inputs_of_program, random_program
from test_structure import renamed, shuffled

import tvmtarget as tt
from tvmtarget.errors import ModelError
from tvmtarget.ir.def_use import detour, producers_of
from tvmtarget.ir.extraction import extract_operations
from tvmtarget.ir.rewrite import inline, outline_calls, remove_dead_code, share_constants
from tvmtarget.ir.structure import difference, structural_hash

FAST, SLOW = range(50), range(50, examples(150, 1000))


def run(model, inputs):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {value.name: inputs[value.name] for value in session.get_inputs()})


def same(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def comes_back(seed):
    model = random_program(seed, opset=9 + seed % 14 if seed % 3 else 17)
    module = tt.IRModule.from_onnx(model)
    assert tt.IRModule.parse(str(module), module.constants()) == module
    assert tt.IRModule.from_json(json.dumps(module.to_json()), module.constants()) == module
    written = module.to_onnx()
    again = tt.IRModule.from_onnx(written)
    assert difference(again, module) is None
    assert tt.IRModule.from_onnx(again.to_onnx()) == again
    live = remove_dead_code(module.main)
    assert structural_hash(renamed(shuffled(live, seed), seed)) == structural_hash(live)
    inputs = inputs_of_program(model, seed)
    same(run(written, inputs), run(model, inputs))


@pytest.mark.parametrize("seed", FAST)
def test_programs_round_trip_and_compute_the_same(seed):
    comes_back(seed)


@pytest.mark.slow
def test_many_programs_round_trip_and_compute_the_same():
    for seed in SLOW:
        comes_back(seed)


def random_part(function, seed):
    """Return indices of operations: random ones, or all between two, which are always convex."""
    rng = random.Random(seed)
    size = len(function.body)
    if rng.random() < 0.5:
        return sorted(rng.sample(range(size), min(size, rng.randint(1, 4))))
    begin = rng.randrange(size)
    return list(range(begin, min(size, begin + rng.randint(1, 5))))


def outlines(seed):
    """Outline a set and inline it again, or check that the path in the error leaves it and comes back."""
    model = random_program(seed, size=20)
    module = tt.IRModule.from_onnx(model)
    module = module.with_function(remove_dead_code(module.main))
    calls = random_part(module.main, seed)
    path, _ = detour(module.main, calls)
    if path:
        producer, body = producers_of(module.main), module.main.body
        assert {path[0], path[-1]} <= set(calls)
        assert not set(path[1:-1]) & set(calls)
        for before, after in pairwise(path):
            assert before in {producer.get(name) for name in body[after].uses()}
        with pytest.raises(ModelError, match="leaves it and comes back"):
            outline_calls(module, calls, "part")
        return
    outlined = outline_calls(module, calls, "part").verify()
    back = inline(outlined, "part").verify()
    assert difference(back.main, module.main) is None
    assert sorted(call.source for call in back.main.body) == sorted(call.source for call in module.main.body)
    tidied = share_constants(remove_dead_code(module.main))
    inputs = inputs_of_program(model, seed)
    expected = run(model, inputs)
    same(run(outlined.to_onnx(), inputs), expected)
    same(run(tt.IRModule((tidied,)).verify().to_onnx(), inputs), expected)


@pytest.mark.parametrize("seed", range(30))
def test_sets_are_outlined_and_inlined_or_rejected_with_the_path(seed):
    outlines(seed)


@pytest.mark.slow
def test_hundreds_of_sets_are_outlined_and_inlined_or_rejected():
    for seed in range(30, 230):
        outlines(seed)


@pytest.mark.parametrize("seed", range(15))
def test_extracted_operations_compute_the_same(seed):
    model = random_program(seed, size=15)
    module = tt.IRModule.from_onnx(model)
    begin = seed % 5
    sources = [call.source for call in module.main.body[begin : begin + 5]]
    part = extract_operations(module, sources)
    inside = tuple(result for result in part.main.results if result not in module.main.results)
    whole = tt.IRModule((module.main.replace(results=(*module.main.results, *inside)),)).to_onnx()
    read = [param.name for param in part.main.params]
    probe = tt.IRModule((module.main.replace(results=tuple(r for r in read if r not in inputs_of_program(model))),))
    inputs = inputs_of_program(model, seed)
    known = dict(inputs)
    if probe.main.results:
        known |= dict(zip(probe.main.results, run(probe.to_onnx(), inputs), strict=True))
    expected = dict(zip((*module.main.results, *inside), run(whole, inputs), strict=True))
    same(run(part.to_onnx(), {name: known[name] for name in read}), [expected[name] for name in part.main.results])


@pytest.mark.parametrize("seed", range(6))
def test_programs_are_decomposed_and_built(seed):
    model = random_program(seed, size=8)
    inputs = inputs_of_program(model, seed)
    module = tt.IRModule.from_onnx(model)
    module = module.constrain(module.main.body[-1].source, "numpy")
    exe = tt.build(module, "[a=onnxruntime,b=numpy]")
    for got, expected in zip(exe.run(inputs).values(), run(model, inputs), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
