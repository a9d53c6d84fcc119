"""Tests of the paper's theory: gradients, second moments and the drift of the mean embedding in
real training."""
