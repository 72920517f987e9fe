"""A run's files: checkpoints, rows of metrics.jsonl, its identity in config.json."""
