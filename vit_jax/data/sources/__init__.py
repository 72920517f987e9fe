"""Sources of encoded examples: TFDS, folders, records, synthetic ones."""
