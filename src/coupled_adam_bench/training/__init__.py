"""The training of one cell, from token bins to a model folder; it can be resumed at any time."""
