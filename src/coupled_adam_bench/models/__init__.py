"""Language models of the study and their export to transformers' own classes."""
