"""What a plan tells: why, what changed, what if, and pictures."""
