"""`python -m benchmarks NAME [OPTION ...]` runs one benchmark; without a name it lists them."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from tvmtarget.errors import TvmTargetError

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))


def main() -> None:
    """Run the benchmark that the first word names."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in NAMES:
        sys.exit(f"usage: python -m benchmarks NAME [OPTION ...], where NAME is one of: {', '.join(NAMES)}")
    sys.argv[:2] = [f"python -m benchmarks {name}"]
    try:
        import_module(f"benchmarks.{name}").main()
    except TvmTargetError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
