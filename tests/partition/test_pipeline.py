"""The stages of the pipeline, on programs in files: what each makes of its input, as text.

A file of `tests/partition/pipeline/` has a section for each stage, which begins with a line `=== NAME`. `input` is a
module, `target` a tree, and `options` keyword arguments as JSON; the others are what the stages make. They are written
anew by `pytest tests/partition/test_pipeline.py --rewrite-goldens`.
"""

import json
from pathlib import Path

import pytest

import tvmtarget as tt
from tvmtarget.ir.text.printer import print_function
from tvmtarget.partition.preparation import prepare
from tvmtarget.partition.stages import STAGES

FOLDER = Path(__file__).parent / "pipeline"
GIVEN = ("input", "target", "options")


def sections(text):
    found = {}
    for part in text.split("=== ")[1:]:
        name, _, body = part.partition("\n")
        found[name.strip()] = body.strip("\n")
    return found


def printed(plan):
    """Return the text that each stage makes, by its name."""
    program = plan.program
    nodes = [
        f"{'  ' * depth}@{node.site.path or '.'}: {', '.join(program.body[index].source for index in node.calls)}"
        for depth, node in levels(plan.root)
    ]
    decisions = [
        f"{one.stage}: {', '.join(program.body[index].source for index in one.ops)} @{one.site or '.'}: {one}"
        for one in plan.decisions
    ]
    return {
        "normalise": print_function(program.function),
        "judge": "\n".join(verdicts(plan)),
        "partition": "\n".join(nodes),
        "decisions": "\n".join(decisions) or "none",
        "outline": str(plan.module),
        "predict": "\n".join(plan.prediction.lines()) if plan.prediction else "no costs",
    }


def levels(node, depth=0):
    yield depth, node
    for inner in (*node.parts, *node.bodies):
        yield from levels(inner, depth + 1)


def verdicts(plan):
    for index, call in enumerate(plan.program.body):
        answers = (
            f"@{leaf.path or '.'} {plan.feasibility.unsupported_reason(index, leaf) or 'yes'}"
            for leaf in plan.feasibility.leaves
        )
        yield f"{call.source}: {'; '.join(answers)}"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_each_stage_makes_the_text_in_the_file(path, request):
    found = sections(path.read_text(encoding="utf-8"))
    options = json.loads(found.get("options") or "{}")
    plan = tt.decompose(tt.IRModule.parse(found["input"]), found["target"], **options)
    made = {name: found[name] for name in GIVEN if name in found} | printed(plan)
    text = "\n".join(f"=== {name}\n{body}" for name, body in made.items()) + "\n"
    if request.config.getoption("--rewrite-goldens"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


def test_the_stages_are_those_that_the_docstring_names():
    assert [stage.__name__ for stage in STAGES] == ["partition", "outline_subgraphs", "predict_times"]
    assert all(stage.__doc__ for stage in (*STAGES, prepare))
