"""Checks a run against the recorded runs of its config."""
