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

# Steps of one input above which nothing is simulated: the queues of so many steps have no time to fill.
MAX_STEPS = 500


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
    if sum(map(len, merged.values())) > MAX_STEPS:
        return None
    running: dict[str, _Turn] = {}
    for machine, steps in merged.items():
        group = (replicas or {}).get(machine, (machine,))
        running |= {replica: _Turn(steps, turn, len(group)) for turn, replica in enumerate(group)}
    done = _Simulation(running, depth, ROUNDS * depth).finished()
    first = WARM_UP * depth - 1
    return (done[-1 - depth] - done[first]) // (len(done) - 1 - depth - first)


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
    depth: int
    count: int
    events: list[tuple[int, str]] = field(default_factory=list)  # when a machine may have something to do
    free: dict[str, int] = field(default_factory=dict)
    position: dict[str, list[int]] = field(default_factory=dict)  # of the next step, by machine and input
    current: dict[str, int] = field(default_factory=dict)  # the input that a machine works on until its next receive
    sent: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)  # begin and end, by input and transfer
    begins: list[int] = field(default_factory=list)  # of each input that begins, when it does
    ends: list[dict[str, int]] = field(default_factory=list)  # of the same, when machines are done
    oldest: int = 0

    def finished(self) -> list[int]:
        """Return when each input is done, and all before it."""
        self.free = dict.fromkeys(self.machines, 0)
        self.position = {
            machine: [turn.first_step(number) for number in range(self.count)]
            for machine, turn in self.machines.items()
        }
        done: list[int] = []
        for _ in range(min(self.depth, self.count)):
            self._begin(0)
        while len(done) < self.count:
            time, machine = heappop(self.events)
            if self.free[machine] <= time:
                self._work(machine, time)
            while self.oldest < len(self.ends) and len(self.ends[self.oldest]) == len(self.machines):
                done.append(max([*self.ends[self.oldest].values(), *done[-1:]]))
                self.oldest += 1
                self._begin(done[-1])
        return done

    def _begin(self, time: int) -> None:
        if len(self.ends) < self.count:
            number = len(self.begins)
            self.begins.append(time)
            is_done = {name: self.position[name][number] == len(one.steps) for name, one in self.machines.items()}
            self.ends.append({machine: time for machine in self.machines if is_done[machine]})
            for machine in self.machines:
                heappush(self.events, (max(time, self.free[machine]), machine))

    def _work(self, machine: str, time: int) -> None:
        """Make the next step of a machine at some time, if there is one that it can make."""
        steps, position = self.machines[machine].steps, self.position[machine]
        own = self.current.get(machine)
        going_on = own is not None and position[own] < len(steps) and steps[position[own]].receives is None
        for number in (own,) if going_on and own is not None else range(self.oldest, len(self.ends)):
            if position[number] == len(steps) or self.begins[number] > time:
                continue
            step, end = steps[position[number]], time
            if step.receives is not None:
                begin, sent = self.sent.get((number, step.receives), (None, 0))
                if begin is None or begin > time:
                    continue
                end = max(time + step.time, sent)
            else:
                end = time + step.time
            if step.sends is not None:
                self.sent[number, step.sends] = time, end
                for other in self.machines:
                    heappush(self.events, (max(time, self.free[other]), other))
            position[number] += 1
            self.current[machine], self.free[machine] = number, end
            if position[number] == len(steps):
                self.ends[number][machine] = end
            heappush(self.events, (end, machine))
            return
