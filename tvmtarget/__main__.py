"""`python -m tvmtarget` and the program `tvmtarget`: the command line."""

import os
import signal
import sys

# Python puts the current folder first on the path of a module that is run as a command; what lies in it may be
# anybody's. `-P` keeps it out from the start, as the command `tvmtarget` does.
if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]


def run() -> int:
    """Load and run the command line of this process.

    Ctrl-C while it is loaded ends the process without a traceback.

    Returns:
        The exit code.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tvmtarget.cli.main import main

    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return main()


if __name__ == "__main__":
    sys.exit(run())
