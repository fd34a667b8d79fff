"""Programs for other machines: C functions that run under emulators, and what happens when they fail."""

import os
import time

import numpy as np
import pytest
from toolchains.machines import BOARDS, LINUX, command_or_skip, target_or_skip

import tvmtarget as tt
from tvmtarget.errors import BackendError, RunError
from tvmtarget.toolchains.programs import ProgramProcess, TensorFrame, build_program
from tvmtarget.toolchains.runners import Runner, find_runner

CODE = """
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
static const float scale[4] = {1, 2, 3, 4};
static int32_t calls = 40;
static float last[4];
int32_t entry(void *const *inputs, void *const *outputs) {
  const float *x = inputs[0];
  const int8_t *mode = inputs[1];
  float *y = outputs[0];
  if (*mode == 1) return 7;
  if (*mode == 2) *(volatile int *)BAD_ADDRESS = 1;
  for (int i = 0; i < 4; ++i) last[i] = y[i] = tanhf(x[i]) * scale[i];
  *(int32_t *)outputs[1] = ++calls;
  return 0;
}
"""
INPUTS = (TensorFrame("float32", (1, 4)), TensorFrame("int8", ()))
OUTPUTS = (TensorFrame("float32", (4,)), TensorFrame("int32", ()))
MACHINES = {"here": "llvm"} | LINUX | BOARDS


@pytest.fixture
def started():
    """Return a function that builds the code for a target and starts it; the processes end with the test."""
    processes = []

    def start(target, code=CODE, outputs=OUTPUTS):
        # Boards have no memory there; Linux reserves the first page.
        bad = "0xf0000000u" if target.kind == "c" else "8"
        program = build_program(
            target, {"model.c": code}, "entry", INPUTS, outputs, options=["-O2", f"-DBAD_ADDRESS={bad}"]
        )
        processes.append(ProgramProcess(program, find_runner(target), "@board"))
        return processes[-1]

    yield start
    for process in processes:
        process.close()


def machine(name):
    if name == "here":
        command_or_skip("gcc")
        return tt.Target("llvm")
    return target_or_skip(MACHINES[name])


def values(mode=0):
    return [np.array([[-1, 0, 0.5, 3]], "float32"), np.array(mode, "int8")]


@pytest.mark.parametrize("name", MACHINES)
def test_a_function_is_called_many_times_in_one_process(name, started):
    process = started(machine(name))
    for count in (41, 42, 43):
        y, calls = process.run(values())
        np.testing.assert_allclose(y, np.tanh(values()[0][0]) * [1, 2, 3, 4], rtol=1e-6)
        assert calls == count


@pytest.mark.parametrize("name", MACHINES)
def test_the_number_of_an_error_is_reported_and_the_process_stays(name, started):
    process = started(machine(name))
    process.run(values())
    with pytest.raises(RunError, match="@board returned error 7"):
        process.run(values(mode=1))
    assert process.run(values())[1] == 42


@pytest.mark.parametrize("name", MACHINES)
def test_a_crash_is_an_error_with_what_the_program_printed_and_the_next_run_starts_again(name, started):
    process = started(machine(name))
    process.run(values())
    with pytest.raises(RunError) as error:
        process.run(values(mode=2))
    expected = "code 70; it printed: fault: CFSR 0x" if name in BOARDS else "SIGSEGV"
    assert str(error.value).startswith("@board failed: it ")
    assert expected in str(error.value)
    assert process.run(values())[1] == 41


@pytest.mark.parametrize("name", ["here", "aarch64"])
def test_what_the_function_prints_does_not_reach_the_frames(name, started):
    code = CODE.replace("calls;", 'calls; printf("TTO1 hello\\n"); fflush(stdout);')
    process = started(machine(name), code)
    assert process.run(values())[1] == 41
    assert process.run(values())[1] == 42


def test_wrong_frames_are_errors(started):
    command_or_skip("gcc")
    code = CODE.replace("calls;", 'calls; write(3, "xxxxxxxx", 8);').replace(
        "#include <math.h>", "#include <math.h>\n#include <unistd.h>"
    )
    process = started(tt.Target("llvm"), code)
    with pytest.raises(RunError, match="@board failed: it wrote b'xxxx' instead of an answer"):
        process.run(values())


def test_inputs_of_another_type_or_number_are_errors(started):
    process = started(machine("here"))
    with pytest.raises(RunError, match=r"input 0 is float64\[1, 4\], not float32\[1, 4\]"):
        process.run([values()[0].astype("float64"), values()[1]])
    with pytest.raises(RunError, match="@board takes 2 inputs, not 1"):
        process.run(values()[:1])


def test_a_runner_that_cannot_be_started_is_an_error():
    program = build_program(machine("here"), {"model.c": CODE}, "entry", INPUTS, OUTPUTS, options=["-DBAD_ADDRESS=8"])
    with pytest.raises(RunError, match="cannot be started by 'no-such-emulator': No such file"):
        ProgramProcess(program, Runner(("no-such-emulator",), "test")).run(values())


def test_the_process_ends_when_nothing_refers_to_it(started):
    process = ProgramProcess(started(machine("here")).program, None)
    process.run(values())
    pid = process._process.pid
    del process
    deadline = time.monotonic() + 60
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{pid}")


def test_boards_that_are_not_known_are_refused():
    command_or_skip("arm-none-eabi-gcc")
    with pytest.raises(BackendError, match=r"no memory map is known for 'c\(mcpu=cortex-m23\)'"):
        build_program(tt.Target.parse("c(mcpu=cortex-m23)"), {"model.c": CODE}, "entry", INPUTS, OUTPUTS)
