"""Run part of a model on a board: a program of this machine calls a C program, here and on an emulated board.

    python examples/board.py [here|aarch64]

The board is a node with its own executor and runtime. Its functions become one program in C with a static memory plan,
which the program around it calls as one function: as a shared library of this machine, or under QEMU.
"""

import sys
from pathlib import Path

import numpy as np

import tvmtarget as tt

MODEL = Path(__file__).with_name("digits.onnx")

CORES = {
    "here": "core=c](host=@core,executor=aot,runtime=crt)",
    "aarch64": "core=llvm(mtriple=aarch64-linux-gnu)](host=@core,executor=aot,runtime=crt(system-lib=true))",
}


def main(board="here"):
    """Build for this machine with a board, run, and compare with the model on this machine alone."""
    module = tt.specialize(tt.IRModule.from_onnx(MODEL), {"batch": 1})  # a memory plan needs sizes
    where = {"*": "@board/core", "op:Gemm": "@cpu"}
    exe = tt.build(module, f"[board=[{CORES[board]},cpu=numpy](host=@cpu)", where=where)
    for system in exe.report()["systems"]:
        print(f"@{system['path'] or '.'}: {system['executor']} on {system['runtime']}, calls {system['leaves']}")
    image = np.random.default_rng(0).normal(size=(1, 1, 8, 8)).astype("float32")
    np.testing.assert_allclose(exe(image), tt.build(module, "numpy")(image), rtol=1e-3, atol=1e-4)
    exe.close()
    print("its results are those of the model on this machine")


if __name__ == "__main__":
    main(*sys.argv[1:])
