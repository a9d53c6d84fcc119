"""What a manifest says, in the forms that others ask for: the checklists of ARR and NeurIPS, and
RO-Crate."""
