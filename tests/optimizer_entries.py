"""Entries of a study for the built-in optimizers, from their own declarations."""

from coupled_adam_bench.study.settings.optimizers.built_in import BY_NAME

BUILT_IN = tuple(entry for kind in BY_NAME.values() for entry in kind.examples)
