"""Rehearses a study without a GPU: every stage for real, on a miniature."""
