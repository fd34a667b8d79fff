"""Verify that the programs of machines do together what the driver of the root does, without deadlock. O(V + E).

Every call of the driver must be in one program, that of its machine, in the order of the driver. Every transfer must
have one send and one receive, on the two machines of the driver's copy, with its number among all transfers. Each
program must make its transfers in ascending order. By induction over these numbers no machine waits forever, and the
messages between two machines arrive in the order in which they are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from tvmtarget.errors import ModelError
from tvmtarget.ir.function import COPY, RECV, SEND, Call
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.machines.machine import Machines

__all__ = ["verify_programs"]

# Violations that an error lists.
MAX_SHOWN = 5


def verify_programs(module: IRModule, machines: Machines, programs: Mapping[str, IRModule]) -> None:
    """Verify the programs of all machines.

    Args:
        module: partitioned module.
        machines: machines of its target.
        programs: programs by path of the machine.

    Raises:
        ModelError: with up to five violations.
    """
    for program in programs.values():
        program.verify()
    problems = [
        *_every_call_is_in_one_program(module, machines, programs),
        *_transfers_match(module, machines, programs),
        *_transfers_are_in_order(programs),
        *_functions_are_on_their_machine(machines, programs),
    ]
    if problems:
        raise ModelError(*problems[:MAX_SHOWN])


def _is_transfer(call: Call) -> bool:
    return call.op in (SEND, RECV)


def _crosses(call: Call, machines: Machines) -> bool:
    return call.op == COPY and len({machines.of_domain(str(call.attr(end))) for end in ("src", "dst")}) == 2


def _keys(calls: Iterable[Call]) -> Iterator[tuple[object, ...]]:
    """Yield a unique key of each call: operator, operands, results, and a number among equal calls."""
    seen: Counter[object] = Counter()
    for call in calls:
        name = (call.op, call.inputs, tuple(output.name for output in call.outputs))
        yield (*name, seen[name])
        seen[name] += 1


def _every_call_is_in_one_program(
    module: IRModule, machines: Machines, programs: Mapping[str, IRModule]
) -> Iterator[str]:
    steps = list(_keys(call for call in module.main.body if not _crosses(call, machines)))
    position = {name: number for number, name in enumerate(steps)}
    counts: Counter[int] = Counter()
    for machine, program in programs.items():
        own = list(_keys(call for call in program.main.body if not _is_transfer(call)))
        foreign = next((name for name in own if name not in position), None)
        if foreign is not None:
            yield f"the program of {machine!r} has a call that the driver does not have: {foreign[0]!r}"
            continue
        positions = [position[name] for name in own]
        counts.update(positions)
        if any(later <= earlier for earlier, later in pairwise(positions)):
            yield f"the program of {machine!r} makes its calls in another order than the driver"
    for number, (op, *_) in enumerate(steps):
        if counts[number] != 1:
            yield f"call {op!r} of the driver is in {counts[number]} programs, not in one"


def _transfers_match(module: IRModule, machines: Machines, programs: Mapping[str, IRModule]) -> Iterator[str]:
    ends: dict[object, list[tuple[str, Call]]] = {}
    for machine, program in programs.items():
        for call in filter(_is_transfer, program.main.body):
            ends.setdefault(call.attr("order"), []).append((machine, call))
    copies: set[tuple[str, ...]] = {
        (call.inputs[0], call.outputs[0].name) for call in module.main.body if _crosses(call, machines)
    }
    for order, found in ends.items():
        sends = [(machine, call) for machine, call in found if call.op == SEND]
        receives = [(machine, call) for machine, call in found if call.op == RECV]
        if len(sends) != 1 or len(receives) != 1:
            yield f"transfer {order} has {len(sends)} sends and {len(receives)} receives, not one of each"
            continue
        (src, send), (dst, receive) = sends[0], receives[0]
        if send.attr("to") != dst or receive.attr("from") != src or src == dst:
            yield f"transfer {order} is sent by {src!r} to {send.attr('to')!r}, and read by {dst!r}"
        if not send.inputs and not receive.outputs:
            continue  # it only keeps the order of effects
        pair = (*send.inputs, *(output.name for output in receive.outputs))
        if pair not in copies:
            yield f"transfer {order} moves {' to '.join(map(repr, pair))}, which the driver does not copy"
        else:
            copies.remove(pair)
    for value, *_ in sorted(copies):
        yield f"no program sends {value!r}, which the driver copies to another machine"


def _transfers_are_in_order(programs: Mapping[str, IRModule]) -> Iterator[str]:
    for machine, program in programs.items():
        orders = [int(str(call.attr("order"))) for call in filter(_is_transfer, program.main.body)]
        for earlier, later in pairwise(orders):
            if later <= earlier:
                yield f"the program of {machine!r} makes transfer {later} after {earlier}, not in the driver's order"


def _functions_are_on_their_machine(machines: Machines, programs: Mapping[str, IRModule]) -> Iterator[str]:
    for machine, program in programs.items():
        for function in program.functions[1:]:
            path = function.constraint.path if function.constraint is not None else None
            if path is None or machines.of_site(path) != machine:
                yield f"the program of {machine!r} holds {function.name!r}, which is for @{path}"
