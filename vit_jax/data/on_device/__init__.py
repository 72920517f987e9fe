"""Random ops of preprocessing in JAX: the pixels of data/ops, from images already decoded."""
