"""Which examples of a source are taken, and where each stands in the stream of training."""
