"""Names that several parts share: optimizers, the matrices with a row for each token, a value of
histories."""

ADAM, COUPLED_ADAM, SGD = "adamw", "coupled_adam", "sgd"
"""Names of optimizers, and keys of Adam and Coupled Adam as the paper uses them."""
EMBEDDING, HEAD = "embedding", "head"
"""The matrices that the stage ``theory`` measures; a tied embedding is both in one."""
VALIDATION_LOSS = "val_loss"
"""The validation loss in a row of a history."""
