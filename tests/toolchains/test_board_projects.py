"""C projects on emulated boards: output, status, memory, and the peak of the stack."""

import pytest
from toolchains.machines import BOARDS, run_on_board, target_or_skip

HEADER = "#include <stdint.h>\nint32_t model_run(const float *input, float *output);\n"
MODEL = """
#include "model.h"
#include <math.h>
static const float weights[64] = {1, 2, 3, 4};
static volatile float state[32];
static int32_t count = 7;
static __attribute__((noinline)) float deep(const float *input) {
  volatile float scratch[512];
  int i;
  for (i = 0; i < 512; ++i) scratch[i] = input[i % 4];
  return scratch[511];
}
int32_t model_run(const float *input, float *output) {
  int i;
  for (i = 0; i < 4; ++i) state[i] = output[i] = tanhf(input[i]) * weights[i];
  output[0] += deep(input);
  return ++count;
}
"""
MAIN = """
#include "board.h"
#include "model.h"
int main(void) {
  float input[4] = {1, 2, 3, 4}, output[4];
  board_print_number(model_run(input, output));
  board_print(" ");
  board_print_number((long)(output[0] * 1000));
  board_print("\\n");
  return 5;
}
"""


@pytest.mark.parametrize("name", BOARDS)
def test_a_project_is_built_run_and_measured(name, tmp_path):
    target = target_or_skip(BOARDS[name])
    files = {"model.h": HEADER, "src/model.c": MODEL, "main.c": MAIN}
    done = run_on_board(target, files, tmp_path, options=["-std=c99", "-O2", "-Wall", "-Werror"])
    assert done.output == "8 4761\n"
    assert done.status == 5
    assert 2048 + 32 <= done.stack < 2600
    model = done.objects["src/model.c"]
    assert model[".rodata"] == 256
    assert (model[".data"], model[".bss"]) == (4, 128)
    assert 0 < model[".text"] < 1000
    assert all(done.sections[one] >= model[one] for one in model)
    smaller = run_on_board(
        target, {**files, "src/model.c": MODEL.replace("512", "256").replace("511", "255")}, tmp_path
    )
    assert done.stack - smaller.stack == 1024
