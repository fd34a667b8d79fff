"""Which processes run, as tests ask that start some and end them."""

import os
import time
from pathlib import Path


def processes(word="", parent=None):
    """Return the processes whose commands hold a word, and that a process has started if one is named."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_child = parent is None or f"\nPPid:\t{parent}\n" in (folder / "status").read_text()
            if is_child and os.fsencode(word) in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def is_gone(pid):
    """Whether a process has ended; one that its parent did not ask about has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait(is_so):
    """Wait until something is so; a minute is more than any machine takes."""
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.05)
