"""What a trained model is measured by: test loss, geometry of its embeddings, word similarity and
downstream tasks."""
