"""Floor 0: errors, names, random streams, cadence, logical axes. Imports no other floor."""
