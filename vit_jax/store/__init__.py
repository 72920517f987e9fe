"""What a run leaves on disk: checkpoints, rows of metrics.jsonl, its identity in config.json."""
