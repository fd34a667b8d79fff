"""`python -m tvmtarget`: the command line."""

import sys

from tvmtarget.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
