"""Names that several parts share: optimizers, and a value of histories."""

ADAM, COUPLED_ADAM = "adamw", "coupled_adam"
"""Names of optimizers, and keys of Adam and Coupled Adam as the paper uses them."""
VALIDATION_LOSS = "val_loss"
"""The validation loss in a row of a history."""
