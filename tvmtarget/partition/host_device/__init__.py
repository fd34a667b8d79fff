"""Host and device code: split mixed functions, and infer targets from callers."""
