"""Run ONNX's node tests by OpenVINO, each in a process of its own, and print what its operator support leaves out.

Run as `python -m tests.tools.derive_openvino [--symbolic] [--supported]` with the package `openvino` installed. A line
per case that raises, is wrong, hangs or kills the process; then a line per operator with the cases that fail and pass.
`support/openvino_rules.py` is written from it by hand, with the reason of each row. With `--supported`, each
case is built and run as users do, and must be refused or right.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "backends"))

from conformance import Case, Outcome, differences, is_random, node_cases, run_case, symbolic
from onnx.shape_inference import infer_shapes

from tvmtarget.backends.openvino.backend import BACKEND
from tvmtarget.backends.protocol import CompileRequest
from tvmtarget.target.tree import Target

SECONDS = 60


def outcome(case: Case) -> Outcome:
    """Compile and run a case in this process, supported or not."""
    try:
        names = [value.name for value in case.model.graph.output]
        model = infer_shapes(case.model).SerializeToString()
        results = BACKEND.compile(CompileRequest("main", model, "", Target("openvino").resolve())).run(case.inputs)
        wrong = differences(dict(zip(names, results, strict=True)), case)
    except Exception as error:
        return Outcome(case.name, "failed", f"raises {type(error).__name__}: {error}"[:300].replace("\n", " "))
    return Outcome(case.name, "failed", "; ".join(wrong)) if wrong else Outcome(case.name, "passed")


def apart(case: Case, *, only_supported: bool) -> Outcome:
    """Compile and run a case in a fork, which may hang or be killed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        with open(write, "wb") as stream:
            pickle.dump(run_case(case, "openvino") if only_supported else outcome(case), stream)
        os._exit(0)
    os.close(write)
    with open(read, "rb") as stream:
        data = stream.read()
    _, status = os.waitpid(child, 0)
    if data and status == 0:
        return pickle.loads(data)
    return Outcome(
        case.name, "failed", f"ends the process: {signal.Signals(status & 127).name if status & 127 else status}"
    )


def main() -> None:
    """Print the outcomes."""
    import openvino  # noqa: F401 - before the forks; a Core is made in each of them

    cases = [symbolic(case) if "--symbolic" in sys.argv else case for case in node_cases() if not is_random(case)]
    by_operator: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for case in cases:
        found = apart(case, only_supported="--supported" in sys.argv)
        operators = sorted({node.op_type for node in case.model.graph.node})
        by_operator["+".join(operators)][found.status].append(case.name)
        if found.status == "failed":
            print(f"{'+'.join(operators)} {found.case}: {found.reason}", flush=True)
    for name, statuses in sorted(by_operator.items()):
        counts = ", ".join(f"{len(names)} {status}" for status, names in sorted(statuses.items()))
        print(f"== {name}: {counts}")


if __name__ == "__main__":
    main()
