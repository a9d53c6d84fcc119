"""The geometry of token embeddings, measured without torch; the README of the distribution explains
its use."""

__version__ = "0.1.0"
