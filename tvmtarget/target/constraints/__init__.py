"""Constraints: requirements and preferences on targets, their text and JSON forms, and the check of a target."""
