"""Floor 0: errors, names, random streams, cadence, logical axes. Imports nothing of the project."""
