"""The page docs/limits.md: what files of others may hold, from the table of limits itself.

Written anew by `pytest tests/test_untrusted.py --rewrite-goldens`.
"""

from __future__ import annotations

from tvmtarget.untrusted import LIMITS

__all__ = ["page"]

_HEAD = """\
# Limits

Files are handed around, so every reader of tvmtarget bounds what a file may cost. A file beyond a limit is refused with
an error that names the file, the limit and the variable that raises it; nothing is read in part. This page is generated
from the table of limits (`tests/tools/write_limits.py`).

A limit is raised, or lowered, by an environment variable with a whole number, for the processes that have it:

```console
$ TVMTARGET_MAX_TARGET_NODES=100000 tvmtarget show cluster.json
```

Files are regular files: folders, pipes, sockets and devices are refused, and links are followed only to regular files.
Targets, functions and attributes of a module nest at most 64 levels, and a line of a tuning log has at most 1 MiB;
these two are part of the formats and cannot be raised. Numbers of targets are at most 2**53 - 1.

"""


def page() -> str:
    """Return the text of the page."""
    rows = (f"| `{row.name}` | {row.default:,} {row.unit} | {row.doc} | `{row.variable}` |" for row in LIMITS.values())
    return _HEAD + "\n".join(("| limit | default | what it bounds | variable |", "|---|---|---|---|", *rows)) + "\n"
