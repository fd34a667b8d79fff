"""Tags: names for target trees (instance types, boards, chips), defined in data files."""
