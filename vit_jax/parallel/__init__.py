"""Floor 1: where arrays live. Meshes, the rules table, what is known of each chip."""
