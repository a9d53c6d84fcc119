"""What is measured, once, and the one tidy file that holds it."""
