"""`tvmtarget show` and `diff`, and the options of all commands that edit the target."""

import json

import pytest

from tvmtarget import Target
from tvmtarget.cli.completion import complete_target
from tvmtarget.tags.registry import default_registry


def shown(cli, *words):
    code, out, err = cli("show", *words, "--json")
    assert (code, err) == (0, "")
    return Target.from_json(json.loads(out))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["llvm", "--set", "num-cores=4", "--set", "+avx2"], "llvm(num-cores=4,+avx2)"),
        (["[cpu=llvm]", "--set", "cpu/-avx2", "--set", "cpu/libs=mkl+cblas"], "[cpu=llvm(-avx2,libs=mkl+cblas)]"),
        (["llvm(num-cores=4,opt-level=2)", "--unset", "num-cores"], "llvm(opt-level=2)"),
        (["llvm", "--executor", "aot", "--runtime", "crt"], "llvm(executor=aot,runtime=crt)"),
        (["c", "--with", "config/vm"], "c(executor=vm,runtime=python)"),
        (["[cpu=llvm]", "--with", "[cpu=composite(model=x)]"], "[cpu=llvm(model=x)]"),
        (["[cpu=llvm]", "--with", "[cpu=llvm(model=x),gpu=cuda]"], "[cpu=llvm(model=x),gpu=cuda]"),
        # options of tvmc, as its parser generates them: --target-KIND-ATTRIBUTE and --executor-KIND-OPTION
        (["llvm", "--target-llvm-mcpu=haswell"], "llvm(mcpu=haswell)"),
        (["[cuda,a=llvm,b=llvm]", "--target-llvm-num-cores", "2"], "[cuda,a=llvm(num-cores=2),b=llvm(num-cores=2)]"),
        (["[cmsis-nn,c]", "--target-cmsis-nn-mcpu=cortex-m55"], "[cmsis-nn(mcpu=cortex-m55),c]"),
        (
            ["c", "--executor", "aot", "--executor-aot-unpacked-api=1", "--runtime", "crt", "--runtime-crt-system-lib"],
            "c(executor=aot(unpacked-api=true),runtime=crt(system-lib=true))",
        ),
        (["llvm", "--target-llvm-mattr=+avx2+fma"], "llvm(+avx2,+fma)"),
        (["llvm", "--target-llvm-mattr=+avx2,-fma"], "llvm(+avx2,-fma)"),
        (["llvm", "--target-llvm-mattr", "+avx2, +fma"], "llvm(+avx2,+fma)"),
        (["llvm", "--target-llvm-cl-opt=-a:string=b+c,-d"], '{"kind":"llvm","cl-opt":["-a:string=b+c","-d"]}'),
        (["llvm", "--target-llvm-libs=cblas,mlas"], "llvm(libs=cblas+mlas)"),
        (["[cpu=llvm]", "--set", "cpu/mattr=+avx2,-fma"], "[cpu=llvm(+avx2,-fma)]"),
        (["opencl, llvm", "--target-llvm-mcpu=haswell"], "opencl(host=llvm(mcpu=haswell))"),
        (
            ["cmsis-nn, c", "--target-c-mcpu=cortex-m55", "--target-cmsis-nn-debug_last_error=1"],
            "[cmsis-nn(debug_last_error=true),c(mcpu=cortex-m55)]",
        ),
        (
            ["mrvl, llvm", "--target-mrvl-mattr=wb_pin_ocm=1,quantize=fp16", "--target-mrvl-num_tiles=2"],
            '[mrvl(mattr="wb_pin_ocm=1,quantize=fp16",num_tiles=2),llvm]',
        ),
        (["ethos-u, c", "--target-ethos-u-enable_cascader=1"], "[ethos-u(enable_cascader=true),c]"),
        (["vitis-ai, llvm", "--target-vitis-ai-dpu=DPUCZDX8G-zcu104"], "[vitis-ai(dpu=DPUCZDX8G-zcu104),llvm]"),
        (["ethos-n -variant=n78, llvm", "--target-ethos-n-tops=4"], "[ethos-n(variant=n78,tops=4),llvm]"),
    ],
)
def test_options_edit_the_target(cli, words, expected):
    if "runtime=crt)" in expected:
        words = [*words, "--set", "runtime/system-lib=true"]
        expected = expected.replace("runtime=crt)", "runtime=crt(system-lib=true))")
    assert shown(cli, *words) == Target.parse(expected)
    assert shown(cli, *words[1:], words[0]) == Target.parse(expected)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["llvm", "--set", "num-cores"], "--set 'num-cores' is not PATH=VALUE, such as cpu/num-cores=8, or a feature"),
        (["llvm", "--set", "=4"], "--set '=4' is not PATH=VALUE"),
        (["llvm", "--set", "num-core=4"], "no attribute 'num-core' in kind 'llvm'; did you mean 'num-cores'?"),
        (["llvm", "--unset", "mcpu"], "'mcpu' is not set"),
        (["llvm", "--with", "config/vn"], "unknown tag 'config/vn'"),
        (["llvm", "--target-cuda-arch=sm_80"], "no such option --target-cuda-arch; there are: --target-llvm-..."),
        (["llvm", "--executor-aot-unpacked-api=1"], "--executor-aot-unpacked-api; it needs --executor aot"),
        (["llvm", "--target-llvm-mcpux=1"], "no attribute 'mcpux' in kind 'llvm'; did you mean 'mcpu'?"),
        (["llvm", "--target-llvm-num-cores="], "attribute 'num-cores' of kind 'llvm' is a whole number, not ''"),
        (["llvm", "--json", "--text"], "--json and --text are 2 forms; choose one"),
        (["llvm", "--toml", "--origin"], "--toml has no place for --origin; use --json for both"),
        (["llvm", "--text", "--codegen"], "--text has no place for --codegen"),
        (["llvm", "--resolve"], "no such option --resolve; did you mean '--resolved'?"),
        (["llvm", "-x"], "no such option -x; known: --codegen, --config, --executor, "),
        (["llvm", "--executor", ""], "unknown executor kind ''; known: aot, graph, vm"),
        (["llvm", "surplus"], "unexpected argument 'surplus'"),
        (["--desired-layout", "NHWC", "llvm"], "--desired-layout is an option of tvmc that is not supported"),
        (["llvm", "--pass-config", "a=1"], "--pass-config is an option of tvmc that is not supported; passes of TVM"),
        (
            ["llvm", "--opt-level=3"],
            "--opt-level is an option of tvmc that is not supported; write --target-llvm-opt-level=3",
        ),
        (
            ["cuda", "--device", "cuda"],
            "--device is an option of tvmc that is not supported; the target names the device",
        ),
        (
            ["llvm mcpu=skylake num-cores=4"],
            "write attributes in parentheses: 'llvm(mcpu=skylake,num-cores=4)', at column",
        ),
        (["llvm(mcpu=skylake) num-cores=4"], "expected the end of the text before 'n', at column 20 of"),
        (["jetson"], "unknown kind 'jetson'; did you mean the tag 'nvidia/jetson-agx-orin-32gb' or "),
        (["cuda", "--target-host", "llvm"], "write it after the device: --target 'cuda, llvm'"),
        (["llvm, llvm"], "'llvm' is given twice in a list; children of one kind have names: [a=llvm,b=llvm]"),
        (["llvm", "--target-opencl-max_num_threads=404"], "no such option --target-opencl-max_num_threads"),
        (["c", "--executor=aot", "--executor-graph-link-params=1"], "--executor graph, and the executor is 'aot'"),
        (["llvm", "--target-llvm-mcpu", "--json"], "--target-llvm-mcpu needs a value, as in --target-llvm-mcpu=VALUE"),
        (["ethos-n -tops=3, llvm"], "'tops' of kind 'ethos-n' is 1 or 2 or 4 or 8, not '3'"),
        (["mrvl -mcpu=cn9, llvm"], "attribute 'mcpu' of kind 'mrvl' is cn10ka or cnf10kb, not 'cn9'"),
        (["llvm", "--executor", "atom"], "unknown executor kind 'atom'; known: aot, graph, vm"),
    ],
)
def test_an_impossible_edit_is_one_line(cli, words, message):
    code, out, err = cli("show", *words)
    misuses = ("no such option", "unexpected argument", "not supported", "needs a value", "is not PATH", "use --json")
    is_misuse = "are 2 forms" in err or any(part in err for part in misuses)
    assert (code, out) == (2 if is_misuse else 1, "")
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--executor", "graph", "--executor", "vm"], "--executor is both 'graph' and 'vm'; give one of them"),
        (["--set", "num-cores=2", "--set", "num-cores=4"], "--set 'num-cores' is both '2' and '4'; give one value"),
        (["--set", "+avx2", "--set", "-avx2"], "--set 'avx2' is both '+avx2' and '-avx2'; give one value"),
        (["--set", "num-cores=2", "--unset", "num-cores"], "'num-cores' is both in --set and in --unset"),
        (
            ["--target-llvm-mcpu=skylake", "--target-llvm-mcpu=haswell"],
            "--target-llvm-mcpu has two values, in --target-llvm-mcpu=skylake and --target-llvm-mcpu=haswell; "
            "give one of them",
        ),
    ],
)
def test_a_value_that_another_one_would_replace_is_rejected(cli, words, problem):
    assert cli("show", "llvm", *words) == (2, "", f"error: {problem}\n")
    same = words[: len(words) // 2]
    assert cli("show", "llvm", *same, *same)[0] == 0


def test_a_target_is_read_from_a_file(cli, tmp_path):
    path = tmp_path / "board.json"
    path.write_text('{"kind": "cuda", "arch": "sm_53", "host": "llvm"}', encoding="utf-8")
    assert shown(cli, str(path)) == Target.parse("cuda(arch=sm_53,host=llvm)")
    path.write_bytes(b"\xff")
    assert cli("show", str(path)) == (1, "", f"error: target file {str(path)!r} is not UTF-8 text: byte 0 is 0xff\n")


def test_a_target_is_printed_in_the_requested_form(cli):
    assert "mattr=+neon+sve, mcpu" in cli("show", "llvm(mcpu=generic,mattr=+sve+neon,mtriple=aarch64-linux-gnu)")[1]
    tree = Target.parse("nvidia/jetson-nano")
    assert Target.parse(cli("show", "nvidia/jetson-nano", "--text")[1]) == tree
    assert Target.from_toml(cli("show", "nvidia/jetson-nano", "--toml")[1]) == tree
    assert shown(cli, "nvidia/jetson-nano", "--resolved").executor.kind == "graph"


def test_origins_and_groups_are_printed_as_text_and_json(cli):
    words = ["[a=[gpu=nvidia/a100(count=2),cpu=llvm](executor=vm),b=[gpu=nvidia/a100,cpu=llvm]](host=@b/cpu)"]
    _, out, _ = cli("show", *words, "--origin", "--codegen")
    assert "a/gpu/arch" in out
    assert "tag nvidia/a100 in nvidia.toml" in out
    data = json.loads(cli("show", *words, "--origin", "--codegen", "--json")[1])
    assert data["origin"]["a/gpu/arch"] == {"layer": "tag", "detail": "nvidia/a100 in nvidia.toml"}
    assert [(group["system"], group["leaves"]) for group in data["codegen"]] == [
        ("a", ["a/gpu"]),
        ("a", ["a/cpu"]),
        ("", ["b/gpu"]),
        ("", ["b/cpu"]),
    ]
    assert data["codegen"][0]["codegen_key"] == data["codegen"][2]["codegen_key"]


def test_a_difference_is_printed_and_is_exit_code_1(cli):
    assert cli("diff", "arm/rasp4b", "arm/rasp4b64") == (
        1,
        "~ cpu/mtriple: armv8l-linux-gnueabihf -> aarch64-linux-gnu\n",
        "",
    )
    assert cli("diff", "llvm", "llvm(executor=graph)", "--json") == (0, "[]\n", "")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("nvidia/jetson-nan", ["nvidia/jetson-nano"]),
        ("onnxr", ["onnxruntime"]),
        ("nativ", ["native"]),
        ("[gpu=cuda(arc", ["[gpu=cuda(arch="]),
        ("[gpu=cuda(arch=sm_80),cpu=llvm(num-c", ["[gpu=cuda(arch=sm_80),cpu=llvm(num-cores="]),
        ("[gpu=nvidia/dgx-a", ["[gpu=nvidia/dgx-a100"]),
        ("zzz", []),
    ],
)
def test_a_shell_completes_targets(typed, expected):
    found = complete_target(typed)
    assert set(expected) <= set(found)
    assert all(word.startswith(typed) for word in found)
    assert bool(found) == bool(expected)


@pytest.mark.parametrize("name", ["board.json", "board.toml", "targets/board.json"])
def test_a_target_can_be_a_file(cli, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "targets").mkdir()
    board = Target.parse("[gpu=cuda(arch=sm_53),cpu=llvm](host=@cpu)")
    (tmp_path / name).write_text(board.to_toml() if name.endswith("toml") else json.dumps(board.to_json()))
    assert shown(cli, name) == shown(cli, str(tmp_path / name)) == board
    assert shown(cli, "[gpu=cuda,cpu=llvm]", "--with", name) == Target.parse("[gpu=cuda,cpu=llvm]").merge(board)


def test_a_tag_wins_over_a_file_of_the_same_name(cli, tmp_path, monkeypatch, request):
    request.addfinalizer(default_registry.cache_clear)
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "board.json").write_text('{"kind": "cuda"}')
    monkeypatch.chdir(tmp_path)
    assert shown(cli, "acme/board.json").kind == "cuda"
    assert cli("tags", "add", "acme/board.json", "--target", "llvm")[0] == 0
    default_registry.cache_clear()
    assert shown(cli, "acme/board.json").kind == "llvm"
    assert shown(cli, "./acme/board.json").kind == "cuda"


def test_a_text_wins_over_a_file_of_the_same_name(cli, tmp_path, monkeypatch):
    name = "llvm -model=board.json"
    (tmp_path / name).write_text('{"kind": "cuda"}')
    monkeypatch.chdir(tmp_path)
    assert shown(cli, name) == Target.parse(name)


def test_a_file_that_is_missing_or_wrong_is_named(cli, tmp_path):
    code, _, err = cli("show", tmp_path / "absent.json")
    assert code == 1
    assert "absent.json" in err
    (tmp_path / "wrong.json").write_text('{"kind": "lvm", "arch": 1')
    code, _, err = cli("show", tmp_path / "wrong.json")
    assert code == 1
    assert "in target file" in err


def test_a_file_with_another_ending_is_no_target(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "board.yaml").write_text("llvm")
    (tmp_path / "lvm").mkdir()
    code, _, error = cli("show", "board.yaml")
    assert (code, error.count("\n")) == (1, 1)
    assert "there is a file of this name, but files of targets end in .json or .toml" in error
    assert "file" not in cli("show", "lvm")[2]


@pytest.mark.parametrize("command", ["show", "compile", "run", "tune", "explain"])
def test_the_help_says_that_a_target_can_be_a_file_and_what_wins(cli, command):
    out = " ".join(cli(command, "--help")[1].replace("│", " ").split())
    assert "the path of a .json or .toml file, unless that is a tag or a text too" in out


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("jetson-nano", "unknown kind 'jetson-nano'; did you mean the tag 'nvidia/jetson-nano'?"),
        ("Jetson_Nano(cpu/num-cores=2)", "unknown kind 'Jetson_Nano'; did you mean the tag 'nvidia/jetson-nano'?"),
        ("[gpu=jetson-nanoo]", "unknown kind 'jetson-nanoo'; did you mean the tag 'nvidia/jetson-nano'? (at 'gpu')"),
        ("c5", "unknown kind 'c5'; did you mean the tag 'aws/c5'?"),
        (
            "[a=native]",
            "unknown kind 'native'; this machine is `native` alone in commands, Target.detect() in Python (at 'a')",
        ),
        ("lvm", "unknown kind 'lvm'; did you mean 'llvm'?"),
        ("foo", "unknown kind 'foo'; `tvmtarget kinds` lists them"),
        (
            "stm32",
            "unknown kind 'stm32'; did you mean the tag 'stm32/f0xx' or 'stm32/f1xx' or 'stm32/f2xx'? "
            "`tvmtarget tags stm32` lists all",
        ),
        ("esp", "unknown kind 'esp'; `tvmtarget tags esp` lists tags with it"),
    ],
)
def test_an_unknown_name_that_is_a_tag_without_its_vendor_gets_the_tag(cli, text, problem):
    assert cli("show", text)[::2] == (1, f"error: {problem}\n")
