"""A code generator of two C kernels that threads run in chunks of rows; both are attributes of its kind `c-rows`.

So is how many rows they leave out, which is fast and wrong.

`python rows_in_c.py tune LOG` tunes them for a program of two operations, `build LOG` builds it from the log beside the
default, and prints what it took and the median ratio of the times of the processor.
"""

import ctypes
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from onnx import TensorProto, helper

import tvmtarget as tt
from tvmtarget import plugins
from tvmtarget.backends import protocol

ROWS, WIDTH = 100_000, 4
ROUNDS = 9

KERNELS = {"Abs": "v < 0 ? -v : v", "Neg": "-v"}

SOURCE = """
#include <pthread.h>
enum {{ ROWS = {rows}, WIDTH = {width}, THREADS = {threads}, CHUNK = {chunk} }};
typedef struct {{ const float *x; float *y; long next; }} work;
{kernels}
void run(const float *x, float *y, float *between) {{ {calls} }}
"""

KERNEL = """
__attribute__((noinline)) static void rows_{name}(const float *x, float *y, long first, long last) {{
  for (long i = first * WIDTH; i < last * WIDTH; i++) {{ float v = x[i]; y[i] = {body}; }}
}}
static void *some_{name}(void *given) {{
  work *all = given;
  for (;;) {{
    long first = __atomic_fetch_add(&all->next, CHUNK, __ATOMIC_SEQ_CST);
    if (first >= ROWS) return 0;
    rows_{name}(all->x, all->y, first, first + CHUNK < ROWS ? first + CHUNK : ROWS);
  }}
}}
static void {name}(const float *x, float *y) {{
  work all = {{x, y, 0}};
  pthread_t others[THREADS];
  for (int i = 1; i < THREADS; i++) pthread_create(&others[i], 0, some_{name}, &all);
  some_{name}(&all);
  for (int i = 1; i < THREADS; i++) pthread_join(others[i], 0);
}}
"""


@tt.strategy("c-rows", attributes={"threads": 1, "chunk": 1, "left-out": 0})
class RowsInC:
    ops = {"Abs", "Neg"}


class Backend(protocol.Backend):
    name = "c-rows"
    kinds = ("c-rows",)

    def version(self):
        return "gcc"

    def settings(self, target):
        return {"threads": (1, 2), "chunk": (1, 16, 1024, 16384), "left-out": (ROWS,)}

    def compile(self, request):
        first, second = (node.op_type for node in request.model.graph.node)
        kernels = "".join(KERNEL.format(name=name, body=KERNELS[name]) for name in (first, second))
        calls = f"{first}(x, between); {second}(between, y);"
        sizes = {"width": WIDTH, "threads": request.target["threads"], "chunk": request.target["chunk"]}
        sizes["rows"] = ROWS - request.target["left-out"]
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder) / "rows.c", Path(folder) / "rows.so"
            source.write_text(SOURCE.format(kernels=kernels, calls=calls, **sizes))
            subprocess.run(["gcc", "-O3", "-shared", "-fPIC", "-pthread", "-o", library, source], check=True)
            return Compiled(ctypes.CDLL(str(library)).run)


class Compiled(protocol.Compiled):
    def __init__(self, run):
        self._run = run
        self._between = np.zeros((ROWS, WIDTH), "float32")

    def run(self, inputs):
        x, y = np.ascontiguousarray(inputs[0]), np.empty((ROWS, WIDTH), "float32")
        y[0] = np.nan  # as long as nobody writes it
        self._run(*(array.ctypes.data_as(ctypes.c_void_p) for array in (x, y, self._between)))
        return [y]


plugins.register("tvmtarget.backends", "c-rows", Backend())


def module():
    """Return the program: the absolute values, negated."""
    nodes = [helper.make_node("Abs", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [ROWS, WIDTH]) for name in "xy"]
    graph = helper.make_graph(nodes, "rows", ends[:1], ends[1:])
    return tt.IRModule.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def seconds(program, x):
    begin = time.process_time()
    program(x)
    return time.process_time() - begin


def main(what, url):
    if what == "tune":
        result = tt.tune(module(), "c-rows", log=url, levels=["executor"])
        print(json.dumps({"statuses": result.statuses, "not tuned": result.left_out}))
        return
    x = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype("float32")
    plain, exe = tt.build(module(), "c-rows"), tt.build(module(), "c-rows", log=url)
    turns = [[seconds(program, x) for program in (plain, exe)] for _ in range(ROUNDS)]
    found = {"tuned": exe.report()["tuned"], "is_right": bool((exe(x) == -np.abs(x)).all())}
    print(json.dumps(found | {"ratio": median(before / after for before, after in turns)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
