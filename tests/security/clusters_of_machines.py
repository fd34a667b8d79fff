"""A small program on two machines, which tests of networks and artifacts share."""

import numpy as np
from models import small
from onnx import helper

import tvmtarget as tt

__all__ = ["TREE", "built", "model"]

_MACHINE = "[a=onnxruntime,b=numpy](host=@b)"
TREE = f"[n0={_MACHINE},n1={_MACHINE}]"


def model():
    nodes = [helper.make_node("Abs", ["x"], ["a"], name="one"), helper.make_node("Neg", ["a"], ["y"], name="two")]
    return small(*nodes, shape=(4,))


def built(target):
    """Return a program whose second operation is on the second machine, and inputs."""
    exe = tt.build(tt.IRModule.from_onnx(model()), target, where={"two": "@n1/a"})
    return exe, {"x": np.arange(4, dtype="float32")}
