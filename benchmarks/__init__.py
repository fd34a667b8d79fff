"""Benchmarks: peers and tvmtarget side by side, in one process."""
