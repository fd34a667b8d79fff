"""Golden files of blocks: a line `> input`, then lines of output; rewriting changes the outputs only."""

from pathlib import Path


def inputs(name):
    """List the inputs of a golden file below tests/."""
    lines = (Path(__file__).parents[1] / name).read_text(encoding="utf-8").splitlines()
    return [line[2:] for line in lines if line.startswith("> ")]


def answered(name, answer):
    """Return the text of a golden file with new outputs: the lines that `answer(input)` returns."""
    kept = []
    for line in (Path(__file__).parents[1] / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("> "):
            kept += [line, *answer(line[2:])]
        elif not line or line.startswith("#"):
            kept.append(line)
    return "\n".join(kept) + "\n"
