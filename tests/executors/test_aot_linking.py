"""Programs of aot linked with others: shared memory, kernels that fail, sanitizers, and the memory of small boards."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from models import inputs_of, random_graph, small
from onnx import helper
from toolchains.machines import BOARDS, run_on_board, target_or_skip

import tvmtarget as tt
from tvmtarget import plugins
from tvmtarget.backends.c.project import CProject
from tvmtarget.backends.c.static_function import Kernel, KernelCall, StaticFunction, Tensor
from tvmtarget.backends.protocol import Backend
from tvmtarget.errors import BackendError

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


def written(project, folder):
    """Write a project, and return its sources."""
    for name, data in project.files().items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    return sorted((folder / "src").glob("*.c"))


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


IO = TYPED.replace("aot(", "aot(workspace-io=true,")


def test_inputs_and_outputs_may_lie_in_the_workspace(tmp_path):
    model = layers("Tanh")
    executable, given = tt.build(model, IO), inputs_of(model)
    expected = tt.build(model, "numpy").run(given)["y"]
    np.testing.assert_allclose(executable.run(given)["y"], expected, rtol=1e-5, atol=1e-6)
    executable.export(tmp_path)
    numbers = ", ".join(f"{number:.9e}f" for number in given["x"].ravel())
    main = f"""
#include "tvmgen_default.h"
#include <stdio.h>
int main(void) {{
  static uint8_t memory[TVMGEN_DEFAULT_WORKSPACE_SIZE + 64] TVMTARGET_ALIGNED(16);
  static const float x[16] = {{{numbers}}};
  struct tvmgen_default_workspace_pools own = {{memory, TVMGEN_DEFAULT_WORKSPACE_SIZE}};
  const struct tvmgen_default_workspace_pools *pools[2];
  float *y[2];
  int i;
  pools[0] = &own;
  pools[1] = tvmgen_default_static_workspace();
  memset(memory, 0xA5, sizeof memory);
  if (tvmgen_default_map_inputs(NULL).x || tvmgen_default_map_outputs(NULL).y) return 4;
  for (i = 0; i < 2; ++i) {{
    memcpy(tvmgen_default_map_inputs(pools[i]).x, x, sizeof x);
    y[i] = tvmgen_default_map_outputs(pools[i]).y;
  }}
  if (tvmgen_default_run_in(pools[0]) || tvmgen_default_run()) return 1;
  if (memcmp(y[0], y[1], 64)) return 2;
  for (i = 0; i < 64; ++i) if (memory[TVMGEN_DEFAULT_WORKSPACE_SIZE + i] != 0xA5) return 3;
  for (i = 0; i < 16; ++i) printf("%.9g ", (double)y[0][i]);
  return 0;
}}
"""
    done = built(tmp_path, main, sorted((tmp_path / "src").glob("*.c")), *SANITIZED)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.array(done.stdout.split(), "float32").reshape(4, 4), expected, rtol=1e-5, atol=1e-6)


def workspace(executable):
    (report,) = executable.report()["systems"]
    return sum(one["bytes"] for one in report["artifact"]["workspace"])


def test_values_use_the_bytes_of_inputs_that_were_read():
    nodes = [("MatMul", "x w", "a"), ("MatMul", "a w", "y")]
    model = small(
        *(helper.make_node(op, given.split(), [out]) for op, given, out in nodes),
        shape=(4, 4),
        w=np.eye(4, dtype="float32"),
    )
    assert workspace(tt.build(model, TYPED)) == 64  # `a`, besides 128 bytes for `x` and `y`
    assert workspace(tt.build(model, IO)) == 128  # `y` lies where `x` was


def test_results_that_are_no_values_of_their_own_lie_in_the_workspace_too():
    nodes = [("Neg", "x", "y"), ("Identity", "y", "z"), ("Identity", "x", "same"), ("Identity", "c", "constant")]
    model = small(
        *(helper.make_node(op, [given], [out]) for op, given, out in nodes),
        inputs=("x", "unused"),
        outputs=("y", "z", "same", "constant"),
        c=np.float32([[1, 2, 3], [4, 5, 6]]),
    )
    executable, given = tt.build(model, IO), inputs_of(model)
    expected = tt.build(model, "numpy").run(given)
    for _ in range(2):
        for name, array in executable.run(given).items():
            np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize(
    "target", ["c(executor=aot(workspace-io=true),runtime=crt)", IO.replace("crt", "crt(system-lib=true)")]
)
def test_packed_entries_do_not_map_inputs(target):
    with pytest.raises(BackendError, match="set interface-api=c"):
        tt.build(layers("Tanh"), target)


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
    sources = written(project, tmp_path)
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
    done = built(tmp_path, main, sources)
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


# Kernels on the devices @npu and @dsp, whose hooks print what is called, and fail where `fails` says.
HOOKS = """
static const char *fails = "";
static int32_t called(const char *hook, void *device) {
  printf("%s(%s) ", hook, (const char *)device);
  return strcmp(hook, fails) == 0 ? 7 : 0;
}
"""


def on_devices():
    """Return a function of three kernels, on an NPU, the CPU and a DSP; the one on the CPU fails for inputs above 5."""
    tensor = Tensor("float32", (2,))
    kernels = {
        "first": Kernel("first", (tensor,), (tensor,), device="my-npu"),
        "second": Kernel("second", (tensor,), (tensor,)),
        "third": Kernel("third", (tensor,), (tensor,), device="dsp"),
    }
    code = ""
    for kernel in kernels.values():
        note = f'  printf("{kernel.symbol}(%s) ", (const char *)device);\n' if kernel.device else ""
        body = f"{note}  p1[0] = p0[0] + 1.0f;\n  p1[1] = p0[1];\n  return p0[0] > 6.0f ? 42 : 0;\n"
        code += f"{kernel.prototype};\n{kernel.prototype} {{\n{body}}}\n"
    return StaticFunction(
        ("x",),
        ("y",),
        dict.fromkeys(("x", "a", "b", "y"), tensor),
        {},
        (
            KernelCall("first", ("x",), ("a",), "npu"),
            KernelCall("second", ("a",), ("b",), "cpu"),
            KernelCall("third", ("b",), ("y",), "io/dsp"),
        ),
        kernels,
        {"external.c": b"#include <stdint.h>\n#include <stdio.h>\n" + code.encode()},
    )


def test_devices_are_closed_and_deactivated_also_after_errors(tmp_path):
    sources = written(CProject("default", on_devices(), ("x",), ("y",)), tmp_path)
    hooks = "".join(
        f'int32_t TVMDevice{device}{hook}(void *device) {{ return called("{device}{hook}", device); }}\n'
        for device in ("MyNpu", "Dsp")
        for hook in ("Activate", "Open", "Close", "Deactivate")
    )
    main = f"""
#include "tvmgen_default.h"
#include <stdio.h>
{HOOKS}
{hooks}
int main(int count, char **words) {{
  static char npu[] = "n", dsp[] = "d";
  float x[2] = {{1.0f, 2.0f}}, y[2] = {{0, 0}};
  struct tvmgen_default_inputs in;
  struct tvmgen_default_outputs out;
  struct tvmgen_default_devices devices;
  in.x = x; out.y = y;
  devices.npu = npu; devices.io_dsp = dsp;
  if (tvmgen_default_run(&in, &out, NULL) != TVMTARGET_ERROR_NULL_POINTER) return 1;
  if (count > 1) fails = words[1];
  if (count > 2) x[0] = 6.0f;
  printf("%d", (int)tvmgen_default_run(&in, &out, &devices));
  return 0;
}}
"""
    assert built(tmp_path, main, sources, *SANITIZED).returncode == 0

    def printed(*words):
        return subprocess.run([tmp_path / "program", *words], capture_output=True, text=True, check=True).stdout.split()

    active = ["MyNpuActivate(n)", "DspActivate(d)"]
    first = ["MyNpuOpen(n)", "first(n)", "MyNpuClose(n)"]
    third = ["DspOpen(d)", "third(d)", "DspClose(d)"]
    end = ["DspDeactivate(d)", "MyNpuDeactivate(n)"]
    assert printed() == [*active, *first, *third, *end, "0"]
    assert printed("MyNpuActivate") == [active[0], "7"]
    assert printed("DspActivate") == [*active, end[1], "7"]
    assert printed("MyNpuOpen") == [*active, first[0], *end, "7"]
    assert printed("MyNpuClose") == [*active, *first, *end, "7"]
    assert printed("DspDeactivate") == [*active, *first, *third, *end, "7"]
    assert printed("", "kernel") == [*active, *first, *end, "42"]
    assert printed("DspDeactivate", "kernel") == [*active, *first, *end, "42"]


tt.strategy("my-npu")(type("MyNpu", (), {"ops": {"Neg"}}))


class NegByNpu(Backend):
    """Calls a function of an NPU for functions of one Neg, and brings hooks that count in its context."""

    name = "npu-in-c"
    kinds = ("my-npu",)
    supports = frozenset({"static"})

    def version(self):
        return "1"

    def static_function(self, request, prefix):
        (given,), tensor = request.model.graph.input, Tensor("float32", (2, 3))
        kernel = Kernel(f"{prefix}_neg", (tensor,), (tensor,), device="my-npu")
        assert [dim.dim_value for dim in given.type.tensor_type.shape.dim] == [2, 3]
        body = "int i;\n  (void)device;\n  for (i = 0; i < 6; ++i) p1[i] = -p0[i];\n  return 0;\n"
        code = f"#include <stdint.h>\n{kernel.prototype};\n{kernel.prototype} {{\n  {body}}}\n"
        for hook in ("Activate", "Open", "Close", "Deactivate"):
            hook = f"__attribute__((weak)) int32_t TVMDeviceMyNpu{hook}(void *device)"
            code += f"{hook};\n{hook} {{ (void)device; return 0; }}\n"
        call = KernelCall(kernel.symbol, ("x",), ("y",))
        return StaticFunction(
            ("x",), ("y",), {"x": tensor, "y": tensor}, {}, (call,), {kernel.symbol: kernel}, {"npu.c": code.encode()}
        )

    def compile(self, request):
        raise AssertionError("programs in C only")


plugins.register("tvmtarget.backends", NegByNpu.name, NegByNpu())


@pytest.mark.parametrize("cpu", ["c", "c(mcpu=cortex-m55)"])
def test_code_generators_of_devices_bring_kernels_into_programs_in_c(cpu, tmp_path):
    nodes = [("Tanh", "x", "a"), ("Neg", "a", "b"), ("Exp", "b", "y")]
    model = small(*(helper.make_node(op, [given], [made]) for op, given, made in nodes))
    system = f"[npu=my-npu,cpu={cpu}](host=@cpu,executor=aot(interface-api=c,unpacked-api=true),runtime=crt)"
    executable = tt.build(model, system)
    (report,) = executable.report()["systems"]
    assert [(one["path"], one.get("device")) for one in report["artifact"]["kernels"]] == [
        ("cpu", None),
        ("npu", "my-npu"),
        ("cpu", None),
    ]
    executable.export(tmp_path)
    header = (tmp_path / "include" / "tvmgen_default.h").read_text()
    assert "struct tvmgen_default_devices {\n  void *npu; /* my-npu */\n};" in header
    # What the document declares agrees with the header: C allows to declare a function again as it is.
    page = (Path(__file__).parents[2] / "docs" / "executors.md").read_text(encoding="utf-8")
    declared = re.search(r"```c\nstruct tvmgen_default_devices \{ void \*npu; \};\n(.*?)```", page, re.DOTALL)[1]
    code = f'#include "tvmgen_default.h"\n{declared.replace("EthosU", "MyNpu")}'
    check = ["gcc", "-std=c99", "-Werror", "-fsyntax-only", f"-I{tmp_path / 'include'}", "-x", "c", "-"]
    subprocess.run(check, input=code, text=True, check=True)
    if cpu == "c":
        given = inputs_of(model)
        np.testing.assert_allclose(executable.run(given)["y"], np.exp(-np.tanh(given["x"])), rtol=1e-5)
    with pytest.raises(BackendError, match=r"@. cannot be built: .* passes no context of device 'my-npu'"):
        tt.build(model, system.replace("interface-api=c,", ""))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"interface": "packed"}, "passes no context of device 'my-npu': set interface-api=c"),
        ({"interface": "packed", "is_unpacked": False}, "passes no context of device 'my-npu'"),
        ({"has_system_lib": True}, "leave out system-lib"),
    ],
)
def test_entries_that_take_tensors_are_refused_for_devices(changes, reason):
    with pytest.raises(BackendError, match=reason):
        CProject("default", on_devices(), ("x",), ("y",), **changes).check()


def test_devices_whose_paths_become_equal_in_c_are_refused():
    function = on_devices()
    steps = tuple(replace(one, path=path) for one, path in zip(function.steps, ("a/b", "", "a_b"), strict=True))
    with pytest.raises(BackendError, match="the devices @a/b and @a_b have one name in C, 'a_b'; rename one of them"):
        CProject("default", replace(function, steps=steps), ("x",), ("y",)).check()
