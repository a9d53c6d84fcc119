"""What is on disk: where files lie, how they are written, and how they are checked when they are
read."""
