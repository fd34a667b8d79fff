"""CPUs: target triples, chip names and instruction set features, from the tables of LLVM."""
