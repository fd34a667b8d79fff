"""Logs of other tools: what they say becomes records, and every line that says nothing is told with its reason."""
