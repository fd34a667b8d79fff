"""The abilities that backends declare are those that they implement."""

from typing import get_args

import pytest

from tvmtarget import plugins
from tvmtarget.backends.protocol import Ability, Backend, backend_named

METHODS = {"copy": "copy", "device-memory": "place", "tuning": "tuning_context"}


@pytest.mark.parametrize("name", plugins.names("tvmtarget.backends"))
def test_a_backend_implements_the_abilities_that_it_declares(name):
    backend = backend_named(name)
    assert backend.name == name
    assert backend.supports <= set(get_args(Ability))
    for ability, method in METHODS.items():
        is_overridden = getattr(type(backend), method) is not getattr(Backend, method)
        assert is_overridden == (ability in backend.supports)
    assert bool(backend.format) == bool(backend.trace_format) == ("tuning" in backend.supports)


def test_a_backend_has_a_default_for_everything_but_its_version_and_compiler():
    assert Backend.__abstractmethods__ == {"version", "compile"}
