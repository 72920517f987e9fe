"""What shapes that a file of weights states may be at most: a header costs its writer nothing."""

MAX_DIMENSIONS = 32  # NumPy has 64; arrays of models have six at most
MAX_EMPTY = 2**40  # elements of an empty array, but for the axes of size 0
