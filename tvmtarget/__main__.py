"""`python -m tvmtarget`: the command line."""

import os
import sys

# Python puts the current folder first on the path of a module that is run as a command; what lies in it may be
# anybody's. `-P` keeps it out from the start, as the command `tvmtarget` does.
if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]

from tvmtarget.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
