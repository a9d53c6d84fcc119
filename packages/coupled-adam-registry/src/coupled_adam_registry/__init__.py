"""Lets results of others in: a bundle is handed in, checked, kept in ``registry/``, and shown on
one page."""

__version__ = "0.1.0"
