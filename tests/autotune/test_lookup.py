"""Looking things up: tier by tier, never another device's record, always with a true explanation."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import HERE, MATMUL, ZNVER4, knobs, known, ran, trial, write_file

from tvmtarget import Constraint, Target, TuningLog
from tvmtarget.autotune.log.applied import Applied
from tvmtarget.autotune.log.distance import distance
from tvmtarget.autotune.log.entries import entry_of, quick_entry
from tvmtarget.autotune.log.match import Policy
from tvmtarget.autotune.log.records import Candidate, Environment, Measurement, Retraction, Workload
from tvmtarget.errors import LogError

A100 = Target.parse("nvidia/nvidia-a100")


def log_of(*records, targets=(ZNVER4,), workloads=(MATMUL,)):
    log = TuningLog("memory:")
    log.extend([*known(*targets, workloads=workloads), *records])
    return log


def look(log, target=ZNVER4, workload=MATMUL, **policy):
    return log.lookup(workload, target, policy=Policy(**policy), env=HERE)


def test_p3_a_record_of_a_gpu_is_no_answer_for_a_cpu_and_the_other_way_round():
    """The case in which TVM's own database gives the record of the GPU to all three."""
    log = log_of(trial(1, 1, target=A100), trial(2, 5000), targets=(A100, ZNVER4))
    assert look(log, A100).candidate == knobs(mb=1)
    assert look(log, ZNVER4).candidate == knobs(mb=2)
    assert look(log, Target.parse("c")).tier == "default"


@pytest.mark.parametrize(
    ("changes", "tier"),
    [
        ({}, "exact"),
        ({"tag": "acme/board"}, "exact"),
        ({"mtriple": "x86_64-conda-linux-gnu"}, "equal"),
        ({"mattr": ["+avx2", "+fma"]}, "equal"),
        ({"opt-level": 2}, "equal"),
        ({"libs": ["cblas"]}, "equal"),
        ({"host": {"kind": "c"}}, "equal"),
        ({"clock-mhz": 3000}, "equal"),
        ({"num-cores": 8}, "near"),
        ({"mcpu": "znver5"}, "near"),
        ({"mcpu": "haswell"}, "default"),
        ({"mcpu": "znver4", "mattr": ["-avx512f"]}, "default"),
        ({"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}, "default"),
    ],
)
def test_p4_how_a_target_is_spelled_decides_no_tier_and_what_it_is_does(changes, tier):
    log = log_of(trial(1, requires={"kind": "llvm", "mattr": {"has": ["avx512f"]}}))
    flat = {"kind": "llvm", "mcpu": "znver4", "mtriple": "x86_64-linux-gnu", "num-cores": 16} | changes
    assert look(log, Target.from_json(flat)).tier == tier


def test_a_stated_vector_width_is_part_of_the_key_and_of_the_distance_and_fast_math_keeps_records_apart():
    wide, narrow, fast = (
        ZNVER4.override(change) for change in ({"vector-width": 512}, {"vector-width": 256}, {"fast-math": True})
    )
    log = log_of(trial(1, target=narrow), targets=(ZNVER4, narrow))
    match = look(log, wide)
    assert (match.tier, match.distance) == ("near", 4.0)
    assert "differs: vector bits 256 -> 512 (+4)" in match.explain()
    assert look(log_of(trial(1, target=wide), targets=(ZNVER4, wide)), narrow).tier == "default"
    assert look(log_of(trial(1)), fast).tier == "default"


def test_the_best_is_confirmed_then_compared_with_a_baseline_then_cheap():
    trials = [
        trial(1, measured=ran(5, kind="estimate")),
        trial(2, measured=ran(10)),
        trial(3, measured=ran(900, baseline=1000)),
        trial(4, measured=ran(800, baseline=1000)),
        trial(5, measured=ran(950, baseline=1000, kind="confirm")),
    ]
    log = log_of(*trials)
    assert [match.candidate for match in log.top_k(MATMUL, ZNVER4, 9)] == [knobs(mb=at) for at in (5, 4, 3, 2, 1)]
    assert look(log).candidate == knobs(mb=5)


def test_bytes_and_energies_are_kept_and_choose_no_candidate():
    sizes = trial(2, measured=Measurement(status="ok", costs=[10], unit="B"))
    log = log_of(trial(1, 1000), sizes)
    assert look(log).candidate == knobs(mb=1)
    assert sizes in log.trials(MATMUL, ZNVER4)
    assert quick_entry(sizes.text.encode()).trial == entry_of(sizes).trial


def test_the_score_of_a_candidate_is_the_median_of_its_trials():
    lucky = [trial(1, cost) for cost in (100, 900, 910)]
    assert look(log_of(*lucky, trial(2, 500))).candidate == knobs(mb=2)


def test_of_costs_that_are_as_good_as_equal_the_oldest_stays():
    new, old = trial(1, 980), trial(2, 1000).replace(ts=1_600_000_000)
    assert look(log_of(new, old)).candidate == knobs(mb=2)
    assert look(log_of(new, old), tie_percent=1).candidate == knobs(mb=1)


def test_of_many_costs_as_good_as_equal_the_oldest_is_found_wherever_it_ranks():
    rows = [trial(at, measured=ran(10_000 + at, baseline=50_000)) for at in range(300)]
    rows[170] = rows[170].replace(ts=1_600_000_000)
    assert look(log_of(*rows)).candidate == knobs(mb=170)
    assert look(log_of(*rows), tie_percent=1).candidate != knobs(mb=170)


def beside(number, cost, identity, **fields):
    """Return a confirmed trial that was measured beside a default of an identity, which cost 1000."""
    baseline = {"costs": [1000], "identity": identity} if identity else {"costs": [1000]}
    return trial(number, measured=Measurement(status="ok", kind="confirm", costs=[cost], baseline=baseline), **fields)


def today(log, default="s1:new", **policy):
    return log.lookup(MATMUL, ZNVER4, policy=Policy(**policy), env=HERE, default=default)


@pytest.mark.parametrize("default", [None, "s1:old", "s1:new"])
def test_a_record_that_the_default_was_the_best_gives_the_default_of_today(default):
    """The candidate is the default of its day, which may be worse than what is the default now."""
    log = log_of(beside(0, 1000, "s1:old"), beside(1, 1100, "s1:old"))
    match = today(log, default)
    assert match.candidate is None
    assert (match.is_default, match.record.candidate) == (True, knobs(mb=0))
    assert "no better than the default beside it, so the default of today is used" in match.explain()
    assert match.to_json()["is_default"]


@pytest.mark.parametrize(("cost", "is_default"), [(970, False), (971, True), (1200, True)])
def test_what_is_within_the_tie_of_the_default_is_no_better_than_it(cost, is_default):
    assert today(log_of(beside(1, cost, "s1:new"))).is_default is is_default
    other = {"costs": [1000], "name": "a library"}
    measured = Measurement(status="ok", costs=[cost], baseline=other)
    assert not today(log_of(trial(1, measured=measured))).is_default


def test_what_was_faster_than_an_older_default_is_carried_over_and_says_so():
    log = log_of(beside(1, 300, "s1:old"))
    assert today(log, "s1:old").tier == today(log, None).tier == "exact"
    match = today(log)
    assert (match.tier, match.distance, match.candidate) == ("near", 2.0, knobs(mb=1))
    assert "differs: default s1:old -> s1:new (+2)" in match.explain()
    assert "measure it against the default before you trust it" in match.explain()
    refused = today(log, max_distance=0)
    assert refused.tier == "default"
    assert [tried.reason for tried in refused.tried] == ["measured beside a default that is not today's"]
    assert today(log, strict=True).tier == "default"


def test_what_was_measured_beside_the_default_of_today_goes_before_what_is_faster_than_an_older_one():
    log = log_of(beside(1, 300, "s1:old"), beside(2, 300, None), beside(3, 800, "s1:new"))
    assert (today(log).tier, today(log).candidate) == ("exact", knobs(mb=3))
    log.append(beside(0, 1000, "s1:new"))
    assert today(log).candidate == knobs(mb=3)


def test_trials_beside_different_defaults_are_not_taken_together():
    """The median of both would be the score of neither."""
    log = log_of(*(beside(1, cost, "s1:old") for cost in (100, 110, 120)), beside(1, 900, "s1:new"), beside(2, 500, ""))
    assert today(log).ratio == 0.9
    assert today(log, "s1:old").ratio == 0.11
    log.append(trial(1, measured=ran(status="wrong_output")))
    assert today(log).candidate == knobs(mb=2)


def test_what_was_compared_with_no_default_is_as_it_was():
    log = log_of(trial(1, measured=ran(50)))
    assert (today(log).tier, today(log).candidate) == ("exact", knobs(mb=1))


def test_compaction_keeps_the_best_beside_each_default():
    log = log_of(beside(1, 300, "s1:old"), beside(2, 400, "s1:old"), beside(3, 800, "s1:new"))
    assert [dropped.candidate for dropped in log.compact(best=1)] == [knobs(mb=2)]
    assert today(log).candidate == knobs(mb=3)


def test_p9_failures_of_the_machine_do_not_count_and_a_wrong_output_does():
    infra = [trial(1, measured=ran(status=status)) for status in ("infra_error", "cancelled", "run_timeout")]
    assert look(log_of(trial(1, 10), trial(2, 20), *infra)).candidate == knobs(mb=1)
    wrong = trial(1, measured=ran(status="wrong_output"))
    assert look(log_of(trial(1, 10), trial(2, 20), wrong)).candidate == knobs(mb=2)


def test_p8_a_best_record_that_is_illegal_does_not_hide_the_second_best():
    bad = trial(1, 10, requires={"kind": "llvm", "num-cores": {"ge": 64}})
    unreadable = trial(3, 5, requires={"kind": "llvm", "no-such": 1})
    match = look(log_of(bad, trial(2, 20), unreadable))
    assert match.candidate == knobs(mb=2)
    assert [tried.reason for tried in match.tried] == [
        "its 'requires' cannot be read: kind 'llvm' has no attribute 'no-such'",
        "num-cores>=64: it is 16",
    ]  # fmt: skip


@given(st.permutations([None, "nonsense", "c", "llvm(+avx2)", "llvm(num-cores>=64)"]), st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_p8_what_one_trial_of_a_candidate_requires_does_not_hide_what_another_says(needs, cost):
    """Whichever of them is the median."""
    texts = {"nonsense": {"kind": "llvm", "no-such": 1}}
    requires = [one and (texts.get(one) or Constraint.parse(one).to_json()) for one in needs]
    log = log_of(*(trial(1, cost * at + 10, requires=one) for at, one in enumerate(requires)), trial(2, 10**6))
    match = look(log)
    assert match.candidate == knobs(mb=1)
    assert match.record.requires in (None, Constraint.parse("llvm(+avx2)").to_json())
    assert [found.candidate for found in log.top_k(MATMUL, ZNVER4, 9)] == [knobs(mb=1), knobs(mb=2)]


def test_the_best_are_each_there_once_and_legal_and_of_use():
    other = Environment.of({"tool": "another"})
    illegal = trial(4, 1, requires={"kind": "llvm", "num-cores": {"ge": 64}})
    log = log_of(other, trial(1, 10), trial(1, 12, env=other.key), trial(2, 20), trial(3, 30), illegal)
    assert [match.record for match in log.top_k(MATMUL, ZNVER4, 9)] == [trial(1, 10), trial(2, 20), trial(3, 30)]
    best = log.top_k(MATMUL, ZNVER4, 1, unusable=lambda one: None if one.body["mb"] > 1 else "too few")
    assert [match.record for match in best] == [trial(2, 20)]


def test_of_thousands_that_are_of_no_use_none_hides_the_one_that_is():
    log = log_of(*(trial(at, 1000) for at in range(5000)), trial(5000, 2000))
    match = log.lookup(MATMUL, ZNVER4, env=HERE, unusable=lambda one: None if one.body["mb"] == 5000 else "no")
    assert match.candidate == knobs(mb=5000)
    assert len(match.tried) == 5000
    assert len(match.explain().splitlines()) < 60


def test_what_a_lookup_takes_outlives_compaction():
    log = log_of(*(trial(at, 1000 + at).replace(ts=50 - at) for at in range(50)))
    first, best = look(log).record, log.top_k(MATMUL, ZNVER4, 1)[0].record
    assert first != best
    log.compact(best=2)
    assert look(log).record == first
    log.compact(best=1)
    assert [one for one in log if one.type == "trial"] == [first]


def test_p8_what_who_asks_cannot_use_makes_way_for_the_next_best_a_pin_too():
    log = log_of(trial(1, 10), trial(2, 20), trial(3, 30))
    pin = log.pin(MATMUL, ZNVER4, knobs(mb=0), "why not")

    def is_odd(candidate):
        return f"{candidate.body['mb']} is even" if candidate.body["mb"] % 2 == 0 else None

    match = log.lookup(MATMUL, ZNVER4, env=HERE, unusable=is_odd)
    assert (match.tier, match.candidate) == ("exact", knobs(mb=1))
    assert [(one.tier, one.what, one.reason) for one in match.tried] == [("pin", pin.digest, "0 is even")]
    assert str(Applied.of("matmul", MATMUL.key, match)).endswith(f", not used: pin {pin.digest[:11]}: 0 is even")
    assert log.lookup(MATMUL, ZNVER4, env=HERE, unusable=lambda _: "no").tier == "default"


def test_p8_settings_that_do_not_fit_make_way_for_the_next_best():
    from models import DIGITS

    import tvmtarget as tt
    from tvmtarget.building.tuned_schedules import SETTINGS, program_workload

    module = tt.IRModule.from_onnx(DIGITS)
    plan = tt.decompose(module, "onnxruntime")
    workload, log = program_workload(plan, "executor"), TuningLog("memory:")
    for cost, row in ((10, ["npu", "threads", 1]), (20, ["", "no-such", 1]), (30, ["", "intra-op-threads", 1])):
        log.add(workload, plan.topology.root, Candidate(format=SETTINGS, body={"set": [row]}), ran(cost))
    (settings,) = [one for one in tt.build(module, "onnxruntime", log=log).tuned if one.level == "executor"]
    assert (settings.tier, settings.body) == ("exact", {"set": [["", "intra-op-threads", 1]]})


def test_a_retracted_record_does_not_count_whichever_came_first():
    best, second = trial(1, 10), trial(2, 20)
    retraction = Retraction(of=best.digest, why="measured beside another job")
    for order in itertools.permutations([best, second, retraction]):
        assert look(log_of(*order)).candidate == knobs(mb=2)


def test_the_pin_that_was_written_last_wins_also_where_the_clock_was_set_back(monkeypatch):
    log = TuningLog("memory:")
    for at, hour in enumerate([9, 9, 9, 9, 2, 9]):
        monkeypatch.setattr("time.time", lambda hour=hour: 1_700_000_000 + 3600 * hour)
        pin = log.pin(MATMUL, ZNVER4, knobs(mb=at % 3), "because")
        assert look(log).candidate == knobs(mb=at % 3)
    log.retract(pin.digest, "a mistake")
    assert look(log).candidate == knobs(mb=1)
    log.pin(MATMUL, ZNVER4, pin.candidate, "because")
    assert look(log).candidate == pin.candidate


def test_a_pin_goes_before_all_else_until_it_is_retracted():
    log = log_of(trial(1, 10))
    pin = log.pin(MATMUL, ZNVER4.override({"opt-level": 2}), knobs(mb=99), "the fast one is not stable")
    assert (look(log).tier, look(log).candidate) == ("pin", knobs(mb=99))
    assert "pinned: the fast one is not stable" in look(log).explain()
    log.retract(pin.digest, "fixed")
    assert look(log).tier == "exact"


def test_the_nearest_legal_target_is_chosen_before_what_it_cost():
    near, far = ZNVER4.override({"num-cores": 12}), ZNVER4.override({"num-cores": 64})
    log = log_of(trial(1, 9000, target=near), trial(2, 1, target=far), targets=(near, far))
    match = look(log)
    assert (match.tier, match.candidate, match.distance) == ("near", knobs(mb=1), 0.42)
    illegal = trial(3, 1, target=near, requires={"kind": "llvm", "num-cores": {"ge": 32}})
    match = look(log_of(illegal, trial(2, 1, target=far), targets=(near, far)))
    assert (match.candidate, match.distance) == (knobs(mb=2), 2)
    assert match.tried[0].reason == "num-cores>=32: it is 16"


def test_without_requires_a_record_needs_the_instructions_of_where_it_ran():
    haswell = Target.parse("llvm(mcpu=haswell,mtriple=x86_64-linux-gnu,num-cores=16)")
    log = log_of(trial(1))
    match = look(log, haswell, max_distance=100)
    assert match.tier == "default"
    assert "mcpu>=znver4" in match.tried[0].reason


def test_p12_the_explanation_adds_up():
    log = log_of(trial(1))
    match = look(log, Target.parse("llvm(mcpu=znver5,mtriple=x86_64-linux-gnu,num-cores=2)"))
    assert match.distance == distance(match.terms) == sum(term.cost for term in match.terms)
    assert {term.what for term in match.terms} == {"num-cores", "isa", "mcpu"}
    assert match.to_json()["distance"]["value"] == match.distance
    assert "note: carried over, not tuned here" in match.explain()


def test_a_tier_can_be_required():
    match = look(log_of(trial(1)), ZNVER4.override({"opt-level": 2}))
    assert match.require("equal") is match
    with pytest.raises(LogError, match="a match of tier 'exact' is required:\nkernel matmul"):
        match.require("exact")
    with pytest.raises(LogError, match="unknown tier 'exakt'; did you mean 'exact'"):
        match.require("exakt")


def test_a_strict_environment_takes_only_what_was_measured_with_these_versions():
    other = Environment.of({"tool": "tests", "apache-tvm": "0.25.0"})
    log = log_of(other, trial(1, env=other.key))
    assert look(log).stale == ("apache-tvm: 0.25.0 -> 0.27.0".replace(":", "", 1),)
    assert look(log, strict=True).tier == "default"


def test_other_sizes_serve_only_the_formats_that_allow_it():
    larger = Workload.of({"op": "matmul", "shapes": [[256, 128, 128]], "dtype": "float32"})
    log = log_of(trial(8, workload=larger), trial(7, 1, workload=larger), workloads=(larger,))
    assert look(log).tier == "default"

    def divides(body, shapes):
        return shapes[0][0] % body["mb"] == 0

    match = look(log, formats={"knobs/1": divides})
    assert (match.tier, match.candidate, match.distance) == ("workload-near", knobs(mb=8), 0.5)
    assert "sizes [256,128,128] -> [128,128,128] (+0.5)" in match.explain()


def test_layers_are_searched_tier_by_tier_and_the_first_wins_a_tie(tmp_path):
    write_file(tmp_path / "site.jsonl", [*known(ZNVER4), trial(1, 1000)])
    near = ZNVER4.override({"num-cores": 12})
    with TuningLog(str(tmp_path / "user.db"), layers=[str(tmp_path / "site.jsonl")]) as log:
        log.extend([*known(near), trial(2, 1, target=near)])
        assert (look(log).tier, look(log).candidate) == ("exact", knobs(mb=1))
        log.extend([*known(ZNVER4), trial(3, 1020)])
        assert look(log).candidate == knobs(mb=3)
        log.append(trial(4, 1200).replace(target=ZNVER4.digest))
        assert look(log).log.endswith("user.db")


def test_kernels_ask_for_a_leaf_and_graphs_for_the_whole():
    rack = Target.parse("[gpu=cuda(arch=sm_80),cpu=llvm](host=@cpu)")
    whole = Workload.of({"op": "model", "shapes": []}, "graph")
    log = log_of(trial(1, target=rack, workload=whole), targets=(rack,), workloads=(whole,))
    assert look(log, Target.parse("[cpu=llvm,gpu=cuda(arch=sm_80)](host=@cpu,executor=vm)"), whole).tier == "equal"
    assert look(log, Target.parse("[cpu=llvm,gpu=cuda(arch=sm_90)](host=@cpu)"), whole).tier == "default"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(0, 3)), max_size=12), st.randoms())
def test_p7_the_order_of_records_does_not_matter_and_equal_means_equal(rows, shuffle):
    targets = [ZNVER4, ZNVER4.override({"opt-level": 1}), ZNVER4.override({"num-cores": 8}), A100]
    records = [trial(number, cost * 1000, target=targets[at]) for at, cost, number in rows] + known(*targets)
    target = random.Random(len(rows)).choice(targets)

    def answer():
        shuffle.shuffle(records)
        log = TuningLog("memory:")
        log.extend(records)
        return look(log, target)

    match = answer()
    assert match.to_json() == answer().to_json()
    if match.tier in ("exact", "equal"):
        measured_on = next(target for target in targets if target.digest == match.record.target)
        assert measured_on.tuning_key() == target.tuning_key()
    assert (match.tier == "default") == (not any((targets[at].kind == target.kind) for at, *_ in rows))
