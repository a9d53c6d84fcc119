"""The training of one cell: from token bins to a model folder, resumable at any moment."""
