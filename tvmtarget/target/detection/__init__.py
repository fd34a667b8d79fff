"""Detection of the local machine as a target, and comparison of a machine with a target."""
