"""Language models and their export to transformers' own classes."""
