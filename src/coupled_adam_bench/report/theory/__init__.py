"""The section of the report on the theory: records of the stage `theory`, checks, figures and tables."""
