"""Names for trees: what people deploy to, as data files."""
