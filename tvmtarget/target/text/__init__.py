"""Text forms of targets: read and printed."""
