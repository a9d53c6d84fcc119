"""Names that the claims of the paper are about: optimizers, and the matrices with a row for each token."""

ADAM, COUPLED_ADAM, SGD = "adamw", "coupled_adam", "sgd"
"""Names of optimizers, and keys of Adam and Coupled Adam as the paper uses them."""
EMBEDDING, HEAD = "embedding", "head"
"""The matrices that the stage ``theory`` measures; a tied embedding is both in one."""
