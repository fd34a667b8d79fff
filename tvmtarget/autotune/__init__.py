"""Auto-tuning: a search over kernels, settings and placements, and the log of what was measured."""
