"""Building a run from its config: code that the commands share."""
