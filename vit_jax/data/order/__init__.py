"""The choice and the order of a source's examples."""
