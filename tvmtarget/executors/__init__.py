"""Executors: run the driver program, which calls leaf functions and copies values between memories."""
