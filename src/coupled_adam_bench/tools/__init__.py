"""What stands around a study; it imports the pipeline, and no part of the pipeline imports it."""
