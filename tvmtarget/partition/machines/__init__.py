"""A cluster: its machines, the program of each of them, and how fast inputs that follow each other get through."""
