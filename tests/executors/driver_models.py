"""Models whose control flow drivers run, with inputs: each is (model, placement, inputs in order)."""

import numpy as np
from onnx import parser

__all__ = ["BRANCH", "DRIVER_MODELS", "LOOP", "SCAN"]

_HEADER = '<ir_version: 8, opset_import: ["": 17]>'

LOOP = f"""{_HEADER}
    g (float[3] x, float[3] z, int64 n, bool go) => (float[3] p, float[3] q, float[k,3] s, float[m] t) {{
        [whole] p, q, s, t = Loop(n, go, x, z) <body = b (int64 i, bool c, float[3] u, float[3] v)
            => (bool d, float[3] v2, float[3] u2, float[3] w, float e) {{
            [keep] d = Identity(c)
            [tanh] u2 = Tanh(u)
            [exchange] v2 = Identity(v)
            [mix] w = Add(u, z)
            [sum] e = ReduceSum <keepdims = 0> (w)
        }}>
    }}"""

BRANCH = f"""{_HEADER}
    g (float[n,2] x, bool c) => (float[n,2] y, float[n,2] z) {{
        [choose] y, z = If(c) <
            then_branch = t () => (float[n,2] y1, float[n,2] z1) {{
                [one] y1 = Tanh(x)
                [two] z1 = Add(y1, x)
            }},
            else_branch = e () => (float[n,2] y2, float[n,2] z2) {{
                [three] z2 = Mul(x, x)
                [four] y2 = Neg(z2)
            }}>
    }}"""

SCAN = f"""{_HEADER}
    g (float[2] s, float[3,n] x, float[n,4] w) => (float[2] t, float[n,3] y, float[4,n] z) {{
        [all] t, y, z = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [1, 0],
                scan_output_axes = [0, 1], scan_output_directions = [0, 1],
                body = b (float[2] u, float[3] a, float[4] c) => (float[2] v, float[3] d, float[4] e) {{
            [state] v = Tanh(u)
            [left] d = Neg(a)
            [right] e = Mul(c, c)
        }}> (s, x, w)
    }}"""

SUMS = f"""{_HEADER}
    g (float s, float[n] x) => (float t, float[n] y) {{
        [all] t, y = Scan <num_scan_inputs = 1, body = b (float u, float a) => (float v, float d) {{
            [state] v = Add(u, a)
            [slice] d = Neg(v)
        }}> (s, x)
    }}"""

_VECTORS = [np.float32([1, 2, 3]), np.float32([-1, 0, 5])]
_MATRIX = np.float32([[1, 2], [3, 4]])
_RNG = np.random.default_rng(0)

DRIVER_MODELS = {
    "loop": (
        parser.parse_model(LOOP),
        {"tanh": "@a", "mix": "@b"},
        [*([*_VECTORS, np.int64(count), True] for count in (0, 1, 2, 3, 20)), [*_VECTORS, np.int64(7), False]],
    ),
    "branch": (
        parser.parse_model(BRANCH),
        {"one": "@a", "two": "@b", "three": "@b", "four": "@a"},
        [[_MATRIX, True], [_MATRIX, False], [_MATRIX[:1], True]],
    ),
    "scan": (
        parser.parse_model(SCAN),
        {"state": "@a", "left": "@b", "right": "@a"},
        [[_RNG.normal(size=size).astype("float32") for size in (2, (3, n), (n, 4))] for n in (1, 2, 3, 9)],
    ),
    "sums": (
        parser.parse_model(SUMS),
        {"state": "@a", "slice": "@b"},
        [[np.float32(1), np.float32([1, 2, 3, 4][:n])] for n in (1, 4)],
    ),
}
