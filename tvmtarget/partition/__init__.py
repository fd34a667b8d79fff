"""Decomposition: one rule that splits a function over the nodes of its target, at every level of the tree."""
