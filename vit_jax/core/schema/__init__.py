"""Building blocks of config.py: fields with bounds and docs, files, overrides, old names."""
