"""How many examples of a law are tried: CI's share of them, or all with --hypothesis-profile=explore."""

from hypothesis import settings

__all__ = ["examples"]


def examples(usual: int, most: int) -> int:
    """Return a number of examples.

    Args:
        usual: the number without a profile, which are the same ones on each run.
        most: the number of the profile `explore`.
    """
    return most if settings.get_current_profile_name() == "explore" else usual
