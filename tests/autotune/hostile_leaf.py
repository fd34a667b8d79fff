"""A code generator that takes the leaves of kind onnxruntime, and does to the building process what must not be done.

What it does is in the environment, `DEED in PHASE` as in `hostile.py`; without it, functions are interpreted.
"""

import os

from hostile import DEEDS

from tvmtarget.backends import protocol
from tvmtarget.backends.protocol import backend_named

__all__ = ["BACKEND"]


class Function(protocol.Compiled):
    def __init__(self, inner):
        self._inner = inner

    def run(self, inputs):
        deed, phase = os.environ["HOSTILE_LEAF"].split(" in ")
        if deed == "be wrong":
            return [result * 2 + 1 for result in self._inner.run(inputs)]
        act = DEEDS[deed][1]
        if phase == "run" and act is not None:
            act()
        return self._inner.run(inputs)


class Backend(protocol.Backend):
    name = "a-hostile-leaf"
    kinds = ("onnxruntime",)

    def version(self):
        return "hostile"

    def compile(self, request):
        deed, phase = os.environ["HOSTILE_LEAF"].split(" in ")
        act = DEEDS[deed][0] if phase == "build" else None
        if act is not None:
            act()
        return Function(backend_named("numpy").compile(request))


BACKEND = Backend()
