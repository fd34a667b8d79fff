"""Which site each operation gets at least cost: cuts, expansion, pruning."""
