"""Stub: vision_transformer's checkpoint.py imports pandas for a table that tests do not read."""
