"""Which site each operation gets at least cost: cuts and expansion."""
