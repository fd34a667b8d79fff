"""Random valid modules for laws: every field of the IR, with nested bodies that capture, and names of all kinds."""

import numpy as np
from hypothesis import strategies as st

from tvmtarget import Call, Constant, Constraint, Function, IRModule, Target, Value
from tvmtarget.ir.function import Opaque
from tvmtarget.ir.text.escaping import canonical_nan
from tvmtarget.ir.types import (
    MapType,
    OpaqueType,
    OptionalType,
    SequenceType,
    SparseType,
    TensorType,
    numpy_dtype,
)

NAMES = st.one_of(st.from_regex(r"[a-z][a-z0-9_.]{0,5}", fullmatch=True), st.text(min_size=1, max_size=6))
CONSTRAINTS = st.sampled_from(
    ["@.", "@gpu", "cuda|llvm", "!gpu", "gpu?10", 'llvm(num-cores>=4,mcpu="a]b")', "[gpu=cuda,llvm](executor=aot)"]
).map(Constraint.parse)
DTYPES = ("float32", "float16", "bfloat16", "int64", "int4", "uint64", "bool", "string", "float8e4m3fn", "complex64")
DIMS = st.one_of(st.integers(0, 9), st.sampled_from(["batch", "n*2", "", "?"]), st.none())
TENSORS = st.builds(TensorType, st.sampled_from(DTYPES), st.one_of(st.none(), st.lists(DIMS, max_size=3).map(tuple)))
TYPES = st.recursive(
    st.one_of(st.none(), TENSORS, st.builds(SparseType, TENSORS), st.builds(OpaqueType, st.text(max_size=5))),
    lambda inner: st.one_of(
        st.builds(SequenceType, inner), st.builds(OptionalType, inner), st.builds(MapType, st.just("int64"), inner)
    ),
    max_leaves=3,
)
# The domains of TREE below, and a memory that code generators have.
SCOPES = ("", ":cuda", ":cpu", "global.texture")
FLOATS = st.floats().map(canonical_nan)
ATTRIBUTES = st.one_of(
    st.integers(),
    FLOATS,
    st.text(max_size=6),
    st.binary(max_size=4),
    st.lists(st.integers(), max_size=3).map(tuple),
    st.lists(FLOATS, max_size=3).map(tuple),
    st.lists(st.text(max_size=4), max_size=3).map(tuple),
    st.builds(Opaque, st.text(max_size=5), st.binary(max_size=5)),
)
MAPS = st.dictionaries(st.text(max_size=5), st.one_of(ATTRIBUTES, st.booleans(), st.none()), max_size=2)


@st.composite
def constants(draw, name):
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    count = int(np.prod(shape, dtype=int))
    if dtype == "string":
        data = np.array([draw(st.text(max_size=3)) for _ in range(count)], object).reshape(shape)
    else:
        seed = draw(st.integers(0, 99))
        wide = np.random.default_rng(seed).integers(0, 8 if dtype == "int4" else 100, shape)
        data = np.asarray(wide).astype(numpy_dtype(dtype))
    return Constant(name, TensorType(dtype, shape), data)


@st.composite
def functions(draw, name="main", depth=2, outer=(), taken=None):
    taken = set() if taken is None else taken

    def fresh():
        new = draw(NAMES.filter(lambda name: name not in taken))
        taken.add(new)
        return new

    params = tuple(Value(fresh(), draw(TYPES), draw(st.sampled_from(SCOPES))) for _ in range(draw(st.integers(0, 2))))
    own = tuple(draw(constants(fresh())) for _ in range(draw(st.integers(0, 2))))
    known = [*outer, *(value.name for value in params), *(constant.name for constant in own)]
    body = []
    for index in range(draw(st.integers(0, 4))):
        inputs = tuple(draw(st.sampled_from(["", *known])) for _ in range(draw(st.integers(0, 2))))
        regions = ()
        if depth and draw(st.booleans()):
            labels = draw(st.lists(st.text(max_size=4), max_size=2, unique=True))
            regions = tuple((label, draw(functions(draw(NAMES), depth - 1, tuple(known), taken))) for label in labels)
        outputs = tuple(
            Value(fresh(), draw(TYPES), draw(st.sampled_from(SCOPES))) for _ in range(draw(st.integers(0, 2)))
        )
        attrs = draw(st.dictionaries(st.text(max_size=4), ATTRIBUTES, max_size=2))
        if draw(st.integers(0, 5)) == 0:
            attrs["tensor"] = draw(constants("t"))
        source = draw(st.one_of(st.just(""), st.just(f"op {index}"), NAMES))
        op = draw(st.sampled_from(["onnx.Relu", "onnx.com.a::Gelu", "relax.nn.conv2d", "my op", "tt.x"]))
        constraint = draw(st.one_of(st.none(), CONSTRAINTS))
        effect = draw(st.booleans()) or any(call.has_effect for _, region in regions for call in region.body)
        body.append(Call(op, inputs, outputs, tuple(attrs.items()), regions, constraint, source, effect))
        known += [value.name for value in outputs]
    results = tuple(draw(st.sampled_from(known)) for _ in range(draw(st.integers(0, 2)))) if known else ()
    opsets = (("", 17), ("com.a", 1), ("onnx", 2))
    constraint = draw(st.one_of(st.none(), CONSTRAINTS))
    return Function(name, params, tuple(body), results, own, constraint, opsets, tuple(draw(MAPS).items()))


TREE = Target.parse("composite[gpu=cuda(arch=sm_53),cpu=llvm(mcpu=cortex-a57)](host=@cpu)")


@st.composite
def modules(draw):
    main = draw(functions())
    others = tuple(draw(functions(name, 0)) for name in draw(st.sets(NAMES.filter(lambda n: n != "main"), max_size=2)))
    return IRModule((main, *others), draw(st.sampled_from([None, TREE])), draw(MAPS))
