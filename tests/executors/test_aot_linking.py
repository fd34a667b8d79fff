"""Programs of aot linked with others: shared memory, kernels that fail, sanitizers, and the memory of small boards."""

import json
import shutil
import subprocess

import numpy as np
import pytest
from models import inputs_of, random_graph, small
from onnx import helper
from toolchains.machines import BOARDS, run_on_board, target_or_skip

import tvmtarget as tt
from tvmtarget.backends.c.project import CProject
from tvmtarget.backends.c.static_function import Kernel, KernelCall, StaticFunction, Tensor

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

TYPED = "c(executor=aot(interface-api=c,unpacked-api=true),runtime=crt)"
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"]
SANITIZED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"]


def layers(op):
    """Return a model of two matrix multiplications with one function between."""
    nodes = [("MatMul", "x w", "a"), (op, "a", "b"), ("MatMul", "b w", "c"), ("Add", "c a", "y")]
    made = [helper.make_node(name, given.split(), [out]) for name, given, out in nodes]
    return small(*made, shape=(4, 4), w=np.eye(4, dtype="float32"))


def built(folder, main, sources, *words):
    """Compile and run a program; returns what it printed and its status."""
    (folder / "main.c").write_text(main)
    program = folder / "program"
    include = [f"-I{path}" for source in sources for path in (source.parent, source.parent.parent / "include")]
    command = ["gcc", *STRICT, *words, *include, *map(str, [folder / "main.c", *sources]), "-lm", "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=60)


def test_two_programs_share_a_workspace_of_the_caller(tmp_path):
    for name, op in (("one", "Tanh"), ("two", "Neg")):
        tt.build(layers(op), TYPED, mod_name=name).export(tmp_path / name)
    run = """
  if (tvmgen_NAME_run_in(&(struct tvmgen_NAME_inputs){x}, &(struct tvmgen_NAME_outputs){y},
        &(struct tvmgen_NAME_workspace_pools){memory, sizeof memory})) return 1;
  if (tvmgen_NAME_run(&(struct tvmgen_NAME_inputs){x}, &(struct tvmgen_NAME_outputs){z})) return 2;
  if (memcmp(y, z, sizeof y)) return 3;
"""
    runs = "".join(run.replace("NAME", name) for name in ("one", "two", "one"))
    main = f"""
#include "tvmgen_one.h"
#include "tvmgen_two.h"
#define LARGER(a, b) ((a) > (b) ? (a) : (b))
static uint8_t memory[LARGER(TVMGEN_ONE_WORKSPACE_SIZE, TVMGEN_TWO_WORKSPACE_SIZE)] TVMTARGET_ALIGNED(16);
int main(void) {{
  float x[16] = {{1, -2, 3}}, y[16], z[16];
{runs}
  return 0;
}}
"""
    sources = {path.name: path for name in ("one", "two") for path in (tmp_path / name / "src").glob("*.c")}
    assert built(tmp_path, main, list(sources.values()), *SANITIZED).returncode == 0


def test_programs_of_one_file_each_fit_into_one_binary(tmp_path):
    for name, op in (("one", "Tanh"), ("two", "Neg")):
        tt.build(layers(op), TYPED, mod_name=name).export(tmp_path / f"{name}.c")
    done = built(tmp_path, "int main(void) { return 0; }\n", [tmp_path / "one.c", tmp_path / "two.c"])
    assert done.returncode == 0, done.stderr


def test_packed_entries_take_empty_tensors_with_any_strides(tmp_path):
    node = helper.make_node("Neg", ["x"], ["y"])
    tt.build(small(node, shape=(3, 0)), TYPED.replace("interface-api=c,", "")).export(tmp_path)
    main = """
#include "tvmgen_default.h"
int main(void) {
  static const int64_t shape[2] = {3, 0}, strides[2] = {1, 1};
  static const struct tvmtarget_type types[2] = {{2, 32, 2, shape}, {2, 32, 2, shape}};
  void *data[2] = {NULL, NULL};
  struct tvmtarget_tensor tensors[2];
  union tvmtarget_value values[2];
  int32_t codes[2];
  if (tvmtarget_call(tvmgen_default___tvm_main__, data, types, 2, tensors, values, codes)) return 1;
  tensors[0].strides = tensors[1].strides = strides;
  return tvmgen_default___tvm_main__(values, codes, 2, NULL, NULL, NULL) != 0;
}
"""
    assert built(tmp_path, main, sorted((tmp_path / "src").glob("*.c")), *SANITIZED).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_random_programs_are_right_under_sanitizers(seed, tmp_path):
    model = random_graph(20, seed)
    tt.build(model, TYPED).export(tmp_path)
    given = inputs_of(model)
    expected = tt.build(model, "numpy").run(given)
    names = list(expected)
    fields = ", ".join(f"y{number}" for number in range(len(names)))
    arrays = "".join(f"static float y{number}[6];\n" for number in range(len(names)))
    prints = "".join(
        f'for (i = 0; i < 6; ++i) printf("%.9g ", (double)y{number}[i]);\n' for number in range(len(names))
    )
    numbers = ", ".join(f"{number:.9e}f" for number in given["x"].ravel())
    main = f"""
#include "tvmgen_default.h"
#include <stdio.h>
{arrays}
int main(void) {{
  float x[6] = {{{numbers}}};
  struct tvmgen_default_inputs in;
  struct tvmgen_default_outputs out = {{{fields}}};
  int i;
  in.x = x;
  if (tvmgen_default_run(&in, &out) || tvmgen_default_run(&in, &out)) return 1;
  {prints}
  return 0;
}}
"""
    done = built(tmp_path, main, sorted((tmp_path / "src").glob("*.c")), *SANITIZED)
    assert done.returncode == 0, done.stderr
    actual = np.array(done.stdout.split(), "float32").reshape(len(names), 2, 3)
    for name, array in zip(names, actual, strict=True):
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_unpacked", [True, False])
def test_the_status_of_an_external_kernel_is_returned_and_later_ones_are_not_called(is_unpacked, tmp_path):
    tensor = Tensor("float32", (2,))
    kernels = {name: Kernel(name, (tensor,), (tensor,)) for name in ("first", "second")}
    body = "  p1[0] = p0[0] + 1.0f;\n  p1[1] = p0[1];\n  return p0[0] > 5.0f ? 42 : 0;\n"
    code = "".join(f"{one.prototype};\n{one.prototype} {{\n{body}}}\n" for one in kernels.values())
    function = StaticFunction(
        ("x",),
        ("y",),
        dict.fromkeys(("x", "a", "y"), tensor),
        {},
        (KernelCall("first", ("x",), ("a",)), KernelCall("second", ("a",), ("y",))),
        kernels,
        {"external.c": b"#include <stdint.h>\n" + code.encode()},
    )
    project = CProject("default", function, ("x",), ("y",), "packed", is_unpacked)
    for name, data in project.files().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    main = """
#include "tvmgen_default.h"
#include <stdio.h>
int main(void) {
  float x[2] = {6.0f, 2.0f}, y[2] = {0, 0};
  struct tvmgen_default_inputs in;
  struct tvmgen_default_outputs out;
  in.x = x; out.y = y;
  printf("%d ", (int)tvmgen_default_run(&in, &out));
  printf("%g ", (double)y[0]);
  x[0] = 4.5f;
  printf("%d ", (int)tvmgen_default_run(&in, &out));
  x[0] = 1.0f;
  printf("%d ", (int)tvmgen_default_run(&in, &out));
  printf("%g", (double)y[0]);
  return 0;
}
"""
    done = built(tmp_path, main, sorted((tmp_path / "src").glob("*.c")))
    assert done.stdout == "42 0 42 0 3"


@pytest.mark.slow
@pytest.mark.parametrize("name", BOARDS)
def test_the_memory_of_the_report_is_that_of_the_board(name, tmp_path):
    """The peak of the workspace is found by painting it, apart from the stack."""
    target = target_or_skip(BOARDS[name])
    tt.build(layers("Tanh"), TYPED).export(tmp_path / "project")
    report = json.loads((tmp_path / "project" / "report.json").read_text())
    size = sum(one["bytes"] for one in report["workspace"])
    files = {path.name: path.read_bytes() for path in (tmp_path / "project").glob("*/*.[ch]")}
    files["main.c"] = """
#include "board.h"
#include "tvmgen_default.h"
static uint8_t memory[TVMGEN_DEFAULT_WORKSPACE_SIZE + 64] TVMTARGET_ALIGNED(16);
int main(void) {
  float x[16], y[16], z[16];
  struct tvmgen_default_inputs in;
  struct tvmgen_default_outputs out;
  struct tvmgen_default_workspace_pools pools = {memory, TVMGEN_DEFAULT_WORKSPACE_SIZE};
  int i, end = sizeof memory;
  for (i = 0; i < 16; ++i) x[i] = 0.1f + 0.3f * (float)i;
  in.x = x; out.y = y;
  memset(memory, 0xA5, sizeof memory);
  if (tvmgen_default_run_in(&in, &out, &pools)) return 1;
  out.y = z;
  if (tvmgen_default_run(&in, &out)) return 2;
  if (memcmp(y, z, sizeof y)) return 3;
  while (end > 0 && memory[end - 1] == 0xA5) --end;
  board_print_number(end);
  return 0;
}
"""
    done = run_on_board(target, files, tmp_path)
    assert (done.status, done.output) == (0, str(size))
    program = {name: sizes for name, sizes in done.objects.items() if name != "main.c"}
    assert sum(sizes[".bss"] + sizes[".data"] for sizes in program.values()) == size
    assert 0 < done.stack < 1024
