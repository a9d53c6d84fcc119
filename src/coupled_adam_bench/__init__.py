"""Coupled Adam Bench: reproduces the paper, and tests embedding optimizers the same way."""

__version__ = "0.1.0"
