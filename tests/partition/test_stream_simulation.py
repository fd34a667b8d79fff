"""Streams over machines: the event simulation against a list scheduler, and against what is known of its limits."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvmtarget.partition.machines import stream_simulation
from tvmtarget.partition.machines.stream_simulation import MAX_STEPS, STREAM_DEPTH, MachineStep, time_per_input

WHOLE = 20  # inputs for each one in progress; the first ten do not count, nor the last


def programs_of(seed, machines=3, steps=12):
    """Return the programs of machines, in which each transfer comes in one order at both of its ends."""
    rng = random.Random(seed)
    programs = {f"m{number}": [] for number in range(machines)}
    for number in range(steps):
        one, other = rng.sample(sorted(programs), 2)
        time = rng.randrange(1, 10**6)
        if rng.random() < 0.5:
            programs[one].append(MachineStep(time))
        else:
            programs[one].append(MachineStep(time, sends=number))
            programs[other].append(MachineStep(time, receives=number))
    return programs


def scheduled(programs, depth, replicas=()):
    """Return the mean time between results of a scheduler that always makes the step that can begin first."""
    count = WHOLE * depth
    groups = {machine: dict(replicas).get(machine, (machine,)) for machine in programs}
    turns = {one: (turn, len(group)) for group in groups.values() for turn, one in enumerate(group)}
    programs = {one: programs[machine] for machine, group in groups.items() for one in group}
    at = {
        (machine, number): 0 if number % turns[machine][1] == turns[machine][0] else len(steps)
        for machine, steps in programs.items()
        for number in range(count)
    }
    free, current, sent = dict.fromkeys(programs, 0), {}, {}
    ends, done = {number: {} for number in range(count)}, []
    begins = dict.fromkeys(range(depth), 0)
    while len(done) < count:
        waiting = []
        for machine, steps in programs.items():
            for number, begin in begins.items():
                if at[machine, number] == len(steps):
                    continue
                step = steps[at[machine, number]]
                ready = begin if step.receives is None else sent.get((number, step.receives), (None, 0))[0]
                if ready is not None:
                    goes_on = current.get(machine) == number and step.receives is None
                    waiting.append((max(free[machine], ready), not goes_on, number, machine, step))
        if waiting:
            start, _, number, machine, step = min(waiting, key=lambda one: one[:4])
            end = start + step.time
            if step.receives is not None:
                end = max(end, sent[number, step.receives][1])
            if step.sends is not None:
                sent[number, step.sends] = start, end
            at[machine, number] += 1
            free[machine], current[machine], ends[number][machine] = end, number, end
        while len(done) < count and len(done) in begins:
            number = len(done)
            if any(at[machine, number] < len(steps) for machine, steps in programs.items()):
                break
            done.append(max([begins[number], *ends[number].values(), *done[-1:]]))
            if len(begins) < count:
                begins[len(begins)] = done[-1]
    first = 10 * depth - 1
    return (done[-1 - depth] - done[first]) // (len(done) - 1 - depth - first)


def busiest(programs):
    return max(sum(step.time for step in steps) for steps in programs.values())


@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 10**6), machines=st.integers(2, 4))
def test_the_simulation_does_what_a_list_scheduler_does(seed, machines):
    # Steps that can begin at the same moment, as both ends of a transfer do afterwards, come in another order.
    programs = programs_of(seed, machines)
    assert time_per_input(programs) == pytest.approx(scheduled(programs, STREAM_DEPTH), rel=0.05)
    replicas = {"m1": ("m1", "r1"), "m2": ("m2", "r2", "r3")} if machines > 2 else {"m0": ("m0", "r0")}
    shared = time_per_input(programs, replicas=replicas)
    assert shared == pytest.approx(scheduled(programs, STREAM_DEPTH, replicas.items()), rel=0.05)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_one_input_at_a_time_takes_its_latency(seed):
    programs = programs_of(seed, 3)
    assert time_per_input(programs, 1) == scheduled(programs, 1) >= busiest(programs)


def test_a_pipeline_is_as_fast_as_its_busiest_machine():
    programs = {
        "a": [MachineStep(30), MachineStep(5, sends=0)],
        "b": [MachineStep(5, receives=0), MachineStep(40), MachineStep(5, sends=1)],
        "c": [MachineStep(5, receives=1), MachineStep(20)],
    }
    assert time_per_input(programs) == busiest(programs) == 50


def test_replicas_take_turns_with_what_arrives_and_leaves():
    """Two machines share the middle stage: each of them has every second input."""
    programs = {
        "a": [MachineStep(20), MachineStep(1, sends=0)],
        "b": [MachineStep(1, receives=0), MachineStep(48), MachineStep(1, sends=1)],
        "c": [MachineStep(1, receives=1), MachineStep(4)],
    }
    assert time_per_input(programs) == 50
    assert time_per_input(programs, replicas={"b": ("b", "b2")}) == 25
    assert time_per_input(programs, replicas={"b": ("b", "b2", "b3")}) == 21
    # One input at a time keeps one replica busy.
    assert time_per_input(programs, 1, {"b": ("b", "b2", "b3")}) == time_per_input(programs, 1) == 74


def test_a_machine_that_waits_for_another_hides_the_wait_behind_other_inputs():
    round_trip = {
        "a": [MachineStep(10), MachineStep(1, sends=0), MachineStep(1, receives=1), MachineStep(10)],
        "b": [MachineStep(1, receives=0), MachineStep(78), MachineStep(1, sends=1)],
    }
    # One input takes 100: what is received is there as soon as it was sent.
    assert [time_per_input(round_trip, depth) for depth in (1, 8)] == [100, 80]


def test_what_repeats_need_not_be_simulated(monkeypatch):
    forms = [(seed, machines, steps) for seed in range(8) for machines, steps in [(2, 3), (3, 12), (5, 60)]]
    replicas = [None, {"m1": ("m1", "r1", "r2")}]
    streams = [(programs_of(*form), depth, group) for form in forms for depth in (1, 8) for group in replicas]
    found = [time_per_input(*stream) for stream in streams]
    monkeypatch.setattr(stream_simulation._Simulation, "_state", lambda *_: object())
    assert found == [time_per_input(*stream) for stream in streams]


def test_programs_without_steps_take_no_time():
    assert time_per_input({"a": [], "b": []}) == 0
    assert time_per_input({"a": [MachineStep(0)], "b": []}, 1) == 0


def test_programs_of_many_steps_wait_for_each_other_too(monkeypatch):
    """Fewer inputs show what they take than are simulated of programs of fewer steps."""
    every = [programs_of(seed, 3, 600) for seed in range(3)]
    found = [time_per_input(programs) for programs in every]
    assert all(time > busiest(programs) for time, programs in zip(found, every, strict=True))
    monkeypatch.setattr(stream_simulation, "MANY_STEPS", MAX_STEPS)
    assert found == pytest.approx([time_per_input(programs) for programs in every], rel=0.03)


def test_programs_of_very_many_steps_are_not_simulated():
    steps = [step for number in range(MAX_STEPS) for step in (MachineStep(1), MachineStep(1, sends=number))]
    assert time_per_input({"a": steps, "b": [MachineStep(1, receives=number) for number in range(MAX_STEPS)]}) is None
