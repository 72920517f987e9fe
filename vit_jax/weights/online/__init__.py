"""Weights that are not on this machine, by their names: fetched into a cache, and pinned."""
