"""What a program will run on: the tree of targets, its texts, its kinds and the constraints on it."""
