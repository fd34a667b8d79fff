"""How the calls of a decomposed program are driven."""
