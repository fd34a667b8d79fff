"""Text forms of targets: parsing and printing."""
