"""Names of attention's arrays, for remat policies."""

PROJECTED = "attention_projected"  # queries, keys and values
WEIGHTS = "attention_weights"  # of the plain program, N x N
MIXED = "attention_mixed"  # the values mixed by the weights
STATISTICS = "attention_statistics"  # a logarithm for each query, instead of the weights
