"""Rehearses a study without a GPU: the paper's sizes on fake tensors, then every stage for real on
a miniature."""
