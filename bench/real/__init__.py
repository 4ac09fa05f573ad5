"""Small models of every kind, made with TensorFlow: a family per file."""
