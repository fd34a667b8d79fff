"""The tuning loop: measure kernels, settings and placements, and write what they cost into a log."""
