"""The geometry of an embedding matrix: pure functions from arrays to floats, in float64, without torch."""
