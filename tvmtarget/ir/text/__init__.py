"""The text form of a module: scanner, parser and printer."""
