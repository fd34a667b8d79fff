"""How many examples of a law are tried: CI's share of them, or all with --hypothesis-profile=explore."""

from typing import TypeVar

from hypothesis import settings

__all__ = ["examples"]

T = TypeVar("T")


def examples(usual: T, most: T) -> T:
    """Return a number of examples, or a collection of them.

    Args:
        usual: that without a profile, which are the same ones on each run.
        most: that of the profile `explore`.
    """
    return most if settings.get_current_profile_name() == "explore" else usual
