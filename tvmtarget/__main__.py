"""`python -m tvmtarget`: the command line."""

from tvmtarget.cli.main import main

if __name__ == "__main__":
    main()
