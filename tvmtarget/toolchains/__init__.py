"""Tool chains for other machines: compilers, and runners for the programs that they make."""
