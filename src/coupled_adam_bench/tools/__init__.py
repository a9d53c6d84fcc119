"""What people call beside the workflow: compare, costs, fetch, rehearse, trial, verify."""
