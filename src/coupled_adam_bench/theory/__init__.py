"""The paper's theory, measured: gradients, second moments and the drift of the mean embedding in real training."""
