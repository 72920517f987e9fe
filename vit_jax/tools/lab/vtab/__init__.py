"""VTAB-1k: the nineteen tasks, and what a model makes of them."""
