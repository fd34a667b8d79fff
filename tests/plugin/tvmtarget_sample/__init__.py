"""A sample plugin: the kind `probe`, a device of its own whose backend writes down every op and copy it runs, and tags.

Kinds are in a module of their own that imports nothing heavy, as they are read whenever a target is.
"""

from pathlib import Path

__all__ = ["TAGS"]

TAGS = Path(__file__).parent / "tags"
