"""Errors, names, random streams, cadence, logical axes. Imports nothing else of the project."""
