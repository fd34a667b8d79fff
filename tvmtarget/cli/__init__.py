"""The command line: each command parses its options, calls the library and prints the result."""

import os

# pydantic loads plugins from the metadata of all installed packages, and one broken package would stop every command.
# The variable has to be set before the first model is defined.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
