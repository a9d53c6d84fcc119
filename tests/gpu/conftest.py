"""The tiny data and the folder of these tests."""

from nano import nano, prepared

__all__ = ["nano", "prepared"]
