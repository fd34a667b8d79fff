"""Backends: code generators that compile the functions of one leaf and run them."""
