"""Runtimes: where the program of each machine runs."""
