"""Tables, figures and the report of a study, from its results and tests."""
