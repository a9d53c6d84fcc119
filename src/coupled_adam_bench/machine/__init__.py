"""The machine that a process runs on: its devices, its environment, and what it prints."""
