"""Stand-alone C: static functions, their C projects, and the backend of kind `c`."""
