"""What weights of attention say, as numbers from arrays."""
