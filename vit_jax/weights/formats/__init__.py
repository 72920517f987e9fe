"""Formats of other projects: one file each. A new one is a file and its lines in loading.py."""
