"""Import and export of the logs of other tools."""
