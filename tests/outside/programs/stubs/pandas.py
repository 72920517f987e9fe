"""Imported by vision_transformer's checkpoint.py, for a table that the tests do not read."""
