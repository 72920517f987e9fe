"""Sources of encoded examples: TFDS, folders, records, drawn ones."""
