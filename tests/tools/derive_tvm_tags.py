"""Derive `tags/nvidia.tvm.toml`: the NVIDIA GPUs of which we know what TVM's tags say and nothing more.

Run as `python tests/tools/derive_tvm_tags.py`; it needs the extra `tvm`. A tag that another `tags/nvidia*.toml`
defines, under its name or an alias, is left to that file.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "tags"
FILE = FOLDER / "nvidia.tvm.toml"

HEAD = """\
# Derived by tests/tools/derive_tvm_tags.py from the tags of apache-tvm {version}; do not edit.
#
# GPUs of which TVM says the compute capability and the limits of a block; where more is known of one, it has its
# tag in another file.
schema = 1

[source.tvm]
cite = "apache/tvm: python/tvm/backend/cuda/target_tags.py, of apache-tvm {version} (arch, limits per block)"
retrieved = 2026-11-20

[tag]
"""

# How words of names are written; other words that are letters and digits are written in capitals.
WORDS = {word.lower(): word for word in ("GeForce", "Quadro", "Tesla", "TITAN", "Tegra", "Ti", "Boost", "Black", "Xp")}
SERIES = ("geforce-gtx-", "geforce-gts-", "geforce-gt-", "geforce-rtx-")

# What TVM adds to every cuda target: it is what our tags leave to the kind's defaults.
DEFAULTS = {"kind": "cuda", "tag": "", "keys": ["cuda", "gpu"], "max_num_threads": 1024}


def tvm_tags() -> dict[str, dict[str, object]]:
    """Return what TVM's tags say by name, as JSON."""
    import tvm
    from tvm.target import list_tags

    return {name: json.loads(str(tvm.target.Target(name))) for name in sorted(list_tags())}


def derive(tags: Mapping[str, Mapping[str, object]], version: str, known: set[str]) -> str:
    """Return the file as it is committed: a line for every GPU of `tags` that is not `known`."""
    names = [name.removeprefix("nvidia/") for name in tags if name.startswith("nvidia/")]
    rows = [_row(name, tags[f"nvidia/{name}"]) for name in names if name not in known]
    return HEAD.format(version=version) + "".join(f"{row}\n" for row in rows)


def names_by_hand() -> set[str]:
    """Return the names and aliases of the NVIDIA tags in other files."""
    files = [path for path in FOLDER.glob("nvidia*.toml") if path != FILE]
    tags = [tomllib.loads(path.read_text(encoding="utf-8")).get("tag", {}) for path in files]
    return {known for table in tags for name, row in table.items() for known in (name, *row.get("aliases", ()))}


def _row(name: str, facts: Mapping[str, object]) -> str:
    """Write a tag on one line: a base by compute capability, and what differs from it."""
    own = name.removeprefix("nvidia-").replace(",", "-")
    base = f"nvidia/{facts['arch']}"
    fields = {"base": base, "doc": _doc(own), "source": ["tvm"], "confidence": "vendor", "tvm": ""}
    aliases = sorted({name, *_short(own)} - {own})
    fields |= {"aliases": aliases} if aliases else {}
    fields |= dict(_differences(facts))
    return f"{own} = {{ {', '.join(f'{key} = {json.dumps(value)}' for key, value in fields.items())} }}"


def _short(own: str) -> Iterator[str]:
    """Yield what people call it: gtx-980, k80."""
    yield from (own.removeprefix("geforce-") for series in SERIES if own.startswith(series))
    if own.startswith("tesla-"):
        yield own.removeprefix("tesla-")


def _doc(own: str) -> str:
    return "NVIDIA " + " ".join(WORDS.get(word, word.upper()) for word in own.split("-"))


def _differences(facts: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield what TVM says beyond the base."""
    from tvmtarget import Target

    base = Target.parse(f"nvidia/{facts['arch']}")
    for name, value in sorted(facts.items()):
        if name not in DEFAULTS and base[name] != value:
            yield name, value


if __name__ == "__main__":
    import tvm

    FILE.write_text(derive(tvm_tags(), tvm.__version__, names_by_hand()), encoding="utf-8")
