"""The tuning log: records of what was measured, kept by what ran and what it ran on, and found again."""
