"""Simulate how the machines of a cluster work on a stream of inputs, several at a time (discrete events).

A machine does one thing at a time. It runs the steps of one input up to the next receive, and then goes on with the
oldest input that it can go on with, as the runtimes do. A transfer occupies its sender, and its receiver as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

__all__ = ["STREAM_DEPTH", "MachineStep", "time_per_input"]

# Inputs that are in progress at once unless a caller of `Executable.stream` says otherwise.
STREAM_DEPTH = 8

# Inputs that are simulated, and those at the beginning that do not count, as multiples of the depth; neither do the
# last `depth` of them, while fewer are in progress.
ROUNDS, WARM_UP = 20, 10

# The same for programs of more than MANY_STEPS steps of one input, as simulating so many takes long. What is found
# differs by up to 2 %. Programs of more than MAX_STEPS are not simulated.
FEWER_ROUNDS, SHORTER_WARM_UP = 8, 3
MANY_STEPS, MAX_STEPS = 500, 10_000


@dataclass(frozen=True, slots=True)
class MachineStep:
    """A step of the program of one machine.

    Attributes:
        time: picoseconds that it occupies the machine.
        sends: number of the transfer that it begins; None for another step.
        receives: number of the transfer that it ends; None for another step.
    """

    time: int
    sends: int | None = None
    receives: int | None = None


def time_per_input(
    programs: Mapping[str, Sequence[MachineStep]],
    depth: int = STREAM_DEPTH,
    replicas: Mapping[str, Sequence[str]] | None = None,
) -> int | None:
    """Return the mean time between two results of a long stream.

    Args:
        programs: the steps of each machine in order; each transfer is in two of them.
        depth: the largest number of inputs in progress at once. The next one begins when the oldest one is done.
        replicas: the machines that run a program by turns, by the name of the program; by default that machine alone.

    Returns:
        Picoseconds; None where there are too many steps to simulate.
    """
    merged = {machine: _merged(steps) for machine, steps in programs.items()}
    count = sum(map(len, merged.values()))
    if count > MAX_STEPS:
        return None
    rounds, warm_up = (ROUNDS, WARM_UP) if count <= MANY_STEPS else (FEWER_ROUNDS, SHORTER_WARM_UP)
    running: dict[str, _Turn] = {}
    receivers: dict[int, Sequence[str]] = {}
    for machine, steps in merged.items():
        group = (replicas or {}).get(machine, (machine,))
        running |= {replica: _Turn(steps, turn, len(group)) for turn, replica in enumerate(group)}
        receivers |= {step.receives: group for step in steps if step.receives is not None}
    done = _Simulation(running, receivers, depth).finished((rounds - 1) * depth)
    first = warm_up * depth - 1
    return (done[-1] - done[first]) // (len(done) - 1 - first)


def _merged(steps: Sequence[MachineStep]) -> list[MachineStep]:
    """Return the steps with those between two transfers as one."""
    found: list[MachineStep] = []
    for step in steps:
        is_local = step.sends is None and step.receives is None
        if found and is_local and found[-1].sends is None and found[-1].receives is None:
            found[-1] = MachineStep(found[-1].time + step.time)
        else:
            found.append(step)
    return found


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a machine runs, for the inputs whose number leaves the rest `turn` when divided by `turns`."""

    steps: Sequence[MachineStep]
    turn: int
    turns: int

    def first_step(self, number: int) -> int:
        """Return the step that is first for an input; the end where another machine has its turn."""
        return 0 if number % self.turns == self.turn else len(self.steps)


@dataclass
class _Simulation:
    """The state of all machines; inputs are numbered in the order in which they begin."""

    machines: Mapping[str, _Turn]
    receivers: Mapping[int, Sequence[str]]  # machines, by transfer
    depth: int
    events: list[tuple[int, str]] = field(default_factory=list)  # when a machine may have something to do
    free: dict[str, int] = field(default_factory=dict)
    position: dict[str, list[int]] = field(default_factory=dict)  # of the next step, by machine and input
    current: dict[str, int] = field(default_factory=dict)  # the input that a machine works on until its next receive
    sent: dict[tuple[int, int], int] = field(default_factory=dict)  # ends of transfers on their way, by input
    begins: list[int] = field(default_factory=list)  # of each input that begins, when it does
    ends: list[dict[str, int]] = field(default_factory=list)  # of the same, when machines are done
    oldest: int = 0

    def finished(self, count: int) -> list[int]:
        """Return when each of the first inputs, and all before it, are done.

        What comes after a state that was there before, only earlier, is what came then.
        """
        self.free = dict.fromkeys(self.machines, 0)
        self.position = {machine: [] for machine in self.machines}
        done: list[int] = []
        states: dict[object, int] = {}  # how many inputs were done in a state
        for _ in range(self.depth):
            self._begin(0)
        while len(done) < count:
            time, machine = heappop(self.events)
            if self.free[machine] <= time:
                self._work(machine, time)
            if len(self.ends[self.oldest]) < len(self.machines):
                continue
            # Inputs without steps are done as they begin.
            while len(done) < count and len(self.ends[self.oldest]) == len(self.machines):
                done.append(max([*self.ends[self.oldest].values(), *done[-1:]]))
                self.oldest += 1
                self._begin(done[-1])
            before = states.setdefault(self._state(time, done[-1]), len(done))
            if before < len(done):
                period, later = len(done) - before, done[-1] - done[before - 1]
                while len(done) < count:
                    done.append(done[-period] + later)
        return done[:count]

    def _state(self, time: int, since: int) -> object:
        """Return what decides about all after an event at `time`, with times relative to `since`."""
        under_way = range(self.oldest, len(self.ends))
        return (
            tuple(self.oldest % one.turns for one in self.machines.values()),
            tuple(max(free, time) - since for free in self.free.values()),
            tuple(self.current.get(machine, -1) - self.oldest for machine in self.machines),
            tuple(tuple(position[self.oldest :]) for position in self.position.values()),
            tuple(max(self.begins[number], time) - since for number in under_way),
            frozenset(
                (number - self.oldest, machine, max(end - since, 0))
                for number in under_way
                for machine, end in self.ends[number].items()
            ),
            frozenset(
                (number - self.oldest, transfer, max(end, time) - since)
                for (number, transfer), end in self.sent.items()
            ),
            frozenset((event - since, machine) for event, machine in self.events),
        )

    def _begin(self, time: int) -> None:
        number = len(self.begins)
        self.begins.append(time)
        self.ends.append({})
        for machine, one in self.machines.items():
            self.position[machine].append(one.first_step(number))
            if self.position[machine][number] == len(one.steps):
                self.ends[number][machine] = time
            heappush(self.events, (max(time, self.free[machine]), machine))

    def _work(self, machine: str, time: int) -> None:
        """Make the next step of a machine at some time, if there is one that it can make."""
        steps, position = self.machines[machine].steps, self.position[machine]
        own = self.current.get(machine)
        going_on = own is not None and position[own] < len(steps) and steps[position[own]].receives is None
        for number in (own,) if going_on and own is not None else range(self.oldest, len(self.ends)):
            if position[number] == len(steps) or self.begins[number] > time:
                continue
            step = steps[position[number]]
            end = time + step.time
            if step.receives is not None:
                if (number, step.receives) not in self.sent:
                    continue
                end = max(end, self.sent.pop((number, step.receives)))
            if step.sends is not None:
                self.sent[number, step.sends] = end
                for other in self.receivers.get(step.sends, ()):
                    heappush(self.events, (max(time, self.free[other]), other))
            position[number] += 1
            self.current[machine], self.free[machine] = number, end
            if position[number] == len(steps):
                self.ends[number][machine] = end
            heappush(self.events, (end, machine))
            return
