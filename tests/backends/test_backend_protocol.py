"""The abilities that backends declare are those that they implement."""

import tomllib
from pathlib import Path
from typing import get_args

import pytest

from tvmtarget import plugins
from tvmtarget.backends.engine_packages import OLDEST, engine_package
from tvmtarget.backends.protocol import Ability, Backend, backend_named
from tvmtarget.errors import TvmTargetWarning

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


@pytest.mark.parametrize("name", OLDEST)
def test_engines_older_than_what_extras_install_are_a_warning(name, monkeypatch):
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    package, (major, minor) = pytest.importorskip(name), OLDEST[name]
    assert extras[name] == [f"{name}>={major}.{minor}"]
    assert engine_package(name) is package
    monkeypatch.setattr(package, "__version__", f"{major}.{minor - 1}.7-of-a-test")
    with pytest.warns(TvmTargetWarning, match=rf"{name} {major}.{minor - 1}\.7.* is older than .*; install {name}>="):
        assert engine_package(name) is package
