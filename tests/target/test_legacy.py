"""Targets that older versions of TVM wrote: historic spellings, settings of the build, quoting, alignments."""

import contextlib
import re
import warnings

import pytest
from blocks import answered
from hypothesis import given, settings
from hypothesis import strategies as st

from tvmtarget import Executor, Runtime, Target
from tvmtarget.errors import TargetError, TextError, TvmTargetError, TvmTargetWarning
from tvmtarget.target.tvm import command_line
from tvmtarget.target.tvm.quoting import DIALECTS, can_write, interpret, quote, split

GOLDEN = "target/legacy.golden"


def read(line):
    how, _, text = re.fullmatch(r"(?:([\w.]+)(\|) ?)?(.*)", line).groups(default="")
    if how == "tvm":
        return Target.from_tvm(text)
    return Target.from_cli(text, how) if how else Target.parse(text)


def answer(line):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            said = [str(read(line))]
        except TvmTargetError as error:
            said = [f"{type(error).__name__}: {problem}" for problem in str(error).splitlines()]
    return [f"  {line}" for line in (*said, *(f"({warning.message})" for warning in caught))]


def test_every_historic_text_keeps_its_meaning(golden):
    golden(GOLDEN, answered(GOLDEN, answer))


def test_a_historic_spelling_is_reported_at_the_line_of_the_users_code():
    with pytest.warns(TvmTargetWarning, match="historic spelling: 'system-lib'") as caught:
        Target.parse("[gpu=cuda,cpu=llvm(system-lib=true)]")
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.filterwarnings("error")
def test_values_that_tvm_adds_are_silently_left_out():
    target = Target.parse("llvm -keys=cpu -link-params=0 -model=unknown")
    assert target == Target("llvm")
    assert target.executor is None
    assert "model" not in target.attrs


@pytest.mark.filterwarnings("error")
def test_a_child_with_an_executor_in_our_own_form_is_a_sub_system():
    """Texts in the form of this library are never read as TVM's."""
    tree = Target("composite", targets=[Target("c", executor=Executor("aot"), runtime=Runtime("crt")), Target("cuda")])
    assert Target.parse(str(tree)) == Target.from_json(tree.to_json()) == tree
    assert tree.at("c").executor == Executor("aot")
    noted = Target("llvm", {"model": "unknown", "libs": ["mkldnn"]})
    assert Target.from_json(noted.to_json()).to_json() == noted.to_json()


@pytest.mark.filterwarnings("ignore::tvmtarget.errors.TvmTargetWarning")
def test_settings_of_the_build_go_to_the_root_of_an_override_too():
    rack = Target.parse("[gpu=cuda,cpu=llvm]").override({"cpu": "llvm -system-lib -num-cores=4"})
    assert rack.runtime == Runtime("cpp", {"system-lib": True})
    assert rack.at("cpu") == Target("llvm", {"num-cores": 4}, name="cpu")
    with pytest.raises(TargetError, match="the runtime is 'crt' by 'runtime'"):
        rack.override({"cpu": "llvm -runtime=c"})


@pytest.mark.filterwarnings("ignore::tvmtarget.errors.TvmTargetWarning")
def test_settings_of_the_build_have_the_origin_of_the_text():
    text = "c -executor=aot -mcpu=cortex-m55"
    assert str(Target.parse(text).origin("executor")) == f"text {text!r}"


# What the creators of TVM wrote (python/tvm/target/target.py at v0.8.0)

MODELS = {
    "llvm -device=arm_cpu": """
        -model=snapdragon835 -mtriple=arm64-linux-android -mattr=+neon
        -model=kirin970 -mtriple=arm64-linux-android -mattr=+neon
        -model=bcm2837 -mtriple=armv7l-linux-gnueabihf -mattr=+neon
        -model=bcm2711 -mtriple=armv8l-linux-gnueabihf -mattr=+neon -mcpu=cortex-a72
        -model=rk3399 -mtriple=aarch64-linux-gnu -mattr=+neon
        -model=pynq -mtriple=armv7a-linux-eabi -mattr=+neon
        -model=beagleai -mtriple=armv7a-linux-gnueabihf -mattr=+neon,+vfp4,+thumb2 -mcpu=cortex-a15
        -model=stm32mp1 -mtriple=armv7a-linux-gnueabihf -mattr=+neon,+vfp4,+thumb2 -mcpu=cortex-a7
        -model=thunderx -mtriple=aarch64-linux-gnu -mattr=+neon,+crc,+lse -mcpu=thunderxt88
        -model=sifive-e31 -mtriple=riscv32-unknown-linux-gnu -mcpu=sifive-e31 -mabi=ilp32
        -model=sifive-e76 -mtriple=riscv32-unknown-linux-gnu -mcpu=sifive-e76 -mabi=ilp32
        -model=sifive-u54 -mtriple=riscv64-unknown-linux-gnu -mcpu=sifive-u54 -mabi=lp64d
        -model=sifive-u74 -mtriple=riscv64-unknown-linux-gnu -mcpu=sifive-u74 -mabi=lp64d
    """,
    "c -runtime=c --system-lib": """
        -model=host
        -mcpu=cortex-m3 -model=sam3x8e
        -mcpu=cortex-m33 -model=mps2_an521
        -mcpu=cortex-m4 -model=nrf52840
        -mcpu=cortex-m7 -march=armv7e-m -model=stm32f746xx
        -mcpu=cortex-r5 -model=zynq_mp_r5
    """,
    "cuda": "-model=1080ti",
    "rocm": "-model=unknown",
    "opencl": "-device=bifrost -model=unknown",
    "hexagon": "-mtriple=hexagon -mcpu=hexagonv66 -mattr=+hvxv66,+hvx-length128b --link-params=False",
}


@pytest.mark.parametrize(
    "text", [f"{head} {line.strip()}" for head, lines in MODELS.items() for line in lines.strip().splitlines()]
)
@pytest.mark.filterwarnings("ignore::tvmtarget.errors.TvmTargetWarning")
def test_targets_of_tvms_creators_are_read_equally_by_every_reader(text):
    target = Target.parse(text)
    assert target == Target.from_cli(text, "v0.9") == Target.from_cli(text, "v0.10") == Target.from_tvm(text)
    assert target.kind == text.split()[0]
    words = dict(word.lstrip("-").split("=") for word in text.split() if "=" in word)
    assert {"mcpu", "mtriple", "device", "mabi", "march"} & words.keys() <= target.attrs.keys()
    assert target.runtime == (Runtime("crt", {"system-lib": True}) if target.kind == "c" else None)


# Alignments, which TVM read from two places


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("c(constants-byte-alignment=16,executor=aot(constant-byte-alignment=16))", None),
        ("c(constants-byte-alignment=16,executor=aot)", None),
        ("c(executor=aot(constant-byte-alignment=16,workspace-byte-alignment=8))", None),
        (
            "c(constants-byte-alignment=16,executor=aot(constant-byte-alignment=8))",
            "'constants-byte-alignment' is 16 in 'c', and 'constant-byte-alignment' is 8 in its executor 'aot';"
            " make them equal, or leave one out",
        ),
        (
            "[cmsis-nn,c(workspace-byte-alignment=4)](executor=aot(workspace-byte-alignment=8))",
            "'workspace-byte-alignment' is 4 in 'c' (at 'c'), and 'workspace-byte-alignment' is 8 in its executor"
            " 'aot'; make them equal, or leave one out",
        ),
        (
            "[n=[gpu=cuda](host=c(workspace-byte-alignment=4),executor=aot(workspace-byte-alignment=8)),cpu=llvm]",
            "'workspace-byte-alignment' is 4 in 'c' (at 'n/host'), and 'workspace-byte-alignment' is 8 in its executor"
            " 'aot' (at 'n'); make them equal, or leave one out",
        ),
    ],
)
def test_alignments_of_code_and_of_the_memory_plan_agree(text, problem):
    target = Target.parse(text)
    if problem is None:
        assert target.resolve()
        return
    with pytest.raises(TargetError) as caught:
        target.resolve()
    assert caught.value.problems == (problem,)


# Quoting


def nested(value, levels):
    """Read a value of the v0.10 dialect as lists in lists."""
    value = interpret(value, "v0.10")
    return value if levels == 0 else [nested(item, levels - 1) for _, item in split(value, ",", "v0.10")]


@pytest.mark.parametrize(
    ("text", "levels", "value"),
    [
        (r"'\'string with single quote'", 0, "'string with single quote"),
        (r"'\'\\\'blah\\\'\''", 0, r"'\'blah\''"),
        ("-danny,-sammy=1,-kirby='string with space'", 1, ["-danny", "-sammy=1", "-kirby='string with space'"]),
        ("'fred, foo, bar',baz", 1, ["fred, foo, bar", "baz"]),
        (r"'fr\'ed','f\'oo',' bar,baz '", 1, ["fr'ed", "f'oo", "bar,baz"]),
        (
            "'foo0,foo1,foo2','bar0,bar1,bar2','baz0,baz1'",
            2,
            [["foo0", "foo1", "foo2"], ["bar0", "bar1", "bar2"], ["baz0", "baz1"]],
        ),
        (
            r"'\'foo0,foo1\',\'bar0,bar1\',\'baz0,baz1\'','\'zing0,zing1\',\'fred\''",
            3,
            [[["foo0", "foo1"], ["bar0", "bar1"], ["baz0", "baz1"]], [["zing0", "zing1"], ["fred"]]],
        ),
    ],
)
def test_quotes_nest_since_v0_10(text, levels, value):
    """The cases of TargetCreation.ProcessStrings (tests/cpp/target_test.cc at v0.12.0)."""
    assert nested(text, levels) == value
    ((_, word),) = split(text, " ", "v0.10")
    assert word == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("blah", "blah"),
        ("'blah'", "blah"),
        ("'bl'ah", "'bl'ah"),
        (r"'\'blah\''", "'blah'"),
        (r"'\'\\\'blah\\\'\''", r"'\'blah\''"),
        (r"'\'blah\' x'", "'blah' x"),
        (r"a'\'b'", r"a'\'b'"),
    ],
)
def test_one_level_of_quotes_is_removed(text, value):
    """The examples of TargetInternal::Interpret (src/target/target.cc at v0.12.0), and two more."""
    assert interpret(text, "v0.10") == value


def test_a_backslash_escapes_only_quotes_in_v0_9():
    assert split(r"a\'b 'c d' e\f", " ", "v0.9") == [(0, "a'b"), (5, "c d"), (11, r"e\f")]
    assert split(r"a\b", " ", "plain") == [(0, r"a\b")]


@pytest.mark.parametrize(
    ("line", "attribute", "value"),
    [
        ('llvm -mattr="+neon,+crc"', "mattr", ("+crc", "+neon")),
        ("llvm -mattr='+neon, +crc'", "mattr", ("+crc", "+neon")),
        ('llvm -mattr "+neon, +crc"', "mattr", ("+crc", "+neon")),
        ("llvm -mattr +neon,+crc", "mattr", ("+crc", "+neon")),
        ("cuda -libs cublas,cudnn -arch=sm_80", "libs", ("cublas", "cudnn")),
        ('llvm -model="a \\"b\\" \\\\c"', "model", 'a "b" \\c'),
        ("""llvm -model="it's" -num-cores=4""", "model", "it's"),
        ("llvm -model='a \"b\"'", "model", 'a "b"'),
        ("""llvm -cl-opt='-a="x,y",-b'""", "cl-opt", ("-a=x,y", "-b")),
        ("llvm -cl-opt='-unroll-threshold:uint=100,-unroll-count:uint=3'", "cl-opt", None),
    ],
)
def test_quotes_of_a_command_line_are_those_of_a_shell(line, attribute, value):
    expected = value or ("-unroll-threshold:uint=100", "-unroll-count:uint=3")
    assert Target.parse(line)[attribute] == expected


def test_a_double_quote_that_is_not_closed_is_rejected_with_its_place():
    with pytest.raises(TextError, match="a double quote is not closed, at column 13"):
        Target.parse('llvm -model="a b')


values = st.text(st.sampled_from("ab ,'\"\\=-"), max_size=8)


@given(values, st.sampled_from(" ,"), st.sampled_from(DIALECTS))
def test_quoted_values_are_read_back(value, separator, dialect):
    if can_write(value, dialect):
        ((_, word),) = split(quote(value, separator, dialect), separator, dialect)
        assert interpret(word, dialect) == value


words = values.filter(bool)
flats = st.fixed_dictionaries(
    {"kind": st.just("llvm")},
    optional={"model": words, "num-cores": st.integers(1, 64), "cl-opt": st.lists(words, max_size=3)},
)
hosted = st.builds(lambda flat, host: flat | {"host": host}, flats, flats)
systems = st.recursive(
    st.one_of(flats, hosted),
    lambda inner: st.builds(
        lambda one, host: {"kind": "composite", "devices": [{"kind": "c"}, one], "host": host}, inner, flats
    ),
    max_leaves=2,
)


def as_texts(value):
    """Convert values as a command line does: numbers become words, and devices targets."""
    if isinstance(value, dict):
        return {("targets" if key == "devices" else key): as_texts(inner) for key, inner in value.items()}
    return [as_texts(item) for item in value] if isinstance(value, list) else str(value)


@settings(max_examples=300, deadline=None)
@given(systems, st.sampled_from(["v0.9", "v0.10"]))
def test_a_command_line_that_is_written_is_read_back(flat, dialect):
    text = command_line.write(flat, dialect)
    if text is not None:
        assert command_line.read(text, dialect) == as_texts(flat)


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from("lvm -'\\=,{}\"c/@ x"), max_size=24), st.sampled_from(DIALECTS))
def test_any_command_line_is_read_or_rejected_by_an_error_of_this_library(text, dialect):
    for line in (text, f"llvm -model={text}", f"composite -devices={text}"):
        with contextlib.suppress(TvmTargetError):
            assert Target.from_cli(line, dialect).kind
