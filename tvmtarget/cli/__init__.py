"""The command line: read, call the library, print."""

import os

# pydantic reads the metadata of all installed packages for plugins of its own, and one broken package would end every
# command. This has to be set before the first model is defined.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
