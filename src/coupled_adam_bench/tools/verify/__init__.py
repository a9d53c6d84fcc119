"""Trains and evaluates cells of a manifest once more, and says whether the numbers come out
again."""
