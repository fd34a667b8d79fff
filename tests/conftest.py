"""Fixtures of all tests."""

import gc
import inspect
import os
import signal
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tvmtarget import plugins

# The first text that a fresh checkout draws makes hypothesis tabulate Unicode, for seconds on a slow machine.
_SETTINGS = {"suppress_health_check": [HealthCheck.too_slow], "deadline": None}
# The same examples on each run, so that what fails is the change; others with --hypothesis-profile=explore.
settings.register_profile("tvmtarget", derandomize=True, **_SETTINGS)
settings.register_profile("explore", **_SETTINGS)
settings.load_profile("tvmtarget")
# Hypothesis draws constants of the modules that happen to be imported, too: those depend on which tests ran before.
if hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = lambda: providers.Constants()

# The parser of TVM's scripts lists the frames of the stack. For those of importlib, which have no file, Python looks
# through all modules, and finds none: a third of the time in which tests are collected.
_getmodule = inspect.getmodule
inspect.getmodule = lambda one, _filename=None: None if str(_filename)[:8] == "<frozen " else _getmodule(one, _filename)

sys.path.insert(0, str(Path(__file__).parent))

# Tests of code generators must generate code; those of the cache name a folder of their own.
os.environ["TVMTARGET_CACHE"] = "off"

# Threads of numpy and TVM that wait for the next product take processors from the other tests, and what these start.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "TVM_THREAD_POOL_SPIN_COUNT": "0"}

# No machine loses its power during the tests: none has to wait until its disk has what it writes.
os.fsync = lambda _descriptor: None

# A shell that starts the tests in the background has them ignore Ctrl-C, and what they start, which some interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# What is collected stays until the end: looking through it for garbage takes a fifth of the time of collection.
def pytest_collection():
    gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


def pytest_addoption(parser):
    parser.addoption("--rewrite-goldens", action="store_true", help="write golden files anew instead of comparing")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each process whole files until one has none left, so that few fixtures of files are made twice."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


def pytest_configure():
    """Stop if the entry points in the checkout are not those that are installed: plugins would silently be missing."""
    for folder in (Path(__file__).parents[1], Path(__file__).parent / "plugin"):
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        try:
            installed = {(one.group, one.name, one.value) for one in distribution(project["name"]).entry_points}
        except PackageNotFoundError:
            continue
        stated = project.get("entry-points", {})
        expected = {(group, name, value) for group, rows in stated.items() for name, value in rows.items()}
        if not expected <= installed:
            raise pytest.UsageError(
                f"the entry points of {folder} changed; install it again: pip install -e . {folder}"
            )


@pytest.fixture(autouse=True)
def plugins_of_one_test():
    """Remove the plugins that a test registered: which tests ran before it in its process must not matter."""
    registered, owners = dict(plugins._registered), dict(plugins._owners)
    yield
    if plugins._registered != registered:
        plugins._registered.clear()
        plugins._registered.update(registered)
        plugins._owners.clear()
        plugins._owners.update(owners)
        for clear in plugins._cache_clears:
            clear()


@pytest.fixture
def golden(request):
    """Return a function that compares a text with a golden file below tests/, or writes that file anew."""

    def compare(name, text):
        path = Path(__file__).parent / name
        if request.config.getoption("--rewrite-goldens"):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return compare


@pytest.fixture
def subprocess_with_hash_seed():
    """Return a function that runs Python code under a PYTHONHASHSEED and returns what it prints."""

    def run(code, seed):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        root = Path(__file__).parents[1]
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd=root, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def probe_log():
    """Return the log of the sample plugin's backend, empty; skip where the plugin is not installed."""
    sample = pytest.importorskip("tvmtarget_sample.backend", reason="pip install ./tests/plugin")
    sample.BACKEND.log.clear()
    return sample.BACKEND.log


@pytest.fixture
def small_disk(tmp_path):
    """Return a folder on a file system of 1 MiB."""
    options = ["-t", "tmpfs", "-o", "size=1m,mode=700"]
    if subprocess.run(["mount", *options, "tmpfs", tmp_path], capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", tmp_path], check=True)
