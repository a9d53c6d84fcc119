"""The command ``measure``: the embeddings of any causal or masked language model of transformers."""
