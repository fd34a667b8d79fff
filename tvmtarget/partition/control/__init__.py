"""Control flow: operations with regions, and the drivers that run them."""
