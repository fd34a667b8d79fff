"""Partition one model over a cluster of two machines, each with its own system on chip: four levels, one rule.

    python examples/cluster.py [latency|throughput]

The root is a cluster, whose machines are processes here. A machine has a CPU and a chip. The chip is a composite with
its own executor, a CPU, and an accelerator with an external code generator (ONNX Runtime here).
"""

import sys
from pathlib import Path

import numpy as np

import tvmtarget as tt

MODEL = Path(__file__).with_name("digits.onnx")

CHIP = "[npu=onnxruntime,cpu=numpy](host=@cpu,executor=graph)"
MACHINE = f"[soc={CHIP},cpu=numpy](host=@cpu)"
CLUSTER = f"[n0={MACHINE},n1={MACHINE}](host=@n0/cpu,runtime=processes)"

COSTS = {
    "schema": "tvmtarget.cost/1",
    "unit": "us",
    "sites": {
        "onnxruntime": {"launch": 20, "flops": {"float32": 1e11}, "mem_bw": 2e10, "roofline": 0.5},
        "numpy": {"launch": 2, "flops": {"float32": 4e9}, "mem_bw": 1e10, "roofline": 0.5},
    },
    "links": [
        {"src": "n0/cpu", "dst": "n0/soc/cpu", "latency": 2, "bandwidth": 4e9},
        {"src": "n1/cpu", "dst": "n1/soc/cpu", "latency": 2, "bandwidth": 4e9},
        {"src": "n0/cpu", "dst": "n1/cpu", "latency": 40, "bandwidth": 1e9},
    ],
    "symbolic_hints": {"batch": 64},
}


def partition(objective):
    """Place by cost, with the last operation on a CPU and the pooling off the accelerators."""
    where = {"fc2": "numpy", "pool": "!onnxruntime"}
    return tt.decompose(tt.IRModule.from_onnx(MODEL), CLUSTER, COSTS, where=where, objective=objective)


def main(objective="throughput"):
    """Plan, print the decisions of each level, run on two processes, and compare with the unpartitioned model."""
    plan = partition(objective)
    print(plan.summary(), end="\n\n")
    print(plan.explain("conv2"), end="\n\n")
    for machine, program in plan.programs().items():
        print(f"the program of @{machine}: {', '.join(call.op for call in program.main.body)}")
    images = [np.random.default_rng(seed).normal(size=(64, 1, 8, 8)).astype("float32") for seed in range(8)]
    whole = tt.build(tt.IRModule.from_onnx(MODEL), "numpy")
    exe = tt.build(plan)
    for image, output in zip(images, exe.stream({"input": image} for image in images), strict=True):
        np.testing.assert_allclose(output["logits"], whole(image), rtol=1e-3, atol=1e-4)
    exe.close()
    print(f"\n{len(images)} batches ran, with the results of the unpartitioned model")


if __name__ == "__main__":
    main(*sys.argv[1:])
