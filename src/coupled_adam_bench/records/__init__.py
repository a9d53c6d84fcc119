"""What evaluations leave on disk: their files, and what is kept of scores along with them."""
