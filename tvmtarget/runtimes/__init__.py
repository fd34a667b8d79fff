"""Runtimes: where the programs of a built target run."""
