"""Outlining: subgraphs become functions, and drivers call them."""
