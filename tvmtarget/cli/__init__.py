"""The command line: read, call the library, print."""
