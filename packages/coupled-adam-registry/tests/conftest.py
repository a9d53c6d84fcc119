"""The tiny study of the bench's own tests."""

from tiny import tiny_study as tiny_study
