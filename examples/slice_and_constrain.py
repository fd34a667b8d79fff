"""Two people constrain one program: its author outlines a function, an integrator builds it in a larger system.

    python examples/slice_and_constrain.py author features.irm
    python examples/slice_and_constrain.py integrator features.irm

The author knows one system on chip, and constrains a part of the model to any such system. The integrator, in another
process and with another target, adds a constraint. The author's constraints hold, and `explain` names both people's.
"""

import sys
from pathlib import Path

import numpy as np

import tvmtarget as tt
from tvmtarget.ir.rewrite import outline

MODEL = Path(__file__).with_name("digits.onnx")
CHIP = "[npu=onnxruntime,cpu=numpy](host=@cpu,executor=graph)"
RACK = f"[cpu=numpy,node0=[soc={CHIP},cpu=numpy](host=@cpu)](host=@cpu)"


def author(path):
    """Outline the convolutions, constrain them to any system like the chip, and save the module."""
    module = tt.IRModule.from_onnx(MODEL).constrain("pool", "numpy")
    chip = tt.Constraint.of(tt.Target.parse(CHIP))
    module = outline(module, ["conv2", "relu2", "pool", "conv3"], "features", chip)
    module.with_attrs(author="vision team").save(path)
    print(tt.decompose(module, CHIP).summary())


def integrator(path):
    """Build the author's module in a rack with one more constraint, and explain the site of an operation."""
    module = tt.IRModule.load(path).constrain("relu2", "!@node0/soc/cpu", function="features")
    plan = tt.decompose(module, RACK)
    print(plan.summary(), plan.explain("relu2"), sep="\n\n")
    image = np.random.default_rng(0).normal(size=(1, 1, 8, 8)).astype("float32")
    assert np.allclose(tt.build(plan)(image), tt.build(tt.IRModule.from_onnx(MODEL), "numpy")(image), atol=1e-4)
    contradict(module)


def contradict(module):
    """Add a constraint that cannot hold: the error names the constraints that exclude each other, and no others."""
    try:
        tt.decompose(module, RACK, where={"pool": "!@node0/soc/cpu"})
    except tt.TvmTargetError as error:
        print(f"\n{error}")


if __name__ == "__main__":
    roles = {"author": author, "integrator": integrator}
    if len(sys.argv) != 3 or sys.argv[1] not in roles:
        raise SystemExit(__doc__)
    roles[sys.argv[1]](Path(sys.argv[2]))
