"""Code generators: each compiles the functions of one leaf and runs them."""
