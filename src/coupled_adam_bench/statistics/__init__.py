"""Tests between optimizers, from ``results.csv`` to ``tests.csv``."""
