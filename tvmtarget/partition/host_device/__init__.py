"""Host and device: from where functions are called, and mixed functions split into host and device functions."""
