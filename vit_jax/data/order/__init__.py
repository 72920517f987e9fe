"""Which examples of a source are taken, and in which order."""
