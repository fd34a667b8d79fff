"""A code generator `hostile` whose one kernel has candidates that do to the measuring process what must not be done."""

import os
import signal
import subprocess
import sys
import time

from tvmtarget.backends import protocol
from tvmtarget.backends.protocol import Kernel, Space

__all__ = ["BACKEND", "DEEDS", "KERNEL"]

KERNEL = Kernel("kernel", {"op": "hostile", "shapes": [[1]]})


def hang():
    time.sleep(3600)


def hang_deaf():
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    time.sleep(3600)


def crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def abort():
    os.abort()


def leave():
    os._exit(0)


def close_pipe():
    os.closerange(0, 64)
    time.sleep(3600)


def eat_memory():
    kept = []
    while True:
        kept.append(bytearray(1 << 30))


def fail():
    raise RuntimeError("no such schedule\nand much more")


def talk():
    print('{"status": "ok", "costs": [1]}', flush=True)


def leave_child():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)", "left-by-hostile"])


# What is done while building, and while running.
DEEDS = {
    "nothing": (None, None),
    "hang": (hang, hang),
    "hang deaf to alarms": (hang_deaf, hang_deaf),
    "crash": (crash, crash),
    "abort": (abort, abort),
    "leave": (leave, leave),
    "close the pipe": (close_pipe, close_pipe),
    "eat memory": (eat_memory, eat_memory),
    "fail": (fail, fail),
    "talk": (talk, talk),
    "leave a child": (leave_child, leave_child),
}


class Runner:
    def __init__(self, deed, is_wrong):
        self._deed = deed
        self._is_wrong = is_wrong

    def difference(self):
        if self._deed is not None:
            self._deed()
        return "result 0 differs by 1.0e+00 of its largest value" if self._is_wrong else None

    def time(self, repeats):
        return [1000] * repeats


class Context:
    spaces = {KERNEL.key: Space(KERNEL, ({"deed": (0,)},), ({"deed": 0},))}

    def is_legal(self, key, choices):
        return True

    def build(self, key, choices):
        name, phase = choices.split(" in ")
        if name == "be wrong":
            return Runner(None, is_wrong=True)
        building, running = DEEDS[name]
        if phase == "build" and building is not None:
            building()
        return Runner(running if phase == "run" else None, is_wrong=False)

    def propose(self, key, known, count, seed):
        return []

    def program(self, key):
        return {}


class Backend(protocol.Backend):
    name = "hostile"
    kinds = ("hostile",)
    format = "hostile/1"
    trace_format = "hostile.trace/1"
    supports = frozenset({"tuning"})

    def version(self):
        return "hostile"

    def compile(self, request):
        raise NotImplementedError

    def tuning_context(self, request):
        return Context()


BACKEND = Backend()
