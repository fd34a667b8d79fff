"""Programs in C99 of the executor `aot`: what they compute, what they contain, and what is refused."""

import json
import platform
import re
import shutil
import subprocess
import tarfile

import numpy as np
import pytest
from models import DIGITS, EXAMPLES, inputs_of, light, small
from onnx import TensorProto, checker, helper, load, numpy_helper, parser, save, shape_inference

import tvmtarget as tt
from tvmtarget.backends.c.identifiers import c_identifier
from tvmtarget.errors import BackendError, InfeasibleError, RunError, TargetError

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wmissing-prototypes", "-O2"]
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
WEIGHTS = (np.arange(6).reshape(2, 3) / 7).astype("float32")
TYPED = "c(executor=aot(interface-api=c,unpacked-api=true),runtime=crt)"
PACKED = "c(executor=aot,runtime=crt)"
PACKED_UNPACKED = "c(executor=aot(unpacked-api=true),runtime=crt)"


def digits(batch=1):
    """Return the model of digits for one size of batches, and its inputs."""
    model = load(DIGITS)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    del model.graph.value_info[:]
    with np.load(EXAMPLES / "digits.npz") as stored:
        return shape_inference.infer_shapes(model), stored["input"]


def two_layers():
    """Return a small model with two inputs, two results, and values that live at the same time."""
    nodes = [
        ("MatMul", "x v", "a"),
        ("MatMul", "y w", "b"),
        ("Add", "a b", "p"),
        ("MatMul", "p w", "q"),
        ("Tanh", "q", "r"),
    ]
    rng = np.random.default_rng(0)
    return small(
        *(helper.make_node(op, given.split(), [made]) for op, given, made in nodes),
        inputs=("x", "y"),
        outputs=("p", "r"),
        shape=(3, 5),
        v=rng.normal(size=(5, 5)).astype("float32"),
        w=rng.normal(size=(5, 5)).astype("float32"),
    )


def reference(model, inputs):
    return tt.build(model, "numpy").run(inputs)


def check_equal(actual, expected, rtol=1e-5, atol=1e-5):
    assert list(actual) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=rtol, atol=atol, strict=True)


def check(model, target, rtol=1e-5, atol=1e-5):
    """Build a model, compare two runs with the reference, and return the executable."""
    executable, given = tt.build(model, target), inputs_of(model)
    expected = reference(model, given)
    for _ in range(2):  # the second run finds the values of the first one in the workspace
        check_equal(executable.run(given), expected, rtol, atol)
    return executable


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return a function that exports the project of `two_layers` for a target, once for each."""
    made = {}

    def export(target=TYPED, model=None):
        key = target if model is None else (target, id(model))
        if key not in made:
            folder = tmp_path_factory.mktemp("project")
            tt.build(two_layers() if model is None else model, target).export(folder)
            made[key] = folder
        return made[key]

    return export


def sources(folder):
    return sorted(str(path) for path in (folder / "src").glob("*.c"))


def compiled(folder, *words, compiler="gcc", output="program", check=True):
    command = [compiler, *words, f"-I{folder / 'include'}", f"-I{folder / 'src'}", *sources(folder), "-lm"]
    done = subprocess.run([*command, "-o", str(folder / output)], capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, done.stderr
    return folder / output


def run_main(folder, body, *words, name="main"):
    """Compile and run a C program that uses a project; it prints what it found."""
    source = folder / f"{name}.c"
    source.write_text(f'#include "tvmgen_default.h"\n#include <stdio.h>\n#include <string.h>\n{body}')
    program = compiled(folder, *STRICT, *words, str(source), output=name)
    return subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=60)


MAIN = """
static float x[15], y[15], p[15], r[15];
int main(void) {
  struct tvmgen_default_inputs in = {x, y};
  struct tvmgen_default_outputs out = {p, r};
  int i;
  for (i = 0; i < 15; ++i) { x[i] = 0.25f * (float)i; y[i] = 1.0f - (float)i; }
  BODY
  return 0;
}
"""


@pytest.mark.parametrize(
    "target", [TYPED, PACKED, PACKED_UNPACKED, PACKED.replace("crt", "cpp"), "llvm(executor=aot,runtime=cpp)"]
)
def test_programs_compute_what_the_reference_does(target):
    check(two_layers(), target)


def test_digits_are_predicted_as_on_other_engines():
    model, x = digits()
    executable, expected = tt.build(model, PACKED), tt.build(model, "onnxruntime")
    for row in x[:20]:
        given = {"input": row[np.newaxis]}
        np.testing.assert_allclose(executable.run(given)["logits"], expected.run(given)["logits"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("target", [TYPED, PACKED, PACKED_UNPACKED, PACKED.replace("crt", "crt(system-lib=true)")])
def test_code_compiles_without_warnings(project, compiler, target):
    compiled(project(target), *STRICT, "-shared", "-fPIC", compiler=compiler, output=f"{compiler}.so")


@pytest.mark.parametrize("compiler", COMPILERS)
def test_one_file_compiles_without_warnings(tmp_path, compiler):
    tt.build(two_layers(), PACKED).export(tmp_path / "all.c")
    command = [compiler, *STRICT, "-c", str(tmp_path / "all.c"), "-o", str(tmp_path / "all.o")]
    subprocess.run(command, check=True)


def test_headers_are_valid_cpp(project):
    for target in (TYPED, PACKED):
        folder = project(target)
        (folder / "use.cc").write_text(
            '#include "tvmgen_default.h"\nint main() { struct tvmgen_default_inputs in = {}; (void)in; return 0; }'
        )
        command = ["g++", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", f"-I{folder / 'include'}"]
        subprocess.run([*command, str(folder / "use.cc")], check=True)


def test_make_and_cmake_build_a_library(project, tmp_path):
    folder = shutil.copytree(project(PACKED), tmp_path / "copy")
    subprocess.run(["make", "-s", "-C", str(folder)], check=True)
    assert (folder / "libtvmgen_default.a").exists()
    if shutil.which("cmake"):
        for words in (["-S", str(folder), "-B", str(tmp_path / "built")], ["--build", str(tmp_path / "built")]):
            subprocess.run(["cmake", *words], check=True, capture_output=True)
        assert (tmp_path / "built" / "libtvmgen_default.a").exists()


def test_code_allocates_nothing_and_opens_nothing(project):
    for target in (TYPED, PACKED, PACKED.replace("crt", "crt(system-lib=true)")):
        library = compiled(project(target), "-O2", "-shared", "-fPIC", output="symbols.so")
        names = subprocess.run(
            ["nm", "-D", "--undefined-only", str(library)], capture_output=True, text=True, check=True
        )
        words = {line.split()[-1].partition("@")[0] for line in names.stdout.splitlines()}
        standard = {"__cxa_finalize", "__gmon_start__", "_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable"}
        assert words - standard <= {"memcpy", "memset", "memmove", "strcmp", "tanhf", "expf"}


def test_the_runtime_has_at_most_four_kilobytes(project):
    folder = project(PACKED)
    command = ["gcc", "-Os", "-c", f"-I{folder / 'include'}", str(folder / "src" / "tvmtarget_crt.c")]
    subprocess.run([*command, "-o", str(folder / "crt.o")], check=True)
    size = subprocess.run(["size", "-A", str(folder / "crt.o")], capture_output=True, text=True, check=True).stdout
    (text,) = (int(line.split()[1]) for line in size.splitlines() if line.startswith(".text"))
    assert text <= 4096


# Of TVM's test of unified memory planning (test_crt_aot_usmp.py): there 11,424 bytes by hill climbing.
PLANNED = """<ir_version: 8, opset_import: ["": 13]>
g (float[1,3,24,12] x, float[12,12] w, float[3,3,3,3] k, float[3,1,1] b, float[3] o) => (float[1,3,24,12] y) {
  flat = Constant<value_ints = [-1, 12]>() back = Constant<value_ints = [1, 3, 24, 12]>()
  r = Reshape(x, flat) d = Gemm<transB = 1>(r, w) e = Relu(d) f = Reshape(e, back)
  c = Conv<pads = [1, 1, 1, 1]>(x, k) s = Softmax<axis = -1>(c) a = Add(f, s) z = Add(a, b)
  n = BatchNormalization(z, o, o, o, o)
  r2 = Reshape(n, flat) d2 = Gemm<transB = 1>(r2, w) e2 = Relu(d2) f2 = Reshape(e2, back)
  c2 = Conv<pads = [1, 1, 1, 1]>(n, k) s2 = Softmax<axis = -1>(c2) y = Add(f2, s2) }"""


@pytest.mark.parametrize("kind", ["c(executor=aot,runtime=crt)", "llvm(executor=aot,runtime=crt(system-lib=true))"])
def test_what_a_kernel_copies_first_ends_before_its_results_begin(kind, tmp_path):
    shapes, random = {"w": (12, 12), "k": (3, 3, 3, 3), "b": (3, 1, 1), "o": (3,)}, np.random.default_rng(0)
    model, params = parser.parse_model(PLANNED), {name: random.random(of, "float32") for name, of in shapes.items()}
    program = tt.build(model, kind, params=params)
    program.export(tmp_path)
    (memory,) = json.loads((tmp_path / "report.json").read_text())["workspace"]
    assert memory["bytes"] <= 11_424
    x = random.random((1, 3, 24, 12), "float32")
    expected = tt.build(model, "onnxruntime", params=params)(x)
    np.testing.assert_allclose(program(x), expected, rtol=1e-4, atol=1e-5)


def test_size_macros_are_the_sizes_of_the_tensors(project):
    header = (project() / "include" / "tvmgen_default.h").read_text()
    for name in ("X", "Y", "P", "R"):
        assert f"#define TVMGEN_DEFAULT_{name}_SIZE 60\n" in header
    report = json.loads((project() / "report.json").read_text())
    assert f"#define TVMGEN_DEFAULT_WORKSPACE_SIZE {report['workspace'][0]['bytes']}\n" in header


def test_the_static_workspace_is_all_memory_that_a_program_writes(project):
    folder = project()
    macro = json.loads((folder / "report.json").read_text())["workspace"][0]["bytes"]
    for path in sources(folder):
        subprocess.run(["gcc", "-O2", "-c", f"-I{folder / 'include'}", path, "-o", f"{path}.o"], check=True)
    objects = [f"{path}.o" for path in sources(folder)]
    lines = subprocess.run(["size", *objects], capture_output=True, text=True, check=True).stdout.splitlines()[1:]
    rows = {line.split()[-1]: [int(word) for word in line.split()[1:3]] for line in lines}
    assert sum(bss for _, bss in rows.values()) == macro
    for path in objects:
        (folder / path).unlink()


def test_names_of_the_model_become_names_in_c(tmp_path):
    model = small(helper.make_node("Relu", ["in:0/é"], ["class"]), inputs=("in:0/é",), outputs=("class",))
    executable = check(model, TYPED)
    executable.export(tmp_path)
    header = (tmp_path / "include" / "tvmgen_default.h").read_text()
    assert "const float *in_0__;" in header
    assert "float *_class;" in header


def test_fields_are_not_named_by_their_types_which_cpp_rejects():
    assert [c_identifier(name) for name in ("int8_t", "size_t", "uint8_t2")] == ["_int8_t", "_size_t", "uint8_t2"]


def test_names_that_become_equal_in_c_are_refused():
    model = small(helper.make_node("Add", ["a:b", "a_b"], ["y"]), inputs=("a:b", "a_b"))
    with pytest.raises(BackendError, match="'a:b' and 'a_b' have one name in C, 'a_b'; rename one of them"):
        tt.build(model, TYPED)


# Names of an input and of the output that is computed from it, half of them in one program.
NAMES = {
    "memory_workspace": "data",
    "inputs": "pools",
    "NULL": "errno",
    "输入": "出",
    "a" * 200: "A" * 200,
    "x": "x_size",
    "linux": "typeof",
    "INT64_MIN": "SIZE_MAX",
    "__LINE__": "__func__",
    "TVMTARGET_CRT_H": "TVMGEN_DEFAULT_H",
    "M_PI": "FP_NAN",
    "_Static_assert": "co_await",
    "*/": "/**",
    "a\nb": 'c"??/',
}


@pytest.mark.parametrize("start", [0, 1])
def test_any_names_of_values_give_valid_c_and_cpp(start, tmp_path):
    names = dict([*NAMES.items()][start::2])
    nodes = [
        helper.make_node("MatMul", [read, "w"], [written])
        for number, (first, second) in enumerate(names.items())
        for read, written in ((first, f"h{number}"), (f"h{number}", second))
    ]
    weights = np.eye(3, dtype="float32") / 3
    model = small(*nodes, inputs=tuple(names), outputs=tuple(names.values()), w=weights)
    check(model, TYPED).export(tmp_path)
    for compiler in COMPILERS:
        compiled(tmp_path, *STRICT, "-shared", "-fPIC", compiler=compiler, output="strict.so")
    (tmp_path / "use.cc").write_text('#include "tvmgen_default.h"\n')
    command = ["g++", "-std=gnu++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{tmp_path / 'include'}"]
    subprocess.run([*command, str(tmp_path / "use.cc")], check=True)


@pytest.mark.parametrize("name", ["workspace", "Constants", "workspace:workspace_pool"])
def test_names_of_values_whose_macro_is_one_of_the_program_are_refused_at_build(name):
    model = small(helper.make_node("Neg", [name], ["y"]), inputs=(name,))
    with pytest.raises(BackendError, match=r"needs the macro TVMGEN_DEFAULT_.*rename it"):
        tt.build(model, TYPED)


def test_sizes_of_two_values_that_need_one_macro_are_refused_at_build():
    model = small(helper.make_node("ReduceMax", ["a"], ["A"]), inputs=("a",), outputs=("A",))
    with pytest.raises(BackendError, match="'A' needs the macro TVMGEN_DEFAULT_A_SIZE"):
        tt.build(shape_inference.infer_shapes(model), TYPED)


def test_leaf_functions_in_c_take_values_of_any_names():
    model = small(helper.make_node("Add", ["a:b", "a_b"], ["workspace"]), inputs=("a:b", "a_b"), outputs=("workspace",))
    check(model, "c")


def test_names_of_programs_do_not_open_comments(tmp_path):
    tt.build(two_layers(), TYPED, mod_name="a/*b").export(tmp_path)
    compiled(tmp_path, *STRICT, "-shared", "-fPIC", output="strict.so")


def test_memories_whose_names_become_equal_in_c_are_refused():
    memory = [{"name": name, "bytes": 4096} for name in ("a-b", "a_b", "x", "x_size")]
    with pytest.raises(BackendError) as caught:
        tt.build(two_layers(), tt.Target.parse(TYPED).replace(memory=tuple(tt.Memory(**one) for one in memory)))
    assert "'a-b' and 'a_b' need the name 'a_b' in C" in str(caught.value)
    assert "'x' and 'x_size' need the name 'x_size' in C" in str(caught.value)


def test_values_and_memories_of_two_gigabytes_are_refused_before_they_exist():
    nodes = [("Expand", "x s", "a"), ("Tanh", "a", "b"), ("MatMul", "b w", "c"), ("MatMul", "c w", "d")]
    nodes += [("Add", "b d", "e"), ("MatMul", "e w", "f"), ("Add", "f c", "g"), ("ReduceMax", "g", "y")]
    made = [helper.make_node(op, given.split(), [out]) for op, given, out in nodes]
    for rows, reason in ((1 << 28, r"float32\[268435456, 2\] has 2147483648 bytes"), (1 << 27, "'workspace' needs")):
        model = small(*made, shape=(1, 2), s=np.int64([rows, 2]), w=np.eye(2, dtype="float32"))
        with pytest.raises(BackendError, match=f"{reason}.*at least 2 GiB"):
            tt.build(shape_inference.infer_shapes(model), TYPED)


def test_typed_entries_with_packed_kernels_are_refused():
    with pytest.raises(tt.TvmTargetError, match="unpacked-api"):
        tt.build(two_layers(), "c(executor=aot(interface-api=c),runtime=crt)")


def test_two_runs_in_two_workspaces_may_overlap(project):
    body = """
  static uint8_t a[TVMGEN_DEFAULT_WORKSPACE_SIZE + 64], b[TVMGEN_DEFAULT_WORKSPACE_SIZE + 64];
  struct tvmgen_default_workspace_pools pools = {NULL, TVMGEN_DEFAULT_WORKSPACE_SIZE};
  float first[15];
  pools.workspace = a + (64 - (uintptr_t)a % 64);
  if (tvmgen_default_run_in(&in, &out, &pools)) return 1;
  memcpy(first, r, sizeof r);
  pools.workspace = b + (64 - (uintptr_t)b % 64);
  if (tvmgen_default_run_in(&in, &out, &pools)) return 2;
  if (memcmp(first, r, sizeof r)) return 3;
  if (tvmgen_default_run(&in, &out)) return 4;
  if (memcmp(first, r, sizeof r)) return 5;
"""
    assert run_main(project(), MAIN.replace("BODY", body), name="twice").returncode == 0


def test_wrong_workspaces_are_errors_and_nothing_is_overrun(project):
    body = """
  static uint8_t a[TVMGEN_DEFAULT_WORKSPACE_SIZE + 128];
  struct tvmgen_default_workspace_pools pools = {NULL, TVMGEN_DEFAULT_WORKSPACE_SIZE};
  uint8_t *base = a + (64 - (uintptr_t)a % 64);
  memset(a, 0xA5, sizeof a);
  printf("%d ", (int)tvmgen_default_run_in(&in, &out, &pools));
  pools.workspace = base + 1;
  printf("%d ", (int)tvmgen_default_run_in(&in, &out, &pools));
  pools.workspace = base;
  pools.workspace_size = TVMGEN_DEFAULT_WORKSPACE_SIZE - 1;
  printf("%d ", (int)tvmgen_default_run_in(&in, &out, &pools));
  in.x = NULL;
  pools.workspace_size = TVMGEN_DEFAULT_WORKSPACE_SIZE;
  printf("%d ", (int)tvmgen_default_run_in(&in, &out, &pools));
  for (i = 0; i < (int)sizeof a; ++i) if (a[i] != 0xA5) return 1;
  in.x = x;
  printf("%d ", (int)tvmgen_default_run_in(&in, &out, &pools));
  for (i = TVMGEN_DEFAULT_WORKSPACE_SIZE; i < 64; ++i) if (base[i] != 0xA5) return 2;
  printf("%s", tvmtarget_status_text(TVMTARGET_ERROR_UNALIGNED));
"""
    done = run_main(project(), MAIN.replace("BODY", body), name="wrong")
    assert (done.returncode, done.stdout) == (0, "-1 -3 -2 -1 0 a workspace is not aligned")


def test_sanitizers_find_nothing(project):
    body = "if (tvmgen_default_run(&in, &out)) return 1;"
    words = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"]
    done = run_main(project(), MAIN.replace("BODY", body), *words, name="sanitized")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("alignment", [1, 8, 16, 256])
def test_workspaces_have_the_alignment_that_the_target_states(alignment, tmp_path):
    target = TYPED.replace("unpacked", f"workspace-byte-alignment={alignment},constant-byte-alignment=64,unpacked")
    model = small(
        helper.make_node("Mul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"]), w=np.ones((2, 3), "float32")
    )
    executable = check(model, target)
    executable.export(tmp_path)
    header = (tmp_path / "include" / "tvmgen_default.h").read_text()
    stated = int(header.split("TVMGEN_DEFAULT_WORKSPACE_ALIGNMENT ")[1].split()[0])
    assert stated in (1, max(alignment, 4))  # 1 if there is no workspace
    assert "TVMTARGET_ALIGNED(64)" in (tmp_path / "src" / "tvmgen_default_constants.c").read_text()


def test_constants_are_in_a_section_of_their_own_that_is_not_written(tmp_path):
    model = small(helper.make_node("Mul", ["x", "w"], ["y"]), w=WEIGHTS)
    tt.build(model, TYPED).export(tmp_path)
    library = compiled(tmp_path, "-O2", "-c", output="x.o", check=False)
    path = tmp_path / "src" / "tvmgen_default_constants.c"
    command = ["gcc", "-c", f"-I{tmp_path / 'include'}", str(path), "-o", str(library)]
    subprocess.run(command, check=True)
    table = subprocess.run(["readelf", "-SW", str(library)], capture_output=True, text=True, check=True).stdout
    (row,) = (line for line in table.splitlines() if ".rodata.tvmgen_default" in line)
    assert " A " in row  # allocated, not writable


def test_two_programs_fit_into_one_binary(tmp_path):
    for name, op in (("first", "Tanh"), ("second", "Neg")):
        tt.build(small(helper.make_node(op, ["x"], ["y"])), TYPED, mod_name=name).export(tmp_path / name)
    main = tmp_path / "main.c"
    main.write_text("""
#include "tvmgen_first.h"
#include "tvmgen_second.h"
int main(void) {
  float x[6] = {1, 2, 3, 4, 5, 6}, y[6], z[6];
  struct tvmgen_first_inputs in1 = {x};
  struct tvmgen_first_outputs out1 = {y};
  struct tvmgen_second_inputs in2 = {x};
  struct tvmgen_second_outputs out2 = {z};
  if (tvmgen_first_run(&in1, &out1) || tvmgen_second_run(&in2, &out2)) return 1;
  return !(z[5] == -6.0f && y[0] > 0.76f && y[0] < 0.77f);
}
""")
    files = {path.name: str(path) for name in ("first", "second") for path in (tmp_path / name / "src").glob("*.c")}
    flags = [f"-I{tmp_path / name / part}" for name in ("first", "second") for part in ("include", "src")]
    program = str(tmp_path / "both")
    subprocess.run(["gcc", *STRICT, *flags, str(main), *files.values(), "-lm", "-o", program], check=True)
    assert subprocess.run([program], check=False).returncode == 0


def test_the_packed_entry_checks_its_arguments(project):
    body = """
  static const int64_t shape[2] = {3, 5};
  static const struct tvmtarget_type types[4] = {
    {2, 32, 2, shape}, {2, 32, 2, shape}, {2, 32, 2, shape}, {2, 32, 2, shape}};
  void *data[4] = {x, y, p, r};
  struct tvmtarget_tensor tensors[4];
  union tvmtarget_value values[4];
  int32_t codes[4];
  (void)in; (void)out;
  printf("%d ", (int)tvmtarget_call(tvmgen_default___tvm_main__, data, types, 4, tensors, values, codes));
  printf("%d ", (int)tvmtarget_call(tvmgen_default___tvm_main__, data, types, 3, tensors, values, codes));
  tensors[0].dtype.bits = 64;
  printf("%d ", (int)tvmgen_default___tvm_main__(values, codes, 4, NULL, NULL, NULL));
  tensors[0].dtype.bits = 32;
  codes[1] = 0;
  printf("%d ", (int)tvmgen_default___tvm_main__(values, codes, 4, NULL, NULL, NULL));
  codes[1] = TVMTARGET_TENSOR;
  tensors[1].shape = NULL;
  printf("%d ", (int)tvmgen_default___tvm_main__(values, codes, 4, NULL, NULL, NULL));
  tensors[1].shape = shape;
  tensors[1].data = NULL;
  printf("%d ", (int)tvmgen_default___tvm_main__(values, codes, 4, NULL, NULL, NULL));
  values[1].v_handle = NULL;
  printf("%d ", (int)tvmgen_default___tvm_main__(values, codes, 4, NULL, NULL, NULL));
  printf("%d ", (int)tvmgen_default___tvm_main__(NULL, codes, 4, NULL, NULL, NULL));
  printf("%d ", (int)tvmgen_default___tvm_main__(values, NULL, 4, NULL, NULL, NULL));
  printf("%d ", tvmgen_default_function(NULL) == NULL);
  printf("%d", tvmgen_default_function("tvmgen_default___tvm_main__") == tvmgen_default___tvm_main__);
"""
    target = PACKED.replace("crt", "crt(system-lib=true)")
    done = run_main(project(target), MAIN.replace("BODY", body), name="packed")
    assert (done.returncode, done.stdout) == (0, "0 -4 -4 -4 -4 -4 -4 -4 -4 1 1")


@pytest.mark.parametrize("target", [TYPED, PACKED])
@pytest.mark.parametrize(
    "case",
    {
        "identity": ([("Identity", "x", "y")], ["y"]),
        "same result twice": ([("Neg", "x", "y"), ("Identity", "y", "z")], ["y", "z"]),
        "reshape": ([("Flatten", "x", "y")], ["y"]),
        "scalar": ([("ReduceSum", "x", "y")], ["y"]),
    }.items(),
    ids=lambda case: case[0],
)
def test_results_may_be_inputs_constants_and_scalars(case, target):
    _, (nodes, outputs) = case
    keep = {"keepdims": 0}
    made = [helper.make_node(op, [x], [y], **(keep if op == "ReduceSum" else {})) for op, x, y in nodes]
    model = small(*made, outputs=tuple(outputs))
    check(shape_inference.infer_shapes(model), target)


def test_a_constant_may_be_a_result():
    constant = helper.make_node("Constant", [], ["y"], value=numpy_helper.from_array(np.float32([[1, 2], [3, np.inf]])))
    graph = helper.make_graph([constant], "g", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 2])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    for target in (TYPED, PACKED):
        np.testing.assert_array_equal(tt.build(model, target).run({})["y"], np.float32([[1, 2], [3, np.inf]]))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint32", "uint64", "float64", "bool"])
def test_numbers_of_all_types_are_exact(dtype):
    info = np.iinfo(dtype) if dtype[0] in "iu" else None
    values = (
        [info.min, info.max, 1, 0]
        if info
        else [True, False, True, True]
        if dtype == "bool"
        else [1 / 3, 1e300, -0.1, 5e-324]
    )
    array = np.array(values, dtype).reshape(2, 2)
    type_ = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node("Where", ["c", "x", "w"], ["y"])
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, [2, 2]),
            helper.make_tensor_value_info("x", type_, [2, 2]),
        ],
        [helper.make_tensor_value_info("y", type_, [2, 2])],
        [numpy_helper.from_array(array, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    given = {"c": np.array([[False, False], [False, True]]), "x": np.zeros((2, 2), dtype)}
    expected = np.where(given["c"], given["x"], array)
    np.testing.assert_array_equal(tt.build(model, PACKED).run(given)["y"], expected, strict=True)


def test_constants_of_kernels_are_exact():
    """TVM's code generator for C prints seven digits of a number."""
    model = small(helper.make_node("Elu", ["x"], ["h"], alpha=1 / 3), helper.make_node("Add", ["h", "x"], ["y"]))
    check(model, PACKED, rtol=2e-7, atol=0)


def kernels(folder):
    (path,) = (folder / "src").glob("*_kernels.c")
    return path.read_text()


def test_rectifiers_select_without_a_branch(tmp_path):
    """GCC compares numbers with a zero that it knows by branches, which are slow for numbers of either sign."""
    model = small(helper.make_node("Relu", ["x"], ["y"]), shape=(2, 4))
    executable = tt.build(model, TYPED)
    x = np.array([[np.inf, -np.inf, 0.0, 1e-45], [-1.0, 1.0, -1e-45, 3e38]], "float32")
    np.testing.assert_array_equal(executable(x), np.maximum(x, 0))
    executable.export(tmp_path)
    assert "TVMTARGET_ZERO(float, zero_float32);" in kernels(tmp_path)
    assert not re.search(r"[<>] \(?0\.0", kernels(tmp_path))


def test_long_rows_are_padded_without_a_condition_for_each_element(tmp_path):
    node = helper.make_node("Pad", ["x", "p"], ["y"])
    model = small(node, shape=(3, 40), p=np.array([1, 3, 2, 0], "int64"))
    check(model, TYPED, rtol=0, atol=0).export(tmp_path)
    assert "condval" not in kernels(tmp_path)


@pytest.mark.parametrize(("op", "alpha"), [("Celu", {}), ("Celu", {"alpha": 2.5}), ("Swish", {"alpha": 0.5})])
def test_activations_that_tvm_lacks_are_written_as_onnx_defines_them(op, alpha):
    check(small(helper.make_node(op, ["x"], ["y"], **alpha), opset=24), PACKED, rtol=1e-6, atol=0)


def test_parameters_may_be_passed_apart_from_the_code(tmp_path):
    model = small(helper.make_node("Mul", ["x", "w"], ["y"]), w=WEIGHTS)
    executable = check(model, TYPED.replace("unpacked", "link-params=false,unpacked"))
    executable.export(tmp_path)
    assert not (tmp_path / "src" / "tvmgen_default_constants.c").exists()
    stored = np.frombuffer((tmp_path / "tvmgen_default_constants.bin").read_bytes(), "float32")
    np.testing.assert_array_equal(stored, WEIGHTS.ravel())
    header = (tmp_path / "include" / "tvmgen_default.h").read_text()
    assert "#define TVMGEN_DEFAULT_CONSTANTS_SIZE 24\n#define TVMGEN_DEFAULT_CONSTANTS_ALIGNMENT 16\n" in header
    with pytest.raises(BackendError, match="set interface-api=c, or link-params=true"):
        tt.build(model, PACKED.replace("aot", "aot(link-params=false)"))


def test_parameters_apart_from_the_code_are_padded_and_aligned(tmp_path):
    """The size in the header is that of the file, with the bytes between constants."""
    executable = check(
        two_layers(), TYPED.replace("unpacked", "link-params=false,constant-byte-alignment=512,unpacked")
    )
    executable.export(tmp_path)
    header = (tmp_path / "include" / "tvmgen_default.h").read_text()
    size = (tmp_path / "tvmgen_default_constants.bin").stat().st_size
    assert size == 512 + 100
    assert f"CONSTANTS_SIZE {size}\n#define TVMGEN_DEFAULT_CONSTANTS_ALIGNMENT 512\n" in header


def test_quantised_digits_are_bit_equal_to_the_reference(tmp_path):
    from onnxruntime import quantization

    model, x = digits()
    save(model, tmp_path / "digits.onnx")

    class Rows(quantization.CalibrationDataReader):
        rows = iter([{"input": row[np.newaxis]} for row in x[:20]])

        def get_next(self):
            return next(self.rows, None)

    # Weights of 7 bits: onnxruntime's products of 8 bits saturate on CPUs with AVX2 and without VNNI, says
    # https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html.
    kinds = {"activation_type": quantization.QuantType.QInt8, "weight_type": quantization.QuantType.QInt8}
    kinds |= {"quant_format": quantization.QuantFormat.QDQ, "reduce_range": True}
    quantization.quantize_static(tmp_path / "digits.onnx", tmp_path / "int8.onnx", Rows(), **kinds)
    quantised = load(tmp_path / "int8.onnx")
    executable = tt.build(quantised, TYPED)
    for engine in ("numpy", "onnxruntime"):
        expected = tt.build(quantised, engine)
        for row in x[:20]:
            given = {"input": row[np.newaxis]}
            np.testing.assert_array_equal(executable.run(given)["logits"], expected.run(given)["logits"])


def test_model_libraries_of_equal_programs_are_equal(tmp_path):
    for name in ("a.tar", "b.tar"):
        tt.build(two_layers(), PACKED).export(tmp_path / name)
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_model_libraries_have_the_layout_of_version_7(tmp_path):
    tt.build(two_layers(), PACKED, mod_name="model").export(tmp_path / "model.tar")
    with tarfile.open(tmp_path / "model.tar") as archive:
        archive.extractall(tmp_path / "out", filter="data")
    folder = tmp_path / "out"
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["version"] == 7
    module = metadata["modules"]["model"]
    (main,) = module["memory"]["functions"]["main"]
    assert main["inputs"] == {"x": {"size": 60, "dtype": "float32"}, "y": {"size": 60, "dtype": "float32"}}
    assert main["io_size_bytes"] == 240
    assert main["constants_size_bytes"] == 200
    assert (module["executors"], module["style"], module["target"][0]["kind"]) == (["aot"], "full-model", "c")
    sources = [*folder.glob("codegen/host/src/*.c"), *folder.glob("runtime/*.c")]
    command = ["gcc", *STRICT, f"-I{folder / 'codegen/host/include'}", f"-I{folder / 'runtime'}", "-shared", "-fPIC"]
    subprocess.run([*command, *map(str, sources), "-lm", "-o", str(tmp_path / "model.so")], check=True)


def test_shared_libraries_are_called_from_c(tmp_path):
    tt.build(two_layers(), PACKED.replace("crt", "cpp")).export(tmp_path / "libmodel.so")
    names = subprocess.run(
        ["nm", "-D", str(tmp_path / "libmodel.so")], capture_output=True, text=True, check=True
    ).stdout
    assert " T tvmgen_default_run\n" in names


@pytest.mark.parametrize(
    ("model", "target", "reason"),
    [
        (small(helper.make_node("Relu", ["x"], ["y"]), shape=("n", 3)), PACKED, "not static|symbolic|dynamic-shapes"),
        (two_layers(), "onnxruntime(executor=aot,runtime=crt)", "host|links code in C"),
        (two_layers(), "[a=onnxruntime,b=c](host=@b,executor=aot,runtime=crt)", "@a .*onnxruntime"),
        (two_layers(), "c(executor=aot,runtime=python)", "aot|runtime"),
        (two_layers(), "c(executor=graph,runtime=crt)", "graph|crt"),
        (two_layers(), "c(executor=vm,runtime=crt)", "vm|crt"),
    ],
)
def test_what_has_no_static_plan_is_refused_with_the_path(model, target, reason):
    options = {"where": {"op:Add": "@a"}} if target.startswith("[") else {}
    with pytest.raises((BackendError, InfeasibleError, TargetError), match=reason):
        tt.build(model, target, **options)


@pytest.mark.parametrize(
    ("leaf", "reason"),
    [
        (
            "c(mcpu=cortex-a72)",
            "@a cannot be built: .* this leaf is for aarch64-linux-gnu, and its host for x86_64-linux",
        ),
        ("c(mcpu=haswell)", "@a cannot be built: .*: state mcpu=haswell for the host too, or leave it out here"),
    ],
)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names CPUs of x86")
def test_leaves_of_other_cpus_than_the_host_are_refused(leaf, reason):
    with pytest.raises(BackendError, match=reason):
        tt.build(two_layers(), f"[a={leaf},b=c](host=@b,executor=aot,runtime=crt)", where={"op:Add": "@a"})


def test_memories_of_the_target_are_the_pools():
    model, x = digits()
    target = tt.Target.parse(
        {
            "kind": "composite",
            "targets": [{"name": "core", "kind": "c"}],
            "host": "@core",
            "memory": [
                {"name": "dtcm", "bytes": 20000, "kind": "sram"},
                {"name": "sram", "bytes": 60000, "kind": "sram"},
            ],
            "executor": {"kind": "aot", "unpacked-api": True, "interface-api": "c"},
            "runtime": "crt",
        }
    )
    executable = tt.build(model, target)
    expected = tt.build(model, "onnxruntime").run({"input": x[:1]})
    check_equal(executable.run({"input": x[:1]}), expected, 1e-4, 1e-4)
    (system,) = executable.report()["systems"]
    sizes = {row["memory"]: row["bytes"] for row in system["artifact"]["workspace"]}
    assert 0 < sizes["dtcm"] <= 20000
    assert 0 < sizes["sram"] <= 60000


def test_memory_that_is_too_small_is_refused_with_the_missing_bytes():
    model, _ = digits()
    target = {
        "kind": "c",
        "memory": [{"name": "sram", "bytes": 1000, "kind": "sram"}],
        "executor": "aot",
        "runtime": "crt",
    }
    with pytest.raises(
        tt.TvmTargetError,
        match=r"@. cannot be built: the memory of pool 'sram' of 1000 bytes is [0-9]+ bytes too small",
    ):
        tt.build(model, target)
    for kind in ("eeprom", "flash", "mram", "nvm", "rom"):
        store = {**target, "memory": [{"name": "store", "bytes": 100000, "kind": kind}]}
        with pytest.raises(BackendError, match="bytes more than the read-only memory"):
            tt.build(model, store)


def test_wrong_inputs_are_errors_of_the_run():
    executable = tt.build(two_layers(), PACKED)
    with pytest.raises((RunError, ValueError)):
        executable.run({"x": np.zeros((3, 5), "float32"), "y": np.zeros((2, 5), "float32")})


def test_saved_programs_run_again(tmp_path):
    model = two_layers()
    executable, given = tt.build(model, PACKED), inputs_of(model)
    executable.save(tmp_path / "program.tt")
    again = tt.load(tmp_path / "program.tt", trust=True).run(given)
    check_equal(again, executable.run(given), 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_light_models_are_right_in_c(name):
    model = light(name)
    executable = tt.build(model, PACKED)
    given = inputs_of(model)
    expected = tt.build(model, "onnxruntime").run(given)
    for output, array in executable.run(given).items():
        np.testing.assert_allclose(array, expected[output], rtol=1e-3, atol=1e-4)


def test_nodes_with_an_executor_of_their_own_are_called_as_functions():
    model, x = digits()
    board = "[pc=onnxruntime,board=[core=c](host=@core,executor=aot,runtime=crt),cpu=llvm](host=@cpu)"
    executable = tt.build(model, board, where={"op:Conv": "@board", "op:Gemm": "@board", "op:MaxPool": "@pc"})
    expected = tt.build(model, "onnxruntime").run({"input": x[:1]})
    check_equal(executable.run({"input": x[:1]}), expected, 1e-4, 1e-4)
    found = {(one["path"], one["executor"], one["runtime"]) for one in executable.report()["systems"]}
    assert found == {("board", "aot", "crt"), ("", "graph", "python")}


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["processes", "dask"])
def test_accelerators_of_machines_of_clusters_are_programs_in_c(runtime):
    model, x = digits()
    node = "[npu=[core=c](host=@core,executor=aot,runtime=crt),cpu=llvm](host=@cpu,executor=graph)"
    cluster = f"[m0={node},m1=[cpu=onnxruntime,h=llvm](host=@h)](host=@m0/cpu,runtime={runtime})"
    executable = tt.build(model, cluster, where={"op:Conv": "@m0/npu", "op:Gemm": "@m1/cpu"})
    expected = tt.build(model, "onnxruntime").run({"input": x[:1]})
    try:
        check_equal(executable.run({"input": x[:1]}), expected, 1e-4, 1e-4)
    finally:
        executable.close()
    found = {(one["path"], one["executor"]) for one in executable.report()["systems"]}
    assert {("m0/npu", "aot"), ("m0", "graph")} <= found


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("qemu-aarch64") is None, reason="needs qemu-aarch64 and aarch64-linux-gnu-gcc")
def test_boards_of_another_architecture_are_called_through_a_runner():
    model, x = digits()
    board = "[pc=onnxruntime,board=[core=c(mcpu=cortex-a72)](host=@core,executor=aot,runtime=crt),cpu=llvm](host=@cpu)"
    executable = tt.build(model, board, where={"op:Conv": "@board", "op:MaxPool": "@pc"})
    expected = tt.build(model, "onnxruntime").run({"input": x[:1]})
    check_equal(executable.run({"input": x[:1]}), expected, 1e-4, 1e-4)
    executable.close()


FOREIGN = {
    "aarch64": ("qemu-aarch64", "aarch64-linux-gnu-gcc", "mtriple=aarch64-linux-gnu"),
    "armhf": ("qemu-arm", "arm-linux-gnueabihf-gcc", "mtriple=armv7l-linux-gnueabihf,mattr=+neon"),
    "riscv64": ("qemu-riscv64", "riscv64-linux-gnu-gcc", "mtriple=riscv64-linux-gnu"),
    "cortex-m55": ("qemu-system-arm", "arm-none-eabi-gcc", "mcpu=cortex-m55"),
    "cortex-m4": ("qemu-system-arm", "arm-none-eabi-gcc", "mcpu=cortex-m4"),
}


def check_large_constants(target):
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45], "float32")
    w = np.concatenate([special, np.random.default_rng(0).standard_normal(300_000, "float32")])
    indices = np.arange(len(w) - 1, -1, -1)
    nodes = [helper.make_node("Gather", ["w", "indices"], ["h"]), helper.make_node("Mul", ["h", "x"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, w.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, w.shape)],
        [numpy_helper.from_array(one, name) for name, one in (("w", w), ("indices", indices))],
    )
    x = np.arange(len(w)).astype("float32")
    executable = tt.build(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), target)
    with np.errstate(invalid="ignore"):
        expected = w[::-1] * x
    np.testing.assert_array_equal(executable.run({"x": x})["y"], expected)
    executable.close() if hasattr(executable, "close") else None


@pytest.mark.parametrize("target", ["c", TYPED])
def test_large_constants_are_included_as_they_are(target):
    check_large_constants(target)


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["aarch64", "armhf", "riscv64"])
def test_large_constants_are_included_on_other_machines(machine):
    emulator, compiler, attributes = FOREIGN[machine]
    if shutil.which(emulator) is None or shutil.which(compiler) is None:
        pytest.skip(f"needs {emulator} and {compiler}")
    check_large_constants(f"llvm({attributes},executor=aot,runtime=crt(system-lib=true))")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["c", "llvm"])
@pytest.mark.parametrize("machine", FOREIGN)
def test_a_hundred_digits_are_equal_on_other_machines(machine, kind):
    emulator, compiler, attributes = FOREIGN[machine]
    if shutil.which(emulator) is None or shutil.which(compiler) is None:
        pytest.skip(f"needs {emulator} and {compiler}")
    if kind == "c" and "mtriple" in attributes:
        attributes = {"aarch64": "mcpu=cortex-a72", "armhf": "mcpu=cortex-a7", "riscv64": "mcpu=sifive-u74"}[machine]
    if kind == "llvm" and machine == "cortex-m4":
        pytest.skip("LLVM's soft-float calls are those of another library")
    model, x = digits()
    executable = tt.build(model, f"{kind}({attributes},executor=aot,runtime=crt(system-lib=true))")
    expected = tt.build(model, "onnxruntime")
    for row in x[:100]:
        given = {"input": row[np.newaxis]}
        actual, right = executable.run(given)["logits"], expected.run(given)["logits"]
        assert actual.argmax() == right.argmax()
        np.testing.assert_allclose(actual, right, rtol=1e-4, atol=1e-4)
    executable.close() if hasattr(executable, "close") else None
