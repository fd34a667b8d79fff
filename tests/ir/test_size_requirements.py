"""What sizes of operands must fit together, by operator, and what a run says of sizes that do not."""

from dataclasses import replace

import pytest
from fuzz.random_models import RandomModel, session
from onnx import parser

import tvmtarget as tt
from tvmtarget.ir.size_requirements import RunSizes, size_requirements
from tvmtarget.ir.types import TensorType

# Operations, with the types of their inputs, and what they need.
NEEDS = {
    "float[n,4] a, float[m,4] b => Add(a, b)": ["BROADCAST n m"],
    "float[n,4] a, float[n,1] b => Add(a, b)": [],
    "float[n,k] a, float[n,j] b => Concat<axis = 1>(a, b)": [],
    "float[n,k] a, float[m,j] b => Concat<axis = -1>(a, b)": ["EQUAL n m"],
    "float[n,k] a, float[j,m] b => MatMul(a, b)": ["EQUAL k j"],
    "float[b,n,k] a, float[c,k,m] b => MatMul(a, b)": ["BROADCAST b c"],
    "float[k] a, float[3,j,m] b => MatMul(a, b)": ["EQUAL k j"],
    "float[k,n] a, float[m,j] b, float[m] c => Gemm<transA = 1, transB = 1>(a, b, c)": ["EQUAL k j"],
    "float[n,k] a, float[k,m] b, float[c] d => Gemm(a, b, d)": ["FIRST_OR_ONE m c"],
    "float[n,c,w] a, float[4,3,5] b => Conv<group = 2>(a, b)": ["EQUAL c 6", "AT_LEAST w 5"],
    "float[n,c,w] a, float[4,3,5] b, float[e] d => Conv<pads = [2, 2]>(a, b, d)": ["EQUAL c 3", "EQUAL 4 e"],
    "float[n,6,8] a, float[m,3,5] b => Conv<group = 2>(a, b)": ["MULTIPLE m 2"],
    "float[n,c,w] a, float[4,3,5] b => ConvTranspose(a, b)": ["EQUAL c 4"],
    "float[n,2,w] a => MaxPool<kernel_shape = [3]>(a)": ["AT_LEAST w 3"],
    "float[n,c,w] a, float[3] s, float[3] b => InstanceNormalization(a, s, b)": ["EQUAL c 3 3"],
    "float[n,k] a, float[3] s => LayerNormalization(a, s)": ["FIRST_OR_ONE k 3"],
    "float[s,b,k] x, float[1,8,3] w, float[1,8,2] r => LSTM<hidden_size = 2>(x, w, r)": ["EQUAL k 3"],
    "float[n,k] a, float[m] b => PRelu(a, b)": ["FIRST_OR_ONE k m"],
    "float[n,k] a => Squeeze<axes = [1]>(a)": ["EQUAL k 1"],
    "float[n,k] a => Split<axis = 1, split = [2, 3]>(a)": ["EQUAL k 5"],
    "float[n,k] a => DepthToSpace<blocksize = 2>(a)": [],
    "float[n,c,h,w] a => DepthToSpace<blocksize = 2>(a)": ["MULTIPLE c 4"],
    "float[n,m] a, int64[p,q] i => GatherElements(a, i)": ["AT_LEAST m q"],
    "float[n,m] a, int64[p,1] i, float[q,r] u => ScatterND(a, i, u)": ["EQUAL p q", "EQUAL m r"],
    "float[n,m] a, int64[k,1] i => GatherND<batch_dims = 1>(a, i)": ["EQUAL n k"],
    'float[i,j] a, float[k,l] b => Einsum<equation = "ab,bc->ac">(a, b)': ["BROADCAST j k"],
    "float[n,k] x, float[3] s => DequantizeLinear<axis = 1>(x, s)": ["EQUAL k 3"],
    "float[n,m,k] x, int64[b] l => ReverseSequence(x, l)": ["EQUAL m b"],
}


def main_of(text, opset):
    inputs, _, operation = text.partition(" => ")
    program = f'<ir_version: 8, opset_import: ["": {opset}]>\ng ({inputs}) => (float[...] y) {{ y = {operation} }}'
    model = parser.parse_model(program.replace("float[...] y", "float y"))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return tt.IRModule.from_onnx(model).main


@pytest.mark.parametrize("text", NEEDS)
def test_operators_need_sizes(text):
    is_old = "axes = " in text or "split = " in text  # attributes until version 13
    found = [*size_requirements(main_of(text.replace("float[n,k] x", "uint8[n,k] x"), 11 if is_old else 17))]
    shown = [f"{one.relation.name} {' '.join(map(str, one.dims))}" for one in found]
    assert shown == NEEDS[text]


@pytest.mark.parametrize(
    ("shape", "given", "needed"),
    [
        ("-1, 4", "n,k", "MULTIPLE k*n 4"),
        ("0, 6", "n,k", "EQUAL k 6"),
        ("0, -1", "n,k", None),
        ("-1, 4", "n,8", None),
        ("2, 3", "n,k", "EQUAL k*n 6"),
    ],
)
def test_a_reshape_keeps_the_elements(shape, given, needed):
    text = f"g (float[{given}] a) => (float[p,q] y) <int64[2] s = {{{shape}}}> {{ y = Reshape(a, s) }}"
    main = tt.IRModule.from_onnx(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}')).main
    found = [f"{one.relation.name} {' '.join(map(str, one.dims))}" for one in size_requirements(main)]
    assert found == ([] if needed is None else [needed])


@pytest.mark.parametrize(
    ("mode", "pads", "needed"),
    [
        ("constant", "0, -1, 0, -2", ["AT_LEAST k 3"]),
        ("reflect", "2, 0, 1, 0", ["AT_LEAST n 3"]),
        ("edge", "1, 0, 0, 0", []),
    ],
)
def test_a_pad_needs_what_it_cuts_off_or_reflects(mode, pads, needed):
    text = f'g (float[n,k] a) => (float[p,q] y) <int64[4] s = {{{pads}}}> {{ y = Pad<mode = "{mode}">(a, s) }}'
    main = tt.IRModule.from_onnx(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}')).main
    assert [f"{one.relation.name} {' '.join(map(str, one.dims))}" for one in size_requirements(main)] == needed


def test_sizes_that_fit_for_onnxruntime_fit():
    """An engine's inference is not needed, other than where sizes depend on values."""
    refused = 0
    for seed in range(150):
        made = RandomModel(seed, 0.5)
        model, given, _ = made.model()
        main = tt.IRModule.from_onnx(model).main
        sizes, other = RunSizes(main, lambda _: None), session(model)
        for values in (given, *made.resized()):
            problem = sizes.problem([values[param.name].shape for param in main.params if param.name in values])
            try:
                other.run(None, values)
            except Exception:
                refused += problem is not None
            else:
                # onnxruntime returns no elements of windows wider than images, and repeats data for slopes.
                assert problem is None or "Pool" in problem or "PRelu" in problem, f"seed {seed}"
    assert refused > 20


def test_symbols_that_a_model_states_of_other_sizes_are_no_problem():
    text = "g (float[n,4] a, float[m,4] b) => (float[p,q] y) { c = Concat<axis = 0>(a, b) d = Neg(c) y = Sub(d, c) }"
    main = tt.IRModule.from_onnx(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}')).main
    stated = replace(main.body[1].outputs[0], type=TensorType("float32", ("n", 4)))
    main = main.replace(body=(main.body[0], replace(main.body[1], outputs=(stated,)), main.body[2]))
    assert [one.call.op for one in size_requirements(main)] == ["onnx.Sub"]
    assert RunSizes(main, lambda _: None).problem([(2, 4), (3, 4)]) is None


def test_the_engine_says_what_expressions_do_not():
    text = "g (float[n,4] a, float[m,4] b, float[k,4] c) => (float[p,q] y) { d = Add(a, b) y = Mul(d, c) }"
    main = tt.IRModule.from_onnx(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}')).main
    given = []

    def infer(shapes):
        given.append(shapes)
        return "no" if shapes[0][0] != shapes[2][0] else None

    sizes = RunSizes(main, infer)
    assert sizes.problem([(2, 4), (2, 4), (3, 4)]) == "no"
    assert sizes.problem([(2, 4), (2, 4), (2, 4)]) is None
    assert sizes.problem([(2, 4), (2, 4), (2, 4)]) is None
    assert len(given) == 2  # what fits is remembered
    assert "'Add_0' (Add): should be equal or 1" in sizes.problem([(2, 4), (3, 4), (2, 4)])
