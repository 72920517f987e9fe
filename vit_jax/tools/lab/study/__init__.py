"""Studies of scaling: models x data x durations, trained as a sweep, against compute and data."""
