"""CPUs: triples, instruction sets and their features, by the tables of LLVM."""
