"""From a config to a run: what the commands share."""
