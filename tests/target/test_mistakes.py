"""More than a hundred mistakes and their exact messages: one line for each problem, and a caret for syntax."""

import json
import warnings

from blocks import answered, inputs

from tvmtarget import Constraint, Target
from tvmtarget.errors import TextError, TvmTargetError, TvmTargetWarning

GOLDEN = "target/mistakes.golden"


def run_mistake(mistake):
    """Run a line of the golden file."""
    if mistake.startswith("? "):
        text = mistake[2:]
        return (Constraint.from_json if text.startswith("{") else Constraint.parse)(json_or(text))
    if mistake.startswith("$ "):
        return Target.from_cli(mistake[2:])
    if mistake.startswith("% "):
        return Target.from_toml(mistake[2:].replace("; ", "\n"))
    for mark, act in ACTS.items():
        text, found, rest = mistake.partition(mark)
        if found:
            return act(Target.parse(text), rest)
    return Target.parse(mistake).resolve()


def json_or(text):
    return json.loads(text) if text.startswith("{") else text


def overridden(target, change):
    path, _, value = change.partition(" = ")
    return target.override({path: value})


ACTS = {" -> ": overridden, " :: ": Target.part, " << ": Target.merge}


def error_lines(mistake):
    """Return the lines of the error that a mistake raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TvmTargetWarning)
            run_mistake(mistake)
    except TextError as error:
        return [f"  {line}" for line in (error.caret() if error.text else str(error)).splitlines()]
    except TvmTargetError as error:
        return [f"  {line}" for line in error.problems]
    return ["  nothing is wrong"]


def test_every_mistake_has_its_exact_message(golden):
    golden(GOLDEN, answered(GOLDEN, error_lines))


def test_there_are_some_hundred_mistakes_and_each_is_one():
    assert len(inputs(GOLDEN)) == len(set(inputs(GOLDEN))) >= 100
    assert not [mistake for mistake in inputs(GOLDEN) if error_lines(mistake) == ["  nothing is wrong"]]
