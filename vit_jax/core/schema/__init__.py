"""What config.py is made of: fields with bounds and documentation, files, overrides, old names."""
