"""Types of arguments of command lines: numbers within bounds, and names of models."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection, Sequence

__all__ = ["at_least", "check_models", "positive"]


def at_least(least: int) -> Callable[[str], int]:
    """Return a type of argparse for whole numbers that are not below `least`."""

    def number(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            found = least - 1
        if found < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return found

    return number


def positive(text: str) -> float:
    """Parse a finite number above zero, as a type of argparse."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return found


def check_models(parser: argparse.ArgumentParser, names: Sequence[str], known: Collection[str]) -> None:
    """End the program with an error that lists the models if some names are not of them."""
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"no model {', '.join(unknown)}; choose from {', '.join(known)}")
