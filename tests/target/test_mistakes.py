"""More than a hundred mistakes and exactly what is said of each: one line for each problem, and a caret for syntax."""

import json
import warnings

from blocks import answered, inputs

from tvmtarget import Constraint, Target
from tvmtarget.errors import TextError, TvmTargetError, TvmTargetWarning

GOLDEN = "target/mistakes.golden"


def tried(mistake):
    """Do what a line of the golden file asks for."""
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


def said(mistake):
    """Return the lines of the error that a mistake is told by."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TvmTargetWarning)
            tried(mistake)
    except TextError as error:
        return [f"  {line}" for line in (error.caret() if error.text else str(error)).splitlines()]
    except TvmTargetError as error:
        return [f"  {line}" for line in error.problems]
    return ["  nothing is wrong"]


def test_every_mistake_is_told_exactly_so(golden):
    golden(GOLDEN, answered(GOLDEN, said))


def test_there_are_some_hundred_mistakes_and_each_is_one():
    assert len(inputs(GOLDEN)) == len(set(inputs(GOLDEN))) >= 100
    assert not [mistake for mistake in inputs(GOLDEN) if said(mistake) == ["  nothing is wrong"]]
