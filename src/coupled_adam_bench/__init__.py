"""Reproduce *Better Embeddings with Coupled Adam* (ACL 2025) and test other embedding optimizers
the same way."""

__version__ = "0.1.0"
