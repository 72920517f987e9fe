"""Errors, commands, signals, files, names, logical axes. Imports nothing else of the project."""
