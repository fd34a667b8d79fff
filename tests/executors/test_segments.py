"""Segments of a machine's program: what each reads and returns."""

import tracemalloc

from tvmtarget.executors.driver_program import Driver, DriverProgram, Signature, Step
from tvmtarget.runtimes.segments import split_segments


def program(steps, params, results, constants):
    inputs, outputs = (
        tuple(Signature(name=one, dtype="float32", shape=(1,)) for one in names) for names in (params, results)
    )
    driver = Driver(path="", params=params, results=results, steps=tuple(steps), constants=constants)
    return DriverProgram(entry="main", inputs=inputs, outputs=outputs, drivers={"main": driver})


def call(inputs, output, name="f"):
    return Step(call=name, inputs=inputs, outputs=(output,))


def test_segments_have_the_values_that_they_read_and_constants_that_leave_a_machine_as_they_are_come_first():
    send = Step(inputs=("sent",), outputs=(), to="n1", order=0)
    receive = Step(inputs=(), outputs=("got",), from_="n1", order=1)
    steps = [call(("x", "w"), "a"), send, receive, call(("got", "a", "v"), "y")]
    found = split_segments(program(steps, ("x",), ("y", "a", "out"), ("w", "v", "sent", "out", "unused")))
    constants, first, sent, received, last = found
    assert (sent, received) == (send, receive)
    assert (constants.params, constants.steps, constants.results) == ((), (), ("sent", "out"))
    assert (first.params, first.constants, first.results) == (("x",), ("w",), ("a",))
    assert (last.params, last.constants, last.results) == (("got", "a"), ("v",), ("y",))


def test_many_segments_with_constants_take_linear_memory():
    """A set of names for each segment, the constants or those that later ones read, would take the square."""

    def peak(count):
        steps = []
        for number in range(count):
            steps += [
                call((f"v{number}", f"c{number}"), f"v{number + 1}"),
                Step(inputs=(f"v{number + 1}",), outputs=(), to="n1", order=number),
            ]
        constants = tuple(f"c{number}" for number in range(count))
        given = program(steps, ("v0",), (f"v{count}",), constants)
        tracemalloc.start()
        try:
            assert len(list(split_segments(given))) == 2 * count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(3200) < 24 * peak(200)
