"""Generate docs/limits.md, the limits of files of other people, from the table of limits.

`pytest tests/test_untrusted.py --rewrite-goldens` writes the page.
"""

from __future__ import annotations

from tvmtarget.human_units import bytes_text
from tvmtarget.untrusted import LIMITS, Limit

__all__ = ["default_text", "page"]

_HEAD = """\
# Limits

Files come from other people, so every reader of tvmtarget limits what a file may cost. A file beyond a limit is an
error that names the file, the limit and the variable that raises it; nothing is read in part. This page is generated
from the table of limits (`tests/tools/write_limits.py`).

An environment variable with a whole number raises or lowers a limit in the processes that have it:

```console
$ TVMTARGET_MAX_TARGET_NODES=100000 tvmtarget show cluster.json
```

Only regular files are read: folders, pipes, sockets and devices are errors, and links are followed only to regular
files. Targets, functions and attributes of a module nest at most 64 levels, and a line of a tuning log has at most
1 MiB; these two limits are part of the formats and cannot be raised. Numbers in targets are at most 2**53 - 1.

"""


def default_text(row: Limit) -> str:
    """Return the default of a limit with its unit."""
    return bytes_text(row.default) if row.unit == "bytes" else f"{row.default:,} {row.unit}"


def page() -> str:
    """Return the text of the page."""
    rows = (f"| `{row.name}` | {default_text(row)} | {row.doc} | `{row.variable}` |" for row in LIMITS.values())
    return _HEAD + "\n".join(("| limit | default | what it limits | variable |", "|---|---|---|---|", *rows)) + "\n"
