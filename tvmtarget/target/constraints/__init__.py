"""Constraints: what a program asks of a target, and what follows from it."""
