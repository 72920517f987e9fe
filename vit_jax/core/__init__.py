"""Errors, commands, signals, files, names, logical axes. Imports nothing else of the project."""

__version__ = "1.0.0"
