"""The lines of a log: what they say, what they are known by, and what is wrong with others."""

import hashlib
import json

import pytest
from logs import HERE, MATMUL, ZNVER4, knobs, known, ran, trial

from tvmtarget.autotune.log.lines import parse_record
from tvmtarget.autotune.log.records import Alias, Foreign, Pin, Retraction, Workload
from tvmtarget.errors import LogError, TargetError
from tvmtarget.target.identity import canonical

PIN = Pin(level="kernel", workload=MATMUL.key, target=ZNVER4.digest, candidate=knobs(mb=1), why="by hand")
RECORDS = [*known(ZNVER4), trial(1), PIN, Retraction(of="d1:00", why="wrong"), Alias(kind="inst", old="A", new="B")]


def line(**changes):
    """Return the line of a trial with some fields changed, its digest made anew."""
    flat = json.loads(trial(1, requires={"kind": "llvm"}).text) | changes
    flat = {name: value for name, value in flat.items() if value is not ...}
    return signed(flat)


def signed(flat):
    flat.pop("d", None)
    return json.dumps(flat | {"d": f"d1:{hashlib.sha256(canonical(flat).encode()).hexdigest()[:32]}"})


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.type)
def test_a_record_is_read_back_from_its_line(record):
    read = parse_record(record.text)
    assert (read, type(read), read.text) == (record, type(record), record.text)


def test_spaces_and_the_order_of_fields_and_null_do_not_change_a_record():
    flat = json.loads(trial(1).text)
    shuffled = json.dumps({"src": None} | dict(reversed(flat.items())), indent=None, separators=(" , ", " : "))
    assert parse_record(shuffled) == trial(1)


def test_a_line_may_leave_out_what_goes_without_saying():
    """Its digest is that of what it says; the record is that of the line which says all."""
    whole = trial(1)
    flat = json.loads(whole.text)
    del flat["m"]["unit"], flat["m"]["kind"], flat["d"]
    for fields in (flat, flat | {"src": None}):
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        digest = f"d1:{hashlib.sha256(text.encode()).hexdigest()[:32]}"
        assert parse_record(json.dumps(fields | {"d": digest})) == whole
        with pytest.raises(LogError, match="it was changed or cut"):
            parse_record(json.dumps(fields | {"ts": 1, "d": digest}))


def test_p10_fields_that_nobody_knows_are_kept():
    measured = {**json.loads(trial(1).text)["m"], "energy_uj": 7}
    read = parse_record(line(colour="red", m=measured))
    assert json.loads(read.text)["colour"] == "red"
    assert json.loads(read.text)["m"]["energy_uj"] == 7


@pytest.mark.parametrize("text", ['{"t":"trial","v":2,"costs":[1.5]}', '{"t":"photo", "v":1}'])
def test_p10_a_line_of_a_newer_version_or_an_unknown_type_is_kept_byte_for_byte(text):
    assert parse_record(text) == Foreign(line=text)
    assert parse_record(text).text == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[]", "a record is an object, not []"),
        ("{}", "a record has a type in 't' and a version in 'v'"),
        ('{"t":"trial","v":true}', "a record has a type in 't' and a version in 'v'"),
        (line(level="krenel"), "'level' of a trial"),
        (line(workload=...), "a trial needs 'workload'"),
        (line(m={"status": "ok"}), "a measurement that is ok has at least one cost"),
        (line(m={"status": "fine", "costs": [1]}), "'status' of a measurement"),
        (line(m={"status": "ok", "costs": [-1]}), "'costs.0' of a measurement is at least 0, not -1"),
        (line(m={"status": "ok", "costs": [True]}), "'costs.0' of a measurement is a whole number, not True"),
        (line(m={"status": "ok", "costs": "12"}), "'costs' of a measurement is a list, not '12'"),
        (line(ts=2**60), "'ts' of a trial is at most"),
        (line(extra={"x": 2**60}), "whole numbers below 2**53"),
        (line(extra={"x": None}), "a record holds whole numbers, words, lists and objects, not None"),
        (line(extra={"ß": 1}), "names in a record are ASCII, not 'ß'"),
        (line().replace("[1000]", "[1.5]"), "'costs.0' of a measurement is a whole number, not 1.5"),
        (line().replace("[1000]", "[NaN]"), "'costs.0' of a measurement is a whole number, not nan"),
        (line().replace('"mb": 1', '"mb": 1.5'), "whole numbers, words, lists and objects, not 1.5; put it in a text"),
        (line().replace("1000", "1001"), "it was changed or cut"),
        ("[" * 100_000, "the JSON is nested too deeply"),
        (f'{{"t":"trial","v":1,"x":{"[" * 80}{"]" * 80}}}', "a trial needs 'level'"),
        (line(x=json.loads("[" * 80 + "]" * 80)), "a record is at most 64 levels deep"),
        (MATMUL.text.replace("matmul", "matmal"), "the key of this workload is"),
        (HERE.text.replace("tests", "toasts"), "the key of this environment is"),
        (known(ZNVER4)[0].text.replace("16", "17"), "the key of this target is"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_record_says_why(text, message):
    with pytest.raises(LogError, match=message.replace("*", r"\*").replace("[", r"\[")):
        parse_record(text)


def test_floats_are_refused_where_a_record_is_made():
    with pytest.raises(TargetError, match=r"not 0\.5; put it in a text"):
        _ = trial(0, candidate=knobs(rate=0.5)).text


def test_candidates_are_known_by_what_they_say():
    assert knobs(a=1, b=2).key == knobs(b=2, a=1).key != knobs(a=1).key


@pytest.mark.parametrize(
    ("measured", "rank"),
    [
        (ran(30, 10, 20), (3, 20)),
        (ran(30, 10), (3, 10)),
        (ran(500, baseline=1000), (2, 500_000_000)),
        (ran(500, baseline=1000, kind="confirm"), (0, 500_000_000)),
        (ran(1, kind="estimate"), (5, 1)),
        (ran(1, status="run_timeout"), None),
        (ran(status="infra_error"), None),
    ],
)
def test_measurements_rank_by_trust_and_then_by_the_median(measured, rank):
    assert measured.rank == rank


def test_workloads_of_a_family_differ_in_sizes_only():
    def of(shape, **more):
        return Workload.of({"op": "matmul", "shapes": [shape], **more})

    assert of([1, 2]).family == of([3, 4]).family != of([1, 2, 3]).family
    assert of([1, 2]).family != of([1, 2], dtype="int8").family
    assert of([1, 2]).key != of([3, 4]).key
