"""What people call beside the workflow, and what its starts need."""
